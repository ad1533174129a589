//! The alerts that we ship: each has its run-book page and uses metrics that exist, and those about
//! Windows nodes would fire.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel_testbed::alerts::Alerts;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;

use super::bed::{Bed, OWN, worker_ignition};
use crate::scene::{SOON, deployed, free_port, metrics};

/// Longer than any alert waits.
const FOR_LONG: Duration = Duration::from_hours(1);

/// Names of metrics in an expression: our own.
fn names(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
    let ours = words.filter(|it| it.starts_with("evenkeel_"));
    ours.map(str::to_owned).collect()
}

/// Covers H37.
#[test]
fn every_alert_has_a_runbook_and_uses_metrics_that_are_documented() -> Result<()> {
    let documented = deployed("../docs/reference/metrics.md");
    let documented = std::fs::read_to_string(documented).doing(|| "no reference")?;
    let mut seen = BTreeSet::new();
    for file in ["agent.yaml", "windows.yaml"] {
        for rule in Alerts::read(file)?.rules() {
            let alert = rule["alert"].as_str().unwrap_or_default();
            seen.insert(alert.to_owned());
            let page = deployed(&format!("../docs/runbooks/{alert}.md"));
            let page = std::fs::read_to_string(page).doing(|| format!("{alert} has no page"))?;
            assert!(page.starts_with(&format!("# {alert}\n")), "{alert}");
            let annotations = &rule["annotations"];
            let link = annotations["runbook_url"].as_str().unwrap_or_default();
            assert!(link.ends_with(&format!("/docs/runbooks/{alert}")), "{link}");
            for field in ["summary", "description"] {
                assert!(annotations[field].is_string(), "{alert} has no {field}");
            }
            assert!(rule["labels"]["severity"].is_string(), "{alert}");
            let expression = rule["expr"].as_str().unwrap_or_default();
            for name in names(expression) {
                let is_there = documented.contains(&format!("`{name}`"));
                assert!(
                    is_there,
                    "{alert}: {name} is not in docs/reference/metrics.md"
                );
            }
        }
    }
    for duty in [
        "EvenkeelWindowsNodeNotReady",
        "EvenkeelAgentSilent",
        "EvenkeelDriftNotRepaired",
        "EvenkeelInstanceFailing",
        "EvenkeelUpgradeFailing",
        "EvenkeelUpgradeRefused",
    ] {
        assert!(seen.contains(duty), "{duty} is not among {seen:?}");
    }
    Ok(())
}

async fn until_fires(bed: &Bed, alert: &str, port: u16, wanted: bool) -> Result<()> {
    let alerts = Alerts::read("windows.yaml")?;
    until_async(&format!("{alert} to fire: {wanted}"), SOON, async || {
        let Ok(text) = metrics(port).await else {
            return Ok(Look::NotYet("no metrics".to_owned()));
        };
        Ok(if alerts.fires(alert, &text, FOR_LONG)? == wanted {
            Look::Found(())
        } else {
            let shown = text.lines().filter(|it| it.contains("windows"));
            let shown: Vec<_> = shown.collect();
            Look::NotYet(format!("{shown:#?}\n{:#?}", bed.status().await?))
        })
    })
    .await
}

/// Covers H37.
#[tokio::test]
async fn alerts_fire_for_windows_nodes_that_are_not_ready_and_for_what_stops_the_operator()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? || need::skip(Alerts::NEEDS)? {
        return Ok(());
    }
    let bed = Bed::new("alerts").await?;
    let port = free_port()?;
    let folder = bed.payload.display().to_string();
    let (listen, pool) = (format!("127.0.0.1:{port}"), bed.pool_name());
    let _operator = bed.scene.operator(&[
        "--listen",
        &listen,
        "--payload",
        &folder,
        "--windows-pool",
        &pool,
    ])?;
    until_fires(&bed, "EvenkeelWindowsStopped", port, true).await?;
    bed.give_worker(&worker_ignition("first")).await?;
    let (_, services) = bed.own_map(SOON).await?;
    until_fires(&bed, "EvenkeelWindowsStopped", port, false).await?;
    let node = bed.node("w", OWN, &services.hash()).await?;
    bed.until_status("one node", |it| it.nodes.updated == 1)
        .await?;
    for alert in ["EvenkeelWindowsNodeNotReady", "EvenkeelWindowsNodeFailing"] {
        until_fires(&bed, alert, port, false).await?;
    }
    // An instance without a key that could open it.
    until_fires(&bed, "EvenkeelInstanceFailing", port, false).await?;
    let list = json!({
        "metadata": { "name": "windows-instances" }, "data": { "127.34.0.7": "username=core" },
    });
    bed.scene.create::<ConfigMap>(list).await?;
    until_fires(&bed, "EvenkeelInstanceFailing", port, true).await?;
    node.lie("Ready", "False").await?;
    for alert in ["EvenkeelWindowsNodeNotReady", "EvenkeelWindowsNodeFailing"] {
        until_fires(&bed, alert, port, true).await?;
    }
    Ok(())
}
