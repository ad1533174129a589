//! On a machine that runs: a real systemd, told over D-Bus, agrees with what we did.

use evenkeel_testbed::{Result, SystemdNode, need};
use serde_json::{Value, json};

use super::scene::{files, ignition};

const UNITS: &str = "/usr/lib/systemd/system";
const PROGRAM: &str = "/usr/local/bin/evenkeel";

fn node(name: &str) -> Result<Option<SystemdNode>> {
    if need::skip(SystemdNode::NEEDS)? {
        return Ok(None);
    }
    let node = SystemdNode::boot(name)?;
    node.install(env!("CARGO_BIN_EXE_evenkeel").as_ref(), PROGRAM)?;
    Ok(Some(node))
}

fn apply(node: &SystemdNode, config: &Value) -> Result<String> {
    node.write("/root/config.json", config.to_string())?;
    node.run(&[PROGRAM, "apply", "-f", "/root/config.json"])
}

/// Every link that the administrator's folder has, as `path target`. Debian's systemd calls
/// `/usr/lib` by its older name; it is the same folder.
fn links(node: &SystemdNode) -> Result<Vec<String>> {
    let found = node.run(&[
        "find",
        "/etc/systemd/system",
        "-type",
        "l",
        "-printf",
        "%p %l\n",
    ])?;
    let mut lines: Vec<_> = found
        .replace(" /usr/lib/", " /lib/")
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort();
    Ok(lines)
}

/// Covers M08.
#[test]
fn our_links_are_those_of_systemctl_and_systemd_agrees() -> Result<()> {
    let Some(node) = node("links")? else {
        return Ok(());
    };
    let service = "[Service]\nExecStart=/usr/bin/sleep infinity\n[Install]\n";
    for (name, install) in [
        ("plain.service", "WantedBy=multi-user.target\n"),
        (
            "required.service",
            "RequiredBy=plain.service other.service\n",
        ),
        (
            "known.service",
            "WantedBy=multi-user.target\nAlias=known-as.service\n",
        ),
        (
            "two.service",
            "WantedBy=multi-user.target\nAlso=second.service\n",
        ),
        ("second.service", "WantedBy=graphical.target\n"),
        (
            "each@.service",
            "WantedBy=multi-user.target\nDefaultInstance=one\n",
        ),
        ("masked.service", "WantedBy=multi-user.target\n"),
    ] {
        node.write(&format!("{UNITS}/{name}"), format!("{service}{install}"))?;
    }
    let enabled = [
        "plain.service",
        "required.service",
        "known.service",
        "two.service",
        "each@.service",
        "each@two.service",
    ];
    node.run(&["systemctl", "daemon-reload"])?;
    let bare = links(&node)?;
    node.run(&[&["systemctl", "enable"], &enabled[..]].concat())?;
    let theirs = links(&node)?;
    assert!(theirs.len() >= bare.len() + 8, "{theirs:#?}");
    node.run(&[&["systemctl", "disable"], &enabled[..]].concat())?;
    assert_eq!(links(&node)?, bare);

    let mut units: Vec<Value> = enabled
        .iter()
        .map(|name| json!({"name": name, "enabled": true}))
        .collect();
    apply(&node, &ignition(json!({"systemd": {"units": units}})))?;
    assert_eq!(links(&node)?, theirs);
    for name in [
        "plain.service",
        "required.service",
        "known.service",
        "two.service",
        "second.service",
        "each@one.service",
        "each@two.service",
    ] {
        assert_eq!(
            node.run(&["systemctl", "is-enabled", name])?.trim(),
            "enabled",
            "{name}"
        );
    }

    units.push(json!({"name": "masked.service", "mask": true}));
    units.push(json!({"name": "ours.service", "enabled": true, "contents": format!("{service}WantedBy=multi-user.target\n")}));
    units.push(json!({"name": "plain.service", "enabled": false, "dropins": [{"name": "10-a.conf", "contents": "[Service]\nEnvironment=SEEN=yes\n"}]}));
    units.retain(|unit| unit["name"] != "plain.service" || unit["enabled"] == false);
    apply(&node, &ignition(json!({"systemd": {"units": units}})))?;
    let property =
        |name: &str, key: &str| node.run(&["systemctl", "show", "--value", "-p", key, name]);
    assert_eq!(property("masked.service", "LoadState")?.trim(), "masked");
    assert_eq!(property("ours.service", "UnitFileState")?.trim(), "enabled");
    assert_eq!(
        property("plain.service", "UnitFileState")?.trim(),
        "disabled"
    );
    assert_eq!(
        property("plain.service", "Environment")?.trim(),
        "SEEN=yes",
        "systemd read its units again"
    );

    apply(&node, &ignition(json!({})))?;
    assert_eq!(links(&node)?, bare);
    assert_eq!(property("masked.service", "LoadState")?.trim(), "loaded");
    assert_eq!(property("ours.service", "LoadState")?.trim(), "not-found");
    Ok(())
}

