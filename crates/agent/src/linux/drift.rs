//! What is known of paths that are not as they should be, from what the lookout tells.

use std::collections::BTreeMap;

use evenkeel_host::verify::Finding;
use evenkeel_host::watch::Event;
use evenkeel_plan::phase::OnDrift;

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

    /// Takes note of what became of a path, and says what people should hear of it.
    pub(crate) fn hear(
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
                let tiding = (!known && !again).then(|| NodeEvent::drifted(&finding, &difference));
                self.know(finding);
                tiding
            }
            Event::Recovered { finding } => {
                tracing::info!("{} is right again", finding.resource);
                self.standing.remove(&finding.path);
                None
            }
            Event::Healed { finding, .. } => {
                let difference = self.differences.remove(&finding.path).unwrap_or_default();
                self.standing.remove(&finding.path);
                Some(NodeEvent::healed(&finding, &difference))
            }
            Event::HealFailed { finding, error, .. } => {
                let tiding = NodeEvent::not_healed(&finding, &error.with_causes());
                self.know(finding);
                Some(tiding)
            }
            Event::Fought { finding, times, .. } => Some(NodeEvent::fought(&finding, times)),
        }
    }
}
