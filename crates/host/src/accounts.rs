//! Users and groups of a machine: the numbers of those that a configuration names, and the file for the SSH keys of
//! one of them. What the machine's own files do not say, its name service is asked.

use std::collections::BTreeMap;

use evenkeel_api::machine::machine_config::Owner;
use evenkeel_plan::machine::desired::Desired;
use evenkeel_plan::machine::entry::{Entry, Ids, Names};
use evenkeel_plan::machine::ssh_keys::{Account, FRAGMENTS, KeysFacts};
use evenkeel_plan::machine::targets::{KEYS_USER, KeysFile, no_such_user};

use crate::Result;
use crate::disk::{Disk, Folder, Host};

const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";
/// What an image brings beside the administrator's own, for where nobody can be asked.
const IMAGE_USERS: &str = "/usr/lib/passwd";
const IMAGE_GROUPS: &str = "/usr/lib/group";
/// The program that makes the keys of a user anew from a folder.
const UPDATE_SSH_KEYS: &str = "/usr/bin/update-ssh-keys";
/// More links than this lead nowhere.
const MOST_LINKS: usize = 8;

/// The users and groups that `desired` names, and all others of the administrator's.
pub(crate) fn names<H: Host>(host: &H, desired: &Desired) -> Result<Names> {
    let disk = host.disk();
    let mut names = Names {
        users: numbers(&text(disk, USERS)?),
        groups: numbers(&text(disk, GROUPS)?),
    };
    for file in desired.files.values() {
        if let Owner::Name(name) = &file.user
            && is_missing(&names.users, name)
            && let Some(account) = further(host, name)?
        {
            names.users.insert(name.clone(), account.ids.user);
        }
        if let Owner::Name(name) = &file.group
            && is_missing(&names.groups, name)
        {
            let number = host.group(name)?;
            let number = match number {
                Some(number) => Some(number),
                None => numbers(&text(disk, IMAGE_GROUPS)?).remove(name),
            };
            names
                .groups
                .extend(number.map(|number| (name.clone(), number)));
        }
    }
    if let Some(number) = disk.stand_in() {
        names.users.entry(KEYS_USER.to_owned()).or_insert(number);
        names.groups.entry(KEYS_USER.to_owned()).or_insert(number);
    }
    Ok(names)
}

fn is_missing(known: &BTreeMap<String, u32>, name: &str) -> bool {
    name != "root" && !known.contains_key(name)
}

/// The file for the keys of [`KEYS_USER`], or why there is none.
pub(crate) fn keys_file<H: Host>(host: &H) -> Result<Result<KeysFile, String>> {
    let disk = host.disk();
    let account = match Account::find(&text(disk, USERS)?, KEYS_USER) {
        Some(account) => Some(account),
        None => further(host, KEYS_USER)?,
    };
    let usual = format!("/home/{KEYS_USER}");
    let stand_in = || {
        let number = disk.stand_in()?;
        Some(Account {
            name: KEYS_USER.to_owned(),
            ids: Ids {
                user: number,
                group: number,
            },
            home: usual.clone(),
        })
    };
    let Some(mut account) = account.or_else(stand_in) else {
        return Ok(Err(no_such_user()));
    };
    // One name for one folder: keys of ours that stand there are not others.
    if account.home != usual && resolved(disk, &account.home)? == resolved(disk, &usual)? {
        account.home = usual;
    }
    let owner = account.ids;
    let fragments = format!("{}/{FRAGMENTS}", account.home);
    let facts = KeysFacts {
        sshd: host.sshd_settings(KEYS_USER)?,
        has_fragments: disk.folder(&fragments)? == Folder::There,
        has_update_ssh_keys: disk.look(UPDATE_SSH_KEYS)? != Entry::Absent,
        account,
    };
    Ok(facts.file().map(|path| KeysFile { path, owner }))
}

/// A user that the administrator's own file does not have.
fn further<H: Host>(host: &H, name: &str) -> Result<Option<Account>> {
    if let Some(account) = host.account(name)? {
        return Ok(Some(account));
    }
    Ok(Account::find(&text(host.disk(), IMAGE_USERS)?, name))
}

/// `path` without the symbolic links in it.
fn resolved<D: Disk>(disk: &D, path: &str) -> Result<String> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let mut link = None;
        let ends = path.match_indices('/').map(|(end, _)| end).skip(1);
        for end in ends.chain([path.len()]) {
            if let Entry::Link { target } = disk.look(&path[..end])? {
                link = Some((end, target));
                break;
            }
        }
        let Some((end, target)) = link else {
            return Ok(path);
        };
        let rest = &path[end..];
        let folder = path[..end]
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder);
        path = match target.strip_prefix('/') {
            Some(target) => plain(&format!("/{target}{rest}")),
            None => plain(&format!("{folder}/{target}{rest}")),
        };
    }
    Ok(path)
}

/// `path` without `.`, `..` and empty names.
fn plain(path: &str) -> String {
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => _ = names.pop(),
            name => names.push(name),
        }
    }
    format!("/{}", names.join("/"))
}

fn text<D: Disk>(disk: &D, path: &str) -> Result<String> {
    let text = disk.read(path)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// `name:x:number:…`, as in `/etc/passwd` and `/etc/group`.
fn numbers(text: &str) -> BTreeMap<String, u32> {
    let number = |line: &str| {
        let mut fields = line.split(':');
        Some((fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?))
    };
    text.lines().filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::SimulatedHost;

    #[test]
    fn links_and_dots_are_followed_and_a_circle_ends() {
        let host = SimulatedHost::new();
        let disk = host.disk();
        let root = Ids::default();
        for folder in ["/var", "/var/home", "/a", "/a/b"] {
            disk.make_folder(folder, 0o755, root).unwrap();
        }
        disk.link("/home", "var/home").unwrap();
        disk.link("/a/b/up", "../../var/./home").unwrap();
        disk.link("/circle", "/circle").unwrap();
        for (path, end) in [
            ("/home/core", "/var/home/core"),
            ("/a/b/up/core", "/var/home/core"),
            ("/var/home/core", "/var/home/core"),
            ("/circle", "/circle"),
        ] {
            assert_eq!(resolved(disk, path).unwrap(), end, "{path}");
        }
    }
}
