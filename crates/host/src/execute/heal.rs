//! One path of ours is put back, without a plan; and new paths get their labels.

use evenkeel_plan::machine::entry::Entry;
use evenkeel_plan::machine::place::Location;
use evenkeel_plan::machine::record::Record;
use evenkeel_plan::machine::resource::Resource;
use evenkeel_plan::machine::{above, folder_for};

use super::Claim;
use crate::Result;
use crate::disk::{Disk, Host};
use crate::place::{Had, Placer};

impl<H: Host> Claim<'_, H> {
    /// Puts one path of ours back as the record says; what stood there.
    pub fn heal(&self, path: &str, resource: &Resource, entry: &Entry) -> Result<Entry> {
        let mut placer = Placer::new(self.host.disk(), self.store());
        let missing: Vec<&str> = above(path)
            .filter(|folder| {
                self.host
                    .disk()
                    .look(folder)
                    .is_ok_and(|entry| entry == Entry::Absent)
            })
            .collect();
        let found = self.host.disk().look(path)?;
        let record = if found == Entry::Absent {
            self.record()?
        } else {
            Record::default()
        };
        let mut by_policy = Vec::new();
        for folder in missing {
            let made = record.owned.get(folder).map(|owned| owned.entry.clone());
            let made = made.unwrap_or_else(|| folder_for(folder, resource, entry));
            let label = record.labels.get(folder).map(String::as_str);
            placer.put(folder, &made, Had::label(label))?;
            if label.is_none() {
                by_policy.push((folder.to_owned(), made));
            }
        }
        // Nothing stands there to take the label from, but what stood there before us had it.
        let label = record.labels.get(path).map(String::as_str);
        placer.put(path, entry, Had::label(label))?;
        placer.sync()?;
        if label.is_none() && found == Entry::Absent && Location::is_path(path) {
            by_policy.push((path.to_owned(), entry.clone()));
        }
        let by_policy = by_policy.iter().map(|(path, it)| (path.clone(), it));
        self.relabel(&by_policy.collect::<Vec<_>>())?;
        Ok(found)
    }

    /// Gives new paths the labels of the machine's policy, durably.
    pub(super) fn relabel(&self, new: &[(String, &Entry)]) -> Result<()> {
        let paths: Vec<String> = new.iter().map(|(path, _)| path.clone()).collect();
        if paths.is_empty() || !self.host.relabel(&paths)? {
            return Ok(());
        }
        let files = new.iter().filter(|(_, entry)| entry.hash().is_some());
        let files: Vec<String> = files.map(|(path, _)| path.clone()).collect();
        self.host.disk().sync_files(&files)
    }
}
