//! Restarts of a node: who tells of them, which evidence is from before, and what is written on the
//! Node so that another operator knows it, too. Nothing here compares clocks: a stamp is only ever
//! the same as before, or another one.

use std::collections::BTreeMap;

use evenkeel_api::readiness::{Report, RuleOrigin};

use super::gate::{Gate, Need};
use super::restart_record::{Restart, RestartRecord};
use super::snapshot::NodeSnapshot;
use super::time::Moment;
use super::verdict::Verdict;

/// The condition that a kubelet writes at each of its reports.
const KUBELETS_OWN: &str = "Ready";

impl NodeSnapshot {
    /// All that a condition says, if the Node has it: whatever its writer changes is another text.
    pub(super) fn mark(&self, kind: &str) -> Option<Box<str>> {
        let found = self.conditions.iter().find(|it| *it.kind == *kind)?;
        let mark = format!("{} {} {}", found.status, found.transition, found.heartbeat);
        Some(mark.into())
    }

    fn heartbeat(&self, kind: &str) -> Option<&str> {
        let found = self.conditions.iter().find(|it| *it.kind == *kind);
        found
            .map(|it| &*it.heartbeat)
            .filter(|heartbeat| !heartbeat.is_empty())
    }

    /// Whether the kubelet wrote a condition in the same report as its own: it stamps all that it
    /// writes alike. `before` is the Node before that report.
    fn is_reported_with(&self, kind: &str, before: &Self) -> bool {
        let report = self.heartbeat(KUBELETS_OWN);
        report.is_some()
            && report != before.heartbeat(KUBELETS_OWN)
            && report == self.heartbeat(kind)
    }
}

impl Gate {
    /// Takes note of another boot id that the Node has, before the rest of it.
    pub(super) fn see_boot(&mut self, snapshot: &NodeSnapshot, now: Moment) {
        if !self.is_another_boot(&snapshot.boot_id) {
            return;
        }
        let before = std::mem::take(&mut self.snapshot);
        self.restart(Restart::Machine, now, |kind| {
            // Who tells of the new boot is the kubelet after it: its own conditions are of this boot.
            let is_newer = snapshot.is_reported_with(kind, &before);
            snapshot.mark(kind).filter(|_| !is_newer)
        });
        self.snapshot = before;
    }

    /// Whether somebody tells of a boot that nobody told of yet. The first one is where we begin.
    fn is_another_boot(&mut self, boot: &str) -> bool {
        // The kubelet and the agent tell of the same boot, one after the other.
        if boot.is_empty() || self.boots.iter().any(|it| **it == *boot) {
            return false;
        }
        let is_first = self.boots[0].is_empty();
        self.boots.swap(0, 1);
        self.boots[0] = boot.into();
        !is_first
    }

    /// What the node's agent says: another boot of the machine or another start of its kubelet than
    /// it said before is a restart.
    pub(super) fn observe(&mut self, report: &Report, now: Moment) {
        if !std::mem::replace(&mut self.is_told, true) {
            // It may have said so long ago.
            if *self.boots[0] != *report.boot_id {
                self.boots[1] = report.boot_id.as_str().into();
            }
            self.kubelet_start = report.kubelet_start.as_str().into();
            return;
        }
        let is_rebooted = self.is_another_boot(&report.boot_id);
        let start = report.kubelet_start.as_str();
        let mut is_restarted = false;
        if !start.is_empty() && *self.kubelet_start != *start {
            is_restarted = !self.kubelet_start.is_empty();
            self.kubelet_start = start.into();
        }
        let restart = match (is_rebooted, is_restarted) {
            (true, _) => Restart::Machine,
            (false, true) if self.restarted != Some(now) => Restart::Kubelet,
            (false, _) => return,
        };
        let snapshot = std::mem::take(&mut self.snapshot);
        self.restart(restart, now, |kind| snapshot.mark(kind));
        self.snapshot = snapshot;
    }

    /// It was restarted: what has not changed from `before` is not heard since.
    fn restart(
        &mut self,
        restart: Restart,
        now: Moment,
        before: impl Fn(&str) -> Option<Box<str>>,
    ) {
        self.restarted = Some(now);
        if restart == Restart::Machine {
            self.booted = Some(now);
        }
        self.kubelet_back = None;
        // What it has to be ready within begins anew.
        self.holds.values_mut().for_each(|since| *since = now);
        for need in &mut self.needs {
            let kind = need.condition().map(str::to_owned);
            let mark = kind.as_deref().and_then(&before);
            need.restart(restart, mark);
        }
    }

    /// It is about to go down by our own doing: what its conditions say until then is from before.
    pub(super) fn prepare_to_go_down(&mut self, snapshot: &NodeSnapshot) {
        for need in &mut self.needs {
            need.memory.at_permit = need.condition().and_then(|kind| snapshot.mark(kind));
        }
    }

    /// What is to be written together with the taint.
    pub(super) fn record(&self) -> Option<String> {
        let is_own = |it: &&Need| it.rule.origin == RuleOrigin::Evenkeel;
        let holds = |it: &&Need| it.decides() && self.holds.contains_key(&it.rule.name);
        let deciding = || self.needs.iter().filter(is_own).filter(holds);
        let is_waiting = deciding().any(|it| matches!(it.verdict, Verdict::Pending(_)));
        let mut record = RestartRecord {
            silent: !is_waiting && !self.snapshot.has_permit && deciding().any(Need::is_missed),
            before: BTreeMap::new(),
        };
        if is_waiting || self.snapshot.has_permit {
            let before = deciding().filter_map(|need| {
                let at_permit = need.memory.at_permit.as_ref();
                let at_permit = at_permit.filter(|_| self.snapshot.has_permit);
                let mark = at_permit.or(need.memory.before.as_ref())?;
                Some((need.key()?, mark.clone()))
            });
            record.before = before.collect();
        }
        record.into_text()
    }
}
