//! A small cluster for `plan::readiness`: nodes with extensions that renew their Leases by wrong
//! clocks, an API server that freezes, a watch that hangs, others who write taints. Whatever is
//! decided is carried out as the operator does it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_api::names::{annotation, label, taint};
use evenkeel_api::readiness::{ReadinessRule, RuleTaint, rule_from_json};
use evenkeel_plan::fleet::labels::Labels;
use evenkeel_plan::readiness::{
    ConditionSnapshot, Feed, LeaseSnapshot, Limits, Moment, NodeCondition, NodeSnapshot,
    PodSnapshot, Readiness, ReadinessAction,
};
use serde_json::{Value, json};

/// How often what is alive renews.
const RENEWS: u64 = 3_300;
const KUBELET_RENEWS: u64 = 10_000;
/// How long after an answer did not come the operator takes note of it.
const LATE: u64 = 2_000;
pub(crate) const STEP: u64 = 100;

pub(crate) struct Machine {
    pub(crate) snapshot: NodeSnapshot,
    /// The extensions that it has, and whether they are alive.
    pub(crate) extensions: BTreeMap<String, bool>,
    pub(crate) kubelet: bool,
    /// Whether it reaches the API server.
    pub(crate) connected: bool,
    /// How wrong its clock is.
    pub(crate) clock: i64,
    phase: u64,
}

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) readiness: Readiness,
    limits: Limits,
    rules: BTreeMap<String, ReadinessRule>,
    pub(crate) machines: BTreeMap<String, Machine>,
    leases: BTreeMap<(String, String), LeaseSnapshot>,
    pods: BTreeMap<String, (Feed, PodSnapshot)>,
    /// Since when the API server does not answer.
    pub(crate) frozen: Option<u64>,
    /// Whether the watch of Leases shows nothing.
    pub(crate) deaf: bool,
    /// What was done, with when.
    pub(crate) log: Vec<(u64, ReadinessAction)>,
    /// Taints and releases that reached the API server.
    pub(crate) writes: BTreeMap<String, u32>,
    pub(crate) refused: u32,
    pub(crate) evicting: BTreeSet<String>,
    /// What pods must tolerate to stay on them.
    asked: BTreeMap<String, BTreeSet<RuleTaint>>,
}

pub(crate) fn rule(name: &str, spec: &Value) -> ReadinessRule {
    let object = json!({
        "apiVersion": "evenkeel.dev/v1alpha1", "kind": "NodeReadinessRule",
        "metadata": { "name": name }, "spec": spec,
    });
    rule_from_json(&object.to_string()).unwrap().0
}

impl World {
    pub(crate) fn new(rules: &[ReadinessRule]) -> Self {
        Self::with(rules, Limits::default())
    }

    pub(crate) fn with(rules: &[ReadinessRule], limits: Limits) -> Self {
        let mut world = Self {
            now: 1_000,
            readiness: Readiness::new(limits),
            limits,
            rules: BTreeMap::new(),
            machines: BTreeMap::new(),
            leases: BTreeMap::new(),
            pods: BTreeMap::new(),
            frozen: None,
            deaf: false,
            log: Vec::new(),
            writes: BTreeMap::new(),
            refused: 0,
            evicting: BTreeSet::new(),
            asked: BTreeMap::new(),
        };
        for rule in rules {
            world.rules.insert(rule.name.clone(), rule.clone());
        }
        world
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment(Duration::from_millis(self.now))
    }

    /// The operator begins, or another one takes over.
    pub(crate) fn begin(&mut self) {
        let now = self.moment();
        self.readiness = Readiness::new(self.limits);
        self.evicting.clear();
        self.asked.clear();
        for machine in self.machines.values() {
            self.readiness.see_node(machine.snapshot.clone(), now);
        }
        self.readiness.begin(self.rules.values().cloned(), now);
        self.list_all();
        self.act();
    }

    pub(crate) fn set_rule(&mut self, rule: ReadinessRule) {
        self.rules.insert(rule.name.clone(), rule);
        self.rules_changed();
    }

    pub(crate) fn delete_rule(&mut self, name: &str) {
        self.rules.remove(name);
        self.rules_changed();
    }

