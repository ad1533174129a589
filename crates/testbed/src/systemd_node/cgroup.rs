//! A control group for one boot of a node. Two nodes in the same one would manage each other's
//! units, and on a host without systemd nobody else makes one or takes it away.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::wait::{Look, until};
use crate::{Doing, Error, Result, reaper};

/// The same group in every hierarchy that systemd manages. Gone when this is dropped.
#[derive(Debug)]
pub(super) struct Cgroup {
    paths: Vec<PathBuf>,
    /// Those of the first version's controllers.
    controllers: Vec<PathBuf>,
}

impl Cgroup {
    /// Makes a group called `name`, which must be nobody else's. Whoever runs containers in it needs it in the hierarchies
    /// of all controllers.
    pub(super) fn new(name: &str, has_containers: bool) -> Result<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")
            .doing(|| "cannot read /proc/self/mountinfo")?;
        let mut made = Self {
            paths: Vec::new(),
            controllers: Vec::new(),
        };
        let make = |hierarchy: &Path, list: &mut Vec<PathBuf>| {
            let path = hierarchy.join(name);
            reaper::cgroup(&path)?;
            list.push(path.clone());
            std::fs::create_dir(&path)
                .doing(|| format!("cannot make the control group {}", path.display()))
        };
        let managed = hierarchies(&mounts);
        for hierarchy in &managed {
            make(hierarchy, &mut made.paths)?;
        }
        let others = if has_containers {
            controllers(&mounts)
        } else {
            Vec::new()
        };
        for hierarchy in others.iter().filter(|it| !managed.contains(it)) {
            make(hierarchy, &mut made.controllers)?;
            inherit_processors(hierarchy, &hierarchy.join(name))?;
        }
        if made.paths.is_empty() {
            return Err(Error::Missing(
                "no control group hierarchy is mounted: mount -t cgroup2 cgroup2 /sys/fs/cgroup"
                    .to_owned(),
            ));
        }
        Ok(made)
    }

    /// Its folders, one per hierarchy.
    pub(super) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Its folders in the hierarchies of controllers, as words of a shell.
    pub(super) fn controllers(&self) -> String {
        let paths = self.controllers.iter();
        let paths: Vec<_> = paths.map(|it| it.display().to_string()).collect();
        paths.join(" ")
    }

    /// Removes it as soon as the last process in it is gone.
    fn vacate(&self) -> Result<()> {
        for path in self.paths.iter().chain(&self.controllers) {
            until(
                &format!("the control group {} to be empty", path.display()),
                Duration::from_secs(10),
                || {
                    Ok(match remove(path) {
                        Ok(()) => Look::Found(()),
                        Err(error) => Look::NotYet(error.to_string()),
                    })
                },
            )?;
            reaper::vacated(path);
        }
        Ok(())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = self.vacate() {
            crate::process::tell(&error.to_string());
        }
    }
}

/// Removes a group and all below it. Its files are the kernel's and need no removing.
fn remove(path: &Path) -> std::io::Result<()> {
    if !path.exists() {
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    std::fs::remove_dir(path)
}

/// Where the first version's controllers are mounted.
fn controllers(mountinfo: &str) -> Vec<PathBuf> {
    let lines = mountinfo.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let is_controller = kind.starts_with("cgroup ") && !kind.contains("name=");
        is_controller.then(|| mount.split(' ').nth(4).map(PathBuf::from))?
    });
    lines.collect()
}

/// A group of the first version has no processors until somebody gives it some, and then nobody can enter it.
fn inherit_processors(parent: &Path, group: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let of_parent = parent.join(file);
        if of_parent.exists() {
            std::fs::copy(&of_parent, group.join(file))
                .doing(|| format!("cannot copy {}", of_parent.display()))?;
        }
    }
    Ok(())
}

/// Where the hierarchies are mounted that systemd uses: the second version's, and in a hybrid or old
/// setup the one named after systemd.
fn hierarchies(mountinfo: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in mountinfo.lines() {
        let Some((mount, kind)) = line.split_once(" - ") else {
            continue;
        };
        let mine = kind.starts_with("cgroup2 ")
            || (kind.starts_with("cgroup ")
                && kind
                    .split([' ', ','])
                    .any(|option| option == "name=systemd"));
        if let Some(place) = mount.split(' ').nth(4)
            && mine
            && !found.contains(&PathBuf::from(place))
        {
            found.push(place.into());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_hierarchies_that_systemd_manages_are_used() {
        let unified = "24 1 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(hierarchies(unified), [PathBuf::from("/sys/fs/cgroup")]);
        let hybrid = "\
31 23 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
32 23 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
33 23 0:28 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw";
        assert_eq!(
            hierarchies(hybrid),
            [
                PathBuf::from("/sys/fs/cgroup/systemd"),
                PathBuf::from("/sys/fs/cgroup/unified")
            ]
        );
    }
}
