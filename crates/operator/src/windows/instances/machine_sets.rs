//! `MachineSets`, as far as it counts how many Machines each is to have and how many of its nodes may be away.

use std::collections::BTreeMap;
use std::rc::Rc;

use evenkeel_api::names::{annotation, group};
use evenkeel_daemon::Stop;
use evenkeel_plan::windows::upgrade::recreate::MachineSet;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;

use super::followed::{Followed, Observed};
use super::machines::{VERSION, path};
use crate::kinds::Kind;

const KIND: &str = "MachineSet";

/// A MachineSet, and how an Event names it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ObservedSet {
    set: MachineSet,
    uid: String,
}

/// All of them, by `namespace/name`. Clones are the same.
#[derive(Clone)]
pub(crate) struct MachineSets {
    api: Api<DynamicObject>,
    kind: ApiResource,
    known: Rc<Followed<ObservedSet>>,
}

impl Observed for ObservedSet {
    fn of(object: &DynamicObject) -> (String, Self) {
        let replicas = object.data["spec"]["replicas"].as_u64().unwrap_or(1);
        let is_going = object.metadata.deletion_timestamp.is_some();
        let set = MachineSet {
            // One that goes makes nothing any more.
            replicas: usize::try_from(replicas).unwrap_or(usize::MAX) * usize::from(!is_going),
            max_unhealthy: object.annotations().get(annotation::MAX_UNHEALTHY).cloned(),
        };
        let uid = object.uid().unwrap_or_default();
        (path(object), Self { set, uid })
    }
}

impl MachineSets {
    pub(crate) fn new(client: Client) -> Self {
        let kind = GroupVersionKind::gvk(group::MACHINE, VERSION, KIND);
        let kind = ApiResource::from_gvk_with_plural(&kind, "machinesets");
        Self {
            api: Api::all_with(client, &kind),
            kind,
            known: Rc::default(),
        }
    }

    /// Tells of every change.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.known.changes()
    }

    /// All of them; none if they are not known yet.
    pub(crate) fn all(&self) -> Option<BTreeMap<String, MachineSet>> {
        self.known.look(|all| {
            let sets = all.iter();
            sets.map(|(name, it)| (name.clone(), it.set.clone()))
                .collect()
        })
    }

    /// How an Event names one.
    pub(crate) fn reference(&self, name: &str) -> Option<ObjectReference> {
        let uid = self.known.get(name)?.uid;
        let (namespace, name) = name.split_once('/')?;
        Some(ObjectReference {
            api_version: Some(format!("{}/{VERSION}", group::MACHINE)),
            kind: Some(KIND.to_owned()),
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            uid: Some(uid),
            ..ObjectReference::default()
        })
    }

    /// Keeps them until the program is asked to stop.
    pub(crate) async fn keep(&self, stop: &Stop) {
        let config = watcher::Config::default();
        let kind = Kind::new(self.api.clone().into_client(), &self.kind);
        self.known
            .keep(&kind, &self.api, &config, "MachineSets", stop)
            .await;
    }
}
