//! Security labels: what we replace, take away or bring back keeps the one it had.

use std::collections::BTreeMap;

use evenkeel_host::Error;
use evenkeel_host::disk::{Disk, Host};
use evenkeel_host::execute::Claim;

use crate::configs::{Config, masked, our_unit};
use crate::machine::{Machine, bring, every_ready_machine, state, tree};

const UNIT: &str = "/etc/systemd/system/theirs.service";

type Labels = BTreeMap<String, String>;

/// Runs `promise` on every machine that has labels: an ordinary user may not give any.
fn every_labelled_machine(promise: impl Fn(&Machine)) {
    every_ready_machine(|machine| {
        machine.file("/var/lib/probe", "", 0o600);
        label(machine, "/var/lib/probe");
        if machine.disk.label("/var/lib/probe").unwrap().is_none() {
            assert_ne!(machine.name(), "simulated");
            eprintln!(
                "left out: labels cannot be given on the {} machine here",
                machine.name()
            );
            return;
        }
        promise(machine);
    });
}

/// Gives what stands at `path` a label that nothing else has.
fn label(machine: &Machine, path: &str) {
    let label = format!("system_u:object_r:{}_t:s0\0", path.replace(['/', '.'], "_"));
    machine.disk.set_label(path, &label).unwrap();
}

/// The labels of everything that is not our state.
fn labels<D: Disk>(disk: &D) -> Labels {
    let labelled = tree(disk).into_keys().filter_map(|path| {
        let label = disk.label(&path).unwrap()?;
        Some((path, label))
    });
    labelled.collect()
}

/// A machine with files and folders of ours and a stranger's, all labelled.
fn labelled(machine: &Machine) -> Config {
    machine.folder("/etc/systemd/system");
    machine.file("/etc/theirs", "theirs", 0o644);
    machine.file(UNIT, "[Unit]\n", 0o644);
    machine.link("/etc/their-link", "theirs");
    let config = Config::default()
        .file("/opt/ours/deep/file", "ours", 0o640)
        .file("/etc/theirs", "ours", 0o600)
        .unit("ours.service", our_unit("x"));
    machine.bring(&config).unwrap();
    for path in tree(&machine.disk).keys() {
        label(machine, path);
    }
    config
}

/// Takes away what stands on a [`labelled`] machine, and puts a link and a file in a stranger's place.
fn another() -> Config {
    Config::default()
        .unit("theirs.service", masked())
        .file("/etc/their-link", "a file now", 0o644)
        .file("/opt/ours", "a file now", 0o644)
}

/// Covers M07.
#[test]
fn what_is_replaced_and_what_comes_back_has_the_label_it_had() {
    every_labelled_machine(|machine| {
        machine.file("/etc/theirs", "theirs", 0o644);
        label(machine, "/etc/theirs");
        let before = labels(&machine.disk);
        for contents in ["ours", "ours again"] {
            let config = Config::default().file("/etc/theirs", contents, 0o600);
            machine.bring(&config).unwrap();
            assert_eq!(labels(&machine.disk), before);
        }
        machine.bring(&Config::default()).unwrap();
        assert_eq!(machine.text("/etc/theirs").as_deref(), Some("theirs"));
        assert_eq!(labels(&machine.disk), before);
    });
}

/// Covers M08.
#[test]
fn a_unit_that_was_masked_has_its_label_again_when_it_comes_back() {
    every_labelled_machine(|machine| {
        labelled(machine);
        let before = machine.disk.label(UNIT).unwrap();
        machine.bring(&another()).unwrap();
        // A change on the way that has nothing to do with it.
        machine
            .bring(&another().file("/etc/more", "x", 0o644))
            .unwrap();
        assert_ne!(machine.disk.label(UNIT).unwrap(), before);
        machine.bring(&Config::default()).unwrap();
        assert_eq!(machine.disk.label(UNIT).unwrap(), before);
    });
}

/// Covers M07, M08, M09.
#[test]
fn what_an_undone_change_had_taken_away_comes_back_with_its_label() {
    every_labelled_machine(|machine| {
        labelled(machine);
        let before = (machine.tree(), labels(&machine.disk));
        assert!(before.1.len() > 8, "{before:?}");
        machine.services.refuse_reload_units();
        let error = machine.bring(&another()).unwrap_err();
        assert!(matches!(error, Error::Undone { .. }), "{error:?}");
        assert_eq!((machine.tree(), labels(&machine.disk)), before);
    });
}

#[test]
fn a_file_of_ours_that_somebody_removed_is_healed_with_the_label_it_replaced() {
    every_labelled_machine(|machine| {
        machine.file("/etc/theirs", "theirs", 0o644);
        label(machine, "/etc/theirs");
        let before = labels(&machine.disk);
        let config = Config::default().file("/etc/theirs", "ours", 0o600);
        machine.bring(&config).unwrap();
        machine.disk.remove("/etc/theirs").unwrap();
        let state = state();
        let claim = Claim::take(machine, &state).unwrap();
        let owned = &claim.record().unwrap().owned["/etc/theirs"];
        claim
            .heal("/etc/theirs", &owned.resource, &owned.entry)
            .unwrap();
        assert_eq!(labels(&machine.disk), before);
    });
}

/// Covers M09.
#[test]
fn killed_at_any_change_on_the_way_back_every_label_is_there_in_the_end() {
    let machine = Machine::simulated();
    machine.folder("/var/lib");
    labelled(&machine);
    let before = (machine.tree(), labels(&machine.disk));
    let start = machine.into_simulated().unwrap();
    start.settle();
    // As many changes as the way there and back takes.
    let undone = start.snapshot();
    undone.services().refuse_reload_units();
    bring(&undone, &another()).unwrap_err();
    let changes = undone.changes();
    assert!(changes > 40, "{changes}");
    let mut ends = [0, 0];
    for after in 0..changes {
        let host = start.snapshot();
        host.services().refuse_reload_units();
        host.stop_after(after);
        _ = bring(&host, &another());
        assert!(host.has_stopped());
        let host = host.reborn();
        host.services().refuse_reload_units();
        let state = state();
        _ = Claim::take(&host, &state).map(drop);
        assert_eq!(
            (tree(host.disk()), labels(host.disk())),
            before,
            "killed after {after}"
        );
        ends[usize::from(state.unfinished(&host).unwrap().is_some())] += 1;
    }
    assert_eq!(ends, [changes, 0]);
}
