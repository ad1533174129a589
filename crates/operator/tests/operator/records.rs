//! What the operator remembers of instances, as anybody can read it; and as an operator of an earlier version wrote it.

use std::collections::BTreeMap;

use evenkeel_api::names::{label, object};
use evenkeel_testbed::{Doing, Error, Result};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::scene::Scene;

impl Scene {
    async fn record_objects(&self) -> Result<Vec<ConfigMap>> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.name);
        let labels = format!("{}=true", label::INSTANCE_STATUS);
        let all = maps.list(&ListParams::default().labels(&labels)).await;
        Ok(all.doing(|| "cannot list what is remembered")?.items)
    }

    /// What is remembered of each instance.
    pub(crate) async fn records(&self) -> Result<BTreeMap<String, Value>> {
        let all = self.record_objects().await?.into_iter();
        let read = all.filter_map(|it| it.data).map(|data| {
            let name = data.get(object::INSTANCE_STATUS_NAME);
            let name = name.ok_or_else(|| Error::failed(format!("whose? {data:?}")))?;
            let text = data.get(object::INSTANCE_STATUS_RECORD);
            let record = serde_json::from_str(text.map_or("null", String::as_str));
            Ok((name.clone(), record.doing(|| format!("no JSON: {data:?}"))?))
        });
        read.collect()
    }

    /// The ConfigMap in which that of an instance stands.
    pub(crate) async fn record_object(&self, instance: &str) -> Result<String> {
        let all = self.record_objects().await?;
        let named = |it: &&ConfigMap| {
            let data = it.data.as_ref();
            data.and_then(|it| it.get(object::INSTANCE_STATUS_NAME))
                .map(String::as_str)
                == Some(instance)
        };
        let found = all.iter().find(named).map(ResourceExt::name_any);
        found.ok_or_else(|| Error::failed(format!("nothing is remembered of {instance}")))
    }

    /// Writes down, all in one object as it was before, that each instance became that Node.
    pub(crate) async fn remember<'a>(
        &self,
        instances: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<()> {
        let one = |(address, node): (&str, &str)| {
            let record = json!({
                "state": "Ready", "since": "2026-01-02T03:04:05Z", "user": "Administrator",
                "address": address, "node": node, "started": "1.2.3-abc1234",
                "isTouched": true, "isMachine": false, "failures": 0,
            });
            (address.to_owned(), json!(record.to_string()))
        };
        let data: serde_json::Map<String, Value> = instances.map(one).collect();
        let map = json!({ "metadata": { "name": object::INSTANCES_STATUS }, "data": data });
        self.create::<ConfigMap>(map).await.map(|_| ())
    }
}
