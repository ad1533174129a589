//! Makes the configuration of every pool from its MachineConfigs, and keeps it as it was made.
//! `evenkeel_plan::fleet::render` decides what it says; here it is read, written and reported.
//!
//! Whatever cannot be made is told to the rollout, which says so in the pool's status; the configuration
//! before stays in use.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_api::document::{self, Document};
use evenkeel_api::fleet::machine_config_pool::{Configuration, KIND, MachineConfigReference};
use evenkeel_api::machine::disruption_policy::DisruptionPolicy;
use evenkeel_api::names::{annotation, group, label};
use evenkeel_api::notice::Notice;
use evenkeel_api::selector::Selector;
use evenkeel_daemon::panics::{contain, contain_work};
use evenkeel_plan::fleet::node_facts::NodeFacts;
use evenkeel_plan::fleet::render::{self, ConfigUsers, RenderProblem, Rendered};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::DynamicObject;
use serde_json::json;

use crate::fleet::configs::ObservedConfig;
use crate::fleet::metrics::PoolMetrics;

use crate::fleet::pools::ObservedPool;
use crate::shared::Shared;
use crate::triggers::Triggers;

/// How long after a change others are waited for, that may come with it.
const TOGETHER: Duration = Duration::from_millis(200);
/// How often it is looked at also when nothing changes: what nodes no longer use is collected then.
const NOW_AND_THEN: Duration = Duration::from_secs(15);
/// How long after the API server failed it is tried again.
const AGAIN: Duration = Duration::from_secs(2);

/// Renders until the program is asked to stop. Old configurations are collected only by one who
/// `sees_all_nodes`: another may not know who uses them.
pub(crate) async fn run(shared: &Shared, metrics: &PoolMetrics, sees_all_nodes: bool) {
    let mut renderer = Renderer {
        shared,
        metrics,
        sees_all_nodes,
        done: BTreeMap::new(),
        told: BTreeSet::new(),
    };
    let mut triggers = Triggers::until(&shared.stop)
        .and(shared.pools.store().changes())
        .and(shared.configs.store().changes())
        .and(shared.coexistence.changes())
        .and(shared.disruption_policies.changes())
        .together(TOGETHER);
    let mut pause = NOW_AND_THEN;
    while triggers.next(Some(pause)).await {
        if !shared.is_listed()
            || !shared.configs.store().is_listed()
            || shared.coexistence.is_idle()
            || !shared.disruption_policies.is_known()
        {
            continue;
        }
        pause = if renderer.round().await {
            NOW_AND_THEN
        } else {
            AGAIN
        };
    }
}

struct Renderer<'s> {
    shared: &'s Shared,
    metrics: &'s PoolMetrics,
    sees_all_nodes: bool,
    /// What was made last for each pool, by its uid.
    done: BTreeMap<String, Made>,
    /// MachineConfigs of which was said that they are nobody's.
    told: BTreeSet<String>,
}

/// What was made for a pool, and from what.
#[derive(Debug, Clone, PartialEq)]
struct Made {
    selector: Option<Selector>,
    /// Names and versions of its MachineConfigs.
    sources: BTreeMap<String, String>,
    /// What changes need around them.
    policy: DisruptionPolicy,
    /// The configuration, and at which version it was seen to say what it should.
    result: Result<(Configuration, String), RenderProblem>,
}

