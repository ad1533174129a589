//! `evenkeel adopt`: a machine that was provisioned by something else gets its first configuration.

use evenkeel_testbed::{Result, SystemdNode, need};
use serde_json::{Value, json};

use super::scene::{Said, Scene, file, ignition};

const STATE: &str = "/etc/machine-config-daemon/state";

/// What a person provisioned a machine from: also with what Evenkeel does not do.
fn provision(device: &str) -> Value {
    let mut sections = sections(device);
    sections["storage"]["files"] = json!([
        {"path": "/etc/hostname", "append": [{"source": "https://example.com/name"}]}
    ]);
    ignition(sections)
}

fn sections(device: &str) -> Value {
    json!({
        "passwd": {"users": [
            {"name": "core", "passwordHash": "$6$x", "sshAuthorizedKeys": ["ssh-ed25519 AAAA a"]},
            {"name": "admin", "groups": ["wheel"]},
        ]},
        "storage": {"disks": [{"device": device, "wipeTable": true}]},
    })
}

/// The first configuration from Evenkeel: the same sections, and a file.
fn first(device: &str) -> Value {
    let mut sections = sections(device);
    sections["passwd"]["users"][0]
        .as_object_mut()
        .unwrap()
        .remove("sshAuthorizedKeys");
    sections["storage"]["files"] = json!([file("/etc/a", "a\n")]);
    ignition(sections)
}

fn expect(said: &Said, code: i32, out: &str) {
    assert_eq!(
        (said.code, said.out.as_str()),
        (Some(code), out),
        "{said:?}"
    );
}

/// Covers O06.
#[test]
fn a_machine_that_was_provisioned_is_adopted_and_keeps_its_sections_from_then_on() {
    let scene = Scene::new();
    scene.write("/etc/kept", "theirs");
    let before = scene.tree();
    let config = scene.give_json("first.json", &first("/dev/sda"));
    let refused = scene.on_root(&["apply", "-f", &config]);
    assert_eq!(refused.code, Some(1));
    for words in [
        "storage.disks /dev/sda: is new (wipeTable)",
        "passwd.users core: passwordHash is new",
        "; if it was provisioned with it, run `evenkeel adopt -f FILE` on it, with the configuration that says so",
    ] {
        assert!(refused.err.contains(words), "{}", refused.err);
    }

    let source = scene.give_json("provision.ign", &provision("/dev/sda"));
    let list = "These sections may stand in its first configuration, and cannot change:\n  \
        passwd.users admin\n  passwd.users core\n  storage.disks /dev/sda\n";
    let adopt = |words: &[&str]| scene.on_root(&[&["adopt", "-f", &source], words].concat());
    expect(
        &adopt(&["--dry-run"]),
        2,
        &format!("Would adopt this machine, as provisioned from {source}.\n{list}"),
    );
    assert!(!scene.path(STATE).exists(), "a dry run remembers something");
    expect(
        &adopt(&[]),
        0,
        &format!("Adopted this machine, as provisioned from {source}.\n{list}"),
    );
    expect(
        &adopt(&["--dry-run"]),
        0,
        &format!("This machine is adopted already, as provisioned from {source}.\n{list}"),
    );
    let mut touched = scene.tree();
    touched.retain(|line| !line.starts_with("etc/machine-config-daemon "));
    assert_eq!(touched, before);

    let other = scene.give_json("other.json", &first("/dev/sdb"));
    let refused = scene.on_root(&["apply", "-f", &other]);
    let from = format!("; it was provisioned from {source}");
    assert!(refused.err.contains(&from), "{}", refused.err);
    let applied = scene.on_root(&["apply", "-f", &config]);
    assert_eq!(applied.code, Some(0), "{applied:?}");
    assert_eq!(scene.read("/etc/a"), "a\n");

    let refused = scene.on_root(&["apply", "-f", &other]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.err.contains("storage.disks /dev/sdb: is new"),
        "{}",
        refused.err
    );
    let late = adopt(&[]);
    assert_eq!(late.code, Some(1), "{late:?}");
    let words = "this machine has a configuration of Evenkeel already, and is compared with that";
    assert!(late.err.contains(words), "{}", late.err);
}

