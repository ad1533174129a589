//! What every host can do with paths, one system call's worth at a time.
//!
//! Paths are absolute and in the machine's own terms; where its root is, only the host knows. What
//! stands under a name that is no path, a Windows service or a variable, is looked at like a path. The
//! pieces are small on purpose: how they make a write atomic and durable is written once, above
//! them, and the simulated host can stop or forget between any two of them.

use evenkeel_plan::machine::attributes::Attributes;
use evenkeel_plan::machine::entry::{Entry, Hash, Ids};
use evenkeel_plan::machine::os::{Edits, OsSnapshot};
use evenkeel_plan::machine::record::BootId;
use evenkeel_plan::machine::ssh_keys::{Account, SshdSettings};

use crate::{Error, Result};

/// The folder, as it were, of everything that stands under a name and at no path.
pub const NAMED: &str = "named:";

/// How much is read into memory at once: what we keep ourselves, and what tells us about the machine, is
/// far smaller. Contents that may be large are copied from disk to disk.
pub const LARGEST_READ: usize = 16 << 20;

/// Whether a path can hold others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Folder {
    /// It is a folder, perhaps behind links that stay inside the root.
    There,
    /// Nothing is there; it can be made.
    Missing,
    /// It can never be one, with the reason: `is a file`.
    Blocked(String),
}

/// A machine's paths. Nothing is durable before it is synced.
pub trait Disk {
    /// Released on drop: only one program of ours is at work on a machine.
    type Lock;

    /// What stands at `path`, not following it if it is a link.
    fn look(&self, path: &str) -> Result<Entry>;

    /// As [`Disk::look`], for whoever knows the contents that are most likely there: comparing is
    /// cheaper than hashing.
    fn look_for(&self, path: &str, likely: &[u8], hash: Hash) -> Result<Entry> {
        let _ = (likely, hash);
        self.look(path)
    }

    /// Whether `path` is a folder, following links inside the root.
    fn folder(&self, path: &str) -> Result<Folder>;

    /// The contents of a file, not following links; `None` if there is no file. One that is larger than
    /// `most` is an error of the kind `FileTooLarge`, and not read.
    fn read_up_to(&self, path: &str, most: usize) -> Result<Option<Vec<u8>>>;

    /// The contents of a file of a sensible size.
    fn read(&self, path: &str) -> Result<Option<Vec<u8>>> {
        self.read_up_to(path, LARGEST_READ)
    }

    /// Makes a new file with the contents of the one at `from`, whatever its size, and says what they
    /// are; `None`, and nothing is made, if there is no such file.
    fn copy(&self, from: &str, path: &str, mode: u32, owner: Ids) -> Result<Option<Hash>>;

    /// The names in a folder, sorted; empty if there is none.
    fn list(&self, path: &str) -> Result<Vec<String>>;

    /// The security label of what stands at `path`, where the machine has such a thing.
    fn label(&self, path: &str) -> Result<Option<String>>;

    /// Gives what stands at `path` this label; a machine without labels does nothing.
    fn set_label(&self, path: &str, label: &str) -> Result<()>;

    /// The extended attributes of what stands at `path`, without its label.
    fn attributes(&self, path: &str) -> Result<Attributes>;

    /// Gives what stands at `path` these extended attributes and no others.
    fn set_attributes(&self, path: &str, attributes: &Attributes) -> Result<()>;

    /// Makes a new file.
    fn create(&self, path: &str, contents: &[u8], mode: u32, owner: Ids) -> Result<()>;

    /// Makes a symbolic link.
    fn link(&self, path: &str, target: &str) -> Result<()>;

    /// Makes a folder.
    fn make_folder(&self, path: &str, mode: u32, owner: Ids) -> Result<()>;

    /// Puts `from` in the place of whatever is at `to`, in one instant.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Removes a file or a link; nothing there is fine.
    fn remove(&self, path: &str) -> Result<()>;

    /// Removes a folder if it is empty; `false` if it is not.
    fn remove_folder(&self, path: &str) -> Result<bool>;

    /// Makes the contents of these files durable.
    fn sync_files(&self, paths: &[String]) -> Result<()>;

    /// Makes the names in a folder durable; of [`NAMED`], what was put under names.
    fn sync_folder(&self, path: &str) -> Result<()>;

    /// Makes `entry` stand at a place that is no path. A service that shall run is started, but that it
    /// does not stay up is no error: that shows at the next look.
    fn put(&self, place: &str, entry: &Entry) -> Result<()> {
        let _ = entry;
        let unsupported = std::io::ErrorKind::Unsupported;
        Err(Error::path("write", place, unsupported))
    }

    /// Claims the machine, or says that another program has it.
    fn lock(&self, path: &str) -> Result<Self::Lock>;

    /// The number that stands for the user of the keys where the machine knows no such user.
    fn stand_in(&self) -> Option<u32>;
}

/// A machine: its paths, and its service manager.
pub trait Host {
    /// How its paths are reached.
    type Disk: Disk;

    /// Its paths.
    fn disk(&self) -> &Self::Disk;

    /// Which boot this is; a host that never boots is always in the same one.
    fn boot_id(&self) -> Result<BootId> {
        Ok(BootId(String::new()))
    }

    /// A user of the machine, whatever its name service has it from; nothing if there is none, or nobody can be asked.
    fn account(&self, user: &str) -> Result<Option<Account>> {
        let _ = user;
        Ok(None)
    }

    /// The number of a group, likewise.
    fn group(&self, group: &str) -> Result<Option<u32>> {
        let _ = group;
        Ok(None)
    }

    /// What sshd does for a user; nothing where none runs.
    fn sshd_settings(&self, user: &str) -> Result<Option<SshdSettings>> {
        let _ = user;
        Ok(None)
    }

    /// Makes the service manager read its units again.
    fn reload_units(&self) -> Result<()>;

    /// Makes a running unit read its configuration again; one that does not run is left alone.
    fn reload(&self, unit: &str) -> Result<()>;

    /// Stops and starts a running unit; one that does not run is left alone.
    fn restart(&self, unit: &str) -> Result<()>;

    /// Gives what stands at `paths` the labels that the machine's policy has for them; `false` where there
    /// is no such policy.
    fn relabel(&self, paths: &[String]) -> Result<bool> {
        let _ = paths;
        Ok(false)
    }

    /// Why a service that was put does not run, where that is known.
    fn trouble_of(&self, service: &str) -> Option<String> {
        let _ = service;
        None
    }

    /// What it boots.
    fn os(&self) -> Result<OsSnapshot> {
        Ok(OsSnapshot::Beyond(
            "this kind of machine supports no OS image and no kernel arguments: remove them from the configuration"
                .to_owned(),
        ))
    }

    /// Makes the next boot bring `image`.
    fn stage_image(&self, image: &str) -> Result<()> {
        Err(Error::os(
            format!("stage {image}"),
            "this kind of machine cannot stage anything",
        ))
    }

    /// Changes the kernel's arguments for the next boot.
    fn stage_arguments(&self, edits: &Edits) -> Result<()> {
        let _ = edits;
        Err(Error::os(
            "stage kernel arguments",
            "this kind of machine cannot stage anything",
        ))
    }

    /// Makes the next boot bring what runs now.
    fn unstage(&self) -> Result<()> {
        Err(Error::os(
            "discard what is staged",
            "this kind of machine cannot stage anything",
        ))
    }
}
