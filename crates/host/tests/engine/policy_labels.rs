//! New paths get the label that the machine's policy has for them: its own program is run on them, once
//! they are there and before anything reads them. The program here is a stand-in that writes down what it
//! was asked for; no test ran with a kernel that has a policy.

use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_host::disk::{Disk, Host};
use evenkeel_host::execute::Claim;
use evenkeel_host::linux::LinuxHost;

use crate::configs::Config;
use crate::machine::{bring, state};

/// Writes down its arguments, and whether they are there.
const RESTORECON: &str = r#"#!/bin/sh
[ "$1 $2" = "-i --" ] || exit 9
shift 2
[ ! -e /broken ] || { echo "restorecon: no such policy" >&2; exit 1; }
for path; do
    if [ -e "$path" ] || [ -h "$path" ]; then echo "$path"; else echo "missing $path"; fi
done >> /restored
"#;

/// A tree with a shell and a policy. Only root may run anything in another root.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("left out: only root may run a program in another root");
            return None;
        }
        let tree = Self(tempfile::tempdir().unwrap());
        let listed = Command::new("ldd").arg("/bin/sh").output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let libraries = listed.split_whitespace().filter(|it| it.starts_with('/'));
        for file in libraries.chain(["/bin/sh"]) {
            let place = tree.path(file);
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            std::fs::copy(file, place).unwrap();
        }
        tree.write("/usr/sbin/restorecon", RESTORECON);
        let program = tree.path("/usr/sbin/restorecon");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(program, mode).unwrap();
        tree.write("/etc/theirs", "theirs");
        std::fs::create_dir_all(tree.path("/var/lib")).unwrap();
        Some(tree)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path.trim_start_matches('/'))
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn turn_on(&self) {
        self.write("/sys/fs/selinux/enforce", "1");
    }

    fn host(&self) -> LinuxHost {
        LinuxHost::mounted(self.0.path()).unwrap()
    }

    /// What the program was asked for since the last time.
    fn restored(&self) -> Vec<String> {
        let path = self.path("/restored");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        _ = std::fs::remove_file(path);
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

fn config() -> Config {
    Config::default()
        .file("/etc/theirs", "ours", 0o600)
        .file("/opt/new/file", "new", 0o644)
        .file("/etc/odd [a]*", "odd", 0o644)
}

/// Covers S13.
#[test]
fn new_paths_are_labelled_by_the_policy_and_what_is_replaced_keeps_its_label() {
    let Some(tree) = Tree::new() else {
        return;
    };
    let host = tree.host();
    // Without a policy nothing is run.
    bring(&host, &config()).unwrap();
    assert!(tree.restored().is_empty());
    bring(&host, &Config::default()).unwrap();

    tree.turn_on();
    bring(&host, &config()).unwrap();
    // The stand-in does not read patterns, so that the escapes show.
    let new = [
        "/opt",
        "/opt/new",
        "/opt/new/file",
        r"missing /etc/odd \[a\]\*",
    ];
    assert_eq!(tree.restored(), new);
    // What is there already is not new, and what goes or comes back needs nothing of the policy.
    bring(&host, &config()).unwrap();
    bring(&host, &config().file("/opt/new/file", "other", 0o644)).unwrap();
    assert!(tree.restored().is_empty());

    // What somebody removed is new again.
    host.disk().remove("/opt/new/file").unwrap();
    let state = state();
    let claim = Claim::take(&host, &state).unwrap();
    let owned = &claim.record().unwrap().owned["/opt/new/file"];
    claim
        .heal("/opt/new/file", &owned.resource, &owned.entry)
        .unwrap();
    drop(claim);
    assert_eq!(tree.restored(), ["/opt/new/file"]);
    bring(&host, &Config::default()).unwrap();
    assert!(tree.restored().is_empty());
}

/// Covers S13.
#[test]
fn a_policy_that_cannot_be_asked_undoes_the_change_and_a_machine_without_the_program_goes_on() {
    let Some(tree) = Tree::new() else {
        return;
    };
    tree.turn_on();
    tree.write("/broken", "");
    let host = tree.host();
    let error = bring(&host, &config()).unwrap_err().with_causes();
    assert!(error.contains("restorecon: no such policy"), "{error}");
    assert!(error.contains("all changes were undone"), "{error}");
    assert!(!Path::exists(&tree.path("/opt")));
    let theirs = std::fs::read_to_string(tree.path("/etc/theirs")).unwrap();
    assert_eq!(theirs, "theirs");
    std::fs::remove_file(tree.path("/usr/sbin/restorecon")).unwrap();
    bring(&host, &config()).unwrap();
}