/// Covers O06.
#[test]
fn a_node_of_openshift_says_itself_what_it_was_provisioned_from() {
    let scene = Scene::new();
    let daemon = "/etc/machine-config-daemon";
    let config = scene.give_json("first.json", &first("/dev/sda"));
    let nothing = scene.on_root(&["adopt"]);
    assert_eq!(nothing.code, Some(1));
    let words = "does not say what it was provisioned from: give its MachineConfig or Ignition config with -f";
    assert!(nothing.err.contains(words), "{}", nothing.err);

    // Right after its first boot it has the name of it alone.
    let name = json!({"machineconfiguration.openshift.io/currentConfig": "rendered-worker-1"});
    scene.write(&format!("{daemon}/node-annotations.json"), name.to_string());
    let in_part = scene.on_root(&["adopt"]);
    assert_eq!(in_part.code, Some(1));
    let words = "kubectl get machineconfig rendered-worker-1 -o yaml | evenkeel adopt -f -";
    assert!(in_part.err.contains(words), "{}", in_part.err);
    let refused = scene.on_root(&["apply", "-f", &config]);
    let words = "run `evenkeel adopt -f FILE` on it, with MachineConfig rendered-worker-1";
    assert!(refused.err.contains(words), "{}", refused.err);

    let current = json!({
        "metadata": {"name": "rendered-worker-2"},
        "spec": {"fips": false, "kernelType": "", "extensions": null, "config": provision("/dev/sda")},
    });
    scene.write(&format!("{daemon}/currentconfig"), current.to_string());
    let shown = scene.on_root(&["adopt", "--dry-run", "-o", "json"]);
    assert_eq!(shown.code, Some(2), "{shown:?}");
    assert_eq!(
        shown.json(),
        json!({
            "provisionedFrom": "MachineConfig rendered-worker-2 (/etc/machine-config-daemon/currentconfig)",
            "sections": [
                {"section": "passwd.users", "identity": "admin"},
                {"section": "passwd.users", "identity": "core"},
                {"section": "storage.disks", "identity": "/dev/sda"},
            ],
            "changed": false,
        })
    );
    // It need not be adopted by hand.
    let planned = scene.on_root(&["plan", "-f", &config, "-o", "json"]);
    assert_eq!(planned.code, Some(2), "{planned:?}");
    assert_eq!(planned.json()["changes"][0]["resource"], "file /etc/a");
    assert_eq!(scene.on_root(&["apply", "-f", &config]).code, Some(0));
    assert_eq!(scene.on_root(&["verify", "-f", &config]).code, Some(0));
}

/// Covers O06.
#[test]
fn what_no_machine_can_be_adopted_from_is_refused_with_place_and_cure() {
    let scene = Scene::new();
    let two = tempfile::tempdir().unwrap();
    for name in ["a.ign", "b.ign"] {
        std::fs::write(two.path().join(name), provision("/dev/sda").to_string()).unwrap();
    }
    for (what, words) in [
        (
            "kind: ConfigMap\napiVersion: v1\nmetadata: {name: a}\n",
            "ConfigMap a is not supported",
        ),
        (
            "kind: ConfigMap\napiVersion: v1\nmetadata: {name: windows-instances}\ndata: {}\n",
            "found a windows-instances ConfigMap: write the one MachineConfig or Ignition config",
        ),
        (
            "variant: fcos\nversion: 1.5.0\n",
            "this is a Butane config: translate it to Ignition first",
        ),
        (
            "ignition: {version: 9.9.9}\n",
            "3.0.0 to 3.5.0 are supported",
        ),
        ("spec: [\n", "wrong.yaml"),
        ("", "the file is empty"),
    ] {
        let file = scene.give("wrong.yaml", what);
        let said = scene.on_root(&["adopt", "-f", &file]);
        assert_eq!(said.code, Some(1), "{what}: {said:?}");
        assert!(said.err.contains(words), "{}", said.err);
        assert!(said.err.contains("wrong.yaml"), "{}", said.err);
    }
    let folder = two.path().display().to_string();
    let said = scene.on_root(&["adopt", "-f", &folder]);
    assert!(
        said.err.contains("has 2 files: give the one"),
        "{}",
        said.err
    );
    assert!(!scene.path(STATE).exists());
}

/// Covers O06.
#[test]
fn a_running_machine_is_adopted_and_nothing_on_it_is_touched() -> Result<()> {
    if need::skip(SystemdNode::NEEDS)? {
        return Ok(());
    }
    let node = SystemdNode::boot("adopt")?;
    let program = "/usr/local/bin/evenkeel";
    node.install(env!("CARGO_BIN_EXE_evenkeel").as_ref(), program)?;
    node.write("/root/provision.ign", provision("/dev/sda").to_string())?;
    node.write("/root/first.json", first("/dev/sda").to_string())?;
    let sums = "find /etc /usr /home /opt /srv -xdev -type f -not -path '/etc/machine-config-daemon/*' \
        -newer /root/first.json; true";
    node.run(&[program, "adopt", "-f", "/root/provision.ign"])?;
    let changed = node.run(&["sh", "-c", sums])?;
    assert_eq!(changed, "", "files of the machine were written");
    let said = node.run(&[program, "apply", "-f", "/root/first.json", "-o", "json"])?;
    assert!(said.contains("\"resource\": \"file /etc/a\""), "{said}");
    assert_eq!(node.read("/etc/a")?, b"a\n");
    Ok(())
}
