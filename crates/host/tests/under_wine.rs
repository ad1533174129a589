//! Runs the tests of `windows` on a Windows instance of the test bed.
#![cfg(target_os = "linux")]

use evenkeel_testbed::windows_instance::{
    WindowsInstance, windows_program, windows_test, windows_unit_tests,
};
use evenkeel_testbed::{Error, Result, need};

/// What the part `restarts` asks the manager for, in its order: to start a service again, or not to.
const RESTARTS: [bool; 5] = [true, false, false, true, true];

/// Every time that the manager was told whether it starts a service again when it ends by itself. This one only writes
/// it down: with a period after which crashes are forgotten, or with none, which takes all failure actions away.
fn restarts_asked_for(instance: &WindowsInstance) -> Result<Vec<bool>> {
    let log = instance.manager_log()?.into_iter();
    let asked = log.filter(|line| line.contains("SERVICE_CONFIG_FAILURE_ACTIONS not implemented"));
    Ok(asked.map(|line| !line.contains("period 0 ")).collect())
}

/// Covers W10.
#[test]
fn a_windows_machine_keeps_its_promises() -> Result<()> {
    if need::skip(&WindowsInstance::NEEDS)? {
        return Ok(());
    }
    let tests = windows_test("evenkeel-host", "windows")?;
    let instance = WindowsInstance::boot("host")?;
    instance.install(&tests, r"C:\k\tests.exe")?;
    instance.install(
        &windows_program("evenkeel-testbed", "service-double")?,
        r"C:\k\service-double.exe",
    )?;
    let address = instance.address().to_string();
    let units = windows_unit_tests("evenkeel-host", &["--lib"])?;
    instance.install(&units, r"C:\k\units.exe")?;
    // One after the other: each has the time that one command may take.
    let tests = |part: &str| format!(r"C:\k\tests.exe --test-threads=1 --nocapture {part}::");
    let parts = [
        "engine", "files", "noticing", "restarts", "services", "trust",
    ];
    let parts = parts.map(|part| (part, tests(part)));
    let units = ("units", r"C:\k\units.exe --nocapture windows::".to_owned());
    for (part, command) in parts.into_iter().chain([units]) {
        let before = restarts_asked_for(&instance)?.len();
        let log = format!(r"C:\k\{part}.log");
        let line = format!(r"set EVENKEEL_TEST_ADDRESS={address}&& {command} > {log} 2>&1");
        let ended = instance.cmd(&line);
        let text = std::fs::read(instance.path(&log)?).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        print!("{text}");
        let status = ended?.status;
        if !status.success() || !text.contains("test result: ok") || text.contains("running 0") {
            return Err(Error::failed(format!("{part} ended with {status}: {text}")));
        }
        if part == "restarts" {
            let asked = restarts_asked_for(&instance)?.split_off(before);
            assert_eq!(asked, RESTARTS, "made, watched, put, not watched");
        }
    }
    Ok(())
}
