//! Every field that we read, one by one: a lower MachineConfig, a higher one, and both together.

use evenkeel_api::machine::machine_config::{File, MachineConfig, Owner, Section, Unit};
use evenkeel_plan::fleet::render::{self, Rendered};
use serde_json::{Value, json};

/// gzip of `hello`.
const HELLO: &str = "data:;base64,H4sIAAAAAAAAA8tIzcnJBwCGphA2BQAAAA==";
const HASH_OF_HELLO: &str =
    "sha256-2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

fn source(name: &str, spec: &Value) -> (String, String) {
    let object = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": { "name": name }, "spec": spec,
    });
    (name.to_owned(), object.to_string())
}

fn rendered(specs: &[Value]) -> Result<Rendered, String> {
    let names = ["00-lower", "50-higher", "99-highest"];
    let sources = names.iter().zip(specs);
    let sources: Vec<_> = sources.map(|(name, spec)| source(name, spec)).collect();
    render::render("worker", &sources)
        .map_err(|problem| format!("{}: {}", problem.category, problem.note))
}

fn merged(specs: &[Value]) -> MachineConfig {
    rendered(specs).unwrap().config
}

fn config(version: &str, sections: Value) -> Value {
    let mut config = sections;
    config["ignition"] = json!({ "version": version });
    json!({ "config": config })
}

fn files(files: &[Value]) -> Value {
    let files = files.iter().map(|fields| {
        let mut file = fields.clone();
        file["path"] = json!("/etc/b");
        file
    });
    config(
        "3.2.0",
        json!({ "storage": { "files": files.collect::<Vec<_>>() } }),
    )
}

/// What `/etc/b` is, given once in each.
fn file(fields: &[Value]) -> File {
    let specs: Vec<_> = fields
        .iter()
        .map(|it| files(std::slice::from_ref(it)))
        .collect();
    merged(&specs).files["/etc/b"].clone()
}

fn unit(units: &[Value]) -> Unit {
    let specs: Vec<_> = units
        .iter()
        .map(|fields| {
            let mut unit = fields.clone();
            unit["name"] = json!("u.service");
            config("3.2.0", json!({ "systemd": { "units": [unit] } }))
        })
        .collect();
    merged(&specs).units["u.service"].clone()
}

/// Covers M02, M07.
#[test]
fn a_secret_stays_secret_when_only_its_contents_are_given_anew() {
    let secret = json!({ "mode": 0o600, "contents": { "source": "data:,old" } });
    let file = file(&[secret, json!({ "contents": { "source": "data:,new" } })]);
    assert_eq!((file.mode, file.contents.as_slice()), (0o600, &b"new"[..]));
}

/// Covers M02, M07.
#[test]
fn a_mode_is_the_highest_that_is_said_and_0644_if_nobody_says_one() {
    for (modes, mode) in [
        (vec![json!({}), json!({})], 0o644),
        (
            vec![json!({ "mode": 0o600 }), json!({ "mode": 0o640 })],
            0o640,
        ),
        (
            vec![json!({ "mode": 0o600 }), json!({ "mode": 0o644 })],
            0o644,
        ),
        (
            vec![json!({ "mode": 0o600 }), json!({ "mode": null })],
            0o600,
        ),
        (vec![json!({}), json!({ "mode": 0o400 }), json!({})], 0o400),
    ] {
        assert_eq!(file(&modes).mode, mode, "{modes:?}");
    }
}

/// Covers M02, M07.
#[test]
fn an_owner_is_merged_by_id_and_by_name() {
    let app = Owner::Name("app".to_owned());
    for (lower, higher, user, group) in [
        (
            json!({ "user": { "id": 5 } }),
            json!({ "group": { "name": "app" } }),
            Owner::Id(5),
            app.clone(),
        ),
        (
            json!({ "user": { "name": "app" } }),
            json!({ "mode": 0o600 }),
            app.clone(),
            Owner::Id(0),
        ),
        (
            json!({ "user": { "name": "app" } }),
            json!({ "user": {} }),
            app.clone(),
            Owner::Id(0),
        ),
        (
            json!({ "user": { "id": 5 } }),
            json!({ "user": { "id": 0 } }),
            Owner::Id(0),
            Owner::Id(0),
        ),
        (
            json!({ "user": { "name": "app" } }),
            json!({ "user": { "name": "root" } }),
            Owner::Id(0),
            Owner::Id(0),
        ),
    ] {
        let file = file(&[lower.clone(), higher.clone()]);
        assert_eq!(
            (file.user, file.group),
            (user, group),
            "{lower} and {higher}"
        );
    }
    let both = [
        files(&[json!({ "user": { "id": 5 } })]),
        files(&[json!({ "user": { "name": "app" } })]),
    ];
    assert_eq!(
        rendered(&both).unwrap_err(),
        "ImpossibleMerge: MachineConfig 00-lower and MachineConfig 50-higher cannot be merged: \
         storage.files /etc/b: user has both id and name \"app\": give one of them"
    );
}

