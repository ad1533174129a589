//! The worker's half that waits for the machine: where it stands, what it shall be brought to, what
//! leads there.

use std::sync::Arc;

use evenkeel_api::version::Version;
use evenkeel_plan::phase::Reason;
use evenkeel_plan::windows_node::Told;

use super::{Planned, Worker};
use crate::pending_events;
use crate::slow_steps::Steps;
use crate::turn::{Trouble, blocking, reason};
use crate::windows::cluster::OwnNode;
use crate::windows::drift::Drift;
use crate::windows::drift_watcher::DriftWatcher;
use crate::windows::machine::{Machine, Wish};
use crate::windows::search::Search;

/// What a node shall be brought to.
pub(super) enum Wanting {
    /// This is waited for: the cluster has not said yet, or something is about to be known that it needs.
    NotYet(String),
    /// What it says will not do.
    Unfit(Reason),
    /// It is planned.
    Planned,
}

impl Worker {
    pub(super) async fn stop_watching(&mut self) {
        if let Some(lookout) = self.lookout.take()
            && let Err(reason) = blocking(move || lookout.stop()).await
        {
            tracing::error!("{}", reason.text);
        }
        self.numbers.nothing_drifts();
        self.drift = Drift::default();
    }

    /// Finds out where the machine stands if that is not known, and watches it.
    pub(super) async fn settle(&mut self) -> Result<(), Trouble> {
        if self.standing.is_none() {
            self.stop_watching().await;
            // It may have much to copy, to a slow disk.
            let steps = Steps::after("payload files to be kept in the store");
            let standing = steps
                .told_during(self.on_machine(Machine::settle), async |text| {
                    self.say_reason(text).await;
                })
                .await?;
            if !standing.awaits_boot {
                let events = self.events.clone();
                self.on_machine(move |machine| {
                    pending_events::tell(&machine.host, &machine.state, &events);
                    Ok(())
                })
                .await?;
            }
            self.standing = Some(standing);
            self.planned = None;
        }
        if let (None, Some(standing)) = (&self.lookout, &self.standing) {
            let (machine, keys) = (Arc::clone(&self.machine), self.keys.clone());
            let targets = standing.targets.clone();
            let started = blocking(move || DriftWatcher::start(machine, targets, keys)).await?;
            self.lookout = Some(started.map_err(|error| reason(&error))?);
        }
        Ok(())
    }

    /// Finds out what the node shall be brought to, and plans that.
    pub(super) async fn want(&mut self, node: &OwnNode, told: &Told) -> Result<Wanting, Trouble> {
        let version: Version = match told.version.parse() {
            Ok(version) => version,
            Err(error) => return Ok(Wanting::Unfit(super::refused(&error))),
        };
        let name = version.config_map_name();
        let kept = self.on_machine(Machine::kept).await?;
        let search = match self.search.take() {
            Some(search) if search.is_for(&name) => search,
            _ => Search::start(&self.cluster, &name, self.keys.clone()),
        };
        let found = self.search.insert(search).found(told, kept);
        let (services, kept) = match found {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Wanting::NotYet(format!("ConfigMap {name}"))),
            Err(reason) => return Ok(Wanting::Unfit(reason)),
        };
        let commands = self.scripts.commands(&services, &node.object, &told.hash);
        if commands.waits && self.scripts.patience().is_some() {
            return Ok(Wanting::NotYet(self.scripts.running()));
        }
        let is_whole = commands.missing.is_empty() && !commands.waits;
        let wish = Wish {
            services,
            commands: commands.found,
            hash: is_whole.then(|| told.hash.clone()),
        };
        let planned = self.planned.take();
        let planned = planned.filter(|it| {
            it.wish == wish && it.unknown == commands.missing && it.waits == commands.waits
        });
        let planned = if let Some(planned) = planned {
            planned
        } else {
            let way = self.on_machine({
                let wish = wish.clone();
                move |machine| machine.way(&wish)
            });
            Planned {
                way: way.await?,
                wish,
                kept,
                unknown: commands.missing,
                waits: commands.waits,
            }
        };
        self.planned = Some(planned);
        Ok(Wanting::Planned)
    }

    /// Brings the trusted roots to the cluster's bundle. Whatever comes of it, services go on.
    pub(super) async fn keep_roots(&mut self) {
        let Some(published) = self.roots.due() else {
            return;
        };
        let kept = self.on_machine(move |machine| machine.trust(&published, None));
        let tidings = match kept.await {
            Ok(trusted) => {
                self.numbers.trusts(trusted.counts);
                match trusted.synced {
                    Ok(synced) => {
                        self.numbers.wrote(synced.writes);
                        self.roots.done(&synced, &trusted.bundle)
                    }
                    Err(error) => {
                        let failed = self.roots.failed(reason(&error).text);
                        failed.into_iter().collect()
                    }
                }
            }
            Err(Trouble::Machine(reason)) => self.roots.failed(reason.text).into_iter().collect(),
            Err(Trouble::Cluster(error)) => {
                self.roots.failed(error.to_string()).into_iter().collect()
            }
        };
        for tiding in tidings {
            self.tell(tiding);
        }
    }

    pub(super) async fn on_machine<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Machine) -> evenkeel_host::Result<T> + Send + 'static,
    ) -> Result<T, Trouble> {
        let machine = Arc::clone(&self.machine);
        let done = blocking(move || work(&machine)).await?;
        Ok(done.map_err(|error| reason(&error))?)
    }
}
