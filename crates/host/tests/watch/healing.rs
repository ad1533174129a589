//! Drift of a real tree is put back, durably and without a fight.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_host::Result;
use evenkeel_host::disk::{Disk, Host};
use evenkeel_host::execute::{Claim, State};
use evenkeel_host::simulated::{ServiceCall, SimulatedHost};
use evenkeel_host::watch::{Event, Heard, Look, Monitor, Source};
use evenkeel_plan::machine::desired::Contents;
use evenkeel_plan::machine::entry::{Entry, Ids};
use evenkeel_plan::machine::resource::Resource;
use evenkeel_plan::machine::targets::{Part, Target, Targets};
use evenkeel_testbed::promise::kept;
use rustix::fs::{CWD, RenameFlags};

use crate::bed::{Bed, until};

const ONE: &str = "/etc/app/one.conf";
const DEEP: &str = "/opt/a/b/c/deep.conf";

/// Covers M20.
#[test]
fn drift_is_repaired_in_place_and_told_with_what_differed() {
    type Change = fn(&Bed);
    let changes: [(Change, &str); 6] = [
        (
            |bed| fs::write(bed.at(DEEP), "x").unwrap(),
            "contents differ",
        ),
        (
            |bed| fs::set_permissions(bed.at(DEEP), fs::Permissions::from_mode(0o777)).unwrap(),
            "mode is 0777, should be 0644",
        ),
        (|bed| fs::remove_file(bed.at(DEEP)).unwrap(), "missing"),
        (
            |bed| fs::rename(bed.at("/opt/a"), bed.at("/gone")).unwrap(),
            "missing",
        ),
        (
            |bed| {
                symlink("/etc/shadow", bed.at("/opt/link")).unwrap();
                fs::rename(bed.at("/opt/link"), bed.at(DEEP)).unwrap();
            },
            "is a symbolic link, should be a file",
        ),
        (
            |bed| {
                fs::rename(bed.at("/opt/a/b/c"), bed.at("/opt/aside")).unwrap();
            },
            "missing",
        ),
    ];
    let bed = Bed::with(&[ONE, DEEP]);
    let watch = bed.heal();
    for (change, why) in changes {
        change(&bed);
        watch.drifted(DEEP, why);
        match watch.next() {
            Event::Healed { finding, .. } => {
                assert_eq!((&*finding.path, &*finding.why), (DEEP, why));
            }
            other => panic!("{other:?}"),
        }
        assert!(bed.is_right(DEEP), "after {why}");
    }
}

#[test]
fn what_is_healed_is_neither_drift_nor_recovery() {
    let bed = Bed::with(&[ONE]);
    let watch = bed.heal();
    fs::write(bed.at(ONE), "x").unwrap();
    watch.drifted(ONE, "contents differ");
    assert!(matches!(watch.next(), Event::Healed { .. }));
    let told = watch.so_far(&bed);
    assert!(told.is_empty(), "{told:?}");
}

#[test]
fn everything_that_drifted_before_the_start_is_healed() {
    let paths: Vec<String> = (0..50).map(|n| format!("/etc/many/{n}")).collect();
    let names: Vec<&str> = paths.iter().map(String::as_str).collect();
    let bed = Bed::with(&names);
    fs::remove_dir_all(bed.at("/etc")).unwrap();
    let _watch = bed.heal();
    until("all files", || names.iter().all(|path| bed.is_right(path)));
}

#[test]
fn what_cannot_be_healed_is_told_once_and_healed_when_it_can_be() {
    let bed = Bed::with(&[ONE, DEEP]);
    let watch = bed.heal();
    // A folder with somebody's file in it comes in the way, in one instant.
    fs::create_dir(bed.at("/etc/ready")).unwrap();
    fs::write(bed.at("/etc/ready/theirs"), "x").unwrap();
    let exchange = || {
        let (ready, one) = (bed.at("/etc/ready"), bed.at(ONE));
        rustix::fs::renameat_with(CWD, ready, CWD, one, RenameFlags::EXCHANGE).unwrap();
    };
    exchange();
    watch.drifted(ONE, "is a directory, should be a file");
    // Several tries of ours, of which one is told.
    match watch.next() {
        Event::HealFailed { finding, .. } => assert_eq!(finding.path, ONE),
        other => panic!("{other:?}"),
    }
    let told = watch.events.recv_timeout(Duration::from_secs(1));
    assert!(told.is_err(), "{told:?}");
    assert!(bed.at(ONE).join("theirs").exists());
    fs::rename(bed.at(ONE), bed.at("/etc/away")).unwrap();
    until("the file to be back", || bed.is_right(ONE));
    // Meanwhile the others are looked after.
    fs::write(bed.at(DEEP), "x").unwrap();
    until("the other file to be back", || bed.is_right(DEEP));
}

/// A source that says nothing but that everything is to be looked at, once.
struct Once(bool);

impl Source for Once {
    fn next(&mut self, timeout: Duration) -> Result<Heard> {
        let first = std::mem::take(&mut self.0);
        if !first {
            std::thread::sleep(timeout);
        }
        Ok(Heard::Looks(
            first.then_some(Look::Everything).into_iter().collect(),
        ))
    }
}

/// A machine that keeps one file.
fn simulated(place: &str, resource: Resource) -> (SimulatedHost, State, Targets) {
    let (host, state) = (SimulatedHost::new(), State::at("/var/lib/evenkeel"));
    let mut contents = Contents::default();
    let target = Target {
        resource,
        part: Part::Whole,
        entry: Entry::File {
            hash: contents.keep(b"[Service]".to_vec()),
            mode: 0o644,
            owner: Ids::default(),
        },
    };
    let targets = Targets::from([(place.to_owned(), target)]);
    let claim = Claim::take(&host, &state).unwrap();
    claim.keep_contents(&targets, &contents).unwrap();
    drop(claim);
    (host, state, targets)
}

