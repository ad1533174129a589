//! Drift of a real tree is noticed from the kernel's notifications, and none of it is lost.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, Instant, SystemTime};

use evenkeel_host::disk::{Disk, Host};
use evenkeel_host::linux::Watcher;
use evenkeel_host::verify::verify;
use evenkeel_host::watch::{Event, Heard, Look, Source};
use evenkeel_plan::machine::desired::Contents;
use evenkeel_plan::machine::entry::Hash;
use evenkeel_testbed::promise::kept;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::bed::Bed;

const ONE: &str = "/etc/app/one.conf";
const TWO: &str = "/etc/app/two.conf";
const DEEP: &str = "/opt/a/b/c/deep.conf";

fn looks(watcher: &mut Watcher) -> Vec<Look> {
    match watcher.next(crate::bed::SOON).unwrap() {
        Heard::Looks(looks) => looks,
        Heard::Stopped => panic!("stopped"),
    }
}

/// The next hints that say anything.
fn news(watcher: &mut Watcher) -> Vec<Look> {
    let start = Instant::now();
    loop {
        let heard = looks(watcher);
        if !heard.is_empty() {
            return heard;
        }
        assert!(start.elapsed() < crate::bed::SOON, "nothing was heard");
    }
}

#[test]
fn every_way_to_change_a_file_is_found() {
    type Change = fn(&Bed);
    let changes: [(&str, Change, &str); 10] = [
        (
            "written",
            |bed| fs::write(bed.at(ONE), "x").unwrap(),
            "contents differ",
        ),
        (
            "appended to by somebody who keeps it open",
            |bed| {
                use std::io::Write;
                let mut file = fs::File::options().append(true).open(bed.at(ONE)).unwrap();
                file.write_all(b"x").unwrap();
                std::mem::forget(file);
            },
            "contents differ",
        ),
        ("truncated", |bed| truncate(&bed.at(ONE)), "contents differ"),
        (
            "renamed over",
            |bed| {
                fs::write(bed.at("/etc/app/new"), "x").unwrap();
                fs::rename(bed.at("/etc/app/new"), bed.at(ONE)).unwrap();
            },
            "contents differ",
        ),
        (
            "removed",
            |bed| fs::remove_file(bed.at(ONE)).unwrap(),
            "missing",
        ),
        (
            "renamed away",
            |bed| fs::rename(bed.at(ONE), bed.at("/gone")).unwrap(),
            "missing",
        ),
        (
            "its mode changed",
            |bed| {
                fs::set_permissions(bed.at(ONE), fs::Permissions::from_mode(0o600)).unwrap();
            },
            "mode is 0600, should be 0644",
        ),
        (
            "replaced by a link",
            |bed| {
                symlink("/dev/null", bed.at("/link")).unwrap();
                fs::rename(bed.at("/link"), bed.at(ONE)).unwrap();
            },
            "is a symbolic link, should be a file",
        ),
        (
            "replaced by a folder",
            |bed| {
                fs::create_dir(bed.at("/folder")).unwrap();
                let (folder, one) = (bed.at("/folder"), bed.at(ONE));
                renameat_with(CWD, folder, CWD, one, RenameFlags::EXCHANGE).unwrap();
            },
            "is a directory, should be a file",
        ),
        (
            "its folder renamed away",
            |bed| fs::rename(bed.at("/etc"), bed.at("/cte")).unwrap(),
            "missing",
        ),
    ];
    for (what, change, why) in changes {
        println!("{what}");
        let bed = Bed::with(&[ONE]);
        let watch = bed.report();
        change(&bed);
        watch.drifted(ONE, why);
    }
}

fn truncate(path: &std::path::Path) {
    // Without the close of a writer, as `truncate(2)` does it.
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len(0).unwrap();
    std::mem::forget(file);
}

#[test]
fn what_drifted_before_the_watch_is_found_at_its_start() {
    let bed = Bed::with(&[ONE, TWO]);
    bed.put(TWO, "x");
    bed.report().drifted(TWO, "contents differ");
}

#[test]
fn a_file_that_did_not_exist_at_start_is_followed_from_its_first_moment() {
    let mut bed = Bed::with(&[ONE]);
    bed.want(DEEP);
    let watch = bed.report();
    watch.drifted(DEEP, "missing");
    bed.make(DEEP);
    loop {
        match watch.next() {
            Event::Recovered { finding } if finding.path == DEEP => break,
            // It may be seen half made.
            Event::Drifted {
                finding,
                again: true,
                ..
            } if finding.path == DEEP => {}
            other => panic!("{other:?}"),
        }
    }
    bed.put(DEEP, "x");
    watch.drifted(DEEP, "contents differ");
}

