//! What follows from what was seen: who is tainted and who is not any more, whose silence is
//! confirmed first, and whose pods are evicted.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::names::label;
use evenkeel_api::readiness::{AGENT_EXPIRY, RuleTaint, Source};

use super::evict::EvictionState;
use super::gate::{Gate, NodePhase, Silence};
use super::patch::TaintChange;
use super::snapshot::Feed;
use super::time::Moment;
use super::verdict::{Verdict, place};
use super::{EVICTS_AGAIN, Readiness, ReadinessAction, forget};

impl Readiness {
    /// When [`Readiness::decide`] is to be called, even if nothing is seen.
    pub fn next(&self) -> Option<Moment> {
        let wake = self.wakes.first().map(|(at, _)| *at);
        wake.into_iter().chain(self.limits_wake).min()
    }

    pub(super) fn wake(&mut self, node: &str, at: Moment) {
        let Some(gate) = self.gates.get_mut(node) else {
            return;
        };
        if let Some(before) = gate.wake.replace(at) {
            self.wakes.remove(&(before, node.to_owned()));
        }
        self.wakes.insert((at, node.to_owned()));
    }

    /// What is to be done now.
    pub fn decide(&mut self, now: Moment) -> Vec<ReadinessAction> {
        let mut actions = Vec::new();
        if !self.has_begun {
            return actions;
        }
        while let Some((at, node)) = self.wakes.first().cloned().filter(|(at, _)| *at <= now) {
            self.wakes.remove(&(at, node.clone()));
            if let Some(gate) = self.gates.get_mut(&node) {
                gate.wake = None;
            }
            self.dirty.insert(node);
        }
        let is_blind = self.is_blind();
        for node in std::mem::take(&mut self.dirty) {
            self.look_at(&node, is_blind, now, &mut actions);
        }
        let spared = std::mem::take(&mut self.spare);
        actions.extend(spared.into_iter().map(ReadinessAction::Spare));
        self.limits_wake = None;
        if !is_blind {
            self.ask_the_silent(now, &mut actions);
            self.evict(now, &mut actions);
        }
        actions.extend(
            std::mem::take(&mut self.relist)
                .into_iter()
                .map(ReadinessAction::Relist),
        );
        actions
    }

    /// Looks at one node.
    fn look_at(
        &mut self,
        node: &str,
        is_blind: bool,
        now: Moment,
        actions: &mut Vec<ReadinessAction>,
    ) {
        let Some(gate) = self.gates.get_mut(node) else {
            return;
        };
        let was_evicting = matches!(gate.phase, NodePhase::Evicting { .. });
        let was_held = !gate.holds.is_empty();
        let judgement = gate.judge(&self.evidence, self.watched_since, now);
        let zone = gate
            .snapshot
            .labels
            .get(label::ZONE)
            .unwrap_or_default()
            .to_owned();
        self.guard.count(&zone, gate.class, judgement.class, now);
        if !judgement.class.quiet {
            gate.outlived = None;
        }
        gate.class = judgement.class;
        let is_evicting = matches!(gate.phase, NodePhase::Evicting { .. });
        if was_evicting && !is_evicting {
            self.spare.insert(node.to_owned());
        }
        keep(&mut self.silent, &zone, node, judgement.silent);
        let mut next = judgement.next;
        let mut is_overdue = false;
        if let Some(due) = gate.evicts_from() {
            let seen_since = self.watched_since.max(gate.seen_since(&self.evidence));
            let settled = seen_since + EVICTS_AGAIN.min(due.since(gate.phase.since()));
            let due = due.max(settled);
            is_overdue = now >= due;
            if !is_overdue {
                next = next.into_iter().chain([due]).min();
            }
        }
        keep(&mut self.overdue, &zone, node, is_overdue);
        if !gate.busy {
            let want = gate.want(|name| self.rules.contains_key(name));
            let patch = want.as_ref().and_then(|it| it.patch(&gate.snapshot));
            if let (Some(want), Some(patch)) = (want, patch) {
                gate.busy = true;
                let is_held = !gate.holds.is_empty();
                let exposed = std::mem::take(&mut gate.exposed) && is_held;
                let is_there = |it: &RuleTaint| {
                    gate.snapshot
                        .taints
                        .iter()
                        .any(|has| has["key"] == it.key.as_str())
                };
                let is_news = is_held && !(was_held && want.taints.iter().all(is_there));
                actions.push(ReadinessAction::Write {
                    node: node.to_owned(),
                    patch,
                    change: if want.taints(&gate.snapshot) == gate.snapshot.taints {
                        TaintChange::Record
                    } else if is_news {
                        TaintChange::Taint(gate.why())
                    } else if want.is_held() {
                        TaintChange::Record
                    } else {
                        TaintChange::Untaint
                    },
                    exposed,
                });
            } else if let Some(conditions) = gate.conditions() {
                gate.busy = true;
                actions.push(ReadinessAction::Publish {
                    node: node.to_owned(),
                    conditions,
                });
            }
        }
        // While we are blind nothing is decided on silence; when we see again, all are looked at.
        match next.filter(|_| !is_blind || !judgement.silent) {
            Some(at) => self.wake(node, at.max(now)),
            None => {
                if let Some(at) = gate.wake.take() {
                    self.wakes.remove(&(at, node.to_owned()));
                }
            }
        }
    }

