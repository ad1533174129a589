//! What is to be on a node: the taints of the rules that hold it, and whose they are to take off; and whose pods go when. A taint that
//! takes pods away keeps them away at first, until they were evicted.

use std::collections::BTreeSet;
use std::rc::Rc;

use evenkeel_api::readiness::{ReadinessRule, RuleOrigin, RuleTaint, TaintEffect};

use super::evict::EvictionState;
use super::gate::{Gate, Need};
use super::patch::Want;
use super::snapshot::effects;
use super::time::Moment;
use super::verdict::is_agent;

impl Gate {
    /// What is to be on the Node, if it is ours to say; `knows` is whether there is a rule of a name.
    pub(super) fn want(&mut self, knows: impl Fn(&str) -> bool) -> Option<Want> {
        let mut want = Want::default();
        let mut startup = false;
        for name in self.holds.keys() {
            let rule = self.selected.iter().find(|it| it.name == *name);
            // One that is gone holds nothing; one whose own list it is has the taint that all share.
            let Some(rule) = rule else { continue };
            let taint = self.taint_now(&rule.taint);
            if rule.origin == RuleOrigin::Evenkeel {
                want.owners.insert(name.clone());
                if !taint.is_shared() {
                    want.listed.insert(taint.clone());
                }
            }
            startup |= rule.autoscaler_startup_taint;
            if rule.origin == RuleOrigin::Nrc && !rule.suspend {
                self.held_taints.extend(effects(&rule.taint));
            }
            want.taints.insert(taint);
        }
        let snapshot = &self.snapshot;
        // While they are another's, that one takes them off.
        let is_anothers = |it: &Rc<ReadinessRule>| it.suspend && it.origin == RuleOrigin::Nrc;
        if self.selected.iter().any(is_anothers) {
            self.held_taints.clear();
        }
        self.held_taints
            .retain(|it| snapshot.has(it) || want.taints.contains(it));
        want.startup = startup;
        if want.is_held() {
            want.record = self.record();
        }
        let completing = self.completing.iter();
        let completing = completing.filter_map(|it| self.rule(it)).map(|it| &**it);
        want.completed = self.snapshot.with_completed(completing, knows);
        want.managed.clone_from(&self.held_taints);
        want.managed.extend(self.snapshot.listed());
        for rule in self.acting() {
            want.managed.extend(effects(&rule.taint));
        }
        let has_own = self.own_acting().next().is_some();
        // A taint that no rule of ours put there, on a node that no rule of ours is about, is not ours.
        if self.snapshot.owners.is_some() || has_own {
            want.managed.insert(RuleTaint::default());
        }
        (!want.managed.is_empty() || want.is_held() || !want.completed.is_empty()).then_some(want)
    }

    fn rule(&self, name: &str) -> Option<&Rc<ReadinessRule>> {
        self.selected.iter().find(|it| it.name == name)
    }

    /// The taint of a rule as it is to be now: one that takes pods away keeps them away until they were evicted.
    fn taint_now(&self, taint: &RuleTaint) -> RuleTaint {
        let is_over = matches!(&self.eviction, EvictionState::Over(it) if it.contains(taint));
        if taint.effect == TaintEffect::NoExecute && !is_over && !self.snapshot.has(taint) {
            return taint.with(TaintEffect::NoSchedule);
        }
        taint.clone()
    }

    /// When its pods are to be evicted, as far as it goes by its rules.
    pub(super) fn evicts_from(&self) -> Option<Moment> {
        self.evictions().map(|(at, _)| at).min()
    }

    /// The taints that pods must tolerate to stay at `now`.
    pub(super) fn evicts_at(&self, now: Moment) -> BTreeSet<RuleTaint> {
        let due = self.evictions().filter(|(at, _)| *at <= now);
        let due = due.map(|(_, taint)| taint);
        due.chain(self.eviction.taints()).cloned().collect()
    }

    /// When pods that do not tolerate which taint are to be evicted.
    fn evictions(&self) -> impl Iterator<Item = (Moment, &RuleTaint)> {
        let groups = self.groups().filter(|_| !self.snapshot.has_permit);
        groups.filter_map(|group| {
            let first = group.first()?;
            let rule = &first.rule;
            let unhealthy = group.iter().map(Need::evicts_since);
            let since = unhealthy.collect::<Option<Vec<_>>>()?.into_iter().max()?;
            let since = since.max(*self.holds.get(&rule.name)?);
            let counts = first.decides() && !first.extension().is_some_and(is_agent);
            let is_due =
                counts && !rule.evict_after.is_zero() && !self.eviction.covers(&rule.taint);
            is_due.then(|| (since + rule.evict_after, &rule.taint))
        })
    }
}
