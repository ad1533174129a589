//! What is known of paths that are not as they should be, from what the drift watcher says.

use std::collections::BTreeMap;

use evenkeel_host::verify::Finding;
use evenkeel_host::watch::Event;
use evenkeel_plan::machine::phase::OnDrift;

use crate::node_event::NodeEvent;

#[derive(Debug, Default)]
pub(crate) struct Drift {
    /// Paths that are not right and are not being healed.
    standing: BTreeMap<String, Finding>,
    /// How paths differ that are being healed right now.
    differences: BTreeMap<String, String>,
}

impl Drift {
    /// What stands, path by path.
    pub(crate) fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.standing.values()
    }

    /// Takes note of a path that everybody was told of already.
    pub(crate) fn know(&mut self, finding: Finding) {
        self.standing.insert(finding.path.clone(), finding);
    }

    /// Takes note of what became of a path, and returns the Event for it, if there is one.
    pub(crate) fn observe(
        &mut self,
        event: Event,
        difference: String,
        on_drift: OnDrift,
    ) -> Option<NodeEvent> {
        match event {
            Event::Drifted { finding, .. } if on_drift == OnDrift::Heal => {
                self.differences.insert(finding.path, difference);
                None
            }
            Event::Drifted { finding, again, .. } => {
                let known = self.standing.get(&finding.path) == Some(&finding);
                let notice = (!known && !again).then(|| NodeEvent::drifted(&finding, &difference));
                self.know(finding);
                notice
            }
            Event::Recovered { finding } => {
                tracing::info!("drift is gone: {} is as declared again", finding.resource);
                self.standing.remove(&finding.path);
                None
            }
            Event::Healed { finding, .. } => {
                let difference = self.differences.remove(&finding.path).unwrap_or_default();
                self.standing.remove(&finding.path);
                Some(NodeEvent::healed(&finding, &difference))
            }
            Event::HealFailed { finding, error, .. } => {
                let notice = NodeEvent::not_healed(&finding, &error.with_causes());
                self.know(finding);
                Some(notice)
            }
            Event::Fought { finding, times, .. } => Some(NodeEvent::fought(&finding, times)),
        }
    }
}