#[test]
fn a_folder_that_is_replaced_is_watched_in_its_new_place() {
    let bed = Bed::with(&[ONE, DEEP]);
    let watch = bed.report();
    // Ready before it appears, so that nothing but the appearance is announced.
    fs::create_dir_all(bed.at("/stage/b/c")).unwrap();
    bed.put("/stage/b/c/deep.conf", "other");
    fs::rename(bed.at("/opt/a"), bed.at("/old")).unwrap();
    watch.drifted(DEEP, "missing");
    fs::rename(bed.at("/stage"), bed.at("/opt/a")).unwrap();
    watch.drifted(DEEP, "contents differ");
    // What happens in the old one is nobody's business now.
    bed.put("/old/b/c/deep.conf", "whatever");
    bed.make(DEEP);
    watch.recovered(DEEP);
    bed.put(DEEP, "x");
    watch.drifted(DEEP, "contents differ");
}

#[test]
fn a_folder_that_is_removed_and_made_again_is_watched_again() {
    let bed = Bed::with(&[ONE, DEEP]);
    let watch = bed.report();
    for _ in 0..20 {
        fs::remove_dir_all(bed.at("/opt")).unwrap();
        bed.make(DEEP);
    }
    // In between anything may have been seen; in the end it is right, and noticed if it is not.
    for event in watch.so_far(&bed) {
        assert!(
            matches!(&event, Event::Drifted { finding, .. } | Event::Recovered { finding } if finding.path == DEEP),
            "{event:?}"
        );
    }
    bed.put(DEEP, "x");
    loop {
        match watch.next() {
            Event::Drifted { finding, .. } if finding.why == "contents differ" => break,
            Event::Recovered { finding } | Event::Drifted { finding, .. }
                if finding.path == DEEP => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_folder_behind_links_is_watched_and_so_is_every_link_on_the_way() {
    let bed = Bed::with(&[]);
    // /etc/app -> /data/current, /data/current -> ../store/v1
    fs::create_dir_all(bed.at("/etc")).unwrap();
    fs::create_dir_all(bed.at("/data")).unwrap();
    for version in ["v1", "v2"] {
        bed.put(&format!("/store/{version}/one.conf"), ONE);
    }
    symlink("/data/current", bed.at("/etc/app")).unwrap();
    symlink("../store/v1", bed.at("/data/current")).unwrap();
    let mut bed = bed;
    bed.want(ONE);
    let watch = bed.report();
    bed.put("/store/v1/one.conf", "x");
    watch.drifted(ONE, "contents differ");

    // The second link leads elsewhere, in one instant.
    symlink("../store/v2", bed.at("/data/next")).unwrap();
    fs::rename(bed.at("/data/next"), bed.at("/data/current")).unwrap();
    watch.recovered(ONE);
    bed.put("/store/v2/one.conf", "x");
    watch.drifted(ONE, "contents differ");

    // A folder in the middle of the way goes, and comes back with other contents.
    fs::rename(bed.at("/store"), bed.at("/away")).unwrap();
    watch.drifted(ONE, "missing");
    bed.put("/away/v2/one.conf", ONE);
    fs::rename(bed.at("/away"), bed.at("/store")).unwrap();
    watch.recovered(ONE);

    // The first link becomes a folder of its own.
    fs::remove_file(bed.at("/etc/app")).unwrap();
    watch.drifted(ONE, "missing");
    fs::create_dir(bed.at("/etc/app")).unwrap();
    bed.make(ONE);
    watch.recovered(ONE);
}

#[test]
fn a_link_that_leads_out_of_the_root_is_taken_inside_it() {
    let mut bed = Bed::with(&[]);
    fs::create_dir_all(bed.at("/etc")).unwrap();
    symlink("../../../../../../store", bed.at("/etc/app")).unwrap();
    bed.want(ONE);
    let watch = bed.report();
    watch.drifted(ONE, "missing");
    bed.make("/store/one.conf");
    watch.drifted(ONE, "contents differ");
    bed.put("/store/one.conf", ONE);
    watch.recovered(ONE);
}

#[test]
fn links_in_a_circle_are_survived() {
    let mut bed = Bed::with(&[ONE]);
    bed.want("/loop/x/file");
    symlink("/pool", bed.at("/loop")).unwrap();
    symlink("/loop", bed.at("/pool")).unwrap();
    let watch = bed.report();
    watch.drifted("/loop/x/file", "missing");
    fs::remove_file(bed.at("/loop")).unwrap();
    bed.make("/loop/x/file");
    loop {
        match watch.next() {
            Event::Recovered { .. } => break,
            Event::Drifted { again: true, .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_overflow_of_the_kernels_queue_loses_nothing() {
    let bed = Bed::with(&[ONE, TWO, DEEP]);
    let host = bed.host();
    let mut watcher = host.watch(bed.targets.keys().map(String::as_str)).unwrap();
    assert_eq!(looks(&mut watcher), [Look::Everything], "at start");

    // Nobody listens while more happens than the kernel keeps. Equal events in a row count once.
    let kept = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let kept: usize = kept.trim().parse().unwrap();
    let files = [ONE, TWO].map(|path| fs::File::options().write(true).open(bed.at(path)).unwrap());
    for round in 0..kept + 100 {
        files[round % 2].set_modified(SystemTime::now()).unwrap();
    }
    // The kernel has no room to say this:
    fs::rename(bed.at("/opt/a"), bed.at("/old")).unwrap();
    bed.make(DEEP);
    bed.put(DEEP, "x");

    let start = Instant::now();
    while looks(&mut watcher) != [Look::Everything] {
        assert!(
            start.elapsed() < crate::bed::SOON,
            "nobody told of the overflow"
        );
    }
    let found = verify(&host, &bed.targets, &bed.contents);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].path, DEEP);
    // The new folder is watched now.
    while watcher.next(Duration::ZERO).unwrap() != Heard::Looks(Vec::new()) {}
    bed.put(DEEP, DEEP);
    assert_eq!(looks(&mut watcher), [Look::Path(DEEP.to_owned())]);
}

#[test]
fn what_happens_next_to_our_paths_costs_nobody_a_look() {
    let bed = Bed::with(&[ONE]);
    let host = bed.host();
    let mut watcher = host.watch([ONE]).unwrap();
    assert_eq!(looks(&mut watcher), [Look::Everything]);
    bed.put("/etc/app/other", "x");
    fs::create_dir(bed.at("/etc/unrelated")).unwrap();
    bed.put(ONE, "x");
    let heard = news(&mut watcher);
    assert_eq!(heard, [Look::Path(ONE.to_owned())]);
}

#[test]
fn a_path_can_be_added_while_watching() {
    let bed = Bed::with(&[ONE]);
    let host = bed.host();
    let mut watcher = host.watch([ONE]).unwrap();
    assert_eq!(looks(&mut watcher), [Look::Everything]);
    bed.make("/opt/a/b/there");
    watcher.add(DEEP).unwrap();
    watcher.add(TWO).unwrap();
    let expected = [DEEP, TWO].map(|path| Look::Path(path.to_owned()));
    assert_eq!(looks(&mut watcher), expected);
    for path in [DEEP, TWO] {
        bed.make(path);
        let heard = news(&mut watcher);
        assert_eq!(heard, [Look::Path(path.to_owned())]);
        while watcher.next(Duration::ZERO).unwrap() != Heard::Looks(Vec::new()) {}
    }
    assert!(watcher.add("relative").is_err());
    assert!(watcher.add("/etc/../etc/x").is_err());
}

#[test]
fn touching_a_file_is_no_drift() {
    let bed = Bed::with(&[ONE]);
    let watch = bed.report();
    let file = fs::File::options().append(true).open(bed.at(ONE)).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    fs::rename(bed.at(ONE), bed.at("/etc/app/aside")).unwrap();
    fs::rename(bed.at("/etc/app/aside"), bed.at(ONE)).unwrap();
    fs::File::open(bed.at("/etc/app"))
        .unwrap()
        .set_modified(SystemTime::UNIX_EPOCH)
        .unwrap();
    let told = watch.so_far(&bed);
    // Between the two renames it was missing, which may have been seen.
    assert!(
        told.iter().all(
            |event| !matches!(event, Event::Drifted { finding, .. } if finding.why != "missing")
        ),
        "{told:?}"
    );
}

#[test]
fn a_drift_is_told_once_and_not_for_each_write() {
    let bed = Bed::with(&[ONE]);
    let watch = bed.report();
    bed.put(ONE, "x");
    watch.drifted(ONE, "contents differ");
    for _ in 0..100 {
        let file = fs::File::options().write(true).open(bed.at(ONE)).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"x", 0).unwrap();
        file.set_modified(SystemTime::now()).unwrap();
    }
    let told = watch.so_far(&bed);
    assert!(told.is_empty(), "{told:?}");
    // Another state is another drift, and says that there was one before.
    bed.put(ONE, "y");
    match watch.next() {
        Event::Drifted { finding, again, .. } => assert!(finding.path == ONE && again),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_path_that_is_right_again_is_told_and_drifts_anew() {
    let bed = Bed::with(&[ONE]);
    let watch = bed.report();
    for _ in 0..3 {
        bed.put(ONE, "x");
        match watch.next() {
            Event::Drifted { again: false, .. } => {}
            other => panic!("{other:?}"),
        }
        bed.make(ONE);
        watch.recovered(ONE);
    }
}

#[test]
fn a_path_that_cannot_be_looked_at_is_a_finding_and_not_the_end() {
    let mut bed = Bed::with(&[ONE]);
    let long = format!("/etc/{}", "x".repeat(300));
    bed.want(&long);
    let watch = bed.report();
    match watch.next() {
        Event::Drifted { finding, .. } => {
            assert_eq!(finding.path, long);
            assert_eq!(finding.seen, None);
            assert!(finding.why.contains("name too long"), "{}", finding.why);
        }
        other => panic!("{other:?}"),
    }
    bed.put(ONE, "x");
    watch.drifted(ONE, "contents differ");
}

#[test]
fn stopping_ends_it_at_once() {
    let is_at_once = |took: &Duration| *took < Duration::from_secs(1);
    let stopped = kept("stopping ends it at once", is_at_once, || {
        let bed = Bed::with(&[ONE]);
        let mut watch = bed.report();
        assert!(watch.so_far(&bed).is_empty());
        let start = Instant::now();
        watch.stopper.stop();
        watch.thread.take().unwrap().join().unwrap().unwrap();
        Ok(start.elapsed())
    });
    stopped.unwrap();
}

#[test]
fn verify_tells_every_difference_in_the_order_of_the_paths() {
    let bed = Bed::with(&[ONE, TWO, DEEP]);
    // With the contents at hand it compares, without them it hashes.
    let found = || {
        let ways = [&bed.contents, &Contents::default()];
        ways.map(|contents| -> Vec<(String, String)> {
            verify(&bed.host(), &bed.targets, contents)
                .into_iter()
                .map(|finding| (finding.path, finding.why))
                .collect()
        })
    };
    assert_eq!(found(), [[], []]);
    let changes = [
        DEEP.to_owned() + "longer",
        DEEP[1..].to_owned(),
        DEEP.replace('/', "-"),
    ];
    fs::remove_file(bed.at(TWO)).unwrap();
    for change in changes {
        fs::write(bed.at(DEEP), change).unwrap();
        let expected = [(TWO, "missing"), (DEEP, "contents differ")];
        let expected = expected.map(|(path, why)| (path.to_owned(), why.to_owned()));
        assert_eq!(found(), [&expected, &expected]);
    }
}

#[test]
fn a_file_of_any_size_is_compared_to_its_last_byte() {
    for size in [0, 1, 4096, 16 * 1024 - 1, 16 * 1024, 16 * 1024 + 1, 100_000] {
        let bed = Bed::with(&[ONE]);
        let (host, bytes) = (bed.host(), vec![b'x'; size]);
        let hash = Hash::of(&bytes);
        let seen = |likely: &[u8]| host.disk().look_for(ONE, likely, hash).unwrap().hash();
        fs::write(bed.at(ONE), &bytes).unwrap();
        assert_eq!(seen(&bytes), Some(hash), "{size}");
        assert_eq!(host.disk().look(ONE).unwrap().hash(), Some(hash), "{size}");
        if size > 0 {
            let mut other = bytes.clone();
            other[size - 1] = b'y';
            fs::write(bed.at(ONE), &other).unwrap();
            assert_eq!(seen(&bytes), Some(Hash::of(&other)), "{size}");
        }
    }
}
