//! What the engine does on every machine, from a configuration to the paths and back.

use std::collections::BTreeSet;

use evenkeel_host::Error;
use evenkeel_host::disk::Disk;
use evenkeel_host::execute::Claim;
use evenkeel_host::simulated::ServiceCall;
use evenkeel_plan::machine::entry::{Entry, Hash, Ids};

use crate::configs::{Config, POLICY, WANTED, enabled, live_on, masked, our_unit};
use crate::machine::{Machine, STATE, Tree, every_ready_machine, state};

/// One of everything that a configuration can do to a machine.
fn one_of_everything() -> Config {
    let mut started = enabled(false);
    started.drop_ins = [("10-ours.conf".to_owned(), "[Service]\nNice=5\n".to_owned())].into();
    Config::default()
        .file("/etc/theirs.conf", "ours\n", 0o600)
        .file("/etc/alias.conf", "no link any more\n", 0o644)
        .file("/opt/tool/bin/run", "#!/bin/sh\n", 0o4755)
        .file("/var/link/data", "behind a link\n", 0o644)
        .file(POLICY, "{}\n", 0o644)
        .unit("ours.service", our_unit("/bin/true"))
        .unit("vendor.service", enabled(true))
        .unit("started.service", started)
        .unit("admin.service", masked())
        .keys(&["ssh-ed25519 AAAA one"])
}

fn file(contents: &str, mode: u32) -> Entry {
    Entry::File {
        hash: Hash::of(contents.as_bytes()),
        mode,
        owner: Ids::default(),
    }
}

fn link(target: &str) -> Entry {
    Entry::Link {
        target: target.to_owned(),
    }
}

fn at(tree: &Tree, path: &str) -> Entry {
    tree.get(path).cloned().unwrap_or(Entry::Absent)
}

