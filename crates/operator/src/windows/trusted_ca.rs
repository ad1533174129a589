//! Keeps the ConfigMap in which the cluster puts whom Windows nodes trust behind a proxy, and takes it away with
//! the proxy. `evenkeel_plan::windows::trusted_ca` decides; agents follow what it says by themselves.

pub(crate) mod store;

use evenkeel_api::names::object;
use evenkeel_daemon::{Event, Severity};
use evenkeel_plan::windows::trusted_ca::{BundleAction, decide};

use crate::requeue;
use crate::shared::Shared;
use crate::windows::proxy::metrics::ProxyMetrics;
use crate::windows::proxy::store::Proxy;
use crate::windows::trusted_ca::store::TrustedCa;

/// Keeps it until the program is asked to stop.
pub(crate) async fn run(
    shared: &Shared,
    bundle: &TrustedCa,
    proxy: &Proxy,
    metrics: &ProxyMetrics,
) {
    let mut controller = Controller {
        shared,
        bundle,
        metrics,
        had: false,
    };
    let mut changes = bundle.store().changes();
    let mut decisions = proxy.decisions();
    let mut pool = shared.windows.store().changes();
    let mut others = shared.windows.changes();
    let mut coexistence = shared.coexistence.changes();
    let mut failures: u32 = 0;
    loop {
        tokio::select! {
            () = shared.stop.stopped() => return,
            Ok(()) = changes.changed() => {}
            Ok(()) = decisions.changed() => {}
            Ok(()) = pool.changed() => {}
            () = others.changed() => {}
            Ok(()) = coexistence.changed() => {}
            () = requeue::after(requeue::backoff(failures)) => {}
        }
        let is_known = bundle.store().is_listed() && shared.knows_windows();
        let has_windows =
            !shared.coexistence.is_idle_for_windows() && shared.windows.newer().is_none();
        let Some(decision) = proxy.decision().filter(|_| is_known && has_windows) else {
            continue;
        };
        failures = match controller.round(decision.settings.has_proxy()).await {
            Ok(()) => 0,
            Err(error) => {
                let name = object::TRUSTED_CA;
                tracing::warn!("cannot write ConfigMap {name}, will retry: {error}");
                failures.saturating_add(1)
            }
        };
    }
}

struct Controller<'s> {
    shared: &'s Shared,
    bundle: &'s TrustedCa,
    metrics: &'s ProxyMetrics,
    /// It was there: if it is missing then, somebody took it away.
    had: bool,
}

impl Controller<'_> {
    /// Observe, plan, apply, report: once.
    async fn round(&mut self, has_proxy: bool) -> kube::Result<()> {
        let seen = self.bundle.seen();
        let is_pending = has_proxy && !seen.as_ref().is_some_and(|it| it.is_filled);
        self.metrics.pending(is_pending);
        let name = object::TRUSTED_CA;
        match decide(has_proxy, seen.as_ref()) {
            Some(BundleAction::Create) => {
                let owner = self.shared.windows.seen();
                let owner = owner.map(|it| self.shared.windows.owner(&it.uid));
                self.bundle.create(owner.as_ref()).await?;
                if self.had {
                    let note = format!("ConfigMap {name} was deleted: created it again");
                    self.tell("TrustBundleRecreated", Severity::Warning, note);
                } else {
                    let note = format!("created ConfigMap {name} for the cluster to fill in");
                    self.tell("TrustBundleCreated", Severity::Normal, note);
                }
            }
            Some(BundleAction::Mend { uid, asks, mark }) => {
                self.bundle.mend(&uid, asks, mark).await?;
                let note = format!("restored a label of ConfigMap {name}");
                self.tell("TrustBundleMended", Severity::Warning, note);
            }
            Some(BundleAction::Remove { uid }) => {
                self.bundle.delete(&uid).await?;
                let note = format!("removed ConfigMap {name}: there is no proxy any more");
                self.tell("TrustBundleRemoved", Severity::Normal, note);
            }
            None => {}
        }
        self.had = has_proxy;
        Ok(())
    }

    fn tell(&self, category: &'static str, severity: Severity, note: String) {
        self.metrics.bundle(category);
        tracing::info!(category, "{note}");
        self.shared.events.publish(Event {
            object: self.shared.windows.reference(),
            severity,
            reason: category.to_owned(),
            action: "KeepTrustBundle".to_owned(),
            note,
        });
    }
}
