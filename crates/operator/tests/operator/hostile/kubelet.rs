//! What kubelets lie about: what their Node was made of, where it is, and what they may have a certificate for. Also the
//! kubelet of the honest node, as if somebody had taken it over.

use std::time::Duration;

use evenkeel_api::names::annotation;
use evenkeel_testbed::kubeconfig::Kubeconfig;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::windows_instance::WindowsInstance;
use evenkeel_testbed::{Doing, Error, Result};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::machine::LyingMachine;
use super::{HONEST, INSTANCE, MASTER};
use crate::instances::bed::Bed;
use crate::instances::certificates::{Asked, answer, ask};

const LIAR: &str = "op-kubelet-1";
const DOUBLE: &str = "op-kubelet-2";
const SERVING: Asked<'static> = Asked {
    what: "",
    signer: "kubernetes.io/kubelet-serving",
    names: &[],
    organisations: &["system:nodes"],
    usages: &["digital signature", "server auth"],
    sans: &[],
};

/// A lie, and the request for a certificate that nobody may approve, if it is about one.
pub(super) struct Told {
    what: String,
    request: Option<String>,
}

/// The Node of a liar, made by its own kubelet. What the chart's policies let no kubelet write is written as if there were none: the
/// operator believes none of it, either.
async fn register(bed: &Bed, name: &str, instance: &str, addresses: &[&str]) -> Result<Kubeconfig> {
    let login = bed.scene.control_plane.kubeconfig_for_node(name)?;
    let nodes: Api<Node> = Api::all(login.client().await?);
    let node: Node = serde_json::from_value(json!({ "metadata": {
        "name": name,
        "labels": { "kubernetes.io/os": "windows", "place": bed.scene.name },
    } }))
    .doing(|| "no Node")?;
    let made = nodes.create(&PostParams::default(), &node).await;
    made.doing(|| "a kubelet cannot make its Node")?;
    let words = json!({ "metadata": { "annotations": {
        INSTANCE: format!("Administrator@{instance}"),
        "windowsmachineconfig.openshift.io/version": "1.2.3-abc1234",
        "windowsmachineconfig.openshift.io/desired-version": "1.2.3-abc1234",
    } } });
    bed.scene.patch(name, &words).await?;
    say(&nodes, name, addresses).await?;
    Ok(login)
}

/// Says where a Node is, as its kubelet.
async fn say(nodes: &Api<Node>, name: &str, addresses: &[&str]) -> Result<()> {
    let addresses: Vec<_> = addresses
        .iter()
        .map(|it| {
            let kind = if it.parse::<std::net::IpAddr>().is_ok() {
                "InternalIP"
            } else {
                "InternalDNS"
            };
            json!({ "type": kind, "address": it })
        })
        .collect();
    let patch = Patch::Merge(json!({ "status": { "addresses": addresses } }));
    let said = nodes
        .patch_status(name, &PatchParams::default(), &patch)
        .await;
    said.map(|_| ())
        .doing(|| "a kubelet cannot say where it is")
}

/// Tells all of them.
pub(super) async fn lie(
    bed: &Bed,
    honest: &WindowsInstance,
    bait: &LyingMachine,
) -> Result<Vec<Told>> {
    let (address, bait) = (honest.address().to_string(), bait.address.to_string());
    let everything = [
        "10.77.0.1",
        &address,
        "10.96.0.1",
        "127.36.0.1",
        "kubernetes.default.svc",
        MASTER,
        HONEST,
    ];
    let liar = register(bed, LIAR, &bait, &everything).await?;
    let double = register(bed, DOUBLE, &address, &[&address]).await?;
    let plane = bed.scene.control_plane;
    let own = plane.kubeconfig_for_node(HONEST)?;
    let told = |what: &str| Told {
        what: what.to_owned(),
        request: None,
    };
    let mut all = vec![
        told("its Node was made of a machine that nobody lists"),
        told("its Node was made of the machine of an honest one, and is at its address"),
    ];
    let nodes: Api<Node> = Api::all(own.client().await?);
    say(&nodes, HONEST, &everything).await?;
    let agent = |name: &str| {
        plane.kubeconfig_for_user(&format!("evenkeel:agent:{name}"), &["evenkeel:agents"])
    };
    let server = |name: &str, sans: &[&str]| -> Vec<(String, Vec<String>)> {
        sans.iter()
            .map(|it| (name.to_owned(), vec![(*it).to_owned()]))
            .collect()
    };
    let asks = [
        (
            &liar,
            server(
                LIAR,
                &[
                    "10.77.0.1",
                    &address,
                    HONEST,
                    LIAR,
                    "kubernetes.default.svc",
                    "10.96.0.1",
                ],
            ),
        ),
        (&double, server(DOUBLE, &[&address, HONEST])),
        (
            &own,
            server(
                HONEST,
                &[
                    "10.77.0.1",
                    "10.96.0.1",
                    "127.36.0.1",
                    "kubernetes.default.svc",
                    MASTER,
                ],
            ),
        ),
    ];
    for (login, asked) in asks {
        for (name, sans) in asked {
            let user = format!("system:node:{name}");
            let sans: Vec<&str> = sans.iter().map(String::as_str).collect();
            let what = format!("{name} serves as {}", sans.join(", "));
            let asked = Asked {
                what: &what,
                names: &[&user],
                sans: &sans,
                ..SERVING
            };
            let request = ask(asked, login).await?;
            all.push(Told { what, request });
        }
    }
    let user = format!("evenkeel:agent:{LIAR}");
    let asked = Asked {
        what: "the agent of a node that calls itself ours renews its login",
        signer: "kubernetes.io/kube-apiserver-client",
        names: &[&user],
        organisations: &["evenkeel:agents"],
        usages: &["digital signature", "client auth"],
        sans: &[],
    };
    let request = ask(asked, &agent(LIAR)?).await?;
    all.push(Told {
        what: asked.what.to_owned(),
        request,
    });
    for (login, what, name) in [
        (&liar, "a kubelet", HONEST),
        (&agent(LIAR)?, "an agent", HONEST),
        (&agent(HONEST)?, "the honest agent", MASTER),
    ] {
        let user = format!("evenkeel:agent:{name}");
        let what = format!("{what} asks for the login of the agent of {name}");
        let asked = Asked {
            what: &what,
            names: &[&user],
            ..asked
        };
        let request = ask(asked, login).await?;
        all.push(Told { what, request });
    }
    for (name, organisations) in [
        (HONEST, ["system:nodes"].as_slice()),
        (LIAR, &["system:nodes", "system:masters"]),
    ] {
        let user = format!("system:node:{name}");
        let what = format!("{LIAR} asks for the login of {user} in {organisations:?}");
        let asked = Asked {
            what: &what,
            signer: "kubernetes.io/kube-apiserver-client-kubelet",
            names: &[&user],
            organisations,
            usages: &["digital signature", "client auth"],
            sans: &[],
        };
        let request = ask(asked, &liar).await?;
        all.push(Told { what, request });
    }
    all.extend(write(bed, &liar).await?);
    Ok(all)
}

