//! The metrics of a program, for Prometheus, and those that every program of ours has.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::program::Program;
use crate::reachability::Reachability;

/// What `/metrics` answers.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A number of things, as a gauge takes it.
pub fn gauge_of(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Declares the metrics of one part of a program: where each is counted, what it is called, and what it says; and the
/// labels they have.
///
/// ```
/// use evenkeel_daemon::{Metrics, Program, metrics};
/// use prometheus_client::metrics::counter::Counter;
/// use prometheus_client::metrics::family::Family;
///
/// metrics! {
///     /// Doors, counted. Clones are the same.
///     pub(crate) struct DoorMetrics {
///         opened: Family<Door, Counter> = "doors_opened",
///             "Doors that were opened, by colour";
///     }
///     labels Door { colour: &'static str }
/// }
///
/// let metrics = Metrics::new(Program { name: "house", version: "1" });
/// let doors = DoorMetrics::shown_in(&metrics);
/// doors.opened.get_or_create(&Door { colour: "red" }).inc();
/// assert!(metrics.text().contains("doors_opened_total{colour=\"red\"} 1"));
/// ```
#[macro_export]
macro_rules! metrics {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident {
            $($field:ident: $kind:ty = $metric:literal, $help:literal;)*
        }
        $(labels $labels:ident { $($label:ident: $value:ty),* })*
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Default)]
        $visibility struct $name {
            $($field: $kind,)*
        }

        impl $name {
            /// Those that `metrics` shows.
            $visibility fn shown_in(metrics: &$crate::Metrics) -> Self {
                let own = Self::default();
                metrics.register(|registry| {
                    $(registry.register($metric, $help, own.$field.clone());)*
                });
                own
            }
        }

        $(
            #[derive(Debug, Clone, PartialEq, Eq, Hash, prometheus_client::encoding::EncodeLabelSet)]
            struct $labels {
                $($label: $value,)*
            }
        )*
    };
}

/// Every metric of a program. Clones are the same.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    own: OwnMetrics,
    reachability: Reachability,
}

crate::metrics! {
    /// What every program of ours counts.
    struct OwnMetrics {
        requests: Family<RequestLabels, Counter> = "evenkeel_api_requests",
            "Requests to the API server, by verb and resource";
        errors: Family<ReasonLabels, Counter> = "evenkeel_api_errors",
            "Requests to the API server that failed, by reason: a status code, timeout or connection";
        dropped_events: Family<ReasonLabels, Counter> = "evenkeel_events_dropped",
            "Kubernetes Events that were not sent, by reason";
        leader: Family<LeaseLabels, Gauge> = "evenkeel_leader",
            "Whether this program is the leader, by Lease";
    }
    labels RequestLabels { verb: String, resource: String }
    labels ReasonLabels { reason: String }
    labels LeaseLabels { lease: String }
}

impl Metrics {
    /// The metrics of `program`, all of them zero.
    pub fn new(program: Program) -> Self {
        let mut metrics = Self {
            registry: Arc::default(),
            own: OwnMetrics::default(),
            reachability: Reachability::default(),
        };
        metrics.own = OwnMetrics::shown_in(&metrics);
        metrics.register(|registry| {
            let build = vec![("program", program.name), ("version", program.version)];
            registry.register(
                "evenkeel_build",
                "Name and version of the running program",
                Info::new(build),
            );
            registry.register(
                "evenkeel_apiserver_reachable",
                "Whether the last request to the API server was answered",
                metrics.reachability.gauge(),
            );
            registry.register(
                "evenkeel_panics",
                "Panics that were contained, by part of the program",
                crate::panics::COUNTS.clone(),
            );
        });
        metrics
    }

    /// Adds metrics of the program's own.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry());
    }

    /// All metrics as text, as `/metrics` answers it.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry());
        text
    }

    /// How many requests with `verb` for `resource` were sent.
    pub fn api_requests(&self, verb: &str, resource: &str) -> u64 {
        self.request(verb, resource).get()
    }

    /// How many requests failed for `reason`: a status code, `timeout` or `connection`.
    pub fn api_errors(&self, reason: &str) -> u64 {
        of(&self.own.errors, reason).get()
    }

    /// How many Events were not sent for `reason`: `queue_full` or `refused`.
    pub fn events_dropped(&self, reason: &str) -> u64 {
        of(&self.own.dropped_events, reason).get()
    }

    /// What became of the last request.
    pub(crate) fn reachability(&self) -> &Reachability {
        &self.reachability
    }

    pub(crate) fn request(&self, verb: &str, resource: &str) -> Counter {
        self.own.requests.get_or_create_owned(&RequestLabels {
            verb: verb.to_owned(),
            resource: resource.to_owned(),
        })
    }

    pub(crate) fn failed(&self, reason: &str) {
        of(&self.own.errors, reason).inc();
    }

    pub(crate) fn drop_events(&self, reason: &str, count: u64) {
        of(&self.own.dropped_events, reason).inc_by(count);
    }

    pub(crate) fn leader(&self, lease: &str) -> Gauge {
        self.own.leader.get_or_create_owned(&LeaseLabels {
            lease: lease.to_owned(),
        })
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Metrics")
    }
}

fn of(family: &Family<ReasonLabels, Counter>, reason: &str) -> Counter {
    family.get_or_create_owned(&ReasonLabels {
        reason: reason.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_our_metrics_under_their_names() {
        let metrics = Metrics::new(Program {
            name: "evenkeel-test",
            version: "1.2.3",
        });
        metrics.request("patch", "nodes").inc();
        metrics.failed("409");
        metrics.drop_events("queue_full", 3);
        metrics.leader("ns/operator").set(1);
        let own = Counter::<u64>::default();
        metrics.register(|registry| registry.register("own", "Of its own", own.clone()));
        own.inc();
        let text = metrics.text();
        for line in [
            r#"evenkeel_build_info{program="evenkeel-test",version="1.2.3"} 1"#,
            r#"evenkeel_api_requests_total{verb="patch",resource="nodes"} 1"#,
            r#"evenkeel_api_errors_total{reason="409"} 1"#,
            "evenkeel_apiserver_reachable 0",
            r#"evenkeel_events_dropped_total{reason="queue_full"} 3"#,
            r#"evenkeel_leader{lease="ns/operator"} 1"#,
            "own_total 1",
            "# EOF",
        ] {
            assert!(
                text.lines().any(|has| has == line),
                "{line} is not in\n{text}"
            );
        }
        let page = include_str!("../../../docs/reference/metrics.md");
        for line in text.lines().filter(|line| line.starts_with("evenkeel_")) {
            let name = line.split(['{', ' ']).next().unwrap();
            assert!(
                page.contains(name),
                "{name} is not in docs/reference/metrics.md"
            );
        }
    }
}
