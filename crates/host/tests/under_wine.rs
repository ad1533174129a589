//! Runs the tests of `windows` on a Windows instance of the test bed.
#![cfg(target_os = "linux")]

use evenkeel_testbed::windows_instance::{
    WindowsInstance, windows_program, windows_test, windows_unit_tests,
};
use evenkeel_testbed::{Error, Result, need};

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
    let parts = ["engine", "files", "noticing", "services", "trust"];
    let parts = parts.map(|part| (part, tests(part)));
    let units = ("units", r"C:\k\units.exe --nocapture windows::".to_owned());
    for (part, command) in parts.into_iter().chain([units]) {
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
    }
    Ok(())
}
