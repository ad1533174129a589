//! Pools of a scene, their MachineConfigs, and their nodes.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::fleet::machine_config_pool::{KIND, PLURAL, PoolStatus, condition};
use evenkeel_api::names::label;
use evenkeel_testbed::node_double::{NodeDouble, NodeFleet};
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

use crate::scene::Scene;

pub(crate) fn resource(kind: &str, plural: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk("machineconfiguration.openshift.io", "v1", kind);
    ApiResource::from_gvk_with_plural(&kind, plural)
}

/// The spec of a MachineConfig with one file.
pub(crate) fn file(path: &str, contents: &str) -> Value {
    json!({ "config": {
        "ignition": { "version": "3.2.0" },
        "storage": { "files": [{
            "path": path, "mode": 0o644, "overwrite": true,
            "contents": { "source": format!("data:,{contents}") },
        }] },
    } })
}

impl Scene {
    pub(crate) fn pools(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &resource(KIND, PLURAL))
    }

    pub(crate) fn configs(&self) -> Api<DynamicObject> {
        Api::all_with(
            self.client.clone(),
            &resource("MachineConfig", "machineconfigs"),
        )
    }

    /// Makes the pool `name` of the nodes labelled with it, with `spec` beside its selectors.
    pub(crate) async fn pool(&self, name: &str, spec: Value) -> Result<()> {
        let made = self.try_pool(name, spec).await;
        made.doing(|| format!("cannot make pool {name}"))
    }

    /// The object of such a pool.
    pub(crate) fn pool_of(&self, name: &str, mut spec: Value) -> Value {
        let own = self.own(name);
        let selectors = json!({
            "nodeSelector": { "matchLabels": { format!("pool-{name}"): self.name } },
            "machineConfigSelector": { "matchLabels": { label::ROLE: own } },
        });
        for (field, selector) in selectors.as_object().into_iter().flatten() {
            if spec.get(field).is_none() {
                spec[field] = selector.clone();
            }
        }
        json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": KIND,
            "metadata": { "name": own, "labels": { "place": self.name } },
            "spec": spec,
        })
    }

    pub(crate) async fn try_pool(&self, name: &str, spec: Value) -> kube::Result<()> {
        let pool = self.pool_of(name, spec);
        let pool = serde_json::from_value(pool).map_err(kube::Error::SerdeError)?;
        self.pools()
            .create(&PostParams::default(), &pool)
            .await
            .map(|_| ())
    }

    /// Changes a pool.
    pub(crate) async fn edit_pool(&self, name: &str, patch: Value) -> Result<()> {
        let patched = self
            .pools()
            .patch(
                &self.own(name),
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await;
        patched
            .map(|_| ())
            .doing(|| format!("cannot change pool {name}"))
    }

    /// Makes, or changes, the MachineConfig `name` of `pool`.
    pub(crate) async fn config(&self, pool: &str, name: &str, spec: Value) -> Result<()> {
        let config = json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
            "metadata": { "name": self.own(name), "labels": { label::ROLE: self.own(pool) } },
            "spec": spec,
        });
        let parameters = PatchParams::apply("test").force();
        let applied = self
            .configs()
            .patch(&self.own(name), &parameters, &Patch::Apply(config))
            .await;
        applied
            .map(|_| ())
            .doing(|| format!("cannot apply MachineConfig {name}"))
    }

    pub(crate) async fn pool_object(&self, name: &str) -> Result<DynamicObject> {
        let pool = self.pools().get(&self.own(name)).await;
        pool.doing(|| format!("cannot read pool {name}"))
    }

    pub(crate) async fn status(&self, name: &str) -> Result<PoolStatus> {
        let pool = self.pool_object(name).await?;
        let status = pool
            .data
            .get("status")
            .cloned()
            .unwrap_or_else(|| json!({}));
        serde_json::from_value(status).doing(|| format!("cannot read the status of pool {name}"))
    }

    /// The name of what the pool is to run.
    pub(crate) async fn target(&self, name: &str) -> Result<String> {
        let pool = self.pool_object(name).await?;
        let target = pool.data["spec"]["configuration"]["name"].as_str();
        Ok(target.unwrap_or_default().to_owned())
    }

    /// Waits until the status of a pool is as wanted.
    pub(crate) async fn until_pool(
        &self,
        name: &str,
        what: &str,
        limit: Duration,
        enough: impl Fn(&PoolStatus) -> bool,
    ) -> Result<PoolStatus> {
        let what = format!("pool {name}: {what}");
        until_async(&what, limit, async || {
            let status = self.status(name).await?;
            Ok(if enough(&status) {
                Look::Found(status)
            } else {
                let log = self.log();
                let lines: Vec<_> = log.lines().rev().take(6).collect();
                Look::NotYet(format!("{status:#?}\n{lines:#?}"))
            })
        })
        .await
    }

    /// Waits until all nodes of a pool run what its MachineConfigs say now, which is not `before`.
    pub(crate) async fn until_updated(
        &self,
        name: &str,
        before: &str,
        limit: Duration,
    ) -> Result<String> {
        let status = self
            .until_pool(name, "to be updated", limit, |status| {
                let runs = status
                    .configuration
                    .as_ref()
                    .map_or("", |it| it.name.as_str());
                is(status, condition::UPDATED) && runs != before && status.machine_count > 0
            })
            .await?;
        let target = self.target(name).await?;
        let runs = status.configuration.map_or(String::new(), |it| it.name);
        assert_eq!(runs, target, "the status is about another configuration");
        Ok(runs)
    }

    /// Starts `count` nodes of `pool`, over `zones` zones.
    pub(crate) async fn fleet(
        &self,
        pool: &str,
        count: usize,
        zones: usize,
    ) -> Result<Arc<Vec<NodeDouble>>> {
        let nodes = (0..count).map(|number| {
            self.describe(&format!("{pool}-{number:03}"))
                .label(&format!("pool-{pool}"), &self.name)
                .zone(&format!("z{}", number % zones))
        });
        let login = self.control_plane.admin_kubeconfig();
        let fleet = NodeFleet::start(nodes.collect(), &login).await?;
        Ok(Arc::new(fleet.into_nodes()))
    }

    /// The names of nodes of one zone in the order in which a rollout takes them: the oldest first.
    pub(crate) async fn by_age(&self, nodes: &[NodeDouble]) -> Result<Vec<String>> {
        let mut order = Vec::new();
        for node in nodes {
            let created = self.node(node.name()).await?.metadata.creation_timestamp;
            order.push((created.map(|it| it.0), node.name().to_owned()));
        }
        order.sort();
        Ok(order.into_iter().map(|(_, name)| name).collect())
    }

    /// Waits for an Event with that reason and these words on an object that is no Node.
    pub(crate) async fn told(&self, object: &str, reason: &str, words: &str) -> Result<String> {
        let what = format!("an Event {reason} on {object} with {words:?}");
        until_async(&what, crate::scene::SOON, async || {
            let events = self.events(object).await?;
            let found = events
                .iter()
                .find(|(found, note)| found == reason && note.contains(words));
            Ok(found.map_or_else(
                || Look::NotYet(format!("{events:?}")),
                |(_, note)| Look::Found(note.clone()),
            ))
        })
        .await
    }
}

/// Whether a condition is true.
pub(crate) fn is(status: &PoolStatus, kind: &str) -> bool {
    status.condition(kind).is_some_and(|it| it.status == "True")
}

/// The reason and the message of a condition.
pub(crate) fn said(status: &PoolStatus, kind: &str) -> (String, String) {
    let found = status.condition(kind).cloned().unwrap_or_default();
    (found.reason, found.message)
}
