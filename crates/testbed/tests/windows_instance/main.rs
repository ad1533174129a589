//! What a Windows instance of the test bed promises, proved on real ones.
#![cfg(target_os = "linux")]

mod inside;
mod missing;
mod power;
mod remote;

use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_testbed::process::tell;
use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::windows_instance::{WindowsInstance, windows_program};
use evenkeel_testbed::{Doing, Result, need};

const SOON: Duration = Duration::from_mins(1);

/// An instance, or none if this machine has not what it needs.
fn instance(name: &str) -> Result<Option<WindowsInstance>> {
    if need::skip(&WindowsInstance::NEEDS)? {
        return Ok(None);
    }
    let start = Instant::now();
    let instance = WindowsInstance::boot(name)?;
    tell(&format!("{name} booted in {:?}", start.elapsed()));
    Ok(Some(instance))
}

fn install(instance: &WindowsInstance, bin: &str) -> Result<String> {
    let place = format!(r"C:\k\{bin}.exe");
    instance.install(&windows_program("evenkeel-testbed", bin)?, &place)?;
    Ok(place)
}

fn service(instance: &WindowsInstance, words: &[&str]) -> Result<String> {
    instance.ask(&[&["windows-probe", "service"], words].concat())
}

fn until_service(instance: &WindowsInstance, name: &str, wanted: &str) -> Result<()> {
    until(&format!("service {name} to be {wanted}"), SOON, || {
        let state = service(instance, &["state", name])?;
        Ok(if state == wanted {
            Look::Found(())
        } else {
            Look::NotYet(state)
        })
    })
}

fn file(instance: &WindowsInstance, windows: &str) -> Result<String> {
    let path = instance.path(windows)?;
    until(windows, SOON, || {
        Ok(match std::fs::read_to_string(&path) {
            Ok(text) => Look::Found(text),
            Err(error) => Look::NotYet(error.to_string()),
        })
    })
}

/// Set in the process of a test that another one starts; without it, as in a soak, there is nothing to do.
const STARTED: &str = "EVENKEEL_TESTBED_STARTED";

/// Whether another test has started this process.
fn is_started() -> bool {
    std::env::var_os(STARTED).is_some()
}

/// A command that runs one of these tests in a process of its own.
fn this_test(name: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().doing(|| "which program is this?")?);
    command
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(STARTED, "1");
    Ok(command)
}
