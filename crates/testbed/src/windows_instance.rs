//! A Windows instance to test on: a Wine prefix with a real Service Control Manager, registry and
//! trust store, behind a real sshd with SFTP, at an address and with a computer name of its own.
//!
//! It boots, reboots and loses its power as a machine does: all its processes, sshd too, live and end
//! together, and only the disk stays. A program inside reboots it with `shutdown.exe /r` or
//! `ExitWindowsEx`; `InitiateSystemShutdownEx` says yes under Wine 8 and does nothing. Services hear
//! nothing of a reboot before they are ended.

mod programs;
mod snapshot;
mod ssh;
mod template;

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

pub use programs::{TARGET, windows_program, windows_programs, windows_test, windows_unit_tests};
pub use snapshot::Snapshot;

use crate::need::Need;
use crate::network::Network;
use crate::process::{Running, line_of, tell};
use crate::scratch::Scratch;
use crate::wait::{Look, until};
use crate::{Doing, Error, Result, reaper};

const ENVIRONMENT: &str = include_str!("windows_instance/env.sh");
const DISK: &str = include_str!("windows_instance/disk.sh");
const POWER: &str = include_str!("windows_instance/power.sh");
/// What lies in the instance at `/machine`.
const MACHINE: [(&str, &str); 7] = [
    ("boot.sh", include_str!("windows_instance/boot.sh")),
    ("env.sh", ENVIRONMENT),
    (
        "nsswitch.conf",
        include_str!("windows_instance/nsswitch.conf"),
    ),
    ("run.sh", include_str!("windows_instance/run.sh")),
    ("shell.sh", include_str!("windows_instance/shell.sh")),
    ("switch.sh", include_str!("windows_instance/switch.sh")),
    ("sshd_config", include_str!("windows_instance/sshd_config")),
];
/// Our programs that every instance has, and where.
const STAND_INS: [(&str, &str); 5] = [
    ("power-double", r"C:\windows\system32\shutdown.exe"),
    ("power-double", r"C:\windows\system32\wineboot.exe"),
    (
        "powershell-double",
        r"C:\windows\system32\WindowsPowerShell\v1.0\powershell.exe",
    ),
    ("ssh-shell", r"C:\windows\system32\ssh-shell.exe"),
    ("windows-probe", r"C:\windows\system32\windows-probe.exe"),
];

/// How long a boot, a reboot or a shutdown may take on a busy machine.
const BOOT: Duration = Duration::from_mins(1);
/// How many seconds one program may take that [`WindowsInstance::run`] runs.
const RUN_SECONDS: u32 = 120;

/// A Windows instance. When it is dropped, nothing of it is left.
#[derive(Debug)]
pub struct WindowsInstance {
    name: String,
    power: Option<Running>,
    disk: Running,
    network: Network,
    scratch: Scratch,
}

/// One boot: its id, and its first process as this machine numbers it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Boot {
    id: String,
    process: u32,
}

impl WindowsInstance {
    /// What an instance needs of this machine.
    pub const NEEDS: [Need; 7] = [
        Need::Root,
        Need::Program("wine64", "wine64"),
        Need::Program("sshd", "openssh-server"),
        Need::Program("ssh-keygen", "openssh-client"),
        Need::Program("ip", "iproute2"),
        programs::NEEDS[0],
        programs::NEEDS[1],
    ];

    /// Makes the prefix and our programs for it ready, so that the first boot does not have to.
    pub fn prepare() -> Result<()> {
        for need in Self::NEEDS {
            need.check()?;
        }
        template::template()?;
        let doubles = ["containerd-double", "kubelet-double", "service-double"];
        let bins = STAND_INS.iter().map(|(bin, _)| *bin).chain(doubles);
        windows_programs("evenkeel-testbed", &bins.collect::<Vec<_>>()).map(|_| ())
    }

