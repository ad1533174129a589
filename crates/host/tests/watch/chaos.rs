//! Whatever happens to a tree, what the monitor holds to be wrong is what is wrong.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

use evenkeel_host::verify::verify;
use evenkeel_host::watch::Monitor;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::bed::Bed;

/// Links of the tree lead elsewhere for the test itself than for whoever stays below the root. With
/// these names they lead nowhere.
const FILES: &[&str] = &[
    "/chaos-a/b/f",
    "/chaos-a/g",
    "/chaos-c/d/f",
    "/chaos-l/f",
    "/chaos-l/b/g",
    "/chaos-a/b/c/d/e",
];
const FOLDERS: &[&str] = &[
    "/chaos-a",
    "/chaos-a/b",
    "/chaos-a/b/c",
    "/chaos-c",
    "/chaos-c/d",
    "/chaos-l",
    "/chaos-x",
    "/chaos-x/y",
];
const LINKS: &[&str] = &[
    "/chaos-a",
    "chaos-c",
    "../chaos-c",
    "/chaos-x/y",
    "/chaos-l",
    "../../chaos-a/b",
    "/chaos-c/d",
    "/chaos-nowhere",
];

/// A sequence that is the same each time, so that a failure can be looked at.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.roll(from.len())]
    }
}

/// One thing somebody may do. Most of them fail now and then, as they do in life.
fn happen(bed: &Bed, dice: &mut Dice) -> String {
    let (one, other) = (dice.pick(FOLDERS), dice.pick(FOLDERS));
    let file = dice.pick(FILES);
    match dice.roll(9) {
        0 => {
            let done = fs::create_dir_all(bed.at(one)).is_ok();
            format!("make {one}: {done}")
        }
        1 => {
            let done =
                fs::remove_dir_all(bed.at(one)).is_ok() || fs::remove_file(bed.at(one)).is_ok();
            format!("remove {one}: {done}")
        }
        2 => {
            let done = fs::rename(bed.at(one), bed.at(other)).is_ok();
            format!("rename {one} to {other}: {done}")
        }
        3 => {
            let (from, to) = (bed.at(one), bed.at(other));
            let done = renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE).is_ok();
            format!("exchange {one} and {other}: {done}")
        }
        4 => {
            let target = dice.pick(LINKS);
            let done = symlink(target, bed.at(one)).is_ok();
            format!("link {one} to {target}: {done}")
        }
        5 => {
            let done = fs::write(bed.at(file), "other").is_ok();
            format!("spoil {file}: {done}")
        }
        6 => {
            let mode = fs::Permissions::from_mode(0o600);
            let done = fs::symlink_metadata(bed.at(file)).is_ok_and(|meta| meta.is_file())
                && fs::set_permissions(bed.at(file), mode).is_ok();
            format!("chmod {file}: {done}")
        }
        _ => {
            let place = bed.at(file);
            let done = place
                .parent()
                .is_some_and(|folder| fs::create_dir_all(folder).is_ok())
                && fs::write(&place, file).is_ok()
                && fs::set_permissions(&place, fs::Permissions::from_mode(0o644)).is_ok();
            format!("make {file}: {done}")
        }
    }
}

#[test]
fn after_any_sequence_of_changes_exactly_what_is_wrong_is_known_to_be_wrong() {
    for seed in 0..40 {
        let bed = Bed::with(FILES);
        let host = bed.host();
        let paths = bed.targets.keys().map(String::as_str);
        let mut watcher = host.watch(paths).unwrap();
        let mut monitor = Monitor::reporting(&host, bed.targets.clone());
        let mut dice = Dice(seed);
        let mut story = Vec::new();
        for _ in 0..50 {
            for _ in 0..=dice.roll(4) {
                story.push(happen(&bed, &mut dice));
            }
            // What the kernel has to say is there when a call returns.
            let mut turn = |monitor: &mut Monitor<_>| {
                let wait = Duration::from_millis(1);
                monitor.watch_once(&mut watcher, wait, &mut |_| {}).unwrap();
            };
            turn(&mut monitor);
            while !monitor.is_at_rest() {
                turn(&mut monitor);
            }
            let wrong = verify(&host, &bed.targets, &bed.contents);
            let known: Vec<_> = monitor.drifted().cloned().collect();
            assert_eq!(known, wrong, "seed {seed}, after {story:#?}");
        }
    }
}
