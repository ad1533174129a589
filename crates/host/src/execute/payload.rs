//! Payload files have a second copy in the store, from which a tampered one comes back.

use std::collections::BTreeSet;

use evenkeel_plan::targets::{Part, Targets};

use super::Claim;
use crate::Result;
use crate::disk::{Disk, Host};

impl<H: Host> Claim<'_, H> {
    /// Keeps payload files of `targets` a second time where that copy is missing and the file is right:
    /// somebody may have brought it anew.
    pub fn keep_payload(&self, targets: &Targets) -> Result<()> {
        for (path, target) in targets {
            if let (Part::Payload(_), Some(hash)) = (&target.part, target.entry.hash())
                && !self.store().has(hash)
                && self.host.disk().look(path)? == target.entry
            {
                let wanted = BTreeSet::from([hash]);
                self.store()
                    .keep(&wanted, |_| self.host.disk().read(path))?;
            }
        }
        Ok(())
    }
}
