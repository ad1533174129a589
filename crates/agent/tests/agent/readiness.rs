//! What an agent reports of its node: restarts, probes and the state of its configuration, in one Lease.

use std::time::{Duration, Instant};

use evenkeel_api::names::annotation;
use evenkeel_api::readiness::Report;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::scene::{SOON, Scene};

const SERVICE: &str = "[Service]
ExecStart=/bin/sleep infinity
";

pub(crate) struct Reports {
    node: String,
    leases: Api<Lease>,
}

impl Reports {
    pub(crate) fn of(scene: &Scene) -> Self {
        Self {
            node: scene.name.clone(),
            leases: Api::namespaced(scene.client.clone(), "node-extensions"),
        }
    }

    /// Waits until it is renewed, and says how long that took.
    pub(crate) async fn renewed(&self) -> Result<Duration> {
        let version = |lease: &Option<Lease>| {
            lease
                .as_ref()
                .and_then(|it| it.spec.as_ref()?.renew_time.clone())
        };
        let before = self.lease().await?;
        let begun = Instant::now();
        until_async("a renewal", SOON, async || {
            let now = self.lease().await?;
            Ok(if version(&now) == version(&before) {
                Look::NotYet(String::new())
            } else {
                Look::Found(begun.elapsed())
            })
        })
        .await
    }

    async fn lease(&self) -> Result<Option<Lease>> {
        let name = format!("{}.evenkeel-agent", self.node);
        self.leases
            .get_opt(&name)
            .await
            .doing(|| "cannot read the Lease")
    }

    /// Waits for a report that is so.
    pub(crate) async fn until(
        &self,
        what: &str,
        is_it: impl Fn(&Report) -> bool,
    ) -> Result<Report> {
        until_async(what, SOON, async || {
            let lease = self.lease().await?;
            let text = lease
                .as_ref()
                .and_then(|it| it.annotations().get(annotation::REPORT).cloned());
            let report = text
                .as_deref()
                .and_then(|text| Report::from_json(text).ok());
            Ok(match report {
                Some(report) if is_it(&report) => Look::Found(report),
                other => Look::NotYet(format!("{other:?}")),
            })
        })
        .await
    }
}

/// Covers R08, R16.
#[tokio::test]
async fn restarts_probes_and_state_are_in_one_lease_that_is_written_at_once() -> Result<()> {
    let Some(mut scene) = Scene::start("reporter").await? else {
        return Ok(());
    };
    let reports = Reports::of(&scene);
    for unit in ["kubelet", "cni"] {
        scene
            .node
            .write(&format!("/etc/systemd/system/{unit}.service"), SERVICE)?;
    }
    scene.node.run(&["systemctl", "daemon-reload"])?;
    scene.node.run(&["systemctl", "start", "kubelet.service"])?;
    let first = reports
        .until("a first report", |it| !it.kubelet_start.is_empty())
        .await?;
    assert!(
        !first.boot_id.is_empty() && first.probes.is_empty(),
        "{first:?}"
    );

    // A rule asks for a probe.
    let kind = GroupVersionKind::gvk("evenkeel.dev", "v1alpha1", "NodeReadinessRule");
    let rules: Api<DynamicObject> = Api::all_with(
        scene.client.clone(),
        &ApiResource::from_gvk_with_plural(&kind, "nodereadinessrules"),
    );
    let rule = json!({
        "apiVersion": "evenkeel.dev/v1alpha1", "kind": "NodeReadinessRule", "metadata": { "name": "reporter" },
        "spec": {
            "nodeSelector": { "matchLabels": { "reports": "yes" } },
            "extensions": [
                { "name": "cni", "probe": { "service": { "name": "cni.service" }, "period": "1s", "timeout": "1s", "failureThreshold": 1 } },
            ],
        },
    });
    let rule = serde_json::from_value(rule).doing(|| "no rule")?;
    rules
        .create(&PostParams::default(), &rule)
        .await
        .doing(|| "cannot make a rule")?;
    let nodes: Api<Node> = Api::all(scene.client.clone());
    let label = Patch::Merge(json!({ "metadata": { "labels": { "reports": "yes" } } }));
    let labelled = nodes
        .patch(&scene.name, &PatchParams::default(), &label)
        .await;
    labelled.doing(|| "cannot label the node")?;
    let failing = reports
        .until("a probe that fails", |it| it.probes.contains_key("cni"))
        .await?;
    assert_eq!(
        failing.probes["cni"].message,
        "service cni.service is not running"
    );
    let within = |seconds| move |took: &Duration| *took < Duration::from_secs(seconds);
    let is_healthy =
        |it: &Report, healthy| it.probes.get("cni").is_some_and(|it| it.healthy == healthy);
    let promise = "a probe that is healthy again is reported within five seconds";
    kept_async(promise, within(5), async || {
        scene.node.run(&["systemctl", "stop", "cni.service"])?;
        reports
            .until("a probe that fails", |it| is_healthy(it, false))
            .await?;
        scene.node.run(&["systemctl", "start", "cni.service"])?;
        let begun = Instant::now();
        reports
            .until("a probe that is healthy", |it| is_healthy(it, true))
            .await?;
        Ok(begun.elapsed())
    })
    .await?;

    // Another start of the kubelet is told at once, and what was known before is asked anew.
    let mut last = first.kubelet_start.clone();
    let promise = "another start of the kubelet is told within three seconds";
    kept_async(promise, within(3), async || {
        let begun = Instant::now();
        scene
            .node
            .run(&["systemctl", "restart", "kubelet.service"])?;
        let after = reports
            .until("another start", |it| it.kubelet_start != last)
            .await?;
        let took = begun.elapsed();
        assert_eq!(after.boot_id, first.boot_id);
        last = after.kubelet_start;
        reports
            .until("the probe once more", |it| is_healthy(it, true))
            .await?;
        Ok(took)
    })
    .await?;

    // Without news it is renewed every ten seconds, with one write each.
    let promise = "a report is renewed every ten seconds";
    kept_async(promise, within(14), async || reports.renewed().await).await?;

    scene.node.reboot()?;
    let booted = reports
        .until("another boot", |it| it.boot_id != first.boot_id)
        .await;
    booted.map(|_| ())
}
