//! What the engine does with an operating system: staged after the files, undone before them, and found
//! again after a boot or a power cut.

use evenkeel_host::Error;
use evenkeel_host::disk::Host;
use evenkeel_host::execute::Claim;
use evenkeel_host::simulated::SimulatedHost;
use evenkeel_plan::machine::os::Deployment;

use crate::configs::Config;
use crate::machine::{Machine, bring, every_ready_machine, planned, state};

fn old() -> Deployment {
    Deployment {
        image: Some("os:0".to_owned()),
        arguments: vec!["root=/dev/sda".to_owned(), "old".to_owned()],
    }
}

fn config() -> Config {
    Config::default()
        .file("/etc/a", "new", 0o644)
        .boots("os:1", &["new", "new"])
}

/// Covers M09, M10.
#[test]
fn an_operating_system_is_staged_and_comes_back_when_nothing_is_desired() {
    every_ready_machine(|machine| {
        machine.os.runs(old());
        machine.bring(&config()).unwrap();
        let next = machine.os.next();
        assert_eq!(next.image.as_deref(), Some("os:1"));
        assert_eq!(next.arguments, ["root=/dev/sda", "old", "new", "new"]);
        machine.os.boots();
        assert_eq!(machine.plan(&config()).unwrap().changes, []);
        machine.bring(&Config::default()).unwrap();
        assert_eq!(machine.os.next(), old());
        machine.os.boots();
        machine.bring(&config()).unwrap();
        // Before it was booted: then nothing needs to be staged to be back.
        machine.bring(&Config::default()).unwrap();
        assert!(!machine.os.has_staged());
    });
}

/// Covers M09, M10.
#[test]
fn what_cannot_be_staged_takes_the_files_back_with_it() {
    every_ready_machine(|machine| {
        machine.os.runs(old());
        let before = machine.tree();
        machine.os.refuse(true);
        let error = machine.bring(&config()).unwrap_err();
        assert!(
            matches!(&error, Error::Undone { step, .. } if step == "os image"),
            "{error:?}"
        );
        assert_eq!(machine.tree(), before);
        assert_eq!(machine.os.next(), old());
        assert_eq!(state().unfinished(machine).unwrap(), None);
        machine.os.refuse(false);
        machine.bring(&config()).unwrap();
        assert!(machine.os.has_staged());
    });
}

/// Covers M09, M10.
#[test]
fn when_systemd_says_no_after_it_was_staged_nothing_stays_staged() {
    every_ready_machine(|machine| {
        machine.os.runs(old());
        machine.services.refuse_reload_units();
        let unit = crate::configs::our_unit("/bin/true");
        let error = machine
            .bring(&config().unit("ours.service", unit))
            .unwrap_err();
        assert!(matches!(error, Error::Undone { .. }), "{error:?}");
        assert!(!machine.os.has_staged());
        assert_eq!(machine.text("/etc/a"), None);
    });
}

fn ready() -> SimulatedHost {
    let machine = Machine::simulated();
    machine.folder("/var/lib");
    let host = machine.into_simulated().unwrap();
    host.operating_system().runs(old());
    host
}

/// What a start does, and whether the machine must boot then.
fn start(host: &SimulatedHost) -> bool {
    let state = state();
    let claim = Claim::take(host, &state).unwrap();
    claim.take_note_of_boot().unwrap();
    let record = claim.record().unwrap();
    record.awaits_boot(&host.boot_id().unwrap())
}

/// Covers M09.
#[test]
fn what_a_power_cut_took_away_is_staged_again_and_then_arrives() {
    let host = ready();
    bring(&host, &config()).unwrap();
    let staged = host.operating_system().next();
    let mut host = host.cut(&mut |_| 0);
    for _ in 0..5 {
        assert!(!host.operating_system().has_staged());
        assert!(start(&host), "it was lost, and nobody waits for a boot");
        assert_eq!(host.operating_system().next(), staged);
        host = host.cut(&mut |_| 0);
    }
    assert!(start(&host));
    let host = host.rebooted();
    assert!(!start(&host));
    assert_eq!(planned(&host, &config()).unwrap().0.changes, []);
    assert!(state().record(&host).unwrap().staged.is_empty());
}

/// Covers M11.
#[test]
fn a_machine_that_was_told_to_boot_twice_in_vain_is_not_told_again() {
    let mut host = ready();
    bring(&host, &config()).unwrap();
    for waits in [true, false] {
        Claim::take(&host, &state())
            .unwrap()
            .is_told_to_boot()
            .unwrap();
        // Whatever was staged, this boots the old one.
        host = host.rebooted();
        host.operating_system().runs(old());
        assert_eq!(start(&host), waits);
    }
    assert!(!host.operating_system().has_staged());
    let record = state().record(&host).unwrap();
    let words = evenkeel_plan::machine::os::differences(&record, &old());
    assert_eq!(words[0], "os image: os:0 is booted, should be os:1");
    assert_eq!(words[1], "kernel arguments: booted without new new");
}
