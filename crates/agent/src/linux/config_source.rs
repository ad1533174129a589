//! The source of the MachineConfig that a node is to have: watched by its version alone, and read
//! once for each.

use std::sync::Arc;

use evenkeel_api::Problems;
use evenkeel_api::document::{self, Document};
use evenkeel_plan::machine::desired::Desired;
use evenkeel_plan::machine::phase::Reason;
use kube::Client;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

use super::cluster;
use super::machine::Config;
use super::trigger::Trigger;
use crate::reconcile::{ReconcileError, blocking};

/// A configuration that is looked for, and what was found. It is watched until this is dropped.
pub(crate) struct ConfigSource {
    name: String,
    watch: Option<JoinHandle<()>>,
    seen: ConfigState,
    found: Option<Result<Arc<Config>, Reason>>,
}

/// What the watch said last.
#[derive(Debug, PartialEq, Eq)]
enum ConfigState {
    /// Nothing yet.
    NotYet,
    /// There is none.
    Missing,
    /// This version.
    Version(String),
}

impl ConfigSource {
    /// Begins to look for the MachineConfig `name`, if that can be one.
    pub(crate) fn begin(name: &str, client: &Client, triggers: &UnboundedSender<Trigger>) -> Self {
        let misnamed = Reason::misnamed(name);
        let watch = misnamed
            .is_none()
            .then(|| cluster::watch_config(client, name, triggers.clone()));
        Self {
            name: name.to_owned(),
            watch,
            seen: ConfigState::NotYet,
            found: misnamed.map(Err),
        }
    }

    pub(crate) fn is_for(&self, name: &str) -> bool {
        self.name == name
    }

    /// What was found so far.
    pub(crate) fn found(&self) -> Option<Result<Arc<Config>, Reason>> {
        self.found.clone()
    }

    /// Takes note of a version; `true` if it has changed.
    pub(crate) fn observe(&mut self, version: Option<String>) -> bool {
        let seen = version.map_or(ConfigState::Missing, ConfigState::Version);
        let is_new = self.seen != seen;
        if is_new {
            self.found = (seen == ConfigState::Missing).then(|| Err(Reason::missing(&self.name)));
            self.seen = seen;
        }
        is_new
    }

    /// Reads what is there and was not read yet. `true` if it is known by then what was found.
    pub(crate) async fn go_on(&mut self, client: &Client) -> Result<bool, ReconcileError> {
        if self.found.is_none() && self.seen != ConfigState::NotYet {
            let text = cluster::config(client, &self.name).await;
            let text = text.map_err(ReconcileError::Cluster)?;
            let name = self.name.clone();
            self.found = Some(match text {
                None => Err(Reason::missing(&name)),
                Some(text) => blocking(move || read(&name, &text)).await?.map(Arc::new),
            });
        }
        Ok(self.found.is_some())
    }
}

impl Drop for ConfigSource {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

/// The MachineConfig that `text` is, or everything that is wrong with it.
fn read(name: &str, text: &str) -> Result<Config, Reason> {
    let (documents, warnings) =
        document::read(&format!("MachineConfig {name}"), text.as_bytes())
            .map_err(|problems| Reason::new(problems.category(), problems.to_string()))?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    match documents.into_iter().next() {
        Some(Document::MachineConfig(config)) => {
            let (desired, contents) = Desired::of(config);
            Ok(Config { desired, contents })
        }
        _ => Err(Reason::new(
            Problems::CATEGORY,
            format!("MachineConfig {name} contains no configuration"),
        )),
    }
}
