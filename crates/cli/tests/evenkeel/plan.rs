//! `evenkeel plan`: what it says, in which words, with which exit code. It never touches anything.

use super::scene::{Scene, evenkeel, file, files, ignition};
use serde_json::{Value, json};

/// Covers X02.
#[test]
fn a_plan_names_each_change_why_and_what_it_disrupts_and_touches_nothing() {
    let scene = Scene::new();
    scene.write("/etc/chrony.conf", "server old\n");
    let config = scene.give_json(
        "new.json",
        &ignition(json!({
            "storage": {"files": [
                file("/etc/chrony.conf", "server new\n"),
                file("/var/lib/kubelet/config.json", "{\"auths\": {\"q\": \"s3cret\"}}"),
            ]},
            "systemd": {"units": [{
                "name": "a.service", "enabled": true,
                "contents": "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n",
            }]},
        })),
    );
    let before = scene.tree();
    let said = scene.on_root(&["plan", "-f", &config]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert_eq!(
        said.out,
        "~ file /etc/chrony.conf: contents differ [reboot]\n    \
         @@ -1,1 +1,1 @@\n    \
         -server old\n    \
         +server new\n\
         + file /var/lib/kubelet/config.json: missing [none]\n    \
         (contents look secret and are not shown)\n\
         + unit a.service: missing; not enabled [reboot]\n    \
         @@ -0,0 +1,4 @@\n    \
         +[Service]\n    \
         +ExecStart=/bin/true\n    \
         +[Install]\n    \
         +WantedBy=multi-user.target\n\
         \n2 to create, 1 to update, 0 to delete.\n\
         Disruption: reboot (drain, then reboot).\n"
    );
    assert_eq!(scene.tree(), before);
    assert!(!scene.path("/etc/machine-config-daemon").exists());
}

/// Covers X02.
#[test]
fn a_plan_is_a_comment_on_a_pull_request_and_fails_where_it_disrupts_more_than_it_may() {
    let scene = Scene::new();
    scene.write("/etc/chrony.conf", "server old\n");
    let config = files(&[
        ("/etc/chrony.conf", "```\nserver new\n"),
        ("/etc/@all|<b>", "x\n"),
    ]);
    let config = scene.give_json("new.json", &config);
    let said = scene.on_root(&["plan", "-f", &config, "-o", "markdown"]);
    assert_eq!((said.code, said.err.as_str()), (Some(2), ""), "{said:?}");
    assert_eq!(
        said.out,
        "|  | what | why | disruption |\n\
         | --- | --- | --- | --- |\n\
         | create | file /etc/&#64;all&#124;&#60;b&#62; | missing | reboot |\n\
         | update | file /etc/chrony.conf | contents differ | reboot |\n\
         \n1 to create, 1 to update, 0 to delete.\n\
         Disruption: reboot (drain, then reboot).\n\
         \n<details><summary>file /etc/&#64;all&#124;&#60;b&#62;</summary>\n\
         \n```diff\n@@ -0,0 +1,1 @@\n+x\n```\n\n</details>\n\
         \n<details><summary>file /etc/chrony.conf</summary>\n\
         \n````diff\n@@ -1,1 +1,2 @@\n-server old\n+```\n+server new\n````\n\n</details>\n"
    );
    let plan = ["plan", "-f", &config, "--max-disruption"];
    let said = scene.on_root(&[&plan[..], &["drain"]].concat());
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.out.contains("Disruption: reboot"), "{said:?}");
    assert!(
        said.err
            .contains("this change needs reboot, and --max-disruption allows drain"),
        "{said:?}"
    );
    let said = scene.on_root(&[&plan[..], &["reboot"]].concat());
    assert_eq!((said.code, said.err.as_str()), (Some(2), ""), "{said:?}");
    let said = scene.on_root(&[&plan[..], &["boot"]].concat());
    assert!(
        said.err
            .contains("[possible values: none, reload, restart, drain, reboot]"),
        "{said:?}"
    );
}

