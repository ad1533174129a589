//! A change needs what the cluster's owner says, on a real machine.

use evenkeel_testbed::Result;
use serde_json::json;

use super::scene::{ASKED, SOON, Scene, spec};

/// Covers O09.
#[tokio::test]
async fn a_policy_restarts_a_unit_where_a_reboot_was_and_reads_units_again() -> Result<()> {
    let Some(scene) = Scene::start("policy").await? else {
        return Ok(());
    };
    scene.at_rest(spec(&[], &["ssh-ed25519 A"])).await?;
    let boot = scene.node.boot_id()?;
    // A unit that counts its starts, and one that systemd knows only when it has read its units again.
    let unit = "[Service]\nType=exec\nExecStart=/bin/sh -c 'cat /etc/managed >> /srv/starts; sleep infinity'\n";
    scene
        .node
        .write("/etc/systemd/system/reader.service", unit)?;
    scene.node.write("/etc/managed", "one\n")?;
    scene.node.run(&["systemctl", "daemon-reload"])?;
    scene.node.run(&["systemctl", "start", "reader.service"])?;
    let actions = json!([
        { "type": "DaemonReload" },
        { "type": "Restart", "restart": { "serviceName": "reader.service" } },
    ]);
    let policy = json!({ "files": [
        { "path": "/etc/managed", "actions": actions },
        { "path": "/run/systemd/system", "actions": [{ "type": "DaemonReload" }] },
    ] });
    let files = [
        ("/etc/managed", "two\n"),
        (
            "/run/systemd/system/late.service",
            "[Service]\nExecStart=/bin/true\n",
        ),
    ];
    let new = scene
        .config_under("new", spec(&files, &["ssh-ed25519 A"]), &policy)
        .await?;
    scene.desire(&new).await?;
    let seen = scene.until_done(&new, SOON).await?;
    assert_eq!(seen.get(ASKED), None, "a drain");
    assert_eq!(scene.node.boot_id()?, boot, "a boot");
    assert_eq!(scene.node.read("/srv/starts")?, b"one\ntwo\n");
    let known = [
        "systemctl",
        "show",
        "-P",
        "NeedDaemonReload",
        "late.service",
    ];
    assert_eq!(scene.node.run(&known)?, "no\n");
    Ok(())
}
