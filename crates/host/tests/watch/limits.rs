//! At a limit of the kernel's, drift is found by looking now and then, and at once again when there is room.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_host::linux::{Sockets, Watcher};
use evenkeel_host::watch::{Heard, Look, Source};
use evenkeel_plan::machine::pace::LOOKS_AGAIN;

use crate::bed::Bed;

const ONE: &str = "/etc/app/one.conf";
const DEEP: &str = "/opt/a/b/c/deep.conf";
const INSTANCES: &str = "/proc/sys/user/max_inotify_instances";
const WATCHES: &str = "/proc/sys/user/max_inotify_watches";
/// Set where the limits are a test's own.
const INSIDE: &str = "EVENKEEL_TEST_LIMITS";
/// As soon as the kernel says it, on a machine that is busy with other tests.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Runs `test` of this file, by its name, where it may set the kernel's limits for itself alone.
fn with_own_limits(name: &str, test: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return test();
    }
    let ended = Command::new("unshare")
        .args(["--user", "--map-root-user"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", &format!("limits::{name}")])
        .env(INSIDE, "yes")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(
        ended.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&ended.stderr)
    );
}

fn limit(which: &str, to: u32) {
    fs::write(which, to.to_string()).unwrap();
}

fn watcher(bed: &Bed) -> Watcher {
    let paths = bed.targets.keys().map(String::as_str);
    bed.host().watch(paths).unwrap()
}

/// How long it takes until the watcher says to look at all of these paths.
fn until_told(watcher: &mut Watcher, paths: &[&str]) -> Duration {
    let start = Instant::now();
    let mut missing: BTreeSet<&str> = paths.iter().copied().collect();
    while !missing.is_empty() {
        let left = (3 * LOOKS_AGAIN).checked_sub(start.elapsed());
        let left = left.unwrap_or_else(|| panic!("nobody says to look at {missing:?}"));
        match watcher.next(left).unwrap() {
            Heard::Looks(looks) => {
                missing.retain(|path| !looks.contains(&Look::Path((*path).to_owned())));
            }
            Heard::Stopped => panic!("stopped"),
        }
    }
    start.elapsed()
}

/// Takes in that everything is to be looked at first.
fn begin(watcher: &mut Watcher) {
    let first = watcher.next(Duration::ZERO).unwrap();
    assert_eq!(first, Heard::Looks(vec![Look::Everything]));
}

/// Covers O14.
#[test]
fn without_a_watch_a_change_is_found_later_and_at_once_when_there_is_room() {
    with_own_limits(
        "without_a_watch_a_change_is_found_later_and_at_once_when_there_is_room",
        || {
            let bed = Bed::with(&[ONE, DEEP]);
            // The root, and one folder more.
            limit(WATCHES, 2);
            let mut watcher = watcher(&bed);
            begin(&mut watcher);
            let blindness = watcher.blindness().unwrap();
            assert_eq!(blindness.first.category(), "WatchLimitReached");
            let said = blindness.to_string();
            for part in [
                "folders cannot be watched",
                "checked every 10s",
                "sysctl -w fs.inotify.max_user_watches=1048576",
            ] {
                assert!(said.contains(part), "{said}");
            }
            bed.put(ONE, "x");
            bed.put(DEEP, "x");
            until_told(&mut watcher, &[ONE, DEEP]);

            limit(WATCHES, 1000);
            until_told(&mut watcher, &[DEEP]);
            assert!(watcher.blindness().is_none(), "{:?}", watcher.blindness());
            bed.make(DEEP);
            bed.make(ONE);
            let took = until_told(&mut watcher, &[ONE, DEEP]);
            assert!(took < AT_ONCE, "{took:?}");
        },
    );
}

/// Covers O14.
#[test]
fn without_an_instance_everything_is_looked_at_now_and_then() {
    with_own_limits(
        "without_an_instance_everything_is_looked_at_now_and_then",
        || {
            let bed = Bed::with(&[ONE, DEEP]);
            limit(INSTANCES, 0);
            let mut watcher = watcher(&bed);
            begin(&mut watcher);
            let said = watcher.blindness().unwrap().to_string();
            assert!(said.contains("fs.inotify.max_user_instances"), "{said}");
            fs::remove_file(bed.at(ONE)).unwrap();
            until_told(&mut watcher, &[ONE, DEEP]);
            limit(INSTANCES, 5);
            until_told(&mut watcher, &[ONE, DEEP]);
            assert!(watcher.blindness().is_none(), "{:?}", watcher.blindness());
            bed.make(ONE);
            let took = until_told(&mut watcher, &[ONE]);
            assert!(took < AT_ONCE, "{took:?}");
        },
    );
}

/// Covers O14.
#[test]
fn sockets_are_found_at_either_limit() {
    with_own_limits("sockets_are_found_at_either_limit", || {
        for limited in [INSTANCES, WATCHES] {
            let root = tempfile::tempdir().unwrap();
            // Made before the limit: it has notifications of its own.
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            limit(limited, 0);
            runtime.block_on(finds_a_socket(root.path()));
            limit(limited, 100);
        }
    });
}

/// A socket that comes is found.
async fn finds_a_socket(root: &Path) {
    let sockets = Sockets::below(root, "/kubelet").unwrap();
    assert!(sockets.look().unwrap().is_empty());
    let folder = root.join("kubelet");
    fs::create_dir(&folder).unwrap();
    let _one = UnixListener::bind(folder.join("one.sock")).unwrap();
    let changed = tokio::time::timeout(3 * LOOKS_AGAIN, sockets.changed()).await;
    changed.unwrap().unwrap();
    let found = BTreeSet::from(["one.sock".to_owned()]);
    assert_eq!(sockets.look().unwrap(), found);
}
