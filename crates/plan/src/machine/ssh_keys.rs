//! Which file the SSH keys of a user go to: one that this machine's sshd reads, for this user alone, and that
//! nobody makes anew. Where there is none, why, and what helps.

use crate::machine::entry::Ids;

/// The folder of keys in a user's `.ssh` from which other programs gather them.
pub const FRAGMENTS: &str = ".ssh/authorized_keys.d";
/// Our file in it. Ignition has the same one, and its keys are ours to keep.
const FRAGMENT: &str = ".ssh/authorized_keys.d/ignition";
/// What sshd reads if nobody tells it otherwise, and what it reads as well.
const USUAL: &str = ".ssh/authorized_keys";
const SECOND: &str = ".ssh/authorized_keys2";
/// The program that hands sshd the keys of [`FRAGMENTS`].
const GATHERER: &str = "ssh-key-dir";

/// A user of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// What the user is called.
    pub name: String,
    /// User, and first group.
    pub ids: Ids,
    /// Where the user's own files are.
    pub home: String,
}

impl Account {
    /// The user `name` among lines as in `/etc/passwd`.
    pub fn find(lines: &str, name: &str) -> Option<Self> {
        lines.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [called, _, user, group, _, home, ..] = fields[..] else {
                return None;
            };
            (called == name).then_some(())?;
            Some(Self {
                name: name.to_owned(),
                ids: Ids {
                    user: user.parse().ok()?,
                    group: group.parse().ok()?,
                },
                home: home.trim_end_matches('/').to_owned(),
            })
        })
    }
}

/// What sshd says that it does for a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshdSettings {
    /// Where it reads keys, as it says it.
    files: Vec<String>,
    /// What it asks for keys, if anything.
    command: Option<String>,
}

impl SshdSettings {
    /// Reads what `sshd -T` prints.
    pub fn read(printed: &str) -> Self {
        let said = |name: &str| {
            let mut lines = printed.lines().filter_map(|line| line.split_once(' '));
            let found = lines.find(|(key, _)| key.eq_ignore_ascii_case(name));
            let value = found.map(|(_, value)| value.trim());
            value.filter(|value| !value.is_empty() && !value.eq_ignore_ascii_case("none"))
        };
        let files = said("authorizedkeysfile").unwrap_or_default();
        Self {
            files: files.split_whitespace().map(str::to_owned).collect(),
            command: said("authorizedkeyscommand").map(str::to_owned),
        }
    }

    fn gathers_fragments(&self) -> bool {
        let program = self
            .command
            .as_deref()
            .and_then(|it| it.split_whitespace().next());
        program.and_then(|it| it.rsplit('/').next()) == Some(GATHERER)
    }
}

/// What a machine says of a user's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeysFacts {
    /// Whose they are.
    pub account: Account,
    /// What sshd says; nothing on a machine without one that runs.
    pub sshd: Option<SshdSettings>,
    /// The user has a folder [`FRAGMENTS`].
    pub has_fragments: bool,
    /// The machine has `update-ssh-keys`, which makes `authorized_keys` anew from that folder.
    pub has_update_ssh_keys: bool,
}

impl KeysFacts {
    /// The file for the keys, or why there is none.
    pub fn file(&self) -> Result<String, String> {
        let Account { name, home, .. } = &self.account;
        if home.is_empty() {
            return Err(format!(
                "user {name} has no home for its keys: give it one with `usermod --home`"
            ));
        }
        let is_made_anew = self.has_update_ssh_keys && self.has_fragments;
        let Some(sshd) = &self.sshd else {
            return Ok(match (is_made_anew, self.has_fragments) {
                (true, _) => format!("{home}/{SECOND}"),
                (false, true) => format!("{home}/{FRAGMENT}"),
                (false, false) => format!("{home}/{USUAL}"),
            });
        };
        if sshd.gathers_fragments() {
            return Ok(format!("{home}/{FRAGMENT}"));
        }
        let (mut fit, mut shared) = (Vec::new(), None);
        for pattern in &sshd.files {
            let path = self.expanded(pattern)?;
            if self.is_shared(pattern, &path) {
                shared = shared.or(Some(path));
            } else if !is_made_anew || !self.is_of_update_ssh_keys(&path) {
                fit.push(path);
            }
        }
        // People keep their own keys in the usual file: one of its own is the better place.
        let fragment = format!("{home}/{FRAGMENTS}/");
        let in_fragments = fit.iter().position(|path| path.starts_with(&fragment));
        if !fit.is_empty() {
            return Ok(fit.swap_remove(in_fragments.unwrap_or(0)));
        }
        Err(match (shared, &sshd.command) {
            _ if is_made_anew && !sshd.files.is_empty() => self.made_anew(),
            (Some(path), _) => format!(
                "sshd reads {path} for every user, so keys of {name} in it would let their owners in as anybody: \
                 set `AuthorizedKeysFile {USUAL}` for sshd, or a path with %u in it"
            ),
            (None, Some(command)) => format!(
                "sshd reads no file of keys, but asks `{command}`: set `AuthorizedKeysFile {USUAL}` for sshd besides, \
                 or bring the keys to where that program finds them and remove sshAuthorizedKeys"
            ),
            (None, None) => format!(
                "sshd reads no keys of {name} (AuthorizedKeysFile none): set `AuthorizedKeysFile {USUAL}` for sshd, \
                 or remove sshAuthorizedKeys"
            ),
        })
    }

