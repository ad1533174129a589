//! Node readiness: whether pods may come to a node, from what its extensions say of themselves.
//!
//! [`Readiness`] is told what was seen and when, by a clock that never goes back, and says what is to
//! be done about it. It has no memory but its own: whoever takes over begins with what is there,
//! and counts everything as just seen. Bad evidence taints at once; silence only after it was
//! confirmed, never while our own snapshot is not to be trusted, and slowly when much is silent at once.

mod bootstrap;
mod condition;
mod decide;
mod evict;
mod gate;
mod guard;
mod kubelet;
mod nrc;
mod observe;
pub mod own_list;
mod patch;
mod probing;
mod read;
mod register;
mod renewal;
mod restart;
mod restart_record;
mod rule_status;
mod snapshot;
mod suspended;
mod time;
mod verdict;
mod view;
mod wants;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use evenkeel_api::readiness::{AGENT_EXTENSION, NODE, ReadinessRule, RuleTaint};
use serde_json::Value;

pub use evict::{are_gone, evict, is_tolerated_by};
pub use gate::{NodePhase, OWN_LIST};
pub use guard::{Limits, ZoneCounts, ZoneState};
pub use kubelet::{Kubelet, KubeletSettings, folder_setting, unit_setting};
pub use patch::{NodeCondition, TaintChange, Want};
pub use probing::{Probing, Question, needed};
pub use register::{PLUGIN_FOLDERS, Plugins, Registration};
pub use renewal::{Renewal, renewal_period};
pub use rule_status::rule_conditions;
pub use snapshot::{ConditionSnapshot, Feed, LeaseSnapshot, NodeSnapshot, PodSnapshot};
pub use time::Moment;
pub use verdict::Verdict;
pub use view::{ReadinessView, Row, RuleView};

use self::gate::Gate;
use self::guard::Guard;
use self::snapshot::Evidence;
use self::verdict::{feed, place};

/// How long after the API server answers again pods are evicted again, at most: evidence comes first.
const EVICTS_AGAIN: Duration = Duration::from_secs(30);
/// How long after a read that was refused it is tried again.
const READS_AGAIN: Duration = Duration::from_secs(30);
/// How long after a write that failed it is tried again.
const WRITES_AGAIN: Duration = Duration::from_secs(1);

/// Something to do.
#[derive(Debug, Clone, PartialEq)]
pub enum ReadinessAction {
    /// Write this on a Node, and tell of it with [`Readiness::written`].
    Write {
        /// The node.
        node: String,
        /// The JSON Patch.
        patch: Vec<Value>,
        /// What this means for the node.
        change: TaintChange,
        /// Whether pods could come to it before.
        exposed: bool,
    },
    /// Read these fresh, and tell of it with [`Readiness::confirmed`].
    Confirm {
        /// The node.
        node: String,
        /// What it is silent about; empty is the Node itself.
        places: Vec<(Feed, String)>,
    },
    /// Publish conditions of the Node, and tell of it with [`Readiness::written`].
    Publish {
        /// The node.
        node: String,
        /// Those that have changed.
        conditions: Vec<NodeCondition>,
    },
    /// List this again: it is behind what the API server says.
    Relist(Feed),
    /// Begin to evict the pods of a node, and tell of the end with [`Readiness::evicted`].
    Evict {
        /// The node.
        node: String,
        /// A pod stays that tolerates all of these.
        taints: BTreeSet<RuleTaint>,
    },
    /// Do not evict pods of a node any more.
    Spare(String),
}

/// All nodes and what was seen of them.
#[derive(Debug, Default)]
pub struct Readiness {
    rules: BTreeMap<String, Rc<ReadinessRule>>,
    gates: BTreeMap<String, Gate>,
    evidence: BTreeMap<Feed, Evidence>,
    /// What stands before and after a node's name in what is renewed, by feed.
    names: BTreeMap<Feed, BTreeSet<(String, String)>>,
    /// How often other watches were needed.
    feeds_changed: u64,
    guard: Guard,
    /// Whether rules and nodes are known: before, nothing is decided.
    has_begun: bool,
    /// Whether the API server is away, or answers late.
    is_away: bool,
    /// Since when the API server answers without a break. Each watch has its own besides.
    watched_since: Moment,
    dirty: BTreeSet<String>,
    wakes: BTreeSet<(Moment, String)>,
    /// Nodes that are silent and not held, by zone.
    silent: BTreeMap<String, BTreeSet<String>>,
    /// Nodes whose pods are to be evicted when the limits allow it, by zone.
    overdue: BTreeMap<String, BTreeSet<String>>,
    /// When limits allow something again.
    limits_wake: Option<Moment>,
    relist: BTreeSet<Feed>,
    spare: BTreeSet<String>,
}

