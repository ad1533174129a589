//! Commands that change the operating system, in a unit of the machine's own systemd: an image that is pulled does not count
//! as our memory, sees the machine's proxy, and does not die with us.

use std::path::Path;
use std::time::{Duration, Instant};

use super::super::run::{Program, last_words};
use super::{CHANGE, PULL};
use crate::{Error, Result};

/// The unit: there is one at a time.
const UNIT: &str = "evenkeel-os.service";
/// Where its words go. They outlive whoever waits for them.
const WORDS: &str = "/run/evenkeel-os.log";
/// Where machines have the settings of their proxy, besides what their systemd gives every unit.
const ENVIRONMENTS: [&str; 2] = ["/etc/environment", "/etc/mco/proxy.env"];
/// Longer than systemd takes to end a unit whose time is over.
const END: Duration = Duration::from_mins(2);
/// How often it is looked whether a unit has ended that somebody else waits for.
const PAUSE: Duration = Duration::from_millis(250);

/// Runs `line` to its end on the machine whose root is at `root`; if it failed or took too long, why.
pub(super) fn run(root: &Path, line: &[&str], deadline: Duration) -> Result<(), String> {
    let program = |line| Program { root, line };
    if !root.join("run/systemd/system").is_dir() {
        return program(line).run(deadline).map(|_| ());
    }
    let words = root.join(WORDS.trim_start_matches('/'));
    _ = std::fs::remove_file(&words);
    let mut settings = vec![
        format!("--unit={UNIT}"),
        format!("--description={}", line.join(" ")),
        format!("--property=RuntimeMaxSec={}", deadline.as_secs()),
        format!("--property=StandardOutput=file:{WORDS}"),
        format!("--property=StandardError=file:{WORDS}"),
        "--setenv=LC_ALL=C".to_owned(),
    ];
    settings.extend(ENVIRONMENTS.map(|it| format!("--property=EnvironmentFile=-{it}")));
    let outside = [
        "systemd-run",
        "--quiet",
        "--collect",
        "--wait",
        "--service-type=exec",
    ];
    let outside = outside
        .into_iter()
        .chain(settings.iter().map(String::as_str));
    let outside: Vec<&str> = outside.chain(["--"]).chain(line.iter().copied()).collect();
    let start = Instant::now();
    let Err(why) = program(&outside).run(deadline + END) else {
        return Ok(());
    };
    if start.elapsed() >= deadline {
        let seconds = deadline.as_secs();
        return Err(format!(
            "the program did not end within {seconds} seconds and was stopped"
        ));
    }
    // What systemd-run says is how it ended; why, the program itself has said.
    let said = std::fs::read_to_string(&words).unwrap_or_default();
    Err(match last_words(&said) {
        words if words.is_empty() => why,
        words => words,
    })
}

/// Waits until nothing is staged any more that was begun before: by us, before we were killed.
pub(super) fn until_over(root: &Path) -> Result<()> {
    let running = root.join(format!("run/systemd/units/invocation:{UNIT}"));
    let start = Instant::now();
    while running.symlink_metadata().is_ok() {
        if start.elapsed() > PULL.max(CHANGE) + END {
            return Err(Error::os(
                "look at the operating system".to_owned(),
                format!("{UNIT} still runs: see `systemctl status {UNIT}`"),
            ));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Where rpm-ostree and bootc look for logins of registries, and where the kubelet has those of the cluster.
const LOGINS: [&str; 2] = ["etc/ostree/auth.json", "run/ostree/auth.json"];
const OF_KUBELET: &str = "/var/lib/kubelet/config.json";

/// Lets them use the kubelet's logins, if they have none of their own. It is for this boot only, and follows what changes.
pub(super) fn lend_pull_secret(root: &Path) -> Result<()> {
    let is_there = |path: &str| root.join(path).symlink_metadata().is_ok();
    if LOGINS.iter().any(|it| is_there(it)) || !is_there(OF_KUBELET.trim_start_matches('/')) {
        return Ok(());
    }
    let link = root.join(LOGINS[1]);
    let made = link
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| std::os::unix::fs::symlink(OF_KUBELET, &link));
    made.map_err(|error| Error::path("link", format!("/{}", LOGINS[1]), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logins_of_the_kubelet_are_lent_where_there_are_no_others() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        lend_pull_secret(root.path()).unwrap();
        assert!(!at("run").exists(), "nothing to lend");
        std::fs::create_dir_all(at("var/lib/kubelet")).unwrap();
        std::fs::write(at("var/lib/kubelet/config.json"), "{}").unwrap();
        for _ in 0..2 {
            lend_pull_secret(root.path()).unwrap();
            let link = std::fs::read_link(at(LOGINS[1])).unwrap();
            assert_eq!(link, Path::new(OF_KUBELET));
        }
        std::fs::remove_file(at(LOGINS[1])).unwrap();
        std::fs::create_dir_all(at("etc/ostree")).unwrap();
        std::fs::write(at(LOGINS[0]), "{}").unwrap();
        lend_pull_secret(root.path()).unwrap();
        assert!(!at(LOGINS[1]).exists(), "the owner's own come first");
    }

    #[test]
    fn without_systemd_a_command_is_run_as_it_is() {
        let minute = Duration::from_mins(1);
        // Where no systemd runs there is no such folder; here the root is a tree without one, and chroot needs the
        // program inside.
        let root = tempfile::tempdir().unwrap();
        let why = run(root.path(), &["no-such-program"], minute);
        assert!(why.is_err_and(|why| why.contains("cannot be started")));
        until_over(root.path()).unwrap();
    }
}
