//! The operator's memory; `cargo bench -p evenkeel-operator` measures what is shipped.

use std::time::Duration;

use evenkeel_testbed::Result;

use crate::replay::{self, LIMIT_KIB, NODES, Rules, SIZE, Watched};

#[tokio::test]
async fn five_thousand_nodes_of_real_size_fit_into_eighty_mebibytes() -> Result<()> {
    let needed = replay::measure(Rules::None).await?;
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

#[tokio::test]
#[ignore = "takes long: runs in ./test --soak"]
async fn rules_of_all_kinds_fit_too_and_a_new_leader_disturbs_nobody() -> Result<()> {
    let leases = replay::measure(Rules::Leases).await?.most_kib;
    assert!(leases < LIMIT_KIB, "{leases} KiB at most");
    let mut watched = Watched::by_operator(Rules::AllKinds).await?;
    let lasts = Duration::from_secs(10);
    let rest = watched.processor(false, lasts).await?;
    let renewals = watched.processor(true, lasts).await?;
    let (took, writes) = watched.hand_over().await?;
    let most = watched.needed()?.most_kib;
    println!(
        "proof: {NODES} Nodes with rules of all kinds: {most} KiB at most, {:.1} % of a processor at rest, {:.1} % with 25,000 Leases \
         renewed every ten seconds; a new leader had judged all after {took:?}",
        100.0 * rest,
        100.0 * renewals,
    );
    assert_eq!(writes, 0, "on Nodes");
    assert!(most < LIMIT_KIB, "{most} KiB at most");
    assert!(took < Duration::from_secs(5), "{took:?}");
    Ok(())
}
