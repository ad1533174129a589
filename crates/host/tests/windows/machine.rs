//! The machine, and what tests do with it from outside of our code.

use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_host::disk::{Disk, Host};
use evenkeel_host::windows::WindowsHost;
use evenkeel_plan::machine::entry::{Activity, Entry, ServiceEntry};
use evenkeel_plan::machine::place;

/// A service that runs until it is stopped; `--die CODE` lets it crash.
pub(crate) const PROGRAM: &str = r"C:\k\service-double.exe";
const SOON: Duration = Duration::from_secs(20);

/// A service of ours as it is declared.
pub(crate) fn declared(name: &str, arguments: &str) -> ServiceEntry {
    ServiceEntry {
        command: format!("{PROGRAM} {arguments}").trim().to_owned(),
        description: format!("OpenShift managed {name}"),
        account: "LocalSystem".to_owned(),
        ..ServiceEntry::default()
    }
}

/// A host on which the services `names` are not there, before and after.
pub(crate) struct Machine<'a> {
    pub(crate) host: WindowsHost,
    names: &'a [&'a str],
}

impl<'a> Machine<'a> {
    pub(crate) fn without(names: &'a [&'a str]) -> Self {
        let machine = Self {
            host: WindowsHost::live(),
            names,
        };
        machine.clean();
        machine
    }

    fn clean(&self) {
        for name in self.names {
            self.put(name, &Entry::Absent);
        }
    }

    pub(crate) fn put(&self, name: &str, entry: &Entry) {
        let disk = self.host.disk();
        disk.put(&place::service(name), entry).unwrap();
    }

    pub(crate) fn make(&self, name: &str, arguments: &str) -> ServiceEntry {
        let entry = declared(name, arguments);
        self.put(name, &Entry::Service(entry.clone()));
        entry
    }

    pub(crate) fn look(&self, name: &str) -> Entry {
        self.host.disk().look(&place::service(name)).unwrap()
    }

    pub(crate) fn service(&self, name: &str) -> ServiceEntry {
        match self.look(name) {
            Entry::Service(found) => found,
            other => panic!("{name} is {other:?}"),
        }
    }

    pub(crate) fn activity(&self, name: &str) -> Activity {
        self.service(name).activity
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.clean();
        }
    }
}

/// Runs a program of Windows itself.
pub(crate) fn windows(words: &[&str]) {
    let done = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(done.status.success(), "{words:?}: {done:?}");
}

/// Tells a service to stop. To `sc.exe` one that is gone before it has answered is an error: whoever calls this sees
/// for himself whether it stopped.
pub(crate) fn tell_to_stop(name: &str) {
    let told = Command::new("sc.exe").args(["stop", name]).output();
    told.unwrap();
}

/// Waits until `seen` gives something.
pub(crate) fn until<T>(what: &str, mut seen: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = seen() {
            return found;
        }
        assert!(start.elapsed() < SOON, "{what} took too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}
