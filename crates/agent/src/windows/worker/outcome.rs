//! The worker's half that acts on a phase: says it, carries it out, and knows when to look again.

use std::sync::Arc;
use std::time::Instant;

use evenkeel_api::names::annotation;
use evenkeel_plan::node::Change;
use evenkeel_plan::phase::{Phase, Reason};
use evenkeel_plan::windows_node::{Told, report};
use jiff::Timestamp;

use super::{Planned, Worker};
use crate::node_event::NodeEvent;
use crate::pending_events;
use crate::slow_steps::Steps;
use crate::turn::{Failure, LAST_WORDS, REBOOT_AGAIN, Trouble, Turn};
use crate::windows::cluster::OwnNode;
use crate::windows::machine::Machine;

impl Worker {
    /// Says what is not said yet, in one request.
    pub(super) async fn report(
        &mut self,
        node: &OwnNode,
        phase: &Phase,
        told: Option<&Told>,
        gives_up: bool,
    ) -> Result<(), Trouble> {
        let missing = self.planned.as_ref().map(|it| it.way.missing.clone());
        let missing = missing.unwrap_or_default();
        let change = report(&node.annotations, phase, told, &missing, gives_up);
        if !change.is_empty() {
            self.cluster
                .change(&change)
                .await
                .map_err(Trouble::Cluster)?;
            if let Some(node) = &mut self.node {
                for (name, value) in change.annotations {
                    match value {
                        Some(value) => _ = node.annotations.insert(name.to_owned(), value),
                        None => _ = node.annotations.remove(name),
                    }
                }
            }
        }
        self.numbers.is_in(phase);
        if self.said.as_ref() != Some(phase) {
            if let Some(tiding) = NodeEvent::of(phase) {
                self.tell(tiding);
            }
            self.said = Some(phase.clone());
        }
        Ok(())
    }

    pub(super) async fn carry_out(&mut self, phase: Phase) -> Result<Turn, Trouble> {
        match phase {
            Phase::Unmanaged | Phase::AwaitDrain { .. } | Phase::Heal { .. } => Ok(self.rest()),
            Phase::Done { .. } => {
                self.failures = 0;
                Ok(self.rest())
            }
            Phase::Degraded(reason) => {
                if self.failure.is_none() {
                    // Nobody may tell us when it is better: a script, a file.
                    self.fail(reason);
                }
                Ok(self.rest())
            }
            Phase::Apply { .. } => {
                if let Some(planned) = self.planned.take() {
                    self.stop_watching().await;
                    // Wherever this ends, that is found out anew.
                    self.standing = None;
                    // Whether there is a proxy decides about trusted roots.
                    self.roots.look();
                    let Planned {
                        wish, kept, way, ..
                    } = planned;
                    let (heart, steps) = (
                        Arc::clone(&self.heart),
                        Steps::after("the plan to be written down"),
                    );
                    let shown = steps.clone();
                    let apply = self.on_machine(move |machine| {
                        machine.apply(&way, &wish, &kept, &mut |progress| {
                            heart.beat();
                            shown.show(progress);
                        })
                    });
                    let applied = steps
                        .told_during(apply, async |text| self.say_reason(text).await)
                        .await?;
                    if !applied {
                        tracing::info!(
                            "the machine has changed since it was looked at; looking again"
                        );
                    }
                }
                Ok(Turn::Again)
            }
            Phase::Reboot => {
                let since = self.going_down.map(|told| told.elapsed());
                if let Some(since) = since.filter(|since| *since < REBOOT_AGAIN) {
                    return Ok(Turn::After(REBOOT_AGAIN.saturating_sub(since)));
                }
                if !self.events.flush(LAST_WORDS).await {
                    let events = self.events.clone();
                    self.on_machine(move |machine| {
                        pending_events::keep(&machine.host, &machine.state, &events);
                        Ok(())
                    })
                    .await?;
                }
                self.on_machine(Machine::reboot).await?;
                self.going_down = Some(Instant::now());
                Ok(Turn::After(REBOOT_AGAIN))
            }
        }
    }

    /// Waits for `what` until `turn`; once that takes long, the Node says so.
    pub(super) async fn wait_for(&mut self, what: &str, turn: Turn) -> Result<Turn, Trouble> {
        match self.waiting.on(what, Timestamp::now()) {
            Err(left) => Ok(turn.within(left)),
            Ok(text) => {
                let said = self.node.as_ref().map(|it| &it.annotations);
                if said.and_then(|it| it.get(annotation::REASON)) != Some(&text) {
                    self.say_reason(text).await;
                }
                Ok(turn)
            }
        }
    }

    /// Says on the Node what is waited for. What cannot be said now is said with the next phase.
    pub(super) async fn say_reason(&self, text: String) {
        tracing::warn!("{text}");
        let change = Change::default().with(annotation::REASON, text);
        if let Err(error) = self.cluster.change(&change).await {
            tracing::warn!(%error, "cannot say on the Node what is waited for");
        }
    }

    /// Until something changes, a failure is tried again, or a script is not quick any more.
    pub(super) fn rest(&self) -> Turn {
        let retry = self.failure.as_ref().map(|failure| {
            let at = failure.again_at;
            at.saturating_duration_since(Instant::now())
        });
        let first = retry.or(self.scripts.patience());
        let roots = self.roots.again_in();
        first
            .into_iter()
            .chain(roots)
            .min()
            .map_or(Turn::Rest, Turn::After)
    }

    /// What failed because of drift may succeed now.
    pub(super) fn look_anew(&mut self) {
        let failed = self.failure.as_ref();
        if failed.is_some_and(|it| it.reason.category == Reason::NOT_UP) {
            self.failure = None;
        }
    }

    /// Whether payload files are lacking, as far as anybody knows.
    pub(super) fn is_short(&self) -> bool {
        let planned = self.planned.as_ref();
        planned.is_none_or(|planned| !planned.way.missing.is_empty())
    }

    pub(super) fn lacks_values(&self) -> bool {
        let planned = self.planned.as_ref();
        planned.is_some_and(|planned| !planned.unknown.is_empty())
    }

    pub(super) fn fail(&mut self, reason: Reason) {
        self.failure = Some(Failure::after(&mut self.failures, reason));
    }

    pub(super) fn tell(&self, tiding: NodeEvent) {
        self.numbers.told(tiding.reason());
        let uid = self.node.as_ref().map_or("", |node| node.uid.as_str());
        tiding.tell(self.cluster.reference(uid), &self.events);
    }
}
