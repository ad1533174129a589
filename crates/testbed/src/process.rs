//! Programs that the test bed starts: run to the end with their output, or owned while they run.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::wait::{Look, until, until_async};
use crate::{Doing, Error, Result, reaper};

/// How long a process may take to stand still once it is told to.
const STILL: Duration = Duration::from_secs(30);

/// Says something to the person at the terminal, also while the test harness captures output.
pub fn tell(sentence: &str) {
    let _ = writeln!(std::io::stderr(), "testbed: {sentence}");
}

/// Runs `command` to its end and returns what it printed. The error has its last words.
pub fn run(command: &mut Command) -> Result<String> {
    let output = output(command, &[])?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Error::failed(format!(
        "`{}` ended with {}: {}",
        line_of(command),
        output.status,
        words_of(&output)
    )))
}

/// Runs `command` to its end with `input` on its standard input, however it ends.
pub fn output(command: &mut Command, input: &[u8]) -> Result<Output> {
    let line = line_of(command);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .doing(|| format!("cannot run `{line}`"))?;
    let stdin = child.stdin.take();
    std::thread::scope(|scope| {
        // Written while it is read, or both sides wait for each other. A program that does not
        // read its input to the end is not at fault.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input)));
        child.wait_with_output()
    })
    .doing(|| format!("cannot run `{line}`"))
}

/// What a program that has ended had to say: its errors, else what it printed.
pub(crate) fn words_of(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    let words = if errors.trim().is_empty() {
        String::from_utf8_lossy(&output.stdout)
    } else {
        errors
    };
    words.trim().to_owned()
}

/// The command as a person would type it.
pub fn line_of(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(std::ffi::OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// A program that runs until its owner drops it. It leads its own process group, which is killed
/// whole; its output goes to a file.
#[derive(Debug)]
pub struct Running {
    name: String,
    log: PathBuf,
    child: Child,
    identity: String,
}

impl Running {
    /// Starts `command` under `name`, with both its outputs appended to `log`.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .doing(|| format!("cannot write the log {}", log.display()))?;
        let errors = output
            .try_clone()
            .doing(|| format!("cannot write the log {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .doing(|| format!("cannot start {name}"))?;
        Self::adopt(name, child, log)
    }

    /// Owns a child that was started elsewhere as the leader of its process group.
    pub fn adopt(name: &str, mut child: Child, log: &Path) -> Result<Self> {
        let identity = match reaper::identity(child.id())
            .and_then(|it| reaper::process(child.id()).map(|()| it))
        {
            Ok(identity) => identity,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(error);
            }
        };
        Ok(Self {
            name: name.to_owned(),
            log: log.to_owned(),
            child,
            identity,
        })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// An error with its last words, if it has ended.
    pub fn still_runs(&mut self) -> Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => Err(Error::failed(format!(
                "{} ended with {status}: {}",
                self.name,
                self.last_words()
            ))),
        }
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .doing(|| format!("cannot read the status of {}", self.name))
    }

    /// The last lines it printed.
    pub fn last_words(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.trim_end().lines().rev().take(8).collect();
        if lines.is_empty() {
            return "it printed nothing".to_owned();
        }
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// The processor time that it has had so far, without its children.
    pub fn processor_time(&self) -> Result<Duration> {
        let stat = format!("/proc/{}/stat", self.id());
        let text = std::fs::read_to_string(&stat).doing(|| format!("cannot read {stat}"))?;
        // User and system time, in hundredths of a second.
        let after = text.rsplit(')').next().unwrap_or_default();
        let ticks = after.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks.filter_map(|it| it.parse::<u64>().ok()).sum();
        Ok(Duration::from_millis(ticks * 10))
    }

    /// Sends `signal` to the process alone, not to its group.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        rustix::process::kill_process(self.pid()?, signal)
            .doing(|| format!("cannot signal {} ({})", self.name, self.id()))
    }

    /// Waits until each thread of it has taken note of the signal that stops it: on another processor one may run
    /// on for a moment, and answer.
    pub fn until_stopped(&self) -> Result<()> {
        let tasks = format!("/proc/{}/task", self.id());
        until(&format!("{} to stand still", self.name), STILL, || {
            let threads = std::fs::read_dir(&tasks).doing(|| format!("cannot read {tasks}"))?;
            let running = threads.flatten().find_map(|thread| {
                let stat = std::fs::read_to_string(thread.path().join("stat")).ok()?;
                let (_, rest) = stat.rsplit_once(") ")?;
                (!rest.starts_with('T')).then_some(stat)
            });
            Ok(running.map_or(Look::Found(()), Look::NotYet))
        })
    }

    /// Tells it to stop, and waits until it has, well and in time.
    pub async fn stop(&mut self, within: Duration) -> Result<()> {
        self.signal(Signal::TERM)?;
        let what = format!("{} to stop", self.name);
        let status = until_async(&what, within, async || {
            Ok(match self.ended()? {
                Some(status) => Look::Found(status),
                None => Look::NotYet(self.last_words()),
            })
        })
        .await?;
        if status.success() {
            return Ok(());
        }
        let how = format!("{} ended with {status}", self.name);
        Err(Error::failed(format!("{how}: {}", self.last_words())))
    }

    /// Kills it and all of its group, and waits until it is gone.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.ended()? {
            return Ok(status);
        }
        let _ = rustix::process::kill_process_group(self.pid()?, Signal::KILL);
        let status = self
            .child
            .wait()
            .doing(|| format!("cannot wait for {}", self.name))?;
        reaper::ended(&self.identity);
        Ok(status)
    }

    fn pid(&self) -> Result<Pid> {
        i32::try_from(self.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| Error::failed(format!("{} has no valid process id", self.name)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.kill().is_err() {
            tell(&format!(
                "{} ({}) could not be killed",
                self.name,
                self.id()
            ));
        }
    }
}

/// Whether `status` says that a signal ended the program.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal().is_some()
}
