//! The same rule of node-readiness-controller, followed by that controller and by our operator, one after the other on the same nodes:
//! `NRC=PATH cargo bench -p evenkeel-operator --bench beside_nrc`, with the path of its program. No registry has it.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::process::Running;
use evenkeel_testbed::table::Table;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind};
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
const HEARTBEAT: Duration = Duration::from_secs(10);
const KEY: &str = "readiness.k8s.io/gpu";
const GROUP: &str = "readiness.node.x-k8s.io";
const DEFINITION: &str = include_str!("../tests/operator/readiness/nrc/crd.json");
const SOON: Duration = Duration::from_mins(2);
/// How long all may take us, in bare loops of as many patches.
const RATIO: f64 = 2.5;
/// How long all may take us, of what it takes that controller.
const SHARE: f64 = 0.05;

fn main() -> ExitCode {
    let Some(program) = std::env::var_os("NRC") else {
        println!(
            "beside node-readiness-controller: skipped: no NRC (give the path of its program: NRC=PATH)"
        );
        return ExitCode::SUCCESS;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    Table::verdict(
        runtime
            .doing(|| "cannot make a runtime")
            .and_then(|runtime| runtime.block_on(bench(Path::new(&program)))),
    )
}

async fn bench(program: &Path) -> Result<Table> {
    let control_plane: &'static ControlPlane = Box::leak(Box::new(ControlPlane::start()?));
    let scene = Scene::on(control_plane, "bench").await?;
    control_plane.kubectl(&["create", "namespace", bed::EXTENSIONS])?;
    let file = scene.scratch.path().join("crd.json");
    std::fs::write(&file, DEFINITION).doing(|| "cannot write")?;
    control_plane.kubectl(&["apply", "-f", &file.display().to_string()])?;
    let definition = format!("crd/nodereadinessrules.{GROUP}");
    control_plane.kubectl(&["wait", "--for=condition=Established", &definition])?;
    let chart = Chart::render(&scene.name, &["--set", "readiness.nrcRules=true"])?;
    chart.component("operator").rights().apply(control_plane)?;
    let crowd = Crowd::gather(&scene, NODES, &["a", "b", "c"], HEARTBEAT, HEARTBEAT).await?;
    patch_all(&scene, &crowd.names, &condition("True"), true).await?;
    let mut table = Table::default();
    let bare = bare_loop(&scene, &crowd.names, KEY).await?;
    Table::note(
        "a bare loop of 1,000 taint patches",
        bare.as_secs_f64(),
        "s",
    );

    let theirs = measure(&scene, &crowd, "theirs", || nrc(&scene, program)).await?;
    let ours = measure(&scene, &crowd, "ours", || {
        scene.operator(&[
            "--rule-selector",
            &format!("place={}", scene.name),
            "--nrc-rules",
        ])
    })
    .await?;
    for (what, theirs, ours) in [
        ("the last of 1,000 is tainted", theirs.0, ours.0),
        ("the last of 1,000 is released", theirs.1, ours.1),
    ] {
        Table::note(&format!("{what}: theirs"), theirs.as_secs_f64(), "s");
        Table::note(&format!("{what}: ours"), ours.as_secs_f64(), "s");
        table.row("ours, of theirs", ours.div_duration_f64(theirs), SHARE, "");
        table.row(
            "ours, in bare loops",
            ours.div_duration_f64(bare),
            RATIO,
            "x",
        );
    }
    Ok(table)
}

/// Their controller, with an administrator's rights and without a leader's Lease.
fn nrc(scene: &Scene, program: &Path) -> Result<Running> {
    let login = scene.scratch.path().join("nrc.kubeconfig");
    scene.control_plane.admin_kubeconfig().write(&login)?;
    let mut command = Command::new(program);
    command
        .args(["--metrics-bind-address=0", "--health-probe-bind-address=0"])
        .env("KUBECONFIG", &login);
    let log = scene.scratch.path().join("nrc.log");
    Running::start("node-readiness-controller", &mut command, &log)
}

/// How long after all have begun to turn bad, and good again, the last one is tainted, and released.
async fn measure(
    scene: &Scene,
    crowd: &Crowd,
    who: &str,
    start: impl Fn() -> Result<Running>,
) -> Result<(Duration, Duration)> {
    let kind = GroupVersionKind::gvk(GROUP, "v1alpha1", "NodeReadinessRule");
    let kind = ApiResource::from_gvk_with_plural(&kind, "nodereadinessrules");
    let rules: Api<DynamicObject> = Api::all_with(scene.client.clone(), &kind);
    let rule = json!({
        "apiVersion": format!("{GROUP}/v1alpha1"), "kind": "NodeReadinessRule",
        "metadata": { "name": who, "labels": { "place": scene.name } },
        "spec": {
            "conditions": [{ "type": "GpuReady", "requiredStatus": "True" }], "enforcementMode": "continuous",
            "taint": { "key": KEY, "effect": "NoSchedule" },
            "nodeSelector": { "matchLabels": { "place": scene.name } },
        },
    });
    let rule: DynamicObject = serde_json::from_value(rule).doing(|| "no rule")?;
    let mut running = start()?;
    let made = rules.create(&kube::api::PostParams::default(), &rule).await;
    made.doing(|| "cannot make the rule")?;
    let observed = async || rules.get(who).await.map(|it| it.data["status"].clone());
    until_async(&format!("{who} to follow the rule"), SOON, async || {
        let status = observed().await.doing(|| "no rule")?;
        Ok(if status["observedGeneration"] == 1 {
            Look::Found(())
        } else {
            Look::NotYet(running.last_words())
        })
    })
    .await?;
    let seen = watch(scene, KEY);
    until_tainted(&seen, 0).await?;
    let begun = Instant::now();
    patch_all(scene, &crowd.names, &condition("False"), true).await?;
    let bad = until_tainted(&seen, NODES).await?.duration_since(begun);
    let begun = Instant::now();
    patch_all(scene, &crowd.names, &condition("True"), true).await?;
    let good = until_tainted(&seen, 0).await?.duration_since(begun);
    let deleted = rules.delete(who, &DeleteParams::default()).await;
    deleted.doing(|| "cannot delete the rule")?;
    until_async(&format!("the rule of {who} to be gone"), SOON, async || {
        let left = rules.get_opt(who).await.doing(|| "no answer")?;
        Ok(match left {
            None => Look::Found(()),
            Some(_) => Look::NotYet(running.last_words()),
        })
    })
    .await?;
    running.kill()?;
    if good.is_zero() {
        return Err(Error::failed(format!("{who} released nobody")));
    }
    Ok((bad, good))
}
