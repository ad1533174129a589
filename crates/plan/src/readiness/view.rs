//! What is told about nodes and rules: counts and the worst few of a rule, every extension of one
//! node, and the conditions that a rule publishes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_api::names::group;
use evenkeel_api::readiness::{NodeCounts, Source, Worst};
use serde::Serialize;

use super::gate::{Gate, Need, NodePhase, OWN_LIST, stays};
use super::guard::{ZoneCounts, ZoneState};
use super::patch::NodeCondition;
use super::time::Moment;
use super::verdict::{Verdict, feed, is_anothers, is_of, place};
use super::{Feed, Readiness, own_list};

/// How many nodes are named in the status of a rule.
const WORST: usize = 5;
/// How long a reason may be there, in letters.
const WHY: usize = 120;

/// A rule, for its status.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuleView {
    /// Its nodes, counted.
    pub nodes: NodeCounts,
    /// Some that it holds, or would.
    pub worst: Vec<Worst>,
    /// What is held back, for people; empty if nothing.
    pub guarded: String,
    /// What counts though nothing tells that it is newer than a reboot, for people; empty if nothing.
    pub unclear: String,
    /// What a suspended rule leaves as it is, for people; empty if it is not suspended.
    pub suspended: String,
}

/// A node, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReadinessView {
    /// How far it is, in one word.
    pub phase: &'static str,
    /// Every extension that it must have.
    pub extensions: Vec<Row>,
    /// What happens next.
    pub next: String,
    /// Why its own list cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl ReadinessView {
    /// What the operator does next, as somebody says who looks at the node for a moment: whether it `is_tainted` and
    /// `has_permit` is read off the Node.
    pub fn next_for(&self, is_tainted: bool, has_permit: bool) -> String {
        let suspended = self.extensions.iter().filter(|it| it.suspended);
        let suspended: BTreeSet<_> = suspended.map(|it| it.rule.as_str()).collect();
        if !suspended.is_empty() && self.extensions.iter().all(|it| it.suspended) {
            return stays(&suspended);
        }
        let blocking = self
            .extensions
            .iter()
            .filter(|it| it.blocks && !it.suspended);
        let blocking: Vec<_> = blocking.map(|it| it.extension.as_str()).collect();
        let blocking = blocking.join(" and ");
        let governed = !self.extensions.is_empty();
        let next = match (is_tainted, blocking.is_empty()) {
            _ if has_permit => "the node has a disruption permit: the operator removes the taint when the node is back and every required extension is healthy".to_owned(),
            (true, false) => format!("waiting for {blocking} to be healthy; then the operator removes the taint"),
            (true, true) if governed => "nothing blocks the node: the operator removes the taint when every required extension was heard from since the restart".to_owned(),
            (true, true) => "no readiness rule selects this node any more: the operator removes the taint if the operator added it".to_owned(),
            (false, false) => format!("the operator taints the node because of {blocking}, unless its limits hold the taint back"),
            (false, true) if governed => "nothing, as long as every required extension is healthy".to_owned(),
            (false, true) => "nothing: no readiness rule selects this node".to_owned(),
        };
        if suspended.is_empty() {
            next
        } else {
            format!("{next}; {}", stays(&suspended))
        }
    }
}

/// One extension of a node.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a key of what explain prints"
)]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The rule that asks for it.
    pub rule: String,
    /// Its name.
    pub extension: String,
    /// Where its evidence comes from.
    pub source: String,
    /// What that says, in one word.
    pub says: &'static str,
    /// Why, if it is not healthy.
    pub why: String,
    /// How long ago it was heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heard_seconds_ago: Option<u64>,
    /// Whether the node may be unready for it.
    pub affects_readiness: bool,
    /// Whether pods are kept away because of it, or would be if its rule were not dry.
    pub blocks: bool,
    /// Whether its rule only says what it would do.
    pub dry_run: bool,
    /// Whether its rule leaves everything as it is.
    pub suspended: bool,
    /// Whether its rule was only about the node until it was ready once.
    pub completed: bool,
}

