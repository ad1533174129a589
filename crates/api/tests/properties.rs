//! What holds for every input: reading never panics, and what we write reads back as it was.
#![allow(clippy::panic)] // In a test, a panic is the report.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::document::{self, Document};
use evenkeel_api::machine::disruption_policy::DisruptionPolicy;
use evenkeel_api::machine::machine_config::{File, MachineConfig, Owner, Section, Unit};
use evenkeel_api::windows::services::{Service, Services, Variable};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use serde_json::{Value, json};

const SEEDS: [&str; 5] = [
    r#"{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/etc/a","mode":420,"contents":{"compression":"gzip","source":"data:;base64,H4sIAAAAAAAAA8tIzcnJBwCGphA2BQAAAA==","verification":{"hash":"sha256-2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"}}}],"disks":[{"device":"/dev/sda"}]},"systemd":{"units":[{"name":"a.service","dropins":[{"name":"a.conf","contents":"[Unit]\nA=b"}]}]}}"#,
    "ignition: {version: 2.2.0}\nstorage:\n  files:\n  - {path: /a, filesystem: root, mode: 0644, contents: {source: 'data:,%0A'}}\nnetworkd: {units: [{name: a}]}\n",
    "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata: &m {name: a}\nspec: {fips: true, kernelArguments: [a], config: {ignition: {version: 3.0.0}}}\nstatus: *m\n",
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: services-1-2-3-abc1234}\ndata:\n  files: '[]'\n  services: |\n    [{\"name\": \"a\", \"command\": \"\\\"c\\\" NODE\", \"bootstrap\": false, \"priority\": 0, \"dependencies\": [\"b\"],\n      \"nodeVariablesinCommand\": {\"name\": \"NODE\", \"jsonPathNodeObject\": \"{.a}\"}}]\n",
    "apiVersion: evenkeel.dev/v1alpha1\nkind: NodeReadinessRule\nmetadata: {name: a}\nspec: {evictAfter: 5m, extensions: [{name: a, probe: {grpc: {port: 1}}}]}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: windows-instances}\ndata: {10.0.0.1: username=a}\n",
];

/// Text that YAML likes to take for something else.
fn awkward() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[ -~\n\t]{0,60}",
        "( |[a-z]|\n|#|:|-|'|\"){0,40}",
        Just("0644".to_owned()),
        Just("yes".to_owned()),
        Just("~".to_owned()),
        Just("null".to_owned()),
        Just("1e3".to_owned()),
        Just("a\r\nb\r".to_owned()),
        Just("  indented\n\n\nlines \n".to_owned()),
        Just("word ".repeat(200)),
    ]
}

fn filled() -> impl Strategy<Value = String> {
    awkward().prop_filter("empty is as good as absent", |text| !text.is_empty())
}

/// The text of a unit: any comment and any value, in lines that are not too long.
fn unit_text() -> impl Strategy<Value = String> {
    (awkward(), awkward()).prop_map(|(comment, value)| {
        let line = |text: String| -> String {
            text.replace(['\r', '\n', '\\'], " ")
                .chars()
                .take(500)
                .collect()
        };
        format!("# {}\n[Unit]\nDescription={}\n", line(comment), line(value))
    })
}

fn owner() -> impl Strategy<Value = Owner> {
    let name = "[a-z]{1,8}".prop_filter("root is number 0", |name| name != "root");
    prop_oneof![
        (0..u32::MAX).prop_map(Owner::Id),
        name.prop_map(Owner::Name)
    ]
}

fn file() -> impl Strategy<Value = File> {
    (vec(any::<u8>(), 0..200), 0..=0o7777_u32, owner(), owner()).prop_map(
        |(contents, mode, user, group)| File {
            contents,
            mode,
            user,
            group,
        },
    )
}

fn unit() -> impl Strategy<Value = Unit> {
    let drop_ins = btree_map("[a-z0-9-]{1,10}\\.conf", unit_text(), 0..3);
    (
        option::of(unit_text()),
        any::<Option<bool>>(),
        any::<bool>(),
        drop_ins,
    )
        .prop_map(|(contents, enabled, masked, drop_ins)| Unit {
            contents,
            enabled,
            masked,
            drop_ins,
        })
}

