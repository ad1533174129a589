//! What is not as it was brought about, as whoever watches it tells.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenkeel_host::watch::Event;

use crate::node_event::shown;

/// A node on which nothing drifted for this long runs: a service that ends at once is up for a moment
/// each time.
const STEADY: Duration = Duration::from_secs(5);
/// How long the first look at everything may take before somebody asks again.
const LOOK: Duration = Duration::from_secs(30);

/// What has drifted since somebody watches.
#[derive(Debug, Default)]
pub(crate) struct Drift {
    looked: bool,
    now: BTreeMap<String, String>,
    last: Option<Instant>,
}

impl Drift {
    /// Everything was looked at once.
    pub(crate) fn was_looked_for(&mut self) {
        self.looked = true;
    }

    /// Takes note of what became of a place.
    pub(crate) fn hear(&mut self, event: &Event) {
        self.last = Some(Instant::now());
        match event {
            Event::Drifted { finding, .. } => {
                self.now.insert(finding.path.clone(), shown(finding));
            }
            Event::Healed { finding, .. } | Event::Recovered { finding } => {
                self.now.remove(&finding.path);
            }
            Event::HealFailed { .. } | Event::Fought { .. } => {}
        }
    }

    /// What is not right, in words.
    pub(crate) fn words(&self) -> Vec<String> {
        self.now.values().cloned().collect()
    }

    /// What is waited for until it can be said that nothing drifts, and how long, if nothing does.
    pub(crate) fn patience(&self) -> Option<(&'static str, Duration)> {
        if !self.looked {
            return Some(("a first look at all services and files", LOOK));
        }
        let left = STEADY.checked_sub(self.last?.elapsed())?;
        let steady = ("all services to run for 5s without a change", left);
        (!left.is_zero()).then_some(steady)
    }
}
