//! Rules of node-readiness-controller, where its kind is installed: whoever follows them, they are judged and shown beside ours.

use anyhow::Result;
use evenkeel_api::readiness::{
    KIND, NRC_GROUP, NRC_PREFIX, NrcRule, NrcStatus, PLURAL, ReadinessRule, VERSION,
};
use evenkeel_plan::fleet::node_facts::NodeFacts;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::cluster::{Cluster, kind};

/// One of them, and what its follower says of it.
pub(crate) struct TheirRule {
    name: String,
    uid: String,
    is_ending: bool,
    generation: i64,
    /// What it says, or what is wrong with that.
    rule: Result<NrcRule, String>,
    status: NrcStatus,
}

impl TheirRule {
    /// All of a cluster.
    pub(crate) async fn all(cluster: &Cluster) -> Result<Vec<Self>> {
        let api = cluster.all(&kind(NRC_GROUP, VERSION, KIND, PLURAL));
        let objects = match cluster.pages(&api, &ListParams::default()).await {
            Ok(objects) => objects,
            // Who may not look is told so also where there is no such kind.
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Vec::new(),
            Err(error) => return Err(cluster.explain("list their nodereadinessrules", error)),
        };
        let read = objects.into_iter().map(|mut object| {
            let metadata = object.metadata;
            let name = metadata.name.unwrap_or_default();
            Self {
                rule: NrcRule::from_spec(&name, &object.data["spec"]).map_err(|it| it.to_string()),
                name,
                uid: metadata.uid.unwrap_or_default(),
                is_ending: metadata.deletion_timestamp.is_some(),
                generation: metadata.generation.unwrap_or_default(),
                status: serde_json::from_value(object.data["status"].take()).unwrap_or_default(),
            }
        });
        Ok(read.collect())
    }

    /// The rule as it is decided on, or what is wrong with it.
    pub(crate) fn as_ours(&self) -> Result<ReadinessRule, String> {
        match &self.rule {
            Ok(rule) => Ok(rule.to_rule(&self.uid, self.is_ending)),
            Err(wrong) => Err(format!(
                "NodeReadinessRule {} of node-readiness-controller is invalid and ignored: {wrong}",
                self.name
            )),
        }
    }
}

/// One of them, with the nodes that it selects.
pub(crate) struct TheirCount {
    rule: TheirRule,
    nodes: usize,
    /// Those that have its taint.
    tainted: usize,
}

impl TheirCount {
    pub(crate) fn of(rule: TheirRule, facts: &[NodeFacts]) -> Self {
        let (mut nodes, mut tainted) = (0, 0);
        if let Ok(ours) = rule.as_ours() {
            for node in facts.iter().map(NodeFacts::snapshot) {
                if ours.node_selector.matches(|name| node.labels.get(name)) {
                    nodes += 1;
                    tainted += usize::from(node.has_of(&ours));
                }
            }
        }
        Self {
            rule,
            nodes,
            tainted,
        }
    }

    pub(crate) fn is_well(&self) -> bool {
        self.problem().is_none() && (self.tainted == 0 || self.is_dry_run())
    }

    fn is_dry_run(&self) -> bool {
        self.rule.rule.as_ref().is_ok_and(|it| it.dry_run)
    }

    fn is_followed(&self) -> bool {
        self.rule.status.observed_generation >= self.rule.generation
    }

    /// Its name beside ours.
    pub(crate) fn name(&self) -> String {
        format!("{NRC_PREFIX}{}", self.rule.name)
    }

    fn word(&self) -> &'static str {
        match &self.rule.rule {
            Err(_) => "invalid",
            Ok(_) if self.rule.is_ending => "being deleted",
            Ok(_) if !self.is_followed() => "not followed",
            Ok(rule) if rule.dry_run => "dry run",
            Ok(_) => "followed",
        }
    }

    /// What people should know of it.
    pub(crate) fn problem(&self) -> Option<String> {
        let failed = &self.rule.status.failed_nodes;
        match (&self.rule.rule, failed.first()) {
            (Err(wrong), _) => Some(wrong.clone()),
            (Ok(_), _) if !self.is_followed() && !self.rule.is_ending => Some(
                "nobody follows this rule: run node-readiness-controller, or the operator with --nrc-rules (chart: readiness.nrcRules)"
                    .to_owned(),
            ),
            (Ok(_), Some(first)) => Some(match failed.len() - 1 {
                0 => format!("node {} cannot be written: {}", first.node_name, first.message),
                more => format!(
                    "node {} and {more} more cannot be written: {}",
                    first.node_name, first.message
                ),
            }),
            (Ok(_), None) => None,
        }
    }

    /// As a row of the table of rules.
    pub(crate) fn row(&self) -> [String; 5] {
        let ready = format!("{} of {}", self.nodes - self.tainted, self.nodes);
        // Who evicts, and who is held back, its status does not say.
        let unknown = || "-".to_owned();
        let state = self.word().to_owned();
        [self.name(), state, ready, unknown(), unknown()]
    }

    /// For programs.
    pub(crate) fn document(&self) -> Value {
        let nodes = json!({
            "total": self.nodes, "ready": self.nodes - self.tainted, "notReady": self.tainted,
        });
        let problems: Vec<_> = self.problem().into_iter().collect();
        json!({
            "rule": self.name(), "state": self.word(), "nodes": nodes,
            "worst": [], "problems": problems, "notes": [],
        })
    }
}
