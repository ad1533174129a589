//! The metrics of Windows nodes.

use evenkeel_api::windows::windows_pool::UpdatePhase;
use evenkeel_daemon::{gauge_of, metrics};
use evenkeel_plan::windows::upgrade::gate::REFUSALS;
use evenkeel_plan::windows::upgrade::in_place::InPlaceStep;
use evenkeel_plan::windows::windows_pool::{PoolFailure, TROUBLES, WindowsCounts};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

metrics! {
    /// Windows nodes and their services ConfigMaps, counted. Clones are the same.
    pub(crate) struct WindowsMetrics {
        nodes: Family<State, Gauge> = "evenkeel_windows_nodes",
            "Managed Windows nodes by state: total, updated, updating, failing, not_ready";
        services: Family<Reason, Counter> = "evenkeel_services_configmaps",
            "Changes of services ConfigMaps, by reason of the Event";
        trouble: Family<Reason, Gauge> = "evenkeel_windows_trouble",
            "1 while the operator cannot manage Windows nodes, by reason";
        put_back: Counter = "evenkeel_desired_versions_put_back",
            "Times when a desired version that somebody else wrote was restored to the granted one";
        upgrades: Family<PhaseLabel, Gauge> = "evenkeel_windows_upgrades",
            "Windows nodes that are being upgraded, by phase: Granted, Draining, Supplying, Applying, Failing";
        refused: Family<Reason, Gauge> = "evenkeel_windows_upgrade_refused",
            "1 while Windows nodes keep their version because an upgrade is refused, by reason";
    }
    labels PhaseLabel { phase: &'static str }
    labels State { state: &'static str }
    labels Reason { reason: String }
}

impl WindowsMetrics {
    /// So many nodes are how.
    pub(crate) fn nodes(&self, counts: WindowsCounts) {
        for (state, count) in [
            ("total", counts.total),
            ("updated", counts.updated),
            ("updating", counts.updating),
            ("failing", counts.failing),
            ("not_ready", counts.not_ready),
        ] {
            self.nodes
                .get_or_create(&State { state })
                .set(gauge_of(count));
        }
    }

    /// Something was done about a services ConfigMap.
    pub(crate) fn services(&self, reason: &str) {
        let reason = reason.to_owned();
        self.services.get_or_create(&Reason { reason }).inc();
    }

    /// Why nothing can be done, if it cannot.
    pub(crate) fn trouble(&self, trouble: Option<&PoolFailure>) {
        for reason in TROUBLES {
            let is_so = trouble.is_some_and(|it| it.category == reason);
            let gauge = self.trouble.get_or_create(&Reason {
                reason: reason.to_owned(),
            });
            gauge.set(i64::from(is_so));
        }
    }

    /// So many nodes are on their way to another version, and how far; those that fail are counted as that.
    pub(crate) fn upgrades(&self, upgrades: impl Iterator<Item = (InPlaceStep, bool)>) {
        let phases: Vec<_> = upgrades
            .map(|(step, fails)| {
                if fails {
                    UpdatePhase::Failing
                } else {
                    step.phase()
                }
            })
            .collect();
        for phase in [
            UpdatePhase::Granted,
            UpdatePhase::Draining,
            UpdatePhase::Supplying,
            UpdatePhase::Applying,
            UpdatePhase::Failing,
        ] {
            let count = phases.iter().filter(|it| **it == phase).count();
            let phase = phase.as_str();
            let gauge = self.upgrades.get_or_create(&PhaseLabel { phase });
            gauge.set(gauge_of(count));
        }
    }

    /// Why nodes may not be upgraded, if they may not.
    pub(crate) fn refusal(&self, refusal: Option<&PoolFailure>) {
        for reason in REFUSALS {
            let is_so = refusal.is_some_and(|it| it.category == reason);
            let gauge = self.refused.get_or_create(&Reason {
                reason: reason.to_owned(),
            });
            gauge.set(i64::from(is_so));
        }
    }

    /// What a node is to run was put back.
    pub(crate) fn put_back(&self) {
        self.put_back.inc();
    }
}
