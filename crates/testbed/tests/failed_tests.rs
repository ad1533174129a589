//! A test run goes on after a failure, and ends with what failed and how to run that alone.
#![cfg(target_os = "linux")]

use std::io::Write;
use std::process::{Command, Stdio};

/// What `cargo test --no-fail-fast` prints.
const OUTPUT: &str = "\
   Compiling evenkeel-agent v0.1.0
     Running unittests src/lib.rs (target/debug/deps/evenkeel_api-1)

running 1 test
test names::tests::all_are_here ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s

     Running tests/agent/main.rs (target/debug/deps/agent-1)

running 3 tests
test windows::trouble::one ... FAILED
test drift::two ... ok
test power::three ... FAILED

failures:
    power::three
    windows::trouble::one

error: test failed, to rerun pass `-p evenkeel-agent --test agent`
     Running tests/evenkeel/main.rs (target/debug/deps/evenkeel-1)
error: test failed, to rerun pass `-p evenkeel-cli --test evenkeel`

Caused by:
  process didn't exit successfully: `evenkeel-1` (signal: 9, SIGKILL: kill)
   Doc-tests evenkeel_api

running 1 test
test crates/api/src/version.rs - version::Version (line 9) ... FAILED

error: doctest failed, to rerun pass `-p evenkeel-api --doc`
error: 3 targets failed:
    `-p evenkeel-agent --test agent`
    `-p evenkeel-cli --test evenkeel`
    `-p evenkeel-api --doc`
";

/// Covers A08.
#[test]
fn what_failed_is_listed_with_the_command_that_runs_it_alone() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/failed-tests.awk");
    let mut awk = Command::new("awk")
        .args(["-f", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = awk.stdin.take().unwrap();
    input.write_all(OUTPUT.as_bytes()).unwrap();
    drop(input);
    let said = awk.wait_with_output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    assert_eq!(
        said.lines().collect::<Vec<_>>(),
        [
            "cargo test -p evenkeel-agent --test agent -- --exact windows::trouble::one",
            "cargo test -p evenkeel-agent --test agent -- --exact power::three",
            "cargo test -p evenkeel-cli --test evenkeel   (it ended before its tests did)",
            "cargo test -p evenkeel-api --doc -- --exact crates/api/src/version.rs - version::Version (line 9)",
        ]
    );
}

/// Covers A08.
#[test]
fn one_suite_that_fails_hides_no_other() {
    let script = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../test"));
    let script = script.unwrap();
    let runs = script.lines().filter(|line| line.contains("cargo test "));
    for line in runs.filter(|line| !line.trim_start().starts_with('#')) {
        assert!(line.contains("--no-fail-fast"), "{line}");
    }
}
