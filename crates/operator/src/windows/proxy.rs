//! Knows the egress proxy of Windows nodes: from the operator's own environment, the cluster's Proxy or the chart.
//! `evenkeel_plan::windows::proxy` decides; here it is asked, told and counted. How nodes get it is for the offer and for
//! `windows_nodes`.

pub(crate) mod metrics;
pub(crate) mod store;

use std::collections::BTreeMap;

use evenkeel_api::notice::Notice;
use evenkeel_plan::windows::proxy::{
    ProxyDecision, ProxySettings, ProxySources, Remark, Variable, decide,
};

use crate::shared::Shared;
use crate::triggers::Triggers;
use crate::windows::proxy::metrics::ProxyMetrics;
use crate::windows::proxy::store::Proxy;
use crate::windows::services::store::ServiceMaps;

/// What was said to this program when it was started. It holds for its whole life.
#[derive(Debug, Clone, Default)]
pub(crate) struct GivenProxy {
    /// By its environment.
    pub(crate) environment: ProxySettings,
    /// By the chart.
    pub(crate) chart: ProxySettings,
}

/// Knows it until the program is asked to stop.
pub(crate) async fn run(
    shared: &Shared,
    proxy: &Proxy,
    maps: &ServiceMaps,
    given: &GivenProxy,
    metrics: &ProxyMetrics,
) {
    let mut teller = Teller {
        shared,
        said: BTreeMap::new(),
    };
    let mut triggers = Triggers::until(&shared.stop)
        .and(proxy.changes())
        .and(maps.store().changes());
    while triggers.next(None).await {
        // What nodes have is told by what they were given, and only by that after a restart.
        if !maps.store().is_listed() {
            continue;
        }
        let before = proxy.decision();
        let last = match &before {
            Some(before) => before.settings.clone(),
            None => maps.last_proxy(),
        };
        let cluster = proxy.said_by_cluster();
        let said = ProxySources {
            environment: &given.environment,
            cluster: cluster.as_ref(),
            chart: &given.chart,
        };
        let Some(decision) = decide(said, &last) else {
            continue;
        };
        if before.as_deref() != Some(&decision) {
            metrics.decided(&decision);
            teller.tell(&decision, &last);
            proxy.decide(decision);
        }
    }
}

/// Tells people of it, each thing once.
struct Teller<'s> {
    shared: &'s Shared,
    said: BTreeMap<(&'static str, Variable), Vec<String>>,
}

impl Teller<'_> {
    fn tell(&mut self, decision: &ProxyDecision, last: &ProxySettings) {
        if decision.settings != *last {
            let note = match decision.source {
                Some(source) if decision.settings.has_proxy() => format!(
                    "Windows nodes use the proxy from {source}: {}",
                    decision.settings
                ),
                _ => "Windows nodes no longer have a proxy".to_owned(),
            };
            self.notify(Notice::normal("ProxyChanged", note));
        }
        self.remark("InvalidProxy", &decision.problems);
        self.remark("OddProxy", &decision.warnings);
    }

    fn remark(&mut self, category: &'static str, remarks: &[Remark]) {
        for variable in Variable::ALL {
            let of = remarks.iter().filter(|it| it.variable == variable);
            let notes: Vec<String> = of.map(|it| it.note.clone()).collect();
            let before = self.said.insert((category, variable), notes.clone());
            if before.as_ref() == Some(&notes) {
                continue;
            }
            for note in notes {
                self.notify(Notice::warning(category, note));
            }
        }
    }

    fn notify(&self, notice: Notice) {
        let object = self.shared.windows.reference();
        self.shared.events.notify(object, "KeepProxy", notice);
    }
}