    /// A rule goes while nobody leads.
    pub(crate) fn forget_rule(&mut self, name: &str) {
        self.rules.remove(name);
    }

    /// What pods of a node must tolerate to stay there.
    pub(crate) fn asked(&self, node: &str) -> BTreeSet<RuleTaint> {
        self.asked.get(node).cloned().unwrap_or_default()
    }

    fn rules_changed(&mut self) {
        let before = self.readiness.feeds();
        let now = self.moment();
        self.readiness.set_rules(self.rules.values().cloned(), now);
        for feed in self.readiness.feeds().difference(&before) {
            self.list(feed);
        }
        self.act();
    }

    fn list_all(&mut self) {
        for feed in self.readiness.feeds() {
            self.list(&feed);
        }
    }

    fn list(&mut self, feed: &Feed) {
        if matches!(feed, Feed::Objects { .. }) {
            // A cluster without kinds of its own.
            return;
        }
        let now = self.moment();
        self.readiness.relisting(feed);
        if let Feed::Leases { namespace } = feed {
            for ((of, name), lease) in &self.leases {
                if of == namespace {
                    self.readiness.see_lease(feed, name, lease.clone(), now);
                }
            }
        }
        for (of, pod) in self.pods.values() {
            if of == feed {
                self.readiness.see_pod(feed, pod.clone(), now);
            }
        }
        self.readiness.listed(feed, now);
    }

    /// A machine that was there before anybody looked.
    pub(crate) fn add(&mut self, name: &str, zone: &str, extensions: &[&str]) {
        let phase = name
            .bytes()
            .fold(7, |sum: u64, byte| sum * 31 % 9973 + u64::from(byte));
        let snapshot = NodeSnapshot {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            labels: [(label::ZONE, zone), ("pool", "gpu")]
                .into_iter()
                .collect::<Labels>(),
            boot_id: format!("boot-{name}"),
            has_annotations: true,
            ..NodeSnapshot::default()
        };
        let machine = Machine {
            snapshot,
            extensions: extensions
                .iter()
                .map(|it| ((*it).to_owned(), true))
                .collect(),
            kubelet: true,
            connected: true,
            clock: 0,
            phase,
        };
        self.machines.insert(name.to_owned(), machine);
        self.renew(name, true);
    }

    /// A machine that joins, with our taint from its creation or without.
    pub(crate) fn join(&mut self, name: &str, tainted: bool) {
        self.add(name, "a", &[]);
        let machine = self.machines.get_mut(name).unwrap();
        if tainted {
            machine.snapshot.taints =
                vec![json!({ "key": taint::META_READINESS, "effect": "NoSchedule" })];
            machine.snapshot.owners = Some("gpu".to_owned());
        }
        self.show(name);
    }

    pub(crate) fn machine(&mut self, name: &str) -> &mut Machine {
        self.machines.get_mut(name).unwrap()
    }

    /// The watch of Nodes shows a node.
    pub(crate) fn show(&mut self, name: &str) {
        let now = self.moment();
        let snapshot = self.machines[name].snapshot.clone();
        self.readiness.see_node(snapshot, now);
        self.act();
    }

    pub(crate) fn lease(&mut self, namespace: &str, name: &str, lease: LeaseSnapshot) {
        if self.frozen.is_some() {
            return;
        }
        let now = self.moment();
        self.leases
            .insert((namespace.to_owned(), name.to_owned()), lease.clone());
        if !self.deaf {
            let feed = Feed::Leases {
                namespace: namespace.to_owned(),
            };
            self.readiness.see_lease(&feed, name, lease, now);
        }
    }

    /// What an agent says.
    pub(crate) fn report(&mut self, node: &str, report: &Value) {
        let lease = LeaseSnapshot {
            renewed: format!("{}", self.now),
            holder: node.to_owned(),
            lasts: Some(Duration::from_secs(30)),
            report: Some(report.to_string()),
        };
        self.lease("node-extensions", &format!("{node}.evenkeel-agent"), lease);
        self.act();
    }

    pub(crate) fn pod(&mut self, feed: &Feed, pod: PodSnapshot) {
        let now = self.moment();
        self.readiness.see_pod(feed, pod.clone(), now);
        self.pods.insert(pod.name.clone(), (feed.clone(), pod));
        self.act();
    }

