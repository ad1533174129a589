//! Certificates are for kubelets and agents of machines that are ours, and for nobody who says so.

use std::time::Duration;

use evenkeel_testbed::kubeconfig::Kubeconfig;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use serde_json::json;

use super::bed::{Bed, LONG, is_skipped};
use crate::scene::Scene;

const NODE: &str = "op-csr-1";
const KUBELET: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING: &str = "kubernetes.io/kubelet-serving";
const CLIENT: &str = "kubernetes.io/kube-apiserver-client";

/// What somebody asks for.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) what: &'a str,
    pub(crate) signer: &'a str,
    pub(crate) names: &'a [&'a str],
    pub(crate) organisations: &'a [&'a str],
    pub(crate) usages: &'a [&'a str],
    pub(crate) sans: &'a [&'a str],
}

const LOGIN: &[&str] = &["digital signature", "client auth"];
const SERVER: &[&str] = &["digital signature", "server auth"];
const NODES: &[&str] = &["system:nodes"];
const AGENTS: &[&str] = &["evenkeel:agents"];

const KUBELET_LOGIN: Asked<'static> = Asked {
    what: "a kubelet's first login",
    signer: KUBELET,
    names: &["system:node:op-csr-1"],
    organisations: NODES,
    usages: LOGIN,
    sans: &[],
};
pub(crate) const AGENT_LOGIN: Asked<'static> = Asked {
    what: "an agent's login",
    signer: CLIENT,
    names: &["evenkeel:agent:op-csr-1"],
    organisations: AGENTS,
    usages: LOGIN,
    sans: &[],
};

/// Asks for it, and says the request's name; none if the API server does not even take it.
pub(crate) async fn ask(asked: Asked<'_>, login: &Kubeconfig) -> Result<Option<String>> {
    let mut parameters = CertificateParams::default();
    // One name of a kind is all that the library has: a second one is of another kind of text.
    for (at, name) in asked.names.iter().enumerate() {
        let kind = if at == 0 {
            DnType::CommonName
        } else {
            DnType::CustomDnType(vec![2, 5, 4, 3])
        };
        parameters.distinguished_name.push(kind, *name);
    }
    for (at, name) in asked.organisations.iter().enumerate() {
        let kind = if at == 0 {
            DnType::OrganizationName
        } else {
            DnType::CustomDnType(vec![2, 5, 4, 10])
        };
        parameters.distinguished_name.push(kind, *name);
    }
    for san in asked.sans {
        parameters.subject_alt_names.push(match san.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName((*san).try_into().doing(|| "no name")?),
        });
    }
    let key = KeyPair::generate().doing(|| "no key")?;
    let pem = parameters
        .serialize_request(&key)
        .and_then(|it| it.pem())
        .doing(|| "no request")?;
    let request: CertificateSigningRequest = serde_json::from_value(json!({
        "metadata": { "generateName": "tried-" },
        "spec": {
            "request": ByteString(pem.into_bytes()),
            "signerName": asked.signer,
            "usages": asked.usages,
        },
    }))
    .doing(|| "no request")?;
    let api: Api<CertificateSigningRequest> = Api::all(login.client().await?);
    match api.create(&PostParams::default(), &request).await {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
        made => {
            let made = made.doing(|| format!("cannot ask for {}", asked.what))?;
            Ok(Some(made.name_any()))
        }
    }
}

/// What became of a request: its conditions.
pub(crate) async fn answer(scene: &Scene, name: &str) -> Result<Vec<String>> {
    let api: Api<CertificateSigningRequest> = Api::all(scene.client.clone());
    let found = api.get(name).await.doing(|| "no such request")?;
    let conditions = found.status.and_then(|it| it.conditions);
    let said = conditions.into_iter().flatten();
    Ok(said
        .map(|it| format!("{}: {}", it.type_, it.message.unwrap_or_default()))
        .collect())
}

async fn approved(bed: &Bed, asked: Asked<'_>, login: &Kubeconfig) -> Result<()> {
    let name = ask(asked, login).await?;
    let name = name.ok_or_else(|| Error::failed(format!("nobody may ask for {}", asked.what)))?;
    until_async(
        &format!("{} to be approved", asked.what),
        Duration::from_secs(20),
        async || {
            let said = answer(&bed.scene, &name).await?;
            Ok(if said.iter().any(|it| it.starts_with("Approved")) {
                Look::Found(())
            } else {
                Look::NotYet(format!("{said:?}\n{}", bed.last_words(5)))
            })
        },
    )
    .await
}

