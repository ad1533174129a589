//! `evenkeel apply` and `verify` on a tree: what stands there afterwards.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::scene::{Scene, file, files, ignition};
use serde_json::json;

/// Covers X03, M07.
#[test]
fn apply_brings_a_tree_to_a_configuration_and_verify_agrees() {
    let scene = Scene::new();
    scene.write("/etc/kept", "mine");
    let config = scene.give_json(
        "new.json",
        &ignition(json!({"storage": {"files": [
            file("/etc/deep/down/a.conf", "a\n"),
            {"path": "/usr/local/bin/tool", "mode": 0o755, "contents": {"source": "data:;base64,AP8="}},
        ]}})),
    );
    let missing = scene.on_root(&["verify", "-f", &config]);
    assert_eq!(missing.code, Some(2));
    assert_eq!(
        missing.out,
        "! file /etc/deep/down/a.conf: missing\n! file /usr/local/bin/tool: missing\n\n2 differences.\n"
    );
    let applied = scene.on_root(&["apply", "-f", &config]);
    assert_eq!(applied.code, Some(0), "{applied:?}");
    assert!(
        applied.out.ends_with("Applied 2 changes.\n"),
        "{}",
        applied.out
    );
    assert_eq!(scene.read("/etc/deep/down/a.conf"), "a\n");
    assert_eq!(
        std::fs::read(scene.path("/usr/local/bin/tool")).unwrap(),
        [0, 255]
    );
    let mode = scene
        .path("/usr/local/bin/tool")
        .metadata()
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o755);
    assert_eq!(scene.read("/etc/kept"), "mine");
    let right = scene.on_root(&["verify", "-f", &config]);
    assert_eq!(
        (right.code, right.out.as_str()),
        (Some(0), "Everything is as declared.\n")
    );
}

#[test]
fn verify_finds_every_difference_and_not_the_first_one() {
    let scene = Scene::new();
    let config = scene.give_json(
        "new.json",
        &files(&[("/etc/a", "a"), ("/etc/b", "b"), ("/etc/c", "c")]),
    );
    assert_eq!(scene.on_root(&["apply", "-f", &config]).code, Some(0));
    scene.write("/etc/a", "A");
    std::fs::remove_file(scene.path("/etc/b")).unwrap();
    std::fs::set_permissions(scene.path("/etc/c"), PermissionsExt::from_mode(0o600)).unwrap();
    let said = scene.on_root(&["verify", "-f", &config, "-o", "json"]);
    assert_eq!(said.code, Some(2));
    assert_eq!(
        said.json(),
        json!({"findings": [
            {"resource": "file /etc/a", "why": "contents differ"},
            {"resource": "file /etc/b", "why": "missing"},
            {"resource": "file /etc/c", "why": "mode is 0600, should be 0644"},
        ]})
    );
}

#[test]
fn applying_twice_changes_nothing_the_second_time_not_even_a_time_stamp() {
    let scene = Scene::new();
    let config = scene.give_json(
        "new.json",
        &ignition(json!({
            "storage": {"files": [file("/etc/a", "a")]},
            "systemd": {"units": [{"name": "a.service", "enabled": true, "contents": "[Install]\nWantedBy=x.target\n"}]},
        })),
    );
    assert_eq!(scene.on_root(&["apply", "-f", &config]).code, Some(0));
    let times = || {
        let state = "/etc/machine-config-daemon/state";
        [
            "/etc",
            "/etc/a",
            "/etc/systemd/system",
            "/etc/systemd/system/a.service",
            state,
            &format!("{state}/record"),
        ]
        .map(|path| {
            let meta = scene.path(path).metadata().unwrap();
            (
                path.to_owned(),
                meta.mtime(),
                meta.mtime_nsec(),
                meta.ctime(),
                meta.ctime_nsec(),
                meta.ino(),
            )
        })
    };
    let before = times();
    let again = scene.on_root(&["apply", "-f", &config]);
    assert_eq!(
        (again.code, again.out.as_str()),
        (Some(0), "Nothing to do.\n")
    );
    assert_eq!(times(), before);
}

/// Covers M07.
#[test]
fn what_a_file_replaced_comes_back_when_it_is_pruned_and_what_is_not_ours_stays() {
    let scene = Scene::new();
    scene.write("/etc/motd", "from the distribution\n");
    std::fs::set_permissions(scene.path("/etc/motd"), PermissionsExt::from_mode(0o640)).unwrap();
    let before = scene.tree();
    let config = scene.give_json(
        "one.json",
        &files(&[("/etc/motd", "ours\n"), ("/opt/new/file", "x")]),
    );
    assert_eq!(scene.on_root(&["apply", "-f", &config]).code, Some(0));
    scene.write("/opt/new/stranger", "mine");
    let empty = scene.give_json("two.json", &ignition(json!({})));
    let pruned = scene.on_root(&["apply", "-f", &empty]);
    assert_eq!(pruned.code, Some(0), "{pruned:?}");
    assert!(!scene.path("/opt/new/file").exists());
    assert_eq!(scene.read("/opt/new/stranger"), "mine");
    std::fs::remove_dir_all(scene.path("/opt")).unwrap();
    let after: Vec<_> = scene
        .tree()
        .into_iter()
        .filter(|line| !line.starts_with("etc/machine-config-daemon"))
        .collect();
    assert_eq!(after, before);
}

