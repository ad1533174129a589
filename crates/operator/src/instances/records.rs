//! What is remembered of instances: the ConfigMap `windows-instances-status`, one entry each. People read
//! it, and an operator that comes after this one goes on from it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use evenkeel_api::names::object;
use evenkeel_plan::instances::Record;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::{Mutex, watch};

use crate::nodes::ours;

/// All records. Clones are the same.
#[derive(Clone)]
pub(crate) struct Records {
    api: Api<ConfigMap>,
    shared: Rc<Shared>,
}

#[derive(Default)]
struct Shared {
    records: RefCell<BTreeMap<String, Record>>,
    /// What the ConfigMap says.
    written: Mutex<BTreeMap<String, String>>,
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
    /// machine is found again by its entry, or by its Node.
    pub(crate) async fn load(&self) -> kube::Result<()> {
        let found = self.api.get_opt(object::INSTANCES_STATUS).await?;
        let data = found.and_then(|it| it.data).unwrap_or_default();
        let mut records = BTreeMap::new();
        for (name, text) in &data {
            match serde_json::from_str(text) {
                Ok(record) => {
                    records.insert(name.clone(), record);
                }
                Err(error) => tracing::warn!(instance = name, "cannot read its status: {error}"),
            }
        }
        self.shared.records.replace(records);
        *self.shared.written.lock().await = data;
        Ok(())
    }

    /// Tells of every change.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }

    /// All of them.
    pub(crate) fn all(&self) -> BTreeMap<String, Record> {
        self.shared.records.borrow().clone()
    }

    pub(crate) fn get(&self, name: &str) -> Option<Record> {
        self.shared.records.borrow().get(name).cloned()
    }

    /// Changes what is remembered of one, if anything is different then.
    pub(crate) fn change(&self, name: &str, change: impl FnOnce(&mut Record)) {
        let mut records = self.shared.records.borrow_mut();
        let mut record = records.get(name).cloned().unwrap_or_default();
        change(&mut record);
        if records.get(name) != Some(&record) {
            records.insert(name.to_owned(), record);
            drop(records);
            self.shared.changes.send_replace(());
        }
    }

    pub(crate) fn forget(&self, name: &str) {
        self.shared.records.borrow_mut().remove(name);
        self.shared.changes.send_replace(());
    }

    /// Writes down what is not written down yet.
    pub(crate) async fn save(&self) -> kube::Result<()> {
        let mut written = self.shared.written.lock().await;
        let records = self.all();
        let texts: BTreeMap<String, String> = records
            .iter()
            .map(|(name, record)| (name.clone(), json!(record).to_string()))
            .collect();
        let names: BTreeSet<&String> = texts.keys().chain(written.keys()).collect();
        let data: BTreeMap<&String, Option<&String>> = names
            .into_iter()
            .filter(|name| texts.get(*name) != written.get(*name))
            .map(|name| (name, texts.get(name)))
            .collect();
        if data.is_empty() {
            return Ok(());
        }
        let patch = Patch::Merge(json!({ "data": data }));
        let name = object::INSTANCES_STATUS;
        match self.api.patch(name, &ours(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let object: ConfigMap = serde_json::from_value(json!({
                    "metadata": { "name": name },
                    "data": texts,
                }))
                .map_err(kube::Error::SerdeError)?;
                let parameters = PostParams {
                    field_manager: ours().field_manager,
                    ..PostParams::default()
                };
                self.api.create(&parameters, &object).await?;
            }
            answer => drop(answer?),
        }
        *written = texts;
        Ok(())
    }
}
