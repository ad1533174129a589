//! The agent's own numbers, for Prometheus: by the same names as on Linux.

use evenkeel_daemon::Metrics;
use evenkeel_host::watch;
use evenkeel_plan::linux_node::State;
use evenkeel_plan::phase::Phase;
use evenkeel_plan::resource::Resource;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabels {
    class: &'static str,
}

/// What drifts, as it is counted.
const CLASSES: [&str; 3] = ["service", "variable", "file"];

/// What an agent counts. Clones count the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Numbers {
    state: Family<StateLabels, Gauge>,
    drifted: Family<ClassLabels, Gauge>,
    events: Family<ReasonLabels, Counter>,
}

impl Numbers {
    /// Numbers that `metrics` show.
    pub(crate) fn shown_in(metrics: &Metrics) -> Self {
        let numbers = Self::default();
        metrics.register(|registry| {
            registry.register(
                "evenkeel_node_state",
                "1 for the state that this node is in, else 0",
                numbers.state.clone(),
            );
            registry.register(
                "evenkeel_node_drifted_paths",
                "What is ours, is not as declared and could not be put back, by what it is",
                numbers.drifted.clone(),
            );
            registry.register(
                "evenkeel_node_events",
                "What was told of this node, by the reason of the Event",
                numbers.events.clone(),
            );
        });
        numbers.nothing_drifts();
        numbers
    }

    /// The node is in `phase`.
    pub(crate) fn is_in(&self, phase: &Phase) {
        let state = match phase {
            Phase::Unmanaged => None,
            Phase::Done { .. } => Some(State::Done),
            Phase::Degraded(_) => Some(State::Degraded),
            Phase::Heal { .. } | Phase::AwaitDrain { .. } | Phase::Apply { .. } | Phase::Reboot => {
                Some(State::Working)
            }
        };
        for each in [State::Done, State::Working, State::Degraded] {
            let labels = StateLabels {
                state: each.as_str(),
            };
            self.state
                .get_or_create(&labels)
                .set(i64::from(state == Some(each)));
        }
    }

    /// Somebody begins to look from the start.
    pub(crate) fn nothing_drifts(&self) {
        for class in CLASSES {
            self.drifted.get_or_create(&ClassLabels { class }).set(0);
        }
    }

    /// Something drifted, or is right again.
    pub(crate) fn hear(&self, event: &watch::Event) {
        let (finding, change) = match event {
            watch::Event::Drifted {
                finding,
                again: false,
                ..
            } => (finding, 1),
            watch::Event::Healed { finding, .. } | watch::Event::Recovered { finding } => {
                (finding, -1)
            }
            _ => return,
        };
        let class = match &finding.resource {
            Resource::Service(_) => "service",
            Resource::Variable(_) => "variable",
            _ => "file",
        };
        let gauge = self.drifted.get_or_create(&ClassLabels { class });
        gauge.inc_by(change);
    }

    /// Something was told, for `reason`.
    pub(crate) fn told(&self, reason: &'static str) {
        self.events.get_or_create(&ReasonLabels { reason }).inc();
    }
}
