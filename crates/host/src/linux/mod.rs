//! A Linux machine: its file system, or a tree that is prepared for one, and its systemd.

mod disk;
mod interrupt;
mod process;
mod systemd;
mod watch;

use std::path::Path;

pub use disk::{Lock, RootedDisk};
pub use interrupt::on_interrupt;
pub use process::kill_when;
pub use watch::{Stopper, Watcher};

use crate::Result;
use crate::disk::Host;

/// A running Linux machine, or a tree of one that does not run.
#[derive(Debug)]
pub struct LinuxHost {
    disk: RootedDisk,
    has_systemd: bool,
}

impl LinuxHost {
    /// The machine this program runs on.
    pub fn live() -> Result<Self> {
        Ok(Self {
            disk: RootedDisk::open(Path::new("/"))?,
            has_systemd: systemd::is_running(),
        })
    }

    /// A tree that nobody runs: services are not told anything.
    pub fn offline(root: &Path) -> Result<Self> {
        Ok(Self {
            disk: RootedDisk::open(root)?,
            has_systemd: false,
        })
    }

    /// Boots the machine anew, in good order.
    pub fn reboot(&self) -> Result<()> {
        if self.has_systemd {
            systemd::reboot()
        } else {
            Ok(())
        }
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

    fn reload_units(&self) -> Result<()> {
        if self.has_systemd {
            systemd::reload_units()
        } else {
            Ok(())
        }
    }

    fn reload(&self, unit: &str) -> Result<()> {
        if self.has_systemd {
            systemd::reload(unit)
        } else {
            Ok(())
        }
    }

    fn restart(&self, unit: &str) -> Result<()> {
        if self.has_systemd {
            systemd::restart(unit)
        } else {
            Ok(())
        }
    }
}
