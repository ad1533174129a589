//! Programs for Windows, built here by the machine's own cargo and mingw when a test wants them.

use std::path::PathBuf;

use crate::need::Need;
use crate::{Error, Result, workspace};

/// The target of every Windows program.
pub const TARGET: &str = "x86_64-pc-windows-gnu";

/// What building for Windows needs of this machine.
pub(super) const NEEDS: [Need; 2] = [
    Need::Program("x86_64-w64-mingw32-gcc", "mingw-w64"),
    Need::RustTarget(TARGET),
];

/// The program `bin` of the workspace's `package`, built for Windows; once per test process.
pub fn windows_program(package: &str, bin: &str) -> Result<PathBuf> {
    windows_programs(package, &[bin])?
        .pop()
        .ok_or_else(|| Error::failed(format!("{package} has no program {bin}")))
}

/// Several programs of one package, in the order asked for. A benchmark gets what is shipped.
pub fn windows_programs(package: &str, bins: &[&str]) -> Result<Vec<PathBuf>> {
    for need in NEEDS {
        need.check()?;
    }
    let profile = match workspace::profile()? {
        shipped if shipped == "release" => shipped,
        _ => "dev".to_owned(),
    };
    workspace::programs(package, bins, &["--target", TARGET, "--profile", &profile])
}

/// The program that runs the integration test `test` of the workspace's `package` on Windows.
pub fn windows_test(package: &str, test: &str) -> Result<PathBuf> {
    for need in NEEDS {
        need.check()?;
    }
    workspace::test(package, test, &["--target", TARGET])
}

/// The program that runs the unit tests of the workspace's `package` on Windows: of its library
/// (`--lib`), or of a program (`--bin NAME`).
pub fn windows_unit_tests(package: &str, of: &[&str]) -> Result<PathBuf> {
    for need in NEEDS {
        need.check()?;
    }
    workspace::unit_tests(package, of, &["--target", TARGET])
}
