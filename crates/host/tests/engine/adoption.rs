//! A machine that somebody else provisioned, and its first configuration of ours.

use evenkeel_api::machine::machine_config::Section;
use evenkeel_api::names::linux;
use evenkeel_host::execute::Claim;
use evenkeel_host::{Error, provision};
use evenkeel_plan::machine::provision::Provision;
use evenkeel_plan::machine::record::Record;
use serde_json::json;

use crate::configs::Config;
use crate::machine::{Machine, every_ready_machine, state};

const FILE: &str = "/etc/theirs.conf";

/// A MachineConfig of another operator with a disk and a user.
fn theirs(device: &str) -> String {
    json!({
        "metadata": {"name": "rendered-worker-1"},
        "spec": {"fips": true, "config": {
            "ignition": {"version": "3.4.0"},
            "passwd": {"users": [{"name": "admin"}]},
            "storage": {"disks": [{"device": device, "wipeTable": true}]},
        }},
    })
    .to_string()
}

/// Ours, with the same sections and a file.
fn first(device: &str, text: &str) -> Config {
    let mut config = Config::default().file(FILE, text, 0o644);
    config.0.name = Some("rendered-worker-ours".to_owned());
    let sections = Provision::read("it", theirs(device).as_bytes())
        .unwrap()
        .sections;
    config.0.unsupported = sections;
    config
}

fn is_refused(machine: &Machine, config: &Config, section: &str) {
    let before = machine.tree();
    let error = machine.bring(config).unwrap_err();
    let Error::Refused(refused) = &error else {
        panic!("{error:?}");
    };
    assert!(refused.to_string().contains(section), "{refused}");
    assert_eq!(machine.tree(), before);
}

/// Covers O06.
#[test]
fn a_machine_is_adopted_as_the_machine_config_daemon_left_it_and_nothing_on_it_is_touched() {
    every_ready_machine(|machine| {
        machine.file(FILE, "as it is\n", 0o644);
        machine.file(linux::THEIR_CURRENT_CONFIG, &theirs("/dev/sda"), 0o644);
        let config = first("/dev/sda", "as it is\n");
        is_refused(
            machine,
            &first("/dev/sdb", "as it is\n"),
            "storage.disks /dev/sdb",
        );
        assert_eq!(state().record(machine).unwrap(), Record::default());

        let before = machine.tree();
        let plan = machine.plan(&config).unwrap();
        assert!(plan.steps.is_empty() && plan.actions.is_empty(), "{plan:?}");
        machine.bring(&config).unwrap();
        assert_eq!(machine.tree(), before);
        let record = state().record(machine).unwrap();
        assert_eq!(record.config.as_deref(), Some("rendered-worker-ours"));

        // From then on our own record counts, whatever the other daemon's file says.
        machine.file(linux::THEIR_CURRENT_CONFIG, &theirs("/dev/sdb"), 0o644);
        is_refused(
            machine,
            &first("/dev/sdb", "as it is\n"),
            "storage.disks /dev/sdb",
        );
        machine.bring(&first("/dev/sda", "new\n")).unwrap();
        assert_eq!(machine.text(FILE).as_deref(), Some("new\n"));
    });
}

/// Covers O06.
#[test]
fn what_somebody_says_a_machine_was_provisioned_from_counts_before_its_own_files() {
    every_ready_machine(|machine| {
        machine.file(linux::THEIR_CURRENT_CONFIG, &theirs("/dev/old"), 0o644);
        let state = state();
        let before = machine.tree();
        let said = Provision::read("provision.ign", theirs("/dev/sda").as_bytes()).unwrap();
        {
            let claim = Claim::take(machine, &state).unwrap();
            let wrong = Provision::read("wrong.ign", theirs("/dev/wrong").as_bytes()).unwrap();
            assert!(claim.adopt(&wrong).unwrap());
            // It can be corrected, and is remembered once.
            assert!(claim.adopt(&said).unwrap());
            assert!(!claim.adopt(&said).unwrap());
        }
        assert_eq!(machine.tree(), before);
        is_refused(machine, &first("/dev/old", "x"), "storage.disks /dev/old");
        machine.bring(&first("/dev/sda", "x")).unwrap();

        let claim = Claim::take(machine, &state).unwrap();
        let error = claim.adopt(&said).unwrap_err();
        assert_eq!(error.category(), "AlreadyManaged");
        assert_eq!(
            error.to_string(),
            "this machine has configuration rendered-worker-ours of Evenkeel already, and is compared with that: \
             adopt a machine before its first configuration"
        );
        let disk = Section {
            name: "storage.disks".to_owned(),
            identity: "/dev/old".to_owned(),
        };
        assert!(provision::found(&machine.disk).sections.contains_key(&disk));
    });
}

/// Covers O06.
#[test]
fn a_file_of_the_other_daemon_that_cannot_be_read_stops_nothing_that_needs_no_adoption() {
    every_ready_machine(|machine| {
        machine.file(linux::THEIR_CURRENT_CONFIG, "{\"spec\": ", 0o644);
        machine.folder(linux::THEIR_SERVED_CONFIG);
        machine
            .bring(&Config::default().file(FILE, "ours\n", 0o644))
            .unwrap();
        assert_eq!(machine.text(FILE).as_deref(), Some("ours\n"));
    });
    every_ready_machine(|machine| {
        machine.file(linux::THEIR_CURRENT_CONFIG, "{\"spec\": ", 0o644);
        is_refused(
            machine,
            &first("/dev/sda", "x"),
            "unreadable: /etc/machine-config-daemon/currentconfig",
        );
    });
}
