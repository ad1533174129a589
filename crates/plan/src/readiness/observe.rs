//! What is seen goes in here: Nodes, evidence, answers to our own questions, and whether our watches are
//! to be trusted. Nothing is decided yet; who has to be looked at again is marked.

use std::collections::BTreeSet;

use evenkeel_api::readiness::{AGENT_EXTENSION, RuleTaint};

use super::evict::EvictionState;
use super::gate::{Gate, Need, NodePhase, OWN_LIST, Silence};
use super::guard::Class;
use super::snapshot::{Evidence, Feed, LeaseSnapshot, NodeSnapshot, PodSnapshot, Sign};
use super::time::Moment;
use super::verdict::{Verdict, is_of};
use super::{READS_AGAIN, Readiness, WRITES_AGAIN, forget};

impl Readiness {
    /// A Node as it is.
    pub fn see_node(&mut self, snapshot: NodeSnapshot, now: Moment) {
        let name = snapshot.name.clone();
        let same = self
            .gates
            .get(&name)
            .is_some_and(|it| it.snapshot.uid == snapshot.uid);
        if !same {
            self.forget_node(&name, now);
        }
        let is_first = !self.gates.contains_key(&name);
        let needs_differ = if let Some(gate) = self.gates.get_mut(&name) {
            let before = gate.snapshot.zone().to_owned();
            let differ = gate.see(snapshot, now);
            if before != gate.snapshot.zone() {
                let class = std::mem::take(&mut gate.class);
                self.guard.count(&before, class, Class::default(), now);
                forget(&mut self.silent, &before, &name);
                forget(&mut self.overdue, &before, &name);
            }
            differ
        } else {
            let gate = Gate::new(snapshot, self.has_begun, now);
            self.gates.insert(name.clone(), gate);
            true
        };
        if let Some(gate) = self.gates.get_mut(&name)
            && needs_differ
            && self.has_begun
        {
            let had_own = gate.needs.iter().any(|it| it.rule.name == OWN_LIST);
            gate.follow(&self.rules, now);
            if is_first {
                gate.adopt(now);
            }
            let has_own = gate.needs.iter().any(|it| it.rule.name == OWN_LIST);
            if had_own || has_own {
                self.find_names();
            }
        }
        self.dirty.insert(name);
    }

    /// A Node is gone.
    pub fn forget_node(&mut self, name: &str, now: Moment) {
        let Some(gate) = self.gates.remove(name) else {
            return;
        };
        let zone = gate.snapshot.zone();
        self.guard.count(zone, gate.class, Class::default(), now);
        forget(&mut self.silent, zone, name);
        forget(&mut self.overdue, zone, name);
        if let Some(wake) = gate.wake {
            self.wakes.remove(&(wake, name.to_owned()));
        }
        if matches!(gate.phase, NodePhase::Evicting { .. }) {
            self.spare.insert(name.to_owned());
        }
        self.dirty.remove(name);
        for (feed, names) in &self.names {
            if let Some(evidence) = self.evidence.get_mut(feed) {
                for (before, after) in names {
                    let name = format!("{before}{name}{after}");
                    if evidence.signs.get(name.as_str()).is_some_and(Sign::is_gone) {
                        evidence.signs.remove(name.as_str());
                    }
                }
            }
        }
    }

    /// A listing of a feed begins.
    pub fn relisting(&mut self, feed: &Feed) {
        if let Some(evidence) = self.evidence.get_mut(feed) {
            evidence.relist();
        }
    }

    /// A listing of a feed is over.
    pub fn listed(&mut self, feed: &Feed, now: Moment) {
        let Some(evidence) = self.evidence.get_mut(feed) else {
            return;
        };
        // What was not seen for a while counts as just seen, and nothing else does.
        evidence.listed(now);
        self.dirty.extend(self.gates.keys().cloned());
    }

    /// The nodes that something in a feed is about.
    fn nodes_of(&self, feed: &Feed, name: &str) -> Vec<String> {
        let Some(names) = self.names.get(feed) else {
            return Vec::new();
        };
        let nodes = names.iter().filter_map(|(before, after)| {
            let node = name
                .strip_prefix(before.as_str())?
                .strip_suffix(after.as_str())?;
            self.gates.contains_key(node).then(|| node.to_owned())
        });
        nodes.collect()
    }

