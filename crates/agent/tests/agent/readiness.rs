//! What an agent reports of its node: restarts, probes and the state of its configuration, in one Lease.

use std::time::{Duration, Instant};

use evenkeel_api::names::annotation;
use evenkeel_api::readiness::Report;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
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

    /// Waits until it says that it lasts for so many seconds.
    async fn until_lasts(&self, seconds: i32) -> Result<()> {
        until_async("another period of renewals", SOON, async || {
            let lasts = self
                .lease()
                .await?
                .and_then(|it| it.spec?.lease_duration_seconds);
            Ok(if lasts == Some(seconds) {
                Look::Found(())
            } else {
                Look::NotYet(format!("{lasts:?}"))
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

pub(crate) fn rules(scene: &Scene) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("evenkeel.dev", "v1alpha1", "NodeReadinessRule");
    Api::all_with(
        scene.client.clone(),
        &ApiResource::from_gvk_with_plural(&kind, "nodereadinessrules"),
    )
}

/// Covers R16.
#[tokio::test]
async fn the_lease_is_renewed_often_only_while_a_rule_asks_for_it() -> Result<()> {
    let Some(scene) = Scene::start("renewals").await? else {
        return Ok(());
    };
    let reports = Reports::of(&scene);
    reports.until_lasts(120).await?;
    let selected = json!({ "matchLabels": { "renews": "yes" } });
    let rule = |source: serde_json::Value| {
        json!({
            "apiVersion": "evenkeel.dev/v1alpha1", "kind": "NodeReadinessRule",
            "metadata": { "name": "renewals" },
            "spec": { "nodeSelector": selected, "extensions": [source] },
        })
    };
    let probe = rule(json!({ "name": "closed", "probe": { "tcpSocket": { "port": 9 } } }));
    let own = rule(json!({ "name": "evenkeel-agent", "lease": { "expiry": "30s" } }));
    let other = rule(json!({ "name": "other", "lease": {} }));
    let rules = rules(&scene);
    let apply = async |rule: &serde_json::Value| {
        let parameters = PatchParams::apply("test").force();
        let applied = rules
            .patch("renewals", &parameters, &Patch::Apply(rule))
            .await;
        applied.map(|_| ()).doing(|| "cannot apply the rule")
    };
    apply(&probe).await?;
    let nodes: Api<Node> = Api::all(scene.client.clone());
    let label = async |value: serde_json::Value| {
        let label = Patch::Merge(json!({ "metadata": { "labels": { "renews": value } } }));
        let labelled = nodes
            .patch(&scene.name, &PatchParams::default(), &label)
            .await;
        labelled.map(|_| ()).doing(|| "cannot label the node")
    };

    // The rule counts once it selects the node, and as long.
    label(json!("yes")).await?;
    reports.until_lasts(30).await?;
    let promise = "a Lease that a rule asks for is renewed every ten seconds";
    let is_often = |took: &Duration| *took < Duration::from_secs(14);
    kept_async(promise, is_often, async || reports.renewed().await).await?;
    label(json!(null)).await?;
    reports.until_lasts(120).await?;

    // What asks for another Lease does not ask for this one.
    label(json!("yes")).await?;
    reports.until_lasts(30).await?;
    apply(&other).await?;
    reports.until_lasts(120).await?;
    let before = reports.lease().await?.and_then(|it| it.spec?.renew_time);
    tokio::time::sleep(Duration::from_secs(15)).await;
    let after = reports.lease().await?.and_then(|it| it.spec?.renew_time);
    assert_eq!(
        before, after,
        "nobody asks, so it is not renewed for twenty seconds at least"
    );
    apply(&own).await?;
    reports.until_lasts(30).await?;
    let deleted = rules.delete("renewals", &DeleteParams::default()).await;
    deleted.doing(|| "cannot delete the rule")?;
    reports.until_lasts(120).await
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
    let rules = rules(&scene);
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

    // Without news it is renewed every ten seconds, because a rule asks for it.
    let promise = "a report is renewed every ten seconds";
    kept_async(promise, within(14), async || reports.renewed().await).await?;

    scene.node.reboot()?;
    let booted = reports
        .until("another boot", |it| it.boot_id != first.boot_id)
        .await;
    booted.map(|_| ())
}
