//! A Linux node with a real systemd, D-Bus, logind and sshd: Debian, booted by systemd-nspawn.
//!
//! It is a container, so its kernel is this machine's: it can be rebooted and cut off, but what it
//! wrote before a cut is never lost. For that there is [`PowerCutMachine`](crate::PowerCutMachine).

mod cgroup;
mod debian;
mod identity;
mod os_double;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::need::Need;
use crate::network::Network;
use crate::process::{Running, output, run, tell, words_of};
use crate::scratch::Scratch;
use crate::wait::{Look, until};
use crate::{Doing, Error, Result};
use cgroup::Cgroup;
use identity::Keys;

/// A boot takes about a second and a half; this is for a machine that is busy with much else.
const BOOT: Duration = Duration::from_mins(1);

/// In seconds, how long a command inside may take.
const COMMAND: &str = "60";

/// A node that runs until it is dropped. Nothing of it is left then.
#[derive(Debug)]
pub struct SystemdNode {
    // The order is that of taking it down.
    power: Option<Power>,
    name: String,
    keys: Keys,
    tree: PathBuf,
    equipment: Option<Equipment>,
    network: Network,
    scratch: Scratch,
}

/// What makes a node more than a machine with systemd.
#[derive(Debug, Clone)]
pub(crate) struct Equipment {
    /// Files that the node has besides those of Debian.
    pub(crate) layer: PathBuf,
    /// A shell script that runs with each boot of the node, next to it.
    pub(crate) companion: String,
}

/// What there is only while the node is switched on.
#[derive(Debug)]
struct Power {
    // Dropped first: the group can be removed when its processes are gone.
    supervisor: Running,
    _cgroup: Cgroup,
}

impl SystemdNode {
    /// What a machine must have to boot one.
    pub const NEEDS: &[Need] = &[
        Need::Root,
        Need::Program("systemd-nspawn", "systemd-container"),
        Need::Program("debootstrap", "debootstrap"),
        Need::Program("unshare", "util-linux"),
        Need::Program("nsenter", "util-linux"),
        Need::Program("ip", "iproute2"),
        Need::Program("ssh-keygen", "openssh-client"),
        Need::Program("ssh", "openssh-client"),
    ];

    /// Makes the Debian tree ready, so that the first boot does not have to.
    pub fn prepare() -> Result<()> {
        for need in Self::NEEDS {
            need.check()?;
        }
        debian::tree().map(|_| ())
    }

    /// Boots a node that calls itself `name`, and waits until its systemd is up. Nodes of the same
    /// name do not disturb each other.
    ///
    /// The first one on a machine makes the Debian tree, which takes a minute or two.
    pub fn boot(name: &str) -> Result<Self> {
        Self::boot_equipped(name, |_, _| Ok(None))
    }

    /// The same, with what `equip` lays into the layer of the node's own files, and says of it. It is given its address, too.
    pub(crate) fn boot_equipped(
        name: &str,
        equip: impl FnOnce(&Path, Ipv4Addr) -> Result<Option<Equipment>>,
    ) -> Result<Self> {
        identity::check(name)?;
        for need in Self::NEEDS {
            need.check()?;
        }
        let tree = debian::tree()?;
        let scratch = Scratch::new("node")?;
        let layers = scratch.path().join("layers");
        for folder in ["upper", "work"] {
            let folder = layers.join(folder);
            std::fs::create_dir_all(&folder)
                .doing(|| format!("cannot make {}", folder.display()))?;
        }
        let network = Network::new(name)?;
        let keys = identity::lay(
            name,
            network.address(),
            &layers.join("upper"),
            &scratch.path().join("keys"),
        )?;
        let equipment = equip(&layers.join("upper"), network.address())?;
        let mut node = Self {
            power: None,
            name: name.to_owned(),
            keys,
            tree,
            equipment,
            network,
            scratch,
        };
        node.boot_again()?;
        Ok(node)
    }

