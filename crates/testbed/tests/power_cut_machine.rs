//! A power cut loses what was not synced, and only that.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::time::Duration;

use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::{Doing, Outcome, PowerCutMachine, PowerCutOptions, Result, need};

const WRITER: &str = env!("CARGO_BIN_EXE_power-cut-writer");
const DEADLINE: Duration = Duration::from_mins(1);

fn machine(tree: Option<&Path>) -> Result<PowerCutMachine> {
    PowerCutMachine::new(&PowerCutOptions {
        disk_megabytes: 32,
        tree: tree.map(Path::to_owned),
        program: WRITER.into(),
    })
}

#[test]
fn a_file_written_without_sync_is_gone_after_a_power_cut_and_a_synced_one_is_there() -> Result<()> {
    if need::skip(PowerCutMachine::NEEDS)? {
        return Ok(());
    }
    let mut machine = machine(None)?;
    machine.start(&["write", "/disk"])?;
    machine.wait_for_line("both are written", DEADLINE)?;
    machine.cut()?;

    let tree = machine.tree()?;
    let found = std::fs::read_to_string(tree.path().join("synced"));
    assert_eq!(found.ok().as_deref(), Some("synced\n"));
    assert!(!tree.path().join("not-synced").exists());

    let outcome = machine.run_to_end(&["read", "/disk"], DEADLINE)?;
    assert_eq!(
        outcome.lines,
        ["synced: Ok(\"synced\\n\")", "not-synced: Err(NotFound)"]
    );
    Ok(())
}

#[test]
fn the_programs_lines_exit_code_and_files_come_back() -> Result<()> {
    if need::skip(PowerCutMachine::NEEDS)? {
        return Ok(());
    }
    let given = Scratch::new("given")?;
    let write = |path: &str, text: &str| {
        std::fs::write(given.path().join(path), text).doing(|| format!("cannot write {path}"))
    };
    std::fs::create_dir(given.path().join("etc")).doing(|| "cannot make etc")?;
    write("etc/motd", "welcome\n")?;
    write("not-synced", "old\n")?;
    let mut machine = machine(Some(given.path()))?;

    let outcome = machine.run_to_end(&["end", "42", "it's", "  one line"], DEADLINE)?;
    assert_eq!(
        outcome,
        Outcome {
            code: 42,
            lines: ["it's", "  one line", "unfinished"]
                .map(str::to_owned)
                .into(),
        }
    );
    let tree = machine.tree()?;
    for (path, text) in [("etc/motd", "welcome\n"), ("not-synced", "old\n")] {
        let found = std::fs::read_to_string(tree.path().join(path));
        assert_eq!(found.ok().as_deref(), Some(text), "{path}");
    }
    Ok(())
}

#[test]
fn a_line_that_never_comes_is_an_error_with_what_the_console_said() -> Result<()> {
    if need::skip(PowerCutMachine::NEEDS)? {
        return Ok(());
    }
    let mut machine = machine(None)?;
    let Err(off) = machine.wait_for_line("hello", DEADLINE) else {
        panic!("a machine that is off printed something");
    };
    assert_eq!(off.to_string(), "the power-cut machine is off");

    machine.start(&["write", "/disk"])?;
    machine.wait_for_line("both are written", DEADLINE)?;
    let Err(on) = machine.start(&[]) else {
        panic!("a machine was switched on twice");
    };
    assert_eq!(on.to_string(), "the power-cut machine is already on");
    assert!(machine.tree().is_err(), "a running machine's disk was read");
    let Err(late) = machine.wait_for_line("hello", Duration::from_millis(50)) else {
        panic!("the program said what it never says");
    };
    let late = late.to_string();
    assert!(
        late.contains("50ms for a line that begins with \"hello\""),
        "{late}"
    );
    assert!(late.contains("both are written"), "{late}");

    assert!(machine.cut_after(Duration::from_millis(1))?);
    let tree = machine.tree()?;
    assert!(tree.path().join("synced").exists());
    Ok(())
}