/// Covers M02, M07.
#[test]
fn contents_go_with_their_own_compression() {
    let zipped = json!({ "contents": { "source": HELLO, "compression": "gzip" } });
    let plain = json!({ "contents": { "source": "data:,new" } });
    let nothing = json!({ "mode": 0o600 });
    for (layers, contents) in [
        (vec![zipped.clone(), plain.clone()], "new"),
        (vec![plain.clone(), zipped.clone()], "hello"),
        (vec![zipped.clone(), nothing.clone()], "hello"),
        (vec![zipped.clone(), plain, nothing], "new"),
        (vec![zipped, json!({ "contents": {} })], "hello"),
        (
            vec![
                json!({ "contents": { "source": HELLO } }),
                json!({ "contents": { "compression": "gzip" } }),
            ],
            "hello",
        ),
    ] {
        let file = file(&layers);
        assert_eq!(
            String::from_utf8_lossy(&file.contents),
            contents,
            "{layers:?}"
        );
    }
}

/// Covers M02, M07.
#[test]
fn a_checksum_holds_until_a_higher_one_gives_another() {
    let checked = json!({ "contents": {
        "source": "data:,hello", "verification": { "hash": HASH_OF_HELLO },
    } });
    let zipped = json!({ "contents": { "source": HELLO, "compression": "gzip" } });
    assert_eq!(file(&[checked.clone(), zipped]).contents, b"hello");
    let other = json!({ "contents": { "source": "data:,new" } });
    let said = rendered(&[
        files(std::slice::from_ref(&checked)),
        files(std::slice::from_ref(&other)),
    ])
    .unwrap_err();
    assert!(
        said.starts_with(
            "ImpossibleMerge: MachineConfig 00-lower and MachineConfig 50-higher cannot be merged: \
             storage.files /etc/b: contents do not match contents.verification.hash"
        ),
        "{said}"
    );
    assert!(
        said.contains("give the hash together with the contents"),
        "{said}"
    );
    let own = json!({ "contents": { "source": "data:,new", "verification": {
        "hash": "sha256-11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437",
    } } });
    assert_eq!(file(&[checked, own]).contents, b"new");
}

/// Covers M02, M07.
#[test]
fn overwrite_makes_no_difference() {
    let one = file(&[
        json!({ "overwrite": false, "mode": 0o600 }),
        json!({ "overwrite": true, "contents": { "source": "data:,x" } }),
    ]);
    let other = file(&[
        json!({ "mode": 0o600 }),
        json!({ "contents": { "source": "data:,x" } }),
    ]);
    assert_eq!(one, other);
}

/// Covers M02, M08.
#[test]
fn a_unit_is_merged_field_by_field() {
    let lower = json!({ "contents": "[Unit]", "enabled": true, "mask": true });
    for (higher, contents, enabled, masked) in [
        (json!({}), Some("[Unit]"), Some(true), true),
        (json!({ "mask": false }), Some("[Unit]"), Some(true), false),
        (
            json!({ "enabled": false }),
            Some("[Unit]"),
            Some(false),
            true,
        ),
        (
            json!({ "contents": "[Service]" }),
            Some("[Service]"),
            Some(true),
            true,
        ),
        (json!({ "contents": "" }), None, Some(true), true),
    ] {
        let unit = unit(&[lower.clone(), higher.clone()]);
        let is = (unit.contents.as_deref(), unit.enabled, unit.masked);
        assert_eq!(is, (contents, enabled, masked), "{higher}");
    }
    assert!(unit(&[json!({ "mask": false }), json!({ "mask": true })]).masked);
}