    /// Switches the node on again after [`power_off`](Self::power_off) or [`cut`](Self::cut), with
    /// the files it had, and waits until its systemd is up.
    pub fn boot_again(&mut self) -> Result<()> {
        if self.power.is_some() {
            return Err(self.failed("is already on"));
        }
        let place = self.scratch.path();
        let unique = place.file_name().unwrap_or(place.as_os_str());
        let cgroup = Cgroup::new(&unique.to_string_lossy(), self.equipment.is_some())?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]);
        command.args(["--pid", "--fork", "--kill-child"]);
        command.args(["sh", "-c", include_str!("systemd_node/supervise.sh")]);
        command.args(["evenkeel-testbed-node", &self.name]);
        command.arg(&self.tree).arg(place.join("layers"));
        command.arg(self.network.net()).args(cgroup.paths());
        if let Some(equipment) = &self.equipment {
            command.env("EQUIPMENT", &equipment.layer);
            command.env("COMPANION", &equipment.companion);
            command.env("CONTROLLERS", cgroup.controllers());
        }
        self.power = Some(Power {
            supervisor: Running::start(
                &format!("node {}", self.name),
                &mut command,
                &self.console(),
            )?,
            _cgroup: cgroup,
        });
        self.wait_for_reboot("")
    }

    /// Reboots it in an orderly way and waits until it is up again.
    pub fn reboot(&mut self) -> Result<()> {
        let before = self.boot_id()?;
        // The answer may be lost when the node goes down quickly: the new boot is what counts.
        let asked = self.run(&["systemctl", "--no-block", "reboot"]);
        self.wait_for_reboot(&before)
            .map_err(|late| asked.err().unwrap_or(late))
    }

    /// Waits until the node is up in another boot than `before`, for a reboot that was asked for
    /// inside.
    pub fn wait_for_reboot(&mut self, before: &str) -> Result<()> {
        let what = format!("node {} to be up", self.name);
        let state = until(&what, BOOT, || {
            self.supervisor()?.still_runs()?;
            let Ok(init) = self.init() else {
                return Ok(Look::NotYet("it has no process 1".to_owned()));
            };
            let boot = boot_id(init).unwrap_or_default();
            if boot.is_empty() || boot == before {
                return Ok(Look::NotYet(format!("boot {boot:?}")));
            }
            let Ok(mut command) = self.enter(Command::new("nsenter"), init) else {
                return Ok(Look::NotYet("its process 1 ended".to_owned()));
            };
            command.args(["systemctl", "is-system-running"]);
            let state = words_of(&output(&mut command, &[])?);
            Ok(match state.as_str() {
                "running" | "degraded" => Look::Found(state),
                _ => Look::NotYet(format!("{state}; {}", self.supervisor()?.last_words())),
            })
        })?;
        if state == "degraded" {
            let failed = self.failed_units()?.join(", ");
            tell(&format!("node {} is up, but failed: {failed}", self.name));
        }
        Ok(())
    }

    /// The units that systemd calls failed.
    pub fn failed_units(&self) -> Result<Vec<String>> {
        let list = self.run(&["systemctl", "--failed", "--plain", "--no-legend"])?;
        let units = list.lines().filter_map(|line| line.split(' ').next());
        Ok(units.map(str::to_owned).collect())
    }

    /// Which boot this is: no two boots have the same.
    pub fn boot_id(&self) -> Result<String> {
        boot_id(self.init()?)
    }

    /// Shuts it down in an orderly way and waits until it is off.
    pub fn power_off(&mut self) -> Result<()> {
        let asked = self.run(&["systemctl", "--no-block", "poweroff"]);
        let what = format!("node {} to be off", self.name);
        let off = until(&what, BOOT, || {
            let supervisor = self.supervisor()?;
            Ok(match supervisor.ended()? {
                Some(_) => Look::Found(()),
                None => Look::NotYet(supervisor.last_words()),
            })
        });
        off.map_err(|late| asked.err().unwrap_or(late))?;
        self.power = None;
        Ok(())
    }

    /// Cuts it off: everything in it is killed at once, and nothing inside learns of it.
    pub fn cut(&mut self) -> Result<()> {
        self.supervisor()?.kill()?;
        self.power = None;
        Ok(())
    }

    /// Copies `folder` (such as `/etc`) of a node that is off, as it would find it at its next boot.
    pub fn copy_while_off(&self, folder: &str, to: &Path) -> Result<()> {
        if self.power.is_some() {
            return Err(self.failed("is on: turn it off before you copy its files"));
        }
        // The mount is in a name space of its own, which ends with the command.
        let script = "mount -t overlay -o ro,lowerdir=\"$1/upper:$2\" overlay \"$1/stage\"
            cp -a \"$1/stage$3\" \"$4\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-euc", script]);
        command.args([
            "copy",
            &self.scratch.path().join("layers").to_string_lossy(),
        ]);
        command.args([&self.tree, Path::new(folder), to]);
        run(&mut command).map(|_| ())
    }

    /// The layer of a running node's own files, from outside: to see what it writes as it writes it.
    pub fn own_files(&self) -> PathBuf {
        self.scratch.path().join("layers/upper")
    }

    /// Runs a command as root inside, for a minute at most, and returns what it printed. The error
    /// has its last words.
    pub fn run(&self, command: &[&str]) -> Result<String> {
        let printed = self.feed(command, &[])?;
        Ok(String::from_utf8_lossy(&printed).into_owned())
    }

    /// Runs a command as root inside, with `input` on its standard input.
    pub fn feed(&self, command: &[&str], input: &[u8]) -> Result<Vec<u8>> {
        let mut limited = Command::new("timeout");
        limited.args(["--kill-after=5", COMMAND, "nsenter"]);
        let output = output(self.enter(limited, self.init()?)?.args(command), input)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(self.refused(&command.join(" "), &output))
    }

    /// A command that runs as root inside for as long as it likes, ready for its own program and
    /// arguments. It may do what root of the node may do, not what root of this machine may do.
    pub fn command(&self) -> Result<Command> {
        self.enter(Command::new("nsenter"), self.init()?)
    }

    /// Reads a file of the node.
    pub fn read(&self, path: &str) -> Result<Vec<u8>> {
        self.feed(&["cat", "--", path], &[])
    }

    /// Writes a file of the node, and makes the folders above it.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) -> Result<()> {
        self.place("644", path, content.as_ref())
    }

    /// Copies a program of this machine into the node.
    pub fn install(&self, program: &Path, path: &str) -> Result<()> {
        let content =
            std::fs::read(program).doing(|| format!("cannot read {}", program.display()))?;
        self.place("755", path, &content)
    }

    /// Its address on the [`Network`]; it reaches this machine at [`GATEWAY`](crate::network::GATEWAY).
    pub fn address(&self) -> Ipv4Addr {
        self.network.address()
    }

    /// The name it was booted with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// An ssh client that logs in as root, ready for the command to run there.
    pub fn ssh(&self) -> Command {
        self.keys.ssh(self.address())
    }

    /// The private key with which root logs in.
    pub fn ssh_key(&self) -> PathBuf {
        self.keys.login()
    }

    /// The file with all that the node printed on its console, over all boots.
    pub fn console(&self) -> PathBuf {
        self.scratch.path().join("console.log")
    }

    /// Written from inside, because an absolute link in the node's tree would lead outside from here.
    fn place(&self, mode: &str, path: &str, content: &[u8]) -> Result<()> {
        self.feed(&["install", "-D", "-m", mode, "/dev/stdin", path], content)
            .map(|_| ())
    }

    /// The node's process 1, as this machine counts: `unshare` has the supervisor, which has nspawn,
    /// which has it.
    fn init(&self) -> Result<u32> {
        let power = self.power.as_ref().ok_or_else(|| self.failed("is off"))?;
        let mut process = power.supervisor.id();
        for _ in 0..3 {
            let children = children(process).unwrap_or_default();
            // What runs next to nspawn are children of its parent, too.
            let nspawn = children.iter().find(|it| comm(**it) == "systemd-nspawn");
            process = nspawn
                .or(children.last())
                .copied()
                .ok_or_else(|| self.failed("is not up"))?;
        }
        // Until nspawn has become systemd, its name spaces are half made.
        if comm(process) != "systemd" {
            return Err(self.failed("is not up"));
        }
        Ok(process)
    }

    fn supervisor(&mut self) -> Result<&mut Running> {
        let off = self.failed("is off");
        self.power
            .as_mut()
            .map(|power| &mut power.supervisor)
            .ok_or(off)
    }

    /// Adds to a command that is `nsenter` what makes it enter the node.
    fn enter(&self, mut command: Command, init: u32) -> Result<Command> {
        command.args(["--all", "--target", &init.to_string(), "--"]);
        // Entering a name space takes no right away; what nspawn took from process 1 is taken here.
        command.arg("setpriv").arg("--bounding-set");
        command.arg(missing_rights(init).ok_or_else(|| self.failed("is not up"))?);
        command.arg("--");
        command.env_clear();
        command.env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        );
        command.env("HOME", "/root").env("LANG", "C.UTF-8");
        Ok(command)
    }

    fn refused(&self, line: &str, output: &Output) -> Error {
        if output.status.code() == Some(124) {
            return self.failed(&format!("took longer than {COMMAND} seconds for `{line}`"));
        }
        let (status, words) = (output.status, words_of(output));
        self.failed(&format!("ended `{line}` with {status}: {words}"))
    }

    fn failed(&self, what: &str) -> Error {
        Error::failed(format!("node {} {what}", self.name))
    }
}

