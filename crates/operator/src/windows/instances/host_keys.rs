//! The host key that each instance had the first time: the Secret `evenkeel-host-keys`.

use std::collections::BTreeMap;

use evenkeel_api::names::object;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::objects::ours;

#[derive(Clone)]
pub(crate) struct HostKeys {
    api: Api<Secret>,
}

impl HostKeys {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
        }
    }

    /// The key that an instance had the first time, if there was one.
    pub(crate) async fn of(&self, name: &str) -> kube::Result<Option<String>> {
        let found = self.api.get_opt(object::HOST_KEYS).await?;
        let data = found.and_then(|it| it.data).unwrap_or_default();
        let text = |it: &ByteString| String::from_utf8_lossy(&it.0).trim().to_owned();
        Ok(data.get(name).map(text))
    }

    /// Pins the key of an instance, or forgets it.
    pub(crate) async fn pin(&self, name: &str, key: Option<&str>) -> kube::Result<()> {
        let value = key.map(|it| ByteString(it.as_bytes().to_vec()));
        let patch = Patch::Merge(json!({ "data": { name: value } }));
        loop {
            let written = self.api.patch(object::HOST_KEYS, &ours(), &patch).await;
            match (written, &value) {
                (Err(kube::Error::Api(status)), Some(value)) if status.code == 404 => {
                    let mut secret = Secret {
                        data: Some(BTreeMap::from([(name.to_owned(), value.clone())])),
                        ..Secret::default()
                    };
                    secret.metadata.name = Some(object::HOST_KEYS.to_owned());
                    match self.api.create(&PostParams::default(), &secret).await {
                        // Somebody else of us was faster: now it is there.
                        Err(kube::Error::Api(status)) if status.code == 409 => {}
                        made => return made.map(|_| ()),
                    }
                }
                (Err(kube::Error::Api(status)), None) if status.code == 404 => return Ok(()),
                (answer, _) => return answer.map(|_| ()),
            }
        }
    }
}
