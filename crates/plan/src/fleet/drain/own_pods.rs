//! The operator's own pods on a node that is drained. They go where another node can take them and stay where none can:
//! a drain must not end the only one who can finish it.
//!
//! It is decided once in a drain, and written on the Node. The operator's pods tolerate the cordon, so a successor may
//! come back to the node; it is not among those that were to go, and stays.

use std::collections::BTreeSet;

use evenkeel_api::names::{annotation, program, taint};
use evenkeel_api::notice::Notice;

use super::{Candidate, Pod, listed};
use crate::fleet::node::{Node, NodePatch};

/// Which pod of ours it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ours {
    /// An agent.
    Agent,
    /// An operator: the one that decides here, or another copy.
    Operator,
}

/// Where we are installed. Labels do not count: anybody can set them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Installation {
    /// The operator's namespace.
    pub namespace: String,
    /// The uids of the controllers (`ReplicaSets`) of the operator's pods.
    pub operators: BTreeSet<String>,
}

impl Installation {
    /// Whether `pod` is ours: by its namespace and its controller.
    pub fn recognise(&self, pod: &Pod) -> Option<Ours> {
        let owner = pod.owner.as_ref()?;
        if pod.namespace != self.namespace {
            None
        } else if owner.kind == "DaemonSet" && owner.name == program::AGENT {
            Some(Ours::Agent)
        } else {
            let is_operator = self.operators.contains(&owner.uid);
            is_operator.then_some(Ours::Operator)
        }
    }
}

/// Those of `pods` about which nothing is decided yet in the drain of `node`.
fn undecided<'a>(node: &Node, pods: &'a [Pod]) -> Vec<&'a Pod> {
    if node.own_pods.is_some() {
        return Vec::new();
    }
    let is_own_pod =
        |pod: &&Pod| pod.ours == Some(Ours::Operator) && !pod.is_ending() && pod.stays().is_none();
    pods.iter().filter(is_own_pod).collect()
}

/// Whether it is still to be decided which of the operator's own pods go: [`decide`] needs the other nodes.
pub fn is_undecided(node: &Node, pods: &[Pod]) -> bool {
    !undecided(node, pods).is_empty()
}

/// Which of the operator's own pods on `node` go, now that `others` are the nodes of the cluster. To be written before
/// any of them is evicted; the taint tells the scheduler to prefer other nodes for the successors.
pub fn decide(node: &Node, pods: &[Pod], others: &[Candidate]) -> (NodePatch, Notice) {
    let others: Vec<_> = others.iter().filter(|it| it.name != node.name).collect();
    let can_go = |pod: &&Pod| others.iter().any(|it| it.refuses(pod).is_none());
    let (go, stay): (Vec<_>, Vec<_>) = undecided(node, pods).into_iter().partition(can_go);
    let uids: Vec<_> = go.iter().map(|pod| pod.uid.as_str()).collect();
    let mut change = NodePatch::default().with(annotation::DRAIN_OWN_PODS, uids.join(","));
    if !go.is_empty() {
        change = change.with_taint(taint::DRAINING, true);
    }
    let names = |pods: &[&Pod]| listed(pods.iter().map(ToString::to_string));
    let says = match stay.first() {
        None => {
            let note = format!(
                "the operator's own pods move to another node: {}",
                names(&go)
            );
            Notice::normal("OperatorMoves", note)
        }
        Some(first) => {
            let refusals = others.iter().map(|it| {
                let why = it.refuses(first).unwrap_or_default();
                format!("node {} {why}", it.name)
            });
            let why = if others.is_empty() {
                "there is no other node".to_owned()
            } else {
                format!("no other node can take them: {}", listed(refusals))
            };
            let note = format!(
                "the operator's own pods stay on the node and restart with it: {}; {why}",
                names(&stay)
            );
            Notice::normal("OperatorStays", note)
        }
    };
    (change, says)
}

/// Whether `pod` is the operator's own and not one of those that go.
pub(super) fn stays(node: &Node, pod: &Pod) -> bool {
    let go = node.own_pods.as_deref().unwrap_or_default();
    pod.ours == Some(Ours::Operator) && !go.split(',').any(|uid| uid == pod.uid)
}

