//! Everything that the API server offers, tried as an agent and as a kubelet: what is not in the contract is refused.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::kubeconfig::Kubeconfig;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use futures::StreamExt;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::discovery::{Discovery, Scope};
use kube::{Api, Client};
use serde_json::json;

use super::scene::cluster;

const VERBS: [&str; 11] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "approve",
    "sign",
    "impersonate",
];
/// Namespaces where something is to be had: ours, where signs of life are, and others.
const NAMESPACES: [&str; 5] = [
    "evenkeel",
    "node-extensions",
    "kube-node-lease",
    "kube-system",
    "default",
];
/// How many questions are asked at once.
const AT_ONCE: usize = 16;

/// What an agent may do at all, by its contract; on whose objects is the policies' to say. `NAMESPACE/group/resource/verbs`,
/// with `*` for every namespace, and none for what has none.
const AGENT: [&str; 10] = [
    "/core/nodes/get,list,watch,patch",
    "/machineconfiguration.openshift.io/machineconfigs/get,list,watch",
    "/evenkeel.dev/nodereadinessrules/get,list,watch",
    "*/core/events/create,patch",
    "*/events.k8s.io/events/create,patch",
    "/certificates.k8s.io/certificatesigningrequests/create,get",
    "/authentication.k8s.io/tokenreviews/create",
    "/authorization.k8s.io/subjectaccessreviews/create",
    "evenkeel/core/configmaps/get,list,watch",
    "node-extensions/coordination.k8s.io/leases/get,create,update",
];
/// What the API server gives to everybody who is logged in.
const EVERYBODY: [&str; 4] = [
    "/authentication.k8s.io/selfsubjectreviews/create",
    "/authorization.k8s.io/selfsubjectaccessreviews/create",
    "/authorization.k8s.io/selfsubjectrulesreviews/create",
    "/certificates.k8s.io/clustertrustbundles/get,list,watch",
];

fn is_in(contract: &[&str], namespace: &str, group: &str, resource: &str, verb: &str) -> bool {
    contract.iter().any(|row| {
        let parts: Vec<&str> = row.split('/').collect();
        let [of, its_group, its_resource @ .., verbs] = parts.as_slice() else {
            return false;
        };
        (*of == namespace || *of == "*")
            && *its_group == group
            && its_resource.join("/") == resource
            && verbs.split(',').any(|it| it == verb)
    })
}

/// Every resource and subresource that the API server has: group, name, and whether it has a namespace.
async fn everything(admin: &Client) -> Result<Vec<(String, String, bool)>> {
    let discovery = Discovery::new(admin.clone()).run().await;
    let discovery = discovery.doing(|| "no discovery")?;
    let mut all = BTreeSet::new();
    for group in discovery.groups() {
        for (resource, capabilities) in group.resources_by_stability() {
            let is_namespaced = capabilities.scope == Scope::Namespaced;
            all.insert((
                resource.group.clone(),
                resource.plural.clone(),
                is_namespaced,
            ));
            for (sub, _) in &capabilities.subresources {
                let name = if sub.plural.contains('/') {
                    sub.plural.clone()
                } else {
                    format!("{}/{}", resource.plural, sub.plural)
                };
                all.insert((resource.group.clone(), name, is_namespaced));
            }
        }
    }
    // What discovery does not name, and RBAC knows.
    for (group, resource) in [
        ("", "nodes/proxy"),
        ("", "pods/exec"),
        ("", "serviceaccounts/token"),
        ("", "users"),
        ("", "groups"),
        ("certificates.k8s.io", "signers"),
        ("certificates.k8s.io", "certificatesigningrequests/approval"),
    ] {
        let has_namespace = resource.starts_with("pods") || resource.starts_with("serviceaccounts");
        all.insert((group.to_owned(), resource.to_owned(), has_namespace));
    }
    Ok(all.into_iter().collect())
}

async fn may(
    client: &Client,
    namespace: &str,
    group: &str,
    resource: &str,
    verb: &str,
) -> Result<bool> {
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, sub)) => (resource, Some(sub.to_owned())),
        None => (resource, None),
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                namespace: Some(namespace.to_owned()),
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                subresource,
                verb: Some(verb.to_owned()),
                name: Some("not-theirs".to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = api.create(&PostParams::default(), &review).await;
    let answer = answer.doing(|| format!("cannot ask for {verb} {resource}"))?;
    Ok(answer.status.is_some_and(|it| it.allowed))
}

