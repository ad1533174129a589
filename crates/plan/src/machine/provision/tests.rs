use serde_json::json;

use super::*;
use crate::machine::desired::{Contents, Desired};
use crate::machine::problem::Refused;
use crate::machine::record::Record;
use crate::machine::targets::Targets;
use crate::machine::{MachineSnapshot, Plan, plan};

const NAME: &str = "rendered-worker-1";

/// A MachineConfig with one of everything that cannot change, as the daemon writes it: without kind and
/// `apiVersion`, and with what Go writes for nothing.
fn theirs(device: &str) -> Value {
    json!({
        "metadata": {"name": NAME, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "baseOSExtensionsContainerImage": "quay.io/extensions@sha256:1", "extensions": ["usbguard"], "fips": true,
            "kernelArguments": null, "kernelType": "realtime", "osImageURL": "",
            "config": {
                "ignition": {"version": "3.4.0"},
                "passwd": {"users": [
                    {"name": "core", "passwordHash": "$6$x", "sshAuthorizedKeys": ["ssh-ed25519 AAAA a"]},
                    {"name": "admin", "groups": ["wheel"]},
                ]},
                "storage": {
                    "disks": [{"device": device, "wipeTable": true}],
                    // Nothing of a file is judged: it stands there already.
                    "files": [{"path": "/etc/a", "append": [{"source": "https://example.com/a"}]}],
                },
            },
        },
    })
}

/// The same as the first boot leaves it, without its Ignition config.
fn encapsulated() -> Value {
    let mut config = theirs("/dev/sda");
    config["spec"]["config"] = json!({"ignition": {"version": "3.4.0"}});
    config
}

fn kept(path: &'static str, text: &[u8]) -> ProvisionFile {
    let (path, extent) = files().find(|(it, _)| *it == path).unwrap();
    ProvisionFile {
        path,
        extent,
        text: Ok(text.to_vec()),
    }
}

fn kept_json(path: &'static str, value: &Value) -> ProvisionFile {
    kept(path, value.to_string().as_bytes())
}

/// A first configuration with exactly those sections, as ours is rendered.
fn first(device: &str) -> Desired {
    let sections = Provision::read("it", theirs(device).to_string().as_bytes());
    Desired {
        name: Some("rendered-worker-ours".to_owned()),
        unsupported: sections.unwrap().sections,
        ..Desired::default()
    }
}

fn planned(desired: &Desired, record: &Record) -> Result<Plan, Refused> {
    let seen = MachineSnapshot::default();
    plan(
        desired,
        &Targets::new(),
        &Contents::default(),
        &seen,
        record,
    )
}

fn new(provision: &Provision) -> Record {
    Record::default().adopting(provision).unwrap()
}

/// The refusal of a section of its first configuration.
fn refusal(of: &str, provision: &Provision) -> String {
    let refused = planned(&first("/dev/sda"), &new(provision)).unwrap_err();
    let mut problems = refused.0.iter().filter(|it| it.section == of);
    problems.next().unwrap().to_string()
}

/// Covers O06.
#[test]
fn the_file_that_says_most_lately_what_a_machine_was_provisioned_from_counts() {
    let annotations = json!({ annotation::CURRENT_CONFIG: NAME, annotation::STATE: "Done" });
    let current = kept_json(linux::THEIR_CURRENT_CONFIG, &theirs("/dev/now"));
    let served = kept_json(linux::THEIR_SERVED_CONFIG, &theirs("/dev/first"));
    let [boxed, boxed_before] =
        linux::THEIR_ENCAPSULATED_CONFIG.map(|path| kept_json(path, &encapsulated()));
    let [first, first_before] =
        linux::THEIR_FIRST_ANNOTATIONS.map(|path| kept_json(path, &annotations));
    // HyperShift leaves it empty.
    let empty = kept(linux::THEIR_CURRENT_CONFIG, b"\n");
    let broken = kept(linux::THEIR_CURRENT_CONFIG, b"{\"spec\": ");
    let all = [
        &current,
        &served,
        &boxed,
        &boxed_before,
        &first,
        &first_before,
    ];
    let (whole, part, name) = (Extent::Whole, Extent::WithoutIgnition, Extent::Name);
    for (kept, counts, device, unread) in [
        (&all[..], Some((&current, whole)), Some("/dev/now"), 0),
        (&all[1..], Some((&served, whole)), Some("/dev/first"), 0),
        (
            &[&empty, &served][..],
            Some((&served, whole)),
            Some("/dev/first"),
            0,
        ),
        (
            &[&broken, &served][..],
            Some((&served, whole)),
            Some("/dev/first"),
            1,
        ),
        (&[&broken][..], None, None, 1),
        (&all[2..], Some((&boxed, part)), None, 0),
        (&all[3..], Some((&boxed_before, part)), None, 0),
        (&all[4..], Some((&first, name)), None, 0),
        (&all[5..], Some((&first_before, name)), None, 0),
        (&[][..], None, None, 0),
    ] {
        let kept: Vec<ProvisionFile> = kept.iter().copied().cloned().collect();
        let provision = Provision::of_files(&kept);
        let source = provision.basis.source.as_ref();
        let expected = counts.map(|(kept, extent)| (kept.path, Some(NAME), extent));
        let found = source.map(|it| (it.place.as_str(), it.config.as_deref(), it.extent));
        assert_eq!(found, expected);
        let disk = provision
            .sections
            .keys()
            .find(|it| it.name == "storage.disks");
        assert_eq!(disk.map(|it| it.identity.as_str()), device);
        assert_eq!(provision.basis.unread.len(), unread, "{provision:?}");
        let is_part = counts.is_some_and(|(_, extent)| extent != whole);
        assert_eq!(provision.named(), is_part.then_some(NAME));
    }
    let files: Vec<_> = files().map(|(path, _)| path).collect();
    assert_eq!(files, all.map(|kept| kept.path));
}