impl Readiness {
    /// What is to be said about a rule.
    pub fn rule(&self, name: &str) -> RuleView {
        let mut view = RuleView::default();
        let mut worst: Vec<(Moment, Worst)> = Vec::new();
        let mut unclear = Vec::new();
        for (node, gate) in &self.gates {
            let mut needs = gate
                .needs
                .iter()
                .filter(|it| it.rule.name == name)
                .peekable();
            if needs.peek().is_none() {
                continue;
            }
            view.nodes.total += 1;
            let mut all = gate.needs.iter().filter(|it| it.rule.name == name);
            if let Some(kind) = all.find(|it| it.unclear).and_then(Need::condition) {
                unclear.push((node, kind));
            }
            let holding = needs.find(|need| gate.would_hold(need));
            let is_held = gate.holds.contains_key(name);
            if is_held || holding.is_some_and(|need| need.rule.dry_run) {
                view.nodes.not_ready += 1;
                let since = gate.holds.get(name).copied().unwrap_or(gate.phase.since());
                let extension = holding.and_then(|need| Some(need.extension()?.name.clone()));
                worst.push((
                    since,
                    Worst {
                        node: node.clone(),
                        extension: extension.unwrap_or_default(),
                        why: holding
                            .map_or_else(|| gate.why(), |need| need.verdict.why().to_owned())
                            .chars()
                            .take(WHY)
                            .collect(),
                    },
                ));
            } else {
                view.nodes.ready += 1;
            }
            view.nodes.evicting +=
                u32::from(is_held && matches!(gate.phase, NodePhase::Evicting { .. }));
            view.nodes.held_back += u32::from(!is_held && gate.class.held_back);
        }
        worst.sort_by(|(one, a), (other, b)| one.cmp(other).then_with(|| a.node.cmp(&b.node)));
        view.worst = worst.into_iter().map(|(_, it)| it).take(WORST).collect();
        view.guarded = self.guarded();
        if self.rules.get(name).is_some_and(|it| it.suspend) {
            view.suspended = format!(
                "the rule sets and removes no taint and evicts no pods, and {} of its {} nodes stay not ready; set suspend to false to resume it",
                view.nodes.not_ready, view.nodes.total
            );
        }
        if let Some((node, kind)) = unclear.first() {
            let others = match unclear.len() - 1 {
                0 => String::new(),
                others => format!(" and of {others} more nodes"),
            };
            view.unclear = format!(
                "condition {kind} of node {node}{others} was not written since the reboot and may be older: it counts as it is; let its writer renew lastHeartbeatTime, or set freshness"
            );
        }
        view
    }

    /// What limits hold back, for people; empty if nothing.
    fn guarded(&self) -> String {
        let mut parts = Vec::new();
        if self.is_away {
            parts.push(
                "the API server does not answer in time: silence counts for nothing".to_owned(),
            );
        } else if self.is_blind() {
            parts.push("not all evidence is read yet: silence counts for nothing".to_owned());
        }
        for (zone, counts, state) in self.guard.zones() {
            if state == ZoneState::Disturbed {
                let zone = if zone.is_empty() {
                    "no zone".to_owned()
                } else {
                    format!("zone {zone}")
                };
                parts.push(format!(
                    "{zone}: {} of {} nodes are not ready and {} are quiet: {}",
                    counts.held,
                    counts.nodes,
                    counts.quiet,
                    self.guard.limits_of(counts)
                ));
            }
        }
        parts.truncate(3);
        parts.join("; ")
    }

    /// Every zone, with how it is.
    pub fn zones(&self) -> Vec<(String, ZoneCounts, ZoneState)> {
        let zones = self.guard.zones();
        zones
            .map(|(name, counts, state)| (name.to_owned(), counts, state))
            .collect()
    }

