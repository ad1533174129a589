//! A program of the machine, run to its end or to its deadline.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often it is looked whether it has ended.
const PAUSE: Duration = Duration::from_millis(20);
/// More of its last words than this help nobody.
const LAST_WORDS: usize = 600;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A program with its arguments, on the machine whose root is at `root`.
pub(super) struct Program<'a> {
    pub(super) root: &'a Path,
    pub(super) line: &'a [&'a str],
}

/// What became of a program.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    printed: String,
    said: String,
}

impl Ended {
    /// What it printed; if it failed, why.
    pub(super) fn printed(self) -> Result<String, String> {
        if self.status.success() {
            return Ok(self.printed);
        }
        Err(match last_words(&self.said).as_str() {
            "" => format!("the program ended with {}", self.status),
            words => words.to_owned(),
        })
    }
}

impl Program<'_> {
    /// What it printed; if it failed or took too long, why.
    pub(super) fn run(&self, deadline: Duration) -> Result<String, String> {
        self.end(deadline)?.printed()
    }

    /// How it ended; if it did not, why.
    pub(super) fn end(&self, deadline: Duration) -> Result<Ended, String> {
        let mut child = command(self.root, self.line)?
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("the program cannot be started: {error}"))?;
        // Read while it runs: a full pipe would hold it up.
        let printed = gather(child.stdout.take());
        let said = gather(child.stderr.take());
        let start = Instant::now();
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if start.elapsed() < deadline => std::thread::sleep(PAUSE),
                Ok(None) => {
                    end(&mut child);
                    let seconds = deadline.as_secs();
                    return Err(format!(
                        "the program did not end within {seconds} seconds and was stopped"
                    ));
                }
                Err(error) => {
                    end(&mut child);
                    return Err(format!("cannot wait for the program: {error}"));
                }
            }
        };
        Ok(Ended {
            status,
            printed: text(printed),
            said: text(said),
        })
    }
}

/// A command line on the machine whose root is at `root`, in a process group of its own, with nothing of our environment.
pub(super) fn command(root: &Path, line: &[impl AsRef<OsStr>]) -> Result<Command, String> {
    let [program, arguments @ ..] = line else {
        return Err("the command line is empty".to_owned());
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", PATH)
        .env("LC_ALL", "C")
        .process_group(0)
        .stdin(Stdio::null());
    if root == Path::new("/") {
        command.current_dir("/");
    } else {
        let root = root.to_owned();
        let enter = move || {
            rustix::process::chroot(&root)?;
            rustix::process::chdir("/")?;
            Ok(())
        };
        // SAFETY: between fork and exec only two system calls are made, on a path whose text was
        // made before.
        unsafe { command.pre_exec(enter) };
    }
    Ok(command)
}

type Gathered = std::thread::JoinHandle<Vec<u8>>;

fn gather(pipe: Option<impl Read + Send + 'static>) -> Option<Gathered> {
    pipe.map(|mut pipe| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // What was read before it broke is all there is.
            _ = pipe.read_to_end(&mut bytes);
            bytes
        })
    })
}

fn text(gathered: Option<Gathered>) -> String {
    let bytes = gathered.and_then(|thread| thread.join().ok());
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

/// Ends it with all that it started.
pub(super) fn end(child: &mut std::process::Child) {
    if let Ok(id) = i32::try_from(child.id())
        && let Some(group) = rustix::process::Pid::from_raw(id)
    {
        _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    _ = child.kill();
    _ = child.wait();
}

/// The last lines of what it said, as one.
pub(super) fn last_words(said: &str) -> String {
    let mut words: Vec<&str> = Vec::new();
    let mut length = 0;
    for line in said
        .lines()
        .rev()
        .map(str::trim)
        .filter(|it| !it.is_empty())
    {
        length += line.len();
        if length > LAST_WORDS && !words.is_empty() {
            break;
        }
        words.insert(0, line);
    }
    words.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, deadline: Duration) -> Result<String, String> {
        let program = Program {
            root: Path::new("/"),
            line: &["sh", "-c", script],
        };
        program.run(deadline)
    }

    #[test]
    fn a_program_that_fails_has_the_last_word() {
        let minute = Duration::from_mins(1);
        assert_eq!(
            sh("echo fine; echo aside >&2", minute).as_deref(),
            Ok("fine\n")
        );
        assert_eq!(
            sh(
                "echo pulling >&2; echo 'error: no such image' >&2; exit 1",
                minute
            ),
            Err("pulling; error: no such image".to_owned())
        );
        assert!(sh("exit 3", minute).is_err_and(|why| why.contains("exit status: 3")));
        // More than a pipe holds.
        let much = sh(
            "head -c 300000 /dev/zero | tr '\\0' x; head -c 300000 /dev/zero >&2",
            minute,
        );
        assert_eq!(much.map(|text| text.len()), Ok(300_000));
    }

    #[test]
    fn a_program_that_hangs_is_stopped_with_its_children() {
        let start = Instant::now();
        let why = sh("sleep 1000 & sleep 1000", Duration::from_millis(200));
        assert!(why.is_err_and(|why| why.contains("did not end within")));
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_program_that_is_not_there_is_said_to_be_so() {
        let program = Program {
            root: Path::new("/"),
            line: &["evenkeel-no-such-program"],
        };
        let why = program.run(Duration::from_secs(1));
        assert!(why.is_err_and(|why| why.contains("cannot be started")));
    }
}
