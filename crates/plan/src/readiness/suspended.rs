//! A suspended rule leaves everything as it is: it taints nobody, lets nobody go and evicts nothing, and goes on to report. When it
//! is resumed it begins anew: nothing that happened meanwhile counts as time that a node was not ready.

use std::collections::BTreeSet;

use super::gate::{Gate, NodePhase};
use super::verdict::is_agent;

impl Gate {
    /// The suspended rules that hold it: those that did, here or as it is written on the Node. A taint that nobody has claimed yet
    /// came with the Node, and stays for them, too.
    pub(super) fn kept(&self) -> BTreeSet<String> {
        let owners = self.snapshot.owners.as_deref();
        let is_written = |rule: &str| owners.is_none_or(|it| it.split(',').any(|it| it == rule));
        let rules = self.needs.iter().map(|it| &it.rule);
        let suspended = rules.filter(|it| it.suspend && !it.dry_run);
        let suspended = suspended.filter(|it| self.snapshot.has_of(it));
        let kept = suspended.filter(|it| self.holds.contains_key(&it.name) || is_written(&it.name));
        kept.map(|it| it.name.clone()).collect()
    }

    /// Evictions end with the last rule that asks for them.
    pub(super) fn end_evictions(&mut self) {
        let mut needs = self.needs.iter();
        let evicts = needs.any(|need| {
            let is_held = self.holds.contains_key(&need.rule.name);
            let counts = need.decides() && !need.extension().is_some_and(is_agent);
            is_held && counts && !need.rule.evict_after.is_zero()
        });
        if let NodePhase::Evicting { since } = self.phase
            && !evicts
        {
            self.phase = NodePhase::Broken { since };
        }
    }

    /// The suspended rules that are about it, for people.
    pub(super) fn suspended(&self) -> BTreeSet<&str> {
        let rules = self.needs.iter().map(|it| &it.rule);
        let suspended = rules.filter(|it| it.suspend && !it.dry_run);
        suspended.map(|it| it.name.as_str()).collect()
    }
}
