//! Programs of this workspace, built by the machine's own cargo when a test of another package wants
//! them. (A test of the same package has them from cargo.)
//!
//! They are built into the workspace's own target folder, where they stay: up to date, that takes a
//! fraction of a second.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::{Doing, Error, Result};

/// The program `bin` as it is built next to the integration test `test` of its package, where the tests of all packages
/// are built together: then it is there already. On its own, with other features of what it depends on, all of that would
/// be built once more, for minutes.
pub fn program(test: &str, bin: &str) -> Result<PathBuf> {
    // Held while building: whoever comes second finds it built.
    static BUILDING: Mutex<()> = Mutex::new(());
    let _alone = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let options = ["--profile", &profile()?, "--test", test];
    let messages = cargo(&["test", "--no-run"], &["--workspace"], &options)?;
    let found = executables(&messages, Some("bin"));
    let found = found.into_iter().find(|(name, _)| name == bin);
    found
        .map(|(_, path)| path)
        .ok_or_else(|| Error::failed(format!("program {bin} is not next to test {test}")))
}

/// Several programs of one package, built with these options of cargo, in the order asked for.
pub(crate) fn programs(package: &str, bins: &[&str], options: &[&str]) -> Result<Vec<PathBuf>> {
    type Key = (String, String, String);
    static BUILT: Mutex<BTreeMap<Key, PathBuf>> = Mutex::new(BTreeMap::new());
    // Held while building: whoever comes second finds it built.
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let key = |bin: &str| (package.to_owned(), bin.to_owned(), options.join(" "));
    let missing: Vec<_> = bins
        .iter()
        .filter(|bin| !built.contains_key(&key(bin)))
        .collect();
    if !missing.is_empty() {
        for (bin, path) in build(package, &missing, options)? {
            built.insert(key(&bin), path);
        }
    }
    bins.iter()
        .map(|bin| {
            let path = built.get(&key(bin)).cloned();
            path.ok_or_else(|| Error::failed(format!("{package} has no program {bin}")))
        })
        .collect()
}

/// The program that runs the integration test `test` of `package`, built with these options of cargo.
pub(crate) fn test(package: &str, test: &str, options: &[&str]) -> Result<PathBuf> {
    let built = build(package, &[], &[options, &["--test", test]].concat())?;
    let found = built.into_iter().find(|(name, _)| name == test);
    found
        .map(|(_, path)| path)
        .ok_or_else(|| Error::failed(format!("{package} has no test {test}")))
}

/// The program that runs the unit tests of a package: of its library (`--lib`), or of a program.
pub(crate) fn unit_tests(package: &str, of: &[&str], options: &[&str]) -> Result<PathBuf> {
    let built = run(&["test", "--no-run"], package, &[], &[options, of].concat())?;
    let found = built.into_iter().next();
    found
        .map(|(_, path)| path)
        .ok_or_else(|| Error::failed(format!("{package} has no unit tests")))
}

/// The profile that the running test was built with: the name of the folder it is in.
pub(crate) fn profile() -> Result<String> {
    let test = std::env::current_exe().doing(|| "cannot find the running test")?;
    let folder = test.ancestors().nth(2).and_then(Path::file_name);
    Ok(match folder.and_then(|name| name.to_str()) {
        Some("debug") | None => "dev".to_owned(),
        Some(profile) => profile.to_owned(),
    })
}

fn build(package: &str, bins: &[&&str], options: &[&str]) -> Result<Vec<(String, PathBuf)>> {
    run(&["build"], package, bins, options)
}

fn run(
    verb: &[&str],
    package: &str,
    bins: &[&&str],
    options: &[&str],
) -> Result<Vec<(String, PathBuf)>> {
    let bins = bins.iter().flat_map(|bin| ["--bin", bin]);
    let what: Vec<&str> = ["-p", package].into_iter().chain(bins).collect();
    Ok(executables(&cargo(verb, &what, options)?, None))
}

/// What cargo says when it builds `what` with these options.
fn cargo(verb: &[&str], what: &[&str], options: &[&str]) -> Result<String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(verb)
        .arg("--message-format=json-render-diagnostics")
        .args(options)
        .args(what)
        .current_dir(folder())
        .stdin(Stdio::null());
    // Cargo tells its tests about their package; some build scripts would take that for a change.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let prefixes = [
            "CARGO_PKG_",
            "CARGO_MANIFEST_",
            "CARGO_BIN_",
            "CARGO_CRATE_",
        ];
        if prefixes.iter().any(|it| text.starts_with(it)) {
            cargo.env_remove(&name);
        }
    }
    let output = cargo
        .output()
        .doing(|| "cannot run cargo: install Rust (https://rustup.rs)")?;
    if !output.status.success() {
        return Err(Error::failed(format!(
            "cannot build {} ({}): {}",
            what.join(" "),
            options.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What cargo's messages say it built, of that kind only if there is one.
fn executables(messages: &str, kind: Option<&str>) -> Vec<(String, PathBuf)> {
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    messages
        .filter_map(|message| {
            let path = message.get("executable")?.as_str()?.into();
            let target = message.get("target")?;
            let name = target.get("name")?.as_str()?.to_owned();
            let kinds = target.get("kind").and_then(|it| it.as_array());
            let mut kinds = kinds.into_iter().flatten();
            let is_it = kind.is_none_or(|kind| kinds.any(|it| it == kind));
            is_it.then_some((name, path))
        })
        .collect()
}

fn folder() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cargo_made_executable_is_a_program() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"a_library","kind":["lib"]},"executable":null}
{"reason":"compiler-artifact","target":{"name":"probe","kind":["test"]},"executable":"/target/probe-test.exe"}
{"reason":"compiler-artifact","target":{"name":"probe","kind":["bin"]},"executable":"/target/probe.exe"}
{"reason":"build-finished","success":true}"#;
        let found = |kind| executables(messages, kind);
        let one = ("probe".to_owned(), PathBuf::from("/target/probe-test.exe"));
        let two = ("probe".to_owned(), PathBuf::from("/target/probe.exe"));
        assert_eq!(found(None), [one, two.clone()]);
        assert_eq!(found(Some("bin")), [two]);
    }

    #[test]
    fn the_workspace_is_where_its_lock_file_is() {
        assert!(folder().join("Cargo.lock").is_file());
    }
}