impl Readiness {
    /// Nothing is known yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            guard: Guard::new(limits),
            ..Self::default()
        }
    }

    /// Rules and nodes are known as they were at some time: from now on it counts. Rules that come later
    /// are new, and give every node their time; these are not.
    pub fn begin(&mut self, rules: impl IntoIterator<Item = ReadinessRule>, now: Moment) {
        self.set_rules(rules, now);
        self.has_begun = true;
        self.watched_since = now;
        let gates = std::mem::take(&mut self.gates);
        for (name, gate) in gates {
            let mut gate = Gate::new(gate.snapshot, false, now);
            gate.follow(&self.rules, now);
            gate.adopt(now);
            self.dirty.insert(name.clone());
            self.gates.insert(name, gate);
        }
        self.find_names();
    }

    /// The rules that can be followed.
    pub fn set_rules(&mut self, rules: impl IntoIterator<Item = ReadinessRule>, now: Moment) {
        let rules = rules
            .into_iter()
            .map(|rule| (rule.name.clone(), Rc::new(rule)));
        let rules: BTreeMap<_, _> = rules.collect();
        if rules == self.rules {
            return;
        }
        self.rules = rules;
        for (name, gate) in &mut self.gates {
            gate.follow(&self.rules, now);
            self.dirty.insert(name.clone());
        }
        self.find_names();
    }

    /// The watches that are needed; those of before whose evidence nobody asks for are forgotten.
    pub fn feeds(&self) -> BTreeSet<Feed> {
        self.names.keys().cloned().collect()
    }

    /// How often [`Readiness::feeds`] has become another: who runs them looks at that, and only then at them.
    pub fn feeds_changed(&self) -> u64 {
        self.feeds_changed
    }

    /// Finds out which evidence is needed and whose it is.
    fn find_names(&mut self) {
        let mut names: BTreeMap<Feed, BTreeSet<(String, String)>> = BTreeMap::new();
        let of_rules = || self.rules.values().flat_map(|rule| &rule.extensions);
        let mut asked: BTreeMap<Feed, usize> = BTreeMap::new();
        for gate in self.gates.values() {
            let feeds: BTreeSet<Feed> = gate.own_extensions().filter_map(feed).collect();
            for feed in feeds {
                *asked.entry(feed).or_default() += 1;
            }
        }
        let by_rules = of_rules().filter_map(feed).collect();
        let watched = own_list::chosen(&asked, &by_rules, |it| self.names.contains_key(it));
        let own = self.gates.values().flat_map(Gate::own_extensions);
        let own = own.filter(|it| feed(it).is_none_or(|it| watched.contains(&it)));
        for extension in of_rules().chain(own) {
            let Some(feed) = feed(extension) else {
                continue;
            };
            let known = names.entry(feed).or_default();
            if let Some((_, name)) = place(extension, NODE)
                && let Some((before, after)) = name.split_once(NODE)
            {
                known.insert((before.to_owned(), after.to_owned()));
            }
        }
        let governs = !names.is_empty()
            || !self.rules.is_empty()
            || self.gates.values().any(|it| !it.needs.is_empty());
        if governs {
            let kubelet = (String::new(), String::new());
            names.entry(Feed::kubelets()).or_default().insert(kubelet);
            let agent = (String::new(), format!(".{AGENT_EXTENSION}"));
            names.entry(Feed::agents()).or_default().insert(agent);
        }
        self.evidence.retain(|feed, _| names.contains_key(feed));
        for feed in names.keys() {
            self.evidence.entry(feed.clone()).or_default();
        }
        if !names.keys().eq(self.names.keys()) {
            self.feeds_changed += 1;
        }
        self.names = names;
    }
}

fn forget(all: &mut BTreeMap<String, BTreeSet<String>>, zone: &str, node: &str) {
    if let Some(nodes) = all.get_mut(zone) {
        nodes.remove(node);
        if nodes.is_empty() {
            all.remove(zone);
        }
    }
}
