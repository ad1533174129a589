//! What a newcomer has: one node, with everything on it.

use std::time::Duration;

use evenkeel_testbed::Result;
use evenkeel_testbed::chance::is_soak;

use crate::installed::{Installed, NAMESPACE, until_updated};
use crate::objects::{config, pool, web};
use crate::release::Release;
use crate::skip;

/// How soon everything is up, once its images are there.
const PROMISED: Duration = Duration::from_secs(30);

/// What a newcomer has: one node, with everything on it. Installed with Helm from a release, it works, and a change that
/// reboots the only node comes to its end without a person.
///
/// Covers K01, K03.
#[tokio::test]
#[ignore = "takes long: runs in ./test --soak"]
async fn on_the_only_node_a_release_is_installed_and_a_change_that_reboots_it_ends() -> Result<()> {
    if skip()? {
        return Ok(());
    }
    let release = Release::make()?;
    let installed = Installed::on(&["only"], &release).await?;
    installed.until_ready(2, 1).await?;
    installed.until_clean().await?;
    let took = installed.begun.elapsed();
    println!(
        "proof: installed and ready {:.1} s after its images were there",
        took.as_secs_f64()
    );
    assert!(!is_soak() || took < PROMISED, "{took:?}");
    assert_eq!(installed.restarts()?, 0);
    let log = installed.control_plane().kubectl(&[
        "logs",
        "--namespace",
        NAMESPACE,
        "daemonset/evenkeel-agent",
    ])?;
    assert!(!log.trim().is_empty(), "kubectl logs works");

    installed.apply(&web(2))?;
    installed.until_ready_in("default", 2).await?;
    let own = installed.operators()?;
    let node = installed.cluster.node(0);
    let before = node.boot_id()?;
    installed.apply(&config("one"))?;
    installed.apply(&pool())?;
    until_updated(&installed, node, &before, "one").await?;
    installed.until_ready(2, 1).await?;
    installed.until_ready_in("default", 2).await?;
    installed.until_clean().await?;
    assert_eq!(
        installed.operators()?,
        own,
        "nobody evicts the operator from the only node"
    );
    let node = installed.get(&["node", "only"])?;
    assert_ne!(node["spec"]["unschedulable"], true, "{node}");
    Ok(())
}
