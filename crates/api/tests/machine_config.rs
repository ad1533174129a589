//! What a machine configuration means once read: defaults, versions and encodings are no difference.
#![allow(clippy::panic)] // In a test, a panic is the report.

use std::collections::BTreeMap;

use evenkeel_api::document::{self, Document};
use evenkeel_api::machine::machine_config::{File, MachineConfig, Owner, Section, Unit};
use serde_json::json;

fn read(text: &str) -> MachineConfig {
    read_with_warnings(text).0
}

fn read_with_warnings(text: &str) -> (MachineConfig, Vec<String>) {
    let (documents, warnings) = match document::read("worker.yaml", text.as_bytes()) {
        Ok(read) => read,
        Err(problems) => panic!("{problems}"),
    };
    let [Document::MachineConfig(config)] = documents.as_slice() else {
        panic!("one machine configuration, not {documents:?}");
    };
    let warnings = warnings.iter().map(ToString::to_string).collect();
    (config.clone(), warnings)
}

fn ignition(rest: &str) -> MachineConfig {
    read(&format!("ignition: {{version: 3.2.0}}\n{rest}"))
}

fn section(name: &str, identity: &str) -> Section {
    Section {
        name: name.to_owned(),
        identity: identity.to_owned(),
    }
}

const WORKER: &str = r#"
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 50-worker
  labels: {machineconfiguration.openshift.io/role: worker}
spec:
  osImageURL: quay.io/example/os@sha256:1
  kernelArguments: [quiet, "loglevel=3"]
  fips: true
  config:
    ignition: {version: 3.4.0}
    passwd:
      users:
      - name: core
        sshAuthorizedKeys: [ssh-ed25519 AAAA, ssh-ed25519 BBBB]
    storage:
      files:
      - path: /etc/motd
        mode: 0600
        user: {id: 1000}
        group: {name: wheel}
        contents: {source: "data:,hello%0A"}
      - path: /etc/empty
      disks:
      - device: /dev/sda
        wipeTable: false
        partitions: [{label: root, number: 0, sizeMiB: 100, shouldExist: true}]
    systemd:
      units:
      - name: a.service
        enabled: true
        contents: |
          [Service]
          ExecStart=/bin/true
        dropins:
        - {name: 10-a.conf, contents: "[Unit]"}
        - {name: 20-b.conf}
      - {name: b.socket, mask: true}
"#;

/// Covers M04, M07, M08.
#[test]
fn a_machine_config_is_read_whole() {
    let (config, warnings) = read_with_warnings(WORKER);
    assert_eq!(config.name.as_deref(), Some("50-worker"));
    assert_eq!(config.os_image_url, "quay.io/example/os@sha256:1");
    assert_eq!(config.kernel_arguments, ["quiet", "loglevel=3"]);
    assert_eq!(config.ssh_keys, ["ssh-ed25519 AAAA", "ssh-ed25519 BBBB"]);
    let motd = File {
        contents: b"hello\n".to_vec(),
        mode: 0o600,
        user: Owner::Id(1000),
        group: Owner::Name("wheel".to_owned()),
    };
    let empty = File {
        contents: Vec::new(),
        mode: 0o644,
        user: Owner::Id(0),
        group: Owner::Id(0),
    };
    let files = [
        ("/etc/empty".to_owned(), empty),
        ("/etc/motd".to_owned(), motd),
    ];
    assert_eq!(config.files, BTreeMap::from(files));
    let a = Unit {
        contents: Some("[Service]\nExecStart=/bin/true\n".to_owned()),
        enabled: Some(true),
        masked: false,
        drop_ins: BTreeMap::from([("10-a.conf".to_owned(), "[Unit]".to_owned())]),
    };
    let b = Unit {
        masked: true,
        ..Unit::default()
    };
    let units = [("a.service".to_owned(), a), ("b.socket".to_owned(), b)];
    assert_eq!(config.units, BTreeMap::from(units));
    let disk = json!({"device": "/dev/sda", "partitions": [{"label": "root", "sizeMiB": 100}]});
    let unsupported = [
        (section("spec.fips", ""), json!(true)),
        (section("storage.disks", "/dev/sda"), disk),
    ];
    assert_eq!(config.unsupported, BTreeMap::from(unsupported));
    assert_eq!(
        warnings,
        [
            "worker.yaml: line 38: systemd.units[0].dropins[1] a.service 20-b.conf: the drop-in has no contents and is ignored"
        ]
    );
}

