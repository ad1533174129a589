//! What is left of a test process that was killed: nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_testbed::process::Running;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::{Doing, Error, Result};

/// Names the file in which the victim says what it started; set by the test that kills it.
const SAYS: &str = "EVENKEEL_TESTBED_VICTIM";

/// Not a test: it runs only in the child process that the test below kills.
#[test]
#[ignore = "the victim of the other test"]
fn victim() -> Result<()> {
    let Some(says) = std::env::var_os(SAYS) else {
        return Ok(());
    };
    let scratch = Scratch::new("victim")?;
    let log = scratch.path().join("log");
    // A process with a child of its own: both must go.
    let mut shell = Command::new("sh");
    shell.args(["-c", "sleep 1000 & echo $!; wait"]);
    let running = Running::start("a shell", &mut shell, &log)?;
    let child = until("the shell's child", Duration::from_secs(10), || {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        Ok(match said.trim() {
            "" => Look::NotYet("nothing".to_owned()),
            child => Look::Found(child.to_owned()),
        })
    })?;
    let said = format!("{}\n{child}\n{}\n.", running.id(), scratch.path().display());
    std::fs::write(says, said).doing(|| "cannot say what was started")?;
    until("the kill", Duration::from_mins(1), || {
        Ok(Look::NotYet("alive".to_owned()))
    })
}

#[test]
fn nothing_survives_a_killed_test_process() -> Result<()> {
    let scratch = Scratch::new("reaper")?;
    let says = scratch.path().join("says");
    let this = std::env::current_exe().doing(|| "cannot find this test program")?;
    let mut victim = Command::new(this)
        .args(["victim", "--exact", "--ignored"])
        .env(SAYS, &says)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .doing(|| "cannot start the victim")?;
    let said = until(
        "the victim to start something",
        Duration::from_secs(20),
        || {
            let said = std::fs::read_to_string(&says).unwrap_or_default();
            Ok(if said.ends_with('.') {
                Look::Found(said)
            } else {
                Look::NotYet(said)
            })
        },
    );
    let killed = victim.kill().and_then(|()| victim.wait());
    killed.doing(|| "cannot kill the victim")?;
    let said = said?;
    let [shell, child, folder, _] = said.lines().collect::<Vec<_>>()[..] else {
        return Err(Error::failed(format!("the victim said {said}")));
    };
    let traces = [
        Path::new("/proc").join(shell),
        Path::new("/proc").join(child),
        PathBuf::from(folder),
    ];
    until(
        "everything of the victim to go",
        Duration::from_secs(10),
        || {
            let left: Vec<_> = traces.iter().filter(|trace| is_there(trace)).collect();
            Ok(if left.is_empty() {
                Look::Found(())
            } else {
                Look::NotYet(format!("{left:?}"))
            })
        },
    )
}

/// A dead process that nobody has waited for yet is not there any more.
fn is_there(trace: &Path) -> bool {
    let state = std::fs::read_to_string(trace.join("stat")).unwrap_or_default();
    trace.exists() && !state.contains(") Z ")
}
