//! The worker's half that waits for the machine: where it stands, what it shall be brought to, what
//! leads there.

use std::sync::{Arc, PoisonError};

use evenkeel_api::Problems;
use evenkeel_api::services::Services;
use evenkeel_api::version::Version;
use evenkeel_plan::phase::Reason;
use evenkeel_plan::windows_node::Told;

use super::{Heard, Planned, Search, Trouble, Worker, blocking, reason, refused};
use crate::windows::cluster::OwnNode;
use crate::windows::lookout::Lookout;
use crate::windows::machine::{Kept, Machine, Wish};
use crate::windows::values::{Commands, Scripts};

impl Worker {
    pub(super) async fn stop_watching(&mut self) {
        if let Some(lookout) = self.lookout.take()
            && let Err(reason) = blocking(move || lookout.stop()).await
        {
            tracing::error!("{}", reason.text);
        }
    }

    /// Finds out where the machine stands if that is not known, and watches it.
    pub(super) async fn settle(&mut self) -> Result<(), Trouble> {
        if self.standing.is_none() {
            self.stop_watching().await;
            let standing = self.on_machine(Machine::settle).await?;
            self.standing = Some(standing);
            self.planned = None;
        }
        if let (None, Some(standing)) = (&self.lookout, &self.standing) {
            let (machine, keys) = (Arc::clone(&self.machine), self.keys.clone());
            let targets = standing.targets.clone();
            let started = blocking(move || Lookout::start(machine, targets, keys)).await?;
            self.lookout = Some(started.map_err(|error| reason(&error))?);
        }
        Ok(())
    }

    /// What the node shall be brought to: its services with their commands. Nothing while the cluster
    /// has not said, a reason if what it says will not do.
    pub(super) async fn wish(
        &mut self,
        node: &OwnNode,
        told: &Told,
    ) -> Result<Result<Option<(Wish, Kept, Vec<String>)>, Reason>, Trouble> {
        let version: Version = match told.version.parse() {
            Ok(version) => version,
            Err(error) => return Ok(Err(refused(&error))),
        };
        let name = version.config_map_name();
        if self
            .search
            .as_ref()
            .is_none_or(|search| search.name != name)
        {
            self.search = Some(Search {
                watch: self.cluster.watch_services(&name, self.keys.clone()),
                name: name.clone(),
                heard: Heard::NotYet,
            });
        }
        let heard = self.search.as_ref().map(|search| search.heard.clone());
        let kept = self.on_machine(Machine::kept).await?;
        let data = match (heard, kept) {
            // The cluster may have the next contents already; this node was not told of them yet.
            (_, Some(kept)) if kept.hash == told.hash => kept.data,
            (Some(Heard::Data(data)), _) => data,
            (Some(Heard::Missing), _) => {
                let text = format!(
                    "ConfigMap {name} does not exist: the operator makes it; this node keeps what it has"
                );
                return Ok(Err(Reason::new("ServicesMissing", text)));
            }
            _ => return Ok(Ok(None)),
        };
        let services = match Services::from_data(&format!("ConfigMap {name}"), &data) {
            Ok((services, _)) => services,
            Err(problems) => {
                return Ok(Err(Reason::new(Problems::CATEGORY, problems.to_string())));
            }
        };
        if services.hash() != told.hash {
            let text = format!(
                "ConfigMap {name} has other contents than this node was told ({}): it waits for the right ones",
                told.hash
            );
            return Ok(Err(Reason::new("ServicesUnexpected", text)));
        }
        let Commands { found, missing } = self.commands(&services, node, &told.hash).await?;
        let kept = Kept {
            version: told.version.clone(),
            hash: told.hash.clone(),
            data,
        };
        let wish = Wish {
            services,
            commands: found,
            hash: missing.is_empty().then(|| told.hash.clone()),
        };
        Ok(Ok(Some((wish, kept, missing))))
    }

    async fn commands(
        &self,
        services: &Services,
        node: &OwnNode,
        hash: &str,
    ) -> Result<Commands, Trouble> {
        let (scripts, services) = (Arc::clone(&self.scripts), services.clone());
        let (object, hash) = (node.object.clone(), hash.to_owned());
        let limit = self.script_limit;
        let commands = blocking(move || {
            let mut scripts = scripts.lock().unwrap_or_else(PoisonError::into_inner);
            if scripts.0 != hash {
                *scripts = (hash, Scripts::default());
            }
            scripts.1.commands(&services, Some(&object), limit)
        });
        Ok(commands.await?)
    }

    /// Plans, unless that was done for the same wish.
    pub(super) async fn plan(
        &mut self,
        wish: Wish,
        kept: Kept,
        missing: Vec<String>,
    ) -> Result<(), Trouble> {
        if self
            .planned
            .as_ref()
            .is_some_and(|it| it.wish == wish && it.missing.starts_with(&missing))
        {
            return Ok(());
        }
        let wanted = wish.clone();
        let way = self.on_machine(move |machine| machine.way(&wanted)).await?;
        let mut wish = wish;
        let mut missing = missing;
        let lost = way.missing.iter().map(|path| {
            format!("file {path}: its contents are neither there nor in the store: the operator brings them")
        });
        missing.extend(lost);
        if !missing.is_empty() {
            wish.hash = None;
        }
        let way = if missing.is_empty() || way.missing.is_empty() {
            way
        } else {
            let wanted = wish.clone();
            self.on_machine(move |machine| machine.way(&wanted)).await?
        };
        self.planned = Some(Planned {
            wish,
            kept,
            way,
            missing,
        });
        Ok(())
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
