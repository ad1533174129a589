//! Several configurations given at once: one merge for `render`, `plan` and the pools.

use std::os::unix::fs::PermissionsExt;

use super::scene::{Scene, evenkeel, ignition};
use serde_json::{Value, json};

fn secret(scene: &Scene) -> (String, String) {
    let storage = |file: Value| ignition(json!({ "storage": { "files": [file] } }));
    let named = |name: &str, config: Value| {
        json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
            "metadata": { "name": name }, "spec": { "config": config },
        })
    };
    let lower =
        storage(json!({ "path": "/etc/b", "mode": 0o600, "contents": { "source": "data:,old" } }));
    let higher = storage(json!({ "path": "/etc/b", "contents": { "source": "data:,new" } }));
    (
        scene.give_json("lower.json", &named("00-lower", lower)),
        scene.give_json("higher.json", &named("50-higher", higher)),
    )
}

/// Covers M02, M07.
#[test]
fn a_secret_stays_secret_in_what_is_rendered_and_on_the_machine() {
    let scene = Scene::new();
    let (lower, higher) = secret(&scene);
    // Their names decide, and not the order in which they are given.
    let said = evenkeel(&[
        "render", "-f", &higher, "-f", &lower, "--pool", "worker", "-o", "json",
    ]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let file = &said.json()["spec"]["config"]["storage"]["files"][0];
    assert_eq!(
        (&file["mode"], &file["contents"]["source"]),
        (&json!(0o600), &json!("data:;base64,bmV3"))
    );
    let said = scene.on_root(&["apply", "-f", &higher, "-f", &lower]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(scene.read("/etc/b"), "new");
    let mode = scene
        .path("/etc/b")
        .metadata()
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o600);
    let said = scene.on_root(&["plan", "-f", &lower, "-f", &higher]);
    assert_eq!(
        (said.code, said.out.as_str()),
        (Some(0), "Nothing to do.\n"),
        "{said:?}"
    );
}
