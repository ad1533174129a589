//! The Wine prefix that every instance is a layer over: made once, kept in the cache.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::need::find;
use crate::process::{Running, run, tell};
use crate::scratch::Scratch;
use crate::wait::{Look, until};
use crate::{Doing, Error, Result, cache};

const SCRIPT: &str = include_str!("template.sh");
const LIBRARY: &str = include_str!("bcryptprimitives.c");

/// A prefix that calls itself Windows 10 and can run Rust programs.
pub(super) fn template() -> Result<PathBuf> {
    let wine = find("wine64").ok_or_else(|| {
        Error::Missing("`wine64` is not installed: apt-get install wine64".to_owned())
    })?;
    let version = run(Command::new(wine).arg("--version"))?;
    let mark = mark(&[&version, SCRIPT, LIBRARY, super::ENVIRONMENT]);
    let library = library()?;
    cache::entry(&format!("windows/prefix-{mark}"), 900, |place| {
        make(place, &library)
    })
}

fn make(place: &Path, library: &Path) -> Result<()> {
    tell("making a Windows prefix, once: about ten seconds");
    let scratch = Scratch::new("template")?;
    let log = scratch.path().join("log");
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["--mount", "--net", "--uts", "--propagation", "private"])
        .args(["env", "-i", "sh", "-c", SCRIPT, "template"])
        .args([place, library])
        .arg(super::ENVIRONMENT);
    let mut making = Running::start("a Windows prefix in the making", &mut unshare, &log)?;
    // Twelve seconds of work; with both cores busy it has taken more than three minutes.
    let ended = until("a Windows prefix", Duration::from_mins(10), || {
        Ok(match making.ended()? {
            Some(status) => Look::Found(status),
            None => Look::NotYet(making.last_words()),
        })
    })?;
    if ended.success() {
        return Ok(());
    }
    Err(Error::failed(format!(
        "cannot make a Windows prefix: {}",
        making.last_words()
    )))
}

/// `bcryptprimitives.dll`, which Wine 8 lacks and every Rust program asks for random numbers.
fn library() -> Result<PathBuf> {
    let name = format!("windows/bcryptprimitives-{}.dll", mark(&[LIBRARY]));
    cache::entry(&name, 1, |place| {
        let scratch = Scratch::new("library")?;
        let source = scratch.path().join("bcryptprimitives.c");
        std::fs::write(&source, LIBRARY).doing(|| "cannot write bcryptprimitives.c")?;
        super::programs::NEEDS[0].check()?;
        let mut compiler = Command::new("x86_64-w64-mingw32-gcc");
        compiler.args(["-shared", "-O2", "-s", "-Wall", "-Werror", "-o"]);
        run(compiler.arg(place).arg(&source).arg("-ladvapi32")).map(|_| ())
    })
}

fn mark(parts: &[&str]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part);
    }
    let mut whole = format!("{:x}", digest.finalize());
    whole.truncate(16);
    whole
}