    /// Makes an instance whose computer name is `name` (in capitals) and boots it: Wine's services run
    /// and sshd answers when this returns.
    pub fn boot(name: &str) -> Result<Self> {
        for need in Self::NEEDS {
            need.check()?;
        }
        let letters = |it: char| it.is_ascii_alphanumeric() || it == '-';
        if name.is_empty() || name.len() > 15 || !name.chars().all(letters) {
            return Err(Error::failed(format!(
                "{name:?} is not a computer name: use 1 to 15 letters, digits and hyphens"
            )));
        }
        let template = template::template()?;
        let scratch = Scratch::new("windows")?;
        let machine = scratch.path().join("machine");
        std::fs::create_dir(&machine).doing(|| format!("cannot make {}", machine.display()))?;
        for (file, text) in MACHINE {
            write(&machine.join(file), text)?;
        }
        ssh::prepare(&machine)?;
        let network = Network::new(name)?;
        let hosts = format!("127.0.0.1 localhost\n{} {name}\n", network.address());
        write(&machine.join("hosts"), &hosts)?;
        let disk = mount(&network, scratch.path(), &template)?;
        let mut instance = Self {
            name: name.to_uppercase(),
            power: None,
            disk,
            network,
            scratch,
        };
        let bins = STAND_INS.map(|(bin, _)| bin);
        let programs = windows_programs("evenkeel-testbed", &bins)?;
        for (program, (_, place)) in programs.iter().zip(STAND_INS) {
            instance.install(program, place)?;
        }
        instance.power_on()?;
        Ok(instance)
    }

    /// The address under which this machine and other instances reach it; sshd listens on port 22.
    pub fn address(&self) -> Ipv4Addr {
        self.network.address()
    }

    /// The name that Windows programs see.
    pub fn computer_name(&self) -> &str {
        &self.name
    }

    /// Drive C: as this machine sees it, also while the power is off.
    pub fn drive_c(&self) -> PathBuf {
        self.inside("prefix/drive_c")
    }

    /// The instance's own folder on this machine, with its logs.
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// What its service manager was asked for and cannot do, from its first boot on: one line each.
    pub fn manager_log(&self) -> Result<Vec<String>> {
        let log = self.scratch.path().join("power.log");
        let text = std::fs::read(&log).doing(|| format!("cannot read {}", log.display()))?;
        let text = String::from_utf8_lossy(&text);
        let lines = text.lines().filter(|line| line.contains(":svcctl_"));
        Ok(lines.map(str::to_owned).collect())
    }

    /// Gives `address` a name that programs inside can look up. Other than its own, `localhost` and
    /// what is added here, an instance knows none.
    pub fn add_host(&self, host: &str, address: Ipv4Addr) -> Result<()> {
        self.append("hosts", &format!("{address} {host}"))
    }

