//! `evenkeel-operator uninstall`: what the chart runs before it is removed. `evenkeel_plan::fleet::uninstall`
//! says what of a Node is ours; here it is taken off, after everybody of ours who could put it back was
//! stopped.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use evenkeel_api::names::{object, openshift, program};
use evenkeel_daemon::{Arguments, Daemon, Error, Listen, Program, Result};
use evenkeel_plan::fleet::uninstall::{Farewell, Marks, farewell, is_our_lease};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::api::{DeleteParams, ListParams, Patch};
use kube::core::DynamicObject;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::objects::{list_all, ours, resource};

/// How many Nodes are read at once, and how many written.
const PAGE: u32 = 200;
const WRITES: usize = 8;
/// The pause between two looks at what is on its way out.
const PAUSE: Duration = Duration::from_millis(500);

/// What the person says.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Namespace that Evenkeel is installed in
    #[arg(
        long,
        env = "POD_NAMESPACE",
        value_name = "NAME",
        default_value = "evenkeel"
    )]
    namespace: String,
    /// Print what would be removed, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Time limit for the whole uninstall
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = evenkeel_api::duration::parse)]
    timeout: Duration,
}

/// Uninstalls, within its time.
pub(crate) async fn run(program: Program, arguments: &Arguments, options: &Options) -> Result<()> {
    let arguments = Arguments {
        listen: Listen::Off,
        ..arguments.clone()
    };
    let daemon = Daemon::start(program, &arguments).await?;
    let work = async |daemon: &Daemon| {
        let uninstall = Uninstall {
            client: daemon.client(),
            options,
        };
        tokio::select! {
            ended = uninstall.everything() => ended.map_err(Error::work),
            () = tokio::time::sleep(options.timeout) => Err(Error::work(format!(
                "did not finish within {:?}: the steps printed above are done; run it again, with a longer --timeout if needed",
                options.timeout
            ))),
            () = daemon.stop().stopped() => Err(Error::work("was interrupted: run it again to finish")),
        }
    };
    daemon.run(work).await
}

struct Uninstall<'a> {
    client: Client,
    options: &'a Options,
}

/// What failed, on what.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
struct Failed {
    what: String,
    source: kube::Error,
}

