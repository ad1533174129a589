//! A drain does not end whoever is to end it: the operator's own pods stay where no other node can take them, and move
//! once where one can. They are made from the chart's Deployment, and the real scheduler places them.

use std::collections::BTreeSet;

use evenkeel_api::names::{annotation, label, program, taint};
use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::process::Running;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result, need};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::scene::{SOON, Scene, annotated, free_port, is_cordoned, is_ready, metrics};

fn on(node: &str) -> String {
    format!("spec.nodeName={node}")
}

/// The operator's Deployment as the chart has it, on this scene's nodes only, with `change` made to its pods.
async fn install(scene: &Scene, change: impl Fn(&mut Value)) -> Result<()> {
    let chart = Chart::render(&scene.name, &[])?;
    let mut deployment = chart.object("Deployment", program::OPERATOR)?.clone();
    let pod = &mut deployment["spec"]["template"]["spec"];
    pod["nodeSelector"] = json!({ "place": scene.name });
    pod["terminationGracePeriodSeconds"] = json!(1);
    change(pod);
    scene.create::<Deployment>(deployment).await.map(|_| ())
}

/// Name, uid and node of each of the operator's pods that runs.
async fn own_pods(scene: &Scene) -> Result<Vec<(String, String, String)>> {
    let selector = format!("{}={}", label::APP_NAME, program::OPERATOR);
    let pods = scene
        .pods()
        .list(&ListParams::default().labels(&selector))
        .await;
    let pods = pods.doing(|| "cannot list pods")?.items;
    let of = |pod: &Pod| {
        let node = pod.spec.as_ref().and_then(|it| it.node_name.clone());
        let uid = pod.uid().unwrap_or_default();
        (pod.name_any(), uid, node.unwrap_or_default())
    };
    let mut pods: Vec<_> = pods.iter().filter(|it| is_ready(it)).map(of).collect();
    pods.sort();
    Ok(pods)
}

async fn two_own_pods(scene: &Scene) -> Result<Vec<(String, String, String)>> {
    until_async("two pods of the operator", SOON, async || {
        let pods = own_pods(scene).await?;
        Ok(if pods.len() == 2 {
            Look::Found(pods)
        } else {
            Look::NotYet(format!("{pods:?}"))
        })
    })
    .await
}

/// Starts the operator as the program of `pod`, with what the chart says to it.
fn operator(scene: &Scene, pod: &str, options: &[&str]) -> Result<Running> {
    let environment = [("POD_NAME", pod), ("POD_NAMESPACE", &scene.name)];
    scene.operator_in(&environment, pod, &scene.login()?, options)
}

/// How many evictions the operator at `port` has asked for with success.
async fn evictions(port: u16) -> Result<u64> {
    let text = metrics(port).await?;
    let counted = text
        .lines()
        .find_map(|it| it.strip_prefix("evenkeel_evictions_total{answer=\"accepted\"} "));
    Ok(counted.and_then(|it| it.parse().ok()).unwrap_or_default())
}

fn has_our_taint(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|it| it.taints.iter().flatten());
    taints.into_iter().any(|it| it.key == taint::DRAINING)
}

/// Covers K03.
#[tokio::test]
async fn on_the_only_node_a_drain_ends_and_the_operators_own_pods_stay() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("only").await?;
    let node = scene.start(scene.describe("n1")).await?;
    install(&scene, |_| {}).await?;
    let own = two_own_pods(&scene).await?;
    scene.deployment("web", 2, 1).await?;
    scene.ready(&on(node.name()), 4).await?;
    // The label of the operator does not make a pod the operator's: anybody can set it. Nor does that of the agent.
    for name in [program::OPERATOR, program::AGENT] {
        scene
            .pod(node.name(), &format!("like-{name}"), |it| {
                it["metadata"]["labels"] = json!({ label::APP_NAME: name });
            })
            .await?;
    }
    let port = free_port()?;
    let listen = format!("127.0.0.1:{port}");
    let _operator = operator(&scene, &own[0].0, &["--listen", &listen])?;

    scene.ask(node.name(), "drain-rendered-1").await?;
    let drained = scene.answered(node.name(), "drain-rendered-1").await?;
    assert!(is_cordoned(&drained));
    let left = scene.names(&on(node.name()), |_| true).await?;
    let names: BTreeSet<_> = own.iter().map(|(name, ..)| name.clone()).collect();
    assert_eq!(left, names, "everybody else has left");
    assert_eq!(own_pods(&scene).await?, own, "its own were never evicted");
    assert_eq!(evictions(port).await?, 4);
    assert!(!has_our_taint(&drained), "nobody is to go elsewhere");
    let note = scene.event(node.name(), "OperatorStays").await?;
    assert!(note.contains(&own[0].0), "{note}");
    let events = scene.events(node.name()).await?;
    let said = events.iter().filter(|(it, _)| it == "OperatorStays");
    assert_eq!(said.count(), 1, "{events:?}");

    // The agent reboots its machine, and the operator comes back with it.
    node.restart_machine().await?;
    assert_eq!(two_own_pods(&scene).await?, own);
    scene.ask(node.name(), "uncordon-rendered-1").await?;
    let after = scene.answered(node.name(), "uncordon-rendered-1").await?;
    assert!(!is_cordoned(&after));
    assert_eq!(annotated(&after, annotation::DRAIN_OWN_PODS), None);
    scene.ready(&on(node.name()), 4).await?;
    assert_eq!(own_pods(&scene).await?, own);
    Ok(())
}