/// Covers M08.
#[test]
fn units_are_written_enabled_disabled_masked_preset_and_pruned() {
    let scene = Scene::new();
    let folder = "/etc/systemd/system";
    let vendor = "[Service]\n[Install]\nWantedBy=multi-user.target\n";
    for name in ["on.service", "off.service", "masked.service"] {
        scene.write(&format!("/usr/lib/systemd/system/{name}"), vendor);
    }
    std::fs::create_dir_all(scene.path(&format!("{folder}/multi-user.target.wants"))).unwrap();
    let link = |name: &str| scene.path(&format!("{folder}/multi-user.target.wants/{name}"));
    std::os::unix::fs::symlink("/usr/lib/systemd/system/off.service", link("off.service")).unwrap();
    scene.write(
        "/usr/lib/systemd/system-preset/50.preset",
        "enable wanted.service\ndisable *\n",
    );
    let before = scene.tree();
    let config = scene.give_json(
        "units.json",
        &ignition(json!({"systemd": {"units": [
            {"name": "on.service", "enabled": true},
            {"name": "off.service", "enabled": false},
            {"name": "masked.service", "mask": true},
            {"name": "wanted.service", "contents": vendor},
            {"name": "unwanted.service", "contents": vendor},
            {"name": "crio.service", "dropins": [{"name": "10-proxy.conf", "contents": "[Service]\nEnvironment=A=1\n"}]},
        ]}})),
    );
    let applied = scene.on_root(&["apply", "-f", &config]);
    assert_eq!(applied.code, Some(0), "{applied:?}");
    let target = |path| {
        std::fs::read_link(path)
            .ok()
            .map(|path| path.display().to_string())
    };
    assert_eq!(
        target(link("on.service")).as_deref(),
        Some("/usr/lib/systemd/system/on.service")
    );
    assert_eq!(target(link("off.service")), None);
    assert_eq!(
        target(scene.path(&format!("{folder}/masked.service"))).as_deref(),
        Some("/dev/null")
    );
    assert_eq!(
        target(link("wanted.service")).as_deref(),
        Some("/etc/systemd/system/wanted.service")
    );
    assert_eq!(target(link("unwanted.service")), None);
    assert_eq!(
        scene.read(&format!("{folder}/crio.service.d/10-proxy.conf")),
        "[Service]\nEnvironment=A=1\n"
    );
    let verified = scene.on_root(&["verify", "-f", &config]);
    assert_eq!(verified.code, Some(0), "{verified:?}");

    std::fs::remove_file(link("on.service")).unwrap();
    std::fs::remove_file(scene.path(&format!("{folder}/masked.service"))).unwrap();
    let drifted = scene.on_root(&["verify", "-f", &config]);
    assert_eq!(
        drifted.out,
        "! unit masked.service: not masked\n! unit on.service: not enabled\n\n2 differences.\n"
    );

    let empty = scene.give_json("empty.json", &ignition(json!({})));
    let pruned = scene.on_root(&["apply", "-f", &empty]);
    assert_eq!(pruned.code, Some(0), "{pruned:?}");
    let after: Vec<_> = scene
        .tree()
        .into_iter()
        .filter(|line| !line.starts_with("etc/machine-config-daemon"))
        .collect();
    assert_eq!(after, before);
}

#[test]
fn what_is_already_as_desired_is_adopted_and_stays_when_it_is_pruned() {
    let scene = Scene::new();
    scene.write("/etc/a", "a");
    let config = scene.give_json("new.json", &files(&[("/etc/a", "a")]));
    let planned = scene.on_root(&["plan", "-f", &config, "-o", "json"]);
    assert_eq!(
        (planned.code, &planned.json()["disruption"]),
        (Some(0), &json!("none"))
    );
    assert_eq!(scene.on_root(&["apply", "-f", &config]).code, Some(0));
    let empty = scene.give_json("empty.json", &ignition(json!({})));
    assert_eq!(scene.on_root(&["apply", "-f", &empty]).code, Some(0));
    assert_eq!(scene.read("/etc/a"), "a");
}

#[test]
fn a_dry_run_is_a_plan() {
    let scene = Scene::new();
    let config = scene.give_json("new.json", &files(&[("/etc/a", "a")]));
    let dry = scene.on_root(&["apply", "--dry-run", "-f", &config]);
    let plan = scene.on_root(&["plan", "-f", &config]);
    assert_eq!((dry.code, &dry.out), (Some(2), &plan.out));
    assert!(!scene.path("/etc/a").exists());
}

#[test]
fn an_image_is_not_written_to_a_tree_and_nothing_else_is_either() {
    let scene = Scene::new();
    let config = scene.give_json(
        "new.json",
        &json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "metadata": {"name": "x"},
            "spec": {"osImageURL": "quay.io/os:2", "config": files(&[("/etc/a", "a")])},
        }),
    );
    let said = scene.on_root(&["apply", "-f", &config]);
    assert_eq!(said.code, Some(1));
    assert!(
        said.err
            .contains("os image: is none, should be quay.io/os:2"),
        "{}",
        said.err
    );
    assert!(said.err.contains("without --root"), "{}", said.err);
    assert!(!scene.path("/etc/a").exists());
    // It can be looked at all the same.
    let plan = scene.on_root(&["plan", "-f", &config]);
    assert_eq!(plan.code, Some(2), "{}", plan.err);
    assert!(plan.out.contains("+ os image: is none"), "{}", plan.out);
}
