//! An operating system that boots what was staged, and refuses what it is told to refuse.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_plan::machine::os::{Deployment, Edits, OsSnapshot};
use evenkeel_plan::machine::record::BootId;

use super::cut::Chooser;
use super::fault::Faults;
use crate::{Error, Result};

/// The deployments of a machine. They can be combined with any disk.
#[derive(Debug, Default)]
pub struct SimulatedOs {
    faults: Arc<Faults>,
    inner: Mutex<OsState>,
}

#[derive(Debug, Clone, Default)]
struct OsState {
    boots: u32,
    booted: Deployment,
    staged: Option<Deployment>,
    refuses: bool,
}

impl SimulatedOs {
    pub(super) fn with(faults: Arc<Faults>) -> Self {
        Self {
            faults,
            inner: Mutex::default(),
        }
    }

    /// The same operating system, in a program of its own.
    pub(super) fn again(&self, faults: Arc<Faults>) -> Self {
        Self {
            faults,
            inner: Mutex::new(self.inner().clone()),
        }
    }

    fn inner(&self) -> MutexGuard<'_, OsState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on it runs this.
    pub fn runs(&self, booted: Deployment) {
        self.inner().booted = booted;
    }

    /// From now on nothing can be staged; or it can again.
    pub fn refuse(&self, refuses: bool) {
        self.inner().refuses = refuses;
    }

    /// What the next boot brings.
    pub fn next(&self) -> Deployment {
        let inner = self.inner();
        inner.staged.clone().unwrap_or_else(|| inner.booted.clone())
    }

    /// Whether anything is staged.
    pub fn has_staged(&self) -> bool {
        self.inner().staged.is_some()
    }

    /// Which boot this is.
    pub fn boot_id(&self) -> BootId {
        BootId(self.inner().boots.to_string())
    }

    /// An orderly reboot.
    pub fn boots(&self) {
        let mut inner = self.inner();
        inner.boots += 1;
        if let Some(staged) = inner.staged.take() {
            inner.booted = staged;
        }
    }

    /// A power cut: what was staged is lost, or was written down already.
    pub(super) fn is_cut(&self, choose: Chooser<'_>) {
        if self.has_staged() && choose(2) == 0 {
            self.inner().staged = None;
        }
        self.boots();
    }

    /// What is there.
    pub fn look(&self) -> Result<OsSnapshot> {
        self.faults
            .looks()
            .map_err(|error| Error::os("read the deployments", error))?;
        let next = self.next();
        Ok(OsSnapshot::Deployments {
            booted: self.inner().booted.clone(),
            next,
            image_beyond: None,
            arguments_beyond: None,
        })
    }

    /// Stages an image, upon what is staged already; one that is next already is refused, as by
    /// rpm-ostree.
    pub fn stage_image(&self, image: &str) -> Result<()> {
        let mut next = self.next();
        self.change(&format!("stage {image}"), |inner| {
            if next.image.as_deref() == Some(image) {
                return Err("old and new are equal".into());
            }
            next.image = Some(image.to_owned());
            inner.staged = Some(next);
            Ok(())
        })
    }

    /// Changes the arguments of what is staged, or of what runs; one that is not there cannot go.
    pub fn stage_arguments(&self, edits: &Edits) -> Result<()> {
        let mut next = self.next();
        self.change("stage kernel arguments", |inner| {
            let after = edits.made_to(&next.arguments);
            if after.len() + edits.delete.len() != next.arguments.len() + edits.append.len() {
                return Err("no such argument".into());
            }
            next.arguments = after;
            inner.staged = Some(next);
            Ok(())
        })
    }

    /// Discards what is staged.
    pub fn unstage(&self) -> Result<()> {
        self.change("discard what is staged", |inner| {
            inner.staged = None;
            Ok(())
        })
    }

    fn change(
        &self,
        doing: &str,
        change: impl FnOnce(&mut OsState) -> Result<(), Box<dyn std::error::Error + Send + Sync>>,
    ) -> Result<()> {
        self.faults
            .changes_something()
            .map_err(|error| Error::os(doing, error))?;
        let mut inner = self.inner();
        if inner.refuses {
            return Err(Error::os(doing, "it was told to refuse"));
        }
        change(&mut inner).map_err(|error| Error::os(doing, error))
    }
}