fn failed(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Failed {
    let what = what.into();
    |source| Failed { what, source }
}

/// One line for whoever ran it.
fn say(line: &str) {
    println!("{line}");
}

impl Uninstall<'_> {
    async fn everything(&self) -> Result<(), Failed> {
        self.stop_our_programs().await?;
        self.take_rights_and_policies().await?;
        self.remove_leases().await?;
        let nodes = self.clean_nodes().await?;
        let done = if self.options.dry_run {
            "would change (dry run)"
        } else {
            "changed; nothing of Evenkeel is left on any node"
        };
        say(&format!("{nodes} nodes {done}"));
        Ok(())
    }

    /// Whoever of us runs would write again what is taken off.
    async fn stop_our_programs(&self) -> Result<(), Failed> {
        let namespace = &self.options.namespace;
        let operator: Api<Deployment> = Api::namespaced(self.client.clone(), namespace);
        let agent: Api<DaemonSet> = Api::namespaced(self.client.clone(), namespace);
        let lease: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
        self.remove(&operator, program::OPERATOR).await?;
        self.remove(&agent, program::AGENT).await?;
        self.is_gone(&operator, program::OPERATOR).await?;
        self.is_gone(&agent, program::AGENT).await?;
        self.remove(&lease, program::OPERATOR).await?;
        let permits: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        self.remove(&permits, object::PERMITS).await
    }

    /// Agents that are services of their machines run on: without rights they write nothing. Their
    /// policy goes after that.
    async fn take_rights_and_policies(&self) -> Result<(), Failed> {
        let bindings: Api<ClusterRoleBinding> = Api::all(self.client.clone());
        for name in [program::OPERATOR, program::AGENT] {
            self.remove(&bindings, name).await?;
        }
        let leases: Api<RoleBinding> =
            Api::namespaced(self.client.clone(), object::EXTENSIONS_NAMESPACE);
        self.remove(&leases, program::AGENT).await?;
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(self.client.clone());
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(self.client.clone());
        for name in object::AGENT_POLICIES {
            self.remove(&bindings, name).await?;
            self.remove(&policies, name).await?;
        }
        self.let_new_nodes_be().await
    }

    /// New nodes are not tainted any more. Clusters before 1.36 have no such policies.
    async fn let_new_nodes_be(&self) -> Result<(), Failed> {
        for (kind, plural) in [
            (
                "MutatingAdmissionPolicyBinding",
                "mutatingadmissionpolicybindings",
            ),
            ("MutatingAdmissionPolicy", "mutatingadmissionpolicies"),
        ] {
            let resource = resource("admissionregistration.k8s.io", "v1", kind, plural);
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
            self.remove_one(&api, kind, object::READINESS_POLICY)
                .await?;
        }
        Ok(())
    }

    /// Removes an object with everything that it owns; it need not be there.
    async fn remove<K>(&self, api: &Api<K>, name: &str) -> Result<(), Failed>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        self.remove_one(api, &K::kind(&()), name).await
    }

    async fn remove_one<K>(&self, api: &Api<K>, kind: &str, name: &str) -> Result<(), Failed>
    where
        K: Resource + Clone + DeserializeOwned + Debug,
    {
        let what = format!("{kind} {name}");
        let found = api.get_opt(name).await;
        let found = found.map_err(failed(format!("read {what}")))?;
        if found.is_none_or(|it| it.meta().deletion_timestamp.is_some()) {
            return Ok(());
        }
        say(&format!("{what}: remove"));
        if self.options.dry_run {
            return Ok(());
        }
        match api.delete(name, &DeleteParams::foreground()).await {
            Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
            other => other.map(|_| ()).map_err(failed(format!("remove {what}"))),
        }
    }

    /// Waits until an object, and with it what it owns, is gone.
    async fn is_gone<K>(&self, api: &Api<K>, name: &str) -> Result<(), Failed>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        if self.options.dry_run {
            return Ok(());
        }
        let what = format!("{} {name}", K::kind(&()));
        let mut is_told = false;
        loop {
            let found = api.get_opt(name).await;
            if found.map_err(failed(format!("read {what}")))?.is_none() {
                return Ok(());
            }
            if !is_told {
                say(&format!("{what}: waiting until its pods are gone"));
                is_told = true;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Removes the Leases that agents renewed, until none is left: a last renewal may be on its way. Those of other extensions
    /// stay.
    async fn remove_leases(&self) -> Result<(), Failed> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), object::EXTENSIONS_NAMESPACE);
        let mut told = BTreeSet::new();
        loop {
            let page = ListParams::default().limit(PAGE);
            let all = list_all(&leases, page, |lease: Lease| lease.name_any()).await;
            let mut all = all.map_err(failed("list the Leases of agents"))?;
            all.retain(|name| is_our_lease(name));
            for name in &all {
                if told.insert(name.clone()) {
                    say(&format!("Lease {name}: remove"));
                }
            }
            if all.is_empty() || self.options.dry_run {
                return Ok(());
            }
            let removed = futures::stream::iter(&all)
                .map(|name| self.remove_lease(&leases, name))
                .buffer_unordered(WRITES);
            removed.try_collect::<()>().await?;
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn remove_lease(&self, leases: &Api<Lease>, name: &str) -> Result<(), Failed> {
        match leases.delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
            other => other
                .map(|_| ())
                .map_err(failed(format!("remove Lease {name}"))),
        }
    }

    /// Takes what is ours off every Node, until nothing is left. Says how many had something.
    async fn clean_nodes(&self) -> Result<usize, Failed> {
        let beside_openshift = self.beside_openshift().await?;
        let mut changed = BTreeSet::new();
        loop {
            let marked = self.marked_nodes(beside_openshift).await?;
            if marked.is_empty() {
                return Ok(changed.len());
            }
            for (node, farewell) in &marked {
                if changed.insert(node.name_any()) {
                    say(&format!("node {}: {farewell}", node.name_any()));
                }
            }
            if self.options.dry_run {
                return Ok(changed.len());
            }
            let writes: Vec<bool> = futures::stream::iter(&marked)
                .map(|(node, farewell)| self.clean(node, farewell))
                .buffer_unordered(WRITES)
                .try_collect()
                .await?;
            if writes.contains(&false) {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Every Node with something of ours on it.
    async fn marked_nodes(&self, beside_openshift: bool) -> Result<Vec<(Node, Farewell)>, Failed> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let page = ListParams::default().limit(PAGE);
        let read = |node: Node| {
            let farewell = farewell_of(&node, beside_openshift);
            (!farewell.is_empty()).then_some((node, farewell))
        };
        let all = list_all(&nodes, page, read).await;
        let all = all.map_err(failed("list the nodes"))?;
        Ok(all.into_iter().flatten().collect())
    }

    /// One write, provided that the Node is still as it was seen. Says whether it was.
    async fn clean(&self, node: &Node, farewell: &Farewell) -> Result<bool, Failed> {
        let name = node.name_any();
        let gone: serde_json::Map<String, _> = farewell
            .annotations
            .iter()
            .map(|name| (name.clone(), json!(null)))
            .collect();
        let mut patch = json!({ "metadata": {
            "uid": node.metadata.uid,
            "resourceVersion": node.metadata.resource_version,
            "annotations": gone,
        }});
        let spec = node.spec.as_ref();
        if farewell.uncordon {
            patch["spec"]["unschedulable"] = json!(null);
        }
        if !farewell.taints.is_empty() {
            let taints = spec.and_then(|spec| spec.taints.as_ref());
            let others: Vec<_> = taints
                .into_iter()
                .flatten()
                .filter(|taint| !farewell.taints.contains(&taint.key))
                .collect();
            patch["spec"]["taints"] = json!(others);
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        match nodes.patch(&name, &ours(), &Patch::Merge(patch)).await {
            Ok(_) => Ok(true),
            // It changed meanwhile, or is gone: the next look tells.
            Err(kube::Error::Api(answer)) if [404, 409].contains(&answer.code) => Ok(false),
            Err(error) => Err(failed(format!("write node {name}"))(error)),
        }
    }

    /// Whether OpenShift's own machine-config operator is in this cluster.
    async fn beside_openshift(&self) -> Result<bool, Failed> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), openshift::NAMESPACE);
        for name in openshift::LEASES {
            let lease = leases.get_opt(name).await;
            let lease = lease.map_err(failed(format!("read Lease {name}")))?;
            if lease.is_some() {
                say("OpenShift's machine-config operator is installed: its annotations stay");
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn farewell_of(node: &Node, beside_openshift: bool) -> Farewell {
    let spec = node.spec.as_ref();
    let taints = spec.and_then(|spec| spec.taints.as_ref());
    let keys: Vec<&str> = taints
        .into_iter()
        .flatten()
        .map(|taint| taint.key.as_str())
        .collect();
    let marks = Marks {
        annotations: node.annotations(),
        taints: &keys,
        unschedulable: spec.and_then(|spec| spec.unschedulable) == Some(true),
    };
    farewell(marks, beside_openshift)
}