/// What a process is called.
fn comm(process: u32) -> String {
    let comm = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    comm.trim().to_owned()
}

fn children(process: u32) -> Option<Vec<u32>> {
    let list = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).ok()?;
    list.split_whitespace()
        .map(|child| child.parse().ok())
        .collect()
}

/// nspawn lays a file with a new id over the kernel's own, for every boot.
fn boot_id(init: u32) -> Result<String> {
    let path = format!("/proc/{init}/root/proc/sys/kernel/random/boot_id");
    let id = std::fs::read_to_string(&path).doing(|| format!("cannot read {path}"))?;
    Ok(id.trim().to_owned())
}

/// The rights that process 1 does not have, as `setpriv` takes them away.
fn missing_rights(init: u32) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{init}/status")).ok()?;
    let bounds = status
        .lines()
        .find_map(|line| line.strip_prefix("CapBnd:"))?;
    let bounds = u64::from_str_radix(bounds.trim(), 16).ok()?;
    let last = std::fs::read_to_string("/proc/sys/kernel/cap_last_cap").ok()?;
    let missing: Vec<_> = (0..=last.trim().parse::<u32>().ok()?)
        .filter(|right| bounds & (1 << right) == 0)
        .map(|right| format!("-cap_{right}"))
        .collect();
    Some(missing.join(","))
}