    /// Those that are silent are asked, as far as the limits allow it.
    ///
    /// If most of a zone is silent, the way to it may be: unless a node's kubelet is heard. One whose
    /// kubelet is not is asked, too, after the others: that tells whether it is we who do not hear.
    fn ask_the_silent(&mut self, now: Moment, actions: &mut Vec<ReadinessAction>) {
        for (zone, nodes) in &self.silent {
            let is_quiet = self.guard.is_quiet(zone, now);
            let mut asked: Vec<(bool, &String)> = Vec::new();
            for node in nodes {
                let Some(gate) = self
                    .gates
                    .get(node)
                    .filter(|it| it.silence == Silence::Unasked && !it.busy)
                else {
                    continue;
                };
                let outlived = gate.is_outlived(now);
                if let Err(Some(at)) = outlived {
                    self.limits_wake = self.limits_wake.into_iter().chain([at]).min();
                }
                asked.push((is_quiet && outlived.is_err(), node));
            }
            asked.sort();
            for (_, node) in asked {
                if let Err(at) = self.guard.allows_silence(zone, now) {
                    self.limits_wake = self.limits_wake.into_iter().chain([at]).min();
                    break;
                }
                if let Some(gate) = self.gates.get_mut(node) {
                    gate.silence = Silence::Asked;
                    actions.push(ReadinessAction::Confirm {
                        node: node.clone(),
                        places: gate.silent_places(),
                    });
                }
            }
        }
    }

    /// Pods of those that are not ready for long are evicted, as far as the limits allow it.
    fn evict(&mut self, now: Moment, actions: &mut Vec<ReadinessAction>) {
        let mut begun = Vec::new();
        for (zone, nodes) in &self.overdue {
            for node in nodes {
                match self.guard.allows_eviction(zone, now) {
                    Ok(()) => begun.push((zone.clone(), node.clone())),
                    Err(again) => {
                        self.limits_wake = self.limits_wake.into_iter().chain(again).min();
                        break;
                    }
                }
            }
        }
        for (zone, node) in begun {
            forget(&mut self.overdue, &zone, &node);
            if let Some(gate) = self.gates.get_mut(&node) {
                gate.phase = NodePhase::Evicting {
                    since: gate.phase.since(),
                };
                let taints = gate.evicts_at(now);
                gate.eviction = EvictionState::Running(taints.clone());
                actions.push(ReadinessAction::Evict { node, taints });
            }
        }
    }
}

impl Gate {
    /// Whether its kubelet was heard, and what is silent was not for its whole time after that; else
    /// from when on, if the kubelet was heard at all.
    pub(super) fn is_outlived(&self, now: Moment) -> Result<(), Option<Moment>> {
        let outlived = self.outlived.ok_or(None)?;
        let silent = self
            .needs
            .iter()
            .filter(|it| matches!(it.verdict, Verdict::Silent(_)));
        let longest = silent.filter_map(|it| match &it.extension()?.source {
            Source::Lease { expiry, .. } => Some(*expiry),
            Source::Condition { freshness, .. } => Some(*freshness),
            _ => Some(AGENT_EXPIRY),
        });
        let from = outlived + longest.max().unwrap_or_default();
        if now >= from { Ok(()) } else { Err(Some(from)) }
    }

    /// What it is silent about.
    fn silent_places(&self) -> Vec<(Feed, String)> {
        let silent = self
            .needs
            .iter()
            .filter(|it| matches!(it.verdict, Verdict::Silent(_)));
        let places: BTreeSet<_> = silent
            .filter_map(|it| place(it.extension()?, &self.snapshot.name))
            .collect();
        places.into_iter().collect()
    }
}

fn keep(all: &mut BTreeMap<String, BTreeSet<String>>, zone: &str, node: &str, is_in: bool) {
    if is_in {
        all.entry(zone.to_owned())
            .or_default()
            .insert(node.to_owned());
    } else {
        forget(all, zone, node);
    }
}
