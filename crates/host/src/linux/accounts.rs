//! What a running machine says of its users: its name service by `getent`, and sshd by `sshd -T`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_plan::machine::ssh_keys::{Account, SshdSettings};

use super::run::Program;
use crate::{Error, Result};

/// A name service may be on the network.
const ANSWER: Duration = Duration::from_secs(20);
/// What `getent` ends with if there is no such name.
const UNKNOWN: i32 = 2;
/// Where sshd is. It starts by its whole path only.
const SSHD: [&str; 4] = [
    "/usr/sbin/sshd",
    "/usr/bin/sshd",
    "/usr/local/sbin/sshd",
    "/sbin/sshd",
];
/// The units that run it.
pub(super) const SSHD_UNITS: [&str; 4] =
    ["sshd.service", "ssh.service", "sshd.socket", "ssh.socket"];

/// The users of the machine whose root is at `root`.
#[derive(Debug)]
pub(super) struct Accounts {
    root: PathBuf,
}

impl Accounts {
    pub(super) fn below(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    pub(super) fn user(&self, name: &str) -> Result<Option<Account>> {
        let line = self.getent("passwd", name)?;
        Ok(line.and_then(|line| Account::find(&line, name)))
    }

    pub(super) fn group(&self, name: &str) -> Result<Option<u32>> {
        let line = self.getent("group", name)?.unwrap_or_default();
        let mut fields = line.trim_end().split(':');
        // A number is found as well, but is no name.
        let is_it = fields.next() == Some(name);
        Ok(fields
            .nth(1)
            .filter(|_| is_it)
            .and_then(|it| it.parse().ok()))
    }

    fn getent(&self, database: &str, name: &str) -> Result<Option<String>> {
        let line = ["getent", database, name];
        if name.starts_with('-') || !self.has(&["/usr/bin/getent", "/bin/getent"]) {
            return Ok(None);
        }
        let failed = |why: String| Error::os(format!("run `{}`", line.join(" ")), why);
        let ended = self.program(&line).end(ANSWER).map_err(failed)?;
        if ended.status.code() == Some(UNKNOWN) {
            return Ok(None);
        }
        ended.printed().map(Some).map_err(failed)
    }

    /// What sshd says that it does for `user`; nothing if it is not there, or cannot say and is not `wanted`.
    pub(super) fn sshd(
        &self,
        user: &str,
        wanted: impl FnOnce() -> bool,
    ) -> Result<Option<SshdSettings>> {
        let Some(sshd) = SSHD.iter().find(|path| self.has(&[path])) else {
            return Ok(None);
        };
        // Somebody from afar, with all that a Match block may ask for.
        let whom = format!("user={user},host=192.0.2.1,addr=192.0.2.1,laddr=127.0.0.1,lport=22");
        // Before its first start sshd has no keys of its own, which only -G does not mind; older ones have no -G.
        let ask = |how| self.program(&[sshd, how, "-C", &whom]).run(ANSWER);
        let told = ask("-T").or_else(|why| ask("-G").map_err(|_| why));
        match told {
            Ok(printed) => Ok(Some(SshdSettings::read(&printed))),
            Err(why) if wanted() => Err(Error::os(
                format!("find out where sshd reads the SSH keys of {user}"),
                format!(
                    "`{sshd} -T` failed: {why}: repair sshd's configuration, or stop and disable sshd"
                ),
            )),
            Err(_) => Ok(None),
        }
    }

    fn has(&self, paths: &[&str]) -> bool {
        let is_there = |path: &&str| {
            let path = self.root.join(path.trim_start_matches('/'));
            path.symlink_metadata().is_ok()
        };
        paths.iter().any(is_there)
    }

    fn program<'a>(&'a self, line: &'a [&'a str]) -> Program<'a> {
        Program {
            root: &self.root,
            line,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_of_this_machine_are_found_by_their_names_alone() {
        let accounts = Accounts::below(Path::new("/"));
        let root = accounts.user("root").unwrap().unwrap();
        assert_eq!((root.ids.user, root.home.as_str()), (0, "/root"));
        assert_eq!(accounts.group("root").unwrap(), Some(0));
        for nobody in ["no-such-user-here", "0", "-s", "--help"] {
            assert_eq!(accounts.user(nobody).unwrap(), None, "{nobody}");
            assert_eq!(accounts.group(nobody).unwrap(), None, "{nobody}");
        }
    }

    #[test]
    fn a_machine_without_sshd_and_getent_says_nothing() {
        let empty = tempfile::tempdir().unwrap();
        let accounts = Accounts::below(empty.path());
        assert_eq!(accounts.user("root").unwrap(), None);
        assert_eq!(accounts.sshd("root", || true).unwrap(), None);
    }
}
