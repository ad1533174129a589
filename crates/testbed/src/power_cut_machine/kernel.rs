//! The kernel that the machine boots and the shell it begins with: Debian's packages, unpacked into
//! the cache and not installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::modules::Modules;
use crate::process::{run, tell};
use crate::{Doing, Error, Result, cache};

/// A package without content whose dependency is the current kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";

const SHELL: &str = "busybox-static";

/// Where kernel, modules and shell are.
#[derive(Debug)]
pub(super) struct Kernel(PathBuf);

impl Kernel {
    /// Finds them in the cache, or puts them there first.
    pub(super) fn get() -> Result<Self> {
        // The number is raised whenever what is kept changes.
        cache::entry("power-cut-machine/kernel-2", 400, make).map(Self)
    }

    /// The kernel itself.
    pub(super) fn image(&self) -> PathBuf {
        self.0.join("vmlinuz")
    }

    /// The shell that runs `init`.
    pub(super) fn shell(&self) -> PathBuf {
        self.0.join("busybox")
    }

    /// The modules, in the order in which they are loaded, which is that of their names.
    pub(super) fn modules(&self) -> Result<Vec<PathBuf>> {
        let folder = self.0.join("modules");
        files(&folder)
    }
}

fn make(place: &Path) -> Result<()> {
    tell("fetching the kernel of the power-cut machine, once: 27 MB");
    let unpacked = place.join("unpacked");
    let modules = place.join("modules");
    for folder in [&unpacked, &modules] {
        std::fs::create_dir_all(folder).doing(|| format!("cannot make {}", folder.display()))?;
    }
    let kernel = newest_kernel()?;
    run(Command::new("apt-get")
        .args(["-o", "APT::Sandbox::User=root", "download", &kernel, SHELL])
        .current_dir(&unpacked))
    .doing(|| "cannot fetch the power-cut machine's kernel: try apt-get update")?;
    for package in files(&unpacked)? {
        run(Command::new("dpkg-deb")
            .arg("-x")
            .arg(&package)
            .arg(&unpacked))?;
    }
    take(&find(&unpacked, "vmlinuz-")?, &place.join("vmlinuz"))?;
    take(&find(&unpacked, "busybox")?, &place.join("busybox"))?;
    let order = Modules::in_package(&unpacked)?.load_order()?;
    for (number, (module, bytes)) in order.iter().enumerate() {
        let place = modules.join(format!("{number:02}-{module}.ko"));
        std::fs::write(&place, bytes).doing(|| format!("cannot write {}", place.display()))?;
    }
    std::fs::remove_dir_all(&unpacked).doing(|| format!("cannot remove {}", unpacked.display()))
}

/// The package that is the current kernel. A machine that never asked for package lists knows none: then it asks.
fn newest_kernel() -> Result<String> {
    let known = || {
        let mut depends = Command::new("apt-cache");
        depends.args(["depends", "--important", KERNEL]);
        let said = run(depends.env("LC_ALL", "C")).unwrap_or_default();
        dependency(&said).map(str::to_owned)
    };
    known()
        .or_else(|| {
            tell("apt knows no kernel package; updating the package lists");
            // Where that fails the lists may be there all the same, and if not, the next line says so.
            _ = run(Command::new("apt-get").args(["update", "-qq"]));
            known()
        })
        .ok_or_else(|| Error::Missing(format!("apt knows no package {KERNEL}: run apt-get update")))
}

/// The one package that `apt-cache depends` names.
fn dependency(depends: &str) -> Option<&str> {
    depends
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: "))
}

/// The program or kernel below `folder` whose name begins like this.
fn find(folder: &Path, beginning: &str) -> Result<PathBuf> {
    let list = run(Command::new("find")
        .args([".", "-type", "f", "-name", &format!("{beginning}*")])
        .args(["(", "-path", "./boot/*", "-o", "-path", "*/bin/*", ")"])
        .current_dir(folder))?;
    list.lines()
        .next()
        .map(|file| folder.join(file))
        .ok_or_else(|| {
            Error::failed(format!(
                "Debian's packages {KERNEL} and {SHELL} have no {beginning}"
            ))
        })
}

fn take(from: &Path, to: &Path) -> Result<()> {
    std::fs::rename(from, to).doing(|| format!("cannot move {}", from.display()))
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = entries.doing(|| format!("cannot read {}", folder.display()))?;
    let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.retain(|path| path.is_file());
    paths.sort();
    Ok(paths)
}
