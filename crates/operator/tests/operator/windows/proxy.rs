//! The egress proxy and its trust bundle: whose word counts, what becomes of it, and what never does.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use evenkeel_api::names::annotation;
use evenkeel_api::windows::services::Services;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::node_double::NodeDouble;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::bed::{Bed, OWN, read, worker_ignition};
use crate::cluster_proxy;
use crate::scene::{SOON, annotated, free_port, metrics};

const BUNDLE: &str = "trusted-ca";
const INJECT: &str = "config.openshift.io/inject-trusted-cabundle";
/// It is in every proxy here, and nobody may say it.
const PASSWORD: &str = "quux%40quux";
const NAMES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];

/// A control plane of its own: the Proxy of a cluster is everybody's.
fn cluster() -> Result<&'static ControlPlane> {
    static OWN: OnceLock<Result<ControlPlane>> = OnceLock::new();
    let own = OWN.get_or_init(ControlPlane::start);
    own.as_ref().map_err(Clone::clone)
}

fn proxy(host: &str) -> String {
    format!("http://user:{PASSWORD}@{host}:3128")
}

/// What services declare.
fn declared(services: &Services) -> BTreeMap<String, String> {
    let all = services.environment.iter();
    all.map(|it| (it.name.clone(), it.value.clone())).collect()
}

/// Waits until services declare exactly these proxies; their hash.
async fn until_declared(bed: &Bed, wanted: &[(&str, &str)]) -> Result<String> {
    let wanted: BTreeMap<String, String> = wanted
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    bed.until_maps(&format!("{wanted:?}"), SOON, |maps| {
        let mut all = maps.iter().filter_map(read);
        all.any(|services| declared(&services) == wanted)
    })
    .await?;
    let (_, services) = bed.own_map(SOON).await?;
    assert!(NAMES.iter().all(|it| services.is_watched(it)));
    Ok(services.hash())
}

async fn bundle(bed: &Bed) -> Result<Option<ConfigMap>> {
    let found = bed.maps().get_opt(BUNDLE).await;
    found.doing(|| "cannot read the bundle")
}

/// Waits until the bundle is as wanted, if there is one.
async fn until_bundle(
    bed: &Bed,
    what: &str,
    enough: impl Fn(Option<&ConfigMap>) -> bool,
) -> Result<Option<ConfigMap>> {
    until_async(&format!("the bundle: {what}"), SOON, async || {
        let found = bundle(bed).await?;
        Ok(if enough(found.as_ref()) {
            Look::Found(found)
        } else {
            Look::NotYet(format!("{found:?}"))
        })
    })
    .await
}

fn asks(map: &ConfigMap) -> bool {
    map.labels().get(INJECT).is_some_and(|it| it == "true")
}

async fn edit_bundle(bed: &Bed, patch: Value) -> Result<()> {
    let parameters = PatchParams::default();
    let edited = bed
        .maps()
        .patch(BUNDLE, &parameters, &Patch::Merge(patch))
        .await;
    edited.map(|_| ()).doing(|| "cannot edit the bundle")
}

/// The hash that a node is told.
async fn told(bed: &Bed, node: &NodeDouble) -> Result<String> {
    let seen = bed.scene.node(node.name()).await?;
    Ok(annotated(&seen, annotation::DESIRED_SERVICES)
        .unwrap_or_default()
        .to_owned())
}

/// Waits until one of these nodes, and only one, is told `hash`; its place in the list.
async fn first_told(bed: &Bed, nodes: &[NodeDouble], hash: &str) -> Result<usize> {
    until_async("one node to be told", SOON, async || {
        let mut those = Vec::new();
        for (at, node) in nodes.iter().enumerate() {
            if told(bed, node).await? == hash {
                those.push(at);
            }
        }
        assert!(those.len() < 2, "{those:?} at once");
        Ok(match those.as_slice() {
            [at] => Look::Found(*at),
            _ => Look::NotYet(format!("{:#?}", bed.status().await?)),
        })
    })
    .await
}