    /// Somebody writes a condition of a Node, and the watch shows it; `stamp` is its heartbeat and its
    /// transition time.
    pub(crate) fn condition(&mut self, node: &str, kind: &str, status: &str, stamp: &str) {
        self.write_condition(node, kind, status, stamp);
        self.show(node);
    }

    /// The same before the watch shows it.
    pub(crate) fn write_condition(&mut self, node: &str, kind: &str, status: &str, stamp: &str) {
        let conditions = &mut self.machine(node).snapshot.conditions;
        conditions.retain(|it| *it.kind != *kind);
        conditions.push(ConditionSnapshot {
            kind: kind.into(),
            status: status.into(),
            transition: stamp.into(),
            heartbeat: stamp.into(),
        });
    }

    /// The kubelet after a reboot reports its new boot.
    pub(crate) fn reboot(&mut self, node: &str, boot: &str) {
        boot.clone_into(&mut self.machine(node).snapshot.boot_id);
        self.show(node);
    }

    /// What is said of the first extension of a node, in one word.
    pub(crate) fn says(&self, node: &str) -> &'static str {
        let view = self.readiness.node(node, self.moment()).unwrap();
        view.extensions[0].says
    }

    /// What is alive on a machine renews, if it is time or `all` shall.
    pub(crate) fn renew(&mut self, name: &str, all: bool) {
        let machine = &self.machines[name];
        if !machine.connected {
            return;
        }
        let wall = i64::try_from(self.now).unwrap() + machine.clock;
        let is_due = |every: u64| all || (self.now + machine.phase) % every < STEP;
        let mut due = Vec::new();
        if is_due(RENEWS) {
            let alive = machine.extensions.iter().filter(|(_, alive)| **alive);
            due.extend(
                alive.map(|(extension, _)| ("node-extensions", format!("{name}.{extension}"))),
            );
        }
        if machine.kubelet && is_due(KUBELET_RENEWS) {
            due.push(("kube-node-lease", name.to_owned()));
        }
        for (namespace, lease) in due {
            let snapshot = LeaseSnapshot {
                renewed: format!("{wall}"),
                holder: name.to_owned(),
                ..LeaseSnapshot::default()
            };
            self.lease(namespace, &lease, snapshot);
        }
    }

    /// So much time passes.
    pub(crate) fn pass(&mut self, milliseconds: u64) {
        let end = self.now + milliseconds;
        while self.now < end {
            self.now += STEP;
            if let Some(since) = self.frozen
                && self.now - since >= LATE
            {
                self.readiness.lose_watch();
            }
            let names: Vec<_> = self.machines.keys().cloned().collect();
            for name in names {
                self.renew(&name, false);
            }
            self.act();
        }
    }

    pub(crate) fn freeze(&mut self) {
        self.frozen.get_or_insert(self.now);
    }

    pub(crate) fn thaw(&mut self) {
        if let Some(since) = self.frozen.take() {
            if self.now - since >= LATE {
                // The answer to what was asked before comes first, and it comes late.
                self.readiness.lose_watch();
            }
            let now = self.moment();
            self.readiness.regain_watch(now);
        }
        self.act();
    }

    /// Decides, and carries it out, until nothing is left to do.
    pub(crate) fn act(&mut self) {
        for _ in 0..10 {
            let now = self.moment();
            let actions = self.readiness.decide(now);
            if actions.is_empty() {
                return;
            }
            for action in actions {
                self.log.push((self.now, action.clone()));
                self.carry_out(action);
            }
        }
        panic!(
            "it never ends: {:?}",
            self.log.iter().rev().take(6).collect::<Vec<_>>()
        );
    }

    fn carry_out(&mut self, action: ReadinessAction) {
        let now = self.moment();
        match action {
            ReadinessAction::Write { node, patch, .. } => {
                if self.frozen.is_some() {
                    self.readiness.written(&node, false, now);
                    return;
                }
                let machine = self.machines.get_mut(&node).unwrap();
                if apply(&mut machine.snapshot, &patch) {
                    *self.writes.entry(node.clone()).or_default() += 1;
                } else {
                    self.refused += 1;
                }
                let snapshot = machine.snapshot.clone();
                self.readiness.see_node(snapshot, now);
                self.readiness.written(&node, true, now);
            }
            ReadinessAction::Confirm { node, places } => {
                if self.frozen.is_some() {
                    self.readiness.lose_watch();
                    self.readiness.not_confirmed(&node);
                    return;
                }
                let found: Vec<_> = places
                    .into_iter()
                    .map(|(feed, name)| {
                        let Feed::Leases { namespace } = &feed else {
                            panic!("{feed:?}")
                        };
                        let lease = self.leases.get(&(namespace.clone(), name.clone())).cloned();
                        (feed, name, lease)
                    })
                    .collect();
                self.readiness.confirmed(&node, &found, now);
            }
            ReadinessAction::Relist(feed) => {
                self.deaf = false;
                self.list(&feed);
            }
            ReadinessAction::Publish { node, conditions } => {
                let snapshot = &mut self.machines.get_mut(&node).unwrap().snapshot;
                for NodeCondition { kind, status, .. } in conditions {
                    snapshot.conditions.retain(|it| *it.kind != *kind);
                    snapshot.conditions.push(ConditionSnapshot {
                        kind: kind.into(),
                        status: status.into(),
                        transition: "t".into(),
                        heartbeat: "h".into(),
                    });
                }
                let snapshot = snapshot.clone();
                self.readiness.see_node(snapshot, now);
                self.readiness.written(&node, true, now);
            }
            ReadinessAction::Evict { node, taints } => {
                self.evicting.insert(node.clone());
                let before = self.asked.insert(node, taints.clone()).unwrap_or_default();
                assert!(before != taints, "they are evicted already");
            }
            ReadinessAction::Spare(node) => {
                self.evicting.remove(&node);
                self.asked.remove(&node);
            }
        }
    }

    pub(crate) fn is_tainted(&self, name: &str) -> bool {
        self.machines[name].snapshot.is_tainted()
    }

    pub(crate) fn tainted(&self) -> usize {
        self.machines
            .values()
            .filter(|it| it.snapshot.is_tainted())
            .count()
    }
}

