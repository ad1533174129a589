//! Pools of nodes: what a `MachineConfigPool` says, as far as it makes sense, and which pool a node
//! belongs to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_api::field::Field;
use evenkeel_api::fleet::machine_config_pool::PoolSpec;
use evenkeel_api::names::{annotation, pool as name};
use evenkeel_api::selector::Selector;
use jiff::Timestamp;
use serde_json::Value;

use crate::fleet::budget::DisruptionBudget;
use crate::fleet::drain::DrainSettings;
use crate::fleet::field_problem::FieldProblem;
use crate::fleet::node::Node;
use crate::fleet::policy::{PolicyLookup, PolicyReference};
use crate::machine::phase::OnDrift;

/// Where a pool names its policy.
const POLICY_FIELD: &str = "metadata.annotations evenkeel.dev/rollout-policy";

/// What a pool's owner wants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// The nodes it is about; none if it does not say.
    pub node_selector: Option<Selector>,
    /// The MachineConfigs it is made from; none if it does not say.
    pub machine_config_selector: Option<Selector>,
    /// How many of its nodes may be down.
    pub budget: DisruptionBudget,
    /// The policy that it is rolled out by.
    pub policy: PolicyReference,
    /// The rendered configuration that its nodes are to run.
    pub target: Option<String>,
    /// Configurations that we rendered for it; for the caller to fill in, with [`Pool::with_configs`].
    pub rendered: BTreeSet<String>,
    /// Whether drains leave its pods where they are, where it says so.
    pub drain_keeps_pods: Option<bool>,
    /// How long a drain may take before it is reported, where it says so.
    pub drain_timeout: Option<Duration>,
    /// Whether a drain that takes longer goes ahead, where it says so.
    pub drain_proceeds: Option<bool>,
    /// How long a drain waits for pods that no kubelet ends, where it says so.
    pub drain_skip_wait_for_delete: Option<Duration>,
    /// Whether its new nodes take no pods until their first configuration is done.
    pub first_config_first: bool,
    /// What happens on drift, where it says so.
    pub drift: Option<OnDrift>,
    /// Whether nobody understands which nodes it is about: then it keeps those that it has.
    pub keeps_its_nodes: bool,
    /// What of it makes no sense.
    pub problems: Vec<FieldProblem>,
}

impl Pool {
    /// Reads a pool field by field: what makes no sense is a problem, and stops nothing else. A limit
    /// that nobody understands lets no node begin.
    pub fn read(name: &str, annotations: &BTreeMap<String, String>, spec: &PoolSpec) -> Self {
        let mut pool = Self {
            name: name.to_owned(),
            ..Self::default()
        };
        pool.node_selector = pool.selector("spec.nodeSelector", &spec.node_selector);
        pool.keeps_its_nodes = !pool.problems.is_empty();
        pool.machine_config_selector =
            pool.selector("spec.machineConfigSelector", &spec.machine_config_selector);
        let (budget, problem) = DisruptionBudget::of(&spec.max_unavailable, &spec.paused);
        pool.budget = budget;
        pool.problems.extend(problem);
        let target = spec.configuration.get().map(|it| it.name.clone());
        pool.target = target.filter(|it| !it.is_empty());
        let said = |name| annotations.get(name).map(String::as_str);
        pool.policy = PolicyReference::to(POLICY_FIELD, said(annotation::ROLLOUT_POLICY));
        let problem = pool.policy.override_by(said(annotation::ROLLOUT_OVERRIDE));
        pool.problems.extend(problem);
        let (timeout, action, skip) = (
            said(annotation::DRAIN_TIMEOUT),
            said(annotation::DRAIN_ON_TIMEOUT),
            said(annotation::DRAIN_SKIP_WAIT_FOR_DELETE),
        );
        match said(annotation::DRAIN).map(DrainSettings::keeps_pods) {
            None => {}
            Some(Ok(keeps)) => pool.drain_keeps_pods = Some(keeps),
            Some(Err(message)) => pool.annotation_problem(annotation::DRAIN, message),
        }
        match DrainSettings::read(timeout, None, None) {
            Ok(settings) => pool.drain_timeout = timeout.map(|_| settings.timeout),
            Err(message) => pool.annotation_problem(annotation::DRAIN_TIMEOUT, message),
        }
        match DrainSettings::read(None, action, None) {
            Ok(settings) => pool.drain_proceeds = action.map(|_| settings.proceed),
            Err(message) => pool.annotation_problem(annotation::DRAIN_ON_TIMEOUT, message),
        }
        match DrainSettings::read(None, None, skip) {
            Ok(settings) => {
                pool.drain_skip_wait_for_delete = skip.map(|_| settings.skip_wait_for_delete);
            }
            Err(message) => {
                pool.annotation_problem(annotation::DRAIN_SKIP_WAIT_FOR_DELETE, message);
            }
        }
        match said(annotation::FIRST_CONFIG_FIRST) {
            None | Some("false") => {}
            Some("true") => pool.first_config_first = true,
            Some(other) => {
                let message = format!("unknown value {other:?}: write true or false");
                pool.annotation_problem(annotation::FIRST_CONFIG_FIRST, message);
            }
        }
        match Field::from(Value::from(said(annotation::DRIFT))) {
            Field::Invalid { found, .. } => {
                let message = format!("unknown value {found}: write degrade or heal");
                pool.annotation_problem(annotation::DRIFT, message);
            }
            drift => pool.drift = drift.valid(),
        }
        pool
    }