/// A Node as its kubelet makes it.
async fn make_node(bed: &Bed, name: &str, addresses: &[&str], os: &str) -> Result<()> {
    let nodes = bed.scene.nodes();
    let node: Node = serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/os": os, "place": bed.scene.name } },
    }))
    .doing(|| "no Node")?;
    nodes
        .create(&PostParams::default(), &node)
        .await
        .doing(|| "cannot make a Node")?;
    let addresses: Vec<_> = addresses
        .iter()
        .map(|it| json!({ "type": "InternalIP", "address": it }))
        .collect();
    let patch = Patch::Merge(json!({ "status": { "addresses": addresses } }));
    let said = nodes
        .patch_status(name, &PatchParams::default(), &patch)
        .await;
    said.map(|_| ()).doing(|| "cannot say where a Node is")
}

/// Covers H13.
#[tokio::test(flavor = "multi_thread")]
async fn no_forged_request_for_a_certificate_is_approved_and_every_good_one_is() -> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    // Nothing joins by itself: the test is the kubelet.
    let bed = Bed::with_kubelet("win-csr", "service-double").await?;
    let instance = bed.instance(NODE)?;
    let own = instance.address().to_string();
    let plane = bed.scene.control_plane;
    let bootstrap = plane.bootstrap_kubeconfig()?;
    let other = format!("{}-other", bed.scene.name);
    make_node(&bed, &other, &["10.88.0.1", "10.88.0.9"], "linux").await?;
    let _operator = bed.operator(&[])?;
    bed.list_these(&[&instance]).await?;
    let status = "starting its bootstrap services";
    until_async("the machine to be configured", LONG, async || {
        let seen = bed.status(&own).await?;
        let message = seen["message"].as_str().unwrap_or_default();
        Ok(if message.starts_with(status) {
            Look::Found(())
        } else {
            Look::NotYet(format!("{seen}\n{}", bed.last_words(3)))
        })
    })
    .await?;

    let node_login = |name: &str| plane.kubeconfig_for_node(name);
    let agent_login = |name: &str| {
        plane.kubeconfig_for_user(&format!("evenkeel:agent:{name}"), &["evenkeel:agents"])
    };
    let account = plane.kubeconfig_for_service_account(&bed.scene.name, "evenkeel-agent")?;
    let stranger =
        plane.kubeconfig_for_user("system:bootstrap:other", &["system:bootstrappers"])?;
    let in_masters = plane.kubeconfig_for_user(
        "system:bootstrap:testbed",
        &["system:bootstrappers", "example:auditors"],
    )?;
    let others_name = format!("system:node:{other}");
    let others_agent = format!("evenkeel:agent:{other}");
    let before = [
        (
            Asked {
                what: "an organisation more",
                organisations: &["system:nodes", "system:masters"],
                ..KUBELET_LOGIN
            },
            &bootstrap,
        ),
        (
            Asked {
                what: "another organisation",
                organisations: &["system:masters"],
                ..KUBELET_LOGIN
            },
            &bootstrap,
        ),
        (
            Asked {
                what: "a node that nobody configures",
                names: &[&others_name],
                ..KUBELET_LOGIN
            },
            &bootstrap,
        ),
        (
            Asked {
                what: "a second common name",
                names: &["system:node:op-csr-1", "system:admin"],
                ..KUBELET_LOGIN
            },
            &bootstrap,
        ),
        (
            Asked {
                what: "another usage",
                usages: SERVER,
                ..KUBELET_LOGIN
            },
            &bootstrap,
        ),
        (
            Asked {
                what: "a usage more",
                usages: &["digital signature", "client auth", "code signing"],
                ..KUBELET_LOGIN
            },
            &bootstrap,
        ),
        (
            Asked {
                what: "a name in a login",
                sans: &["kubernetes.default.svc"],
                ..KUBELET_LOGIN
            },
            &bootstrap,
        ),
        (
            Asked {
                what: "a machine's login, by another bootstrapper",
                ..KUBELET_LOGIN
            },
            &stranger,
        ),
        (
            Asked {
                what: "a bootstrapper with a group more",
                ..KUBELET_LOGIN
            },
            &in_masters,
        ),
        (
            Asked {
                what: "an agent's login, by a bootstrapper",
                ..AGENT_LOGIN
            },
            &bootstrap,
        ),
        (
            Asked {
                what: "an agent's login, with a login of another turn",
                ..AGENT_LOGIN
            },
            &account,
        ),
        (
            Asked {
                what: "somebody else's login, by an agent's account",
                names: &["admin"],
                organisations: &["system:nodes"],
                ..AGENT_LOGIN
            },
            &account,
        ),
    ];
    let mut forged = Vec::new();
    for (asked, login) in before {
        forged.push((asked.what, ask(asked, login).await?));
    }
    approved(&bed, KUBELET_LOGIN, &bootstrap).await?;

    // The machine joins: its agent gets its first login, and it is a node of ours.
    make_node(&bed, NODE, &[&own, "10.88.0.9"], "windows").await?;
    until_async("its agent to have a login", LONG, async || {
        let log = bed.scene.log();
        Ok(if log.contains("writing the desired version on its Node") {
            Look::Found(())
        } else {
            Look::NotYet(bed.last_words(5))
        })
    })
    .await?;
    let serving = Asked {
        what: "a kubelet's server",
        signer: SERVING,
        usages: SERVER,
        sans: &[&own],
        ..KUBELET_LOGIN
    };
    let (kubelet, agent) = (node_login(NODE)?, agent_login(NODE)?);
    let (strange_kubelet, strange_agent) = (node_login(&other)?, agent_login(&other)?);
    let after = [
        (
            Asked {
                what: "a second login for a node that exists",
                ..KUBELET_LOGIN
            },
            &bootstrap,
        ),
        (
            Asked {
                what: "an address of another node",
                sans: &[&own, "10.88.0.1"],
                ..serving
            },
            &kubelet,
        ),
        (
            Asked {
                what: "an address that two nodes claim",
                sans: &["10.88.0.9"],
                ..serving
            },
            &kubelet,
        ),
        (
            Asked {
                what: "the API server's name",
                sans: &["kubernetes.default.svc"],
                ..serving
            },
            &kubelet,
        ),
        (
            Asked {
                what: "no address at all",
                sans: &[],
                ..serving
            },
            &kubelet,
        ),
        (
            Asked {
                what: "a server that logs in",
                usages: LOGIN,
                ..serving
            },
            &kubelet,
        ),
        (
            Asked {
                what: "a server, by another node",
                ..serving
            },
            &strange_kubelet,
        ),
        (
            Asked {
                what: "another agent's login, by an agent",
                names: &[&others_agent],
                ..AGENT_LOGIN
            },
            &agent,
        ),
        (
            Asked {
                what: "an agent's login with an organisation more",
                organisations: &["evenkeel:agents", "system:nodes"],
                ..AGENT_LOGIN
            },
            &agent,
        ),
        (
            Asked {
                what: "an agent's login, by another agent",
                ..AGENT_LOGIN
            },
            &strange_agent,
        ),
    ];
    for (asked, login) in after {
        forged.push((asked.what, ask(asked, login).await?));
    }
    approved(&bed, serving, &kubelet).await?;
    approved(
        &bed,
        Asked {
            what: "an agent's next login",
            ..AGENT_LOGIN
        },
        &agent,
    )
    .await?;
    approved(
        &bed,
        Asked {
            what: "a kubelet's next login",
            ..KUBELET_LOGIN
        },
        &kubelet,
    )
    .await?;

    // All of them were looked at before these.
    let mut denied = 0;
    for (what, name) in &forged {
        let Some(name) = name else {
            println!("{what}: the API server does not take it");
            continue;
        };
        let said = answer(&bed.scene, name).await?;
        assert!(
            !said.iter().any(|it| it.starts_with("Approved")),
            "{what}: {said:?}"
        );
        if said.iter().any(|it| it.starts_with("Denied")) {
            denied += 1;
        }
        println!("{what}: {said:?}");
    }
    println!(
        "proof: {} kinds of forged requests, none approved, {denied} denied with the reason",
        forged.len()
    );
    assert!(forged.len() >= 14 && denied >= 14, "{denied}");
    Ok(())
}
