//! The kernel modules that bring the disk: which ones, and in which order they are loaded, as the modules themselves
//! say. A kernel may have some of them built in, pack their files, or turn a dependency round with its next release.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{output, run, words_of};
use crate::{Doing, Error, Result};

/// What a disk of QEMU's needs. Whatever these need comes with them.
const WANTED: [&str; 3] = ["virtio_pci", "virtio_blk", "ext4"];

/// The modules of one kernel.
#[derive(Debug)]
pub(super) struct Modules {
    files: BTreeMap<String, PathBuf>,
    built_in: BTreeSet<String>,
}

impl Modules {
    /// Those of the kernel that was unpacked into `folder`.
    pub(super) fn in_package(folder: &Path) -> Result<Self> {
        let list = run(Command::new("find")
            .arg(folder)
            .args(["-type", "f", "("])
            .args([
                "-name",
                "*.ko",
                "-o",
                "-name",
                "*.ko.*",
                "-o",
                "-name",
                "modules.builtin",
                ")",
            ]))?;
        let mut files = BTreeMap::new();
        let mut built_in = None;
        for path in list.lines().map(PathBuf::from) {
            if path.ends_with("modules.builtin") {
                let text = std::fs::read_to_string(&path);
                let text = text.doing(|| format!("cannot read {}", path.display()))?;
                built_in = Some(text.lines().map(|line| name(Path::new(line))).collect());
            } else {
                files.insert(name(&path), path);
            }
        }
        let built_in = built_in
            .ok_or_else(|| Error::failed("Debian's kernel package has no modules.builtin"))?;
        Ok(Self { files, built_in })
    }

    /// What is loaded, in this order, as files without compression.
    pub(super) fn load_order(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let mut contents = BTreeMap::new();
        let order = order(&WANTED, &mut |module| {
            if self.built_in.contains(module) {
                return Ok(None);
            }
            let path = self.files.get(module).ok_or_else(|| {
                Error::failed(format!(
                    "Debian's kernel has no module {module}, neither as a file nor built in"
                ))
            })?;
            let bytes = read(path)?;
            let needs = depends(&bytes);
            contents.insert(module.to_owned(), bytes);
            Ok(Some(needs))
        })?;
        let with_contents = |module: String| {
            let bytes = contents.remove(&module).unwrap_or_default();
            (module, bytes)
        };
        Ok(order.into_iter().map(with_contents).collect())
    }
}

/// Each module once, after all that it needs. `needs` says what that is, and nothing for one that is built in.
fn order(
    wanted: &[&str],
    needs: &mut dyn FnMut(&str) -> Result<Option<Vec<String>>>,
) -> Result<Vec<String>> {
    let mut loaded = Vec::new();
    let mut above = Vec::new();
    for module in wanted {
        visit(module, needs, &mut above, &mut loaded)?;
    }
    Ok(loaded)
}

fn visit(
    module: &str,
    needs: &mut dyn FnMut(&str) -> Result<Option<Vec<String>>>,
    above: &mut Vec<String>,
    loaded: &mut Vec<String>,
) -> Result<()> {
    if loaded.iter().any(|it| it == module) {
        return Ok(());
    }
    if above.iter().any(|it| it == module) {
        let circle = above.join(", ");
        return Err(Error::failed(format!(
            "kernel modules depend on each other in a cycle: {circle}, {module}"
        )));
    }
    if let Some(needed) = needs(module)? {
        above.push(module.to_owned());
        for other in &needed {
            visit(other, needs, above, loaded)?;
        }
        above.pop();
        loaded.push(module.to_owned());
    }
    Ok(())
}

/// A module's name: its file's, up to the first dot. The kernel takes `-` and `_` for the same.
fn name(path: &Path) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let name = file.split('.').next().unwrap_or_default();
    name.replace('-', "_")
}

/// The module at `path`, unpacked.
fn read(path: &Path) -> Result<Vec<u8>> {
    let ending = path.extension().unwrap_or_default().to_string_lossy();
    let unpacker = match &*ending {
        "ko" => {
            return std::fs::read(path).doing(|| format!("cannot read {}", path.display()));
        }
        "xz" => "xz",
        "zst" => "zstd",
        "gz" => "gzip",
        other => {
            return Err(Error::failed(format!(
                "{} is packed as {other}, which is not supported",
                path.display()
            )));
        }
    };
    let unpacked = output(Command::new(unpacker).arg("-dc").arg(path), &[])?;
    if unpacked.status.success() {
        Ok(unpacked.stdout)
    } else {
        let words = words_of(&unpacked);
        Err(Error::because(
            format!("cannot unpack {}", path.display()),
            words,
        ))
    }
}

/// What a module says that it needs: `depends=a,b` among the texts in it, each of which ends with a zero.
fn depends(module: &[u8]) -> Vec<String> {
    let said = module
        .split(|byte| *byte == 0)
        .find_map(|text| text.strip_prefix(b"depends="));
    let said = String::from_utf8_lossy(said.unwrap_or_default()).into_owned();
    let names = said.split(',').filter(|name| !name.is_empty());
    names.map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Needs<'a> = &'a [(&'a str, &'a [&'a str])];

    fn ordered(needs: Needs<'_>) -> Result<Vec<String>> {
        order(&WANTED, &mut |module| {
            let found = needs.iter().find(|(name, _)| *name == module);
            Ok(found.map(|(_, needed)| needed.iter().map(|it| (*it).to_owned()).collect()))
        })
    }

    #[test]
    fn a_module_is_loaded_after_what_it_needs_whichever_way_round_a_kernel_has_it() -> Result<()> {
        let pci: &[&str] = &["virtio_ring", "virtio"];
        let blk: &[&str] = &["virtio", "virtio_ring"];
        let before = ordered(&[
            ("virtio", &[]),
            ("virtio_ring", &["virtio"]),
            ("virtio_pci", pci),
            ("virtio_blk", blk),
        ])?;
        assert_eq!(
            before,
            ["virtio", "virtio_ring", "virtio_pci", "virtio_blk"]
        );
        let after = ordered(&[
            ("virtio", &["virtio_ring"]),
            ("virtio_ring", &[]),
            ("virtio_pci", pci),
            ("virtio_blk", blk),
        ])?;
        assert_eq!(after, ["virtio_ring", "virtio", "virtio_pci", "virtio_blk"]);
        assert!(ordered(&[])?.is_empty(), "all of it is built in");
        Ok(())
    }

    #[test]
    fn a_circle_and_a_packing_that_nobody_knows_are_said() {
        let circle = ordered(&[("virtio_pci", &["virtio"]), ("virtio", &["virtio_pci"])]);
        let error = circle.unwrap_err().to_string();
        assert!(error.ends_with("virtio_pci, virtio, virtio_pci"), "{error}");
        let error = read(Path::new("/modules/virtio.ko.lz9")).unwrap_err();
        assert!(error.to_string().contains("packed as lz9"), "{error}");
    }

    #[test]
    fn what_a_module_needs_is_read_from_its_file() {
        let module = b"\x7fELF\0license=GPL\0depends=virtio,virtio-ring\0name=virtio_blk\0";
        assert_eq!(depends(module), ["virtio", "virtio_ring"]);
        assert!(depends(b"\0depends=\0").is_empty());
        assert_eq!(name(Path::new("/k/virtio-pci.ko.xz")), "virtio_pci");
    }
}