    /// The same pool, of which is known who rendered what: MachineConfigs by name, each with whether we
    /// rendered it for this pool. What somebody else rendered is not rolled out: ours comes in its place.
    #[must_use]
    pub fn with_configs<'c>(mut self, configs: impl Iterator<Item = (&'c str, bool)>) -> Self {
        for (name, is_owned) in configs {
            if is_owned {
                self.rendered.insert(name.to_owned());
            } else if self.target.as_deref() == Some(name) {
                self.target = None;
            }
        }
        self
    }

    /// The same pool at `now`, with what the policy says that it names.
    #[must_use]
    pub fn held_to(mut self, policy: PolicyLookup<'_>, now: Timestamp) -> Self {
        let effect = self.policy.effect(policy, now);
        self.budget.closed = effect.closed;
        self.problems.extend(effect.problem);
        self
    }

    /// How its nodes are drained, where `default` holds for what it does not say.
    pub fn drain_settings(&self, default: DrainSettings) -> DrainSettings {
        DrainSettings {
            timeout: self.drain_timeout.unwrap_or(default.timeout),
            proceed: self.drain_proceeds.unwrap_or(default.proceed),
            skip_wait_for_delete: self
                .drain_skip_wait_for_delete
                .unwrap_or(default.skip_wait_for_delete),
            keeps_pods: self.drain_keeps_pods.unwrap_or(default.keeps_pods),
        }
    }

    fn selector(&mut self, field: &str, selector: &Field<Selector>) -> Option<Selector> {
        let problem = match selector {
            Field::Invalid { why, .. } => Some(format!("not a label selector: {why}")),
            selector => selector.get().and_then(Selector::problem),
        };
        match problem {
            Some(message) => {
                self.problem(field, message);
                None
            }
            None => selector.get().cloned(),
        }
    }

    fn annotation_problem(&mut self, annotation: &str, message: String) {
        self.problem(&format!("metadata.annotations {annotation}"), message);
    }

    fn problem(&mut self, field: &str, message: String) {
        self.problems.push(FieldProblem {
            field: field.to_owned(),
            message,
        });
    }

    /// Whether its selector covers `node`. No pool has Windows nodes.
    pub fn selects(&self, node: &Node) -> bool {
        let is_ours_already = || {
            let config = node.desired_config.as_deref();
            let rest = config.and_then(|it| it.strip_prefix(name::RENDERED_PREFIX));
            let rest = rest.and_then(|it| it.strip_prefix(self.name.as_str()));
            rest.is_some_and(|it| it.starts_with('-'))
        };
        !node.is_windows()
            && match &self.node_selector {
                Some(selector) => selector.matches(|label| node.labels.get(label)),
                None => self.keeps_its_nodes && is_ours_already(),
            }
    }

    fn rank(&self) -> Rank {
        if name::CONTROL_PLANE.contains(&self.name.as_str()) {
            Rank::ControlPlane
        } else if self.name == name::WORKER {
            Rank::Worker
        } else {
            Rank::Custom
        }
    }
}

