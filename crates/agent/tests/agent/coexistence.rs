//! A node that OpenShift's machine-config operator tells what to run: the agent changes nothing, on the machine and on
//! the Node, and says so. Nothing here is more than what that operator leaves on its nodes.

use std::time::Duration;

use evenkeel_api::names::linux::FORCE_FILE;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::scene::{
    ANSWERED, ASKED, CURRENT, DESIRED, ON_DRIFT, REASON, SOON, STATE, Scene, VOUCHER, cluster,
    is_impossible, spec,
};

const FILE: &str = "/etc/theirs.conf";
/// How long nothing may happen after the agent has said that it does nothing.
const QUIET: Duration = Duration::from_secs(3);

/// All of the Node that an agent could change.
async fn node(scene: &Scene) -> Result<Value> {
    let nodes: Api<Node> = Api::all(scene.client.clone());
    let node = nodes.get(&scene.name).await;
    let node = node.doing(|| "cannot read the node")?;
    let spec = node.spec.unwrap_or_default();
    // Nobody posts for a kubelet here, and the control plane says so with taints of its own.
    let taints = spec.taints.unwrap_or_default().into_iter();
    let taints: Vec<_> = taints
        .filter(|it| !it.key.starts_with("node.kubernetes.io/"))
        .collect();
    Ok(json!({
        "annotations": node.metadata.annotations,
        "labels": node.metadata.labels,
        "finalizers": node.metadata.finalizers,
        "unschedulable": spec.unschedulable,
        "taints": taints,
    }))
}

/// Every file of the machine's configuration with its checksum.
fn files(scene: &Scene) -> Result<String> {
    let list = "find /etc /usr/local /var/lib/kubelet -xdev \\( -type f -o -type l \\) -print0 2>/dev/null | sort -z | xargs -0 sha256sum 2>/dev/null; true";
    scene.node.run(&["sh", "-c", list])
}

/// How often the agent has said that `config` is foreign.
fn refusals(scene: &Scene, config: &str) -> usize {
    let words = format!("desiredConfig {config} is foreign: ");
    scene.log().matches(&words).count()
}

/// Waits until the agent has said once more that `config` is foreign.
async fn until_refused(scene: &Scene, config: &str, before: usize) -> Result<()> {
    until_async("the agent to say that it keeps off", SOON, async || {
        Ok(if refusals(scene, config) > before {
            Look::Found(())
        } else {
            Look::NotYet(scene.log())
        })
    })
    .await
}

/// Whether the agent has ever asked to change its Node.
fn has_written(scene: &Scene) -> Result<Vec<String>> {
    let mut asked = scene.requests()?;
    asked.retain(|it| it.contains("patch") && it.contains("nodes"));
    Ok(asked)
}

/// Covers O01, X09.
#[tokio::test]
async fn a_node_of_the_machine_config_operator_is_left_alone_until_ours_vouches_for_it()
-> Result<()> {
    if is_impossible()? {
        return Ok(());
    }
    let name = "mco-node";
    let client = cluster()?.admin_kubeconfig().client().await?;
    // As that operator leaves a node that it has updated.
    let first = format!("rendered-{name}-first");
    let annotations = json!({
        // The control plane's own, on every Node.
        "node.alpha.kubernetes.io/ttl": "0",
        DESIRED: first, CURRENT: first, STATE: "Done", REASON: "",
        ASKED: format!("uncordon-{first}"), ANSWERED: format!("uncordon-{first}"),
    });
    let object = json!({ "metadata": { "name": name, "annotations": annotations } });
    let object: Node = serde_json::from_value(object).doing(|| "no such node")?;
    let nodes: Api<Node> = Api::all(client);
    let made = nodes.create(&PostParams::default(), &object).await;
    made.doing(|| "cannot make the node")?;
    let mut scene = Scene::of_node(name).await?;
    scene
        .config("first", spec(&[(FILE, "first\n")], &[]))
        .await?;
    let second = scene
        .config("second", spec(&[(FILE, "second\n")], &[]))
        .await?;
    until_refused(&scene, &first, 0).await?;

    let boot = scene.node.boot_id()?;
    let before = (files(&scene)?, node(&scene).await?);
    assert_eq!(before.1["annotations"], annotations);
    assert!(!before.0.contains(FILE), "{FILE} was written");
    assert!(!before.0.contains("machine-config-daemon"), "{}", before.0);

    // A start anew changes nothing either, nor does the file with which that operator's own daemon is told
    // to write everything again.
    scene.node.write(FORCE_FILE, "")?;
    assert_eq!(refusals(&scene, &first), 1, "once is enough");
    scene
        .node
        .run(&["systemctl", "restart", "evenkeel-agent.service"])?;
    until_refused(&scene, &first, 1).await?;
    scene
        .stays(QUIET, |seen| json!(seen) == annotations)
        .await?;
    assert_eq!((files(&scene)?, node(&scene).await?), before);

    // It rolls out the next configuration, and its daemon is about to begin.
    scene.annotate(DESIRED, &second).await?;
    let mut annotations = annotations;
    annotations[DESIRED] = json!(second);
    until_refused(&scene, &second, 0).await?;
    scene
        .stays(QUIET, |seen| json!(seen) == annotations)
        .await?;
    assert_eq!(node(&scene).await?["unschedulable"], Value::Null);
    assert_eq!(files(&scene)?, before.0);
    assert_eq!(scene.node.boot_id()?, boot, "it was booted");
    assert_eq!(scene.node.read(FORCE_FILE)?, b"", "it was used up");
    assert_eq!(has_written(&scene)?, [""; 0], "the Node was written to");
    // A voucher for something else is none.
    scene.annotate(VOUCHER, &first).await?;
    annotations[VOUCHER] = json!(first);
    scene
        .stays(QUIET, |seen| json!(seen) == annotations)
        .await?;

    // Ours vouches for it: now it is obeyed, with a drain and a boot.
    scene.node.run(&["rm", FORCE_FILE])?;
    scene.go_to(&second).await?;
    assert_eq!(scene.node.read(FILE)?, b"second\n");

    // That operator comes back: what we wrote earlier is not watched, and not healed against it.
    scene.annotate(ON_DRIFT, "heal").await?;
    let before = refusals(&scene, &first);
    scene.annotate(DESIRED, &first).await?;
    until_refused(&scene, &first, before).await?;
    let annotations = json!(scene.annotations().await?);
    scene.node.write(FILE, "theirs\n")?;
    scene
        .stays(QUIET, |seen| json!(seen) == annotations)
        .await?;
    assert_eq!(scene.node.read(FILE)?, b"theirs\n");
    // And where ours is asked again, it keeps to what it vouches for.
    scene.desire(&second).await?;
    until_async("what is ours to be healed", SOON, async || {
        let text = scene.node.read(FILE)?;
        Ok(if text == b"second\n" {
            Look::Found(())
        } else {
            Look::NotYet(scene.log())
        })
    })
    .await?;
    scene.until_done(&second, SOON).await?;
    Ok(())
}
