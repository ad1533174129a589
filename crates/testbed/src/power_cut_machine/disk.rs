//! The machine's disk: an ext4 image in a file, which is made and read without mounting it here.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{output, run, words_of};
use crate::scratch::Scratch;
use crate::{Error, Result};

/// An image in a file. It belongs to its folder and goes with it.
#[derive(Debug)]
pub(super) struct Disk(PathBuf);

impl Disk {
    /// Makes a disk with what is in `tree` on it.
    pub(super) fn new(image: &Path, megabytes: u32, tree: Option<&Path>) -> Result<Self> {
        let mut command = Command::new("mkfs.ext4");
        command.args(["-q", "-F", "-E", "lazy_itable_init=0,root_owner=0:0"]);
        if let Some(tree) = tree {
            command.arg("-d").arg(tree);
        }
        run(command.arg(image).arg(format!("{megabytes}m")))?;
        Ok(Self(image.to_owned()))
    }

    /// Where the image is.
    pub(super) fn image(&self) -> &Path {
        &self.0
    }

    /// What is on it, in a folder of this machine. The journal is replayed on a copy: the next boot
    /// finds the disk as the cut left it.
    pub(super) fn tree(&self) -> Result<Scratch> {
        let work = Scratch::new("disk")?;
        let copy = work.path().join("image");
        run(Command::new("cp")
            .args(["--sparse=always", "--reflink=auto"])
            .arg(&self.0)
            .arg(&copy))?;
        let check = output(Command::new("e2fsck").arg("-p").arg(&copy), &[])?;
        // 1 says that something was put right, as after any cut; from 4 on it could not be.
        if !matches!(check.status.code(), Some(0 | 1)) {
            return Err(Error::failed(format!(
                "the machine's disk is damaged: {}",
                words_of(&check)
            )));
        }
        let tree = Scratch::new("tree")?;
        let dump = output(
            Command::new("debugfs")
                .arg("-R")
                .arg(format!("rdump / \"{}\"", tree.path().display()))
                .arg(&copy),
            &[],
        )?;
        // It never fails by its code. Its first line is its name; files of others stay ours if we
        // are not root.
        let errors = String::from_utf8_lossy(&dump.stderr);
        let error = errors
            .lines()
            .find(|line| !line.starts_with("debugfs ") && !line.contains("changing ownership"));
        match error {
            Some(error) => Err(Error::because("cannot read the machine's disk", error)),
            None => Ok(tree),
        }
    }
}
