//! A machine with a real kernel and a real disk whose power can be cut: QEMU, without KVM.
//!
//! It boots into a program of ours within seconds and has nothing else on it, no systemd and no
//! network. After a cut, what the program had synced is on the disk and nothing else: `init.sh` says
//! how. For units, D-Bus and reboots there is [`SystemdNode`](crate::SystemdNode).

mod disk;
mod initramfs;
mod kernel;
mod modules;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::need::Need;
use crate::process::Running;
use crate::scratch::Scratch;
use crate::wait::{Look, until};
use crate::{Doing, Error, Result};
use disk::Disk;
use initramfs::Initramfs;
use kernel::Kernel;

/// What `init.sh` says before and after the program.
const STARTED: &str = "evenkeel-testbed: started";
const ENDED: &str = "evenkeel-testbed: ended with ";

/// A boot takes about three seconds; this is for a machine that is busy with much else.
const BOOT: Duration = Duration::from_mins(2);

/// What the machine is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PowerCutOptions {
    /// The size of its disk.
    pub disk_megabytes: u32,
    /// What is on the disk at first; empty if there is none.
    pub tree: Option<PathBuf>,
    /// The program it runs, a file of this machine, which finds the disk at `/disk`. Its libraries
    /// come along.
    pub program: PathBuf,
}

/// How the program ended, and all that it printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Its exit code; more than 128 if a signal ended it.
    pub code: i32,
    /// Its lines, from both its outputs.
    pub lines: Vec<String>,
}

/// A machine that is switched on by [`start`](Self::start), as often as one likes, and keeps its disk.
#[derive(Debug)]
pub struct PowerCutMachine {
    // The order is that of taking it down.
    qemu: Option<Running>,
    console: PathBuf,
    boots: u32,
    kernel: Kernel,
    /// What every boot has in memory; `init` with the arguments of the program is added per boot.
    base: Vec<u8>,
    disk: Disk,
    scratch: Scratch,
}

impl PowerCutMachine {
    /// What a computer must have to run one.
    pub const NEEDS: &[Need] = &[
        Need::Program("qemu-system-x86_64", "qemu-system-x86"),
        Need::Program("mkfs.ext4", "e2fsprogs"),
        Need::Program("e2fsck", "e2fsprogs"),
        Need::Program("debugfs", "e2fsprogs"),
        Need::Program("ldd", "libc-bin"),
        Need::Program("apt-get", "apt"),
        Need::Program("dpkg-deb", "dpkg"),
    ];

    /// Makes kernel and shell ready, so that the first machine does not have to.
    pub fn prepare() -> Result<()> {
        for need in Self::NEEDS {
            need.check()?;
        }
        Kernel::get().map(|_| ())
    }

    /// Makes a machine, which is off.
    pub fn new(options: &PowerCutOptions) -> Result<Self> {
        for need in Self::NEEDS {
            need.check()?;
        }
        let kernel = Kernel::get()?;
        let scratch = Scratch::new("machine")?;
        let disk = Disk::new(
            &scratch.path().join("disk"),
            options.disk_megabytes,
            options.tree.as_deref(),
        )?;
        let mut base = Initramfs::default();
        for folder in ["/dev", "/disk", "/proc", "/sys", "/tmp"] {
            base.folder(folder);
        }
        base.copy(&kernel.shell(), "/bin/busybox")?;
        for module in kernel.modules()? {
            let name = module.file_name().unwrap_or_default().to_string_lossy();
            base.copy(&module, &format!("/modules/{name}"))?;
        }
        base.program(&options.program, "/bin/program")?;
        Ok(Self {
            qemu: None,
            console: scratch.path().join("console-0.log"),
            boots: 0,
            kernel,
            base: base.finish(),
            disk,
            scratch,
        })
    }

    /// Switches it on and waits until its program is started with `arguments`.
    pub fn start(&mut self, arguments: &[&str]) -> Result<()> {
        if let Some(qemu) = &mut self.qemu
            && qemu.ended()?.is_none()
        {
            return Err(Error::failed("the power-cut machine is already on"));
        }
        self.boots += 1;
        self.console = self
            .scratch
            .path()
            .join(format!("console-{}.log", self.boots));
        let memory = self.memory_file(arguments)?;
        let mut command = Command::new("qemu-system-x86_64");
        // A whole PC but for its graphics. QEMU's microvm would boot a second faster, but has no
        // second clock: on a busy computer its kernel hangs while it measures the first.
        command.args([
            "-machine", "q35", "-accel", "tcg", "-cpu", "max", "-smp", "1",
        ]);
        command.args(["-m", &self.memory_megabytes().to_string(), "-nodefaults"]);
        command.args(["-display", "none", "-serial", "stdio", "-no-reboot"]);
        command.arg("-kernel").arg(self.kernel.image());
        command.arg("-initrd").arg(memory);
        command.args([
            "-append",
            "console=ttyS0 quiet panic=-1 mitigations=off nokaslr",
        ]);
        let image = self.disk.image().display().to_string().replace(',', ",,");
        command
            .arg("-drive")
            .arg(format!("if=virtio,format=raw,cache=writeback,file={image}"));
        self.qemu = Some(Running::start(
            "the power-cut machine",
            &mut command,
            &self.console,
        )?);
        self.until("the power-cut machine to start its program", BOOT, |seen| {
            seen.started.then_some(())
        })
    }

    /// Waits for a whole line that begins with `beginning`.
    pub fn wait_for_line(&mut self, beginning: &str, deadline: Duration) -> Result<String> {
        let what = format!("a line that begins with {beginning:?}");
        self.until(&what, deadline, |seen| {
            seen.lines
                .iter()
                .find(|line| line.starts_with(beginning))
                .cloned()
        })
    }