/// A pod on `node` that a budget holds: its drain does not end before the budget goes.
async fn held(scene: &Scene, node: &str) -> Result<()> {
    let labelled = |it: &mut Value| it["metadata"]["labels"] = json!({ "app": "held" });
    scene.pod(node, "held", labelled).await?;
    scene.budget("held", json!({ "minAvailable": 1 })).await
}

/// Covers K03.
#[tokio::test]
async fn where_another_node_can_take_them_the_operators_own_pods_move_once() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("moves").await?;
    let first = scene.start(scene.describe("a")).await?;
    let second = scene.start(scene.describe("b")).await?;
    install(&scene, |_| {}).await?;
    // One on each, as the chart spreads them.
    let own = two_own_pods(&scene).await?;
    let its = |node: &str| own.iter().filter(|(.., it)| it == node).count();
    assert_eq!((its(first.name()), its(second.name())), (1, 1), "{own:?}");
    let stays = own.iter().find(|(.., it)| it == second.name());
    let stays = stays.ok_or_else(|| Error::failed("nobody"))?;
    held(&scene, first.name()).await?;
    let port = free_port()?;
    let listen = format!("127.0.0.1:{port}");
    let options = ["--listen", &listen, "--drain-timeout", "5s"];
    let _operator = operator(&scene, &stays.0, &options)?;

    scene.ask(first.name(), "drain-rendered-1").await?;
    // The budget keeps the drain open for long after they have moved.
    scene.event(first.name(), "DrainOverdue").await?;
    let moved = two_own_pods(&scene).await?;
    let nodes: Vec<_> = moved.iter().map(|(.., node)| node.as_str()).collect();
    assert_eq!(nodes, [second.name(); 2], "both are on the other node");
    assert!(moved.contains(stays), "who was there already stayed");
    assert_eq!(evictions(port).await?, 1);
    let draining = scene.node(first.name()).await?;
    assert!(has_our_taint(&draining), "{:?}", draining.spec);
    scene.event(first.name(), "OperatorMoves").await?;

    scene
        .control_plane
        .kubectl(&["delete", "pdb", "held-budget", "-n", &scene.name])?;
    scene.answered(first.name(), "drain-rendered-1").await?;
    assert_eq!(own_pods(&scene).await?, moved);
    scene.ask(first.name(), "uncordon-rendered-1").await?;
    let after = scene.answered(first.name(), "uncordon-rendered-1").await?;
    assert!(!is_cordoned(&after) && !has_our_taint(&after));
    assert_eq!(annotated(&after, annotation::DRAIN_OWN_PODS), None);
    Ok(())
}

/// Covers K03.
#[tokio::test]
async fn a_successor_that_comes_back_to_the_node_is_not_evicted_again() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("returns").await?;
    let first = scene.start(scene.describe("a")).await?;
    install(&scene, |pod| {
        pod["containers"][0]["resources"] = json!({ "requests": { "cpu": "500m" } });
    })
    .await?;
    let own = two_own_pods(&scene).await?;
    // The other node looks as if it could take them, and has no room: only the scheduler knows.
    let second = scene.start(scene.describe("b")).await?;
    scene
        .pod(second.name(), "full", |it| {
            it["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "3800m" } });
        })
        .await?;
    held(&scene, first.name()).await?;
    let port = free_port()?;
    let listen = format!("127.0.0.1:{port}");
    let options = ["--listen", &listen, "--drain-timeout", "10s"];
    let _operator = operator(&scene, &own[0].0, &options)?;

    scene.ask(first.name(), "drain-rendered-1").await?;
    scene.event(first.name(), "DrainOverdue").await?;
    let back = two_own_pods(&scene).await?;
    assert!(back.iter().all(|(.., node)| node == first.name()));
    let uids = |pods: &[(String, String, String)]| -> BTreeSet<String> {
        pods.iter().map(|(_, uid, _)| uid.clone()).collect()
    };
    assert!(
        uids(&back).is_disjoint(&uids(&own)),
        "each was evicted once"
    );
    assert_eq!(evictions(port).await?, 2);
    scene
        .control_plane
        .kubectl(&["delete", "pdb", "held-budget", "-n", &scene.name])?;
    scene.answered(first.name(), "drain-rendered-1").await?;
    assert_eq!(own_pods(&scene).await?, back);
    Ok(())
}
