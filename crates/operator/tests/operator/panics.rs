//! What a panic costs: the object whose work it was in an error, a part of the operator a new start, and nobody else
//! anything. Debug builds can be told where to panic.

use evenkeel_api::names::annotation;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use serde_json::json;

use crate::pools::file;
use crate::scene::{SOON, Scene, annotated, free_port, metrics};

/// Covers S11.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_costs_one_object_or_one_part_and_everybody_else_is_served() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("panics").await?;
    let (good, bad) = (scene.describe("good"), scene.describe("bad"));
    let (good, bad) = (scene.start(good).await?, scene.start(bad).await?);
    let (good, bad) = (good.name().to_owned(), bad.name().to_owned());
    // Who panics, whose error that is, and whether the one who has it waits.
    for (number, (part, object)) in [
        ("nodes", bad.as_str()),
        ("drain", bad.as_str()),
        ("readiness", ""),
        ("render", ""),
    ]
    .into_iter()
    .enumerate()
    {
        scene.nobody_leads().await?;
        let port = free_port()?;
        let rehearsal = format!("{part}/{object}");
        let mut operator = scene.operator_in(
            &[("EVENKEEL_PANIC", &rehearsal)],
            "operator",
            &scene.login()?,
            &["--listen", &format!("127.0.0.1:{port}")],
        )?;
        let request = format!("drain-{number}");
        // Nobody's leave is needed for that: a node whose drain panics keeps its place, as any that fails.
        if !object.is_empty() {
            scene.ask(&bad, &format!("uncordon-bad-{number}")).await?;
        }
        scene.ask(&good, &request).await?;
        scene.answered(&good, &request).await?;
        let counted = format!("evenkeel_panics_total{{part=\"{part}\"}} ");
        until_async(&format!("{counted} to be counted"), SOON, async || {
            let seen = metrics(port).await?;
            Ok(if seen.contains(&counted) {
                Look::Found(())
            } else {
                Look::NotYet(seen)
            })
        })
        .await?;
        let said = match object {
            "" => format!(
                "internal error in {part} (please report): panicked at crates/daemon/src/panics.rs"
            ),
            _ => format!(
                "internal error in {part} (please report): work on {object} panicked at crates/daemon/src/panics.rs"
            ),
        };
        assert!(scene.log().contains(&said), "{said}: {}", scene.log());
        if object.is_empty() {
            let again = format!("{part} restarts in");
            assert!(scene.log().contains(&again), "{}", scene.log());
        } else {
            let seen = scene.node(&bad).await?;
            let answer = annotated(&seen, annotation::LAST_APPLIED_DRAIN);
            let asked = format!("uncordon-bad-{number}");
            assert_ne!(answer, Some(asked.as_str()), "{rehearsal}");
        }
        operator.still_runs()?;
        scene.ask(&good, &format!("uncordon-{number}")).await?;
        scene.answered(&good, &format!("uncordon-{number}")).await?;
    }
    Ok(())
}

/// Covers S11.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_over_one_pool_leaves_the_others_rolling_out() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("panic-pools").await?;
    for pool in ["good", "bad"] {
        scene.pool(pool, json!({})).await?;
    }
    for part in ["render", "rollout"] {
        scene.nobody_leads().await?;
        let port = free_port()?;
        let rehearsal = format!("{part}/{}", scene.own("bad"));
        let mut operator = scene.operator_in(
            &[("EVENKEEL_PANIC", &rehearsal)],
            "operator",
            &scene.login()?,
            &["--listen", &format!("127.0.0.1:{port}")],
        )?;
        for pool in ["good", "bad"] {
            let config = format!("{pool}-config");
            let part = file(&format!("/etc/{part}"), "new");
            scene.config(pool, &config, part).await?;
        }
        let before = scene.status("bad").await?.configuration;
        let source = scene.own("good-config");
        let rendered = async || {
            let target = scene.target("good").await?;
            if target.is_empty() {
                return Ok(Look::NotYet(scene.log()));
            }
            let status = scene.status("good").await?;
            let says = status.configuration.is_some_and(|it| it.name == target);
            let config = scene.configs().get_opt(&target).await;
            let config = config.doing(|| "cannot look")?;
            let text = config.map(|it| it.data.to_string()).unwrap_or_default();
            Ok(if says && text.contains(&format!("/etc/{part}")) {
                Look::Found(())
            } else {
                Look::NotYet(format!("{target} of {source}: {text}\n{}", scene.log()))
            })
        };
        until_async("the other pool to go on", SOON, rendered).await?;
        let counted = format!("evenkeel_panics_total{{part=\"{part}\"}} ");
        until_async(&format!("{counted} to be counted"), SOON, async || {
            let seen = metrics(port).await?;
            Ok(if seen.contains(&counted) {
                Look::Found(())
            } else {
                Look::NotYet(seen)
            })
        })
        .await?;
        assert_eq!(scene.status("bad").await?.configuration, before, "{part}");
        operator.still_runs()?;
    }
    Ok(())
}
