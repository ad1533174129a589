//! What a test needs of the machine it runs on, and the sentence that says how to get it.
//!
//! In continuous integration and in `./test` (`CI` is set) a missing thing fails the test; where a person runs
//! it alone, the test is skipped with the same sentence. `./test --fast` sets `EVENKEEL_NO_TESTBED`, which skips
//! every test that needs anything at all.

use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Something of the machine that a test cannot do without.
#[derive(Debug, Clone, Copy)]
pub enum Need {
    /// Name spaces, mounts and nspawn are root's.
    Root,
    /// Programs that the test bed makes: at hand, or a compiler that makes them.
    Made(fn() -> Result<()>),
    /// A program on the path, and the Debian package that brings it.
    Program(&'static str, &'static str),
    /// Rust's standard library for another system, by the name of the target.
    RustTarget(&'static str),
}

impl Need {
    /// Whether it is there; if not, the sentence that says how to get it.
    pub fn check(self) -> Result<()> {
        match self {
            Self::Root if rustix::process::geteuid().is_root() => Ok(()),
            Self::Root => Err(Error::Missing(
                "this needs root (for namespaces and mounts): run it as root, for example with sudo"
                    .to_owned(),
            )),
            Self::Made(can_be_had) => can_be_had(),
            Self::Program(program, package) => find(program).map(|_| ()).ok_or_else(|| {
                Error::Missing(format!(
                    "`{program}` is not installed: apt-get install {package}"
                ))
            }),
            Self::RustTarget(target) if has_target(target) => Ok(()),
            Self::RustTarget(target) => Err(Error::Missing(format!(
                "Rust cannot build for {target} here: rustup target add {target}"
            ))),
        }
    }
}

fn has_target(target: &str) -> bool {
    let mut rustc = std::process::Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", target]);
    let folder = crate::process::run(&mut rustc);
    let mut files = folder.ok().and_then(|it| std::fs::read_dir(it.trim()).ok());
    files.as_mut().is_some_and(|files| files.next().is_some())
}

/// Whether the calling test must be skipped because `needs` are not met.
///
/// `Ok(true)`: skip it, the reason was printed. In continuous integration that is an error instead.
pub fn skip(needs: &[Need]) -> Result<bool> {
    if std::env::var_os("EVENKEEL_NO_TESTBED").is_some_and(|value| !value.is_empty()) {
        return Ok(true);
    }
    for need in needs {
        if let Err(missing) = need.check() {
            if std::env::var_os("CI").is_some() {
                return Err(missing);
            }
            crate::process::tell(&format!("skipped: {missing}"));
            return Ok(true);
        }
    }
    Ok(false)
}

/// Where `program` is on the path, or in the folders of system administration.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let administration =
        ["/usr/sbin", "/sbin", "/usr/lib/wine", "/usr/lib/openssh"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(administration)
        .map(|folder| folder.join(program))
        .find(|candidate| is_program(candidate))
}

pub(crate) fn is_program(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok() && path.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_one_sentence_with_the_command_that_brings_it() {
        let error = Need::Program("no-such-program", "no-such-package")
            .check()
            .unwrap_err();
        assert_eq!(
            error,
            Error::Missing(
                "`no-such-program` is not installed: apt-get install no-such-package".to_owned()
            )
        );
        assert_eq!(Need::Program("sh", "dash").check(), Ok(()));
        let error = Need::RustTarget("no-such-target").check().unwrap_err();
        assert_eq!(
            error.to_string(),
            "Rust cannot build for no-such-target here: rustup target add no-such-target"
        );
    }
}
