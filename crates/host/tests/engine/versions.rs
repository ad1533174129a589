//! What a newer program remembers of a machine is not for an older one to change.

use evenkeel_host::Error;
use evenkeel_host::disk::Disk;
use evenkeel_host::execute::Claim;
use evenkeel_plan::machine::entry::Ids;
use evenkeel_plan::machine::record::{Record, Unreadable};
use serde_json::Value;

use crate::configs::Config;
use crate::machine::{Machine, STATE, bring, every_ready_machine, state};

fn first() -> Config {
    Config::default()
        .file("/etc/theirs", "ours", 0o600)
        .file("/etc/new", "new", 0o644)
}

/// Everything that is on the machine, our own state too, with the bytes of our files.
fn all(machine: &Machine) -> Vec<(String, Option<Vec<u8>>)> {
    let mut all = Vec::new();
    let mut ahead = vec![String::new()];
    while let Some(folder) = ahead.pop() {
        for name in machine.disk.list(&format!("{folder}/")).unwrap() {
            let path = format!("{folder}/{name}");
            all.push((path.clone(), machine.disk.read(&path).unwrap()));
            ahead.push(path);
        }
    }
    all.sort();
    all
}

/// Changes a text of ours on the disk.
fn rewrite(machine: &Machine, name: &str, change: impl FnOnce(&mut Value)) {
    let path = format!("{STATE}/{name}");
    let text = machine.disk.read(&path).unwrap().unwrap();
    let mut value = serde_json::from_slice(&text).unwrap();
    change(&mut value);
    machine.disk.remove(&path).unwrap();
    let text = value.to_string();
    let owner = Ids::default();
    machine
        .disk
        .create(&path, text.as_bytes(), 0o600, owner)
        .unwrap();
}

/// Covers S12.
#[test]
fn a_machine_of_a_newer_program_is_refused_with_the_cure_and_nothing_of_it_is_touched() {
    every_ready_machine(|machine| {
        machine.file("/etc/theirs", "theirs", 0o644);
        machine.bring(&first()).unwrap();
        rewrite(machine, "record", |record| {
            record["version"] = 99.into();
            record["unheardOf"] = "kept".into();
        });
        machine.disk.remove(&format!("{STATE}/lock")).unwrap();
        let before = all(machine);
        let state = state();
        let another = first().file("/etc/new", "newer", 0o644);
        let tries = [
            machine.bring(&another),
            machine.bring(&Config::default()),
            machine.plan(&another).map(|_| ()),
            Claim::take(machine, &state).map(|_| ()),
            state.record(machine).map(|_| ()),
        ];
        for tried in tries {
            let error = tried.unwrap_err();
            let newer = matches!(
                error,
                Error::Journal {
                    source: Unreadable::Newer(99),
                    ..
                }
            );
            assert!(newer, "{error:?}");
            assert_eq!(error.category(), "NewerRecord");
            let words = error.with_causes();
            for part in [
                "configured by a newer evenkeel",
                "version 99",
                "run that version",
            ] {
                assert!(words.contains(part), "{words}");
            }
            assert_eq!(all(machine), before);
        }
    });
}

/// Covers S12.
#[test]
fn a_newer_programs_unfinished_run_is_neither_finished_nor_undone() {
    let machine = Machine::simulated();
    machine.folder("/var/lib");
    machine.bring(&first()).unwrap();
    let host = machine.into_simulated().unwrap();
    let host = host.snapshot();
    let another = first().file("/etc/new", "newer", 0o644);
    host.stop_after(30);
    _ = bring(&host, &another);
    let host = host.reborn();
    let state = state();
    assert!(state.unfinished(&host).unwrap().is_some());
    let journal = state.note(&host, "journal").unwrap().unwrap();
    let mut value: Value = serde_json::from_slice(&journal).unwrap();
    value["version"] = 3.into();
    let newer = value.to_string();
    state.keep_note(&host, "journal", newer.as_bytes()).unwrap();
    let before = host.changes();
    let error = Claim::take(&host, &state).map(|_| ()).unwrap_err();
    assert_eq!(error.category(), "NewerRecord", "{error:?}");
    assert_eq!(host.changes(), before, "something was changed");
    // The program that wrote it goes on as if nobody had come.
    state.keep_note(&host, "journal", &journal).unwrap();
    assert!(Claim::take(&host, &state).unwrap().resumed().is_some());
}

/// Covers S12.
#[test]
fn a_record_from_before_there_were_versions_is_the_first_one_and_is_taken_on() {
    every_ready_machine(|machine| {
        machine.file("/etc/theirs", "theirs", 0o644);
        machine.bring(&first()).unwrap();
        let known = state().record(machine).unwrap();
        rewrite(machine, "record", |record| {
            let fields = record.as_object_mut().unwrap();
            assert_eq!(fields.remove("version"), Some(2.into()));
            fields.remove("attributes");
        });
        let old = Record {
            attributes: std::collections::BTreeMap::new(),
            ..known
        };
        assert_eq!(state().record(machine).unwrap(), old);
        machine.bring(&Config::default()).unwrap();
        assert_eq!(machine.text("/etc/theirs").as_deref(), Some("theirs"));
        assert_eq!(machine.text("/etc/new"), None);
    });
}
