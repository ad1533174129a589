//! Which pods are our own: by the namespace that we run in, and by the Deployment of the pod that we are. A label would
//! not do, as anybody can set one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use evenkeel_plan::fleet::drain::{self, Pod};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};

use crate::fleet::pods;

/// Where we are installed. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Installation {
    namespace: String,
    /// The pod that we are, if we are one.
    pod: Option<String>,
    /// The controllers of pods in our namespace by uid, and whether theirs are the operator's pods. Neither the owner of
    /// a pod nor that of a `ReplicaSet` changes.
    controllers: Rc<RefCell<BTreeMap<String, bool>>>,
}

impl Installation {
    pub(crate) fn new(namespace: &str, pod: Option<&str>) -> Self {
        Self {
            namespace: namespace.to_owned(),
            pod: pod.map(str::to_owned),
            controllers: Rc::default(),
        }
    }

    /// Says of each of `pods` whether it is ours.
    pub(crate) async fn mark(&self, client: &Client, pods: &mut [Pod]) -> kube::Result<()> {
        let owners = pods
            .iter()
            .filter(|it| it.namespace == self.namespace)
            .filter_map(|it| it.owner.as_ref())
            .filter(|it| it.kind != "DaemonSet");
        let unknown: Vec<_> = {
            let known = self.controllers.borrow();
            let unknown = owners.filter(|it| !known.contains_key(&it.uid));
            unknown.map(|it| it.uid.clone()).collect()
        };
        if let (Some(pod), false) = (&self.pod, unknown.is_empty()) {
            let ours = self.learn(client, pod).await?;
            let mut known = self.controllers.borrow_mut();
            known.extend(unknown.into_iter().map(|uid| (uid, false)));
            known.extend(ours.into_iter().map(|uid| (uid, true)));
        }
        let known = self.controllers.borrow();
        let operators = known.iter().filter(|(_, is_own_pod)| **is_own_pod);
        let installation = drain::Installation {
            namespace: self.namespace.clone(),
            operators: operators.map(|(uid, _)| uid.clone()).collect(),
        };
        for pod in pods {
            pod.ours = installation.recognise(pod);
        }
        Ok(())
    }

    /// The controllers of the operator's pods: that of the pod that we are, and the other `ReplicaSets` of its Deployment.
    async fn learn(&self, client: &Client, pod: &str) -> kube::Result<Vec<String>> {
        let found = pods::named(client, &self.namespace, pod).await?;
        let Some(own) = found.and_then(|it| it.owner) else {
            tracing::warn!(
                "pod {}/{pod} (POD_NAME) does not exist or has no controller: a drain treats the operator's pods like any others",
                self.namespace
            );
            return Ok(Vec::new());
        };
        if own.kind != "ReplicaSet" {
            return Ok(vec![own.uid]);
        }
        let api: Api<ReplicaSet> = Api::namespaced(client.clone(), &self.namespace);
        let sets = api.list_metadata(&ListParams::default()).await?.items;
        let controller = |it: &PartialObjectMeta<ReplicaSet>| {
            let owners: &[OwnerReference] = it.owner_references();
            let controller = owners.iter().find(|it| it.controller == Some(true));
            controller.map(|it| it.uid.clone())
        };
        let mine = sets.iter().find(|it| it.uid().as_ref() == Some(&own.uid));
        let deployment = mine.and_then(controller);
        let siblings = sets
            .iter()
            .filter(|it| deployment.is_some() && controller(it) == deployment)
            .filter_map(ResourceExt::uid);
        Ok(siblings.chain([own.uid]).collect())
    }
}
