//! What readiness costs with a thousand nodes on a real API server, against its limits: `cargo bench -p
//! evenkeel-operator --bench readiness`.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_api::names::taint;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::table::Table;
use evenkeel_testbed::{Doing, Error, Result};
use futures::StreamExt;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;

#[path = "../tests/operator/readiness/bed.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod bed;
#[path = "../tests/operator/readiness/fleet.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod fleet;
#[path = "../tests/operator/scene.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod scene;
mod told;

use fleet::Crowd;
use scene::Scene;
use told::{bare_loop, condition, patch_all, until_tainted, watch};

const NODES: usize = 1_000;
/// How often kubelets and agents renew their Leases.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long the idle operator is looked at.
const IDLE: Duration = Duration::from_secs(30);

/// How long all may take, in bare loops of as many patches.
const RATIO: f64 = 2.5;
/// How long one may take.
const LATENCY: f64 = 3.0;
/// Percent of one processor.
const CPU: f64 = 5.0;
/// Bytes of a rule's status.
const STATUS: f64 = 2_048.0;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    Table::verdict(
        runtime
            .doing(|| "cannot make a runtime")
            .and_then(|runtime| runtime.block_on(bench())),
    )
}

#[expect(clippy::cast_precision_loss, reason = "a thousand fits")]
async fn bench() -> Result<Table> {
    let control_plane: &'static ControlPlane = Box::leak(Box::new(ControlPlane::start()?));
    let scene = Scene::on(control_plane, "bench").await?;
    control_plane.kubectl(&["create", "namespace", bed::EXTENSIONS])?;
    let crowd = Crowd::gather(&scene, NODES, &["a", "b", "c"], HEARTBEAT, HEARTBEAT).await?;
    patch_all(&scene, &crowd.names, &condition("True"), true).await?;
    let mut table = Table::default();

    let key = taint::META_READINESS;
    let bare = bare_loop(&scene, &crowd.names, key).await?;
    Table::note(
        "a bare loop of 1,000 taint patches",
        bare.as_secs_f64(),
        "s",
    );

    let extensions = json!([
        { "name": "gpu", "condition": { "type": "GpuReady", "freshness": "0s" } },
        { "name": "dp", "lease": { "expiry": "40s" } },
    ]);
    let rule = json!({ "extensions": extensions, "evictAfter": "0s" });
    scene.rule("gpu", rule).await?;
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
    let port = port.doing(|| "no port")?.port();
    let listen = format!("127.0.0.1:{port}");
    let operator = scene.operator(&["--listen", &listen])?;
    crowd.are_ready(&scene, "gpu").await?;
    let seen = watch(&scene, key);
    until_tainted(&seen, 0).await?;

    let before = operator.processor_time()?;
    tokio::time::sleep(IDLE).await;
    let had = operator.processor_time()?.saturating_sub(before);
    let idle = had.div_duration_f64(IDLE) * 100.0;
    table.row("idle, of one processor", idle, CPU, "%");

    // All of them turn bad, told by as many writers as the operator has requests.
    let writes = node_writes(port).await?;
    let statuses = Statuses::of(&scene, "gpu");
    let begun = Instant::now();
    let said = patch_all(&scene, &crowd.names, &condition("False"), true).await?;
    let all = until_tainted(&seen, NODES).await?.duration_since(begun);
    Table::note("telling of 1,000 bad nodes", said.as_secs_f64(), "s");
    let ratio = all.as_secs_f64() / bare.as_secs_f64();
    table.row("told and tainted, in bare loops", ratio, RATIO, "x");
    let mut late: Vec<Duration> = {
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let both = seen.tainted.iter();
        both.filter_map(|(name, at)| Some(at.duration_since(*seen.bad.get(name)?)))
            .collect()
    };
    if late.len() != NODES {
        return Err(Error::failed(format!("{} of {NODES} measured", late.len())));
    }
    late.sort();
    Table::note(
        "from bad to tainted, median",
        late[NODES / 2].as_secs_f64(),
        "s",
    );
    let p99 = late[NODES * 99 / 100 - 1].as_secs_f64();
    table.row("from bad to tainted, 99 of 100", p99, LATENCY, "s");
    let written = node_writes(port).await? - writes;
    table.row("Node writes for each", written / NODES as f64, 1.0, "");
    let (count, largest) = statuses.end();
    table.row(
        "status writes for each",
        count as f64 / NODES as f64,
        1.0,
        "",
    );
    table.row("the largest status", largest as f64, STATUS, "bytes");

    // All of them at once, by one object: a rule that no node is well for.
    patch_all(&scene, &crowd.names, &condition("True"), true).await?;
    until_tainted(&seen, 0).await?;
    let begun = Instant::now();
    let missing = json!([{ "name": "nic", "condition": { "type": "NicReady" } }]);
    let rule = json!({ "extensions": missing, "evictAfter": "0s" });
    scene.rule("nic", rule).await?;
    let all = until_tainted(&seen, NODES).await?.duration_since(begun);
    let ratio = all.as_secs_f64() / bare.as_secs_f64();
    table.row("all at once by one rule, in bare loops", ratio, RATIO, "x");
    // As many writes as the bare loop has: it cannot be sooner than that.
    Table::note("the same, the last of them", all.as_secs_f64(), "s");
    Ok(table)
}

/// How often the operator has written on Nodes, as its numbers say.
async fn node_writes(port: u16) -> Result<f64> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let failed = || "cannot read the operator's metrics";
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
    let mut stream = stream.doing(failed)?;
    let ask = b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(ask).await.doing(failed)?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.doing(failed)?;
    let lines = text
        .lines()
        .filter(|it| it.starts_with("evenkeel_readiness_writes_total"));
    let numbers = lines.filter_map(|it| it.rsplit(' ').next()?.parse::<f64>().ok());
    Ok(numbers.sum())
}

/// The statuses of a rule that are written, by their sizes.
struct Statuses {
    sizes: Arc<Mutex<Vec<usize>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Statuses {
    fn of(scene: &Scene, rule: &str) -> Self {
        let name = format!("metadata.name={}", scene.called(rule));
        let config = watcher::Config::default().fields(&name);
        let kind =
            kube::core::GroupVersionKind::gvk("evenkeel.dev", "v1alpha1", "NodeReadinessRule");
        let kind = kube::core::ApiResource::from_gvk_with_plural(&kind, "nodereadinessrules");
        let api: Api<kube::core::DynamicObject> = Api::all_with(scene.client.clone(), &kind);
        let sizes = Arc::<Mutex<Vec<usize>>>::default();
        let written = Arc::clone(&sizes);
        let task = tokio::spawn(async move {
            let changes = kube::runtime::watcher(api, config);
            let changes = changes.default_backoff().applied_objects();
            let mut changes = std::pin::pin!(changes);
            while let Some(change) = changes.next().await {
                let Ok(rule) = change else { continue };
                let size = rule.data["status"].to_string().len();
                written
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(size);
            }
        });
        Self { sizes, task }
    }

    /// How many were written since, and how large the largest was.
    fn end(&self) -> (usize, usize) {
        let sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        // The first is what was there.
        (
            sizes.len().saturating_sub(1),
            sizes.iter().copied().max().unwrap_or_default(),
        )
    }
}

impl Drop for Statuses {
    fn drop(&mut self) {
        self.task.abort();
    }
}
