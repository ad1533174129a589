//! What a condition of the Node says of an extension. A condition that was once written as it should be
//! is healthy and stays so, unless its rule limits its age; after a restart of the machine it counts once
//! its writer has changed anything of it.

use std::time::Duration;

use super::verdict::{Case, Finding, Memory, Verdict};

/// After this long under the new kubelet, one that nobody has written since the reboot counts as it is: kubelets and
/// node problem detectors leave no more than this between two heartbeats.
const UNTOLD: Duration = Duration::from_mins(5);

/// One that the Node does not have counts as its default.
fn absent_as(kind: &str, status: &str, default: &str) -> Finding {
    if status == default {
        return Verdict::Healthy.into();
    }
    let why =
        format!("the Node has no condition {kind}, which counts as {default} and not {status}");
    Finding {
        absent: true,
        ..Verdict::Unhealthy(why.into()).into()
    }
}

impl Case<'_> {
    pub(super) fn condition(
        &self,
        memory: &mut Memory,
        kind: &str,
        status: &str,
        (freshness, default): (Duration, &str),
    ) -> Finding {
        let mut conditions = self.node.conditions.iter();
        let found = conditions.find(|it| *it.kind == *kind);
        let Some((found, mark)) = found.zip(self.node.mark(kind)) else {
            let is_yet_to_come =
                self.awaits_boot(memory).is_some() && memory.before.is_none() && !memory.was_there;
            // Coming back is a change, too.
            memory.answered = true;
            if !default.is_empty() {
                return absent_as(kind, status, default);
            }
            if is_yet_to_come {
                return Verdict::Pending(format!("the Node has no condition {kind} yet").into())
                    .into();
            }
            return Finding {
                absent: true,
                ..Verdict::Unhealthy(format!("the Node has no condition {kind}").into()).into()
            };
        };
        memory.was_there = true;
        memory.answered |= memory.before.as_ref() != Some(&mark);
        let (said, first, changed) = memory
            .said
            .get_or_insert_with(|| (mark.clone(), self.now, None));
        if *said != mark {
            *said = mark;
            *changed = Some(self.now);
        }
        let (first, changed) = (*first, *changed);
        let last = changed.unwrap_or(first);
        let with = |verdict: Verdict| Finding {
            last: Some(last),
            ..Finding::from(verdict)
        };
        if *found.status != *status {
            return with(Verdict::Unhealthy(
                format!("condition {kind} is {}, not {status}", found.status).into(),
            ));
        }
        if freshness.is_zero() {
            return self.written_once(memory, kind, with(Verdict::Healthy));
        }
        let restart = self.awaits(memory).or(self.awaits_boot(memory));
        if restart.is_some() && !memory.answered && !memory.was_silent {
            let why = format!("condition {kind} had no heartbeat since the restart");
            return with(Verdict::Pending(why.into()));
        }
        let from = self.counted(last.max(memory.since));
        let (half, over) = (from + freshness * 3 / 4, from + freshness);
        if self.now >= over {
            let why = format!("condition {kind} had no heartbeat for {freshness:?}");
            return Finding {
                quiet: true,
                ..with(Verdict::Silent(why.into()))
            };
        }
        if self.is_found && changed.is_none() {
            return Finding {
                next: Some(over),
                ..with(Verdict::Unknown)
            };
        }
        Finding {
            next: Some(if self.now < half { half } else { over }),
            quiet: self.now >= half,
            ..with(Verdict::Healthy)
        }
    }

    /// Whatever it says now, also from before a restart.
    pub(super) fn as_it_stands(&self, kind: &str, status: &str, default: &str) -> Finding {
        let mut conditions = self.node.conditions.iter();
        match conditions.find(|it| *it.kind == *kind) {
            None => absent_as(kind, status, default),
            Some(found) if *found.status == *status => Verdict::Healthy.into(),
            Some(found) => {
                let why = format!("condition {kind} is {}, not {status}", found.status);
                Verdict::Unhealthy(why.into()).into()
            }
        }
    }

    /// One that need not be written again, except after a restart of the machine.
    fn written_once(&self, memory: &Memory, kind: &str, healthy: Finding) -> Finding {
        if self.awaits_boot(memory).is_none() || memory.answered {
            return healthy;
        }
        // Its writer may write the same again, or never writes what is so already: nothing tells.
        let settled = self.kubelet_back.map(|back| back + UNTOLD);
        if settled.is_some_and(|at| self.now >= at) {
            return Finding {
                unclear: true,
                ..healthy
            };
        }
        let why = format!(
            "condition {kind} was not written since the reboot; without a write it counts {} minutes after the kubelet is back",
            UNTOLD.as_secs() / 60
        );
        Finding {
            next: settled,
            last: healthy.last,
            ..Verdict::Pending(why.into()).into()
        }
    }
}
