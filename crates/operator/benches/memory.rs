//! What the operator needs for 5,000 Nodes of real size, against its limit: `cargo bench -p evenkeel-operator`.

use std::process::ExitCode;

use evenkeel_testbed::table::Table;
use evenkeel_testbed::{Doing, Error, Result};

#[path = "../tests/operator/replay.rs"]
mod replay;

fn main() -> ExitCode {
    Table::verdict(bench())
}

fn bench() -> Result<Table> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.doing(|| "cannot make a runtime")?;
    let needed = runtime.block_on(replay::measure())?;
    let (nodes, size) = (replay::NODES, needed.size);
    if size < replay::SIZE {
        return Err(Error::failed(format!("these Nodes have only {size} bytes")));
    }
    let mebibytes = |kib: u32| f64::from(kib) / 1024.0;
    let limit = mebibytes(replay::LIMIT_KIB);
    println!(
        "{nodes} Nodes of {size} bytes and {} Leases, listed and watched:",
        4 * nodes
    );
    let mut table = Table::default();
    table.row("VmRSS", mebibytes(needed.now_kib), limit, "MiB");
    table.row("VmRSS at most", mebibytes(needed.most_kib), limit, "MiB");
    let [status, limit] =
        [needed.status, replay::LIMIT_STATUS].map(|it| u32::try_from(it).unwrap_or(u32::MAX));
    table.row(
        "the largest status of a readiness rule",
        f64::from(status),
        f64::from(limit),
        "bytes",
    );
    Ok(table)
}