    /// Something that is renewed, as it is.
    pub fn see_lease(&mut self, feed: &Feed, name: &str, snapshot: LeaseSnapshot, now: Moment) {
        let nodes = self.nodes_of(feed, name);
        let holder = snapshot.holder.clone();
        let Some(evidence) = self.evidence.get_mut(feed) else {
            return;
        };
        let (is_renewed, news) = evidence.see_lease(name, snapshot, now);
        let (is_kubelet, is_agent) = (*feed == Feed::kubelets(), *feed == Feed::agents());
        for node in nodes {
            let Some(gate) = self.gates.get_mut(&node) else {
                continue;
            };
            let mut matters = gate.class.held || gate.class.quiet || gate.class.held_back;
            if is_kubelet {
                let is_back = is_renewed && gate.restarted.is_some() && gate.kubelet_back.is_none();
                if is_back {
                    gate.kubelet_back = Some(now);
                }
                if is_renewed && gate.class.quiet {
                    gate.outlived.get_or_insert(now);
                }
                matters = is_back || gate.class.held_back;
            }
            if let Some(report) = &news
                && is_agent
                && is_of(&holder, &node)
                && name == format!("{node}.{AGENT_EXTENSION}")
            {
                // What was said at our first look is where we begin.
                gate.observe(report, now);
                matters = true;
            }
            let is_healthy = |it: &Need| it.verdict == Verdict::Healthy;
            if matters || !gate.needs.iter().all(is_healthy) {
                self.dirty.insert(node);
            }
        }
    }

    /// Something that was renewed is gone.
    pub fn lose_lease(&mut self, feed: &Feed, name: &str) {
        let nodes = self.nodes_of(feed, name);
        if let Some(evidence) = self.evidence.get_mut(feed) {
            if nodes.is_empty() {
                evidence.signs.remove(name);
            } else {
                evidence.lose_lease(name);
            }
        }
        self.dirty.extend(nodes);
    }

    /// A pod as it is.
    pub fn see_pod(&mut self, feed: &Feed, snapshot: PodSnapshot, now: Moment) {
        if let Some(evidence) = self.evidence.get_mut(feed) {
            self.dirty.insert(snapshot.node.clone());
            evidence.see_pod(snapshot, now);
        }
    }

    /// A pod is gone.
    pub fn lose_pod(&mut self, feed: &Feed, node: &str, name: &str) {
        if let Some(evidence) = self.evidence.get_mut(feed) {
            evidence.lose_pod(node, name);
            self.dirty.insert(node.to_owned());
        }
    }

    /// The API server did not answer, or late.
    pub fn lose_watch(&mut self) {
        self.is_away = true;
    }

    /// The API server answers again, in time: everything counts as just seen.
    pub fn regain_watch(&mut self, now: Moment) {
        if self.is_away {
            self.is_away = false;
            self.watched_since = now;
            self.dirty.extend(self.gates.keys().cloned());
        }
    }

    /// Whether silence means nothing at the moment. Of what a rule or a node names, only that rule or
    /// node knows nothing; the Leases of kubelets and agents are everybody's.
    pub fn is_blind(&self) -> bool {
        let all = [Feed::kubelets(), Feed::agents()];
        let mut all = all.iter().filter_map(|feed| self.evidence.get(feed));
        self.is_away || all.any(Evidence::is_stale)
    }

    /// What was written on a node is there, or could not be written.
    pub fn written(&mut self, node: &str, is_done: bool, now: Moment) {
        if let Some(gate) = self.gates.get_mut(node) {
            gate.busy = false;
            if is_done {
                self.dirty.insert(node.to_owned());
            } else {
                self.wake(node, now + WRITES_AGAIN);
            }
        }
    }

    /// No pod is left on a node that does not tolerate these taints.
    pub fn evicted(&mut self, node: &str, taints: &BTreeSet<RuleTaint>) {
        if let Some(gate) = self.gates.get_mut(node)
            && matches!(&gate.eviction, EvictionState::Running(it) if it == taints)
        {
            gate.eviction = EvictionState::Over(taints.clone());
            self.dirty.insert(node.to_owned());
        }
    }

    /// What a node was silent about was read fresh: what is there now, nothing if it is gone.
    pub fn confirmed(
        &mut self,
        node: &str,
        found: &[(Feed, String, Option<LeaseSnapshot>)],
        now: Moment,
    ) {
        let mut is_stale = false;
        for (feed, name, fresh) in found {
            let sign = self
                .evidence
                .get(feed)
                .and_then(|it| it.signs.get(name.as_str()));
            let agrees = sign.map_or(fresh.is_none(), |it| it.is_as(fresh.as_ref()));
            if !agrees {
                is_stale = true;
                self.relisting(feed);
                self.relist.insert(feed.clone());
            }
        }
        if let Some(gate) = self.gates.get_mut(node) {
            let is_quiet = self.guard.is_quiet(gate.snapshot.zone(), now);
            let is_enough = !is_quiet || gate.is_outlived(now).is_ok();
            gate.silence = if is_enough && !is_stale && !self.is_away {
                Silence::Confirmed
            } else {
                Silence::Unasked
            };
            self.dirty.insert(node.to_owned());
        }
    }

    /// What a node was silent about may not be read: nothing is made of the silence of that watch for a
    /// while.
    pub fn unreadable(&mut self, node: &str, feed: &Feed, now: Moment) {
        if let Some(evidence) = self.evidence.get_mut(feed) {
            evidence.unread_until = now + READS_AGAIN;
        }
        self.not_confirmed(node);
    }

    /// It could not be read.
    pub fn not_confirmed(&mut self, node: &str) {
        if let Some(gate) = self.gates.get_mut(node) {
            gate.silence = Silence::Unasked;
            self.dirty.insert(node.to_owned());
        }
    }
}