/// Covers M04.
#[test]
fn an_absent_field_equals_its_default() {
    let nothing = ignition("");
    for rest in [
        "storage: {}\nsystemd: {units: []}\npasswd: {users: []}",
        "storage: {files: null, disks: [], links: []}",
        "passwd: {users: [{name: core, sshAuthorizedKeys: []}]}",
    ] {
        assert_eq!(ignition(rest), nothing, "{rest}");
    }
    let header = "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata: {name: a}\nspec:";
    let bare = read(&format!(
        "{header} {{config: {{ignition: {{version: 3.2.0}}}}}}"
    ));
    for rest in [
        "{}",
        "{config: {}}",
        "{fips: false, kernelType: default, extensions: [], osImageURL: ''}",
        "{kernelType: '', kernelArguments: null, baseOSExtensionsContainerImage: ''}",
        "{config: {ignition: {version: 3.4.0, timeouts: {httpTotal: 0, httpResponseHeaders: 10}, security: {tls: {}}}}}",
    ] {
        assert_eq!(read(&format!("{header} {rest}")), bare, "{rest}");
    }
    let file = ignition("storage: {files: [{path: /a}]}");
    for rest in [
        "mode: 420",
        "mode: 0644",
        "overwrite: true, contents: {source: 'data:,'}",
        "overwrite: false",
        "user: {id: 0}",
        "user: {name: root}, group: {}",
        "contents: {}",
        "contents: {source: ''}",
        "contents: {source: 'data:,'}",
        "contents: {source: null, verification: {}, compression: ''}",
        "append: []",
    ] {
        let text = format!("storage: {{files: [{{path: /a, {rest}}}]}}");
        assert_eq!(ignition(&text), file, "{rest}");
    }
    let directory = ignition("storage: {directories: [{path: /a}]}");
    for rest in [
        "mode: 0755",
        "overwrite: true",
        "user: {id: 0}, group: {name: root}",
    ] {
        let text = format!("storage: {{directories: [{{path: /a, {rest}}}]}}");
        assert_eq!(ignition(&text), directory, "{rest}");
    }
}

/// Covers M04, M07.
#[test]
fn version_and_encoding_are_no_difference() {
    let modern = read(
        "ignition: {version: 3.0.0}\nstorage: {files: [{path: /a, contents: {source: 'data:,hello'}}]}\nsystemd: {units: [{name: a.service, enabled: true}]}",
    );
    for text in [
        "ignition: {version: 3.5.0}\nstorage: {files: [{path: /a, contents: {source: 'data:;base64,aGVsbG8='}}]}\nsystemd: {units: [{name: a.service, enabled: true}]}",
        "ignition: {version: 2.2.0}\nstorage: {files: [{path: /a, filesystem: root, mode: 420, contents: {source: 'data:,hello'}}]}\nsystemd: {units: [{name: a.service, enable: true}]}",
        r#"{"ignition": {"version": "3.2.0"},
            "storage": {"files": [{"path": "/a", "overwrite": true, "contents": {"compression": "gzip",
                "source": "data:;base64,H4sIAAAAAAAAA8tIzcnJBwCGphA2BQAAAA=="}}]},
            "systemd": {"units": [{"name": "a.service", "enabled": true, "contents": "", "mask": false}]}}"#,
    ] {
        assert_eq!(read(text), modern, "{text}");
    }
}

/// Covers M08.
#[test]
fn the_older_enable_only_switches_on() {
    let enabled = |unit: &str| {
        let config = read(&format!(
            "ignition: {{version: 2.2.0}}\nsystemd: {{units: [{{name: a.service, {unit}}}]}}"
        ));
        config.units["a.service"].enabled
    };
    assert_eq!(enabled("enable: true"), Some(true));
    assert_eq!(enabled("enable: false"), None);
    assert_eq!(enabled("enabled: false"), Some(false));
    assert_eq!(enabled("enable: true, enabled: false"), Some(false));
}

