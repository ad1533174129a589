//! A whole update with both programs as we ship them: the agent on a machine that really boots, and the
//! operator that moves its pods.

use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Error, Result};
use serde_json::{Value, json};

use super::fleet::{Fleet, is_cordoned};
use super::scene::{ANSWERED, ASKED, BOOT, CURRENT, SOON, STATE, is_impossible, says, spec};

const FILE: &str = "/etc/managed.conf";
const UNIT: &str = "managed.service";
const UNIT_FILE: &str = "/etc/systemd/system/managed.service";

/// A file and a unit that runs from the next boot on, both with `text` in them.
fn loud(text: &str) -> Value {
    let unit = format!(
        "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/echo {text}\n\
         [Install]\nWantedBy=multi-user.target\n"
    );
    let mut wanted = spec(&[(FILE, text)], &["ssh-ed25519 A"]);
    wanted["config"]["systemd"] =
        json!({ "units": [{ "name": UNIT, "enabled": true, "contents": unit }] });
    wanted
}

/// Covers M01.
#[tokio::test]
async fn a_file_and_a_unit_roll_out_with_the_pods_moved_first_and_let_in_again() -> Result<()> {
    if is_impossible()? {
        return Ok(());
    }
    let mut fleet = Fleet::start("whole").await?;
    fleet.scene.at_rest(spec(&[], &["ssh-ed25519 A"])).await?;
    let stay = fleet.those_that_stay().await?;
    let moved = fleet.budgeted("web").await?;
    assert_eq!(moved.len(), 2, "the workload is not on the node");
    let new = fleet.scene.config("new", loud("new")).await?;
    let boot = fleet.scene.node.boot_id()?;
    let before = fleet.scene.requests()?.len();

    fleet.scene.desire(&new).await?;
    let request = format!("drain-{new}");
    let mut fewest = i32::MAX;
    let left = until_async("the drain to be answered", BOOT, async || {
        fewest = fewest.min(fleet.healthy("web").await?);
        let written = fleet.scene.node.own_files().join(&FILE[1..]).exists();
        let seen = fleet.scene.annotations().await?;
        if says(&seen, ANSWERED, &request) {
            return Ok(Look::Found(fleet.pods_here().await?));
        }
        if written {
            return Err(Error::failed(format!(
                "written before the drain: {seen:#?}"
            )));
        }
        Ok(Look::NotYet(format!("{seen:#?}")))
    })
    .await?;
    assert_eq!(left, stay, "who is on the node when the drain is answered");
    assert!(is_cordoned(&fleet.node().await?));
    fleet.boots(&boot).await?;
    let seen = fleet.scene.until_done(&new, BOOT).await?;
    assert!(says(&seen, ASKED, &format!("uncordon-{new}")), "{seen:#?}");
    assert!(fewest >= 1, "{fewest} of two were left");

    assert_ne!(fleet.scene.node.boot_id()?, boot);
    assert_eq!(fleet.scene.node.read(FILE)?, b"new");
    let state = ["systemctl", "is-active", UNIT];
    assert_eq!(fleet.scene.node.run(&state)?.trim(), "active");
    fleet.until_open().await?;
    let here = until_async("the pods that stay to run again", SOON, async || {
        let here = fleet.pods_here().await?;
        Ok(if here.is_superset(&stay) {
            Look::Found(here)
        } else {
            Look::NotYet(format!("{here:?}"))
        })
    })
    .await?;
    assert!(here.is_disjoint(&moved), "{here:?}");
    fleet.scene.until_told("ConfigDone", &new, SOON).await?;
    let requests = &fleet.scene.requests()?[before..];
    assert!(requests.len() <= 20, "{requests:#?}");
    println!(
        "proof: {} API requests for an update with a boot",
        requests.len()
    );
    Ok(())
}

/// What the node has come to when its desiredConfig is changed again.
#[derive(Debug, Clone, Copy)]
enum Moment {
    PodsLeave,
    PodsHaveLeft,
    Booted,
}

#[tokio::test]
async fn a_configuration_that_changes_again_on_the_way_ends_at_the_newest_and_never_in_between()
-> Result<()> {
    if is_impossible()? {
        return Ok(());
    }
    let mut fleet = Fleet::start("twice").await?;
    fleet.scene.at_rest(spec(&[], &["ssh-ed25519 A"])).await?;
    fleet.budgeted("web").await?;
    for (round, moment) in [Moment::PodsLeave, Moment::PodsHaveLeft, Moment::Booted]
        .into_iter()
        .enumerate()
    {
        let (first, text) = (format!("first-{round}"), format!("newest {round}"));
        let first = fleet.scene.config(&first, loud("first")).await?;
        let newest = format!("newest-{round}");
        let newest = fleet.scene.config(&newest, loud(&text)).await?;
        let boot = fleet.scene.node.boot_id()?;
        fleet.scene.desire(&first).await?;
        let (mark, request) = match moment {
            Moment::PodsLeave => (ASKED, format!("drain-{first}")),
            Moment::PodsHaveLeft | Moment::Booted => (ANSWERED, format!("drain-{first}")),
        };
        fleet
            .scene
            .until("the moment", BOOT, |seen| says(seen, mark, &request))
            .await?;
        if matches!(moment, Moment::Booted) {
            fleet.boots(&boot).await?;
        }
        fleet.scene.desire(&newest).await?;
        // After the boot it may say so in the very moment of the change, and be right.
        let may_be_done = matches!(moment, Moment::Booted);
        until_async(&format!("{newest} after {moment:?}"), BOOT, async || {
            let seen = fleet.scene.annotations().await?;
            let is_at = |config: &str| says(&seen, STATE, "Done") && says(&seen, CURRENT, config);
            if is_at(&first) && !may_be_done {
                return Err(Error::failed(format!("done in between: {seen:#?}")));
            }
            Ok(if is_at(&newest) {
                Look::Found(())
            } else {
                Look::NotYet(format!("{seen:#?}"))
            })
        })
        .await?;
        assert_eq!(fleet.scene.node.read(FILE)?, text.as_bytes(), "{moment:?}");
        let unit = fleet.scene.node.read(UNIT_FILE)?;
        assert!(String::from_utf8_lossy(&unit).contains(&text), "{moment:?}");
        assert_ne!(fleet.scene.node.boot_id()?, boot, "{moment:?}");
        fleet.until_open().await?;
        fleet.kubelet.restart_machine().await?;
    }
    Ok(())
}