/// Covers O06.
#[test]
fn sections_as_a_machine_was_provisioned_are_adopted_and_others_are_refused_by_name() {
    let provision =
        Provision::of_files(&[kept_json(linux::THEIR_CURRENT_CONFIG, &theirs("/dev/sda"))]);
    let sections: Vec<_> = provision
        .sections
        .keys()
        .map(|it| it.name.as_str())
        .collect();
    let expected = [
        "passwd.users",
        "passwd.users",
        "spec.extensions",
        "spec.fips",
        "spec.kernelType",
        "storage.disks",
    ];
    assert_eq!(sections, expected);
    let adopted = planned(&first("/dev/sda"), &new(&provision)).unwrap();
    assert!(
        adopted.steps.is_empty() && adopted.actions.is_empty(),
        "{adopted:?}"
    );

    let from = format!(
        "; it was provisioned from MachineConfig {NAME} (/etc/machine-config-daemon/currentconfig)"
    );
    let other = planned(&first("/dev/sdb"), &new(&provision)).unwrap_err();
    let told: Vec<String> = other.0.iter().map(ToString::to_string).collect();
    let limit = "this section cannot change on a running machine";
    assert_eq!(
        told,
        [
            format!(
                "storage.disks /dev/sda: is gone (wipeTable), and {limit}: put it back, or reprovision the machine{from}"
            ),
            format!(
                "storage.disks /dev/sdb: is new (wipeTable), and {limit}: remove it, or reprovision the machine{from}"
            ),
        ]
    );

    // Where extensions come from is OpenShift's own to fill in, and nothing that a machine is.
    let mut open = first("/dev/sda");
    let image = Section {
        name: NOT_ABOUT_THE_MACHINE.to_owned(),
        identity: String::new(),
    };
    open.unsupported
        .insert(image, json!("quay.io/extensions@sha256:2"));
    assert!(planned(&open, &new(&provision)).is_ok());
    assert!(planned(&open, &adopted.record).is_err());

    // From then on it is as for any other machine.
    let again = planned(&first("/dev/sda"), &adopted.record).unwrap();
    assert!(again.steps.is_empty());
    let changed = planned(&first("/dev/sdb"), &adopted.record).unwrap_err();
    assert!(
        !changed.to_string().contains("provisioned from"),
        "{changed}"
    );
    assert_eq!(
        adopted.record.clone().adopting(&provision),
        Err(Managed(first("").name))
    );
}

/// Covers O06.
#[test]
fn a_section_that_nobody_vouches_for_is_refused_with_what_adopts_the_machine() {
    let whole =
        Provision::read("provision.ign", theirs("/dev/sda").to_string().as_bytes()).unwrap();
    assert!(planned(&first("/dev/sda"), &new(&whole)).is_ok());
    assert_eq!(
        whole.words(),
        format!("MachineConfig {NAME} (provision.ign)")
    );

    let nobody = Provision::of_files(&[]);
    let adopt = "; if it was provisioned with it, run `evenkeel adopt -f FILE` on it, with";
    let unknown = refusal("spec.fips", &nobody);
    assert!(
        unknown.ends_with(&format!("{adopt} the configuration that says so")),
        "{unknown}"
    );

    let broken = Provision::of_files(&[kept(linux::THEIR_CURRENT_CONFIG, b"{\"spec\": ")]);
    let told = refusal("spec.fips", &broken);
    assert!(
        told.contains("(unreadable: /etc/machine-config-daemon/currentconfig: "),
        "{told}"
    );

    // What was left in the first boot says nothing about disks, and everything about the rest.
    let boxed = linux::THEIR_ENCAPSULATED_CONFIG[1];
    let boxed = Provision::of_files(&[kept_json(boxed, &encapsulated())]);
    let told = refusal("storage.disks", &boxed);
    assert!(
        told.ends_with(&format!("{adopt} MachineConfig {NAME}")),
        "{told}"
    );
    let refused = planned(&first("/dev/sda"), &new(&boxed)).unwrap_err();
    assert!(!refused.to_string().contains("spec."), "{refused}");
    // And a person's word, or the cluster's, takes its place.
    let corrected = new(&boxed).adopting(&whole).unwrap();
    assert!(planned(&first("/dev/sda"), &corrected).is_ok());
}

/// Covers O06.
#[test]
fn what_a_machine_was_provisioned_from_outlives_the_program() {
    let whole =
        Provision::read("provision.ign", theirs("/dev/sda").to_string().as_bytes()).unwrap();
    let record = new(&whole);
    assert_eq!(Record::read(&record.text().unwrap()), Ok(record));
}