/// The same change, with what was decided in an earlier drain taken off.
pub(super) fn forgotten(node: &Node, mut change: NodePatch) -> NodePatch {
    if node.own_pods.is_some() {
        change = change
            .without(annotation::DRAIN_OWN_PODS)
            .with_taint(taint::DRAINING, false);
    }
    change
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::fleet::drain::{
        DrainSettings, Owner, Stay, Toleration, evict, grant, is_only_node, next,
    };

    fn owned(kind: &str, name: &str, uid: &str) -> Owner {
        Owner {
            kind: kind.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        }
    }

    /// The operator's own, as the chart has it.
    fn own(uid: &str) -> Pod {
        let tolerated = [
            "node-role.kubernetes.io/control-plane",
            "node.kubernetes.io/unschedulable",
        ];
        Pod {
            namespace: "evenkeel".to_owned(),
            name: format!("evenkeel-operator-{uid}"),
            uid: uid.to_owned(),
            owner: Some(owned("ReplicaSet", "evenkeel-operator-1", "set-1")),
            ours: Some(Ours::Operator),
            node_selector: BTreeMap::from([("kubernetes.io/os".to_owned(), "linux".to_owned())]),
            tolerations: tolerated
                .map(|key| Toleration {
                    key: Some(key.to_owned()),
                    operator: Some("Exists".to_owned()),
                    effect: Some("NoSchedule".to_owned()),
                    value: None,
                })
                .into(),
            ..Pod::default()
        }
    }

    /// A node that is drained since second 1000.
    fn draining() -> Node {
        let node = Node {
            name: "n1".to_owned(),
            ready: true,
            has_permit: true,
            desired_drain: Some("drain-new".to_owned()),
            ..Node::default()
        };
        let now = Timestamp::from_second(1000).unwrap_or_default();
        grant(&node, now).0.made_to(&node)
    }

    fn candidate(name: &str, os: &str, taints: &[Value]) -> Candidate {
        let node = Node {
            name: name.to_owned(),
            labels: [("kubernetes.io/os", os)].into_iter().collect(),
            ready: true,
            ..Node::default()
        };
        Candidate::of(&node, taints)
    }

    #[test]
    fn our_pods_are_known_by_namespace_and_controller_and_by_nothing_else() {
        let installation = Installation {
            namespace: "evenkeel".to_owned(),
            operators: BTreeSet::from(["set-1".to_owned(), "set-2".to_owned()]),
        };
        let of = |uid: &str| owned("ReplicaSet", "evenkeel-operator-1", uid);
        let agent = || owned("DaemonSet", "evenkeel-agent", "a");
        for (namespace, owner, expected) in [
            ("evenkeel", Some(of("set-1")), Some(Ours::Operator)),
            ("evenkeel", Some(of("set-2")), Some(Ours::Operator)),
            ("evenkeel", Some(of("set-3")), None),
            ("shop", Some(of("set-1")), None),
            ("evenkeel", None, None),
            ("evenkeel", Some(agent()), Some(Ours::Agent)),
            ("shop", Some(agent()), None),
            ("evenkeel", Some(owned("DaemonSet", "other", "b")), None),
        ] {
            let pod = Pod {
                namespace: namespace.to_owned(),
                owner,
                ..Pod::default()
            };
            assert_eq!(installation.recognise(&pod), expected, "{pod:?}");
        }
    }

    #[test]
    fn a_node_takes_the_operator_if_it_is_ready_schedulable_selected_and_tolerated() {
        let linux = || candidate("n2", "linux", &[]);
        let tainted = |key: &str, effect: &str| {
            candidate("n2", "linux", &[json!({ "key": key, "effect": effect })])
        };
        let master = "node-role.kubernetes.io/control-plane";
        let cordoned = Candidate {
            unschedulable: true,
            ..linux()
        };
        let unready = Candidate {
            ready: false,
            ..linux()
        };
        for (candidate, refuses) in [
            (linux(), None),
            (cordoned, Some("is cordoned")),
            (unready, Some("is not ready")),
            (
                candidate("n2", "windows", &[]),
                Some("does not have the label kubernetes.io/os=linux"),
            ),
            (tainted(master, "NoSchedule"), None),
            (
                tainted(master, "NoExecute"),
                Some("has the taint node-role.kubernetes.io/control-plane:NoExecute"),
            ),
            (
                tainted("gpu", "NoSchedule"),
                Some("has the taint gpu:NoSchedule"),
            ),
            (tainted("gpu", "PreferNoSchedule"), None),
        ] {
            let seen = candidate.refuses(&own("a"));
            assert_eq!(seen.as_deref(), refuses, "{candidate:?}");
        }
    }

    #[test]
    fn a_toleration_is_read_as_the_scheduler_reads_it() {
        let tainted = [json!({ "key": "k", "value": "v", "effect": "NoSchedule" })];
        let node = candidate("n2", "linux", &tainted);
        let text = |text: &str| Some(text.to_owned());
        for (key, operator, value, effect, tolerates) in [
            (None, text("Exists"), None, None, true),
            (text("k"), text("Exists"), None, text("NoSchedule"), true),
            (text("k"), None, text("v"), None, true),
            (text("k"), text("Equal"), text("w"), None, false),
            (text("other"), text("Exists"), None, None, false),
            (text("k"), text("Exists"), None, text("NoExecute"), false),
            (None, None, text("v"), None, false),
        ] {
            let toleration = Toleration {
                key,
                operator,
                value,
                effect,
            };
            let pod = Pod {
                tolerations: vec![toleration.clone()],
                ..Pod::default()
            };
            assert_eq!(node.refuses(&pod).is_none(), tolerates, "{toleration:?}");
        }
    }

    #[test]
    fn on_the_only_node_they_stay_and_the_drain_is_over() {
        let (node, pods) = (draining(), [own("a"), own("b")]);
        for others in [vec![], vec![candidate("n1", "linux", &[])]] {
            assert!(is_undecided(&node, &pods));
            let (change, says) = decide(&node, &pods, &others);
            assert_eq!(
                says.message,
                "the operator's own pods stay on the node and restart with it: evenkeel/evenkeel-operator-a; evenkeel/evenkeel-operator-b; there is no other node"
            );
            assert_eq!(change.taints, BTreeMap::new());
            let node = change.made_to(&node);
            assert!(!is_undecided(&node, &pods), "it is decided once");
            let round = evict(
                &node,
                &pods,
                &BTreeMap::new(),
                DrainSettings::default(),
                Timestamp::now(),
            );
            assert!(round.is_over && round.evict.is_empty());
            assert!(round.stay.iter().all(|(_, why)| *why == Stay::Operator));
        }
    }

    #[test]
    fn where_another_node_can_take_them_they_go_once_and_a_successor_stays() {
        let (node, pods) = (draining(), [own("a")]);
        let full = candidate(
            "n2",
            "linux",
            &[json!({ "key": "gpu", "effect": "NoSchedule" })],
        );
        let (_, says) = decide(&node, &pods, std::slice::from_ref(&full));
        assert_eq!(says.category, "OperatorStays");
        assert!(
            says.message
                .ends_with("no other node can take them: node n2 has the taint gpu:NoSchedule"),
            "{says:?}"
        );
        let (change, says) = decide(&node, &pods, &[full, candidate("n3", "linux", &[])]);
        assert_eq!(
            (&*says.category, change.taints.get(taint::DRAINING)),
            ("OperatorMoves", Some(&true))
        );
        let mut node = change.made_to(&node);
        let goes = |node: &Node, pods: &[Pod]| {
            let now = Timestamp::now();
            let round = evict(node, pods, &BTreeMap::new(), DrainSettings::default(), now);
            (round.evict.len(), round.is_over)
        };
        assert_eq!(goes(&node, &pods), (1, false));
        // Its successor came back: the scheduler found no other place.
        let back = [own("b")];
        assert!(!is_undecided(&node, &back));
        assert_eq!(goes(&node, &back), (0, true));
        // With the uncordon both marks go.
        node.desired_drain = Some("uncordon-new".to_owned());
        let crate::fleet::drain::Next::Write(change, _) = next(&node) else {
            panic!("no answer");
        };
        assert_eq!(change.taints, BTreeMap::from([(taint::DRAINING, false)]));
        assert_eq!(change.made_to(&node).own_pods, None);
    }

    #[test]
    fn a_node_is_the_only_one_if_no_other_takes_a_pod_that_asks_for_nothing() {
        let control =
            [json!({ "key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule" })];
        let master = candidate("n2", "linux", &control);
        let cordoned = Candidate {
            unschedulable: true,
            ..candidate("n3", "linux", &[])
        };
        let mut all = vec![candidate("n1", "linux", &[]), master, cordoned];
        assert!(is_only_node("n1", &all));
        all.push(candidate("n4", "linux", &[]));
        assert!(!is_only_node("n1", &all));
    }
}