    /// How many nodes are in each phase, of those that a rule selects.
    pub fn phases(&self) -> [(&'static str, usize); 4] {
        let mut counts = [("Booting", 0), ("Ready", 0), ("Broken", 0), ("Evicting", 0)];
        for gate in self.gates.values().filter(|it| it.class.governed) {
            for (word, count) in &mut counts {
                *count += usize::from(*word == gate.phase.word());
            }
        }
        counts
    }

    /// How many nodes have each extension by what is said of it: its rule, its name, its source, one word for
    /// what that says, and the number. What nodes list for themselves is counted together, without a name.
    pub fn extensions(&self) -> BTreeMap<(&str, &str, &'static str, &'static str), usize> {
        let mut counts = BTreeMap::new();
        for need in self.gates.values().flat_map(|it| &it.needs) {
            let Some(extension) = need.extension() else {
                continue;
            };
            let rule = need.rule.name.as_str();
            let name = if rule == OWN_LIST {
                ""
            } else {
                &extension.name
            };
            let key = (rule, name, extension.source.kind(), need.verdict.word());
            *counts.entry(key).or_default() += 1;
        }
        counts
    }

    /// Whether a rule goes by what this watch tells, as its own extensions do or as all rules do.
    pub fn goes_by(&self, rule: &str, watch: &Feed) -> bool {
        let extensions = self.rules.get(rule).map(|it| it.extensions.as_slice());
        let mut own = extensions.into_iter().flatten().filter_map(feed);
        [Feed::kubelets(), Feed::agents()].contains(watch) || own.any(|it| it == *watch)
    }

    /// Whether a node's own list goes by what this watch tells.
    pub fn lists(&self, node: &str, watch: &Feed) -> bool {
        let needs = self.gates.get(node).map(|it| it.needs.as_slice());
        let own = needs.into_iter().flatten();
        let own = own.filter(|it| it.rule.name == OWN_LIST);
        let mut own = own.filter_map(|it| feed(it.extension()?));
        own.any(|it| it == *watch)
    }

    /// The rules that say something about a node that is not healthy, for what they would do.
    pub fn holders(&self, node: &str) -> Vec<(String, String)> {
        let gate = self.gates.get(node);
        let needs = gate
            .into_iter()
            .flat_map(|gate| gate.needs.iter().map(move |it| (gate, it)));
        let holding = needs.filter(|(gate, need)| gate.would_hold(need));
        holding
            .filter_map(|(_, need)| {
                let name = &need.extension()?.name;
                Some((
                    need.rule.name.clone(),
                    format!("{name}: {}", need.verdict.why()),
                ))
            })
            .collect()
    }

    /// What is wrong with a node's own list.
    pub fn problem(&self, node: &str) -> Option<String> {
        let gate = self.gates.get(node)?;
        gate.problem.clone().or_else(|| {
            let feed = |it| feed(it).filter(|it| !self.names.contains_key(it));
            let feed = gate.own_extensions().find_map(feed)?;
            Some(format!(
                "{OWN_LIST} of node {node}: cannot watch {}: the lists of all nodes have reached the limit of {} watches; write a NodeReadinessRule instead",
                feed.describe(),
                own_list::WATCHES_IN_ALL
            ))
        })
    }

    /// Leases of other nodes in the place of this one's: their names and holders.
    pub fn foreign(&self, node: &str) -> Vec<(String, String)> {
        let Some(gate) = self.gates.get(node) else {
            return Vec::new();
        };
        let places = gate
            .needs
            .iter()
            .filter_map(|it| place(it.extension()?, node));
        let foreign = places.filter_map(|(feed, name)| {
            let sign = self.evidence.get(&feed)?.signs.get(name.as_str())?;
            let is_managed =
                sign.is_gone() || (is_of(&sign.holder, node) && !is_anothers(&feed, &name, node));
            (!is_managed).then(|| (name, sign.holder.to_string()))
        });
        foreign.collect()
    }

    /// Everything about one node, for people.
    pub fn node(&self, name: &str, now: Moment) -> Option<ReadinessView> {
        let gate = self.gates.get(name)?;
        let rows: Vec<Row> = gate
            .needs
            .iter()
            .filter_map(|need| gate.row(need, now))
            .collect();
        Some(ReadinessView {
            phase: gate.phase.word(),
            next: gate.what_next(now),
            extensions: rows,
            problem: self.problem(name),
        })
    }
}

impl Gate {
    /// Whether pods are kept away because of it, or would be if its rule were not dry.
    fn would_hold(&self, need: &Need) -> bool {
        let affects = need.extension().is_some_and(|it| it.affects_readiness);
        let is_held = self.holds.contains_key(&need.rule.name) || need.rule.dry_run;
        let holds = |it: &Need| it.verdict != Verdict::Unknown && it.verdict.holds(is_held);
        affects && !need.completed && self.group_of(need).iter().all(holds)
    }

    fn row(&self, need: &Need, now: Moment) -> Option<Row> {
        let extension = need.extension()?;
        Some(Row {
            rule: need.rule.name.clone(),
            extension: extension.name.clone(),
            source: source(&extension.source, &self.snapshot.name),
            says: need.verdict.word(),
            why: need.verdict.why().to_owned(),
            heard_seconds_ago: need.last.map(|last| now.since(last).as_secs()),
            affects_readiness: extension.affects_readiness,
            blocks: self.would_hold(need),
            dry_run: need.rule.dry_run,
            suspended: need.rule.suspend,
            completed: need.completed,
        })
    }

