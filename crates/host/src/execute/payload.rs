//! Payload files have a second copy in the store, from which a tampered one comes back.

use std::collections::BTreeSet;

use evenkeel_plan::machine::targets::{Part, Targets};

use super::Claim;
use crate::disk::Host;
use crate::store::ContentSource;
use crate::{Error, Result};

impl<H: Host> Claim<'_, H> {
    /// Keeps payload files of `targets` a second time where that copy is missing and the file is right:
    /// somebody may have brought it anew.
    pub fn keep_payload(&self, targets: &Targets) -> Result<()> {
        for (path, target) in targets {
            if let (Part::Payload(_), Some(hash)) = (&target.part, target.entry.hash())
                && !self.store().has(hash)
            {
                let wanted = BTreeSet::from([hash]);
                match self
                    .store()
                    .keep(&wanted, |_| Some(ContentSource::At(path)))
                {
                    // It is not there, or not right: it was hashed on its way, and not before that once more.
                    Err(Error::Lost { .. }) => {}
                    kept => kept?,
                }
            }
        }
        Ok(())
    }
}