/// Which pool wins, the greatest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Worker,
    Custom,
    ControlPlane,
}

/// Where a node belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Membership<'p> {
    /// To this pool.
    In(&'p Pool),
    /// To none: no pool selects it, or it runs Windows.
    Nowhere,
    /// Nobody can say: these have the same right to it.
    Torn(Vec<&'p Pool>),
}

/// Where `node` belongs: the control plane's pool wins, then a custom one, then worker.
pub fn place<'p>(pools: &'p [Pool], node: &Node) -> Membership<'p> {
    let mut those: Vec<&Pool> = pools.iter().filter(|pool| pool.selects(node)).collect();
    let best = those.iter().map(|pool| pool.rank()).max();
    those.retain(|pool| Some(pool.rank()) == best);
    match (those.pop(), those.is_empty()) {
        (Some(only), true) => Membership::In(only),
        (Some(last), false) => {
            those.push(last);
            Membership::Torn(those)
        }
        (None, _) => Membership::Nowhere,
    }
}

/// All nodes by where they belong.
#[derive(Debug, Default)]
pub struct Assignment<'a> {
    /// The nodes of each pool, in the order of the pools.
    pub members: Vec<Vec<&'a Node>>,
    /// Nodes that several pools have the same right to, with their names.
    pub torn: Vec<(&'a Node, Vec<&'a str>)>,
    /// Linux nodes that no pool has, the torn ones among them.
    pub others: Vec<&'a Node>,
    /// Windows nodes.
    pub windows: Vec<&'a Node>,
}

impl<'a> Assignment<'a> {
    /// Puts every node where it belongs.
    pub fn of(pools: &'a [Pool], nodes: impl IntoIterator<Item = &'a Node>) -> Self {
        let mut own = Self {
            members: pools.iter().map(|_| Vec::new()).collect(),
            ..Self::default()
        };
        for node in nodes {
            if node.is_windows() {
                own.windows.push(node);
                continue;
            }
            match place(pools, node) {
                Membership::In(pool) => {
                    let at = pools.iter().position(|it| std::ptr::eq(it, pool));
                    if let Some(members) = at.and_then(|at| own.members.get_mut(at)) {
                        members.push(node);
                    }
                }
                Membership::Nowhere => own.others.push(node),
                Membership::Torn(those) => {
                    let names = those.iter().map(|pool| pool.name.as_str()).collect();
                    own.torn.push((node, names));
                    own.others.push(node);
                }
            }
        }
        own
    }

