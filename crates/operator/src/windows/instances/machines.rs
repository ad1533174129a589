//! Machines that run Windows, as somebody else's controller makes and removes them. A cluster without
//! that kind has none, until it learns it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use evenkeel_api::names::{group, label};
use evenkeel_daemon::Stop;
use evenkeel_plan::windows::instances::{DesiredInstance, FailureKind, InstanceFailure, called};
use evenkeel_plan::windows::upgrade::recreate::Machine;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;

use super::followed::{Followed, Observed};
use crate::kinds::Kind;
use crate::objects::only;

pub(super) const VERSION: &str = "v1beta1";
const KIND: &str = "Machine";

/// A Machine that runs Windows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedMachine {
    namespace: String,
    name: String,
    uid: String,
    addresses: Vec<IpAddr>,
    /// All its addresses and names, of whichever type.
    known_as: Vec<String>,
    /// The MachineSet that replaces it, as `namespace/name`.
    set: Option<String>,
    /// The Node that it is, as its controller says.
    node: Option<String>,
    is_going: bool,
    /// The version of its object.
    version: u64,
}

/// Namespace and name of an object.
pub(super) fn path(object: &DynamicObject) -> String {
    let namespace = object.namespace().unwrap_or_default();
    format!("{namespace}/{}", object.name_any())
}

/// The MachineSet that controls a Machine, and makes a new one in its place.
fn set_of(object: &DynamicObject) -> Option<String> {
    let owners = object.owner_references().iter();
    let mut sets = owners.filter(|it| it.kind == "MachineSet" && it.controller == Some(true));
    let set = sets.find(|it| it.api_version.starts_with(group::MACHINE))?;
    let namespace = object.namespace().unwrap_or_default();
    Some(format!("{namespace}/{}", set.name))
}

impl Observed for ObservedMachine {
    fn of(object: &DynamicObject) -> (String, Self) {
        let all = object.data["status"]["addresses"].as_array();
        let all = all.into_iter().flatten();
        let addresses = all.clone().filter_map(|it| {
            let is_internal = it["type"] == "InternalIP";
            it["address"].as_str().filter(|_| is_internal)?.parse().ok()
        });
        let known_as = all.filter_map(|it| it["address"].as_str().map(str::to_owned));
        let seen = Self {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            addresses: addresses.collect(),
            known_as: known_as.collect(),
            set: set_of(object),
            node: object.data["status"]["nodeRef"]["name"]
                .as_str()
                .map(str::to_owned),
            version: object
                .resource_version()
                .and_then(|it| it.parse().ok())
                .unwrap_or_default(),
            is_going: object.metadata.deletion_timestamp.is_some(),
        };
        (seen.instance(), seen)
    }

    fn is_newer_than(&self, heard: &Self) -> bool {
        self.uid == heard.uid && self.version > heard.version
    }
}

impl ObservedMachine {
    /// What it is called among instances.
    fn instance(&self) -> String {
        called(&self.namespace, &self.name)
    }

    /// All its addresses and names, as its controller says.
    pub(crate) fn known_as(&self) -> &[String] {
        &self.known_as
    }

    /// How an Event names it.
    pub(crate) fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(format!("{}/{VERSION}", group::MACHINE)),
            kind: Some(KIND.to_owned()),
            name: Some(self.name.clone()),
            namespace: Some(self.namespace.clone()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }
}

/// All of them. Clones are the same.
#[derive(Clone)]
pub(crate) struct Machines {
    api: Api<DynamicObject>,
    kind: ApiResource,
    labels: Option<String>,
    known: Rc<Followed<ObservedMachine>>,
}

impl Machines {
    /// Those with `labels` only.
    pub(crate) fn new(client: Client, labels: Option<&str>) -> Self {
        let kind = GroupVersionKind::gvk(group::MACHINE, VERSION, KIND);
        let kind = ApiResource::from_gvk_with_plural(&kind, "machines");
        Self {
            api: Api::all_with(client, &kind),
            labels: labels.map(str::to_owned),
            kind,
            known: Rc::default(),
        }
    }

