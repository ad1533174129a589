//! The agent as it is shipped, on a machine with systemd, and the operator: restarts of kubelet and machine.

use std::time::{Duration, Instant};

use evenkeel_api::names::annotation;
use evenkeel_api::readiness::Report;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::wait::within;
use evenkeel_testbed::{Doing, Error, Result, SystemdNode, need};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use tokio::sync::mpsc;

use super::bed::{TaintWatcher, is_tainted, order};
use crate::scene::{SOON, Scene, is_ready};
use crate::systemd::{agent, install};

const SERVICE: &str = "[Service]
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
";

/// What the agent says, and when it began to say so: a watch may hear of it later than the operator's.
struct Signs {
    /// The version of the Lease that was spoken of last.
    version: Option<u64>,
    heard: mpsc::UnboundedReceiver<(Instant, u64, Report)>,
    task: tokio::task::JoinHandle<()>,
}

impl Signs {
    fn of(scene: &Scene, node: &str) -> Self {
        let name = format!("metadata.name={node}.evenkeel-agent");
        let config = watcher::Config::default().fields(&name);
        let (sender, heard) = mpsc::unbounded_channel();
        let api = scene.leases();
        let task = tokio::spawn(async move {
            let changes = watcher(api, config).default_backoff().applied_objects();
            let mut changes = std::pin::pin!(changes);
            while let Some(change) = changes.next().await {
                if let Some(said) = change.ok().and_then(|lease| said(&lease))
                    && sender.send(said).is_err()
                {
                    return;
                }
            }
        });
        Self {
            version: None,
            heard,
            task,
        }
    }

    /// The first report that is so, and when the agent began to say it.
    async fn until(&mut self, is_it: impl Fn(&Report) -> bool) -> Result<(Instant, Report)> {
        let wait = async {
            while let Some((at, version, report)) = self.heard.recv().await {
                self.version = Some(version);
                if is_it(&report) {
                    return Some((at, report));
                }
            }
            None
        };
        let found = within(SOON, wait).await.flatten();
        found.ok_or_else(|| Error::failed("the agent never said so"))
    }
}

/// The clock of the machine is that of this one.
fn said(lease: &Lease) -> Option<(Instant, u64, Report)> {
    let text = lease.annotations().get(annotation::REPORT)?;
    let written = lease.spec.as_ref()?.renew_time.as_ref()?.0;
    let age = Timestamp::now().duration_since(written).unsigned_abs();
    let at = Instant::now().checked_sub(age)?;
    Some((at, order(lease)?, Report::from_json(text).ok()?))
}

impl Drop for Signs {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Covers R02, R03, R08.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_whose_kubelet_or_kernel_starts_anew_waits_for_newer_evidence() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? || need::skip(SystemdNode::NEEDS)? {
        return Ok(());
    }
    let agent = agent()?;
    let scene = Scene::new("machine").await?;
    scene.let_agents_in()?;
    scene.prepare_readiness()?;
    // Somebody must say that its kubelet is healthy, and move its pods.
    let kubelet = scene.describe("n1").lease_interval(Duration::from_secs(2));
    let kubelet = scene.start(kubelet).await?;
    let name = kubelet.name().to_owned();
    let mut machine = install(&scene, &name, &agent)?;
    for unit in ["kubelet", "plugin"] {
        machine.write(&format!("/etc/systemd/system/{unit}.service"), SERVICE)?;
    }
    machine.run(&["systemctl", "daemon-reload"])?;
    machine.run(&["systemctl", "enable", "--now", "kubelet.service"])?;
    machine.run(&["systemctl", "start", "plugin.service"])?;
    let labelled = |it: &mut serde_json::Value| it["metadata"]["labels"] = json!({ "app": "cni" });
    scene.pod(&name, "cni", labelled).await?;
    let bystander = scene.pod(&name, "bystander", |_| {}).await?;
    let probe = json!({ "service": { "name": "plugin.service" }, "period": "1s", "timeout": "1s", "failureThreshold": 1 });
    let pods = json!({ "namespace": scene.name, "selector": { "matchLabels": { "app": "cni" } } });
    let extensions = json!([{ "name": "plugin", "probe": probe }, { "name": "cni", "pods": pods }]);
    scene
        .rule("both", json!({ "extensions": extensions }))
        .await?;
    let _operator = scene.operator(&["--rule-selector", &format!("place={}", scene.name)])?;
    let mut signs = Signs::of(&scene, &name);
    let is_healthy = |it: &Report| it.probes.get("plugin").is_some_and(|it| it.healthy);
    let (_, mut last) = signs
        .until(|it| is_healthy(it) && !it.kubelet_start.is_empty())
        .await?;
    scene.tainted(&name, false).await?;
    let mut taint_watcher = TaintWatcher::of(&scene.client, &name);
    taint_watcher.taint(false).await?;