/// Covers M13.
#[test]
fn a_service_is_reloaded_and_one_that_refuses_takes_everything_back() -> Result<()> {
    let Some(node) = node("reload")? else {
        return Ok(());
    };
    let reload = "ExecReload=/bin/sh -c 'echo reloaded >>/run/reloads; test ! -e /run/refuse'";
    node.write(
        &format!("{UNITS}/crio.service"),
        format!("[Service]\nExecStart=/usr/bin/sleep infinity\n{reload}\n"),
    )?;
    node.run(&["systemctl", "daemon-reload"])?;
    let policy = "/etc/containers/policy.json";
    let config = |policy_text: &str, keys: &str| {
        let mut config = files(&[(policy, policy_text)]);
        config["passwd"] = json!({"users": [{"name": "core", "sshAuthorizedKeys": [keys]}]});
        config
    };
    node.run(&["useradd", "--create-home", "core"])?;

    apply(&node, &config("{}", "ssh-ed25519 A"))?;
    assert!(
        node.read("/run/reloads").is_err(),
        "a service that does not run is left alone"
    );
    node.run(&["systemctl", "start", "crio.service"])?;
    apply(&node, &config("{\"a\": 1}", "ssh-ed25519 A"))?;
    assert_eq!(node.read("/run/reloads")?, b"reloaded\n");
    assert_eq!(
        node.run(&["stat", "-c", "%U:%G %a", "/home/core/.ssh/authorized_keys"])?
            .trim(),
        "core:core 600"
    );

    node.write("/run/refuse", "")?;
    let refused = apply(&node, &config("{\"a\": 2}", "ssh-ed25519 B")).err();
    let words = refused.map(|error| error.to_string()).unwrap_or_default();
    assert!(
        words.contains("reload crio.service failed; all changes were undone"),
        "{words}"
    );
    assert_eq!(node.read(policy)?, b"{\"a\": 1}");
    assert_eq!(
        node.read("/home/core/.ssh/authorized_keys")?,
        b"ssh-ed25519 A\n"
    );
    node.run(&["rm", "/run/refuse"])?;
    apply(&node, &config("{\"a\": 2}", "ssh-ed25519 B"))?;
    assert_eq!(node.read(policy)?, b"{\"a\": 2}");
    Ok(())
}

#[test]
fn a_reboot_is_only_asked_for_unless_it_is_wanted() -> Result<()> {
    let Some(mut node) = node("reboot")? else {
        return Ok(());
    };
    let boot = node.boot_id()?;
    let said = apply(&node, &files(&[("/etc/a", "1")]))?;
    assert!(
        said.ends_with("Reboot this machine to finish (or use --reboot).\n"),
        "{said}"
    );
    assert_eq!(node.boot_id()?, boot);
    node.write("/root/config.json", files(&[("/etc/a", "2")]).to_string())?;
    // The answer may be lost with the machine's going down.
    let _ = node.run(&[PROGRAM, "apply", "-f", "/root/config.json", "--reboot"]);
    node.wait_for_reboot(&boot)?;
    assert_eq!(node.read("/etc/a")?, b"2");
    assert_eq!(
        node.run(&[PROGRAM, "verify", "-f", "/root/config.json"])?,
        "Everything is as declared.\n"
    );
    Ok(())
}

/// Covers M10.
#[test]
fn an_image_and_arguments_are_staged_and_counted_after_the_boot() -> Result<()> {
    let Some(mut node) = node("stages")? else {
        return Ok(());
    };
    node.install_os(&["rpm-ostree"], "quay.io/os:1", &["root=/dev/x"])?;
    let config = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": { "name": "new" },
        "spec": {
            "osImageURL": "quay.io/os:2",
            "kernelArguments": ["quiet"],
            "config": files(&[("/etc/a", "a")]),
        },
    });
    let done = apply(&node, &config)?;
    assert!(
        done.contains("~ os image: is quay.io/os:1, should be quay.io/os:2 [reboot]"),
        "{done}"
    );
    assert!(done.contains("Reboot this machine to finish"), "{done}");
    let verify = |node: &SystemdNode| {
        let line = "evenkeel verify -f /root/config.json; echo \"exit $?\"";
        node.run(&["sh", "-c", line])
    };
    let before = verify(&node)?;
    assert!(
        before.contains("is quay.io/os:1, should be quay.io/os:2, which the next boot brings"),
        "{before}"
    );
    assert!(before.contains("exit 2"), "{before}");
    let again = apply(&node, &config)?;
    assert!(
        again.contains("should be quay.io/os:2, which the next boot brings"),
        "{again}"
    );
    assert!(!again.contains("Applied"), "{again}");
    assert!(again.contains("Reboot this machine to finish"), "{again}");
    node.cut()?;
    node.boot_again()?;
    assert!(verify(&node)?.contains("is quay.io/os:1, should be quay.io/os:2"));
    let lost = apply(&node, &config)?;
    assert!(lost.contains("Reboot this machine to finish"), "{lost}");
    node.reboot()?;
    let after = verify(&node)?;
    assert!(after.contains("Everything is as declared"), "{after}");
    let settled = apply(&node, &config)?;
    assert!(!settled.contains("Reboot"), "{settled}");
    node.remove_os(&["rpm-ostree"])?;
    let other = config.to_string().replace("os:2", "os:3");
    node.write("/root/config.json", other)?;
    let refused = node.run(&[PROGRAM, "apply", "-f", "/root/config.json"]);
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("os image") && refused.contains("neither rpm-ostree nor bootc"),
        "{refused}"
    );
    Ok(())
}
