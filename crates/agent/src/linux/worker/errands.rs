//! The worker's half that waits for the machine: where it stands, what leads on, healing, going.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_api::names::annotation;
use evenkeel_host::Error;
use evenkeel_host::verify::Finding;
use evenkeel_plan::machine::Plan;
use evenkeel_plan::phase::OnDrift;

use super::{Preflight, Worker};
use crate::linux::drift::Drift;
use crate::linux::drift_watcher::DriftWatcher;
use crate::linux::machine::{Config, Machine};
use crate::linux::search::Search;
use crate::node_event::NodeEvent;
use crate::pending_events;
use crate::slow_steps::Steps;
use crate::turn::{Trouble, Turn, blocking, reason};

impl Worker {
    /// Finds out where the machine stands if that is not known, and watches it.
    pub(super) async fn settle(&mut self, on_drift: OnDrift) -> Result<(), Trouble> {
        if self.standing.is_some() {
            if self.on_drift == on_drift {
                return Ok(());
            }
            if let Some(lookout) = self.lookout.take() {
                blocking(move || lookout.stop()).await?;
            }
        }
        let mut standing = self.on_machine(Machine::settle).await?;
        if standing.has_booted {
            self.logbook.reboots += 1;
            self.keep_logbook().await?;
        }
        self.forced = self.on_machine(Machine::is_forced).await?;
        self.drift = Drift::default();
        self.on_drift = on_drift;
        if !standing.awaits_boot {
            let events = self.events.clone();
            self.on_machine(move |machine| {
                pending_events::tell(&machine.host, &machine.state, &events);
                Ok(())
            })
            .await?;
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
                        self.drift.know(finding);
                    }
                }
            }
            let (machine, keys) = (Arc::clone(&self.machine), self.keys.clone());
            let targets = standing.targets.clone();
            let started = blocking(move || DriftWatcher::start(machine, targets, on_drift, keys));
            self.lookout = Some(started.await?.map_err(|error| reason(&error))?);
            if let Some(config) = &standing.config {
                let tiding = NodeEvent::watching(config, standing.targets.len());
                self.tell(tiding);
            }
        }
        self.standing = Some(standing);
        Ok(())
    }

    /// Leaves machine and Node to whoever tells them to run the configuration `name`: nothing is written, healed,
    /// drained or booted, nothing is watched, and what an earlier run left in the middle stays as it is.
    pub(super) async fn keep_off(&mut self, name: &str, why: &str) -> Result<Turn, Trouble> {
        if self.foreign.as_deref() != Some(name) {
            tracing::warn!("{why}");
            self.foreign = Some(name.to_owned());
        }
        self.standing = None;
        self.search = None;
        self.failure = None;
        self.drift = Drift::default();
        self.numbers.have_drifted(&[]);
        if let Some(lookout) = self.lookout.take() {
            blocking(move || lookout.stop()).await?;
        }
        Ok(Turn::Rest)
    }

    /// Looks again at what could not be put back: somebody may have mended it.
    pub(super) async fn look_again(&mut self) -> Result<(), Trouble> {
        if self
            .standing
            .as_ref()
            .is_some_and(|it| !it.lasting.is_empty())
        {
            let lasting = self.on_machine(Machine::lasting).await?;
            if let Some(standing) = &mut self.standing {
                standing.lasting = lasting;
            }
        }
        Ok(())
    }

    /// What leads to the configuration that was found, and what is in the way of it.
    pub(super) async fn preflight(&self) -> Result<Preflight, Trouble> {
        let config = match self.search.as_ref().and_then(Search::found) {
            Some(Ok(config)) => config,
            Some(Err(reason)) => {
                return Ok(Preflight {
                    plan: Some(Err(reason)),
                    ..Preflight::default()
                });
            }
            None => return Ok(Preflight::default()),
        };
        let targets = self.standing.as_ref().map(|it| it.targets.clone());
        let forced = self.forced;
        self.on_machine(move |machine| {
            let plan = match machine.plan(&config, forced) {
                Ok(plan) => Ok(plan),
                Err(error @ Error::Refused(_)) => Err(reason(&error)),
                Err(error) => return Err(error),
            };
            Ok(Preflight {
                plan: Some(plan),
                findings: machine.drift(&targets.unwrap_or_default()),
            })
        })
        .await
    }

    /// Puts back what was found, and tells of each path.
    pub(super) async fn heal(&mut self, findings: Vec<Finding>) -> Result<(), Trouble> {
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

    /// Goes to `target`. Nobody watches meanwhile.
    pub(super) async fn apply(
        &mut self,
        target: &str,
        config: Arc<Config>,
        plan: Plan,
    ) -> Result<(), Trouble> {
        if let Some(lookout) = self.lookout.take() {
            blocking(move || lookout.stop()).await?;
            let standing = self.standing.as_ref();
            if let Some(current) = standing.and_then(|it| it.config.as_deref()) {
                self.tell(NodeEvent::not_watching(current, target));
            }
        }
        // Wherever this ends, that is found out anew.
        self.standing = None;
        let (forced, heart) = (self.forced, Arc::clone(&self.heart));
        let steps = Steps::after("the plan to be written down");
        let shown = steps.clone();
        let apply = self.on_machine(move |machine| {
            machine.apply(&plan, &config, forced, &mut |progress| {
                heart.beat();
                shown.show(progress);
            })
        });
        let applied = steps
            .told_during(apply, async |text| self.say_reason(&text).await)
            .await?;
        if !applied {
            tracing::info!("the machine has changed since it was looked at; looking again");
        }
        Ok(())
    }

    /// Says on the Node what is waited for. What cannot be said now is said with the next phase.
    async fn say_reason(&self, text: &str) {
        tracing::warn!("{text}");
        let change = BTreeMap::from([(annotation::REASON, text)]);
        if let Err(error) = self.cluster.annotate(&change).await {
            tracing::warn!(%error, "cannot say on the Node what is waited for");
        }
    }

    /// Writes the logbook down, and shows what is in it.
    pub(super) async fn keep_logbook(&self) -> Result<(), Trouble> {
        let logbook = self.logbook.clone();
        self.numbers.show(&logbook);
        self.on_machine(move |machine| {
            machine.keep(&logbook);
            Ok(())
        })
        .await
    }

    /// Asks something of the machine, in a thread that may wait.
    pub(super) async fn on_machine<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Machine) -> evenkeel_host::Result<T> + Send + 'static,
    ) -> Result<T, Trouble> {
        let machine = Arc::clone(&self.machine);
        let done = blocking(move || work(&machine)).await?;
        Ok(done.map_err(|error| reason(&error))?)
    }
}
