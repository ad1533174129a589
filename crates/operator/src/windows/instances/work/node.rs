//! The Node of a machine. A name counts when `evenkeel_plan::windows::instances` says that the machine may be that Node; only then is
//! anything written on it, or is it deleted, and only that very object.

use evenkeel_api::names::{annotation, label};
use evenkeel_api::notice::Notice;
use evenkeel_plan::windows::instances::{Claim, FailureKind, Found, InstanceFailure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{Job, api};
use crate::objects::ours;

impl Job {
    /// The Node of that name as it is.
    pub(super) async fn node(&self, name: &str) -> Result<Option<Node>, InstanceFailure> {
        let nodes: Api<Node> = Api::all(self.fleet.client.clone());
        let found = nodes.get_opt(name).await;
        found.map_err(|error| api("cannot read its Node", &error))
    }

    /// The Node that this machine is by that name, if there is one; a problem if it is somebody else's.
    pub(super) async fn own_node(&self, name: &str) -> Result<Option<Node>, InstanceFailure> {
        // What is no name is not even asked for.
        self.check(name, None)?;
        let node = self.node(name).await?;
        self.check(name, node.as_ref().map(found).as_ref())?;
        Ok(node)
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

    /// Remembers which Node this machine is to be, before anybody makes it.
    pub(super) async fn note_node(&self, node: &str) -> Result<(), InstanceFailure> {
        let records = &self.fleet.records;
        records.change(&self.name, |it| it.node = Some(node.to_owned()));
        let saved = records.save().await;
        saved.map_err(|error| api("cannot record which Node it is", &error))
    }

    /// Writes annotations on the Node of this machine.
    pub(super) async fn write_on_node(
        &self,
        name: &str,
        annotations: &Value,
        what: &str,
    ) -> Result<(), InstanceFailure> {
        let node = self.own_node(name).await?.ok_or_else(|| InstanceFailure {
            category: FailureKind::NodeGone,
            message: format!("Node {name} is gone"),
        })?;
        let nodes: Api<Node> = Api::all(self.fleet.client.clone());
        let patch = json!({ "metadata": { "uid": node.uid(), "annotations": annotations } });
        let written = nodes.patch(name, &ours(), &Patch::Merge(patch)).await;
        written.map(|_| ()).map_err(|error| api(what, &error))
    }

    /// Deletes the Node of this machine. One that is not, or that another machine has become meanwhile, stays.
    pub(super) async fn delete_node(&self, name: &str) -> Result<(), InstanceFailure> {
        let found = match self.own_node(name).await {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(()),
            Err(problem) if problem.category == FailureKind::ApiFailed => return Err(problem),
            Err(problem) => {
                let note = format!(
                    "instance {}: Node {name} is not deleted: {}",
                    self.name, problem.message
                );
                self.fleet
                    .tell(&self.name, Notice::warning("NodeKept", note));
                return Ok(());
            }
        };
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: found.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let nodes: Api<Node> = Api::all(self.fleet.client.clone());
        match nodes.delete(name, &parameters).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            answer => answer
                .map(|_| ())
                .map_err(|error| api("cannot delete its Node", &error)),
        }
    }
}

/// A Node, as far as it tells whose it is.
fn found(node: &Node) -> Found {
    let instance = node.annotations().get(annotation::INSTANCE);
    let instance = instance.map(|it| it.rsplit_once('@').map_or(it.as_str(), |(_, name)| name));
    let status = node.status.as_ref();
    let addresses = status.and_then(|it| it.addresses.as_ref());
    Found {
        is_windows: node.labels().get(label::OS).map(String::as_str) == Some("windows"),
        instance: instance.map(str::to_owned),
        addresses: addresses
            .into_iter()
            .flatten()
            .map(|it| it.address.clone())
            .collect(),
    }
}
