//! A scratch tree with files that are to stay as they are, and a monitor at work on it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_host::Result;
use evenkeel_host::execute::{Claim, State};
use evenkeel_host::linux::{LinuxHost, Stopper};
use evenkeel_host::watch::{Event, Monitor};
use evenkeel_plan::machine::desired::Contents;
use evenkeel_plan::machine::entry::{Entry, Hash, Ids};
use evenkeel_plan::machine::resource::Resource;
use evenkeel_plan::machine::targets::{Part, Target, Targets};
use tempfile::TempDir;

/// Longer than any event takes on a machine that is busy with other tests.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// Drifts in these tests only to show that everything before it was heard.
pub(crate) const FENCE: &str = "/zz/fence";

pub(crate) struct Bed {
    pub(crate) folder: TempDir,
    pub(crate) targets: Targets,
    pub(crate) contents: Contents,
}

impl Bed {
    /// A tree with these files, each of which holds its own path.
    pub(crate) fn with(paths: &[&str]) -> Self {
        let mut bed = Self {
            folder: tempfile::tempdir().unwrap(),
            targets: Targets::new(),
            contents: Contents::default(),
        };
        for path in paths.iter().chain([&FENCE]) {
            bed.want(path);
            bed.make(path);
        }
        bed
    }

    /// From now on the file should be there.
    pub(crate) fn want(&mut self, path: &str) {
        let entry = Entry::File {
            hash: self.contents.keep(path.as_bytes().to_vec()),
            mode: 0o644,
            owner: Ids::default(),
        };
        let target = Target {
            resource: Resource::File(path.to_owned()),
            part: Part::Whole,
            entry,
        };
        self.targets.insert(path.to_owned(), target);
    }

    /// Makes the file as it should be.
    pub(crate) fn make(&self, path: &str) {
        self.put(path, path);
    }

    /// Puts other contents there in one instant, so that nobody sees the file half written.
    pub(crate) fn put(&self, path: &str, contents: &str) {
        let place = self.at(path);
        let folder = place.parent().unwrap();
        fs::create_dir_all(folder).unwrap();
        let new = folder.join(".new");
        fs::write(&new, contents).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644)).unwrap();
        fs::rename(new, place).unwrap();
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(&path[1..])
    }

    pub(crate) fn host(&self) -> LinuxHost {
        LinuxHost::offline(self.folder.path()).unwrap()
    }

    pub(crate) fn is_right(&self, path: &str) -> bool {
        let place = self.at(path);
        fs::symlink_metadata(&place).is_ok_and(|meta| {
            meta.is_file()
                && meta.permissions().mode() & 0o7777 == 0o644
                && fs::read(&place).is_ok_and(|text| Hash::of(&text) == Hash::of(path.as_bytes()))
        })
    }

    pub(crate) fn report(&self) -> Watch {
        self.start(false)
    }

    pub(crate) fn heal(&self) -> Watch {
        let (host, state) = (self.host(), State::at("/var/lib/evenkeel"));
        let claim = Claim::take(&host, &state).unwrap();
        claim.keep_contents(&self.targets, &self.contents).unwrap();
        drop(claim);
        self.start(true)
    }

    fn start(&self, heal: bool) -> Watch {
        let (host, targets) = (self.host(), self.targets.clone());
        let mut watcher = host.watch(targets.keys().map(String::as_str)).unwrap();
        let stopper = watcher.stopper();
        let (tell, events) = channel();
        let thread = std::thread::spawn(move || {
            let state = State::at("/var/lib/evenkeel");
            let mut monitor = if heal {
                Monitor::healing(&host, &state, targets)
            } else {
                Monitor::reporting(&host, targets)
            };
            monitor.run(&mut watcher, &mut |event| _ = tell.send(event))
        });
        Watch {
            events,
            stopper,
            thread: Some(thread),
        }
    }
}

/// A monitor at work. It is stopped on drop.
pub(crate) struct Watch {
    pub(crate) events: Receiver<Event>,
    pub(crate) stopper: Stopper,
    pub(crate) thread: Option<JoinHandle<Result<()>>>,
}

impl Watch {
    pub(crate) fn next(&self) -> Event {
        self.events.recv_timeout(SOON).expect("an event")
    }

    /// The next event must be that `path` drifted, for this reason.
    #[track_caller]
    pub(crate) fn drifted(&self, path: &str, why: &str) {
        match self.next() {
            Event::Drifted { finding, .. } if finding.path == path && finding.why == why => {}
            other => panic!("expected that {path} drifted ({why}), got {other:?}"),
        }
    }

    /// The next event must be that `path` is right again.
    #[track_caller]
    pub(crate) fn recovered(&self, path: &str) {
        match self.next() {
            Event::Recovered { finding } if finding.path == path => {}
            other => panic!("expected that {path} recovered, got {other:?}"),
        }
    }

    /// All events up to this moment: a last drift is made, and once it is told, so is the rest.
    pub(crate) fn so_far(&self, bed: &Bed) -> Vec<Event> {
        bed.put(FENCE, "drift");
        let mut events = Vec::new();
        loop {
            match self.next() {
                Event::Drifted { finding, .. } if finding.path == FENCE => return events,
                event => events.push(event),
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap().unwrap();
            }
        }
    }
}

/// Looks again and again until it holds.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < SOON, "waited {SOON:?} for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
