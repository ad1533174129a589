//! Keeps the ConfigMap in which the cluster puts whom Windows nodes trust behind a proxy, and takes it away with
//! the proxy. `evenkeel_plan::windows::trusted_ca` decides; agents follow what it says by themselves.

pub(crate) mod store;

use evenkeel_api::names::object;
use evenkeel_api::notice::Notice;
use evenkeel_plan::windows::trusted_ca::{BundleAction, decide};

use crate::shared::Shared;
use crate::triggers::Triggers;
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
    let mut controller = TrustedCaController {
        shared,
        bundle,
        metrics,
        had: false,
    };
    let triggers = Triggers::until(&shared.stop)
        .and(bundle.store().changes())
        .and(proxy.decisions())
        .and(shared.coexistence.changes());
    let triggers = shared.windows.wake(triggers);
    let reconcile = async || -> kube::Result<_> {
        let is_known = bundle.store().is_listed() && shared.knows_windows();
        let has_windows =
            !shared.coexistence.is_idle_for_windows() && shared.windows.newer().is_none();
        if let Some(decision) = proxy.decision().filter(|_| is_known && has_windows) {
            controller.reconcile(decision.settings.has_proxy()).await?;
        }
        Ok(None)
    };
    let what = format!("write ConfigMap {}", object::TRUSTED_CA);
    triggers.run(&what, reconcile).await;
}

struct TrustedCaController<'s> {
    shared: &'s Shared,
    bundle: &'s TrustedCa,
    metrics: &'s ProxyMetrics,
    /// It was there: if it is missing then, somebody took it away.
    had: bool,
}

impl TrustedCaController<'_> {
    /// Observe, plan, apply, report: once.
    async fn reconcile(&mut self, has_proxy: bool) -> kube::Result<()> {
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
                    self.tell(Notice::warning("TrustBundleRecreated", note));
                } else {
                    let note = format!("created ConfigMap {name} for the cluster to fill in");
                    self.tell(Notice::normal("TrustBundleCreated", note));
                }
            }
            Some(BundleAction::Mend { uid, asks, mark }) => {
                self.bundle.mend(&uid, asks, mark).await?;
                let note = format!("restored a label of ConfigMap {name}");
                self.tell(Notice::warning("TrustBundleMended", note));
            }
            Some(BundleAction::Remove { uid }) => {
                self.bundle.delete(&uid).await?;
                let note = format!("removed ConfigMap {name}: there is no proxy any more");
                self.tell(Notice::normal("TrustBundleRemoved", note));
            }
            None => {}
        }
        self.had = has_proxy;
        Ok(())
    }

    fn tell(&self, notice: Notice) {
        self.metrics.bundle(&notice.category);
        let object = self.shared.windows.reference();
        self.shared.events.notify(object, "KeepTrustBundle", notice);
    }
}
