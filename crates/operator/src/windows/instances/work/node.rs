//! The Node of a machine. A name counts when `evenkeel_plan::windows::instances` says that the machine may be that Node; only
//! then is anything written on it, or is it deleted, and only as it was seen then.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_plan::fleet::node_facts::NodeFacts;
use evenkeel_plan::windows::instances::workflow::Answer;
use evenkeel_plan::windows::instances::{Claim, Found, InstanceFailure};
use kube::Api;
use kube::api::Patch;
use serde_json::json;

use super::{Job, api};
use crate::fleet::nodes::NodeObject;
use crate::objects::{only, ours};

/// How long after somebody else wrote to a Node it is read again.
const AGAIN: Duration = Duration::from_millis(200);

impl Job {
    fn nodes(&self) -> Api<NodeObject> {
        Api::all(self.fleet.client.clone())
    }

    /// The Node that this machine is by that name, if there is one; a problem if it is somebody else's.
    pub(super) async fn own_node(
        &self,
        name: &str,
    ) -> Result<Result<Option<Found>, InstanceFailure>, InstanceFailure> {
        self.node(name, false).await
    }

    /// The same, also for a Node that OpenShift's operator made.
    pub(super) async fn wmco_node(
        &self,
        name: &str,
    ) -> Result<Result<Option<Found>, InstanceFailure>, InstanceFailure> {
        self.node(name, true).await
    }

    async fn node(
        &self,
        name: &str,
        takes_over: bool,
    ) -> Result<Result<Option<Found>, InstanceFailure>, InstanceFailure> {
        // What is no name is not even asked for.
        if let Err(problem) = self.check(name, None, takes_over) {
            return Ok(Err(problem));
        }
        let node = self.nodes().get_opt(name).await;
        let node = node.map_err(|error| api("cannot read its Node", &error))?;
        let found = node.map(|it| Found::from(NodeFacts::from(it)));
        let checked = self.check(name, found.as_ref(), takes_over);
        Ok(checked.map(|()| found))
    }

    fn check(
        &self,
        name: &str,
        found: Option<&Found>,
        takes_over: bool,
    ) -> Result<(), InstanceFailure> {
        let addresses = self.fleet.addresses(&self.name);
        self.fleet.records.look(|records| {
            let claim = Claim {
                instance: &self.name,
                node: name,
                addresses: &addresses,
                found,
                records,
                takes_over,
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
