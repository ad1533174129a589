//! A Windows machine: its files, its registry and its service manager.
//!
//! Every handle has an owner that closes it. What Windows calls a service, a variable of the machine
//! or a payload file stands at a place of its own, and is looked at and put like any path.

pub mod about;
mod disk;
mod environment;
pub mod event_log;
mod power;
mod private;
mod registry;
pub mod script;
mod services;
mod started;
mod text;
pub mod trust;
mod watch;

pub use disk::{Lock, WindowsDisk};
pub use services::TaggedServices;
pub use started::Started;
pub use watch::{RootsWatcher, Stopper, Watcher};

use std::time::Duration;

use evenkeel_api::names::windows::MANAGED_TAG;
use evenkeel_plan::machine::entry::Hash;
use evenkeel_plan::machine::record::BootId;

use crate::disk::Host;
use crate::{Error, Result};

/// The Windows machine that this program runs on.
#[derive(Debug, Default)]
pub struct WindowsHost {
    disk: WindowsDisk,
}

impl WindowsHost {
    /// The machine this program runs on.
    pub fn live() -> Self {
        Self::default()
    }

    /// Boots the machine anew, in good order.
    pub fn reboot(&self) -> Result<()> {
        power::reboot()
    }

    /// Watches `places` for changes; whoever listens is first told to look at everything.
    pub fn watch<'p>(&self, places: impl IntoIterator<Item = &'p str>) -> Result<Watcher> {
        Watcher::new(&self.disk, places)
    }

    /// Watches the machine's trusted roots.
    pub fn watch_roots(&self) -> Result<RootsWatcher> {
        RootsWatcher::new()
    }

    /// The services that carry our tag in their description. One stranger's that cannot be read is no reason to
    /// know of none.
    pub fn tagged_services(&self) -> Result<TaggedServices> {
        services::tagged(MANAGED_TAG)
    }

    /// How often this program has called the service manager so far.
    pub fn manager_calls(&self) -> u64 {
        services::calls()
    }

    /// Starts a service and waits until it runs.
    pub fn start(&self, service: &str) -> Result<()> {
        self.disk.services.start(service)
    }

    /// Stops a service after those that depend on it.
    pub fn stop(&self, service: &str) -> Result<()> {
        self.disk.services.stop(service).map(|_| ())
    }

    /// Lets the system wait so long for a service that asked to be told before a shutdown.
    pub fn set_preshutdown(&self, service: &str, wait: Duration) -> Result<()> {
        services::set_preshutdown(service, wait)
    }

    /// Closes a folder, and all that is in it, to all but the system and administrators.
    pub fn close_folder(&self, path: &str) -> Result<()> {
        private::close(path).map_err(|error| Error::path("restrict access to folder", path, error))
    }

    /// Makes a folder that is for the system and administrators alone, below others that are not.
    pub fn own_folder(&self, path: &str) -> Result<()> {
        private::own(path)
            .map_err(|error| Error::path("create with restricted access the folder", path, error))
    }

    /// All files below a folder, as far as no link leads elsewhere; none if there is no such folder.
    pub fn files_below(&self, path: &str) -> Result<Vec<String>> {
        disk::files_below(path).map_err(|error| Error::path("list", path, error))
    }

    /// The SHA-256 of a file; nothing if there is none.
    pub fn checksum(&self, path: &str) -> Result<Option<Hash>> {
        match disk::hash_of(path) {
            Ok(hash) => Ok(Some(hash)),
            Err(error) if disk::is_missing(&error) => Ok(None),
            Err(error) => Err(Error::path("read", path, error)),
        }
    }
}

impl Host for WindowsHost {
    type Disk = WindowsDisk;

    fn disk(&self) -> &WindowsDisk {
        &self.disk
    }

    fn boot_id(&self) -> Result<BootId> {
        power::boot_id()
    }

    fn reload_units(&self) -> Result<()> {
        Ok(())
    }

    /// Windows knows no such thing: a service reads its configuration when it starts.
    fn reload(&self, unit: &str) -> Result<()> {
        self.restart(unit)
    }

    fn restart(&self, unit: &str) -> Result<()> {
        self.disk.services.restart(unit)
    }

    fn trouble_of(&self, service: &str) -> Option<String> {
        self.disk.services.trouble_of(service)
    }
}
