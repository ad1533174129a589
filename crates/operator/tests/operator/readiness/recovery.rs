//! A cluster whose every node is tainted: whoever can mend that still comes.

use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::{Doing, Result, need};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::bed::is_tainted;
use crate::scene::Scene;

/// Covers R14.
#[tokio::test]
async fn on_a_cluster_that_is_all_tainted_operator_agents_and_extensions_still_start() -> Result<()>
{
    if need::skip(ControlPlane::NEEDS)? || need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("tainted").await?;
    scene.prepare_readiness()?;
    let mut nodes = Vec::new();
    for suffix in ["n1", "n2"] {
        nodes.push(scene.start(scene.describe(suffix)).await?);
    }
    let rule = json!({
        "extensions": [{ "name": "dp", "lease": { "expiry": "3s" } }],
        "evictAfter": "0s", "autoscalerStartupTaint": true,
    });
    scene.rule("all", rule).await?;
    let _operator = scene.operator(&["--rule-selector", &format!("place={}", scene.name)])?;
    for node in &nodes {
        scene.tainted(node.name(), true).await?;
    }
    // What the chart makes pods from, and an extension as our documentation says.
    let chart = Chart::render(&scene.name, &[])?;
    let ours = |kind: &str, name: &str| -> Result<serde_json::Value> {
        let mut spec = chart.object(kind, name)?["spec"]["template"]["spec"].clone();
        // The only nodes that this test has; nothing runs there, so nobody needs an account.
        spec["nodeSelector"] = json!({ "place": scene.name });
        spec["serviceAccountName"] = json!("default");
        Ok(spec)
    };
    let mut extension = scene.spec(1);
    extension["tolerations"] = json!([
        { "key": "kubernetes.io/MetaReadiness", "operator": "Exists" },
        { "key": "startup-taint.cluster-autoscaler.kubernetes.io/meta-readiness", "operator": "Exists" },
    ]);
    let mut guest = scene.spec(1);
    guest["tolerations"] = json!([]);
    for (name, spec) in [
        ("operator", ours("Deployment", "evenkeel-operator")?),
        ("agent", ours("DaemonSet", "evenkeel-agent")?),
        ("extension", extension),
        ("guest", guest),
    ] {
        let pod = json!({ "metadata": { "name": name }, "spec": spec });
        scene.create::<Pod>(pod).await?;
    }
    for name in ["operator", "agent", "extension"] {
        scene.ready(&format!("metadata.name={name}"), 1).await?;
    }
    for node in &nodes {
        assert!(is_tainted(&scene.node(node.name()).await?));
    }
    let guest = scene.pods().get("guest").await.doing(|| "no pod")?;
    assert_eq!(guest.spec.and_then(|it| it.node_name), None);
    // And so it recovers.
    for node in &nodes {
        scene.renew(node.name(), "dp", SignedDuration::ZERO).await?;
    }
    scene.ready("metadata.name=guest", 1).await.map(|_| ())
}