    /// A path of sshd's, with what its tokens stand for.
    fn expanded(&self, pattern: &str) -> Result<String, String> {
        let Account { name, ids, home } = &self.account;
        let mut path = String::new();
        let mut rest = pattern.chars();
        while let Some(next) = rest.next() {
            match (next, (next == '%').then(|| rest.next()).flatten()) {
                ('%', Some('%')) => path.push('%'),
                ('%', Some('h')) => path.push_str(home),
                ('%', Some('u')) => path.push_str(name),
                ('%', Some('U')) => path.push_str(&ids.user.to_string()),
                ('%', _) => {
                    return Err(format!(
                        "sshd reads keys in {pattern}, which is no path that sshd itself knows: use %h, %u, %U or %%"
                    ));
                }
                (plain, _) => path.push(plain),
            }
        }
        if path.starts_with('/') {
            Ok(path)
        } else {
            Ok(format!("{home}/{path}"))
        }
    }

    /// Whether others read the same file: its name says nothing of the user.
    fn is_shared(&self, pattern: &str, path: &str) -> bool {
        let Account { name, home, .. } = &self.account;
        let names_user = ["%h", "%u", "%U"]
            .iter()
            .any(|token| pattern.contains(token));
        let is_word = |part: &str| part.split(['.', '-', '_']).any(|word| word == name);
        let is_theirs = path.starts_with(&format!("{home}/")) || path.split('/').any(is_word);
        !names_user && !is_theirs
    }

    /// Whether `update-ssh-keys` writes `path`, or copies it.
    fn is_of_update_ssh_keys(&self, path: &str) -> bool {
        let home = &self.account.home;
        path == format!("{home}/{USUAL}") || path.starts_with(&format!("{home}/{FRAGMENTS}/"))
    }

