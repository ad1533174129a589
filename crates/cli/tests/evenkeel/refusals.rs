//! Bad input: refused whole, with the place and what would be right, and nothing is touched.

use super::scene::{Scene, evenkeel, file, files, ignition};
use serde_json::{Value, json};

fn one_file(file: &Value) -> String {
    ignition(json!({"storage": {"files": [file]}})).to_string()
}

fn with_source(source: &str) -> String {
    one_file(&json!({"path": "/etc/a", "contents": {"source": source}}))
}

#[test]
fn each_kind_of_bad_input_is_refused_with_its_place_and_touches_nothing() {
    let two = |one: &str, two: &str| files(&[(one, "1"), (two, "2")]).to_string();
    let unit = |name: &str| {
        ignition(json!({"systemd": {"units": [{"name": name, "contents": "[Unit]"}]}})).to_string()
    };
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("broken YAML", b"a: [1\nb: 2\n".to_vec(), &["line "]),
        ("broken JSON", b"{\"ignition\": ".to_vec(), &["line 1"]),
        ("an unknown version", br#"{"ignition": {"version": "4.0.0"}}"#.to_vec(), &["4.0.0"]),
        ("another 2.x", br#"{"ignition": {"version": "2.3.0"}}"#.to_vec(), &["2.3.0", "2.2.0"]),
        ("no data URL", with_source("http://x/y").into(), &["/etc/a", "http"]),
        ("a malformed data URL", with_source("data:text/plain").into(), &["/etc/a"]),
        ("truncated base64", with_source("data:;base64,aGVsb").into(), &["/etc/a", "base64"]),
        ("bad percent encoding", with_source("data:,%zz").into(), &["/etc/a"]),
        ("bad compression", one_file(&json!({"path": "/etc/a", "contents": {"source": "data:,x", "compression": "gzip"}})).into(), &["/etc/a", "gzip"]),
        ("unknown compression", one_file(&json!({"path": "/etc/a", "contents": {"source": "data:,x", "compression": "xz"}})).into(), &["/etc/a", "xz"]),
        ("a wrong checksum", one_file(&json!({"path": "/etc/a", "contents": {"source": "data:,x", "verification": {"hash": format!("sha256-{}", "0".repeat(64))}}})).into(), &["/etc/a", "hash"]),
        ("a relative path", one_file(&file("etc/a", "x")).into(), &["etc/a", "begin"]),
        ("dots", one_file(&file("/etc/../a", "x")).into(), &["/etc/../a"]),
        ("a path below a file", two("/etc/a", "/etc/a/b").into(), &["/etc/a/b", "/etc/a"]),
        ("the same path twice", two("/etc/a", "/etc/a").into(), &["/etc/a", "twice"]),
        ("a mode too high", one_file(&json!({"path": "/etc/a", "mode": 0o10000})).into(), &["/etc/a", "7777"]),
        ("a unit with a slash", unit("a/b.service").into(), &["a/b.service", "slash"]),
        ("a unit without suffix", unit("a").into(), &[".service"]),
        ("an append", one_file(&json!({"path": "/etc/a", "append": [{"source": "data:,x"}]})).into(), &["/etc/a", "append"]),
        ("an unknown key", one_file(&json!({"path": "/etc/a", "contants": {}})).into(), &["contants", "contents"]),
        ("the force file", one_file(&file("/run/machine-config-daemon-force", "")).into(), &["/run/machine-config-daemon-force"]),
        ("our own state", one_file(&file("/etc/machine-config-daemon/state/record", "")).into(), &["/etc/machine-config-daemon/state"]),
        ("not UTF-8", b"\xff\xfe{}".to_vec(), &["UTF-8"]),
        ("nothing", b"".to_vec(), &["empty"]),
        ("another kind", br#"{"apiVersion": "v1", "kind": "Pod"}"#.to_vec(), &["Pod", "MachineConfig"]),
        ("100 MB", vec![b' '; 100 << 20], &["64 MiB"]),
    ];
    for (case, bytes, words) in cases {
        let scene = Scene::new();
        let config = scene.give("bad.yaml", &bytes);
        let said = scene.on_root(&["apply", "-f", &config]);
        assert_eq!(
            (said.code, said.out.as_str()),
            (Some(1), ""),
            "{case}: {said:?}"
        );
        assert!(
            said.err.contains("bad.yaml"),
            "{case} names the file: {}",
            said.err
        );
        for word in words {
            assert!(
                said.err.contains(word),
                "{case} says {word:?}: {}",
                said.err
            );
        }
        assert_eq!(scene.tree(), Vec::<String>::new(), "{case}");
        let checked = evenkeel(&["check", &config]);
        assert_eq!(checked.code, Some(2), "{case}: {checked:?}");
    }
}

#[test]
fn a_path_that_leaves_the_root_through_a_link_is_refused_before_anything_is_touched() {
    let scene = Scene::new();
    let outside = tempfile::tempdir().unwrap();
    std::fs::create_dir(scene.path("/etc")).unwrap();
    std::os::unix::fs::symlink(outside.path(), scene.path("/etc/link")).unwrap();
    std::os::unix::fs::symlink("../../../../../../../..", scene.path("/etc/up")).unwrap();
    let out = outside.path().display().to_string();
    for path in ["/etc/link/a".to_owned(), format!("/etc/up{out}/a")] {
        let config = scene.give_json("new.json", &files(&[("/etc/a", "1"), (&path, "2")]));
        let said = scene.on_root(&["apply", "-f", &config]);
        if path.starts_with("/etc/link") {
            assert_eq!(said.code, Some(1), "{said:?}");
            assert!(
                said.err.contains("is missing or outside the root"),
                "{}",
                said.err
            );
            assert!(!scene.path("/etc/a").exists());
        }
        assert_eq!(
            std::fs::read_dir(outside.path()).unwrap().count(),
            0,
            "{path}"
        );
    }
}

#[test]
fn all_problems_of_a_file_are_told_at_once() {
    let scene = Scene::new();
    let config = scene.give_json(
        "bad.json",
        &ignition(json!({"storage": {"files": [file("a", ""), file("/etc/../b", "")]}, "systemd": {"units": [{"name": "c"}]}})),
    );
    let said = evenkeel(&["check", &config, "-o", "json"]);
    assert_eq!(said.code, Some(2));
    let problems = said.json()["files"][0]["problems"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    assert_eq!(problems.len(), 3, "{problems:?}");
}

#[test]
fn check_says_what_it_found_valid_and_cannot_read_what_is_not_there() {
    let scene = Scene::new();
    // What a file is called says nothing about what it is.
    let config = scene.give("really.json", "ignition: {version: 3.4.0}\n");
    let said = evenkeel(&["check", &config]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.out.contains("valid (machine configuration)"),
        "{}",
        said.out
    );
    let missing = evenkeel(&["check", "/no/such/file"]);
    assert_eq!(missing.code, Some(1));
    assert!(
        missing.err.contains("cannot read /no/such/file"),
        "{}",
        missing.err
    );
}

/// Covers M04.
#[test]
fn a_field_that_is_not_supported_is_named_by_check_plan_and_apply() {
    let scene = Scene::new();
    let config = scene.give_json(
        "new.json",
        &ignition(json!({
            "passwd": {"users": [{"name": "core", "homeDir": "/var/core", "sshAuthorizedKeys": ["k"]}]},
            "storage": {"links": [{"path": "/l", "target": "/t"}]},
        })),
    );
    // Where a machine has it already, it is no mistake.
    let said = evenkeel(&["check", &config]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let refuses = "a machine that runs without it refuses this configuration";
    for warning in [
        format!(
            "passwd.users core: homeDir is not supported, and only sshAuthorizedKeys of user core \
             can change on a running machine: {refuses}"
        ),
        format!(
            "storage.links /l: is not supported (target), and this section cannot change on a \
             running machine: {refuses}"
        ),
    ] {
        assert!(said.err.contains(&warning), "{}", said.err);
    }
    let empty = scene.give_json("old.json", &ignition(json!({})));
    let planned = evenkeel(&["plan", "-f", &config, "--from", &empty]);
    let applied = scene.on_root(&["apply", "-f", &config]);
    for said in [planned, applied] {
        assert_eq!(said.code, Some(1), "{said:?}");
        for problem in [
            "passwd.users core: homeDir is new, and only sshAuthorizedKeys of user core can change on \
             a running machine: remove it, or reprovision the machine",
            "storage.links /l: is new (target), and this section cannot change on a running machine: \
             remove it, or reprovision the machine",
        ] {
            assert!(said.err.contains(problem), "{}", said.err);
        }
    }
}

#[test]
fn standard_input_a_folder_and_several_files_are_read() {
    use std::io::Write;
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    let config = files(&[("/etc/a", "a")]).to_string();
    std::fs::write(folder.path().join("a.ign"), &config).unwrap();
    let folder = folder.path().display().to_string();
    assert_eq!(scene.on_root(&["plan", "-f", &folder]).code, Some(2));
    let mut child = super::scene::program()
        .args(["check", "-"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(config.as_bytes())
        .unwrap();
    let said = super::scene::Said::from(child.wait_with_output().unwrap());
    assert_eq!(
        (said.code, said.out.as_str()),
        (Some(0), "standard input: valid (machine configuration)\n")
    );
}

#[test]
fn a_machine_that_is_being_changed_is_busy() {
    let scene = Scene::new();
    let config = scene.give_json("new.json", &files(&[("/etc/a", "a")]));
    assert_eq!(scene.on_root(&["apply", "-f", &config]).code, Some(0));
    let lock = std::fs::File::open(scene.path("/etc/machine-config-daemon/state/lock")).unwrap();
    lock.lock().unwrap();
    let said = scene.on_root(&["apply", "-f", &config]);
    assert_eq!(said.code, Some(1));
    assert!(
        said.err
            .contains("another evenkeel process is working on this machine"),
        "{}",
        said.err
    );
}