/// What `login` may do beside its contract, and how many things were tried.
async fn beyond(login: &Kubeconfig, contract: &[&str]) -> Result<(BTreeSet<String>, usize)> {
    let admin = cluster()?.admin_kubeconfig().client().await?;
    let client = login.client().await?;
    let mut tries = Vec::new();
    for (group, resource, is_namespaced) in everything(&admin).await? {
        let namespaces: &[&str] = if is_namespaced { &NAMESPACES } else { &[""] };
        for namespace in namespaces {
            for verb in VERBS {
                tries.push((*namespace, group.clone(), resource.clone(), verb));
            }
        }
    }
    let count = tries.len();
    let asked = tries
        .into_iter()
        .map(async |(namespace, group, resource, verb)| {
            let allowed = may(&client, namespace, &group, &resource, verb).await?;
            let named = if group.is_empty() { "core" } else { &group };
            let is_known = [contract, &EVERYBODY]
                .iter()
                .any(|it| is_in(it, namespace, named, &resource, verb));
            Ok((allowed && !is_known).then(|| format!("{namespace}/{named}/{resource}/{verb}")))
        });
    let found: Vec<Result<Option<String>>> = futures::stream::iter(asked)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let found: Result<Vec<_>> = found.into_iter().collect();
    Ok((found?.into_iter().flatten().collect(), count))
}

/// Covers S05.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_may_do_nothing_that_is_not_in_its_contract() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let login = cluster()?.kubeconfig_for_user("evenkeel:agent:rights", &["evenkeel:agents"])?;
    let (beyond, count) = beyond(&login, &AGENT).await?;
    println!("proof: {count} combinations of verb and resource were tried as an agent");
    assert!(count > 3000, "only {count}");
    assert_eq!(beyond, BTreeSet::new());
    Ok(())
}

/// What we install gives a kubelet nothing that it did not have: neither by a role, nor by a word on its Node.
///
/// Covers S05.
#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_gets_nothing_by_what_we_install() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let login = cluster()?.kubeconfig_for_node("rights-kubelet")?;
    // What Kubernetes itself gives to kubelets, in groups that are none of ours.
    let (beyond, count) = beyond(&login, &[]).await?;
    println!("proof: {count} combinations of verb and resource were tried as a kubelet");
    let ours = ["evenkeel.dev", "machineconfiguration.openshift.io"];
    let of_ours: Vec<_> = beyond
        .iter()
        .filter(|it| {
            ours.iter().any(|group| it.contains(group))
                || it.starts_with("node-extensions/coordination.k8s.io/")
        })
        .collect();
    assert_eq!(of_ours, Vec::<&String>::new());
    for never in [
        "/core/nodes/delete",
        "/core/nodes/deletecollection",
        "/certificates.k8s.io/signers/approve",
    ] {
        assert!(!beyond.contains(never), "a kubelet may {never}");
    }

    // A Node of its own, made by itself.
    let client = login.client().await?;
    let nodes: Api<Node> = Api::all(client);
    let administrator = cluster()?.admin_kubeconfig().client().await?;
    let administrator: Api<Node> = Api::all(administrator);
    let node = json!({ "metadata": { "name": "rights-kubelet" } });
    let node: Node = serde_json::from_value(node).doing(|| "no node")?;
    let made = nodes.create(&PostParams::default(), &node).await;
    made.doing(|| "a kubelet may register")?;
    for word in [
        "evenkeel.dev/desired-config",
        "evenkeel.dev/drain-granted",
        "evenkeel.dev/autoscaler-annotations",
        "evenkeel.dev/cordoned-by",
        "evenkeel.dev/instance",
        "machineconfiguration.openshift.io/lastAppliedDrain",
        "machineconfiguration.openshift.io/desiredConfig",
        "windowsmachineconfig.openshift.io/desired-version",
    ] {
        refused(&nodes, word, &json!("x")).await?;
        // What the operator or an administrator wrote there, a kubelet may not take away either.
        let written = json!({ "metadata": { "annotations": { word: "y" } } });
        let written = Patch::Merge(&written);
        administrator
            .patch("rights-kubelet", &PatchParams::default(), &written)
            .await
            .doing(|| format!("an administrator may write {word}"))?;
        refused(&nodes, word, &serde_json::Value::Null).await?;
    }
    Ok(())
}

/// Waits until the policies keep a kubelet from writing `value` to an annotation of its own Node.
async fn refused(nodes: &Api<Node>, word: &str, value: &serde_json::Value) -> Result<()> {
    let patch = json!({ "metadata": { "annotations": { word: value } } });
    let what = format!("a kubelet to be refused {word}: {value}");
    until_async(&what, Duration::from_secs(30), async || {
        let said = nodes
            .patch(
                "rights-kubelet",
                &PatchParams::default(),
                &Patch::Merge(&patch),
            )
            .await;
        Ok(match said {
            Err(error) if error.to_string().contains("evenkeel-") => Look::Found(()),
            said => Look::NotYet(format!("{:?}", said.map(|_| "allowed"))),
        })
    })
    .await
}
