//! Compares a machine with its targets: every difference, not the first one. Read only.

use evenkeel_plan::machine::desired::Contents;
use evenkeel_plan::machine::diff;
use evenkeel_plan::machine::entry::Entry;
use evenkeel_plan::machine::resource::Resource;
use evenkeel_plan::machine::step::Step;
use evenkeel_plan::machine::targets::{Part, Target, Targets};

use crate::Result;
use crate::disk::{Disk, Host};
use crate::execute::State;

/// A path that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Whose path it is.
    pub resource: Resource,
    /// What the path is for that resource.
    pub part: Part,
    /// The path.
    pub path: String,
    /// What differs, in words; if the path could not be looked at, why not.
    pub why: String,
    /// What stands there; `None` if it could not be looked at.
    pub seen: Option<Entry>,
    /// What should stand there.
    pub expected: Entry,
}

impl Finding {
    /// The same by what stood there when it was put back: somebody may have gone on since it was looked at.
    pub(crate) fn found_as(mut self, stood: Entry) -> Self {
        if stood != self.expected && self.seen.as_ref() != Some(&stood) {
            self.why = self.part.difference(&stood, &self.expected);
            self.seen = Some(stood);
        }
        self
    }
}

/// Every path of `targets` that is not as it should be, in the order of the paths.
///
/// Where `contents` has what should be in a file it is compared, which is quicker than hashing;
/// none of it needs to be there.
pub fn verify<H: Host>(host: &H, targets: &Targets, contents: &Contents) -> Vec<Finding> {
    let disk = host.disk();
    targets
        .iter()
        .filter_map(|(path, target)| compare(path, target, look(disk, path, target, contents)))
        .collect()
}

/// What somebody changed at the path of `finding`, where the right contents are in the store.
pub fn difference<H: Host>(host: &H, state: &State, finding: &Finding) -> Vec<diff::Line> {
    let (Part::Whole | Part::DropIn(_), Some(seen)) = (&finding.part, &finding.seen) else {
        return Vec::new();
    };
    let right = finding
        .expected
        .hash()
        .map(|hash| state.contents(host, hash));
    let (Some(Ok(right)), Entry::File { .. }) = (right, seen) else {
        return Vec::new();
    };
    let Ok(Some(wrong)) = host.disk().read(&finding.path) else {
        return Vec::new();
    };
    let step = Step {
        resource: finding.resource.clone(),
        part: finding.part.clone(),
        path: finding.path.clone(),
        before: finding.expected.clone(),
        after: seen.clone(),
    };
    diff::of(&step, Some(&right), Some(&wrong))
}

/// What stands at `path`, where `target` should; compared rather than hashed if `contents` has it.
pub(crate) fn look<D: Disk>(
    disk: &D,
    path: &str,
    target: &Target,
    contents: &Contents,
) -> Result<Entry> {
    let hash = target.entry.hash();
    match hash.and_then(|hash| Some((hash, contents.get(hash)?))) {
        Some((hash, likely)) => disk.look_for(path, likely, hash),
        None => disk.look(path),
    }
}

/// What is wrong at `path`, if anything.
pub(crate) fn judge<D: Disk>(disk: &D, path: &str, target: &Target) -> Option<Finding> {
    compare(path, target, disk.look(path))
}

fn compare(path: &str, target: &Target, seen: Result<Entry>) -> Option<Finding> {
    let (why, seen) = match seen {
        Ok(seen) if seen == target.entry => return None,
        Ok(seen) => (target.part.difference(&seen, &target.entry), Some(seen)),
        Err(error) => (error.with_causes(), None),
    };
    Some(Finding {
        resource: target.resource.clone(),
        part: target.part.clone(),
        path: path.to_owned(),
        why,
        seen,
        expected: target.entry.clone(),
    })
}
