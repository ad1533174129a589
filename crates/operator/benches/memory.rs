//! What the operator needs for 5,000 Nodes of real size, against its limits: `cargo bench -p evenkeel-operator`.

use std::process::ExitCode;
use std::time::Duration;

use evenkeel_testbed::table::Table;
use evenkeel_testbed::{Doing, Error, Result};

#[path = "../tests/operator/replay.rs"]
mod replay;

use replay::{NODES, Needed, Rules, Watched};

/// How long the idle operator is looked at.
const IDLE: Duration = Duration::from_secs(30);
/// Percent of one processor, at rest.
const CPU: f64 = 1.0;
/// How long after it leads a new leader may take to have judged all nodes, in seconds.
const IN_SERVICE: f64 = 5.0;

fn main() -> ExitCode {
    Table::verdict(bench())
}

fn bench() -> Result<Table> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.doing(|| "cannot make a runtime")?;
    let mut table = Table::default();
    for (rules, what) in [
        (Rules::None, "Nodes"),
        (Rules::Leases, "Nodes and four Leases each"),
    ] {
        let needed = runtime.block_on(replay::measure(rules))?;
        memory(&mut table, what, &needed)?;
    }
    runtime.block_on(all_kinds(&mut table))?;
    Ok(table)
}

async fn all_kinds(table: &mut Table) -> Result<()> {
    let what = "Nodes and rules of all kinds";
    let mut watched = Watched::by_operator(Rules::AllKinds).await?;
    memory(table, what, &watched.needed()?)?;
    let idle = watched.processor(false, IDLE).await?;
    table.row("at rest, of one processor", 100.0 * idle, CPU, "%");
    let busy = watched.processor(true, IDLE).await?;
    let what = "with 25,000 Leases renewed every ten seconds";
    Table::note(what, 100.0 * busy, "%");
    let (took, writes) = watched.hand_over().await?;
    let seconds = took.as_secs_f64();
    table.row("a new leader is in service after", seconds, IN_SERVICE, "s");
    #[expect(clippy::cast_precision_loss, reason = "as many as nodes at most")]
    table.row("and wants to write on Nodes", writes as f64, 0.0, "");
    memory(table, "Nodes, a new leader", &watched.needed()?)
}

fn memory(table: &mut Table, what: &str, needed: &Needed) -> Result<()> {
    let limit = mebibytes(replay::LIMIT_KIB);
    if needed.size < replay::SIZE {
        let size = needed.size;
        return Err(Error::failed(format!("these Nodes have only {size} bytes")));
    }
    let name = |which| format!("{NODES} {what}: {which}");
    table.row(&name("VmRSS"), mebibytes(needed.now_kib), limit, "MiB");
    table.row(&name("at most"), mebibytes(needed.most_kib), limit, "MiB");
    Ok(())
}

fn mebibytes(kib: u32) -> f64 {
    f64::from(kib) / 1024.0
}