/// Covers O09.
#[test]
fn a_plan_names_the_entry_of_the_policy_that_decided() {
    let scene = Scene::new();
    scene.write("/etc/chrony.conf", "server old\n");
    let mut object = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": { "name": "rendered", "annotations": {
            "evenkeel.dev/disruption-policy":
                "{files: [{path: /etc, actions: [{type: Restart, restart: {serviceName: chronyd.service}}]}]}",
        } },
        "spec": { "config": files(&[("/etc/chrony.conf", "server new\n")]) },
    });
    let config = scene.give_json("new.json", &object);
    let said = scene.on_root(&["plan", "-f", &config]);
    assert_eq!(said.code, Some(2), "{said:?}");
    let line = "~ file /etc/chrony.conf: contents differ [restart, by the policy's files[/etc]]";
    assert!(said.out.starts_with(line), "{}", said.out);
    let said = scene.on_root(&["plan", "-f", &config, "-o", "json"]).json();
    assert_eq!(said["changes"][0]["policy"], "files[/etc]");
    assert_eq!(said["actions"], json!(["restart chronyd.service"]));
    // What makes no sense is told, and reboots.
    object["metadata"]["annotations"]["evenkeel.dev/disruption-policy"] =
        json!("{files: [{path: /etc, actions: [{type: Nothing}]}]}");
    let config = scene.give_json("new.json", &object);
    let said = scene.on_root(&["plan", "-f", &config]);
    assert!(
        said.err
            .contains("files[/etc].actions[0]: type \"Nothing\""),
        "{said:?}"
    );
    assert!(
        said.out.contains("[reboot, by the policy's files[/etc]]"),
        "{said:?}"
    );
}

#[test]
fn the_plan_as_json_has_its_three_keys_in_order() {
    let scene = Scene::new();
    let registries = "/etc/containers/registries.conf";
    let old = scene.give_json(
        "old.json",
        &files(&[(registries, "unqualified-search-registries = ['a']\n")]),
    );
    let new = scene.give_json(
        "new.json",
        &files(&[(registries, "unqualified-search-registries = []\n")]),
    );
    let said = evenkeel(&["plan", "-f", &new, "--from", &old, "-o", "json"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert_eq!(
        said.json(),
        json!({
            "changes": [{
                "resource": "file /etc/containers/registries.conf", "action": "update",
                "why": "contents differ", "disruption": "drain",
            }],
            "actions": ["drain", "reload crio.service"],
            "disruption": "drain",
        })
    );
    let keys =
        ["\"changes\"", "\"actions\"", "\"disruption\""].map(|key| said.out.find(key).unwrap());
    assert!(keys[0] < keys[1], "{}", said.out);
    let yaml = evenkeel(&["plan", "-f", &new, "--from", &old, "-o", "yaml"]);
    assert!(yaml.out.starts_with("changes:\n"), "{}", yaml.out);
    let same = evenkeel(&["plan", "-f", &new, "--from", &new, "-o", "json"]);
    assert_eq!(
        (same.code, same.json()),
        (
            Some(0),
            json!({"changes": [], "actions": [], "disruption": "none"})
        )
    );
}

#[test]
fn what_only_looks_different_is_no_change() {
    let scene = Scene::new();
    let plain = json!({
        "ignition": {"version": "3.2.0"},
        "storage": {"files": [{"path": "/etc/a", "mode": 0o644, "overwrite": true, "contents": {"source": "data:,hello"}}]},
        "systemd": {"units": [{"name": "a.service", "mask": false, "contents": "[Service]\n", "dropins": []}]},
    });
    let gzip = "H4sIAAAAAAAA/8tIzcnJBwCGphA2BQAAAA==";
    let other = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "metadata": {"name": "x"},
        "spec": {"fips": false, "kernelType": "default", "extensions": [], "osImageURL": "", "config": {
            "ignition": {"version": "2.2.0"},
            "storage": {"files": [{
                "filesystem": "root", "path": "/etc/a", "user": {"id": 0}, "group": {"name": "root"},
                "contents": {"source": format!("data:;base64,{gzip}"), "compression": "gzip"},
            }]},
            "systemd": {"units": [{"name": "a.service", "contents": "[Service]\n"}]},
        }},
    });
    let (one, two) = (
        scene.give_json("one.json", &plain),
        scene.give_json("two.json", &other),
    );
    for (old, new) in [(&one, &two), (&two, &one)] {
        let said = evenkeel(&["plan", "-f", new, "--from", old]);
        assert_eq!(
            (said.code, said.out.as_str()),
            (Some(0), "Nothing to do.\n"),
            "{said:?}"
        );
    }
}

