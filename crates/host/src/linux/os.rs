//! The operating system of a Linux machine through the program that manages it: rpm-ostree, or bootc
//! where there is no rpm-ostree.
//!
//! From a container the machine's own programs are run with the machine's root as theirs. What changes the system runs in a
//! unit of the machine's systemd, so that it has the machine's memory and proxy, and outlives whoever began it. Every run has
//! a deadline, and the last words of one that fails are in the error.

mod staging;
mod status;

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_plan::machine::os::{Deployment, Edits, OsSnapshot, Verification, plain, split};

use self::status::Driver;
use super::run::Program;
use crate::{Error, Result};

/// How long it may take to say what is there.
const LOOK: Duration = Duration::from_mins(2);
/// How long an image may take to come over a slow network.
const PULL: Duration = Duration::from_mins(30);
/// How long a deployment may take to be made, or to go.
const CHANGE: Duration = Duration::from_mins(10);

/// Where the programs of a machine are.
const FOLDERS: [&str; 3] = ["usr/bin", "usr/sbin", "usr/local/bin"];

/// What manages the operating system of the machine whose root is at `root`.
#[derive(Debug)]
pub(crate) struct Os {
    root: PathBuf,
    /// Whether images are staged although another program has taken the updates on itself.
    bypasses_driver: bool,
}

enum Manager {
    RpmOstree,
    Bootc,
}

impl Os {
    pub(crate) fn below(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            bypasses_driver: false,
        }
    }

    /// Stages images also where another program has taken the updates on itself.
    pub(crate) fn bypass_driver(&mut self) {
        self.bypasses_driver = true;
    }

    /// Looked for each time: somebody may install one.
    fn manager(&self) -> Option<Manager> {
        let has = |name: &str| {
            FOLDERS
                .iter()
                .any(|folder| self.root.join(folder).join(name).symlink_metadata().is_ok())
        };
        match (has("rpm-ostree"), has("bootc")) {
            (true, _) => Some(Manager::RpmOstree),
            (false, true) => Some(Manager::Bootc),
            (false, false) => None,
        }
    }

    /// What runs, and what the next boot brings. Staging that somebody before us began is waited for.
    pub(crate) fn look(&self) -> Result<OsSnapshot> {
        staging::until_over(&self.root)?;
        match self.manager() {
            None => Ok(OsSnapshot::Beyond(
                "this machine has neither rpm-ostree nor bootc: install the one that manages it, \
                 or remove the OS image and kernel arguments from the configuration"
                    .to_owned(),
            )),
            Some(Manager::RpmOstree) => {
                let images = self.ask(&["rpm-ostree", "status", "--json"], status::rpm_ostree)?;
                let arguments = self.ask(&["rpm-ostree", "kargs"], |text| {
                    Ok(status::lasting(split(&[text])))
                })?;
                Ok(OsSnapshot::Deployments {
                    booted: Deployment {
                        image: images.booted,
                        arguments: self.booted_arguments()?,
                    },
                    next: Deployment {
                        image: images.next,
                        arguments,
                    },
                    image_beyond: self.held_by(images.driver.as_ref()),
                    arguments_beyond: None,
                })
            }
            Some(Manager::Bootc) => {
                let status = ["bootc", "status", "--format", "json"];
                let images = self.ask(&status, status::bootc)?;
                let arguments = self.booted_arguments()?;
                Ok(OsSnapshot::Deployments {
                    booted: Deployment {
                        image: images.booted,
                        arguments: arguments.clone(),
                    },
                    next: Deployment {
                        image: images.next,
                        arguments,
                    },
                    image_beyond: None,
                    arguments_beyond: Some(
                        "this machine has only bootc, which takes kernel arguments from the image: \
                         add them to /usr/lib/bootc/kargs.d of the image, or install rpm-ostree"
                            .to_owned(),
                    ),
                })
            }
        }
    }

    /// Why rpm-ostree would refuse to stage an image: it asks the program that has taken the updates on itself, as long as
    /// that runs.
    fn held_by(&self, driver: Option<&Driver>) -> Option<String> {
        let Driver { name, unit } = driver.filter(|_| !self.bypasses_driver)?;
        let is_active = ["systemctl", "is-active", "--quiet", "--", unit];
        self.program(&is_active).run(LOOK).ok()?;
        Some(format!(
            "{name} drives the updates of this machine: stop it with `systemctl disable --now {unit}`, \
             or let the agent stage images all the same (--bypass-driver)"
        ))
    }

    /// What the kernel was started with.
    fn booted_arguments(&self) -> Result<Vec<String>> {
        let path = self.root.join("proc/cmdline");
        let text = std::fs::read_to_string(&path)
            .map_err(|error| Error::path("read", path.display().to_string(), error))?;
        Ok(status::lasting(split(&[text])))
    }

    pub(crate) fn stage_image(&self, image: &str) -> Result<()> {
        staging::lend_pull_secret(&self.root)?;
        if let Some(Manager::Bootc) = self.manager() {
            return match Verification::of(image) {
                Verification::None => self.change(&["bootc", "switch", "--", plain(image)], PULL),
                Verification::Policy => {
                    let policy = "--enforce-container-sigpolicy";
                    self.change(&["bootc", "switch", policy, "--", plain(image)], PULL)
                }
                Verification::Remote => Err(failed(
                    &["bootc", "switch", "--", image],
                    "bootc does not verify images by a remote of ostree: write ostree-image-signed:docker:// in its place, or the image alone".to_owned(),
                )),
            };
        }
        let named = status::reference(image);
        let bypass = self.bypasses_driver.then_some("--bypass-driver");
        let line = ["rpm-ostree", "rebase"].into_iter().chain(bypass);
        let line: Vec<&str> = line.chain([named.as_str()]).collect();
        self.change(&line, PULL)
    }

    pub(crate) fn stage_arguments(&self, edits: &Edits) -> Result<()> {
        let delete = edits.delete.iter().map(|it| format!("--delete={it}"));
        let append = edits.append.iter().map(|it| format!("--append={it}"));
        let edits: Vec<String> = delete.chain(append).collect();
        let line = ["rpm-ostree", "kargs"].into_iter();
        let line: Vec<&str> = line.chain(edits.iter().map(String::as_str)).collect();
        self.change(&line, CHANGE)
    }

    /// bootc has no word for this, but keeps its deployments in ostree, where the first is the staged.
    pub(crate) fn unstage(&self) -> Result<()> {
        match self.manager() {
            Some(Manager::Bootc) => self.change(&["ostree", "admin", "undeploy", "0"], CHANGE),
            _ => self.change(&["rpm-ostree", "cleanup", "--pending"], CHANGE),
        }
    }

    fn change(&self, line: &[&str], deadline: Duration) -> Result<()> {
        staging::run(&self.root, line, deadline).map_err(|why| failed(line, why))
    }

    fn ask<T>(&self, line: &[&str], read: impl FnOnce(&str) -> Result<T, String>) -> Result<T> {
        let program = self.program(line);
        let text = program.run(LOOK).map_err(|why| failed(line, why))?;
        read(&text).map_err(|why| failed(line, why))
    }

    fn program<'a>(&'a self, line: &'a [&'a str]) -> Program<'a> {
        Program {
            root: &self.root,
            line,
        }
    }
}

fn failed(line: &[&str], why: String) -> Error {
    Error::os(format!("run `{}`", line.join(" ")), why)
}
