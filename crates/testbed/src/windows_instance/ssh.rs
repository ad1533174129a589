//! The way in from outside: a real OpenSSH server with SFTP, keys of its own, and the client commands
//! that trust them.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::WindowsInstance;
use crate::{Doing, Error, Result, ssh_key};

/// Who may log in from the start.
const USERS: &str = "\
root:x:0:0::/root:/bin/sh
Administrator:x:0:0::/root:/bin/sh
sshd:x:74:65534::/run/sshd:/usr/sbin/nologin
";

/// Puts what sshd needs into the instance's `machine` folder, and a user's key next to it.
pub(super) fn prepare(machine: &Path) -> Result<()> {
    let user_key = machine.with_file_name("user_key");
    for key in [&machine.join("host_key"), &user_key] {
        ssh_key::generate(key)?;
    }
    let authorized = machine.join("authorized_keys");
    std::fs::copy(user_key.with_extension("pub"), &authorized)
        .doing(|| format!("cannot write {}", authorized.display()))?;
    let users = machine.join("passwd");
    std::fs::write(&users, USERS).doing(|| format!("cannot write {}", users.display()))
}

impl WindowsInstance {
    /// The file of the private key (Ed25519, OpenSSH's format) with which `Administrator` logs in.
    pub fn private_key(&self) -> PathBuf {
        self.folder().join("user_key")
    }

    /// The server's public key: `ssh-ed25519 AAAA…`.
    pub fn host_key(&self) -> Result<String> {
        let path = self.folder().join("machine/host_key.pub");
        let line = std::fs::read_to_string(&path);
        let line = line.doing(|| format!("cannot read {}", path.display()))?;
        let words: Vec<_> = line.split_whitespace().take(2).collect();
        Ok(words.join(" "))
    }

    /// Lets the owner of another key log in: a line as in `authorized_keys`.
    pub fn authorize(&self, public_key: &str) -> Result<()> {
        self.append("authorized_keys", public_key)
    }

    /// Lets the owner of this key log in, and nobody else any more.
    pub fn authorize_only(&self, public_key: &str) -> Result<()> {
        let path = self.folder().join("machine/authorized_keys");
        std::fs::write(&path, public_key).doing(|| format!("cannot write {}", path.display()))
    }

    /// Lets another user name log in, with the same keys and rights as `Administrator`.
    pub fn add_user(&self, name: &str) -> Result<()> {
        let letters = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
        if name.is_empty() || !name.chars().all(letters) {
            return Err(Error::failed(format!("{name:?} is not a user name")));
        }
        self.append("passwd", &format!("{name}:x:0:0::/root:/bin/sh"))
    }

    /// `ssh` to the instance as `Administrator`, ready for the Windows command. It trusts the
    /// instance's own host key and no other.
    pub fn ssh(&self) -> Result<Command> {
        let mut ssh = self.client("ssh")?;
        ssh.arg(format!("Administrator@{}", self.address()));
        Ok(ssh)
    }

    /// `sftp`, which runs the commands in the file `batch`. Paths there are like `/C:/k/x.exe`.
    pub fn sftp(&self, batch: &Path) -> Result<Command> {
        let mut sftp = self.client("sftp")?;
        sftp.arg("-b").arg(batch);
        sftp.arg(format!("Administrator@{}", self.address()));
        Ok(sftp)
    }

    fn client(&self, program: &str) -> Result<Command> {
        let known = self.folder().join("known_hosts");
        std::fs::write(&known, format!("{} {}\n", self.address(), self.host_key()?))
            .doing(|| format!("cannot write {}", known.display()))?;
        let mut client = Command::new(program);
        client.args([
            "-F",
            "none",
            "-o",
            "BatchMode=yes",
            "-o",
            "ConnectTimeout=10",
        ]);
        client.args([
            "-o",
            "IdentitiesOnly=yes",
            "-o",
            "StrictHostKeyChecking=yes",
        ]);
        client
            .arg("-o")
            .arg(format!("UserKnownHostsFile={}", known.display()));
        client.arg("-i").arg(self.private_key());
        Ok(client)
    }
}