    fn what_next(&self, now: Moment) -> String {
        if self.needs.is_empty() {
            return "no readiness rule selects this node: nothing happens".to_owned();
        }
        let suspended = self.suspended();
        if !suspended.is_empty()
            && self
                .needs
                .iter()
                .all(|it| suspended.contains(it.rule.name.as_str()))
        {
            return stays(&suspended);
        }
        let waits = |after: Option<Moment>| match after {
            Some(at) if at > now => format!(
                "; its pods are evicted in {} if it is not ready by then",
                short(at.since(now))
            ),
            Some(_) => "; its pods are evicted as soon as the limits allow it".to_owned(),
            None => "; its pods are not evicted".to_owned(),
        };
        match self.phase {
            NodePhase::Ready { .. } if self.class.held_back => {
                "an extension is silent: the operator reads its evidence once more, and taints the node if it is still silent".to_owned()
            }
            NodePhase::Ready { .. } => "the node takes pods; it is tainted when an extension is not healthy".to_owned(),
            NodePhase::Booting { .. } if self.snapshot.has_permit => {
                "the node has a disruption permit: the taint is removed when it is back and all extensions have reported".to_owned()
            }
            NodePhase::Booting { .. } => format!(
                "the taint is removed when all blocking extensions have reported since the restart{}",
                waits(self.evicts_from())
            ),
            NodePhase::Broken { .. } => format!(
                "the taint is removed when all blocking extensions are healthy{}",
                waits(self.evicts_from())
            ),
            NodePhase::Evicting { .. } => {
                "its pods are being evicted; evictions end and the taint is removed when all blocking extensions are healthy".to_owned()
            }
        }
    }

    /// The conditions of the Node that are not as they should be, if any rule publishes some.
    pub(super) fn conditions(&self) -> Option<Vec<NodeCondition>> {
        let published = self
            .needs
            .iter()
            .filter(|need| need.rule.publish_conditions && !need.rule.dry_run);
        let changed: Vec<_> = published
            .filter_map(|need| {
                let kind = format!("{}/{}", group::EVENKEEL, need.extension()?.name);
                let (status, reason) = match &need.verdict {
                    Verdict::Healthy => ("True", "Well"),
                    Verdict::Unhealthy(_) => ("False", "Bad"),
                    Verdict::Silent(_) => ("False", "Silent"),
                    Verdict::Pending(_) => ("Unknown", "Awaited"),
                    // Nothing is known that was not known before.
                    Verdict::Unconfirmed | Verdict::Unknown => return None,
                };
                let mut known = self.snapshot.conditions.iter();
                let is_so = known.any(|it| *it.kind == *kind && *it.status == *status);
                (!is_so).then(|| NodeCondition {
                    kind,
                    status,
                    reason,
                    message: need.verdict.why().to_owned(),
                })
            })
            .collect();
        (!changed.is_empty()).then_some(changed)
    }
}

/// Where evidence comes from, in few words.
fn source(source: &Source, node: &str) -> String {
    match source {
        Source::Lease {
            namespace,
            name,
            expiry,
        } => {
            let name = name.replace(evenkeel_api::readiness::NODE, node);
            format!("Lease {namespace}/{name}, within {}", short(*expiry))
        }
        Source::Status {
            kind,
            namespace,
            name,
            ..
        } => {
            let name = name.replace(evenkeel_api::readiness::NODE, node);
            format!("{kind} {namespace}/{name}")
        }
        Source::Pods {
            namespace,
            selector,
            ..
        } => {
            format!("pods {} in {namespace}", selector.to_query())
        }
        Source::Condition {
            kind,
            status,
            default_status,
            ..
        } => match default_status.as_str() {
            "" => format!("condition {kind}={status}"),
            default => format!("condition {kind}={status}, {default} if absent"),
        },
        Source::AnyOf(choices) => {
            let choices = choices.iter().map(|it| self::source(&it.source, node));
            choices.collect::<Vec<_>>().join(" or ")
        }
        Source::Probe { check, period, .. } => {
            format!("probe {check} every {}", short(*period))
        }
    }
}

/// A duration in whole seconds, or less if it is short.
fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 60, seconds % 60) {
        (0, 0) => format!("{duration:?}"),
        (0, seconds) => format!("{seconds}s"),
        (minutes, 0) => format!("{minutes}m"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}

impl Feed {
    /// A word for it in logs.
    pub fn describe(&self) -> String {
        match self {
            Self::Leases { namespace } => format!("Leases in {namespace}"),
            Self::Objects {
                kind, namespace, ..
            } => format!("{kind} in {namespace}"),
            Self::Pods {
                namespace,
                selector,
            } => format!("pods {selector} in {namespace}"),
        }
    }
}