/// Covers M04.
#[test]
fn what_is_not_ours_is_kept_by_section_and_identity() {
    for (text, name, identity) in [
        (
            "storage: {directories: [{path: /d}]}",
            "storage.directories",
            "/d",
        ),
        (
            "storage: {disks: [{device: /dev/sda}]}",
            "storage.disks",
            "/dev/sda",
        ),
        (
            "storage: {filesystems: [{device: /dev/sda1}]}",
            "storage.filesystems",
            "/dev/sda1",
        ),
        (
            "storage: {links: [{path: /l, target: /t}]}",
            "storage.links",
            "/l",
        ),
        (
            "storage: {luks: [{name: l, device: /dev/sda}]}",
            "storage.luks",
            "l",
        ),
        (
            "storage: {raid: [{name: r, level: raid1, devices: [/dev/sda]}]}",
            "storage.raid",
            "r",
        ),
        ("passwd: {users: [{name: bob}]}", "passwd.users", "bob"),
        (
            "passwd: {users: [{name: core, uid: 7, sshAuthorizedKeys: [k]}]}",
            "passwd.users",
            "core",
        ),
        ("passwd: {groups: [{name: g}]}", "passwd.groups", "g"),
    ] {
        let config = ignition(text);
        let sections: Vec<_> = config.unsupported.keys().collect();
        assert_eq!(sections, [&section(name, identity)], "{text}");
    }
    for (text, name) in [
        (
            "ignition: {version: 3.4.0, config: {replace: {source: 'http://a'}}}",
            "ignition.config",
        ),
        (
            "ignition: {version: 3.4.0, proxy: {httpProxy: 'http://a'}}",
            "ignition.proxy",
        ),
        (
            "ignition: {version: 3.4.0, timeouts: {httpTotal: 5}}",
            "ignition.timeouts",
        ),
        (
            "ignition: {version: 3.4.0, security: {tls: {certificateAuthorities: [{source: 'data:,a'}]}}}",
            "ignition.security",
        ),
        (
            "ignition: {version: 3.4.0}\nkernelArguments: {shouldExist: [quiet]}",
            "kernelArguments",
        ),
    ] {
        let config = read(text);
        assert_eq!(
            config.unsupported.keys().collect::<Vec<_>>(),
            [&section(name, "")],
            "{text}"
        );
    }
    let networkd =
        read("ignition: {version: 2.2.0}\nnetworkd: {units: [{name: a.network, contents: x}]}");
    assert_eq!(
        networkd.unsupported[&section("networkd.units", "a.network")],
        json!({"name": "a.network", "contents": "x"})
    );
    for field in [
        "fips: true",
        "kernelType: realtime",
        "extensions: [usbguard]",
        "baseOSExtensionsContainerImage: x",
    ] {
        let config = read(&format!(
            "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata: {{name: a}}\nspec: {{{field}}}"
        ));
        let name = format!("spec.{}", field.split(':').next().unwrap_or_default());
        assert_eq!(
            config.unsupported.keys().collect::<Vec<_>>(),
            [&section(&name, "")]
        );
    }
}

#[test]
fn a_stream_and_a_list_hold_several_objects() {
    let object = "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata: {name: NAME}\nspec: {}\n";
    let stream = format!(
        "{}---\n# nothing\n---\n{}",
        object.replace("NAME", "a"),
        object.replace("NAME", "b")
    );
    let list = r#"{"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "metadata": {"name": "a"}, "spec": {}},
        {"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "metadata": {"name": "b"}, "spec": {}}]}"#;
    for text in [stream.as_str(), list] {
        let (documents, _) = document::read("-", text.as_bytes()).unwrap();
        let names: Vec<_> = documents
            .iter()
            .map(|document| match document {
                Document::MachineConfig(config) => config.name.clone().unwrap_or_default(),
                other => panic!("{}", other.kind()),
            })
            .collect();
        assert_eq!(names, ["a", "b"]);
    }
}

/// Covers M07.
#[test]
fn a_decimal_mode_that_looks_octal_is_a_warning() {
    let (config, warnings) = read_with_warnings(
        "ignition: {version: 3.2.0}\nstorage:\n  files:\n  - path: /a\n    mode: 644\n",
    );
    assert_eq!(config.files["/a"].mode, 0o1204);
    assert_eq!(
        warnings,
        [
            "worker.yaml: line 5: storage.files[0] /a: mode 644 is decimal, which is 0o1204: did you mean 0644, in JSON 420?"
        ]
    );
}
