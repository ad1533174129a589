//! The metrics of instances.

use std::collections::BTreeMap;

use evenkeel_daemon::{gauge_of, metrics};
use evenkeel_plan::windows::instances::{FailureKind, InstanceRecord, InstanceState};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::windows::ssh::Progress;

metrics! {
    /// Instances and what is done to them, counted. Clones are the same.
    pub(crate) struct InstanceMetrics {
        instances: Family<InState, Gauge> = "evenkeel_instances",
            "Windows instances, by state: Waiting, Configuring, Starting, Ready, Failing, Upgrading, Leaving";
        failures: Family<Reason, Counter> = "evenkeel_instance_failures",
            "Failed attempts to work on Windows instances, by reason";
        copied: Counter = "evenkeel_payload_copied_bytes",
            "Bytes of payload copied to Windows instances";
        connections: Gauge = "evenkeel_instance_connections",
            "Open SSH connections to Windows instances";
    }
    labels InState { state: String }
    labels Reason { reason: String }
}

const STATES: [InstanceState; 7] = [
    InstanceState::Waiting,
    InstanceState::Configuring,
    InstanceState::Starting,
    InstanceState::Ready,
    InstanceState::Failing,
    InstanceState::Upgrading,
    InstanceState::Leaving,
];

impl InstanceMetrics {
    pub(crate) fn count(&self, records: &BTreeMap<String, InstanceRecord>) {
        for state in STATES {
            let count = records.values().filter(|it| it.state == state).count();
            let label = InState {
                state: state.to_string(),
            };
            self.instances.get_or_create(&label).set(gauge_of(count));
        }
    }

    pub(crate) fn failed(&self, kind: &FailureKind) {
        let reason = kind.as_str().to_owned();
        self.failures.get_or_create(&Reason { reason }).inc();
    }

    /// A copy whose bytes are counted as they go.
    pub(crate) fn progress(&self) -> Progress {
        Progress::counted_in(&self.copied)
    }

    /// A connection that counts as open until this is dropped.
    pub(crate) fn connection(&self) -> OpenConnection {
        self.connections.inc();
        OpenConnection(self.connections.clone())
    }
}

/// An SSH connection that is open.
pub(crate) struct OpenConnection(Gauge);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}
