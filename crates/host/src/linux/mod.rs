//! A Linux machine: its file system, or a tree that is prepared for one, and its systemd.

mod disk;
mod interrupt;
mod logins;
mod process;
mod systemd;
mod watch;

use std::path::Path;

pub use disk::{Lock, RootedDisk};
pub use interrupt::on_interrupt;
pub use logins::Login;
pub use process::kill_when;
pub use watch::{Stopper, Watcher};

use evenkeel_plan::record::BootId;

use self::systemd::Systemd;
use crate::disk::Host;
use crate::{Error, Result};

/// Where the kernel says which boot this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A running Linux machine, or a tree of one that does not run.
#[derive(Debug)]
pub struct LinuxHost {
    disk: RootedDisk,
    systemd: Option<Systemd>,
}

impl LinuxHost {
    /// The machine this program runs on.
    pub fn live() -> Result<Self> {
        Ok(Self {
            disk: RootedDisk::open(Path::new("/"))?,
            systemd: Systemd::below(Path::new("/")),
        })
    }

    /// The machine this program runs on, seen from a container that has its root at `root`.
    pub fn mounted(root: &Path) -> Result<Self> {
        Ok(Self {
            disk: RootedDisk::open(root)?,
            systemd: Systemd::below(root),
        })
    }

    /// A tree that nobody runs: services are not told anything.
    pub fn offline(root: &Path) -> Result<Self> {
        Ok(Self {
            disk: RootedDisk::open(root)?,
            systemd: None,
        })
    }

    /// Boots the machine anew, in good order.
    pub fn reboot(&self) -> Result<()> {
        let Some(systemd) = &self.systemd else {
            return Err(Error::Services {
                doing: "reboot".to_owned(),
                source: "no systemd runs here: reboot the machine yourself".into(),
            });
        };
        systemd.reboot()
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
        // The kernel is the machine's own, from wherever one looks.
        let text = std::fs::read_to_string(BOOT_ID)
            .map_err(|error| Error::path("read", BOOT_ID, error))?;
        Ok(BootId(text.trim().to_owned()))
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
            "cannot reboot: no systemd runs here: reboot the machine yourself"
        );
    }
}