    fn made_anew(&self) -> String {
        let home = &self.account.home;
        format!(
            "update-ssh-keys makes {home}/{USUAL} anew from {home}/{FRAGMENTS}, so what is written there does not last, \
             and what is removed comes back: let sshd read a file beside it, with \
             `AuthorizedKeysFile {USUAL} {SECOND}`"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/bash\ncore:x:1000:1001:CoreOS Admin:/var/home/core:/bin/bash\n";

    fn machine(printed: Option<&str>) -> KeysFacts {
        KeysFacts {
            account: Account::find(PASSWD, "core").unwrap(),
            sshd: printed.map(SshdSettings::read),
            has_fragments: false,
            has_update_ssh_keys: false,
        }
    }

    fn reading(files: &str) -> KeysFacts {
        machine(Some(&format!(
            "port 22\nauthorizedkeyscommand none\nauthorizedkeysfile {files}\n"
        )))
    }

    #[test]
    fn an_account_is_found_by_its_whole_name() {
        let core = Account::find(PASSWD, "core").unwrap();
        assert_eq!((core.ids.user, core.ids.group), (1000, 1001));
        assert_eq!(core.home, "/var/home/core");
        assert_eq!(Account::find(PASSWD, "cor"), None);
        assert_eq!(Account::find("core:x:many:1::/:/bin/sh", "core"), None);
    }

    /// Covers O13.
    #[test]
    fn keys_go_to_a_file_that_sshd_reads_for_this_user_alone() {
        for (files, path) in [
            (
                ".ssh/authorized_keys .ssh/authorized_keys2",
                "/var/home/core/.ssh/authorized_keys",
            ),
            (
                ".ssh/authorized_keys .ssh/authorized_keys.d/ignition",
                "/var/home/core/.ssh/authorized_keys.d/ignition",
            ),
            ("%h/keys", "/var/home/core/keys"),
            ("/etc/ssh/keys/%u", "/etc/ssh/keys/core"),
            ("/etc/ssh/%U/100%%", "/etc/ssh/1000/100%"),
            ("/etc/ssh/core.keys", "/etc/ssh/core.keys"),
            ("/etc/ssh/all /etc/ssh/keys/%u", "/etc/ssh/keys/core"),
        ] {
            assert_eq!(reading(files).file().as_deref(), Ok(path), "{files}");
        }
    }

    /// Covers O13.
    #[test]
    fn fragments_count_where_sshd_asks_for_them() {
        let by_command = |command: &str, files: &str| {
            machine(Some(&format!(
                "authorizedkeysfile {files}\nauthorizedkeyscommand {command}\nauthorizedkeyscommanduser root\n"
            )))
        };
        let fragment = "/var/home/core/.ssh/authorized_keys.d/ignition";
        let usual = "/var/home/core/.ssh/authorized_keys";
        let gatherer = "/usr/libexec/ssh-key-dir %u";
        for files in ["none", ".ssh/authorized_keys"] {
            assert_eq!(
                by_command(gatherer, files).file().as_deref(),
                Ok(fragment),
                "{files}"
            );
        }
        // The folder alone makes no sshd read it.
        let mut unread = by_command("/usr/bin/sss_ssh_authorizedkeys", ".ssh/authorized_keys");
        unread.has_fragments = true;
        assert_eq!(unread.file().as_deref(), Ok(usual));
    }

    #[test]
    fn without_an_sshd_the_folder_of_fragments_decides() {
        let mut machine = machine(None);
        assert!(
            machine
                .file()
                .is_ok_and(|it| it.ends_with("/.ssh/authorized_keys"))
        );
        machine.has_fragments = true;
        assert!(
            machine
                .file()
                .is_ok_and(|it| it.ends_with("/authorized_keys.d/ignition"))
        );
    }

    /// Covers O13.
    #[test]
    fn a_machine_on_which_no_file_will_do_is_told_what_helps() {
        let asks =
            "authorizedkeysfile none\nauthorizedkeyscommand /usr/bin/sss_ssh_authorizedkeys %u\n";
        for (machine, cause, cure) in [
            (
                machine(Some(asks)),
                "asks `/usr/bin/sss_ssh_authorizedkeys %u`",
                "`AuthorizedKeysFile .ssh/authorized_keys`",
            ),
            (
                reading("none"),
                "sshd reads no keys of core (AuthorizedKeysFile none)",
                "or remove sshAuthorizedKeys",
            ),
            (
                reading("/etc/ssh/authorized_keys"),
                "sshd reads /etc/ssh/authorized_keys for every user",
                "a path with %u in it",
            ),
            (
                reading("/etc/ssh/score.keys"),
                "for every user",
                "a path with %u in it",
            ),
            (
                reading("/keys/%t"),
                "no path that sshd itself knows",
                "use %h",
            ),
        ] {
            let why = machine.file().unwrap_err();
            assert!(why.contains(cause) && why.contains(cure), "{why}");
        }
        let mut homeless = reading(".ssh/authorized_keys");
        homeless.account.home.clear();
        assert!(homeless.file().is_err_and(|why| why.contains("usermod")));
    }

    /// Covers O13.
    #[test]
    fn the_file_that_update_ssh_keys_makes_is_never_written() {
        let usual = ".ssh/authorized_keys .ssh/authorized_keys2";
        let flatcar = |files: &str| KeysFacts {
            has_fragments: true,
            has_update_ssh_keys: true,
            ..reading(files)
        };
        // sshd reads a second file unless somebody tells it otherwise.
        let second = "/var/home/core/.ssh/authorized_keys2";
        let unasked = KeysFacts {
            sshd: None,
            ..flatcar(usual)
        };
        for machine in [flatcar(usual), unasked] {
            assert_eq!(machine.file().as_deref(), Ok(second));
        }
        let why = flatcar(".ssh/authorized_keys").file().unwrap_err();
        assert!(why.contains("update-ssh-keys makes"), "{why}");
        let cure = "AuthorizedKeysFile .ssh/authorized_keys .ssh/authorized_keys2";
        assert!(why.contains(cure), "{why}");
        // The program alone gathers nothing.
        let unused = KeysFacts {
            has_fragments: false,
            ..flatcar(usual)
        };
        assert!(unused.file().is_ok());
    }
}