/// Covers M02, M08.
#[test]
fn drop_ins_are_merged_by_their_name() {
    let lower = json!({ "dropins": [
        { "name": "10.conf", "contents": "ten" },
        { "name": "20.conf", "contents": "twenty" },
        { "name": "30.conf", "contents": "thirty" },
    ] });
    let higher = json!({ "dropins": [
        { "name": "40.conf", "contents": "forty" },
        { "name": "30.conf" },
        { "name": "20.conf", "contents": "" },
        { "name": "10.conf", "contents": "TEN" },
    ] });
    let unit = unit(&[lower, higher]);
    let drop_ins: Vec<_> = unit
        .drop_ins
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    assert_eq!(
        drop_ins,
        [
            ("10.conf", "TEN"),
            ("30.conf", "thirty"),
            ("40.conf", "forty")
        ]
    );
}

/// Covers M02, M04.
#[test]
fn users_keys_and_what_we_do_not_do_are_merged_field_by_field() {
    let users = |user: Value| config("3.2.0", json!({ "passwd": { "users": [user] } }));
    let merged = merged(&[
        users(
            json!({ "name": "core", "sshAuthorizedKeys": ["one", "two"], "homeDir": "/var/core", "shouldExist": false }),
        ),
        users(
            json!({ "name": "core", "sshAuthorizedKeys": ["three", "two"], "shell": "/bin/zsh", "groups": ["wheel"] }),
        ),
        users(json!({ "name": "core", "groups": ["adm"], "shouldExist": true })),
    ]);
    assert_eq!(merged.ssh_keys, ["one", "two", "three"]);
    let core = Section {
        name: "passwd.users".to_owned(),
        identity: "core".to_owned(),
    };
    assert_eq!(
        merged.unsupported[&core],
        json!({ "name": "core", "homeDir": "/var/core", "shell": "/bin/zsh", "groups": ["wheel", "adm"] })
    );
}

/// Covers M02, M04.
#[test]
fn sections_that_we_do_not_do_keep_what_only_a_lower_one_says() {
    let of = |sections: Value| config("3.4.0", sections);
    let merged = merged(&[
        of(json!({
            "storage": {
                "disks": [{ "device": "/dev/sda", "partitions": [{ "number": 1, "sizeMiB": 5 }, { "label": "data" }] }],
                "directories": [{ "path": "/d", "mode": 0o700 }],
                "raid": [{ "name": "md0", "level": "raid1", "devices": ["/dev/a"], "options": ["x"] }],
            },
            "kernelArguments": { "shouldExist": ["quiet", "debug"] },
        })),
        of(json!({
            "storage": {
                "disks": [{ "device": "/dev/sda", "wipeTable": true, "partitions": [{ "number": 1, "label": "root" }] }],
                "directories": [{ "path": "/d", "user": { "id": 5 } }],
                "raid": [{ "name": "md0", "level": "raid1", "devices": ["/dev/b", "/dev/a"], "options": ["x"] }],
            },
            "kernelArguments": { "shouldNotExist": ["debug"] },
        })),
    ]);
    let section = |name: &str, identity: &str| {
        let (name, identity) = (name.to_owned(), identity.to_owned());
        merged.unsupported[&Section { name, identity }].clone()
    };
    assert_eq!(
        section("storage.disks", "/dev/sda"),
        json!({ "device": "/dev/sda", "wipeTable": true,
            "partitions": [{ "number": 1, "sizeMiB": 5, "label": "root" }, { "label": "data" }] })
    );
    assert_eq!(
        section("storage.directories", "/d"),
        json!({ "path": "/d", "mode": 0o700, "user": { "id": 5 } })
    );
    assert_eq!(
        section("storage.raid", "md0"),
        json!({ "name": "md0", "level": "raid1", "devices": ["/dev/a", "/dev/b"], "options": ["x", "x"] })
    );
    assert_eq!(
        section("kernelArguments", ""),
        json!({ "shouldExist": ["quiet"], "shouldNotExist": ["debug"] })
    );
}

/// Covers M02.
#[test]
fn another_kind_of_thing_at_the_same_path_replaces_what_was_there() {
    let link = config(
        "3.2.0",
        json!({ "storage": { "links": [{ "path": "/etc/b", "target": "/y" }] } }),
    );
    let file = files(&[json!({ "contents": { "source": "data:,x" } })]);
    let linked = merged(&[files(&[json!({ "mode": 0o600 })]), link.clone()]);
    assert!(
        linked.files.is_empty() && linked.unsupported.len() == 1,
        "{linked:?}"
    );
    let filed = merged(&[files(&[json!({ "mode": 0o600 })]), link, file]);
    assert!(filed.unsupported.is_empty(), "{filed:?}");
    // What the link replaced does not come back.
    assert_eq!(filed.files["/etc/b"].mode, File::DEFAULT_MODE);
}

