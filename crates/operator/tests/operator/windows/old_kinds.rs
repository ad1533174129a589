//! Kinds of an earlier version, which keep no permits: Helm installs kinds once, and an upgrade leaves them as they are.

use evenkeel_api::names::object;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::{Doing, Error, Result, need};
use serde_json::{Value, json};

use super::bed::{Bed, OWN, worker_ignition};
use crate::scene::{SOON, free_port, metrics};

/// Where a kind says that its status has permits.
const PERMITS: &str =
    "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/permits";
/// The most writes to the status of a pool that a short while needs.
const FEW: u64 = 20;

/// How often `resource` was patched.
fn patches(page: &str, resource: &str) -> u64 {
    let line = format!("evenkeel_api_requests_total{{verb=\"patch\",resource=\"{resource}\"}} ");
    let number = page.lines().find_map(|it| it.strip_prefix(&line));
    number.and_then(|it| it.parse().ok()).unwrap_or(0)
}

/// Covers S07.
#[tokio::test(flavor = "multi_thread")]
async fn with_kinds_that_keep_no_permits_drains_go_on_and_no_status_is_written_over_and_over()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    // Kinds are the same for everybody on a control plane.
    let plane = ControlPlane::start_own()?;
    let bed = Bed::on(*plane, "old-kinds").await?;
    let scene = &bed.scene;
    for kind in [
        "crd/windowspools.evenkeel.dev",
        "crd/machineconfigpools.machineconfiguration.openshift.io",
    ] {
        let patch = format!(r#"[{{"op": "remove", "path": "{PERMITS}"}}]"#);
        plane.kubectl(&["patch", kind, "--type=json", "-p", &patch])?;
    }
    bed.give_worker(&worker_ignition("first")).await?;
    let linux = scene.fleet("web", 1, 1).await?;
    scene.pool("web", json!({ "maxUnavailable": 1 })).await?;
    let windows = bed.node("w", OWN, "before").await?;
    let port = free_port()?;
    let listen = format!("127.0.0.1:{port}");
    let _operator = bed.operator_in(&[], &["--listen", &listen])?;
    bed.own_map(SOON).await?;
    for node in [linux[0].name(), windows.name()] {
        for request in ["drain-old", "uncordon-old"] {
            scene.ask(node, request).await?;
            scene.answered(node, request).await?;
        }
    }
    let kept = plane.kubectl(&[
        "get",
        "configmap",
        object::PERMITS,
        "-n",
        &scene.name,
        "-o",
        "json",
    ])?;
    let kept: Value = serde_json::from_str(&kept).doing(|| "no ConfigMap")?;
    let epoch = kept["data"][object::PERMITS_KEY].as_str();
    let epoch = epoch.ok_or_else(|| Error::failed(format!("no permits in {kept}")))?;
    assert!(epoch.contains("epoch"), "{epoch}");
    let page = metrics(port).await?;
    for resource in ["windowspools/status", "machineconfigpools/status"] {
        let count = patches(&page, resource);
        println!("proof: {count} patches of {resource}");
        assert!(count > 0 && count < FEW, "{count} patches of {resource}");
    }
    let said = "has no status.permits, so permits are recorded in ConfigMap";
    let times = scene.log().lines().filter(|it| it.contains(said)).count();
    assert_eq!(times, 2, "once for each: {}", scene.log());
    Ok(())
}
