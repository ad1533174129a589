//! The Debian tree that all nodes of this machine share and none of them changes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::{Running, run, tell};
use crate::scratch::Scratch;
use crate::wait::{Look, until};
use crate::{Doing, Result, cache};

const SUITE: &str = "bookworm";
const PACKAGES: &str = "systemd,systemd-sysv,dbus,libpam-systemd,openssh-server,iproute2";

/// What Debian's own installers use; only for a machine whose apt knows no Debian mirror.
const ANY_MIRROR: &str = "http://deb.debian.org/debian";

/// Timers that would do something of their own in the middle of a test.
const TIMERS: [&str; 4] = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
];

/// Where the tree is; it is made on the first call on this machine.
pub(super) fn tree() -> Result<PathBuf> {
    // The number is raised whenever what is done to the tree changes.
    cache::entry(&format!("systemd-node/{SUITE}-1"), 600, make)
}

fn make(tree: &Path) -> Result<()> {
    let mirror = mirror();
    tell(&format!(
        "making the Debian tree for systemd nodes from {mirror}, once: 270 MB and a minute or two"
    ));
    let scratch = Scratch::new("debootstrap")?;
    let log = scratch.path().join("log");
    // debootstrap mounts /proc in the tree: in a mount name space of its own that cannot survive it.
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]);
    command.args(["--pid", "--fork", "--kill-child"]);
    command.args(["debootstrap", "--variant=minbase"]);
    command.arg(format!("--include={PACKAGES}")).arg(SUITE);
    command.arg(tree).arg(&mirror);
    let mut debootstrap = Running::start("debootstrap", &mut command, &log)?;
    let mut told = Vec::new();
    until("debootstrap", Duration::from_mins(15), || {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        if let Some(stage) = stage(&said)
            && !told.contains(&stage)
        {
            tell(&format!("debootstrap: {stage} packages"));
            told.push(stage);
        }
        Ok(match debootstrap.ended()? {
            Some(status) if status.success() => Look::Found(()),
            Some(_) => return debootstrap.still_runs().map(|()| Look::Found(())),
            None => Look::NotYet(debootstrap.last_words()),
        })
    })?;
    settle(tree)
}

/// Takes out what must be each node's own, and what would disturb a test.
fn settle(tree: &Path) -> Result<()> {
    let mut script = String::from(
        "set -e
        rm -f etc/ssh/ssh_host_* var/cache/apt/archives/*.deb
        : > etc/machine-id
        : > etc/resolv.conf
        echo '127.0.0.1 localhost' > etc/hosts
        mkdir -p etc/systemd/system\n",
    );
    for timer in TIMERS {
        script.push_str("ln -sf /dev/null etc/systemd/system/");
        script.push_str(timer);
        script.push('\n');
    }
    run(Command::new("sh").args(["-c", &script]).current_dir(tree))
        .map(|_| ())
        .doing(|| "cannot finish the Debian tree")
}

/// The stage that debootstrap's last words speak of.
fn stage(log: &str) -> Option<&'static str> {
    let last = log
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("I: "))?;
    ["Retrieving", "Extracting", "Unpacking", "Configuring"]
        .into_iter()
        .find(|stage| last.starts_with(stage))
}

/// The mirror of the main Debian archive that apt on this machine uses.
fn mirror() -> String {
    let known = run(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(ORIGIN) $(LABEL) $(REPO_URI)",
    ]));
    known
        .ok()
        .and_then(|known| choose(&known).map(str::to_owned))
        .unwrap_or_else(|| ANY_MIRROR.to_owned())
}

fn choose(known: &str) -> Option<&str> {
    known
        .lines()
        .filter_map(|line| line.strip_prefix("Debian Debian "))
        .map(|uri| uri.trim_end_matches('/'))
        .find(|uri| uri.starts_with("http://") || uri.starts_with("https://"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_one_of_the_main_archive() {
        let known = "\
Debian Debian-Security http://security.example/debian-security/
Debian Debian file:/srv/debian/
Debian Debian https://mirror.example/debian/
Debian Debian http://other.example/debian/";
        assert_eq!(choose(known), Some("https://mirror.example/debian"));
        assert_eq!(choose("Ubuntu Ubuntu http://ubuntu.example/ubuntu/"), None);
    }

    #[test]
    fn progress_is_told_by_stage_not_by_package() {
        assert_eq!(
            stage("I: Retrieving dpkg 1.21\nI: Unpacking apt...\n"),
            Some("Unpacking")
        );
        assert_eq!(stage("I: Base system installed successfully.\n"), None);
    }
}