/// Covers P01, P02, P03, P04, P08.
#[tokio::test]
async fn a_proxy_comes_changes_stays_when_it_is_spoiled_and_goes() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bed = Bed::on(cluster()?, "proxy").await?;
    bed.give_worker(&worker_ignition("first")).await?;
    let pool = bed.pool_name();
    let client = &bed.scene.client;
    let port = free_port()?;
    let listen = format!("127.0.0.1:{port}");
    let options = ["--listen", listen.as_str()];
    let operator = bed.operator_in(&[], &options)?;

    // Without a proxy nothing is there, and the names are watched all the same.
    let without = until_declared(&bed, &[]).await?;
    assert_eq!(bundle(&bed).await?, None);

    // The kind comes later than the operator, and only what became of a wish counts.
    let (one, two) = (proxy("one"), proxy("two"));
    cluster_proxy::install(bed.scene.control_plane)?;
    let wish = json!({ "httpProxy": "http://wish:1", "httpsProxy": "http://wish:2" });
    let status = json!({ "httpProxy": one, "httpsProxy": two, "noProxy": ".svc, 10.0.0.0/8\nx" });
    let nodes = [
        bed.node("a", OWN, &without).await?,
        bed.node("b", OWN, &without).await?,
    ];
    bed.until_status("two nodes", |it| it.nodes.updated == 2)
        .await?;
    cluster_proxy::say(client, wish.clone(), status.clone()).await?;
    let all = [
        ("HTTP_PROXY", one.as_str()),
        ("HTTPS_PROXY", two.as_str()),
        ("NO_PROXY", ".svc, 10.0.0.0/8\nx"),
    ];
    let with = until_declared(&bed, &all).await?;
    assert_ne!(with, without);
    let words =
        "Windows nodes use the proxy from the cluster's Proxy: HTTP_PROXY=http://***@one:3128";
    bed.scene.told(&pool, "ProxyChanged", words).await?;
    bed.scene.told(&pool, "OddProxy", "entry 2 has a").await?;

    // One node at a time; one that fails stops the others.
    let first = first_told(&bed, &nodes, &with).await?;
    let failing = json!({ annotation::STATE: "Degraded", annotation::REASON: "no disk" });
    bed.annotate(nodes[first].name(), failing).await?;
    let words = nodes[first].name();
    bed.scene.told(&pool, "NodesFailing", words).await?;
    assert_eq!(told(&bed, &nodes[1 - first]).await?, without);
    bed.annotate(
        nodes[first].name(),
        json!({ annotation::STATE: "Done", annotation::REASON: "", annotation::CURRENT_SERVICES: with }),
    )
    .await?;
    until_async("the other one to be told", SOON, async || {
        let hash = told(&bed, &nodes[1 - first]).await?;
        Ok(if hash == with {
            Look::Found(())
        } else {
            Look::NotYet(format!("{:#?}", bed.status().await?))
        })
    })
    .await?;

    // The bundle is there, asks to be filled in, and goes with the pool.
    let made = until_bundle(&bed, "made", |it| it.is_some_and(asks)).await?;
    let owners = made.map(|it| it.owner_references().len());
    assert_eq!(owners, Some(1));
    kept_bundle(&bed).await?;

    // What is spoiled keeps what was good, also over a restart; what is good beside it is taken.
    let three = proxy("three");
    let spoiled = json!({ "httpProxy": format!("htp://user:{PASSWORD}@one"), "httpsProxy": three });
    cluster_proxy::say(client, wish.clone(), spoiled).await?;
    let kept = [
        ("HTTP_PROXY", one.as_str()),
        ("HTTPS_PROXY", three.as_str()),
    ];
    let hash = until_declared(&bed, &kept).await?;
    let words = "status.httpProxy of the cluster's Proxy cluster: its scheme is neither http nor https: write it as http://HOST:PORT; Windows nodes keep the last good value";
    bed.scene.told(&pool, "InvalidProxy", words).await?;
    let text = metrics(port).await?;
    for line in [
        "evenkeel_proxy_invalid{variable=\"HTTP_PROXY\"} 1",
        "evenkeel_proxy_invalid{variable=\"HTTPS_PROXY\"} 0",
        "evenkeel_proxy_source{source=\"cluster\"} 1",
        "evenkeel_trust_bundle_pending 1",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let mut said = bed.scene.log() + &text;
    drop(operator);
    bed.scene.nobody_leads().await?;
    let operator = bed.operator_in(&[], &options)?;
    until_async("a number", SOON, async || {
        let text = metrics(port).await.unwrap_or_default();
        let line = "evenkeel_proxy_invalid{variable=\"HTTP_PROXY\"} 1";
        Ok(if text.contains(line) {
            Look::Found(())
        } else {
            Look::NotYet(text)
        })
    })
    .await?;
    assert_eq!(until_declared(&bed, &kept).await?, hash);

    // The operator's own environment comes first, and what the chart says last.
    said += &bed.scene.log();
    drop(operator);
    bed.scene.nobody_leads().await?;
    let four = proxy("four");
    let environment = [
        ("HTTPS_PROXY", four.as_str()),
        ("EVENKEEL_HTTP_PROXY", "http://five"),
    ];
    let operator = bed.operator_in(&environment, &options)?;
    until_declared(&bed, &[("HTTPS_PROXY", four.as_str())]).await?;
    said += &bed.scene.log();
    drop(operator);
    bed.scene.nobody_leads().await?;
    let chart = [("EVENKEEL_HTTP_PROXY", "http://five")];
    let operator = bed.operator_in(&chart, &options)?;
    until_declared(&bed, &kept[1..]).await?;
    cluster_proxy::say(client, wish.clone(), json!({})).await?;
    until_declared(&bed, &[("HTTP_PROXY", "http://five")]).await?;
    until_bundle(&bed, "still there", |it| it.is_some_and(asks)).await?;
    said += &bed.scene.log();
    drop(operator);
    bed.scene.nobody_leads().await?;

    // Gone: as if there had never been one.
    let _operator = bed.operator_in(&[], &options)?;
    assert_eq!(until_declared(&bed, &[]).await?, without);
    until_bundle(&bed, "gone", |it| it.is_none()).await?;
    bed.scene
        .told(
            &pool,
            "ProxyChanged",
            "Windows nodes no longer have a proxy",
        )
        .await?;

    // One that somebody else made is asked for, too, and never taken away.
    let theirs = json!({
        "metadata": { "name": BUNDLE, "labels": { "app": "theirs" } }, "data": { "ca-bundle.crt": "x" },
    });
    bed.scene.create::<ConfigMap>(theirs).await?;
    cluster_proxy::say(client, wish.clone(), status).await?;
    let seen = until_bundle(&bed, "asked for", |it| it.is_some_and(asks)).await?;
    let seen = seen.unwrap_or_default();
    assert_eq!(seen.labels().get("app").map(String::as_str), Some("theirs"));
    assert_eq!(seen.labels().len(), 2, "{:?}", seen.labels());
    cluster_proxy::say(client, wish, json!({})).await?;
    assert_eq!(until_declared(&bed, &[]).await?, without);
    bed.scene
        .told(&pool, "ServicesChanged", "rolling them out node by node")
        .await?;
    assert!(bundle(&bed).await?.is_some());

    // Nobody has said the password.
    said += &bed.scene.log();
    said += &metrics(port).await?;
    for (reason, note) in bed.scene.events(&pool).await? {
        said += &reason;
        said += &note;
    }
    assert!(!said.contains("quux"), "{said}");
    Ok(())
}