    /// The whole lines that the program printed since the last start.
    pub fn lines(&self) -> Vec<String> {
        self.seen().lines
    }

    /// Cuts the power.
    pub fn cut(&mut self) -> Result<()> {
        match self.qemu.take() {
            Some(mut qemu) => qemu.kill().map(|_| ()),
            None => Err(Error::failed("the power-cut machine is off")),
        }
    }

    /// Cuts the power after `delay`, unless the machine is off before; says whether it was cut.
    pub fn cut_after(&mut self, delay: Duration) -> Result<bool> {
        let moment = Instant::now() + delay;
        let ended = until("the moment of the cut", delay.saturating_add(BOOT), || {
            let ended = self.qemu()?.ended()?.is_some();
            Ok(if ended || Instant::now() >= moment {
                Look::Found(ended)
            } else {
                Look::NotYet("the machine runs".to_owned())
            })
        })?;
        self.cut()?;
        Ok(!ended)
    }

    /// Waits until the program has ended and the machine has switched itself off.
    pub fn wait_for_end(&mut self, deadline: Duration) -> Result<Outcome> {
        let start = Instant::now();
        let code = self.until("the program's end", deadline, |seen| seen.code)?;
        let rest = deadline.saturating_sub(start.elapsed()).max(BOOT / 4);
        until("the power-cut machine to be off", rest, || {
            let qemu = self.qemu()?;
            Ok(match qemu.ended()? {
                Some(_) => Look::Found(()),
                None => Look::NotYet(qemu.last_words()),
            })
        })?;
        self.qemu = None;
        let lines = self.seen().lines;
        Ok(Outcome { code, lines })
    }

    /// Switches it on, runs the program to its end, and waits until the machine is off.
    pub fn run_to_end(&mut self, arguments: &[&str], deadline: Duration) -> Result<Outcome> {
        self.start(arguments)?;
        self.wait_for_end(deadline)
    }

    /// What is on the disk, in a folder of this computer. The machine must be off.
    pub fn tree(&self) -> Result<Scratch> {
        if self.qemu.is_some() {
            return Err(Error::failed(
                "the power-cut machine is on: turn it off before you read its disk",
            ));
        }
        self.disk.tree()
    }

    fn qemu(&mut self) -> Result<&mut Running> {
        self.qemu
            .as_mut()
            .ok_or_else(|| Error::failed("the power-cut machine is off"))
    }

    /// Looks at what the console shows until it is what is waited for, or the machine is off.
    fn until<T>(
        &mut self,
        what: &str,
        deadline: Duration,
        find: impl Fn(&Seen) -> Option<T>,
    ) -> Result<T> {
        until(what, deadline, || {
            // Asked first: what it said before it ended is then in the file.
            let runs = self.qemu()?.still_runs();
            if let Some(found) = find(&self.seen()) {
                return Ok(Look::Found(found));
            }
            runs?;
            Ok(Look::NotYet(self.qemu()?.last_words()))
        })
    }

    fn seen(&self) -> Seen {
        let console = std::fs::read(&self.console).unwrap_or_default();
        Seen::on(&String::from_utf8_lossy(&console))
    }

    /// The archive in memory is there twice while the kernel unpacks it.
    fn memory_megabytes(&self) -> usize {
        256 + 3 * self.base.len() / (1 << 20)
    }

    fn memory_file(&self, arguments: &[&str]) -> Result<PathBuf> {
        let mut init = Initramfs::default();
        init.file("/init", script(arguments).as_bytes());
        let path = self.scratch.path().join("initramfs");
        write(&path, &[&self.base, &init.finish()])?;
        Ok(path)
    }
}

/// What a console shows.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    started: bool,
    lines: Vec<String>,
    code: Option<i32>,
}

impl Seen {
    fn on(console: &str) -> Self {
        let mut seen = Self::default();
        for line in console.split_inclusive('\n') {
            let Some(line) = line.strip_suffix('\n') else {
                break;
            };
            let line = line.trim_end_matches('\r');
            if !seen.started {
                seen.started = line.ends_with(STARTED);
            } else if let Some((rest, code)) = line.split_once(ENDED) {
                // The program's last line may have had no end.
                if !rest.is_empty() {
                    seen.lines.push(rest.to_owned());
                }
                seen.code = code.parse().ok();
                break;
            } else {
                seen.lines.push(line.to_owned());
            }
        }
        seen
    }
}

fn script(arguments: &[&str]) -> String {
    let (shebang, rest) = include_str!("power_cut_machine/init.sh")
        .split_once('\n')
        .unwrap_or_default();
    let quoted: Vec<_> = arguments
        .iter()
        .map(|argument| format!("'{}'", argument.replace('\'', r"'\''")))
        .collect();
    let quoted = quoted.join(" ");
    format!("{shebang}\nprogram() {{ /bin/program {quoted} 2>&1; }}\n{rest}")
}

fn write(path: &Path, parts: &[&[u8]]) -> Result<()> {
    std::fs::write(path, parts.concat()).doing(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_between_the_marks_are_the_programs() {
        let begun = "SeaBIOS\r\nevenkeel-testbed: started\r\none\r\ntw";
        let seen = Seen::on(begun);
        assert!(seen.started);
        assert_eq!((seen.lines, seen.code), (vec!["one".to_owned()], None));
        let ended = format!("{begun}oevenkeel-testbed: ended with 3\r\n[ 3.1] Power down\r\n");
        let seen = Seen::on(&ended);
        assert_eq!(seen.lines, ["one", "two"]);
        assert_eq!(seen.code, Some(3));
    }

    #[test]
    fn an_argument_with_quotes_and_spaces_arrives_as_one() {
        assert!(script(&["it's", "a b"]).contains(r"/bin/program 'it'\''s' 'a b' 2>&1"));
    }
}