    /// A Windows path as this machine sees it. As on Windows, capitals do not matter where a file or
    /// folder of that name is there.
    pub fn path(&self, windows: &str) -> Result<PathBuf> {
        let drive = windows.get(..2).unwrap_or_default();
        if !drive.eq_ignore_ascii_case("c:") {
            return Err(Error::failed(format!(r"{windows} is not on C:\")));
        }
        let parts = windows.split(['\\', '/']).skip(1);
        let parts = parts.filter(|part| !part.is_empty());
        Ok(parts.fold(self.drive_c(), |folder, part| {
            let same = |name: &std::ffi::OsStr| name.to_string_lossy().eq_ignore_ascii_case(part);
            let found = std::fs::read_dir(&folder).ok().and_then(|mut entries| {
                entries.find_map(|entry| entry.ok().map(|it| it.file_name()).filter(|it| same(it)))
            });
            found.map_or_else(|| folder.join(part), |name| folder.join(name))
        }))
    }

    /// Copies a file of this machine to a Windows path; folders on the way are made.
    pub fn install(&self, file: &Path, windows: &str) -> Result<()> {
        let place = self.path(windows)?;
        let said = || format!("cannot install {} as {windows}", file.display());
        if let Some(above) = place.parent() {
            std::fs::create_dir_all(above).doing(said)?;
        }
        // A program that runs keeps its file: the new one is another.
        if place.exists() {
            std::fs::remove_file(&place).doing(said)?;
        }
        std::fs::copy(file, &place).doing(said).map(|_| ())
    }

    /// A command that runs a Windows program inside, for two minutes at most: the program (a Windows
    /// path, or a name on the PATH) and its arguments.
    pub fn command(&self, words: &[&str]) -> Result<Command> {
        let mut command = self.enter()?;
        command.args(["env", "-i", "sh", "/machine/run.sh"]);
        command.arg(RUN_SECONDS.to_string()).args(words);
        Ok(command)
    }

    /// Runs a Windows program inside to its end, however it ends.
    pub fn run(&self, words: &[&str]) -> Result<Output> {
        finish(&mut self.command(words)?)
    }

    /// Runs a line of cmd inside to its end, with all its quotes, as ssh would.
    pub fn cmd(&self, line: &str) -> Result<Output> {
        let mut command = self.enter()?;
        command.args(["env", "-i"]);
        command.arg(format!("SSH_ORIGINAL_COMMAND={line}"));
        command.args(["sh", "/machine/run.sh", &RUN_SECONDS.to_string()]);
        finish(command.arg("ssh-shell.exe"))
    }

    /// What a Windows program printed; an error with its last words if it failed.
    ///
    /// A program of ours that fails says why. One that ends with 1 and says nothing was not started
    /// by Wine, which happens rarely on a busy machine; it is started once more.
    pub fn ask(&self, words: &[&str]) -> Result<String> {
        let mut output = self.run(words)?;
        if output.status.code() == Some(1) && output.stdout.is_empty() && output.stderr.is_empty() {
            tell(&format!(
                "Wine did not start `{}`; trying again",
                words.join(" ")
            ));
            output = self.run(words)?;
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        let said = [text(&output.stdout), text(&output.stderr)].join(" ");
        Err(Error::failed(format!(
            "`{}` on {} ended with {}: {}",
            words.join(" "),
            self.name,
            output.status,
            said.trim()
        )))
    }

    /// The id of this boot; every boot has another.
    pub fn boot_id(&self) -> Result<String> {
        self.this_boot().map(|boot| boot.id)
    }

    /// The first process of this boot, as this machine numbers it. All others end with it.
    pub fn process(&self) -> Result<u32> {
        self.this_boot().map(|boot| boot.process)
    }

    /// Whether it runs; an instance that was shut down from inside does not.
    pub fn is_on(&mut self) -> Result<bool> {
        match self.power.as_mut() {
            Some(power) => Ok(power.ended()?.is_none()),
            None => Ok(false),
        }
    }

    /// Boots it after [`shutdown`](Self::shutdown) or [`cut`](Self::cut).
    pub fn power_on(&mut self) -> Result<()> {
        if self.is_on()? {
            return Err(Error::failed(format!("{} is already on", self.name)));
        }
        let mut sh = Command::new("nsenter");
        sh.args(["--target", &self.disk.id().to_string()]);
        sh.args(["--mount", "--net", "--uts", "--", "env", "-i"]);
        sh.args(["PATH=/usr/bin:/usr/sbin:/bin:/sbin", "sh", "-c", POWER]);
        let log = self.scratch.path().join("power.log");
        let power = Running::start(&format!("Windows instance {}", self.name), &mut sh, &log)?;
        self.power = Some(power);
        self.until_booted(None)
    }

    /// Reboots it in good order, as `shutdown.exe /r` does: the registry is written, every process
    /// ends, and the automatic services start again.
    pub fn reboot(&mut self) -> Result<()> {
        let last = self.boot_id()?;
        self.switch("reboot")?;
        self.until_booted(Some(&last))
    }

    /// Waits for the boot after the one with id `last`, and until sshd answers. For a reboot that a
    /// program inside has asked for.
    pub fn until_rebooted(&mut self, last: &str) -> Result<()> {
        self.until_booted(Some(last))
    }

    /// Shuts it down in good order; it stays off.
    pub fn shutdown(&mut self) -> Result<()> {
        self.switch("off")?;
        until("a Windows instance to shut down", BOOT, || {
            Ok(if self.is_on()? {
                Look::NotYet("it still runs".to_owned())
            } else {
                Look::Found(())
            })
        })?;
        self.power = None;
        Ok(())
    }

    /// Cuts its power: every process is killed at once. What the registry had not written is lost.
    pub fn cut(&mut self) -> Result<()> {
        let Some(mut power) = self.power.take() else {
            return Ok(());
        };
        let first = self.booted().ok();
        let identity =
            first.and_then(|boot| Some((boot.process, reaper::identity(boot.process).ok()?)));
        power.kill()?;
        let _ = std::fs::remove_file(self.inside("run/boot"));
        // Process 1 is gone when all are whose parent it is.
        until("a Windows instance's processes to end", BOOT, || {
            Ok(match &identity {
                Some((pid, was)) if reaper::identity(*pid).as_ref() == Ok(was) => {
                    Look::NotYet(format!("process {pid}"))
                }
                _ => Look::Found(()),
            })
        })
    }

    /// What is on it now: files and folders of C:, services, the Machine environment, trusted roots.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::take(self)
    }

    /// Adds a line to a file of the instance's `/machine`.
    fn append(&self, file: &str, line: &str) -> Result<()> {
        let path = self.folder().join("machine").join(file);
        std::fs::File::options()
            .append(true)
            .open(&path)
            .and_then(|mut open| writeln!(open, "{}", line.trim()))
            .doing(|| format!("cannot write {}", path.display()))
    }

    fn enter(&self) -> Result<Command> {
        let mut nsenter = Command::new("nsenter");
        nsenter.args(["--target", &self.process()?.to_string()]);
        nsenter.args(["--mount", "--net", "--uts", "--pid", "--"]);
        Ok(nsenter)
    }

    /// A path of the instance's own file systems, as this machine reaches it.
    fn inside(&self, path: &str) -> PathBuf {
        format!("/proc/{}/root/{path}", self.disk.id()).into()
    }

    /// The boot that it has, or that is under way: its services may serve before that is through.
    fn this_boot(&self) -> Result<Boot> {
        if self.power.is_none() {
            return self.booted();
        }
        until("a Windows instance to boot", BOOT, || {
            Ok(match self.booted() {
                Ok(boot) => Look::Found(boot),
                Err(error) => Look::NotYet(error.to_string()),
            })
        })
    }

    fn booted(&self) -> Result<Boot> {
        let line = std::fs::read_to_string(self.inside("run/boot")).unwrap_or_default();
        line.trim()
            .split_once(' ')
            .and_then(|(id, process)| {
                let id = id.to_owned();
                let process = process.parse().ok()?;
                Some(Boot { id, process })
            })
            .ok_or_else(|| Error::failed(format!("{} is not booted", self.name)))
    }

    fn switch(&self, request: &str) -> Result<()> {
        // Not waiting for a reader: the instance listens whenever it is booted.
        File::options()
            .write(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
            .open(self.inside("run/power"))
            .and_then(|mut pipe| writeln!(pipe, "{request}"))
            .doing(|| format!("{} does not listen at its power switch", self.name))
    }

    fn until_booted(&mut self, last: Option<&str>) -> Result<()> {
        until("a Windows instance to boot", BOOT, || {
            let Some(power) = self.power.as_mut() else {
                return Err(Error::failed(format!("{} is off", self.name)));
            };
            power.still_runs()?;
            let seen = power.last_words();
            match self.booted() {
                Ok(boot) if last != Some(boot.id.as_str()) => {}
                _ => return Ok(Look::NotYet(seen)),
            }
            let sshd = SocketAddr::from((self.address(), 22));
            Ok(match TcpStream::connect_timeout(&sshd, BOOT) {
                Ok(_) => Look::Found(()),
                Err(error) => Look::NotYet(format!("sshd: {error}")),
            })
        })
    }
}

impl Drop for WindowsInstance {
    fn drop(&mut self) {
        // In this order, or the folder would be removed under a living system. What fails here is
        // killed and removed by the reaper.
        let _ = self.cut();
        let _ = self.disk.kill();
    }
}

fn mount(network: &Network, folder: &Path, template: &Path) -> Result<Running> {
    let log = folder.join("disk.log");
    let mut sh = network.inside();
    sh.args(["unshare", "--mount", "--propagation", "private"]);
    sh.args(["sh", "-c", DISK, "disk"])
        .arg(folder)
        .arg(template);
    let mut disk = Running::start("the disk of a Windows instance", &mut sh, &log)?;
    until("the disk of a Windows instance", BOOT, || {
        disk.still_runs()?;
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        Ok(if said.contains("mounted") {
            Look::Found(())
        } else {
            Look::NotYet(said)
        })
    })?;
    Ok(disk)
}

fn finish(command: &mut Command) -> Result<Output> {
    let line = line_of(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .doing(|| format!("cannot run `{line}`"))?;
    if output.status.code() == Some(124) {
        return Err(Error::failed(format!(
            "`{line}` took more than {RUN_SECONDS} seconds and was ended"
        )));
    }
    Ok(output)
}

/// Writes a file that whoever may read it may also run.
fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text)
        .and_then(|()| std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)))
        .doing(|| format!("cannot write {}", path.display()))
}
