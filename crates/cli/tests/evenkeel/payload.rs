//! `evenkeel check --payload`.

use evenkeel_api::windows::payload::{Manifest, PayloadFile, checksum};

use super::scene::{Scene, evenkeel};

const TEMPLATE: &str =
    "services:\n- {name: k, command: 'C:\\k\\k.exe --x', bootstrap: true, priority: 0}\n";

/// A sealed payload, and its folder.
fn payload(scene: &Scene) -> String {
    let files = [
        ("services.yaml", TEMPLATE),
        ("kubelet.yaml", "kind: KubeletConfiguration\n"),
        ("files/evenkeel-agent.exe", "agent"),
        ("files/k.exe", "program"),
    ];
    let sealed = files.map(|(path, contents)| {
        scene.give(&format!("payload/{path}"), contents);
        PayloadFile {
            path: path.to_owned(),
            checksum: checksum(contents.as_bytes()),
        }
    });
    let version = "1.2.3-abc1234".parse().unwrap();
    let manifest = Manifest::seal(version, sealed.to_vec()).unwrap();
    let path = scene.give("payload/manifest.yaml", manifest.text());
    path.trim_end_matches("/manifest.yaml").to_owned()
}

/// Covers H08.
#[test]
fn a_payload_is_valid_if_it_is_what_was_sealed_and_else_every_file_is_named() {
    let scene = Scene::new();
    let folder = payload(&scene);
    let said = evenkeel(&["check", "--payload", &folder]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.out.contains("valid (payload 1.2.3-abc1234, 4 files)"),
        "{}",
        said.out
    );
    scene.give("payload/files/k.exe", "another");
    scene.give("payload/files/new.exe", "new");
    let said = evenkeel(&["check", "--payload", &folder]);
    assert_eq!(said.code, Some(2), "{said:?}");
    for words in [
        "files/k.exe: differs from the sealed file: restore it, or seal the payload again",
        "files/new.exe: not sealed: remove it",
    ] {
        assert!(said.out.contains(words), "{}", said.out);
    }
    let said = evenkeel(&["check", "--payload", &folder, "-o", "json"]);
    let document: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(document["valid"], false);
    let problems = document["files"][0]["problems"].as_array().unwrap();
    assert_eq!(problems.len(), 2, "{document}");
    assert_eq!(
        problems[0]["place"]["file"],
        format!("{folder}/files/k.exe")
    );
    // Files may be checked with it, and a folder that is not there cannot be read.
    let config = scene.give("a.yaml", "ignition: {version: 3.4.0}\n");
    let folder = payload(&Scene::new());
    let said = evenkeel(&["check", &config, "--payload", &folder]);
    assert_eq!(said.code, Some(1), "its scene is gone: {said:?}");
    assert!(said.err.contains("cannot read"), "{}", said.err);
    assert_eq!(
        evenkeel(&["check"]).code,
        Some(1),
        "something must be given"
    );
}