/// What a kubelet tries to write of another node, and of its own what would make it another's: refused by the API server. What it could
/// write where no policy of ours is in force stands on its Node, and is believed by nobody.
async fn write(bed: &Bed, login: &Kubeconfig) -> Result<Vec<Told>> {
    let client = login.client().await?;
    let nodes: Api<Node> = Api::all(client.clone());
    let parameters = PatchParams::default();
    let merge = |patch: Value| Patch::Merge(patch);
    let tainted = merge(json!({ "spec": { "unschedulable": true } }));
    let moved = merge(json!({ "status": { "addresses": [] } }));
    let master =
        merge(json!({ "metadata": { "labels": { "node-role.kubernetes.io/control-plane": "" } } }));
    let renewed = merge(json!({ "spec": { "holderIdentity": LIAR } }));
    let leases = |namespace: &str| -> Api<Lease> { Api::namespaced(client.clone(), namespace) };
    let beats = leases("kube-node-lease");
    let reports = leases("node-extensions");
    let report = format!("{HONEST}.evenkeel-agent");
    let told = vec![
        refused(
            "a kubelet deletes the honest Node",
            nodes.delete(HONEST, &DeleteParams::default()).await,
        )?,
        refused(
            "a kubelet cordons the honest Node",
            nodes.patch(HONEST, &parameters, &tainted).await,
        )?,
        refused(
            "a kubelet says that the honest Node is nowhere",
            nodes.patch_status(HONEST, &parameters, &moved).await,
        )?,
        refused(
            "a kubelet labels its Node as the control plane",
            nodes.patch(LIAR, &parameters, &master).await,
        )?,
        refused(
            "a kubelet renews the Lease of the honest one",
            beats.patch(HONEST, &parameters, &renewed).await,
        )?,
        refused(
            "a kubelet reports as the honest agent",
            reports.patch(&report, &parameters, &renewed).await,
        )?,
        Told {
            what: "a Node says that it may go down and that its drain is over".to_owned(),
            request: None,
        },
    ];
    let permit = json!({ "metadata": { "annotations": {
        annotation::DRAIN_GRANTED: "drain-1.2.3-abc1234",
        annotation::DESIRED_DRAIN: "drain-1.2.3-abc1234",
        annotation::LAST_APPLIED_DRAIN: "drain-1.2.3-abc1234",
        annotation::CORDONED_BY: "drain",
    } } });
    bed.scene.patch(LIAR, &permit).await?;
    Ok(told)
}

/// What the API server does not let somebody write.
fn refused<T>(what: &str, answer: kube::Result<T>) -> Result<Told> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(Told {
            what: what.to_owned(),
            request: None,
        }),
        answer => Err(Error::failed(format!("{what}: {:?}", answer.map(|_| ())))),
    }
}

/// None of them was approved.
pub(super) async fn must_not_have(bed: &Bed, told: &[Told]) -> Result<()> {
    for it in told {
        let said = match &it.request {
            Some(request) => answer(&bed.scene, request).await?,
            None => Vec::new(),
        };
        println!("proof: {}: {said:?}", it.what);
        if said.iter().any(|it| it.starts_with("Approved")) {
            return Err(Error::failed(format!("{}: {said:?}", it.what)));
        }
    }
    Ok(())
}

/// The honest kubelet has a server's certificate for its own address and name, whoever else claims them.
pub(super) async fn honest_is_served(bed: &Bed, honest: &WindowsInstance) -> Result<()> {
    let address = honest.address().to_string();
    let login = bed.scene.control_plane.kubeconfig_for_node(HONEST)?;
    let asked = Asked {
        what: "the honest kubelet serves",
        names: &["system:node:op-honest"],
        sans: &[&address, HONEST],
        ..SERVING
    };
    let request = ask(asked, &login).await?;
    let request = request.ok_or_else(|| Error::failed("the honest one may not ask"))?;
    until_async(asked.what, Duration::from_secs(20), async || {
        let said = answer(&bed.scene, &request).await?;
        Ok(if said.iter().any(|it| it.starts_with("Approved")) {
            Look::Found(())
        } else {
            Look::NotYet(format!("{said:?}\n{}", bed.last_words(5)))
        })
    })
    .await
}
