//! What the engine does with units, from what is desired to files and links and back.

use evenkeel_api::machine::machine_config::Unit;
use evenkeel_host::Error;
use evenkeel_host::disk::Disk;
use evenkeel_plan::machine::entry::Entry;

use crate::configs::{Config, UNITS, WANTS, drop_in, enabled, live_on, our_unit};
use crate::machine::{every_ready_machine, state};

/// Covers M08.
#[test]
fn a_unit_that_was_disabled_stays_disabled_and_is_enabled_again_when_it_is_no_longer_ours() {
    every_ready_machine(|machine| {
        live_on(machine);
        let before = machine.tree();
        let path = format!("{WANTS}/started.service");
        let disabled = Config::default().unit("started.service", enabled(false));
        for _ in 0..3 {
            machine.bring(&disabled).unwrap();
            assert_eq!(machine.disk.look(&path).unwrap(), Entry::Absent);
        }
        machine.bring(&Config::default()).unwrap();
        assert_eq!(machine.tree(), before);
        machine.bring(&disabled).unwrap();
        machine
            .bring(&Config::default().unit("started.service", enabled(true)))
            .unwrap();
        assert_eq!(machine.tree(), before);
    });
}

/// Covers M08.
#[test]
fn a_unit_that_only_we_brought_is_not_taken_for_one_of_the_machine() {
    every_ready_machine(|machine| {
        live_on(machine);
        machine
            .bring(&Config::default().unit("ours.service", our_unit("/bin/true")))
            .unwrap();
        let before = machine.tree();
        let without = Config::default().unit("ours.service", enabled(true));
        let error = machine.bring(&without).unwrap_err();
        assert!(matches!(error, Error::Refused(_)), "{error:?}");
        assert_eq!(machine.tree(), before);
    });
}

/// Covers M08.
#[test]
fn the_administrators_unit_is_enabled_also_while_ours_stands_in_its_place() {
    every_ready_machine(|machine| {
        live_on(machine);
        let theirs = Config::default().unit("admin.service", enabled(true));
        machine.bring(&theirs).unwrap();
        let enabled_theirs = machine.tree();
        machine
            .bring(&Config::default().unit("admin.service", our_unit("/bin/true")))
            .unwrap();
        machine.bring(&theirs).unwrap();
        assert_eq!(machine.tree(), enabled_theirs);
        let both = Unit {
            masked: true,
            ..enabled(true)
        };
        let both = Config::default().unit("admin.service", both);
        machine.bring(&both).unwrap();
        assert_eq!(machine.plan(&both).unwrap().steps, []);
    });
}

/// Covers M08.
#[test]
fn a_unit_follows_the_presets_and_its_drop_ins_come_and_go() {
    every_ready_machine(|machine| {
        live_on(machine);
        let before = machine.tree();
        let preset = Unit {
            enabled: None,
            ..our_unit("/bin/true")
        };
        let config = Config::default()
            .unit("quiet.service", preset.clone())
            .unit("loud.service", preset)
            .unit("vendor.service", drop_in("a.conf", "[Service]\n"));
        machine.bring(&config).unwrap();
        let linked = |name: &str| machine.disk.look(&format!("{WANTS}/{name}")).unwrap();
        assert_eq!(linked("quiet.service"), Entry::Absent);
        assert_eq!(
            linked("loud.service"),
            Entry::Link {
                target: format!("{UNITS}/loud.service")
            }
        );
        assert_eq!(linked("vendor.service"), Entry::Absent);
        machine.bring(&Config::default()).unwrap();
        assert_eq!(machine.tree(), before);
    });
}

/// Covers M08.
#[test]
fn a_folder_that_we_made_for_a_link_goes_when_the_unit_is_disabled() {
    every_ready_machine(|machine| {
        let vendor = "/usr/lib/systemd/system/vendor.service";
        machine.file(vendor, "[Install]\nWantedBy=rare.target\n", 0o644);
        machine.folder(UNITS);
        let before = machine.tree();
        for enable in [true, false] {
            let config = Config::default().unit("vendor.service", enabled(enable));
            machine.bring(&config).unwrap();
            assert_eq!(machine.tree() == before, !enable);
        }
        machine.bring(&Config::default()).unwrap();
        assert_eq!(machine.tree(), before);
        assert!(state().record(machine).unwrap().owned.is_empty());
    });
}