/// The bundle comes back when it is deleted and asks again when somebody stops it; what others wrote stays.
async fn kept_bundle(bed: &Bed) -> Result<()> {
    let pool = bed.pool_name();
    let uid = bundle(bed).await?.and_then(|it| it.uid());
    bed.delete_map(BUNDLE).await?;
    let is_another = |it: Option<&ConfigMap>| it.is_some_and(|it| it.uid() != uid && asks(it));
    until_bundle(bed, "back", is_another).await?;
    bed.scene
        .told(&pool, "TrustBundleRecreated", "was deleted")
        .await?;
    let rubbish = json!({ "ca-bundle.crt": "rubbish", "other": "thing" });
    edit_bundle(
        bed,
        json!({ "metadata": { "labels": { INJECT: "false", "theirs": "yes" } }, "data": rubbish }),
    )
    .await?;
    let mended = until_bundle(bed, "mended", |it| it.is_some_and(asks)).await?;
    let mended = mended.unwrap_or_default();
    assert_eq!(
        mended.labels().get("theirs").map(String::as_str),
        Some("yes")
    );
    assert_eq!(json!(mended.data), rubbish);
    bed.scene
        .told(&pool, "TrustBundleMended", "restored a label")
        .await?;
    let labels = json!({ INJECT: null, "evenkeel.dev/trusted-ca": null });
    edit_bundle(
        bed,
        json!({ "metadata": { "labels": labels }, "data": { "ca-bundle.crt": null } }),
    )
    .await?;
    let is_whole = |it: Option<&ConfigMap>| {
        it.is_some_and(|it| asks(it) && it.labels().contains_key("evenkeel.dev/trusted-ca"))
    };
    let mended = until_bundle(bed, "marked", is_whole)
        .await?
        .unwrap_or_default();
    assert_eq!(json!(mended.data), json!({ "other": "thing" }));
    Ok(())
}