/// Covers M02.
#[test]
fn an_argument_that_a_lower_one_gives_is_not_given_again() {
    let arguments = |arguments: Value| json!({ "kernelArguments": arguments });
    let config = merged(&[
        arguments(json!([
            "quiet",
            "hugepagesz=1G",
            "hugepages=2",
            "hugepagesz=2M",
            "hugepages=2"
        ])),
        arguments(json!(["debug", "quiet"])),
        arguments(json!(["nosmt", "debug"])),
    ]);
    assert_eq!(
        config.kernel_arguments,
        [
            "quiet",
            "hugepagesz=1G",
            "hugepages=2",
            "hugepagesz=2M",
            "hugepages=2",
            "debug",
            "nosmt"
        ]
    );
}

/// Covers M02.
#[test]
fn the_other_fields_of_a_spec_follow_the_machine_config_operator() {
    let config = merged(&[
        json!({ "osImageURL": "os:1", "fips": true, "kernelType": "realtime", "extensions": ["usbguard"] }),
        json!({ "osImageURL": "os:2", "fips": false, "kernelType": "default", "extensions": ["usbguard", "kerberos"] }),
        json!({ "osImageURL": "" }),
    ]);
    assert_eq!(config.os_image_url, "os:2");
    let said: Vec<_> = config
        .unsupported
        .iter()
        .map(|(it, value)| (it.to_string(), value.clone()))
        .collect();
    assert_eq!(
        said,
        [
            (
                "spec.extensions".to_owned(),
                json!(["usbguard", "kerberos"])
            ),
            ("spec.fips".to_owned(), json!(true)),
            ("spec.kernelType".to_owned(), json!("realtime")),
        ]
    );
}

/// A file of 2.2 always has contents, and its flags only ever switch on.
///
/// Covers M02, M04.
#[test]
fn ignition_2_2_is_merged_as_what_it_is_translated_to() {
    let old = |sections: Value| config("2.2.0", sections);
    let new = |sections: Value| config("3.2.0", sections);
    let merged = merged(&[
        new(json!({
            "storage": { "files": [{ "path": "/etc/b", "mode": 0o600, "contents": { "source": "data:,x" }, "user": { "name": "app" } }] },
            "systemd": { "units": [{ "name": "u.service", "mask": true, "contents": "[Unit]" }] },
            "passwd": { "users": [{ "name": "core", "uid": 7, "sshAuthorizedKeys": ["one"] }] },
        })),
        old(json!({
            "storage": { "files": [{ "path": "/etc/b", "filesystem": "root", "user": { "name": "" } }] },
            "systemd": { "units": [{ "name": "u.service", "mask": false, "contents": "", "enable": true }] },
            "passwd": { "users": [{ "name": "core", "sshAuthorizedKeys": ["two"], "shell": "/bin/zsh", "system": false }] },
        })),
    ]);
    let file = &merged.files["/etc/b"];
    assert_eq!((file.mode, file.contents.as_slice()), (0o600, &b""[..]));
    assert_eq!(file.user, Owner::Name("app".to_owned()));
    let unit = &merged.units["u.service"];
    assert_eq!(
        (unit.contents.as_deref(), unit.enabled, unit.masked),
        (Some("[Unit]"), Some(true), true)
    );
    assert_eq!(merged.ssh_keys, ["one", "two"]);
    let core = Section {
        name: "passwd.users".to_owned(),
        identity: "core".to_owned(),
    };
    assert_eq!(
        merged.unsupported[&core],
        json!({ "name": "core", "uid": 7, "shell": "/bin/zsh" })
    );
}

/// Covers M02.
#[test]
fn a_rendered_name_follows_from_what_is_merged_and_not_from_how_it_was_said() {
    let name = |specs: &[Value]| merged(specs).name;
    let said_once = name(&[files(&[
        json!({ "mode": 0o600, "contents": { "source": "data:,x" } }),
    ])]);
    let said_twice = name(&[
        files(&[json!({ "mode": 0o600 })]),
        files(&[json!({ "contents": { "source": "data:;base64,eA==" } })]),
    ]);
    assert_eq!(said_once, said_twice);
    let open = name(&[files(&[json!({ "contents": { "source": "data:,x" } })])]);
    assert_ne!(open, said_once);
    assert_eq!(
        open,
        name(&[files(&[
            json!({ "mode": 0o644, "contents": { "source": "data:,x" } })
        ])])
    );
}
