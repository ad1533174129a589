//! A hundred nodes that write as much as the API server takes, and honest ones among them: the operator keeps its memory, and
//! the honest ones are served on time.

use std::time::{Duration, Instant};

use evenkeel_api::names::annotation;
use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use futures::StreamExt;
use jiff::SignedDuration;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::readiness::bed::is_tainted;
use crate::replay::kib;
use crate::scene::{SOON, Scene, alone, free_port, metrics};

/// How many of them lie.
const HOSTILE: usize = 100;
/// What the chart allows the operator, in KiB.
const LIMIT_KIB: u32 = 128 * 1024;
/// What a Node's annotations may have together, nearly.
const BRIM: usize = 240 * 1024;
/// How long an honest node waits for its answer at most.
const ON_TIME: Duration = Duration::from_secs(5);

/// A list of as many extensions as fit, each in a namespace of its own.
fn longest_list(node: &str) -> String {
    let one = |number: usize| {
        format!(r#"{{"name":"e{number}","lease":{{"namespace":"{node}-{number}"}}}}"#)
    };
    let mut list = String::from("[");
    for number in 0.. {
        let next = one(number);
        if list.len() + next.len() + 2 > BRIM {
            break;
        }
        if number > 0 {
            list.push(',');
        }
        list.push_str(&next);
    }
    list.push(']');
    list
}

/// As short a list as may still count, with as many watches as may be.
fn shortest_list(node: &str) -> String {
    let one = |number: usize| json!({ "name": format!("e{number}"), "lease": { "namespace": format!("{node}-{number}") } });
    Value::from((0..8).map(one).collect::<Vec<_>>()).to_string()
}

/// A Node filled to the brim. Half of them have a list that is too long, half one that just counts.
fn hostile(scene: &Scene, number: usize) -> Result<Node> {
    let name = scene.own(&format!("liar-{number}"));
    let list = if number.is_multiple_of(2) {
        longest_list(&name)
    } else {
        shortest_list(&name)
    };
    let mut annotations = json!({ annotation::SYSTEM_EXTENSIONS: list });
    if number % 2 == 1 {
        annotations[annotation::REASON] = json!("x".repeat(BRIM - 4096));
    }
    let mut labels: serde_json::Map<String, Value> = (0..4000)
        .map(|it| (format!("l{it}"), json!("x".repeat(60))))
        .collect();
    labels.insert("place".to_owned(), json!(scene.name));
    let node =
        json!({ "metadata": { "name": name, "labels": labels, "annotations": annotations } });
    serde_json::from_value(node).doing(|| "no node")
}

async fn made<K>(api: &Api<K>, objects: Vec<K>) -> Result<()>
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + serde::Serialize
        + serde::de::DeserializeOwned
        + std::fmt::Debug,
{
    let parameters = PostParams::default();
    let making = objects.iter().map(|it| api.create(&parameters, it));
    let ended: Vec<_> = futures::stream::iter(making)
        .buffer_unordered(8)
        .collect()
        .await;
    for one in ended {
        one.doing(|| "cannot make it")?;
    }
    Ok(())
}

/// Covers S06.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_liars_cost_neither_the_memory_of_the_operator_nor_the_time_of_the_honest()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    // Not where others are: so many watches and so large objects would be theirs to bear.
    let plane = ControlPlane::start_own()?;
    let scene = Scene::on(*plane, "crowded").await?;
    scene.prepare_readiness()?;
    let honest = scene.start(scene.describe("honest")).await?;
    let honest = honest.name();
    let nodes: Vec<Node> = (0..HOSTILE)
        .map(|it| hostile(&scene, it))
        .collect::<Result<_>>()?;
    // By an administrator, whom the policies do not bind: as if there were none.
    made(&scene.nodes(), nodes).await?;
    let lease = |number: usize| -> Result<Lease> {
        let name = scene.own(&format!("liar-{number}"));
        let annotations = json!({ "a": "x".repeat(BRIM) });
        let object = json!({ "metadata": { "name": name, "annotations": annotations } });
        serde_json::from_value(object).doing(|| "no Lease")
    };
    let leases: Vec<Lease> = (0..HOSTILE).map(lease).collect::<Result<_>>()?;
    let kubelets: Api<Lease> = Api::namespaced(scene.client.clone(), "kube-node-lease");
    made(&kubelets, leases).await?;
    // The API server has to digest them first: until then it answers every list with a timeout.
    until_async("the API server to list the crowd", SOON * 5, async || {
        let one = ListParams::default().limit(1);
        Ok(match scene.nodes().list_metadata(&one).await {
            Ok(_) => Look::Found(()),
            Err(error) => Look::NotYet(error.to_string()),
        })
    })
    .await?;

    let rule = json!({ "extensions": [{ "name": "net", "lease": {} }] });
    scene.rule("net", rule).await?;
    let port = free_port()?;
    let operator = scene.operator(&[
        "--rule-selector",
        &format!("place={}", scene.name),
        "--listen",
        &format!("127.0.0.1:{port}"),
    ])?;

    // The API server has to digest the crowd first, and every controller's writes to it: until then it answers each list
    // with a timeout ("Too large resource version").
    until_async("the honest node to be closed", SOON * 5, async || {
        let seen = scene.node(honest).await?;
        Ok(if is_tainted(&seen) {
            Look::Found(())
        } else {
            Look::NotYet(format!("{:?} {}", seen.spec, scene.log()))
        })
    })
    .await?;
    // From now on an honest node is served as if it were alone.
    let begin = Instant::now();
    scene.renew(honest, "net", SignedDuration::ZERO).await?;
    until_async("the honest node to be open", SOON, async || {
        let seen = scene.node(honest).await?;
        Ok(if is_tainted(&seen) {
            Look::NotYet(scene.log())
        } else {
            Look::Found(())
        })
    })
    .await?;
    println!("proof: an honest node is open after {:?}", begin.elapsed());
    assert!(begin.elapsed() < ON_TIME, "{:?}", begin.elapsed());
    let mut number = 0;
    let is_on_time = |took: &Duration| *took < ON_TIME;
    let took = kept_async("an answer on time", is_on_time, async || {
        number += 1;
        let begin = Instant::now();
        // It needs nobody's leave, so that a hundred who are not ready hold it up by their load alone.
        let request = format!("uncordon-{number}");
        scene.ask(honest, &request).await?;
        scene.answered(honest, &request).await?;
        Ok(begin.elapsed())
    })
    .await?;
    println!("proof: an honest node is answered within {took:?}");

    // Each liar changes its list: all of it is read again.
    let again: Vec<_> = (0..HOSTILE).collect();
    let changes = again.iter().map(async |it| {
        let name = scene.own(&format!("liar-{it}"));
        let patch =
            json!({ "metadata": { "annotations": { annotation::SYSTEM_EXTENSIONS: shortest_list(&format!("{name}b")) } } });
        let (nodes, parameters) = (scene.nodes(), PatchParams::default());
        let patch = Patch::Merge(patch);
        // An API server that is busy with the crowd may answer with a timeout; a liar tries again.
        until_async("a liar to change its list", SOON, async || {
            match nodes.patch(&name, &parameters, &patch).await {
                Ok(_) => Ok(Look::Found(())),
                Err(kube::Error::Api(status)) if status.code == 504 => {
                    Ok(Look::NotYet(status.message))
                }
                Err(error) => Err(error).doing(|| "cannot change a list"),
            }
        })
        .await
    });
    let ended: Vec<_> = futures::stream::iter(changes)
        .buffer_unordered(8)
        .collect()
        .await;
    ended.into_iter().collect::<Result<()>>()?;
    let watches = |text: &str| {
        let mut lines = text.lines();
        let line = lines.find_map(|it| {
            it.strip_prefix(r#"evenkeel_api_requests_total{verb="watch",resource="leases"} "#)
        });
        line.and_then(|it| it.parse::<u64>().ok()).unwrap_or(0)
    };
    number += 100;
    scene.ask(honest, &format!("uncordon-{number}")).await?;
    scene
        .answered(honest, &format!("uncordon-{number}"))
        .await?;
    let most = kib(operator.id(), "VmHWM:");
    let begun = watches(&metrics(port).await?);
    println!("proof: {HOSTILE} liars: {most} KiB at most, {begun} watches of Leases begun");
    assert!(most > 0 && most < LIMIT_KIB, "{most} KiB");
    // Those of all lists together, twice, and our own.
    assert!(begun < 2 * 64 + 16, "{begun} watches");
    Ok(())
}

/// What the policies of the chart let no node write in the first place.
///
/// Covers S06.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_cannot_write_more_than_the_policies_say() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("bounds").await?;
    scene.prepare_readiness()?;
    let policies = Chart::render("evenkeel", &[])?.component("agent").kinds(&[
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ]);
    let one = alone();
    policies.apply(scene.control_plane)?;
    drop(one);
    let name = scene.own("kubelet");
    let kubelet = scene.control_plane.kubeconfig_for_node(&name)?;
    let kubelet = kubelet.client().await?;
    let nodes: Api<Node> = Api::all(kubelet.clone());
    let node = |more: Value| -> Result<Node> {
        let mut node = json!({ "metadata": { "name": name, "labels": { "place": scene.name } } });
        json_patch::merge(&mut node, &more);
        serde_json::from_value(node).doing(|| "no node")
    };
    let create = PostParams::default();
    let many = |count: usize, one: &dyn Fn(usize) -> Value| {
        Value::from((0..count).map(one).collect::<Vec<_>>())
    };
    let taints = many(
        65,
        &|it| json!({ "key": format!("t{it}"), "effect": "NoSchedule" }),
    );
    let refused = json!({ "spec": { "taints": taints } });
    let what = "the policy to be in force";
    until_async(what, SOON, async || {
        Ok(match nodes.create(&create, &node(refused.clone())?).await {
            Err(error) if error.to_string().contains("64 taints") => Look::Found(()),
            Err(error) => Look::NotYet(error.to_string()),
            Ok(_) => {
                scene.control_plane.kubectl(&["delete", "node", &name])?;
                Look::NotYet("it was made".to_owned())
            }
        })
    })
    .await?;
    let made = nodes.create(&create, &node(json!({}))?).await;
    made.doing(|| "an honest kubelet may register")?;
    let annotations = |size: usize| json!({ "metadata": { "annotations": { annotation::SYSTEM_EXTENSIONS: "x".repeat(size) } } });
    let conditions = |count: usize| json!({ "status": { "conditions": many(count, &|it| json!({ "type": format!("c{it}"), "status": "True" })) } });
    let addresses = |count: usize| json!({ "status": { "addresses": many(count, &|it| json!({ "type": "Hostname", "address": format!("a{it}") })) } });
    let labels: serde_json::Map<String, Value> =
        (0..513).map(|it| (format!("l{it}"), json!("x"))).collect();
    let parameters = PatchParams::default();
    for (patch, is_status, said) in [
        (annotations(16 * 1024), false, None),
        (annotations(16 * 1024 + 1), false, Some("16 KiB")),
        (
            json!({ "metadata": { "labels": labels } }),
            false,
            Some("512 labels"),
        ),
        (conditions(128), true, None),
        (conditions(129), true, Some("128 conditions")),
        (addresses(129), true, Some("128 addresses")),
    ] {
        let patch = Patch::Merge(patch);
        let answer = if is_status {
            nodes.patch_status(&name, &parameters, &patch).await
        } else {
            nodes.patch(&name, &parameters, &patch).await
        };
        match (answer, said) {
            (Ok(_), None) => {}
            (Err(error), Some(said)) => assert!(error.to_string().contains(said), "{error}"),
            (answer, said) => panic!("{said:?}: {:?}", answer.map(|_| ())),
        }
    }
    // What an administrator wrote does not keep the kubelet from its work.
    let big = annotations(20 * 1024);
    scene.patch(&name, &big).await?;
    let heartbeat = Patch::Merge(conditions(3));
    let beats = nodes.patch_status(&name, &parameters, &heartbeat).await;
    beats.doing(|| "a kubelet with a large annotation may beat")?;

    let leases: Api<Lease> = Api::namespaced(kubelet.clone(), "kube-node-lease");
    let lease = |size: usize| -> Result<Lease> {
        let object =
            json!({ "metadata": { "name": name, "annotations": { "a": "x".repeat(size) } } });
        serde_json::from_value(object).doing(|| "no Lease")
    };
    let refused = leases.create(&create, &lease(20_000)?).await;
    let error = refused.map(|_| ()).expect_err("a Lease of 20 KB was made");
    assert!(
        error
            .to_string()
            .contains("a Lease of a node may have at most"),
        "{error}"
    );
    let made = leases.create(&create, &lease(1000)?).await;
    made.doing(|| "a Lease may have a word")?;

    let requests: Api<CertificateSigningRequest> = Api::all(kubelet);
    let request = |size: usize| -> Result<CertificateSigningRequest> {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        let common = format!("system:node:{name}");
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, common);
        params
            .distinguished_name
            .push(rcgen::DnType::OrganizationName, "system:nodes");
        params.subject_alt_names = (0..size)
            .map(|it| {
                let text = format!("n{it}.example.com").try_into();
                text.map(rcgen::SanType::DnsName).doing(|| "no name")
            })
            .collect::<Result<_>>()?;
        let key = rcgen::KeyPair::generate().doing(|| "no key")?;
        let made = params.serialize_request(&key).doing(|| "no request")?;
        let pem = made.pem().doing(|| "no PEM")?;
        let object = json!({
            "metadata": { "name": scene.own(&format!("csr-{size}")) },
            "spec": {
                "request": k8s_openapi::ByteString(pem.into_bytes()),
                "signerName": "kubernetes.io/kubelet-serving",
                "usages": ["digital signature", "server auth"],
            },
        });
        serde_json::from_value(object).doing(|| "no request")
    };
    let refused = requests.create(&create, &request(2000)?).await;
    let error = refused.map(|_| ()).expect_err("a large request was made");
    assert!(error.to_string().contains("16 KiB"), "{error}");
    let made = requests.create(&create, &request(2)?).await;
    made.doing(|| "a kubelet may ask for a certificate")?;
    Ok(())
}