/// What the API server does with a patch: nothing if a test fails.
fn apply(node: &mut NodeSnapshot, patch: &[Value]) -> bool {
    let before = node.clone();
    for step in patch {
        let (path, value) = (step["path"].as_str().unwrap(), &step["value"]);
        match (step["op"].as_str().unwrap(), path) {
            ("test", "/metadata/uid") => {
                if *value != json!(node.uid) {
                    *node = before;
                    return false;
                }
            }
            ("test", "/spec/taints") => {
                let found = if node.taints.is_empty() {
                    Value::Null
                } else {
                    json!(node.taints)
                };
                if found != *value {
                    *node = before;
                    return false;
                }
            }
            ("add" | "replace", "/spec/taints") => {
                node.taints = serde_json::from_value(value.clone()).unwrap();
            }
            ("remove", "/spec/taints") => node.taints.clear(),
            (op, path) if path.ends_with(&annotation::READINESS_OWNERS.replace('/', "~1")) => {
                node.owners = (op == "add").then(|| value.as_str().unwrap().to_owned());
            }
            (op, path) if path.ends_with(&annotation::READINESS_RECORD.replace('/', "~1")) => {
                node.record = (op == "add").then(|| value.as_str().unwrap().to_owned());
            }
            (op, path) if path.ends_with(&annotation::READINESS_TAINTS.replace('/', "~1")) => {
                node.own_taints = (op == "add").then(|| value.as_str().unwrap().to_owned());
            }
            (op, path) if path.ends_with(&annotation::BOOTSTRAP_COMPLETED.replace('/', "~1")) => {
                assert_eq!(op, "add", "nobody takes it off");
                node.completed = Some(value.as_str().unwrap().to_owned());
            }
            ("add", path) if path.contains("/readiness.k8s.io~1bootstrap-completed-") => {
                let (_, uid) = path.split_once("bootstrap-completed-").unwrap();
                node.completed_nrc.push(uid.into());
            }
            (op, path) => panic!("nobody writes {op} {path}"),
        }
    }
    true
}