    /// Tells of every change.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.known.changes()
    }

    pub(crate) fn get(&self, instance: &str) -> Option<ObservedMachine> {
        self.known.get(instance)
    }

    /// Those that are to be nodes, with the user to log in as; none if they are not known yet.
    pub(crate) fn wanted(&self, user: &str) -> Option<BTreeMap<String, DesiredInstance>> {
        let wanted = |(name, machine): (&String, &ObservedMachine)| {
            let addresses = if machine.addresses.is_empty() {
                Err(InstanceFailure::new(
                    FailureKind::NoAddress,
                    format!(
                        "its Machine has no address of type InternalIP yet: if the machine controller does not write one soon, see kubectl describe machines.{} {} -n {}",
                        group::MACHINE,
                        machine.name,
                        machine.namespace
                    ),
                ))
            } else {
                Ok(machine.addresses.clone())
            };
            let metrics = machine.known_as.iter().filter_map(|it| it.parse().ok());
            let wanted = DesiredInstance {
                user: user.to_owned(),
                addresses,
                node_addresses: metrics.collect(),
                node: machine.node.clone(),
            };
            (name.clone(), wanted)
        };
        self.known.look(|all| {
            let staying = all.iter().filter(|(_, it)| !it.is_going);
            staying.map(wanted).collect()
        })
    }

    /// All of them as they count for being made anew; `node` says what was made of an instance. None if they are not
    /// known yet.
    pub(crate) fn renewable(&self, node: impl Fn(&str) -> Option<String>) -> Option<Vec<Machine>> {
        let machine = |(instance, it): (&String, &ObservedMachine)| Machine {
            name: format!("{}/{}", it.namespace, it.name),
            set: it.set.clone(),
            node: it.node.clone().or_else(|| node(instance)),
            is_going: it.is_going,
        };
        self.known.look(|all| all.iter().map(machine).collect())
    }

    /// The Machine of that `namespace/name`.
    pub(crate) fn named(&self, path: &str) -> Option<ObservedMachine> {
        let (namespace, name) = path.split_once('/')?;
        self.get(&called(namespace, name))
    }

    /// Deletes a Machine, if it is still the very one, and takes note of it. Whoever makes and removes machines does
    /// the rest.
    pub(crate) async fn delete(&self, machine: &ObservedMachine) -> kube::Result<()> {
        let client = self.api.clone().into_client();
        let api: Api<DynamicObject> = Api::namespaced_with(client, &machine.namespace, &self.kind);
        let mut going = machine.clone();
        going.is_going = true;
        match api
            .delete(&machine.name, &only(Some(&machine.uid), None))
            .await
        {
            Ok(answer) => {
                if let Some(object) = answer.left() {
                    (_, going) = ObservedMachine::of(&object);
                }
            }
            // It is gone, or another one by now: the watch will show it.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return Ok(()),
            Err(error) => return Err(error),
        }
        self.known.put(going.instance(), going);
        Ok(())
    }

    /// Keeps them until the program is asked to stop.
    pub(crate) async fn keep(&self, stop: &Stop) {
        let windows = format!("{}=Windows", label::MACHINE_OS_ID);
        let labels = self
            .labels
            .iter()
            .fold(windows, |all, it| format!("{all},{it}"));
        let config = watcher::Config::default().labels(&labels);
        let kind = Kind::new(self.api.clone().into_client(), &self.kind);
        self.known
            .keep(&kind, &self.api, &config, "Machines", stop)
            .await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_machine_is_reached_at_its_internal_addresses() {
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
            "metadata": { "name": "w1", "namespace": "openshift-machine-api" },
            "status": { "addresses": [
                { "type": "Hostname", "address": "w1" },
                { "type": "InternalIP", "address": "10.0.0.7" },
                { "type": "ExternalIP", "address": "192.0.2.7" },
            ] },
        }))
        .unwrap();
        let (name, seen) = ObservedMachine::of(&object);
        assert_eq!(seen.addresses, ["10.0.0.7".parse::<IpAddr>().unwrap()]);
        assert_eq!(name, "machine_openshift-machine-api_w1");
    }
}
