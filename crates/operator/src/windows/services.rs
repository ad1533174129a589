//! Keeps the services ConfigMap of this version as it would write it, and every other one away that no node
//! needs. `evenkeel_plan::windows::service_maps` decides; here it is carried out, as soon as a watch tells, and beside
//! everything else: no instance that is slow is waited for.

pub(crate) mod store;

use evenkeel_api::notice::Notice;
use evenkeel_plan::windows::service_maps::{self, MapAction, Own};
use evenkeel_plan::windows::windows_pool::{PoolFailure, is_managed_node};
use serde_json::Value;
use std::collections::BTreeMap;

use crate::shared::Shared;
use crate::triggers::Triggers;
use crate::windows::metrics::WindowsMetrics;
use crate::windows::pool::Ready;
use crate::windows::services::store::{KeptMap, ServiceMaps};

/// Keeps them until the program is asked to stop.
pub(crate) async fn run(shared: &Shared, maps: &ServiceMaps, metrics: &WindowsMetrics) {
    let mut controller = ServicesController {
        shared,
        maps,
        metrics,
        had: None,
        held: None,
    };
    let triggers = Triggers::until(&shared.stop)
        .and(maps.store().changes())
        .and(shared.nodes.store().changes())
        .and(shared.coexistence.changes());
    let triggers = shared.windows.wake(triggers);
    let reconcile = async || -> kube::Result<_> {
        let is_known = maps.store().is_listed() && shared.knows_windows();
        let is_due = is_known && !shared.coexistence.is_idle_for_windows();
        if let Some(ready) = shared.windows.last().filter(|_| is_due) {
            controller.reconcile(&ready).await?;
        }
        Ok(None)
    };
    triggers
        .run("write the services ConfigMap", reconcile)
        .await;
}

struct ServicesController<'s> {
    shared: &'s Shared,
    maps: &'s ServiceMaps,
    metrics: &'s WindowsMetrics,
    /// The name and hash of the one that we made or found right: if it is missing then, somebody took it away.
    had: Option<(String, String)>,
    /// The ConfigMap whose removal something holds up: once is enough to say so.
    held: Option<String>,
}

impl ServicesController<'_> {
    /// Observe, plan, apply, report: once.
    async fn reconcile(&mut self, ready: &Ready) -> kube::Result<()> {
        let windows = &self.shared.windows;
        let pool = windows.seen();
        let own = Own {
            version: &ready.composed.version,
            hash: &ready.composed.hash,
            owner: pool.as_ref().map(|it| it.uid.as_str()),
        };
        let in_use = self.shared.nodes.store().look(|all| {
            let claims = windows.claims();
            let nodes = all.values().map(|seen| &seen.node);
            service_maps::in_use(nodes.filter(|node| is_managed_node(node, &claims)))
        });
        let seen = |all: &BTreeMap<String, KeptMap>| -> Vec<_> {
            all.values().map(|it| it.map.clone()).collect()
        };
        let decision = service_maps::decide(own, &self.maps.store().look(seen), &in_use);
        let newer = decision.newer.as_ref().map(|newer| PoolFailure {
            category: "NewerVersionInstalled",
            note: format!(
                "ConfigMap {} is newer than this operator, {}: Windows nodes are not managed. Install version {newer} again, or uninstall it first",
                newer.config_map_name(),
                own.version
            ),
        });
        windows.finds_newer(newer);
        let name = own.version.config_map_name();
        let owner = own.owner.map(|uid| windows.owner(uid));
        let mut failed = None;
        for action in decision.actions {
            // One that cannot be put right does not keep the others wrong.
            if let Err(error) = self.apply(action, ready, &name, owner.as_ref()).await {
                failed = Some(error);
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let is_there = decision.newer.is_none();
        self.had = is_there.then(|| (name, own.hash.to_owned()));
        Ok(())
    }

    /// Carries one action out, and tells of it.
    async fn apply(
        &mut self,
        action: MapAction,
        ready: &Ready,
        name: &str,
        owner: Option<&Value>,
    ) -> kube::Result<()> {
        let data = ready.composed.services.canonical();
        match action {
            MapAction::Create => {
                let was_there = self.had.as_ref().is_some_and(|(had, _)| *had == name);
                self.maps.create(name, &data, owner).await?;
                if was_there {
                    let note = format!("ConfigMap {name} was deleted: created it again");
                    self.tell(Notice::warning("ServicesRecreated", note));
                } else {
                    let note = format!("created ConfigMap {name}");
                    self.tell(Notice::normal("ServicesCreated", note));
                }
            }
            MapAction::Replace { uid, why } => {
                self.maps.delete(name, &uid).await?;
                self.made_again(name, &uid, &data, owner).await?;
                let hash = &ready.composed.hash;
                let is_own_map = |(had, before): &(String, String)| *had == name && before != hash;
                if self.had.as_ref().is_some_and(is_own_map) {
                    let note =
                        format!("ConfigMap {name} has new contents: rolling them out node by node");
                    self.tell(Notice::normal("ServicesChanged", note));
                } else {
                    let note = format!("replaced ConfigMap {name}: {why}");
                    self.tell(Notice::warning("ServicesReplaced", note));
                }
            }
            MapAction::Mark { uid } => self.maps.mark(name, &uid, owner).await?,
            MapAction::Remove {
                name: other,
                uid,
                why,
            } => {
                self.maps.delete(&other, &uid).await?;
                let note = format!("removed ConfigMap {other}: {why}");
                self.tell(Notice::normal("ServicesRemoved", note));
            }
        }
        Ok(())
    }

    /// Makes ours in the place of one that was deleted. Something may hold that one: then it is said once.
    async fn made_again(
        &mut self,
        name: &str,
        uid: &str,
        data: &BTreeMap<String, String>,
        owner: Option<&Value>,
    ) -> kube::Result<()> {
        let made = self.maps.create(name, data, owner).await;
        match &made {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                if self.held.replace(uid.to_owned()).as_deref() != Some(uid) {
                    let note = format!(
                        "cannot replace ConfigMap {name}, because it has finalizers: remove them"
                    );
                    self.tell(Notice::warning("ServicesHeld", note));
                }
            }
            _ => self.held = None,
        }
        made
    }

    fn tell(&self, notice: Notice) {
        self.metrics.services(&notice.category);
        let object = self.shared.windows.reference();
        self.shared.events.notify(object, "KeepServices", notice);
    }
}
