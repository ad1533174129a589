//! Keys for SSH, made by OpenSSH itself.

use std::path::Path;
use std::process::Command;

use crate::process::run;
use crate::{Doing, Result};

/// Makes a key at `key`, and returns its public half.
pub(crate) fn generate(key: &Path) -> Result<String> {
    run(Command::new("ssh-keygen")
        .args([
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            "evenkeel-testbed",
            "-f",
        ])
        .arg(key))?;
    let public = key.with_extension("pub");
    std::fs::read_to_string(&public).doing(|| format!("cannot read {}", public.display()))
}