impl Renderer<'_> {
    /// Looks at all pools once. Says whether all went well.
    async fn round(&mut self) -> bool {
        let pools: Vec<ObservedPool> = self
            .shared
            .pools
            .store()
            .look(|all| all.values().cloned().collect());
        self.done
            .retain(|uid, _| pools.iter().any(|it| it.uid == *uid));
        let mut is_well = true;
        for seen in &pools {
            if self.is_done(seen) {
                continue;
            }
            let pool = &seen.pool.name;
            let Some(ended) = contain_work("render", pool, self.pool(seen)).await else {
                is_well = false;
                continue;
            };
            let Err(error) = ended else {
                continue;
            };
            is_well = false;
            match error {
                // Somebody else was faster: it is decided anew.
                kube::Error::Api(status) if status.code == 409 => {}
                error => tracing::warn!(pool, "cannot render, will retry: {error}"),
            }
        }
        self.mention_those_of_nobody(&pools);
        if self.sees_all_nodes
            && let Err(error) = self.collect(&pools).await
        {
            is_well = false;
            tracing::warn!("cannot delete unused configurations, will retry: {error}");
        }
        is_well
    }

    /// Whether nothing has changed since the configuration of a pool was made.
    fn is_done(&self, seen: &ObservedPool) -> bool {
        let Some(made) = self.done.get(&seen.uid) else {
            return false;
        };
        if made.policy != self.shared.disruption_policies.policy() {
            return false;
        }
        let selector = &seen.pool.machine_config_selector;
        self.shared.configs.store().look(|all| {
            let sources = all
                .values()
                .filter(|it| it.config.is_source(selector.as_ref()));
            let sources = sources.map(|it| (it.config.name.as_str(), it.version.as_str()));
            let stands = match &made.result {
                Err(_) => true,
                Ok((configuration, version)) => {
                    let found = all.get(&configuration.name).map(|it| &it.version);
                    seen.configuration == *configuration && found == Some(version)
                }
            };
            let known = made.sources.iter();
            let known = known.map(|(name, version)| (name.as_str(), version.as_str()));
            stands && made.selector == *selector && sources.eq(known)
        })
    }

    /// Observe, plan, apply, report: for one pool.
    async fn pool(&mut self, seen: &ObservedPool) -> kube::Result<()> {
        let selector = seen.pool.machine_config_selector.clone();
        let found = match &selector {
            Some(selector) => self.shared.configs.sources(&selector.to_query()).await?,
            None => Vec::new(),
        };
        let mut sources = BTreeMap::new();
        let mut texts = Vec::new();
        for (name, version, text) in found {
            sources.insert(name.clone(), version);
            texts.push((name, text));
        }
        let policy = self.shared.disruption_policies.policy();
        let result = match rendered(seen, texts).await {
            Ok(rendered) => Ok(self.put(seen, rendered.under(policy.clone())).await?),
            Err(problem) => Err(problem),
        };
        let made = Made {
            selector,
            sources,
            policy,
            result,
        };
        let problem = made.result.as_ref().err().cloned();
        let before = self.done.insert(seen.uid.clone(), made);
        let before = before.and_then(|it| it.result.err());
        if let Some(problem) = &problem
            && before.as_ref() != Some(problem)
        {
            self.metrics.rendered("failed");
            let note = format!(
                "{}; the pool keeps its previous configuration",
                problem.note
            );
            self.tell(seen.reference(), Notice::warning(problem.category, note));
        }
        self.shared
            .pools
            .rendered(&seen.pool.name, problem.as_ref());
        Ok(())
    }

    /// Makes the configuration exist, and tells the pool of it.
    async fn put(
        &self,
        seen: &ObservedPool,
        rendered: Rendered,
    ) -> kube::Result<(Configuration, String)> {
        let name = rendered.config.name.clone().unwrap_or_default();
        let configs = &self.shared.configs;
        let old = configs.read(&name).await?;
        let was_there = seen.configuration.name == name;
        let restored = |how: &str| {
            let note = format!(
                "restored {name}, which somebody {how}: change the MachineConfigs of the pool instead"
            );
            let notice = Notice::warning("RenderedConfigRestored", note);
            self.tell(seen.reference(), notice);
        };
        let right = old.as_ref();
        let right = right.filter(|it| is_as_made(it, &rendered, &seen.uid));
        let version = if let Some(right) = right {
            right.metadata.resource_version.clone()
        } else {
            let document = document(seen, &rendered);
            configs.write(&document, old.as_ref()).await?;
            let has_other_policy = old.as_ref().is_some_and(|it| !has_policy_of(it, &rendered));
            match (&old, was_there) {
                (Some(_), _) if has_other_policy => {
                    let note = format!("{name} has the cluster's disruption policy now");
                    self.tell(seen.reference(), Notice::normal("DisruptionPolicy", note));
                }
                (Some(_), _) => restored("edited"),
                (None, true) => restored("deleted"),
                (None, false) => {
                    self.metrics.rendered("made");
                    let note = format!("rendered {name} from {}", rendered.sources.join(", "));
                    self.tell(seen.reference(), Notice::normal("Rendered", note));
                }
            }
            let written = |all: &BTreeMap<String, ObservedConfig>| {
                all.get(&name).map(|it| it.version.clone())
            };
            configs.store().look(written)
        };
        let source = rendered
            .sources
            .into_iter()
            .map(|name| MachineConfigReference {
                api_version: format!("{}/v1", group::MACHINE_CONFIGURATION),
                kind: "MachineConfig".to_owned(),
                name,
            });
        let configuration = Configuration {
            source: source.collect(),
            name,
        };
        if seen.configuration != configuration {
            self.shared.pools.configure(seen, &configuration).await?;
        }
        Ok((configuration, version.unwrap_or_default()))
    }

    /// Says of MachineConfigs that nobody selects that they have no effect.
    fn mention_those_of_nobody(&mut self, pools: &[ObservedPool]) {
        let selectors: Vec<_> = pools
            .iter()
            .filter_map(|it| it.pool.machine_config_selector.as_ref())
            .collect();
        let nobodys: Vec<ObservedConfig> = self.shared.configs.store().look(|all| {
            let nobodys = all
                .values()
                .filter(|it| it.config.has_no_effect(&selectors));
            nobodys.cloned().collect()
        });
        for config in nobodys {
            if self.told.insert(config.uid.clone()) {
                let note = format!(
                    "MachineConfig {} has no effect: no pool selects it. Set its label {} to the name of a pool",
                    config.config.name,
                    label::ROLE
                );
                self.tell(config.reference(), Notice::warning("NoRole", note));
            }
        }
    }

    /// Deletes rendered configurations that no pool and no node uses.
    async fn collect(&self, pools: &[ObservedPool]) -> kube::Result<()> {
        let mut users = ConfigUsers::default();
        let add = |users: &mut ConfigUsers, pool: &ObservedPool| {
            let rolled_out = pool.status.configuration.iter();
            for configuration in rolled_out.chain([&pool.configuration]) {
                users.add_used(&configuration.name);
            }
        };
        for it in pools {
            add(&mut users, it);
        }
        let Shared { pools, nodes, .. } = self.shared;
        pools.store().look(|all| {
            for it in all.values() {
                add(&mut users, it);
                users.add_pool(&it.uid);
            }
        });
        let add_node = |it: &NodeFacts| users.add_node(&it.node);
        nodes.store().look(|all| all.values().for_each(add_node));
        let old: Vec<ObservedConfig> = self.shared.configs.store().look(|all| {
            let unused = all.values().filter(|it| users.is_unused(&it.config));
            unused.cloned().collect()
        });
        for config in old {
            self.shared.configs.delete(&config).await?;
            tracing::info!(
                config = config.config.name,
                "deleted: no pool and no node uses it"
            );
        }
        Ok(())
    }

    fn tell(&self, object: ObjectReference, notice: Notice) {
        self.shared.events.notify(object, "Render", notice);
    }
}

