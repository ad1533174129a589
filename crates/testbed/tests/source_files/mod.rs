//! The files that our programs are made of, for tests that read them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evenkeel_testbed::{Doing, Result};

/// A file, as the names that lead to it within its crate.
pub(crate) type Module = Vec<String>;

/// The files of each crate by their modules. Files of tests are left out.
pub(crate) fn crates() -> Result<BTreeMap<PathBuf, BTreeMap<Module, String>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut crates = BTreeMap::new();
    for entry in std::fs::read_dir(&folder).doing(|| "cannot read crates")? {
        let folder = entry.doing(|| "cannot read crates")?.path();
        let mut files = BTreeMap::new();
        read(&folder.join("src"), &Vec::new(), &mut files)?;
        crates.insert(folder, files);
    }
    Ok(crates)
}

/// Adds the files below `folder`.
fn read(folder: &Path, at: &Module, files: &mut BTreeMap<Module, String>) -> Result<()> {
    for entry in std::fs::read_dir(folder).doing(|| format!("cannot read {}", folder.display()))? {
        let path = entry.doing(|| "cannot read a folder")?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "bin" {
            read(&path, &[&at[..], &[name.into_owned()]].concat(), files)?;
        } else if path.extension().is_some_and(|it| it == "rs") && name != "tests" {
            let module = match &*name {
                "lib" | "main" | "mod" => at.clone(),
                name => [&at[..], &[name.to_owned()]].concat(),
            };
            let text = std::fs::read_to_string(&path);
            files.insert(
                module,
                text.doing(|| format!("cannot read {}", path.display()))?,
            );
        }
    }
    Ok(())
}