#[test]
fn what_is_told_is_what_was_put_back_also_if_somebody_went_on_in_between() {
    let place = "/one.conf";
    let (host, state, targets) = simulated(place, Resource::File(place.to_owned()));
    let mut monitor = Monitor::healing(&host, &state, targets);
    let mut told = Vec::new();
    let mut tell = |event: Event| {
        if matches!(event, Event::Drifted { .. }) {
            let disk = host.disk();
            disk.create(place, b"theirs", 0o644, Ids::default())
                .unwrap();
        }
        told.push(event);
    };
    monitor
        .watch_once(&mut Once(true), Duration::MAX, &mut tell)
        .unwrap();
    let [
        Event::Drifted { finding: seen, .. },
        Event::Healed { finding: stood, .. },
    ] = &told[..]
    else {
        panic!("{told:?}");
    };
    assert_eq!(seen.why, "missing");
    assert!(stood.why.starts_with("contents differ"), "{stood:?}");
}

#[test]
fn a_file_that_was_put_back_is_not_healed_before_those_who_use_it_know() {
    let place = "/etc/systemd/system/app.service";
    let unit = Resource::Unit("app.service".to_owned());
    let (host, state, targets) = simulated(place, unit);
    host.services().refuse_reload_units();
    let mut monitor = Monitor::healing(&host, &state, targets);
    let (mut source, mut told) = (Once(true), Vec::new());
    let mut until = |is_over: &dyn Fn(&Event) -> bool| {
        let start = Instant::now();
        while !told.last().is_some_and(is_over) {
            assert!(start.elapsed() < Duration::from_secs(20), "{told:?}");
            let tell = &mut |event| told.push(event);
            monitor
                .watch_once(&mut source, Duration::MAX, tell)
                .unwrap();
        }
        std::mem::take(&mut told)
    };
    until(&|event| matches!(event, Event::HealFailed { .. }));
    assert!(host.tree().contains_key(place), "it was not put back");
    host.services().accept_all();
    let told = until(&|event| matches!(event, Event::Healed { .. } | Event::Recovered { .. }));
    assert!(matches!(told[..], [Event::Healed { .. }]), "{told:?}");
    let units = host.services().told();
    assert_eq!(units, [ServiceCall::ReloadUnits, ServiceCall::ReloadUnits]);
}

struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_path_that_is_fought_over_is_healed_ever_more_rarely_and_in_the_end() {
    let bed = Bed::with(&[ONE]);
    let watch = bed.heal();
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        // Also if an assertion fails: the scope waits for its thread.
        let _over = OnDrop(&over);
        threads.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if bed.is_right(ONE) {
                    let _ = fs::write(bed.at(ONE), "theirs");
                }
                std::thread::yield_now();
            }
        });
        let (mut start, mut waits) = (Instant::now(), Vec::new());
        // When it drifted last, the longest pause before it drifted again, and when it did.
        let (mut last, mut pause, mut again) = (start, Duration::ZERO, start);
        while waits.len() < 4 {
            match watch.next() {
                Event::Fought { finding, wait, .. } => {
                    assert_eq!(finding.path, ONE);
                    if waits.last().is_some_and(|last| *last >= wait) {
                        // Counted anew, which it may be only if a slow disk held up both: two seconds, by
                        // whoever counts.
                        assert!(
                            pause > Duration::from_secs(1),
                            "{waits:?} {wait:?} {pause:?}"
                        );
                        waits.clear();
                        start = again;
                    }
                    waits.push(wait);
                    pause = Duration::ZERO;
                }
                Event::Drifted { .. } => {
                    let now = Instant::now();
                    if now - last > pause {
                        (pause, again) = (now - last, now);
                    }
                    last = now;
                }
                Event::Healed { .. } | Event::Recovered { .. } => {}
                failed @ Event::HealFailed { .. } => panic!("{failed:?}"),
            }
        }
        assert!(waits.is_sorted_by(|one, next| one < next), "{waits:?}");
        // 64 times each of the waits, but for the last, which has just begun.
        let waited: Duration = waits[..3].iter().map(|wait| *wait * 64).sum();
        assert!(start.elapsed() > waited, "{:?}", start.elapsed());
    });
    until("the end of the fight", || bed.is_right(ONE));
}

#[test]
fn stopping_ends_it_at_once_though_much_is_left_to_heal() {
    let paths: Vec<String> = (0..2_000).map(|n| format!("/etc/many/{n}")).collect();
    let names: Vec<&str> = paths.iter().map(String::as_str).collect();
    let is_at_once = |took: &Duration| *took < Duration::from_secs(1);
    let stopped = kept("stopping ends it at once", is_at_once, || {
        let bed = Bed::with(&names);
        fs::remove_dir_all(bed.at("/etc")).unwrap();
        let mut watch = bed.heal();
        while !matches!(watch.next(), Event::Healed { .. }) {}
        let start = Instant::now();
        watch.stopper.stop();
        watch.thread.take().unwrap().join().unwrap().unwrap();
        let took = start.elapsed();
        assert!(
            !names.iter().all(|path| bed.is_right(path)),
            "it was too quick to tell"
        );
        Ok(took)
    });
    stopped.unwrap();
}
