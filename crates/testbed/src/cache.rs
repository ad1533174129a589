//! What is slow to make is made once per machine and kept: control-plane programs, a Debian tree.
//!
//! An entry appears under its name only when it is whole: it is made under another name and renamed.
//! Who finds it half made, because its maker was killed, makes it anew.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::process::tell;
use crate::{Doing, Error, Result};

/// The folder of all entries: `$XDG_CACHE_HOME/evenkeel`, else `~/.cache/evenkeel`.
pub fn folder() -> Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    base.map(|base| base.join("evenkeel")).ok_or_else(|| {
        Error::Missing(
            "there is no cache folder: set HOME or XDG_CACHE_HOME to an absolute path".to_owned(),
        )
    })
}

/// The entry `name`, made by `make` if it is not there. `make` gets the path under which to put it
/// (nothing is there yet) and `megabytes` is what it will need on disk.
///
/// Two processes that want the same entry make it once: the second waits for the first.
pub fn entry(
    name: &str,
    megabytes: u64,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    entry_in(&folder()?, name, megabytes, make)
}

fn entry_in(
    folder: &Path,
    name: &str,
    megabytes: u64,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let place = folder.join(name);
    if place.exists() {
        return Ok(place);
    }
    let above = place.parent().unwrap_or(&place);
    std::fs::create_dir_all(above)
        .doing(|| format!("cannot create the cache folder {}", above.display()))?;
    let lock_path = beside(&place, "lock");
    let lock = File::create(&lock_path).doing(|| format!("cannot make {}", lock_path.display()))?;
    if lock.try_lock().is_err() {
        tell(&format!("another process is making {name}; waiting for it"));
        lock.lock()
            .doing(|| format!("cannot lock {}", lock_path.display()))?;
    }
    if place.exists() {
        return Ok(place);
    }
    has_space(above, megabytes)?;
    let partial = beside(&place, "partial");
    remove(&partial)?;
    make(&partial)?;
    std::fs::rename(&partial, &place)
        .doing(|| format!("cannot move {} into place", place.display()))?;
    Ok(place)
}

fn beside(place: &Path, suffix: &str) -> PathBuf {
    let mut name = place.file_name().unwrap_or_default().to_os_string();
    name.push(".");
    name.push(suffix);
    place.with_file_name(name)
}

fn remove(path: &Path) -> Result<()> {
    let Ok(found) = path.symlink_metadata() else {
        return Ok(());
    };
    tell(&format!(
        "{} is incomplete; making it again",
        path.display()
    ));
    let removed = if found.is_dir() {
        std::fs::remove_dir_all(path)
    } else {
        std::fs::remove_file(path)
    };
    removed.doing(|| {
        format!(
            "cannot remove the incomplete {}; remove it by hand",
            path.display()
        )
    })
}

fn has_space(folder: &Path, megabytes: u64) -> Result<()> {
    let disk = rustix::fs::statvfs(folder)
        .doing(|| format!("cannot read the free space of {}", folder.display()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize) / (1 << 20);
    if free < megabytes {
        return Err(Error::Missing(format!(
            "{} needs {megabytes} MB and has {free} MB free: free some, or set XDG_CACHE_HOME to a larger disk",
            folder.display()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn write(text: &str) -> impl FnOnce(&Path) -> Result<()> {
        move |path| std::fs::write(path, text).doing(|| "cannot write the entry")
    }

    fn read(path: &Path) -> Result<String> {
        std::fs::read_to_string(path).doing(|| "cannot read the entry")
    }

    #[test]
    fn an_entry_left_half_made_is_made_anew_and_a_whole_one_is_kept() -> Result<()> {
        let scratch = Scratch::new("cache")?;
        let folder = scratch.path();
        std::fs::write(folder.join("etcd.partial"), "half").doing(|| "cannot prepare")?;
        let entry = entry_in(folder, "etcd", 1, write("whole"))?;
        assert_eq!(read(&entry)?, "whole");
        assert!(!folder.join("etcd.partial").exists());
        assert_eq!(
            read(&entry_in(folder, "etcd", 1, write("again"))?)?,
            "whole"
        );
        Ok(())
    }

    #[test]
    fn a_failed_making_leaves_no_entry() -> Result<()> {
        let scratch = Scratch::new("cache")?;
        let made = entry_in(scratch.path(), "etcd", 1, |path| {
            write("half")(path)?;
            Err(Error::failed("the compiler was killed"))
        });
        assert_eq!(made, Err(Error::failed("the compiler was killed")));
        assert!(!scratch.path().join("etcd").exists());
        Ok(())
    }

    #[test]
    fn a_full_disk_is_one_sentence_with_the_cure() -> Result<()> {
        let scratch = Scratch::new("cache")?;
        let error = entry_in(scratch.path(), "etcd", 1 << 40, write("whole"))
            .unwrap_err()
            .to_string();
        assert!(
            error.ends_with("set XDG_CACHE_HOME to a larger disk"),
            "{error}"
        );
        Ok(())
    }
}
