//! The operator's memory; `cargo bench -p evenkeel-operator` measures what is shipped.

use evenkeel_testbed::Result;

use crate::replay::{self, LIMIT_KIB, NODES, SIZE};

#[tokio::test]
async fn five_thousand_nodes_of_real_size_fit_into_eighty_mebibytes() -> Result<()> {
    let needed = replay::measure(false).await?;
    let (size, now, most) = (needed.size, needed.now_kib, needed.most_kib);
    assert!(size >= SIZE, "these Nodes have only {size} bytes");
    println!(
        "proof: {NODES} Nodes of {size} bytes, listed and watched: the operator has {now} KiB resident, {most} KiB at most"
    );
    assert!(
        now > 0 && most < LIMIT_KIB,
        "{most} KiB at most, {now} KiB now"
    );
    Ok(())
}
