//! What happens when a run is watched, stopped or killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::scene::{Scene, files, program};

const SOON: Duration = Duration::from_mins(1);

/// Waits until `holds`; a test that waits in vain fails.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < SOON, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn signal(child: &Child, name: &str) {
    let sent = std::process::Command::new("kill")
        .args([name, &child.id().to_string()])
        .status();
    assert!(sent.is_ok_and(|status| status.success()));
}

/// A configuration that takes a while, and where its last and a middle file are.
fn many(scene: &Scene) -> (String, std::path::PathBuf, std::path::PathBuf) {
    let paths: Vec<String> = (0..1500)
        .map(|number| format!("/etc/many/{number:04}"))
        .collect();
    let all: Vec<(&str, &str)> = paths
        .iter()
        .map(|path| (path.as_str(), path.as_str()))
        .collect();
    let config = scene.give_json("many.json", &files(&all));
    (config, scene.path(&paths[500]), scene.path(&paths[1499]))
}

fn start(scene: &Scene, words: &[&str]) -> Child {
    let mut command = program();
    command.args(words).arg("--root").arg(scene.root());
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn ctrl_c_in_the_middle_of_an_apply_puts_everything_back() {
    let scene = Scene::new();
    let before = scene.tree();
    let (config, middle, _) = many(&scene);
    let child = start(&scene, &["apply", "-f", &config, "-o", "json"]);
    until("the middle of the apply", || middle.exists());
    signal(&child, "-INT");
    let said = super::scene::Said::from(child.wait_with_output().unwrap());
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("all changes were undone"), "{}", said.err);
    assert!(said.err.contains("stopped on request"), "{}", said.err);
    let after: Vec<_> = scene
        .tree()
        .into_iter()
        .filter(|line| !line.starts_with("etc/machine-config-daemon") && !line.starts_with("etc 4"))
        .collect();
    assert_eq!(after, before);
}

/// Covers X05.
#[test]
fn a_killed_apply_is_finished_by_the_next_one_and_plan_says_so_before() {
    let scene = Scene::new();
    let (config, middle, last) = many(&scene);
    let mut child = start(&scene, &["apply", "-f", &config, "-o", "json"]);
    until("the middle of the apply", || middle.exists());
    signal(&child, "-KILL");
    child.wait().unwrap();
    assert!(!last.exists(), "it was killed too late");
    let planned = scene.on_root(&["plan", "-f", &config, "-o", "json"]);
    assert_eq!(planned.code, Some(2));
    assert!(
        planned.err.contains("an earlier apply was interrupted"),
        "{}",
        planned.err
    );
    let resumed = scene.on_root(&["apply", "-f", &config]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    assert!(
        resumed.err.contains("it was finished first"),
        "{}",
        resumed.err
    );
    assert_eq!(resumed.out, "Nothing to do.\n");
    assert_eq!(std::fs::read_to_string(last).unwrap(), "/etc/many/1499");
}

/// The next event of a watch, as JSON.
fn next(lines: &mut impl Iterator<Item = std::io::Result<String>>) -> Value {
    let line = lines
        .next()
        .unwrap_or_else(|| panic!("the watch has ended"))
        .unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

fn append(path: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::options().append(true).open(path).unwrap();
    file.write_all(b"x").unwrap();
}

/// Covers M20, X03.
#[test]
fn watch_reports_drift_and_with_heal_puts_it_back_and_ctrl_c_ends_it() {
    let scene = Scene::new();
    let config = scene.give_json("a.json", &files(&[("/etc/a", "a")]));
    assert_eq!(scene.on_root(&["apply", "-f", &config]).code, Some(0));

    let mut watch = start(&scene, &["watch", "-f", &config, "-o", "json"]);
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    append(&scene.path("/etc/a"));
    let drifted = next(&mut lines);
    assert_eq!(
        (drifted["event"].as_str(), drifted["why"].as_str()),
        (Some("drifted"), Some("contents differ"))
    );
    assert_eq!(drifted["resource"], "file /etc/a");
    scene.write("/etc/a", "a");
    assert_eq!(next(&mut lines)["event"], "recovered");
    append(&scene.path("/etc/a"));
    assert_eq!(next(&mut lines)["event"], "drifted");
    signal(&watch, "-INT");
    assert_eq!(watch.wait().unwrap().code(), Some(2), "drift stands");

    let mut heal = start(&scene, &["watch", "--heal", "-f", &config, "-o", "json"]);
    let mut lines = BufReader::new(heal.stdout.take().unwrap()).lines();
    assert_eq!(next(&mut lines)["event"], "drifted");
    assert_eq!(next(&mut lines)["event"], "healed");
    assert_eq!(scene.read("/etc/a"), "a");
    std::fs::remove_file(scene.path("/etc/a")).unwrap();
    assert_eq!(next(&mut lines)["why"], "missing");
    assert_eq!(next(&mut lines)["event"], "healed");
    assert_eq!(scene.read("/etc/a"), "a");
    signal(&heal, "-INT");
    assert_eq!(heal.wait().unwrap().code(), Some(0));
}

/// What a process holds in memory that is its own, in KiB: not the pages of its program's file, of which a build for tests
/// has several times as many as a release, and which the kernel takes back whenever it needs them.
fn own_memory(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn watching_a_large_configuration_takes_little_memory() {
    const LIMIT: u64 = 12 * 1024;
    let scene = Scene::new();
    let path = |number: usize| format!("/etc/{}/{number:04}", number % 50);
    let text = |number: usize| format!("{number:015}\n").repeat(4096 / 16);
    let all: Vec<(String, String)> = (0..5000)
        .map(|number| (path(number), text(number)))
        .collect();
    for (path, text) in &all {
        scene.write(path, text);
    }
    let all: Vec<(&str, &str)> = all
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    let config = scene.give_json("large.json", &files(&all));
    let mut watch = start(&scene, &["watch", "--heal", "-f", &config]);
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.starts_with("Watching 5000 paths"), "{first}");
    // The first look at everything is part of it.
    append(&scene.path(&path(4999)));
    until("the drift to be put back", || {
        scene.read(&path(4999)) == text(4999)
    });
    let seen = own_memory(&watch);
    signal(&watch, "-INT");
    assert_eq!(watch.wait().unwrap().code(), Some(0));
    assert!(seen < LIMIT, "{seen} KiB are more than {LIMIT}");
    eprintln!("proof: watching 5,000 files of 4 KiB takes {seen} KiB");
}