/// The page on OpenShift lists each of these sections.
///
/// Covers M04, O10.
#[test]
fn a_change_that_a_running_machine_cannot_make_is_refused_with_section_and_identity() {
    let page = include_str!("../../../../docs/openshift.md");
    let scene = Scene::new();
    let config = |spec: Value, sections: Value| {
        let mut spec = spec;
        spec["config"] = ignition(sections);
        json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
            "metadata": {"name": "x"}, "spec": spec,
        })
    };
    let old = scene.give_json("old.json", &config(json!({}), json!({})));
    let user = |user: Value| json!({"passwd": {"users": [user]}});
    let storage = |kind: &str, element: Value| json!({"storage": {kind: [element]}});
    let cases = [
        (
            json!({}),
            storage("disks", json!({"device": "/dev/sda", "wipeTable": true})),
            "storage.disks /dev/sda",
        ),
        (
            json!({}),
            storage("directories", json!({"path": "/opt/x", "mode": 493})),
            "storage.directories /opt/x",
        ),
        (
            json!({}),
            storage("links", json!({"path": "/opt/l", "target": "/opt/x"})),
            "storage.links /opt/l",
        ),
        (
            json!({}),
            storage(
                "filesystems",
                json!({"device": "/dev/sdb", "path": "/data", "format": "xfs"}),
            ),
            "storage.filesystems /dev/sdb",
        ),
        (
            json!({}),
            storage(
                "raid",
                json!({"name": "md0", "level": "raid1", "devices": ["/dev/a", "/dev/b"]}),
            ),
            "storage.raid md0",
        ),
        (
            json!({}),
            storage("luks", json!({"name": "data", "device": "/dev/sdc"})),
            "storage.luks data",
        ),
        (json!({}), user(json!({"name": "bob"})), "passwd.users bob"),
        (
            json!({}),
            user(json!({"name": "core", "shell": "/bin/zsh"})),
            "passwd.users core",
        ),
        (
            json!({}),
            json!({"passwd": {"groups": [{"name": "wheel"}]}}),
            "passwd.groups wheel",
        ),
        (json!({"fips": true}), json!({}), "spec.fips"),
        (
            json!({"kernelType": "realtime"}),
            json!({}),
            "spec.kernelType",
        ),
        (
            json!({"extensions": ["usbguard"]}),
            json!({}),
            "spec.extensions",
        ),
    ];
    for (spec, sections, named) in cases {
        let new = scene.give_json("new.json", &config(spec.clone(), sections.clone()));
        let said = evenkeel(&["plan", "-f", &new, "--from", &old]);
        assert_eq!(
            (said.code, said.out.as_str()),
            (Some(1), ""),
            "{named}: {said:?}"
        );
        assert!(said.err.contains(named), "{named} is not in {}", said.err);
        let section = named.split(' ').next().unwrap_or_default();
        assert!(
            page.contains(&format!("`{section}`")),
            "docs/openshift.md does not say that a change of {section} is refused"
        );
        let same = evenkeel(&["plan", "-f", &new, "--from", &new]);
        assert_eq!(
            same.code,
            Some(0),
            "{named} is the same in old and new: {same:?}"
        );
        let first = scene.on_root(&["apply", "-f", &new]);
        assert_eq!(
            first.code,
            Some(1),
            "{named} on a machine that never had it: {first:?}"
        );
        assert!(
            scene.tree().iter().all(|line| !line.contains("opt")),
            "{:?}",
            scene.tree()
        );
    }
    let both = json!({"storage": {"disks": [{"device": "/dev/sda"}], "links": [{"path": "/l", "target": "/t"}]}});
    let new = scene.give_json("new.json", &config(json!({"fips": true}), both));
    let said = evenkeel(&["plan", "-f", &new, "--from", &old]);
    for named in ["storage.disks /dev/sda", "storage.links /l", "spec.fips"] {
        assert!(
            said.err.contains(named),
            "every offending section is named: {}",
            said.err
        );
    }
}

