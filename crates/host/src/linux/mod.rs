//! A Linux machine: its file system, or a tree that is prepared for one, and its systemd.

mod accounts;
mod attributes;
mod disk;
mod exec;
mod interrupt;
mod logins;
mod os;
mod pieces;
mod process;
mod run;
mod selinux;
mod sockets;
mod systemd;
mod watch;

use std::path::Path;

pub use disk::{Lock, RootedDisk};
pub use exec::exec_probe;
pub use interrupt::on_interrupt;
pub use logins::Login;
pub use process::kill_when;
pub use sockets::Sockets;
pub use watch::{Blindness, Stopper, Watcher};

use evenkeel_plan::machine::os::{Edits, OsSnapshot};
use evenkeel_plan::machine::record::BootId;
use evenkeel_plan::machine::resource::Resource;
use evenkeel_plan::machine::ssh_keys::{Account, SshdSettings};
use evenkeel_plan::machine::targets::Targets;
use evenkeel_plan::machine::unit_state;

use self::accounts::{Accounts, SSHD_UNITS};
use self::os::Os;
use self::selinux::Policy;
use self::systemd::Systemd;
use crate::disk::Host;
use crate::{Error, Result};

/// Where the kernel says which boot this is.
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

const OFFLINE: &str = "a folder tree that is not running cannot stage it: apply it on the running \
    machine itself, without --root, or remove it from the configuration";

/// A running Linux machine, or a tree of one that does not run.
#[derive(Debug)]
pub struct LinuxHost {
    disk: RootedDisk,
    systemd: Option<Systemd>,
    os: Option<Os>,
    policy: Option<Policy>,
    accounts: Option<Accounts>,
}

impl LinuxHost {
    /// The machine this program runs on.
    pub fn live() -> Result<Self> {
        Ok(Self {
            disk: RootedDisk::open(Path::new("/"))?,
            systemd: Systemd::below(Path::new("/")),
            os: Some(Os::below(Path::new("/"))),
            policy: Some(Policy::below(Path::new("/"))),
            accounts: Some(Accounts::below(Path::new("/"))),
        })
    }

    /// The machine this program runs on, seen from a container that has its root at `root`.
    pub fn mounted(root: &Path) -> Result<Self> {
        Ok(Self {
            disk: RootedDisk::open(root)?,
            systemd: Systemd::below(root),
            os: Some(Os::below(root)),
            policy: Some(Policy::below(root)),
            accounts: Some(Accounts::below(root)),
        })
    }

    /// A tree that nobody runs: services are not told anything.
    pub fn offline(root: &Path) -> Result<Self> {
        Ok(Self {
            disk: RootedDisk::open(root)?,
            systemd: None,
            os: None,
            policy: None,
            accounts: None,
        })
    }

    /// Stages images also where another program has taken the updates of the machine on itself.
    #[must_use]
    pub fn bypassing_driver(mut self, bypass: bool) -> Self {
        if let Some(os) = self.os.as_mut().filter(|_| bypass) {
            os.bypass_driver();
        }
        self
    }

    /// Boots the machine anew, in good order.
    pub fn reboot(&self) -> Result<()> {
        let Some(systemd) = &self.systemd else {
            return Err(Error::Services {
                doing: "reboot".to_owned(),
                source: "systemd is not running here: reboot the machine yourself".into(),
            });
        };
        systemd.reboot()
    }

    /// Which start of a unit this is, as systemd numbers them; nothing while it is down, or where no
    /// systemd runs. It is a link that systemd keeps, and costs nothing to read.
    pub fn invocation(&self, unit: &str) -> Option<String> {
        let root = self.systemd.as_ref()?.root();
        let link = root.join(format!("run/systemd/units/invocation:{unit}"));
        let invocation = std::fs::read_link(link).ok()?;
        Some(invocation.to_string_lossy().into_owned())
    }

    /// Whether a unit is loaded and active.
    pub fn is_active(&self, unit: &str) -> Result<bool> {
        self.systemd
            .as_ref()
            .map_or(Ok(false), |it| it.is_active(unit))
    }

    /// What systemd makes of the units of `targets` that is not as these say, in words. A machine
    /// without systemd makes nothing of them.
    pub fn unit_differences(&self, targets: &Targets) -> Result<Vec<String>> {
        let expected = unit_state::expected(targets);
        let Some(systemd) = self.systemd.as_ref().filter(|_| !expected.is_empty()) else {
            return Ok(Vec::new());
        };
        let names: Vec<&str> = expected.keys().copied().collect();
        let states = systemd.unit_states(&names)?;
        let differences = expected
            .iter()
            .zip(states)
            .filter_map(|((name, all), state)| {
                let why = all.iter().find_map(|it| it.difference(state.as_deref()))?;
                Some(format!("{}: {why}", Resource::Unit((*name).to_owned())))
            });
        Ok(differences.collect())
    }