/// What the pool's MachineConfigs say together. Reading a thousand files takes a moment, and Leases are
/// to be renewed meanwhile.
async fn rendered(
    seen: &ObservedPool,
    texts: Vec<(String, String)>,
) -> Result<Rendered, RenderProblem> {
    let pool = &seen.pool;
    if pool.machine_config_selector.is_none() {
        let field = "spec.machineConfigSelector";
        let problem = pool.problems.iter().find(|it| it.field == field);
        let note = problem.map_or_else(
            || format!("{field} is missing: select the MachineConfigs of the pool"),
            ToString::to_string,
        );
        return Err(RenderProblem::new("InvalidPool", note));
    }
    let name = pool.name.clone();
    let work = move || contain("render", &name, || render::render(&name, &texts));
    let rendered = tokio::task::spawn_blocking(work).await;
    rendered.ok().flatten().unwrap_or_else(|| {
        let note = "internal error in render (please report): see the operator's log";
        Err(RenderProblem::new("Crashed", note))
    })
}

/// The object to write.
fn document(seen: &ObservedPool, rendered: &Rendered) -> serde_json::Value {
    let mut document = rendered.document.clone();
    document["metadata"]["labels"] = json!({ label::RENDERED: "true" });
    document["metadata"]["ownerReferences"] = json!([{
        "apiVersion": format!("{}/v1", group::MACHINE_CONFIGURATION),
        "kind": KIND,
        "name": seen.pool.name,
        "uid": seen.uid,
        "controller": true,
    }]);
    document
}

/// Whether an object has the disruption policy that it should have.
fn has_policy_of(object: &DynamicObject, rendered: &Rendered) -> bool {
    let annotations = object.metadata.annotations.as_ref();
    let found = annotations.and_then(|it| it.get(annotation::DISRUPTION_POLICY));
    let wanted = &rendered.document["metadata"]["annotations"][annotation::DISRUPTION_POLICY];
    found.map(String::as_str) == wanted.as_str()
}

/// Whether an object still says what was made.
fn is_as_made(object: &DynamicObject, rendered: &Rendered, owner: &str) -> bool {
    let metadata = &object.metadata;
    let is_marked = metadata
        .labels
        .as_ref()
        .is_some_and(|it| it.contains_key(label::RENDERED));
    let owners = metadata.owner_references.iter().flatten();
    let is_owned = owners.into_iter().any(|it| it.uid == owner);
    let text = serde_json::to_string(object).unwrap_or_default();
    let says_so = document::read("", text.as_bytes())
        .is_ok_and(|(found, _)| found == [Document::MachineConfig(rendered.config.clone())]);
    is_marked && is_owned && says_so
}
