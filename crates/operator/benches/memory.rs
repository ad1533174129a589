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
    let limit = mebibytes(replay::LIMIT_KIB);
    let mut table = Table::default();
    for (has_rule, what) in [(false, "Nodes"), (true, "Nodes and four Leases each")] {
        let needed = runtime.block_on(replay::measure(has_rule))?;
        let (nodes, size) = (replay::NODES, needed.size);
        if size < replay::SIZE {
            return Err(Error::failed(format!("these Nodes have only {size} bytes")));
        }
        let name = |which| format!("{nodes} {what}: {which}");
        table.row(&name("VmRSS"), mebibytes(needed.now_kib), limit, "MiB");
        table.row(&name("at most"), mebibytes(needed.most_kib), limit, "MiB");
    }
    Ok(table)
}

fn mebibytes(kib: u32) -> f64 {
    f64::from(kib) / 1024.0
}
