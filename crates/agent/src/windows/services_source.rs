//! The services ConfigMap that a node is told of: watched by its name, and believed only if its
//! contents are those that the node was told.

use std::collections::BTreeMap;

use evenkeel_api::Problems;
use evenkeel_api::windows::services::Services;
use evenkeel_plan::machine::phase::Reason;
use evenkeel_plan::windows::windows_pool::Grant;
use tokio::task::JoinHandle;

use super::machine::Kept;

/// A ConfigMap, as it is watched.
pub(crate) struct ServicesSource {
    name: String,
    watch: JoinHandle<()>,
    heard: Heard,
}

/// What the watch has said.
#[derive(Debug)]
enum Heard {
    /// Nothing yet.
    NotYet,
    /// There is none.
    Missing,
    /// Its data.
    Data(BTreeMap<String, String>),
}

impl Drop for ServicesSource {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl ServicesSource {
    /// The ConfigMap `name`, which `watch` watches.
    pub(crate) fn new(name: &str, watch: JoinHandle<()>) -> Self {
        Self {
            watch,
            name: name.to_owned(),
            heard: Heard::NotYet,
        }
    }

    pub(crate) fn is_for(&self, name: &str) -> bool {
        self.name == name
    }

    /// Takes note of what the cluster has.
    pub(crate) fn observe(&mut self, data: Option<BTreeMap<String, String>>) {
        self.heard = data.map_or(Heard::Missing, Heard::Data);
    }

    /// The services that the node was told with its `grant`, as they were `kept` or as the cluster has them. Nothing
    /// while the cluster has not said, a reason if what it says will not do.
    pub(crate) fn found(
        &self,
        grant: &Grant,
        kept: Option<Kept>,
    ) -> Result<Option<(Services, Kept)>, Reason> {
        let name = &self.name;
        let data = match (&self.heard, kept) {
            // The cluster may have the next contents already; this node was not told of them yet.
            (_, Some(kept)) if kept.hash == grant.hash => kept.data,
            (Heard::Data(data), _) => data.clone(),
            (Heard::Missing, _) => {
                return Err(Reason::new(
                    "ServicesMissing",
                    format!(
                        "ConfigMap {name} does not exist: waiting for the operator to create it; the node keeps its services"
                    ),
                ));
            }
            (Heard::NotYet, _) => return Ok(None),
        };
        let (services, _) = Services::from_data(&format!("ConfigMap {name}"), &data)
            .map_err(|problems| Reason::new(Problems::CATEGORY, problems.to_string()))?;
        if services.hash() != grant.hash {
            return Err(Reason::new(
                "ServicesUnexpected",
                format!(
                    "ConfigMap {name} does not have the hash in annotation desired-services ({}): waiting for the operator to correct it",
                    grant.hash
                ),
            ));
        }
        let kept = Kept {
            version: grant.version.to_string(),
            hash: grant.hash.clone(),
            data,
        };
        Ok(Some((services, kept)))
    }
}
