//! The Node of a machine. A name counts when `evenkeel_plan::windows::instances` says that the machine may be that Node; only
//! then is anything written on it, or is it deleted, and only as it was seen then.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_api::names::{annotation, label};
use evenkeel_plan::windows::instances::workflow::Answer;
use evenkeel_plan::windows::instances::{Claim, Found, InstanceFailure};
use k8s_openapi::api::core::v1::Node;
use kube::api::Patch;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{Job, api};
use crate::objects::{only, ours};

/// How long after somebody else wrote to a Node it is read again.
const AGAIN: Duration = Duration::from_millis(200);

impl Job {
    fn nodes(&self) -> Api<Node> {
        Api::all(self.fleet.client.clone())
    }

    /// The Node that this machine is by that name, if there is one; a problem if it is somebody else's.
    pub(super) async fn own_node(
        &self,
        name: &str,
    ) -> Result<Result<Option<Found>, InstanceFailure>, InstanceFailure> {
        // What is no name is not even asked for.
        if let Err(problem) = self.check(name, None) {
            return Ok(Err(problem));
        }
        let node = self.nodes().get_opt(name).await;
        let node = node.map_err(|error| api("cannot read its Node", &error))?;
        let found = node.as_ref().map(found);
        Ok(self.check(name, found.as_ref()).map(|()| found))
    }

    fn check(&self, name: &str, found: Option<&Found>) -> Result<(), InstanceFailure> {
        let addresses = self.fleet.addresses(&self.name);
        self.fleet.records.look(|records| {
            let claim = Claim {
                instance: &self.name,
                node: name,
                addresses: &addresses,
                found,
                records,
            };
            claim.check()
        })
    }

    /// Annotates a Node, unless it is not as it was seen any more.
    pub(super) async fn write_node(
        &self,
        seen: &Found,
        annotations: &BTreeMap<&'static str, String>,
        failing: &str,
    ) -> Result<Answer, InstanceFailure> {
        let (uid, version) = (&seen.uid, &seen.resource_version);
        let metadata =
            json!({ "uid": uid, "resourceVersion": version, "annotations": annotations });
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let written = self.nodes().patch(&seen.name, &ours(), &patch).await;
        self.as_seen(seen, written, failing).await
    }

    /// Deletes a Node, unless it is not as it was seen any more.
    pub(super) async fn delete_node(&self, seen: &Found) -> Result<Answer, InstanceFailure> {
        let same = only(seen.uid.as_deref(), seen.resource_version.as_deref());
        let deleted = self.nodes().delete(&seen.name, &same).await;
        self.as_seen(seen, deleted, "cannot delete its Node").await
    }

    /// What is answered to a write: if somebody else wrote before, how the Node is now.
    async fn as_seen<T>(
        &self,
        seen: &Found,
        written: kube::Result<T>,
        failing: &str,
    ) -> Result<Answer, InstanceFailure> {
        match written {
            Ok(_) => Ok(Answer::Done),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                tokio::time::sleep(AGAIN).await;
                Ok(Answer::Node(self.own_node(&seen.name).await?))
            }
            Err(error) => Err(api(failing, &error)),
        }
    }
}

/// A Node, as far as it tells whose it is, and how far.
fn found(node: &Node) -> Found {
    let annotation = |name: &str| node.annotations().get(name).cloned();
    let instance = annotation(annotation::INSTANCE);
    let instance = instance.map(|it| {
        it.rsplit_once('@')
            .map_or(it.clone(), |(_, name)| name.to_owned())
    });
    let status = node.status.as_ref();
    let addresses = status.and_then(|it| it.addresses.as_ref());
    let addresses = addresses.into_iter().flatten();
    Found {
        name: node.name_any(),
        is_windows: node.labels().get(label::OS).map(String::as_str) == Some("windows"),
        instance,
        addresses: addresses.map(|it| it.address.clone()).collect(),
        uid: node.uid(),
        resource_version: node.resource_version(),
        version: annotation(annotation::WINDOWS_VERSION),
        desired_version: annotation(annotation::WINDOWS_DESIRED_VERSION),
        supplied: annotation(annotation::SUPPLIED),
    }
}
