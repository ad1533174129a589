//! The evidence of the extensions of nodes, read from a cluster again and again, for the same decisions that
//! the operator makes. Nothing is written.

use std::time::{Duration, Instant};

use anyhow::Result;
use evenkeel_api::names::group;
use evenkeel_api::readiness::{
    KIND, PLURAL, ReadinessRule, RuleStatus, Source, VERSION, rule_from_spec,
};
use evenkeel_plan::readiness::{
    Feed, LeaseSnapshot, Limits, Moment, NodeSnapshot, PodSnapshot, Readiness,
};
use kube::api::{DynamicObject, GroupVersionKind, ListParams};
use kube::discovery::pinned_kind;

use crate::cluster::{Cluster, core_kind, kind, leases_kind, whole};
use crate::readiness::theirs::TheirRule;

/// The time between two readings.
const PAUSE: Duration = Duration::from_millis(500);
/// Nobody waits longer than this unless told so.
const LONGEST: Duration = Duration::from_secs(40);

/// A rule as its owner wrote it, and what the operator says of it.
pub(crate) struct Rule {
    pub(crate) name: String,
    pub(crate) generation: i64,
    /// What it says, or what is wrong with that.
    pub(crate) spec: Result<ReadinessRule, String>,
    pub(crate) status: RuleStatus,
}

/// The evidence of some nodes.
pub(crate) struct Evidence<'c> {
    cluster: &'c Cluster,
    pub(crate) readiness: Readiness,
    start: Instant,
    /// How long something may go without a renewal, at most.
    expiry: Duration,
    has_looked: bool,
}

/// The valid rules of a cluster, and what is wrong with the others.
pub(crate) async fn rules(cluster: &Cluster) -> Result<(Vec<ReadinessRule>, Vec<String>)> {
    let (mut rules, mut problems) = (Vec::new(), Vec::new());
    for Rule { name, spec, .. } in all_rules(cluster).await? {
        match spec {
            Ok(rule) => rules.push(rule),
            Err(wrong) => problems.push(format!(
                "NodeReadinessRule {name} is invalid and ignored: {wrong}"
            )),
        }
    }
    for theirs in TheirRule::all(cluster).await? {
        match theirs.as_ours() {
            Ok(rule) => rules.push(rule),
            Err(problem) => problems.push(problem),
        }
    }
    Ok((rules, problems))
}

/// All rules of a cluster.
pub(crate) async fn all_rules(cluster: &Cluster) -> Result<Vec<Rule>> {
    let api = cluster.all(&kind(group::EVENKEEL, VERSION, KIND, PLURAL));
    let objects = match cluster.pages(&api, &ListParams::default()).await {
        Ok(objects) => objects,
        // A cluster that does not know rules has none.
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => return Err(cluster.explain("list nodereadinessrules", error)),
    };
    let read = |mut object: DynamicObject| {
        let name = object.metadata.name.unwrap_or_default();
        let uid = object.metadata.uid.unwrap_or_default();
        let rule = rule_from_spec(&name, &object.data["spec"]);
        Rule {
            name,
            generation: object.metadata.generation.unwrap_or_default(),
            spec: rule
                .map(|(rule, _)| ReadinessRule { uid, ..rule })
                .map_err(|wrong| wrong.to_string()),
            status: serde_json::from_value(object.data["status"].take()).unwrap_or_default(),
        }
    };
    Ok(objects.into_iter().map(read).collect())
}

impl<'c> Evidence<'c> {
    /// Reads the evidence of `nodes` for the first time. The rules only say what they would do.
    pub(crate) async fn of(
        cluster: &'c Cluster,
        rules: &[ReadinessRule],
        nodes: Vec<NodeSnapshot>,
    ) -> Result<Self> {
        let dry = rules.iter().map(|rule| ReadinessRule {
            dry_run: true,
            ..rule.clone()
        });
        let expiries = rules
            .iter()
            .flat_map(|it| &it.extensions)
            .map(|it| match &it.source {
                Source::Lease { expiry, .. } => *expiry,
                Source::Status { .. } => Duration::from_secs(10),
                Source::Probe { .. } => evenkeel_api::readiness::AGENT_EXPIRY,
                Source::Pods { .. } | Source::Condition { .. } | Source::AnyOf(_) => Duration::ZERO,
            });
        let mut evidence = Self {
            cluster,
            readiness: Readiness::new(Limits::default()),
            start: Instant::now(),
            expiry: expiries.max().unwrap_or_default(),
            has_looked: false,
        };
        let now = evidence.now();
        for mut node in nodes {
            // What is observed now decides, not what somebody has written because of it.
            node.taints.clear();
            node.has_permit = false;
            evidence.readiness.see_node(node, now);
        }
        evidence.readiness.begin(dry, now);
        evidence.look().await?;
        Ok(evidence)
    }

    pub(crate) fn now(&self) -> Moment {
        Moment(self.start.elapsed())
    }

    /// Reads the evidence once more.
    async fn look(&mut self) -> Result<()> {
        for feed in self.readiness.feeds() {
            let (api, which) = match &feed {
                Feed::Leases { namespace } => {
                    let leases = self.cluster.inside(namespace, &leases_kind());
                    (leases, ListParams::default())
                }
                Feed::Pods {
                    namespace,
                    selector,
                } => {
                    let pods = self.cluster.inside(namespace, &core_kind("Pod", "pods"));
                    (pods, ListParams::default().labels(selector))
                }
                Feed::Objects {
                    api_version,
                    kind,
                    namespace,
                    ..
                } => {
                    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
                    let kind = GroupVersionKind::gvk(group, version, kind);
                    // A kind that the cluster does not have is no evidence.
                    let Ok((kind, _)) = pinned_kind(&self.cluster.client, &kind).await else {
                        continue;
                    };
                    (self.cluster.inside(namespace, &kind), ListParams::default())
                }
            };
            let found = self.cluster.pages(&api, &which).await;
            let found = found.map_err(|error| {
                self.cluster
                    .explain(&format!("list {}", feed.describe()), error)
            })?;
            let now = self.now();
            for object in found {
                let name = object.metadata.name.clone().unwrap_or_default();
                let snapshot = match &feed {
                    Feed::Pods { .. } => {
                        if let Some(pod) = PodSnapshot::read(&whole(&object)) {
                            self.readiness.see_pod(&feed, pod, now);
                        }
                        continue;
                    }
                    Feed::Leases { .. } => Some(LeaseSnapshot::read(&whole(&object))),
                    Feed::Objects { lease, .. } => LeaseSnapshot::read_inside(&object.data, lease),
                };
                if let Some(snapshot) = snapshot {
                    self.readiness.see_lease(&feed, &name, snapshot, now);
                }
            }
            // The first reading counts everything as just observed.
            if !self.has_looked {
                self.readiness.listed(&feed, now);
            }
        }
        self.has_looked = true;
        // What it decides is not carried out; only what it makes of the evidence is wanted.
        let now = self.now();
        self.readiness.decide(now);
        Ok(())
    }

    /// Watches the evidence until `is_clear`, or until silence would have been noticed.
    pub(crate) async fn look_on(
        &mut self,
        wait: Option<Duration>,
        is_clear: impl Fn(&Readiness) -> bool,
    ) -> Result<()> {
        let wait = wait.unwrap_or_else(|| (self.expiry + PAUSE).min(LONGEST));
        while self.start.elapsed() < wait && !is_clear(&self.readiness) {
            tokio::time::sleep(PAUSE).await;
            self.look().await?;
        }
        let now = self.now();
        self.readiness.decide(now);
        Ok(())
    }
}
