//! Errands of a Windows node's worker that wait for the machine or the cluster: watching, what it shall be brought to,
//! trusted roots.

use std::sync::Arc;

use evenkeel_api::names::annotation;
use evenkeel_api::windows::version::Version;
use evenkeel_plan::machine::phase::Reason;
use evenkeel_plan::windows::windows_node::Told;
use jiff::Timestamp;

use super::{Planned, Windows};
use crate::machine::reason;
use crate::own_node::OwnNode;
use crate::reconcile::{ReconcileError, Requeue, blocking};
use crate::windows::machine::{DesiredServices, Machine};
use crate::windows::services_source::ServicesSource;
use crate::windows::{cluster, drift_watcher};
use crate::worker::{Look, Worker};

/// What a node shall be brought to.
pub(super) enum Wanting {
    /// This is waited for: the cluster has not said yet, or something is about to be known that it needs.
    NotYet(String),
    /// What it says will not do.
    Unfit(Reason),
    /// It is planned.
    Planned,
}

impl Worker<Windows> {
    /// Finds out where the machine stands if that is not known, and watches it.
    pub(super) async fn watch(&mut self) -> Result<(), ReconcileError> {
        if self.standing.is_none() {
            self.stop_watching().await;
            self.standing = Some(self.settle().await?);
            self.system.planned = None;
        }
        if let (None, Some(standing)) = (&self.drift_watcher, &self.standing) {
            let (machine, triggers) = (Arc::clone(&self.machine), self.triggers.clone());
            let targets = standing.targets.clone();
            let started = blocking(move || drift_watcher::start(machine, targets, triggers));
            self.drift_watcher = Some(started.await?.map_err(|error| reason(&error))?);
        }
        Ok(())
    }

    /// Finds out what the node shall be brought to, and plans that.
    pub(super) async fn want(
        &mut self,
        node: &OwnNode,
        told: &Told,
    ) -> Result<Wanting, ReconcileError> {
        let version: Version = match told.version.parse() {
            Ok(version) => version,
            Err(error) => {
                let error: evenkeel_api::windows::version::NotAVersion = error;
                let unfit = Reason::new(error.category(), error.to_string());
                return Ok(Wanting::Unfit(unfit));
            }
        };
        let name = version.config_map_name();
        let kept = self.on_machine(Machine::kept).await?;
        let source = match self.system.source.take() {
            Some(source) if source.is_for(&name) => source,
            _ => {
                let (client, namespace) = (&self.own_node.client, &self.system.namespace);
                let triggers = self.triggers.clone();
                let watch = cluster::watch_services(client, namespace, &name, triggers);
                ServicesSource::new(&name, watch)
            }
        };
        let system = &mut self.system;
        let found = system.source.insert(source).found(told, kept);
        let (services, kept) = match found {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Wanting::NotYet(format!("ConfigMap {name}"))),
            Err(reason) => return Ok(Wanting::Unfit(reason)),
        };
        let scripts = &mut system.scripts;
        let commands = scripts.commands(&services, &node.object, &told.hash);
        if commands.waits && scripts.patience().is_some() {
            return Ok(Wanting::NotYet(scripts.running()));
        }
        let is_whole = commands.missing.is_empty() && !commands.waits;
        let desired = DesiredServices {
            services,
            commands: commands.found,
            hash: is_whole.then(|| told.hash.clone()),
        };
        let planned = system.planned.take().filter(|it| {
            it.desired == desired && it.unknown == commands.missing && it.waits == commands.waits
        });
        let planned = if let Some(planned) = planned {
            planned
        } else {
            let plan = self.on_machine({
                let desired = desired.clone();
                move |machine| machine.plan(&desired)
            });
            Planned {
                plan: plan.await?,
                desired,
                kept,
                unknown: commands.missing,
                waits: commands.waits,
            }
        };
        self.system.planned = Some(planned);
        Ok(Wanting::Planned)
    }

    /// Brings the trusted roots to the cluster's bundle. Whatever comes of it, services go on.
    pub(super) async fn keep_roots(&mut self) {
        let Some(published) = self.system.roots.due() else {
            return;
        };
        let kept = self.on_machine(move |machine| machine.trust(&published, None));
        let kept = kept.await;
        let Windows { metrics, roots, .. } = &mut self.system;
        let failed = match kept {
            Ok(trusted) => {
                metrics.trusts(trusted.counts);
                match trusted.synced {
                    Ok(synced) => {
                        metrics.wrote(synced.writes);
                        Ok(roots.done(&synced, &trusted.bundle))
                    }
                    Err(error) => Err(reason(&error).text),
                }
            }
            Err(ReconcileError::Machine(reason)) => Err(reason.text),
            Err(ReconcileError::Cluster(error)) => Err(error.to_string()),
        };
        let events = failed.unwrap_or_else(|words| roots.failed(words).into_iter().collect());
        for event in events {
            self.tell(event);
        }
    }

    /// Waits for `what` until `requeue`; once that takes long, the Node says so.
    pub(super) async fn wait_for(
        &mut self,
        what: &str,
        requeue: Requeue,
    ) -> Result<Look, ReconcileError> {
        match self.system.waiting.on(what, Timestamp::now()) {
            Err(left) => Ok(Look::Wait(requeue.within(left))),
            Ok(text) => {
                let said = self
                    .node
                    .as_ref()
                    .and_then(|it| it.said(annotation::REASON));
                if said != Some(&text) {
                    self.say_reason(text).await;
                }
                Ok(Look::Wait(requeue))
            }
        }
    }
}
