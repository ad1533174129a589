//! Errands of a Linux node's worker that wait for the machine: watching it, what leads to a configuration, healing.

use std::sync::Arc;

use evenkeel_host::Error;
use evenkeel_host::verify::Finding;
use evenkeel_plan::machine::Plan;
use evenkeel_plan::machine::phase::{OnDrift, Reason};

use super::Linux;
use crate::linux::config_source::ConfigSource;
use crate::linux::drift::Drift;
use crate::linux::drift_watcher;
use crate::linux::machine::Machine;
use crate::machine::reason;
use crate::node_event::NodeEvent;
use crate::reconcile::{ReconcileError, blocking};
use crate::worker::Worker;

impl Worker<Linux> {
    /// Finds out where the machine stands if that is not known, and watches it.
    pub(super) async fn watch(&mut self, on_drift: OnDrift) -> Result<(), ReconcileError> {
        if self.standing.is_some() {
            if self.system.on_drift == on_drift {
                return Ok(());
            }
            self.stop_watching().await;
        }
        let mut standing = self.settle().await?;
        if standing.has_booted {
            self.system.history.reboots += 1;
            self.keep_history().await?;
        }
        self.system.forced = self.on_machine(Machine::is_forced).await?;
        self.system.drift = Drift::default();
        self.system.on_drift = on_drift;
        if !standing.awaits_boot {
            standing.lasting = self.on_machine(Machine::lasting).await?;
            for words in &standing.lasting {
                self.tell(NodeEvent::not_as_declared(words));
            }
            let targets = standing.targets.clone();
            let findings = self
                .on_machine(move |machine| Ok(machine.drift(&targets)))
                .await?;
            match on_drift {
                OnDrift::Heal => self.heal(findings).await?,
                OnDrift::Degrade => {
                    for finding in findings {
                        let shown = finding.clone();
                        let difference = self
                            .on_machine(move |machine| Ok(machine.difference(&shown)))
                            .await?;
                        self.tell(NodeEvent::drifted(&finding, &difference));
                        self.system.drift.know(finding);
                    }
                }
            }
            let (machine, triggers) = (Arc::clone(&self.machine), self.triggers.clone());
            let targets = standing.targets.clone();
            let started =
                blocking(move || drift_watcher::start(machine, targets, on_drift, triggers));
            self.drift_watcher = Some(started.await?.map_err(|error| reason(&error))?);
            if let Some(config) = &standing.config {
                self.tell(NodeEvent::watching(config, standing.targets.len()));
            }
        }
        self.standing = Some(standing);
        Ok(())
    }

    /// Leaves machine and Node to whoever tells them to run the configuration `name`: nothing is written, healed,
    /// drained or booted, nothing is watched, and what an earlier run left in the middle stays as it is.
    pub(super) async fn keep_off(&mut self, name: &str, why: &str) {
        if self.system.foreign.as_deref() != Some(name) {
            tracing::warn!("{why}");
            self.system.foreign = Some(name.to_owned());
        }
        self.standing = None;
        self.system.source = None;
        self.failure = None;
        self.system.drift = Drift::default();
        self.system.metrics.have_drifted(&[]);
        self.stop_watching().await;
    }

    /// Looks again at what could not be healed: somebody may have mended it.
    pub(super) async fn look_again(&mut self) -> Result<(), ReconcileError> {
        let standing = self.standing.as_ref();
        if standing.is_some_and(|it| !it.lasting.is_empty()) {
            let lasting = self.on_machine(Machine::lasting).await?;
            if let Some(standing) = &mut self.standing {
                standing.lasting = lasting;
            }
        }
        Ok(())
    }

    /// What leads to the configuration that was found, or why nothing does; and what drifted and is in the way.
    pub(super) async fn preflight(
        &mut self,
    ) -> Result<Option<Result<Plan, Reason>>, ReconcileError> {
        self.system.in_the_way.clear();
        let config = match self.system.source.as_ref().and_then(ConfigSource::found) {
            Some(Ok(config)) => config,
            Some(Err(reason)) => return Ok(Some(Err(reason))),
            None => return Ok(None),
        };
        let targets = self.standing.as_ref().map(|it| it.targets.clone());
        let forced = self.system.forced;
        let found = self.on_machine(move |machine| {
            let plan = match machine.plan(&config, forced) {
                Ok(plan) => Ok(plan),
                Err(error @ Error::Refused(_)) => Err(reason(&error)),
                Err(error) => return Err(error),
            };
            Ok((plan, machine.drift(&targets.unwrap_or_default())))
        });
        let (plan, findings) = found.await?;
        self.system.in_the_way = findings;
        Ok(Some(plan))
    }

    /// Heals what was found, with an Event for each path.
    pub(super) async fn heal(&mut self, findings: Vec<Finding>) -> Result<(), ReconcileError> {
        for finding in findings {
            let (difference, healed) = {
                let finding = finding.clone();
                self.on_machine(move |machine| {
                    let difference = machine.difference(&finding);
                    Ok((difference, machine.put_back(&finding)))
                })
                .await?
            };
            match healed {
                Ok(()) => self.tell(NodeEvent::healed(&finding, &difference)),
                Err(error) => {
                    self.tell(NodeEvent::not_healed(&finding, &error.with_causes()));
                    return Err(reason(&error).into());
                }
            }
        }
        Ok(())
    }

    /// Writes the history down, and shows what is in it.
    pub(super) async fn keep_history(&self) -> Result<(), ReconcileError> {
        let history = self.system.history.clone();
        self.system.metrics.show(&history);
        self.on_machine(move |machine| {
            machine.keep(&history);
            Ok(())
        })
        .await
    }
}