/// A few things that are not ours, of 3.x or of 2.2.
fn unsupported() -> impl Strategy<Value = BTreeMap<Section, Value>> {
    let known = |entries: &[(&str, &str, Value)]| -> Vec<(Section, Value)> {
        let sections = entries.iter().map(|(name, identity, value)| {
            let (name, identity) = ((*name).to_owned(), (*identity).to_owned());
            (Section { name, identity }, value.clone())
        });
        sections.collect()
    };
    let three = known(&[
        ("spec.fips", "", json!(true)),
        ("spec.kernelType", "", json!("realtime")),
        (
            "storage.directories",
            "/d",
            json!({"path": "/d", "mode": 448}),
        ),
        (
            "storage.luks",
            "l",
            json!({"name": "l", "device": "/dev/sda", "cex": {"enabled": true}}),
        ),
        ("passwd.users", "core", json!({"name": "core", "uid": 0})),
        (
            "passwd.users",
            "bob",
            json!({"name": "bob", "shouldExist": false}),
        ),
        ("ignition.timeouts", "", json!({"httpTotal": 30})),
        ("kernelArguments", "", json!({"shouldExist": ["quiet"]})),
    ]);
    let two = known(&[
        (
            "networkd.units",
            "a.network",
            json!({"name": "a.network", "contents": "x"}),
        ),
        ("storage.directories", "/d", json!({"path": "/d"})),
        (
            "storage.links",
            "/LINK",
            json!({"path": "/LINK", "target": "/d"}),
        ),
        (
            "storage.filesystems",
            "/sysroot",
            json!({"path": "/sysroot"}),
        ),
        (
            "passwd.users",
            "core",
            json!({"name": "core", "create": {"uid": 5}}),
        ),
        ("spec.extensions", "", json!(["usbguard"])),
    ]);
    prop_oneof![
        proptest::sample::subsequence(three, 0..=8),
        proptest::sample::subsequence(two, 0..=6)
    ]
    .prop_map(|sections| sections.into_iter().collect())
}

fn machine_config() -> impl Strategy<Value = MachineConfig> {
    (
        option::of("[a-z0-9-]{1,20}"),
        btree_map("/[a-z]{1,4}/[ -.0-~]{1,8}x", file(), 0..4),
        btree_map("[a-z@]{1,8}\\.(service|mount|timer)", unit(), 0..4),
        vec(filled(), 0..3),
        awkward(),
        vec(awkward(), 0..3),
        unsupported(),
    )
        .prop_map(
            |(name, files, units, keys, os_image_url, kernel_arguments, unsupported)| {
                let mut seen = BTreeSet::new();
                let ssh_keys = keys
                    .into_iter()
                    .filter(|key| seen.insert(key.clone()))
                    .collect();
                MachineConfig {
                    name,
                    files,
                    units,
                    ssh_keys,
                    os_image_url,
                    kernel_arguments,
                    unsupported,
                    disruption_policy: DisruptionPolicy::default(),
                }
            },
        )
}

fn read_back(text: &str) -> Result<Document, TestCaseError> {
    let read = document::read("written", text.as_bytes());
    let (mut documents, _) =
        read.map_err(|problems| TestCaseError::fail(format!("{problems}\n{text}")))?;
    prop_assert_eq!(documents.len(), 1);
    documents
        .pop()
        .ok_or_else(|| TestCaseError::fail("nothing"))
}

fn services() -> impl Strategy<Value = Services> {
    let service = (
        "[a-z]{1,8}",
        filled(),
        vec("[A-Z]{1,8}[0-9]", 0..3),
        any::<u16>(),
    );
    let service = service.prop_map(|(name, command, dependencies, priority)| Service {
        name,
        command: command.replace('"', "'") + "x",
        dependencies,
        priority: priority.into(),
        ..Service::default()
    });
    let variables = btree_map("[A-Z_]{1,8}", awkward(), 0..4);
    (vec(service, 0..5), variables).prop_map(|(services, variables)| {
        let by_name: BTreeMap<_, _> = services
            .into_iter()
            .map(|service| (service.name.clone(), service))
            .collect();
        let variables = variables
            .into_iter()
            .map(|(name, value)| Variable { name, value });
        Services {
            services: by_name.into_values().collect(),
            environment: variables.collect(),
            ..Services::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..300)) {
        if let Err(problems) = document::read("x", &bytes) {
            prop_assert!(problems.iter().next().is_some());
        }
    }

    #[test]
    fn arbitrary_text_is_read_or_refused(text in "[ -~\n]{0,200}|[\\[\\]{},:&*!|>'\"#\\-a0\n ]{0,80}") {
        let _ = document::read("x", text.as_bytes());
    }

    /// Covers H05, M04.
    #[test]
    fn a_damaged_document_is_read_or_refused(
        seed in 0..SEEDS.len(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..6),
    ) {
        let mut bytes = SEEDS[seed].as_bytes().to_vec();
        for (index, byte, kind) in damage {
            let at = index.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => { bytes.remove(at); }
            }
        }
        let _ = document::read("x", &bytes);
    }

    /// Covers M04, M07, M08.
    #[test]
    fn what_is_written_reads_back_equal(config in machine_config()) {
        let document = Document::MachineConfig(config.clone());
        prop_assert_eq!(read_back(&config.to_document().to_string())?, document.clone());
        prop_assert_eq!(read_back(&config.to_yaml())?, document);
    }

    /// Covers H06.
    #[test]
    fn canonical_data_is_stable(services in services()) {
        let canonical = services.canonical();
        let read = Services::from_data("x", &canonical);
        let (read, _) = read.map_err(|problems| TestCaseError::fail(problems.to_string()))?;
        prop_assert_eq!(read.canonical(), canonical);
        prop_assert_eq!(read.hash(), services.hash());
    }
}

#[test]
fn the_seeds_are_valid_before_they_are_damaged() {
    for seed in SEEDS {
        if let Err(problems) = document::read("seed", seed.as_bytes()) {
            panic!("{problems}");
        }
    }
}
