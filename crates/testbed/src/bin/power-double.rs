//! The power switch of a Windows instance, as its programs reach it. It stands in for `shutdown.exe`
//! (`/r`, `/s`) and for Wine's `wineboot.exe`, which is what `ExitWindowsEx` starts (with
//! `--end-session` or `--kill`, and `--shutdown` if the power is to stay off): it asks the test bed
//! for a real reboot of the whole instance, in which every process ends. A log-off looks the same and
//! is a reboot too. All else that `wineboot.exe` is asked for, Wine's own does.

use std::process::{Command, ExitCode};

/// A program of the system below Wine, which reaches the instance's power supply.
const SWITCH: &str = r"Z:\machine\switch.sh";
/// Wine's own `wineboot.exe`, under the name it has in an instance.
const WINEBOOT: &str = r"C:\windows\system32\wineboot-wine.exe";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let done = match wanted(&arguments) {
        // Wine gives no handle to wait on for a program of the system below.
        Some(request) => Command::new(SWITCH)
            .arg(request)
            .spawn()
            .map(|_| 0)
            .map_err(|error| format!("cannot run {SWITCH}: {error}")),
        None if is_wineboot(&arguments) => Command::new(WINEBOOT)
            .args(arguments.iter().skip(1))
            .status()
            .map(|status| status.code().unwrap_or(1))
            .map_err(|error| format!("cannot run {WINEBOOT}: {error}")),
        None => Err("this stand-in for shutdown.exe knows /r (reboot) and /s (off)".to_owned()),
    };
    match done {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
        Err(sentence) => {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        }
    }
}

fn is_wineboot(arguments: &[String]) -> bool {
    let program = arguments.first().map(|it| it.to_lowercase());
    program.is_some_and(|it| it.trim_end_matches(".exe").ends_with("wineboot"))
}

fn wanted(arguments: &[String]) -> Option<&'static str> {
    let any = |of: &[&str]| {
        let mut rest = arguments.iter().skip(1);
        rest.any(|argument| of.iter().any(|it| argument.eq_ignore_ascii_case(it)))
    };
    if any(&["--shutdown", "/s", "-s", "/p", "-p"]) {
        Some("off")
    } else if any(&[
        "--end-session",
        "--kill",
        "--restart",
        "/r",
        "-r",
        "/g",
        "-g",
    ]) {
        Some("reboot")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_restart_or_a_shutdown_turns_the_power_off() {
        let asked = |line: &str| {
            let arguments: Vec<_> = line.split(' ').map(str::to_owned).collect();
            wanted(&arguments)
        };
        assert_eq!(asked("shutdown.exe /r /t 0"), Some("reboot"));
        assert_eq!(asked("wineboot.exe --end-session"), Some("reboot"));
        assert_eq!(asked("wineboot.exe --kill --shutdown"), Some("off"));
        assert_eq!(asked("shutdown.exe /S"), Some("off"));
        assert_eq!(asked("wineboot.exe --init"), None);
        assert!(is_wineboot(&[
            r"C:\windows\system32\WINEBOOT.EXE".to_owned()
        ]));
        assert!(!is_wineboot(&["shutdown".to_owned()]));
    }
}