    // The kubelet alone.
    let soon = Duration::from_secs(2);
    let promise = "a restart of the kubelet is noticed within two seconds of its sign";
    let is_soon = |(noticed, _): &(Duration, Duration)| *noticed < soon;
    let (noticed, released) = kept_async(promise, is_soon, async || {
        machine.run(&["systemctl", "restart", "kubelet.service"])?;
        let (sign, report) = signs
            .until(|it| it.kubelet_start != last.kubelet_start)
            .await?;
        assert_eq!(report.boot_id, last.boot_id);
        last = report;
        let tainted = taint_watcher.taint(true).await;
        let tainted = tainted.map_err(|error| scene.explain(&error))?;
        let noticed = tainted.saturating_duration_since(sign);
        kubelet.restart_kubelet().await?;
        // Its probe is answered anew at once; the pod stayed ready, and counts ten seconds later.
        signs.until(is_healthy).await?;
        let released = taint_watcher.taint(false).await?.duration_since(sign);
        assert!(released > Duration::from_secs(10), "{released:?}");
        Ok((noticed, released))
    })
    .await?;
    println!(
        "proof: tainted {noticed:?} after the agent's sign of a kubelet's restart, released after {released:?}"
    );
    let after = scene.pods().get("bystander").await.doing(|| "no pod")?;
    assert_eq!(after.metadata.uid, bystander.metadata.uid);
    let restarts = after
        .status
        .as_ref()
        .and_then(|it| it.container_statuses.as_ref()?.first())
        .map(|it| it.restart_count);
    assert_eq!(restarts, Some(0), "running pods are left alone");

    // The machine, for so short a time that no Lease expires.
    let missing = |it: &Report| it.probes.get("plugin").is_some_and(|it| !it.healthy);
    let promise = "a reboot of less than twenty seconds is noticed within two of its first sign";
    let is_soon = |(noticed, away): &(_, _)| *noticed < soon && *away < Duration::from_secs(20);
    let (noticed, away) = kept_async(promise, is_soon, async || {
        let down = Instant::now();
        machine.power_off()?;
        tokio::time::sleep(Duration::from_millis(7_500).saturating_sub(down.elapsed())).await;
        machine.boot_again()?;
        let (sign, report) = signs.until(|it| it.boot_id != last.boot_id).await?;
        let away = sign.duration_since(down);
        let tainted = taint_watcher.taint(true).await;
        let tainted = tainted.map_err(|error| scene.explain(&error))?;
        let noticed = tainted.saturating_duration_since(sign);
        assert!(!is_healthy(&report), "nothing from before the boot counts");
        last = report;
        kubelet.restart_machine().await?;
        // What does not start with the machine is missed, and the gate stays shut until it is there.
        signs.until(missing).await?;
        assert!(is_tainted(&scene.node(&name).await?));
        machine.run(&["systemctl", "start", "plugin.service"])?;
        signs.until(is_healthy).await?;
        taint_watcher.taint(false).await?;
        let (healthy, released) = (signs.version, taint_watcher.version);
        assert!(
            released > healthy,
            "released by write {released:?}, before its last extension was healthy by write {healthy:?}"
        );
        Ok((noticed, away))
    })
    .await?;
    println!(
        "proof: tainted {noticed:?} after the agent's first sign of a reboot that took {away:?}"
    );
    let after = scene.pods().get("bystander").await.doing(|| "no pod")?;
    assert_eq!(after.metadata.uid, bystander.metadata.uid);
    assert!(is_ready(&after));
    Ok(())
}
