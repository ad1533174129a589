//! The metrics of node readiness.

use evenkeel_daemon::{gauge_of, metrics};
use evenkeel_plan::readiness::{Readiness, ZoneState};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

metrics! {
    /// Nodes, taints and what the storm guard does, counted. Clones are the same.
    pub(crate) struct ReadinessMetrics {
        nodes: Family<Phase, Gauge> = "evenkeel_readiness_nodes",
            "Nodes that a readiness rule selects, by phase: Booting, Ready, Broken, Evicting";
        extensions: Family<Word, Gauge> = "evenkeel_readiness_extensions",
            "Nodes by rule, extension, source (lease, status, pods, condition, probe) and verdict: healthy, unconfirmed, pending, unknown, unhealthy, silent";
        zones: Family<Zone, Gauge> = "evenkeel_readiness_zone_nodes",
            "Nodes that a readiness rule selects, by zone and state: total, held (tainted), quiet (not heard for half of the expiry), held_back (silent, but limits keep the taint off)";
        disturbed: Family<ZoneName, Gauge> = "evenkeel_readiness_zone_disturbed",
            "1 while taints for silence and evictions are limited in a zone because many of its nodes are not ready or silent";
        writes: Family<What, Counter> = "evenkeel_readiness_writes",
            "Writes on Nodes by kind: taint, release, owners, condition, refused (another writer was first), failed";
        exposed_nodes: Counter = "evenkeel_readiness_exposed_nodes",
            "New nodes that existed without the taint until the operator added it";
        exposed_pods: Counter = "evenkeel_readiness_exposed_pods",
            "Pods that were scheduled to such nodes meanwhile and do not tolerate the taint";
        blind: Gauge = "evenkeel_readiness_blind",
            "1 while silence counts for nothing because the operator's observations may be out of date";
        interruptions: Counter = "evenkeel_readiness_interruptions",
            "Times when the API server did not answer in time";
        relists: Counter = "evenkeel_readiness_relists",
            "Times when evidence was out of date and was listed again";
    }
    labels Phase { phase: &'static str }
    labels Word { rule: String, extension: String, source: &'static str, says: &'static str }
    labels Zone { zone: String, state: &'static str }
    labels ZoneName { zone: String }
    labels What { what: &'static str }
}

impl ReadinessMetrics {
    /// What is known now.
    pub(crate) fn show(&self, readiness: &Readiness) {
        for (phase, count) in readiness.phases() {
            self.nodes
                .get_or_create(&Phase { phase })
                .set(gauge_of(count));
        }
        self.zones.clear();
        self.disturbed.clear();
        for (zone, counts, state) in readiness.zones() {
            for (state, count) in [
                ("total", counts.nodes),
                ("held", counts.held),
                ("quiet", counts.quiet),
                ("held_back", counts.held_back),
            ] {
                let zone = zone.clone();
                self.zones
                    .get_or_create(&Zone { zone, state })
                    .set(count.into());
            }
            let is_disturbed = i64::from(state == ZoneState::Disturbed);
            self.disturbed
                .get_or_create(&ZoneName { zone })
                .set(is_disturbed);
        }
        self.blind.set(i64::from(readiness.is_blind()));
    }

    /// What is known of every extension.
    pub(crate) fn show_extensions(&self, readiness: &Readiness) {
        self.extensions.clear();
        for ((rule, extension, source, says), count) in readiness.extensions() {
            let (rule, extension) = (rule.to_owned(), extension.to_owned());
            let labels = Word {
                rule,
                extension,
                source,
                says,
            };
            self.extensions.get_or_create(&labels).set(gauge_of(count));
        }
    }

    /// Something was written on a Node, or not.
    pub(crate) fn wrote(&self, what: &'static str) {
        self.writes.get_or_create(&What { what }).inc();
    }

    /// A new node was there without the taint, and so many pods came to it.
    pub(crate) fn exposed(&self, pods: usize) {
        self.exposed_nodes.inc();
        self.exposed_pods
            .inc_by(u64::try_from(pods).unwrap_or(u64::MAX));
    }

    /// The API server did not answer in time.
    pub(crate) fn interrupted(&self) {
        self.interruptions.inc();
    }

    /// Evidence proved to be old.
    pub(crate) fn relisted(&self) {
        self.relists.inc();
    }
}
