//! The benchmark on Linux.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use evenkeel_testbed::table::Table;
use evenkeel_testbed::{Doing, Error, Result};
use serde_json::{Value, json};

use crate::scene::{BOOT, Scene};

/// As many as fit into what etcd takes.
const FILES: usize = 1_000;
const SIZE: usize = 400;
const SETTLED: Duration = Duration::from_secs(15);
const IDLE: Duration = Duration::from_mins(1);
const UPDATES: usize = 10;

pub(crate) fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let done = runtime
        .doing(|| "cannot make a runtime")
        .and_then(|runtime| runtime.block_on(bench()));
    Table::verdict(done)
}

async fn bench() -> Result<Table> {
    let Some(scene) = Scene::start("bench").await? else {
        return Err(Error::failed("this machine has no test bed: run ./test"));
    };
    let mut table = Table::default();
    let program = std::fs::metadata(env!("CARGO_BIN_EXE_evenkeel-agent"));
    let program = program.doing(|| "no program")?.len();
    table.row("the program, stripped", number(program) / 1e6, 20.0, "MB");

    // The first one reboots the machine: after that the agent has only verified what is there.
    scene.at_rest(config("ssh-ed25519 A0")).await?;
    tokio::time::sleep(SETTLED).await;
    let booted = memory(&scene)?;
    table.row("VmRSS, idle after a boot", booted, 15.0, "MiB");

    let mut times = Vec::with_capacity(UPDATES);
    for round in 1..=UPDATES {
        let name = scene
            .config(
                &format!("keys-{round}"),
                config(&format!("ssh-ed25519 A{round}")),
            )
            .await?;
        let start = Instant::now();
        scene.desire(&name).await?;
        scene.until_done(&name, BOOT).await?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let [median, slowest] = [UPDATES / 2, UPDATES - 1].map(|at| times[at]);
    table.row("update without disruption, median", median, 2.0, "s");
    table.row("update without disruption, slowest", slowest, 2.0, "s");

    tokio::time::sleep(SETTLED).await;
    let updated = memory(&scene)?;
    table.row("VmRSS, idle after ten updates", updated, 15.0, "MiB");
    let before = processor(&scene)?;
    let start = Instant::now();
    tokio::time::sleep(IDLE).await;
    let used = (processor(&scene)? - before) / start.elapsed().as_secs_f64();
    table.row("processor, idle", used * 100.0, 0.1, "%");
    Ok(table)
}

/// A thousand files, and a key that can change without disruption.
fn config(key: &str) -> Value {
    let files: Vec<Value> = (0..FILES)
        .map(|number| {
            let line = format!("setting {number} of this file, and of no other; ");
            let text: String = line.chars().cycle().take(SIZE).collect();
            let text = text.replace(' ', "%20").replace(',', "%2C");
            json!({
                "path": format!("/etc/app/{:02}/setting-{number}.conf", number % 50),
                "mode": 0o644,
                "contents": { "source": format!("data:,{text}") },
            })
        })
        .collect();
    json!({ "config": {
        "ignition": { "version": "3.4.0" },
        "storage": { "files": files },
        "passwd": { "users": [{ "name": "core", "sshAuthorizedKeys": [key] }] },
    }})
}

fn process(scene: &Scene) -> Result<String> {
    let property = ["systemctl", "show", "--value", "-p", "MainPID"];
    let process = scene
        .node
        .run(&[&property[..], &["evenkeel-agent.service"]].concat())?;
    Ok(process.trim().to_owned())
}

/// What of the agent is in memory, in MiB.
fn memory(scene: &Scene) -> Result<f64> {
    let status = format!("/proc/{}/status", process(scene)?);
    let status = scene.node.run(&["cat", &status])?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.map(|kib| kib / 1024.0)
        .ok_or_else(|| Error::failed(format!("no VmRSS in {status}")))
}

/// What the agent used of the processor so far, in seconds, over all its threads.
fn processor(scene: &Scene) -> Result<f64> {
    let all = format!("cat /proc/{}/task/*/schedstat", process(scene)?);
    let stats = scene.node.run(&["sh", "-c", &all])?;
    let spent = stats
        .lines()
        .filter_map(|line| line.split(' ').next()?.parse::<u64>().ok());
    match spent.sum::<u64>() {
        0 => Err(Error::failed(format!("no times in {stats}"))),
        nanoseconds => Ok(number(nanoseconds) / 1e9),
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "sizes and times are far below that"
)]
fn number(count: u64) -> f64 {
    count as f64
}
