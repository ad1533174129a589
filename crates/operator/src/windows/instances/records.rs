//! What is remembered of instances: one ConfigMap each, so that no number of them outgrows an object. People read them, and
//! an operator that comes after this one goes on from them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::rc::Rc;

use evenkeel_api::names::{label, object};
use evenkeel_plan::windows::instances::{Fact, InstanceRecord};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, Patch, PostParams};
use kube::{Api, Client};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, watch};

use crate::objects::ours;

/// How many are written at once, and read.
const WRITES: usize = 8;
const PAGE: u32 = 250;

/// All records. Clones are the same.
#[derive(Clone)]
pub(crate) struct Records {
    api: Api<ConfigMap>,
    shared: Rc<Remembered>,
}

#[derive(Default)]
struct Remembered {
    records: RefCell<BTreeMap<String, InstanceRecord>>,
    /// What the ConfigMaps say.
    written: Mutex<BTreeMap<String, String>>,
    /// Whether there is still the one ConfigMap of all, as operators before this one wrote it.
    has_old: Cell<bool>,
    changes: watch::Sender<()>,
}

impl Records {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            shared: Rc::default(),
        }
    }

    /// Reads what an earlier operator has written. What cannot be read is as if it were not there: its
    /// machine is found again by its entry.
    pub(crate) async fn load(&self) -> kube::Result<()> {
        let old = self.api.get_opt(object::INSTANCES_STATUS).await?;
        self.shared.has_old.set(old.is_some());
        let mut texts = old.and_then(|it| it.data).unwrap_or_default();
        let written = self.written().await?;
        // What was written down anew since is newer.
        texts.extend(written.clone());
        let mut records = BTreeMap::new();
        for (name, text) in &texts {
            match serde_json::from_str(text) {
                Ok(record) => {
                    records.insert(name.clone(), record);
                }
                Err(error) => tracing::warn!(instance = name, "cannot read its status: {error}"),
            }
        }
        self.shared.records.replace(records);
        *self.shared.written.lock().await = written;
        // What is written in the old way only is written down anew soon.
        self.shared.changes.send_replace(());
        Ok(())
    }

    /// What the ConfigMaps say, by instance.
    async fn written(&self) -> kube::Result<BTreeMap<String, String>> {
        let labels = format!("{}=true", label::INSTANCE_STATUS);
        let mut page = ListParams::default().labels(&labels).limit(PAGE);
        let mut written = BTreeMap::new();
        loop {
            let list = self.api.list(&page).await?;
            written.extend(list.items.into_iter().filter_map(|it| {
                let mut data = it.data?;
                let name = data.remove(object::INSTANCE_STATUS_NAME)?;
                // Somebody else's with our label says nothing.
                let is_own = it.metadata.name == Some(name_of(&name));
                let text = data.remove(object::INSTANCE_STATUS_RECORD);
                Some((name, text.filter(|_| is_own)?))
            }));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(written),
            }
        }
    }

    /// Tells of every change.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }

    /// All of them.
    pub(crate) fn all(&self) -> BTreeMap<String, InstanceRecord> {
        self.shared.records.borrow().clone()
    }

    /// Looks at all of them.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&BTreeMap<String, InstanceRecord>) -> R) -> R {
        look(&self.shared.records.borrow())
    }

    pub(crate) fn get(&self, name: &str) -> Option<InstanceRecord> {
        self.shared.records.borrow().get(name).cloned()
    }

    /// Changes what is remembered of one, if anything is different then.
    pub(crate) fn change(&self, name: &str, change: impl FnOnce(&mut InstanceRecord)) {
        let mut records = self.shared.records.borrow_mut();
        let mut record = records.get(name).cloned().unwrap_or_default();
        change(&mut record);
        if records.get(name) != Some(&record) {
            records.insert(name.to_owned(), record);
            drop(records);
            self.shared.changes.send_replace(());
        }
    }

    /// Remembers what was learned of one.
    pub(crate) fn learn(&self, name: &str, fact: Fact) {
        self.change(name, |it| it.learn(fact, Timestamp::now()));
    }

    pub(crate) fn forget(&self, name: &str) {
        self.shared.records.borrow_mut().remove(name);
        self.shared.changes.send_replace(());
    }

    /// Writes down what is not written down yet. What fails for one is tried again, and keeps no other from it.
    pub(crate) async fn save(&self) -> kube::Result<()> {
        let mut written = self.shared.written.lock().await;
        let records = self.all();
        let texts: BTreeMap<String, String> = records
            .iter()
            .map(|(name, record)| (name.clone(), json!(record).to_string()))
            .collect();
        let names: BTreeSet<String> = texts.keys().chain(written.keys()).cloned().collect();
        let differing = names
            .into_iter()
            .filter(|name| texts.get(name) != written.get(name));
        let differing: Vec<String> = differing.collect();
        let done: Vec<_> = futures::stream::iter(differing)
            .map(async |name| {
                let text = texts.get(&name);
                let done = self.write(&name, text).await;
                (name, done)
            })
            .buffer_unordered(WRITES)
            .collect()
            .await;
        let mut failed = None;
        for (name, done) in done {
            match (done, texts.get(&name)) {
                (Err(error), _) => failed = Some(error),
                (Ok(()), Some(text)) => _ = written.insert(name, text.clone()),
                (Ok(()), None) => _ = written.remove(&name),
            }
        }
        match failed {
            Some(error) => Err(error),
            None => self.remove_old().await,
        }
    }

    async fn write(&self, instance: &str, text: Option<&String>) -> kube::Result<()> {
        let name = name_of(instance);
        let Some(text) = text else {
            return gone(self.api.delete(&name, &DeleteParams::default()).await);
        };
        let data = json!({
            object::INSTANCE_STATUS_NAME: instance,
            object::INSTANCE_STATUS_RECORD: text,
        });
        let labels = json!({ label::INSTANCE_STATUS: "true" });
        let patch = Patch::Merge(json!({ "metadata": { "labels": labels }, "data": data }));
        match self.api.patch(&name, &ours(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let object: ConfigMap = serde_json::from_value(json!({
                    "metadata": { "name": name, "labels": labels },
                    "data": data,
                }))
                .map_err(kube::Error::SerdeError)?;
                let parameters = PostParams {
                    field_manager: ours().field_manager,
                    ..PostParams::default()
                };
                self.api.create(&parameters, &object).await.map(|_| ())
            }
            answer => answer.map(|_| ()),
        }
    }

    /// All that it said is written down anew: the one ConfigMap of all goes.
    async fn remove_old(&self) -> kube::Result<()> {
        if !self.shared.has_old.get() {
            return Ok(());
        }
        let name = object::INSTANCES_STATUS;
        gone(self.api.delete(name, &DeleteParams::default()).await)?;
        self.shared.has_old.set(false);
        Ok(())
    }
}

/// An answer that is also fine if there was nothing to delete.
fn gone<T>(answer: kube::Result<T>) -> kube::Result<()> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        answer => answer.map(|_| ()),
    }
}

/// The ConfigMap of an instance. A Machine's name and namespace may be too long for one, and have other letters.
fn name_of(instance: &str) -> String {
    let hash = Sha256::digest(instance);
    let mut name = object::INSTANCE_STATUS_PREFIX.to_owned();
    for byte in hash.iter().take(10) {
        // Writing into a String does not fail.
        _ = write!(name, "{byte:02x}");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instance_has_a_config_map_of_its_own_whatever_it_is_called() {
        let long = format!("machine_{}_{}", "n".repeat(63), "m".repeat(253));
        let names = ["10.0.0.1", "win.example.com", &long].map(name_of);
        for name in &names {
            assert!(name.len() < 64 && !name.contains('_'), "{name}");
        }
        let distinct: BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }
}