    fn running_os(&self) -> Result<&Os> {
        let os = self.os.as_ref();
        os.ok_or_else(|| Error::os("stage anything", OFFLINE))
    }

    /// Whether sshd runs, or starts with the machine. What cannot be found out counts as yes.
    fn is_sshd_wanted(&self) -> bool {
        let Some(systemd) = &self.systemd else {
            return true;
        };
        let Ok(states) = systemd.unit_states(&SSHD_UNITS) else {
            return true;
        };
        let starts = |state: &Option<String>| {
            let state = state.as_deref();
            matches!(state, Some("enabled" | "enabled-runtime" | "alias"))
        };
        let runs = |unit: &&str| systemd.is_active(unit).unwrap_or(true);
        states.iter().any(starts) || SSHD_UNITS.iter().any(runs)
    }

    /// Watches `paths` for changes; whoever listens is first told to look at everything.
    pub fn watch<'p>(&self, paths: impl IntoIterator<Item = &'p str>) -> Result<Watcher> {
        Watcher::new(&self.disk, paths)
    }
}

impl Host for LinuxHost {
    type Disk = RootedDisk;

    fn disk(&self) -> &RootedDisk {
        &self.disk
    }

    fn boot_id(&self) -> Result<BootId> {
        // A machine that shares its kernel with others says of its own boot what the kernel does not know. Where its /proc
        // cannot be seen, the kernel's word counts.
        let machines = self.systemd.as_ref().map(|it| it.root().join(BOOT_ID));
        let seen = machines.and_then(|path| std::fs::read_to_string(path).ok());
        let of_kernel = Path::new("/").join(BOOT_ID);
        let text = seen
            .map_or_else(|| std::fs::read_to_string(&of_kernel), Ok)
            .map_err(|error| Error::path("read", of_kernel.to_string_lossy(), error))?;
        Ok(BootId(text.trim().to_owned()))
    }

    fn account(&self, user: &str) -> Result<Option<Account>> {
        let accounts = self.accounts.as_ref();
        accounts.map_or(Ok(None), |accounts| accounts.user(user))
    }

    fn group(&self, group: &str) -> Result<Option<u32>> {
        let accounts = self.accounts.as_ref();
        accounts.map_or(Ok(None), |accounts| accounts.group(group))
    }

    /// An ordinary user cannot ask: sshd reads its own keys first.
    fn sshd_settings(&self, user: &str) -> Result<Option<SshdSettings>> {
        match &self.accounts {
            Some(accounts) if rustix::process::geteuid().is_root() => {
                accounts.sshd(user, || self.is_sshd_wanted())
            }
            _ => Ok(None),
        }
    }

    fn reload_units(&self) -> Result<()> {
        self.systemd.as_ref().map_or(Ok(()), Systemd::reload_units)
    }

    fn reload(&self, unit: &str) -> Result<()> {
        self.systemd
            .as_ref()
            .map_or(Ok(()), |systemd| systemd.reload(unit))
    }

    fn restart(&self, unit: &str) -> Result<()> {
        self.systemd
            .as_ref()
            .map_or(Ok(()), |systemd| systemd.restart(unit))
    }

    fn relabel(&self, paths: &[String]) -> Result<bool> {
        let policy = self.policy.as_ref();
        policy.map_or(Ok(false), |policy| policy.relabel(paths))
    }

    fn os(&self) -> Result<OsSnapshot> {
        match &self.os {
            Some(os) => os.look(),
            None => Ok(OsSnapshot::Beyond(OFFLINE.to_owned())),
        }
    }

    fn stage_image(&self, image: &str) -> Result<()> {
        self.running_os()?.stage_image(image)
    }

    fn stage_arguments(&self, edits: &Edits) -> Result<()> {
        self.running_os()?.stage_arguments(edits)
    }

    fn unstage(&self) -> Result<()> {
        self.running_os()?.unstage()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reboot_that_nobody_can_make_is_an_error_with_its_cure() {
        let host = LinuxHost::offline(Path::new("/")).unwrap();
        let told = host.reboot().unwrap_err().with_causes();
        assert_eq!(
            told,
            "cannot reboot: systemd is not running here: reboot the machine yourself"
        );
    }
}