/// Everything that a program could notice having been touched, where there is such a thing.
#[cfg(target_os = "linux")]
fn stamps(machine: &Machine) -> BTreeSet<String> {
    use std::os::unix::fs::MetadataExt;
    let mut stamps = BTreeSet::new();
    let mut ahead: Vec<_> = machine.root().into_iter().map(ToOwned::to_owned).collect();
    while let Some(path) = ahead.pop() {
        let meta = std::fs::symlink_metadata(&path).unwrap();
        stamps.insert(format!(
            "{} inode {} changed {}.{} modified {}.{}",
            path.display(),
            meta.ino(),
            meta.ctime(),
            meta.ctime_nsec(),
            meta.mtime(),
            meta.mtime_nsec()
        ));
        if meta.is_dir() {
            ahead.extend(
                std::fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
    stamps
}

#[cfg(not(target_os = "linux"))]
fn stamps(_: &Machine) -> BTreeSet<String> {
    BTreeSet::new()
}

/// Covers M07, M08.
#[test]
fn apply_brings_everything_that_is_desired_and_nothing_else() {
    every_ready_machine(|machine| {
        live_on(machine);
        let before = machine.tree();
        machine.bring(&one_of_everything()).unwrap();
        let after = machine.tree();
        let ours = format!("[Service]\nExecStart=/bin/true\n{WANTED}");
        let keys = Entry::File {
            hash: Hash::of(b"ssh-ed25519 AAAA one\n"),
            mode: 0o600,
            owner: machine.disk.stand_in().map_or(Ids::default(), |id| Ids {
                user: id,
                group: id,
            }),
        };
        for (path, entry) in [
            ("/etc/theirs.conf", file("ours\n", 0o600)),
            ("/etc/alias.conf", file("no link any more\n", 0o644)),
            ("/opt/tool/bin/run", file("#!/bin/sh\n", 0o4755)),
            ("/var/real/data", file("behind a link\n", 0o644)),
            (POLICY, file("{}\n", 0o644)),
            ("/etc/systemd/system/ours.service", file(&ours, 0o644)),
            (
                "/etc/systemd/system/multi-user.target.wants/ours.service",
                link("/etc/systemd/system/ours.service"),
            ),
            (
                "/etc/systemd/system/multi-user.target.wants/vendor.service",
                link("/usr/lib/systemd/system/vendor.service"),
            ),
            (
                "/etc/systemd/system/multi-user.target.wants/started.service",
                Entry::Absent,
            ),
            (
                "/etc/systemd/system/started.service.d/10-ours.conf",
                file("[Service]\nNice=5\n", 0o644),
            ),
            ("/etc/systemd/system/admin.service", link("/dev/null")),
            ("/home/core/.ssh/authorized_keys", keys),
        ] {
            assert_eq!(at(&after, path), entry, "{path}");
        }
        let touched: BTreeSet<&str> = before
            .iter()
            .chain(&after)
            .filter(|(path, _)| before.get(*path) != after.get(*path))
            .map(|(path, _)| path.as_str())
            .collect();
        let expected = BTreeSet::from([
            "/etc/alias.conf",
            "/etc/containers",
            POLICY,
            "/etc/systemd/system/admin.service",
            "/etc/systemd/system/multi-user.target.wants/ours.service",
            "/etc/systemd/system/multi-user.target.wants/started.service",
            "/etc/systemd/system/multi-user.target.wants/vendor.service",
            "/etc/systemd/system/ours.service",
            "/etc/systemd/system/started.service.d",
            "/etc/systemd/system/started.service.d/10-ours.conf",
            "/etc/theirs.conf",
            "/home",
            "/home/core",
            "/home/core/.ssh",
            "/home/core/.ssh/authorized_keys",
            "/opt",
            "/opt/tool",
            "/opt/tool/bin",
            "/opt/tool/bin/run",
            "/var/real/data",
        ]);
        assert_eq!(touched, expected);
        assert_eq!(machine.services.told(), [ServiceCall::ReloadUnits]);
    });
}

/// Covers M07, M08.
#[test]
fn apply_twice_changes_nothing_the_second_time_not_even_an_mtime() {
    every_ready_machine(|machine| {
        live_on(machine);
        machine.bring(&one_of_everything()).unwrap();
        let (tree, before, told) = (machine.tree(), stamps(machine), machine.services.told());
        let plan = machine.plan(&one_of_everything()).unwrap();
        assert_eq!(plan.steps, []);
        machine.bring(&one_of_everything()).unwrap();
        assert_eq!(machine.tree(), tree);
        assert_eq!(stamps(machine), before);
        assert_eq!(machine.services.told(), told);
    });
}

/// Covers M07, M08.
#[test]
fn what_is_no_longer_desired_goes_and_what_it_replaced_comes_back() {
    every_ready_machine(|machine| {
        live_on(machine);
        let before = machine.tree();
        machine.bring(&one_of_everything()).unwrap();
        assert_ne!(machine.tree(), before);
        machine
            .bring(&Config::default().file("/etc/theirs.conf", "second\n", 0o644))
            .unwrap();
        machine.bring(&Config::default()).unwrap();
        assert_eq!(machine.tree(), before);
    });
}

/// Covers M07.
#[test]
fn a_strangers_file_in_a_folder_that_we_made_keeps_the_folder() {
    every_ready_machine(|machine| {
        machine
            .bring(&Config::default().file("/opt/ours/file", "x", 0o644))
            .unwrap();
        machine.file("/opt/ours/theirs", "theirs", 0o644);
        machine.bring(&Config::default()).unwrap();
        assert_eq!(machine.text("/opt/ours/theirs").as_deref(), Some("theirs"));
        assert_eq!(machine.disk.look("/opt/ours/file").unwrap(), Entry::Absent);
        assert_eq!(machine.plan(&Config::default()).unwrap().steps, []);
    });
}

/// Covers M07.
#[test]
fn what_already_stands_right_is_adopted_untouched_and_never_removed() {
    every_ready_machine(|machine| {
        machine.file("/etc/right", "right", 0o640);
        let before = machine.tree();
        let config = Config::default().file("/etc/right", "right", 0o640);
        let plan = machine.plan(&config).unwrap();
        assert_eq!((plan.steps, plan.actions), (vec![], vec![]));
        machine.bring(&config).unwrap();
        assert!(
            state()
                .record(machine)
                .unwrap()
                .owned
                .contains_key("/etc/right")
        );
        machine.file("/etc/right", "drifted", 0o640);
        machine.bring(&config).unwrap();
        assert_eq!(machine.tree().get("/etc/right"), before.get("/etc/right"));
        machine.bring(&Config::default()).unwrap();
        assert_eq!(machine.tree().get("/etc/right"), before.get("/etc/right"));
    });
}

/// Covers M07, M08, M09.
#[test]
fn when_a_service_refuses_the_new_configuration_everything_is_put_back() {
    every_ready_machine(|machine| {
        live_on(machine);
        machine.folder("/etc/containers");
        machine.file(POLICY, "old", 0o600);
        // Only a change that needs no reboot reloads anything: the rest stands already.
        machine.bring(&one_of_everything()).unwrap();
        let before = machine.tree();
        let record = state().record(machine).unwrap();
        machine.services.refuse("crio.service");
        let new = one_of_everything().file(POLICY, "refused", 0o644);
        let error = machine.bring(&new).unwrap_err();
        assert!(matches!(&error, Error::Undone { step, .. } if step == "reload crio.service"));
        assert_eq!(machine.tree(), before);
        assert_eq!(state().record(machine).unwrap(), record);
        assert_eq!(state().unfinished(machine).unwrap(), None);
        machine.services.accept_all();
        machine.bring(&new).unwrap();
        assert_eq!(machine.text(POLICY).as_deref(), Some("refused"));
    });
}

/// Covers M07, M08, M09.
#[test]
fn when_units_cannot_be_read_again_everything_is_put_back() {
    every_ready_machine(|machine| {
        live_on(machine);
        let before = machine.tree();
        machine.services.refuse_reload_units();
        for config in [
            one_of_everything(),
            Config::default().unit("admin.service", masked()),
        ] {
            let error = machine.bring(&config).unwrap_err();
            assert!(matches!(error, Error::Undone { .. }), "{error:?}");
            assert_eq!(machine.tree(), before);
            assert_eq!(state().unfinished(machine).unwrap(), None);
        }
        machine.services.accept_all();
        machine.bring(&one_of_everything()).unwrap();
        let applied = machine.tree();
        machine.services.refuse_reload_units();
        assert!(machine.bring(&Config::default()).is_err());
        assert_eq!(machine.tree(), applied);
    });
}

/// Covers M07.
#[test]
fn a_folder_of_ours_becomes_a_file_and_a_folder_again() {
    every_ready_machine(|machine| {
        machine.folder("/etc");
        let folder =
            Config::default()
                .file("/etc/app/a", "a", 0o644)
                .file("/etc/app/b/c", "c", 0o644);
        let one_file = Config::default().file("/etc/app", "all in one", 0o600);
        let empty = machine.tree();
        machine.bring(&folder).unwrap();
        let as_folder = machine.tree();
        machine.bring(&one_file).unwrap();
        assert_eq!(
            machine.disk.look("/etc/app").unwrap(),
            file("all in one", 0o600)
        );
        assert_eq!(machine.plan(&one_file).unwrap().steps, []);
        machine.bring(&folder).unwrap();
        assert_eq!(machine.tree(), as_folder);
        assert_eq!(machine.plan(&folder).unwrap().steps, []);
        machine.bring(&one_file).unwrap();
        machine.bring(&Config::default()).unwrap();
        assert_eq!(machine.tree(), empty);
    });
}

/// Covers M07, M09.
#[test]
fn a_folder_with_a_strangers_file_in_it_does_not_become_a_file() {
    every_ready_machine(|machine| {
        let folder = Config::default().file("/etc/app/a", "a", 0o644);
        machine.bring(&folder).unwrap();
        machine.file("/etc/app/theirs", "theirs", 0o644);
        let before = machine.tree();
        let error = machine
            .bring(&Config::default().file("/etc/app", "all in one", 0o600))
            .unwrap_err();
        assert!(matches!(error, Error::Undone { .. }), "{error:?}");
        assert_eq!(machine.tree(), before);
    });
}

/// Covers M07.
#[test]
fn a_strangers_folder_is_never_replaced() {
    every_ready_machine(|machine| {
        machine.folder("/etc/app");
        let before = machine.tree();
        let error = machine
            .bring(
                &Config::default()
                    .file("/etc/app", "x", 0o600)
                    .file("/etc/b", "x", 0o600),
            )
            .unwrap_err();
        assert!(
            matches!(&error, Error::Refused(refused) if refused.0[0].message.contains("/etc/app"))
        );
        assert_eq!(machine.tree(), before);
    });
}

/// Covers M07.
#[test]
fn a_path_that_leaves_the_root_is_refused_before_anything_is_touched() {
    every_ready_machine(|machine| {
        machine.folder("/etc");
        machine.link("/etc/out", "/../../../proc/self/root/tmp");
        let before = machine.tree();
        let config =
            Config::default()
                .file("/etc/a", "first", 0o644)
                .file("/etc/out/file", "x", 0o644);
        let error = machine.bring(&config).unwrap_err();
        let Error::Refused(refused) = &error else {
            panic!("{error:?}");
        };
        assert!(
            refused.0[0].message.contains("/etc/out is a symbolic link"),
            "{refused}"
        );
        assert_eq!(machine.tree(), before);
        assert_eq!(state().unfinished(machine).unwrap(), None);
    });
}

/// Covers M07.
#[test]
fn a_file_whose_folder_somebody_removed_can_still_be_pruned() {
    every_ready_machine(|machine| {
        machine.file("/srv/app/conf", "theirs", 0o644);
        let config = Config::default().file("/srv/app/conf", "ours", 0o644);
        machine.bring(&config).unwrap();
        machine.disk.remove("/srv/app/conf").unwrap();
        machine.disk.remove_folder("/srv/app").unwrap();
        machine.bring(&Config::default()).unwrap();
        assert_eq!(machine.disk.look("/srv/app").unwrap(), Entry::Absent);
        assert!(state().record(machine).unwrap().owned.is_empty());
    });
}

#[test]
fn two_at_once_cannot_change_a_machine() {
    every_ready_machine(|machine| {
        let state = state();
        let claim = Claim::take(machine, &state).unwrap();
        assert!(matches!(
            Claim::take(machine, &state),
            Err(Error::Busy { .. })
        ));
        drop(claim);
        assert!(Claim::take(machine, &state).is_ok());
    });
}

/// Covers X05.
#[test]
fn the_journal_of_a_newer_program_is_left_alone() {
    every_ready_machine(|machine| {
        machine
            .bring(&Config::default().file("/etc/a", "a", 0o644))
            .unwrap();
        let before = machine.tree();
        let journal = format!("{STATE}/journal");
        machine.file(&journal, r#"{"version": 2, "wonders": true}"#, 0o600);
        let error = machine.bring(&Config::default()).unwrap_err();
        assert!(
            matches!(&error, Error::Journal { path, .. } if *path == journal),
            "{error:?}"
        );
        assert_eq!(machine.tree(), before);
        assert!(machine.text(&journal).is_some());
    });
}

/// Covers M20.
#[test]
fn healing_puts_one_path_back_with_the_folders_above_it() {
    every_ready_machine(|machine| {
        let config = Config::default().file("/opt/ours/deep/file", "x", 0o640);
        machine.bring(&config).unwrap();
        let before = machine.tree();
        let state = state();
        let claim = Claim::take(machine, &state).unwrap();
        let owned = claim.record().unwrap().owned;
        machine.disk.remove("/opt/ours/deep/file").unwrap();
        for folder in ["/opt/ours/deep", "/opt/ours"] {
            machine.disk.remove_folder(folder).unwrap();
        }
        claim
            .heal(
                "/opt/ours/deep/file",
                &owned["/opt/ours/deep/file"].resource,
                &owned["/opt/ours/deep/file"].entry,
            )
            .unwrap();
        assert_eq!(machine.tree(), before);
    });
}