    /// The nodes that `pool` and others have the same right to, with those others.
    pub fn torn_from(&self, pool: &str) -> Vec<(&'a str, Vec<&'a str>)> {
        let torn = self.torn.iter().filter(|(_, pools)| pools.contains(&pool));
        torn.map(|(node, pools)| {
            let others = pools.iter().copied().filter(|it| *it != pool).collect();
            (node.name.as_str(), others)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fleet::budget::MaxUnavailable;

    fn pool(name: &str, label: &str) -> Pool {
        let spec = json!({ "nodeSelector": { "matchLabels": { label: "" } } });
        Pool::read(
            name,
            &BTreeMap::new(),
            &serde_json::from_value(spec).unwrap(),
        )
    }

    fn node(labels: &[&str]) -> Node {
        Node {
            name: labels.join("-"),
            labels: labels.iter().map(|label| (*label, "")).collect(),
            ..Node::default()
        }
    }

    #[test]
    fn a_custom_pool_beats_worker_the_control_plane_beats_all_and_two_custom_ones_are_an_error() {
        let pools = [
            pool("gpu", "gpu"),
            pool("infra", "infra"),
            pool("master", "master"),
            pool("worker", "worker"),
        ];
        let at = |labels: &[&str]| match place(&pools, &node(labels)) {
            Membership::In(pool) => pool.name.clone(),
            Membership::Nowhere => "nowhere".to_owned(),
            Membership::Torn(pools) => {
                let names: Vec<_> = pools.iter().map(|it| it.name.as_str()).collect();
                names.join(" or ")
            }
        };
        assert_eq!(at(&["worker"]), "worker");
        assert_eq!(at(&["worker", "infra"]), "infra");
        assert_eq!(at(&["worker", "infra", "master"]), "master");
        assert_eq!(at(&["worker", "infra", "gpu"]), "gpu or infra");
        assert_eq!(at(&["infra", "gpu", "master"]), "master");
        assert_eq!(at(&["other"]), "nowhere");
        let windows = Node {
            os: Some("windows".to_owned()),
            ..node(&["worker"])
        };
        assert_eq!(place(&pools, &windows), Membership::Nowhere);
        let nodes = [
            node(&["worker", "infra", "gpu"]),
            node(&["worker"]),
            windows,
        ];
        let all = Assignment::of(&pools, &nodes);
        assert_eq!(
            all.members.iter().map(Vec::len).collect::<Vec<_>>(),
            [0, 0, 0, 1]
        );
        assert_eq!(all.torn_from("gpu"), [("worker-infra-gpu", vec!["infra"])]);
        assert_eq!(all.torn_from("infra"), [("worker-infra-gpu", vec!["gpu"])]);
        assert_eq!(all.torn_from("worker"), []);
        assert_eq!((all.windows.len(), all.others.len()), (1, 1));
    }

    #[test]
    fn an_absent_selector_has_no_nodes_and_an_empty_one_has_all() {
        let read = |spec| {
            Pool::read(
                "a",
                &BTreeMap::new(),
                &serde_json::from_value(spec).unwrap(),
            )
        };
        assert!(!read(json!({})).selects(&node(&["x"])));
        assert!(read(json!({ "nodeSelector": {} })).selects(&node(&["x"])));
    }

    #[test]
    fn what_makes_no_sense_is_named_with_its_field_and_the_rest_counts() {
        for limit in [
            json!("60"),
            json!("50 percent"),
            json!(0),
            json!("0%"),
            json!("101%"),
            json!(1.5),
            json!(-1),
            json!([]),
        ] {
            let spec = json!({ "nodeSelector": {}, "maxUnavailable": limit });
            let pool = Pool::read(
                "a",
                &BTreeMap::new(),
                &serde_json::from_value(spec).unwrap(),
            );
            assert!(pool.budget.unclear, "{limit}");
            let [problem] = pool.problems.as_slice() else {
                panic!("{limit}: {:?}", pool.problems);
            };
            assert_eq!(problem.field, "spec.maxUnavailable");
            assert!(problem.message.contains("10%"), "{problem}");
            assert!(pool.node_selector.is_some());
        }
        let annotations = [
            (annotation::DRAIN, "sometimes"),
            (annotation::DRAIN_TIMEOUT, "soon"),
            (annotation::DRAIN_ON_TIMEOUT, "panic"),
            (annotation::DRAIN_SKIP_WAIT_FOR_DELETE, "never"),
            (annotation::DRIFT, "ignore"),
        ];
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let spec = json!({
            "nodeSelector": { "matchExpressions": [{ "key": "a", "operator": "Inn" }] },
            "machineConfigSelector": { "matchExpressions": [{ "key": "a", "operator": "In" }] },
            "maxUnavailable": "10%",
        });
        let pool = Pool::read(
            "a",
            &annotations.into(),
            &serde_json::from_value(spec).unwrap(),
        );
        let fields: Vec<_> = pool.problems.iter().map(|it| it.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "spec.nodeSelector",
                "spec.machineConfigSelector",
                "metadata.annotations evenkeel.dev/drain",
                "metadata.annotations evenkeel.dev/drain-timeout",
                "metadata.annotations evenkeel.dev/drain-on-timeout",
                "metadata.annotations evenkeel.dev/drain-skip-wait-for-delete",
                "metadata.annotations evenkeel.dev/drift",
            ]
        );
        let mut member = node(&["x"]);
        assert!(!pool.selects(&member));
        member.desired_config = Some("rendered-a-0123".to_owned());
        assert!(
            pool.selects(&member),
            "a typing error would give it to another pool"
        );
        assert_eq!(pool.budget.max_unavailable, MaxUnavailable::Percent(10));
        assert!(!pool.budget.unclear);
        assert_eq!(
            pool.drain_settings(DrainSettings::default()),
            DrainSettings::default()
        );
    }
}