#[test]
fn several_changes_disrupt_as_much_as_the_greatest_of_them() {
    let scene = Scene::new();
    let keys =
        |key: &str| json!({"passwd": {"users": [{"name": "core", "sshAuthorizedKeys": [key]}]}});
    let cases = [
        (ignition(keys("a")), ignition(keys("b")), json!([]), "none"),
        (
            files(&[("/etc/containers/policy.json", "1")]),
            files(&[("/etc/containers/policy.json", "2")]),
            json!(["reload crio.service"]),
            "reload",
        ),
        (
            files(&[("/etc/containers/policy.json", "1"), ("/etc/x", "1")]),
            files(&[("/etc/containers/policy.json", "2"), ("/etc/x", "2")]),
            json!(["drain", "reboot"]),
            "reboot",
        ),
        (
            files(&[("/etc/containers/policy.json", "1")]),
            files(&[]),
            json!(["reload crio.service"]),
            "reload",
        ),
    ];
    for (old, new, actions, disruption) in cases {
        let (old, new) = (
            scene.give_json("old.json", &old),
            scene.give_json("new.json", &new),
        );
        let plan = evenkeel(&["plan", "-f", &new, "--from", &old, "-o", "json"]).json();
        assert_eq!(
            (&plan["actions"], plan["disruption"].as_str()),
            (&actions, Some(disruption)),
            "{plan}"
        );
    }
}

#[test]
fn an_os_image_and_kernel_arguments_are_planned_with_a_reboot() {
    let scene = Scene::new();
    let config = |image: &str, argument: &str| {
        json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "metadata": {"name": "x"},
            "spec": {"osImageURL": image, "kernelArguments": [argument], "config": ignition(json!({}))},
        })
    };
    let old = scene.give_json("old.json", &config("quay.io/os:1", "quiet"));
    let new = scene.give_json("new.json", &config("quay.io/os:2", "debug"));
    let said = evenkeel(&["plan", "-f", &new, "--from", &old]);
    assert_eq!(
        said.out,
        "~ kernel arguments: is quiet, should be debug [reboot]\n\
         ~ os image: is quay.io/os:1, should be quay.io/os:2 [reboot]\n\
         \n0 to create, 2 to update, 0 to delete.\n\
         Disruption: reboot (drain, then reboot).\n"
    );
}

/// Covers X01.
#[test]
fn a_services_config_map_has_the_same_kind_of_plan() {
    let scene = Scene::new();
    let config = |command: &str, proxy: &str| {
        let services =
            json!([{"name": "kubelet", "command": command, "bootstrap": true, "priority": 0}]);
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "services-1-2-3-abc1234"},
            "data": {
                "services": services.to_string(), "files": "[]",
                "environmentVars": json!([{"name": "HTTP_PROXY", "value": proxy}]).to_string(),
            },
        })
    };
    let old = scene.give_json("old.json", &config("kubelet.exe", "http://me:s3cret@proxy"));
    let restart = scene.give_json(
        "restart.json",
        &config("kubelet.exe --v=4", "http://me:s3cret@proxy"),
    );
    let reboot = scene.give_json(
        "reboot.json",
        &config("kubelet.exe", "http://me:0ther@proxy"),
    );
    let said = evenkeel(&["plan", "-f", &restart, "--from", &old, "-o", "json"]);
    assert_eq!(
        (said.code, said.json()),
        (
            Some(2),
            json!({
                "changes": [{"resource": "service kubelet", "action": "update", "why": "command differs", "disruption": "restart"}],
                "actions": ["restart kubelet"],
                "disruption": "restart",
            })
        )
    );
    let said = evenkeel(&["plan", "-f", &reboot, "--from", &old]);
    assert_eq!(
        said.out,
        "~ environment variable HTTP_PROXY: value differs [reboot]\n\n\
         0 to create, 1 to update, 0 to delete.\nDisruption: reboot (drain, then reboot).\n"
    );
    let linux = scene.give_json("linux.json", &files(&[]));
    let mixed = evenkeel(&["plan", "-f", &linux, "--from", &old]);
    assert_eq!(mixed.code, Some(1));
    let applied = scene.on_root(&["apply", "-f", &old]);
    assert!(
        applied.err.contains("for Windows machines"),
        "{}",
        applied.err
    );
}
