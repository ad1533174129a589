//! What makes a node itself and no other: its host name, machine id and ssh keys, laid into its own
//! layer before its first boot.

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Doing, Error, Result, ssh_key};

/// The keys of one node's ssh, in a folder of this machine.
#[derive(Debug)]
pub(super) struct Keys {
    folder: PathBuf,
}

impl Keys {
    /// The private key with which root logs in.
    pub(super) fn login(&self) -> PathBuf {
        self.folder.join("login")
    }

    /// An ssh client that trusts the node's host key alone and asks nobody anything.
    pub(super) fn ssh(&self, address: Ipv4Addr) -> Command {
        let mut command = Command::new("ssh");
        command.args(["-F", "none", "-i"]).arg(self.login());
        let known = self.folder.join("known_hosts");
        command
            .arg("-o")
            .arg(format!("UserKnownHostsFile={}", known.display()));
        for option in [
            "BatchMode=yes",
            "ConnectTimeout=10",
            "GlobalKnownHostsFile=none",
            "IdentitiesOnly=yes",
            "LogLevel=ERROR",
            "StrictHostKeyChecking=yes",
        ] {
            command.args(["-o", option]);
        }
        command.arg(format!("root@{address}"));
        command
    }
}

/// Lays the identity of node `name` into its layer `upper`, and keeps the keys in `folder`.
pub(super) fn lay(name: &str, address: Ipv4Addr, upper: &Path, folder: &Path) -> Result<Keys> {
    let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid")
        .doing(|| "cannot read a random machine id")?;
    make_folder(&upper.join("etc/ssh"), 0o755)?;
    make_folder(&upper.join("root"), 0o700)?;
    make_folder(&upper.join("root/.ssh"), 0o700)?;
    make_folder(folder, 0o700)?;
    write(&upper.join("etc/hostname"), &format!("{name}\n"))?;
    write(&upper.join("etc/machine-id"), &uuid.replace('-', ""))?;

    let host_key = upper.join("etc/ssh/ssh_host_ed25519_key");
    let host_public = ssh_key::generate(&host_key)?;
    write(
        &folder.join("known_hosts"),
        &format!("{address} {host_public}"),
    )?;
    let login_public = ssh_key::generate(&folder.join("login"))?;
    write(&upper.join("root/.ssh/authorized_keys"), &login_public)?;
    Ok(Keys {
        folder: folder.to_owned(),
    })
}

/// Whether `name` can be a host name and a machine name alike.
pub(super) fn check(name: &str) -> Result<()> {
    let fine = (1..=63).contains(&name.len())
        && !name.starts_with('-')
        && !name.ends_with('-')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if fine {
        return Ok(());
    }
    Err(Error::failed(format!(
        "{name:?} cannot be a node's name: use a to z, 0 to 9 and -, at most 63 of them"
    )))
}

fn make_folder(path: &Path, mode: u32) -> Result<()> {
    std::fs::create_dir_all(path)
        .and_then(|()| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)))
        .doing(|| format!("cannot make {}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).doing(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_host_can_have_is_refused() {
        assert_eq!(check("worker-0"), Ok(()));
        for name in ["", "-a", "a-", "A", "a.b", "a/b", "a b", &"a".repeat(64)] {
            assert!(check(name).is_err(), "{name}");
        }
    }
}
