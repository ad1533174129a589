//! A probe that is a program of the machine. Only programs that the machine's owner allows are run, and of what they print no
//! more is kept than people read.

use std::io::{ErrorKind, PipeReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::run::{command, end, last_words};

/// How often it is looked whether it has ended.
const PAUSE: Duration = Duration::from_millis(10);
/// How much of what it printed is kept: the end of it, where programs say what went wrong.
const MOST: usize = 1024;

/// Runs a program of the machine whose root is at `root`, if it is one of those `allowed`, and says why that is not
/// healthy. It ends by its `timeout`, with all that it started.
pub fn exec_probe(
    root: &Path,
    line: &[String],
    allowed: &[String],
    timeout: Duration,
) -> Result<(), String> {
    let program = line.first().map(String::as_str).unwrap_or_default();
    if !allowed.iter().any(|it| it == program) {
        return Err(format!(
            "{program} is not run: the agent does not allow it (--allow-exec-probe, chart: agent.allowExecProbes)"
        ));
    }
    is_safe(root, program)?;
    let unstarted = |error: std::io::Error| format!("{program} cannot be started: {error}");
    let (mut said, writer) = std::io::pipe().map_err(unstarted)?;
    rustix::fs::fcntl_setfl(&said, OFlags::NONBLOCK).map_err(|error| unstarted(error.into()))?;
    let mut command = command(root, line)?;
    command.stdout(writer.try_clone().map_err(unstarted)?);
    command.stderr(writer);
    let mut child = command.spawn().map_err(unstarted)?;
    // Our ends of what it writes to are in there.
    drop(command);
    let mut words = Vec::new();
    let ended = wait(&mut child, &mut said, &mut words, timeout);
    // Whatever it left behind has no business here, and a failed wait leaves it, too.
    end(&mut child);
    listen(&mut said, &mut words);
    let words = last_words(&String::from_utf8_lossy(&words));
    let words = if words.is_empty() {
        words
    } else {
        format!(": {words}")
    };
    match ended {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => Err(format!("{program} ended with {status}{words}")),
        Ok(None) => Err(format!(
            "{program} did not end within {timeout:?} and was stopped{words}"
        )),
        Err(error) => Err(format!("cannot wait for {program}: {error}")),
    }
}

/// Whether nobody but root can have put a program there.
fn is_safe(root: &Path, program: &str) -> Result<(), String> {
    let path = root.join(program.trim_start_matches('/'));
    let found = std::fs::symlink_metadata(&path)
        .map_err(|error| format!("{program} cannot be run: {error}"))?;
    let why = if found.is_symlink() {
        "it is a link: allow and name the program that it leads to"
    } else if !found.is_file() {
        "it is no file"
    } else if found.uid() != 0 || found.mode() & 0o022 != 0 {
        "others than root may write to it"
    } else {
        return Ok(());
    };
    Err(format!("{program} is not run: {why}"))
}

/// Waits for its end; nothing if it goes on after `timeout`.
fn wait(
    child: &mut Child,
    said: &mut PipeReader,
    words: &mut Vec<u8>,
    timeout: Duration,
) -> std::io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        listen(said, words);
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() >= timeout {
            return Ok(None);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Takes in what it has printed by now, and keeps the end of it.
fn listen(said: &mut PipeReader, words: &mut Vec<u8>) {
    let mut chunk = [0; 4096];
    // Whoever prints without end is not listened to without end.
    for _ in 0..64 {
        match said.read(&mut chunk) {
            Ok(0) => return,
            Ok(length) => {
                words.extend_from_slice(chunk.get(..length).unwrap_or_default());
                let before = words.len().saturating_sub(MOST);
                words.drain(..before);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A machine with one program, which is this script; the shell is the machine's own.
    struct Machine(
        #[expect(dead_code, reason = "the folder goes with it")] tempfile::TempDir,
        String,
    );

    impl Machine {
        fn with(script: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("check");
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            Self(folder, path.display().to_string())
        }

        fn ask(&self, arguments: &[&str], timeout: Duration) -> Result<(), String> {
            let line = [&[self.1.as_str()], arguments].concat();
            let line: Vec<_> = line.into_iter().map(str::to_owned).collect();
            let allowed = ["/bin/other".to_owned(), self.1.clone()];
            exec_probe(Path::new("/"), &line, &allowed, timeout)
        }
    }

    const SOON: Duration = Duration::from_secs(5);

    /// Covers N04.
    #[test]
    fn a_program_is_healthy_when_it_ends_well_and_its_last_words_say_why_not() {
        if !rustix::process::getuid().is_root() {
            return;
        }
        assert_eq!(Machine::with("echo fine").ask(&[], SOON), Ok(()));
        let odd = Machine::with("echo first; echo \"arg $1\" >&2; exit 3");
        let why = odd.ask(&["a b; exit 0"], SOON).unwrap_err();
        assert_eq!(
            why,
            format!(
                "{} ended with exit status: 3: first; arg a b; exit 0",
                odd.1
            ),
            "an argument is one, whatever it says"
        );
        let environment = Machine::with("env; exit 1").ask(&[], SOON).unwrap_err();
        assert!(!environment.contains("CARGO"), "{environment}");
    }

    /// Covers N04.
    #[test]
    fn a_program_that_hangs_or_prints_without_end_costs_its_time_and_no_memory() {
        if !rustix::process::getuid().is_root() {
            return;
        }
        let start = Instant::now();
        let short = Duration::from_millis(300);
        let why = Machine::with("yes xxxxxxxxxxxxxxxx")
            .ask(&[], short)
            .unwrap_err();
        assert!(why.contains("did not end within 300ms"), "{why}");
        assert!(why.len() < 2 * MOST, "{}", why.len());
        // What it leaves behind goes, and does not keep us waiting.
        let left = Machine::with("sleep 1000 & echo $! > \"$0.pid\"; exit 0");
        assert_eq!(left.ask(&[], SOON), Ok(()));
        let pid = std::fs::read_to_string(format!("{}.pid", left.1)).unwrap();
        let state = Path::new("/proc").join(pid.trim()).join("stat");
        let is_gone = || {
            let stat = std::fs::read_to_string(&state);
            stat.is_err() || stat.is_ok_and(|it| it.contains(") Z "))
        };
        while !is_gone() && start.elapsed() < SOON {
            std::thread::yield_now();
        }
        assert!(is_gone(), "{pid}");
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    }

    /// Covers N04.
    #[test]
    fn nothing_is_run_that_the_owner_does_not_allow_or_that_others_can_write() {
        if !rustix::process::getuid().is_root() {
            return;
        }
        let machine = Machine::with("touch \"$0.ran\"");
        let ran = format!("{}.ran", machine.1);
        let line = [machine.1.clone()];
        for allowed in [&[][..], &["/".to_owned()], &[format!("{}2", machine.1)]] {
            let why = exec_probe(Path::new("/"), &line, allowed, SOON).unwrap_err();
            assert!(why.contains("agent.allowExecProbes"), "{why}");
        }
        let mode = |mode: u32| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&machine.1, mode).unwrap();
        };
        mode(0o775);
        assert!(
            machine
                .ask(&[], SOON)
                .unwrap_err()
                .contains("others than root")
        );
        mode(0o755);
        let link = format!("{}.link", machine.1);
        std::os::unix::fs::symlink(&machine.1, &link).unwrap();
        let allowed = [link.clone()];
        let why = exec_probe(Path::new("/"), &allowed, &allowed, SOON).unwrap_err();
        assert!(why.contains("it is a link"), "{why}");
        assert!(!Path::new(&ran).exists(), "it ran");
        assert_eq!(machine.ask(&[], SOON), Ok(()));
        assert!(Path::new(&ran).exists());
    }
}
