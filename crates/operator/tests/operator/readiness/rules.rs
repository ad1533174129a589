//! Rules: what is refused, what a dry one does, what goes with one, and who else writes taints.

use std::time::{Duration, Instant};

use evenkeel_api::names::annotation;
use evenkeel_testbed::chance::is_soak;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::bed::{is_tainted, taints, version};
use crate::scene::{SOON, Scene, annotated};

fn silent() -> Value {
    json!({ "extensions": [{ "name": "dp", "lease": { "expiry": "3s" } }], "evictAfter": "0s" })
}

/// Covers R01.
#[tokio::test]
async fn what_cannot_work_is_refused_by_the_api_server_itself() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("refused").await?;
    let extension = |rest: Value| {
        let mut extension = json!({ "name": "a" });
        for (key, value) in rest.as_object().cloned().unwrap_or_default() {
            extension[key] = value;
        }
        json!({ "extensions": [extension] })
    };
    let tainting = |taint: Value| json!({ "extensions": [{ "name": "a", "lease": {} }], "taint": taint, "evictAfter": "0s" });
    for (number, (spec, said)) in [
        (extension(json!({})), "give exactly one of lease, status, pods, condition, anyOf, probe"),
        (extension(json!({ "lease": {}, "condition": { "type": "A" } })), "give exactly one of lease"),
        (extension(json!({ "lease": { "expiry": "2s" } })), "three renewals must fit"),
        (extension(json!({ "name": "evenkeel-agent", "lease": { "expiry": "20s" } })), "30s for evenkeel-agent"),
        (extension(json!({ "lease": { "expiry": "ten" } })), "expiry"),
        (extension(json!({ "lease": { "name": "shared" } })), "must have {node} in it"),
        (extension(json!({ "probe": {} })), "give exactly one of httpGet"),
        (extension(json!({ "probe": { "tcpSocket": { "port": 0 } } })), "port"),
        (extension(json!({ "probe": { "tcpSocket": { "port": 1 }, "timeout": "9s" } })), "not longer than period"),
        (extension(json!({ "name": "A_b", "lease": {} })), "name"),
        (json!({ "extensions": [] }), "extensions"),
        (extension(json!({ "anyOf": [] })), "anyOf"),
        (extension(json!({ "anyOf": [{ "type": "A" }, { "type": "A" }] })), "Duplicate"),
        (extension(json!({ "condition": { "type": "A", "defaultStatus": "Maybe" } })), "defaultStatus"),
        (tainting(json!({ "key": "example.com/a" })), "taint.key"),
        (tainting(json!({ "key": "evenkeel.dev/draining" })), "is used for something else"),
        (tainting(json!({ "key": "evenkeel.dev/a", "value": "a b" })), "taint.value"),
        (tainting(json!({ "key": "evenkeel.dev/a", "effect": "NoExecute" })), "evictAfter 0s never does"),
        (json!({ "extensions": [{ "name": "a", "lease": {} }], "enforcement": "Once" }), "enforcement"),
        (json!({ "extensions": [{ "name": "a", "lease": {} }, { "name": "a", "lease": {} }] }), "Duplicate"),
        (
            json!({ "extensions": [{ "name": "a", "lease": {} }], "nodeSelector": { "matchExpressions": [{ "key": "a", "operator": "In" }] } }),
            "In and NotIn need values",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let refused = scene.rule(&format!("r{number}"), spec.clone()).await;
        let error = refused.expect_err(&spec.to_string()).to_string();
        assert!(error.contains(said), "{spec}: {error}");
    }
    // What is left out is filled in.
    scene
        .rule("good", extension(json!({ "lease": {} })))
        .await?;
    let rule = scene
        .rules()
        .get(&scene.called("good"))
        .await
        .doing(|| "no rule")?;
    assert_eq!(rule.data["spec"]["evictAfter"], "5m");
    assert_eq!(rule.data["spec"]["extensions"][0]["affectsReadiness"], true);
    assert_eq!(rule.data["spec"]["extensions"][0]["lease"]["expiry"], "10s");
    scene.delete_rule("good").await
}

/// Covers R12, R15.
#[tokio::test]
async fn a_dry_rule_writes_no_node_and_what_a_rule_held_goes_with_it() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("gone").await?;
    scene.prepare_readiness()?;
    let node = scene
        .start(scene.describe("n1").taint("theirs", "x", "NoSchedule"))
        .await?;
    let name = node.name().to_owned();
    // Nobody but the operator writes to it from here on.
    let before = scene.settled(&name).await?;
    node.pause();
    let before = version(&before);
    let mut dry = silent();
    dry["dryRun"] = json!(true);
    dry["extensions"][0]["lease"]["expiry"] = json!("15s");
    scene.rule("dry", dry.clone()).await?;
    let place = format!("place={}", scene.name);
    let options = ["--rule-selector", place.as_str()];
    let operator = scene.operator(&options)?;
    let status = scene
        .rule_status("dry", |it| it["nodes"]["notReady"] == 1)
        .await?;
    assert_eq!(
        status["worst"][0]["node"],
        name.as_str(),
        "it says what it would do: {status}"
    );
    // Nothing is left of what was said of it.
    scene.renew(&name, "dp", SignedDuration::ZERO).await?;
    let status = scene
        .rule_status("dry", |it| it["nodes"]["ready"] == 1)
        .await?;
    assert_eq!(status["worst"], json!([]), "{status}");
    scene.delete_rule("dry").await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        version(&scene.node(&name).await?),
        before,
        "and does nothing"
    );

    let is_at_once = |took: &Duration| *took < Duration::from_secs(1);
    for how in ["deleted", "not selected", "dry"] {
        let promise = format!("{how}: released within a second");
        let released = async || release(&scene, &name, how).await;
        let took = kept_async(&promise, is_at_once, released).await?;
        println!("proof: {how}: released {took:?} after it");
    }

    // What went while nobody looked is gone as soon as somebody does.
    let mut operator = operator;
    let promise = "what nobody owns any more is released within a second of a return";
    let took = kept_async(promise, is_at_once, async || {
        scene.rule("real", silent()).await?;
        scene.tainted(&name, true).await?;
        operator.kill()?;
        scene.delete_rule("real").await?;
        scene.nobody_leads().await?;
        operator = scene.operator(&options)?;
        let back = until_async("somebody to lead", SOON, async || {
            let leads = scene.leader().await.is_ok_and(|it| !it.is_empty());
            Ok(if leads {
                Look::Found(Instant::now())
            } else {
                Look::NotYet(scene.log())
            })
        });
        let back = back.await?;
        let free = scene.tainted(&name, false).await?;
        assert_eq!(taints(&free), ["theirs"]);
        Ok(back.elapsed())
    })
    .await?;
    println!("proof: released {took:?} after its return");
    Ok(())
}

/// Has the node tainted, ends that so, and says how soon the taint was gone.
async fn release(scene: &Scene, name: &str, how: &str) -> Result<Duration> {
    scene.rule("real", silent()).await?;
    let held = scene.tainted(name, true).await?;
    let owner = scene.called("real");
    assert_eq!(
        annotated(&held, annotation::READINESS_OWNERS),
        Some(owner.as_str())
    );
    let begun = Instant::now();
    match how {
        "deleted" => scene.delete_rule("real").await?,
        "dry" => {
            let dry = json!({ "spec": { "dryRun": true } });
            scene.edit_rule("real", dry).await?;
        }
        _ => {
            let selector = json!({ "matchLabels": { "place": "nowhere" } });
            scene
                .edit_rule("real", json!({ "spec": { "nodeSelector": selector } }))
                .await?;
        }
    }
    let free = scene.tainted(name, false).await?;
    let took = begun.elapsed();
    assert_eq!(taints(&free), ["theirs"], "{how}");
    assert_eq!(annotated(&free, annotation::READINESS_OWNERS), None);
    if how != "deleted" {
        scene.delete_rule("real").await?;
    }
    Ok(took)
}

/// Covers N05.
#[tokio::test]
async fn a_suspended_rule_keeps_its_taint_and_says_so_until_it_is_resumed() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("suspended").await?;
    scene.prepare_readiness()?;
    let (closed, open) = (
        scene.start(scene.describe("closed")).await?,
        scene.start(scene.describe("open")).await?,
    );
    let (closed, open) = (closed.name(), open.name());
    scene.condition(closed, "NetReady", "False").await?;
    scene.condition(open, "NetReady", "True").await?;
    let rule = json!({ "extensions": [{ "name": "net", "condition": { "type": "NetReady" } }] });
    scene.rule("real", rule).await?;
    let options = ["--rule-selector", &format!("place={}", scene.name)];
    let mut operator = scene.operator(&options)?;
    scene.tainted(closed, true).await?;
    let suspend = |it: bool| json!({ "spec": { "suspend": it } });
    scene.edit_rule("real", suspend(true)).await?;
    let says = |status: &Value, word: &str| {
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let mut conditions = conditions.into_iter();
        conditions.find(|it| it["type"] == "Suspended" && it["status"] == word)
    };
    let status = scene
        .rule_status("real", |it| says(it, "True").is_some())
        .await?;
    let said = says(&status, "True").map(|it| it["message"].to_string());
    let said = said.unwrap_or_default();
    assert!(said.contains("1 of its 2 nodes stay not ready"), "{said}");
    // What would open the one and close the other, under this leader and under the next.
    scene.condition(closed, "NetReady", "True").await?;
    scene.condition(open, "NetReady", "False").await?;
    for _ in 0..2 {
        let is_as_it_was = async || {
            let (closed, open) = (scene.node(closed).await?, scene.node(open).await?);
            Ok(is_tainted(&closed) && !is_tainted(&open))
        };
        let lasts = Duration::from_secs(4);
        scene.stays("all as it was", lasts, is_as_it_was).await?;
        operator.kill()?;
        scene.nobody_leads().await?;
        operator = scene.operator(&options)?;
        until_async("somebody to lead", SOON, async || {
            let leads = scene.leader().await.is_ok_and(|it| !it.is_empty());
            Ok(if leads {
                Look::Found(())
            } else {
                Look::NotYet(scene.log())
            })
        })
        .await?;
    }
    scene.edit_rule("real", suspend(false)).await?;
    scene.tainted(closed, false).await?;
    scene.tainted(open, true).await?;
    scene
        .rule_status("real", |it| says(it, "False").is_some())
        .await?;
    operator.kill()?;
    scene.delete_rule("real").await
}

/// Covers R12.
#[tokio::test]
async fn others_who_write_taints_all_the_time_lose_none() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("others").await?;
    scene.prepare_readiness()?;
    let node = scene.start(scene.describe("n1")).await?;
    let name = node.name().to_owned();
    scene.renew(&name, "dp", SignedDuration::ZERO).await?;
    scene.rule("lease", silent()).await?;
    let _operator = scene.operator(&["--rule-selector", &format!("place={}", scene.name)])?;
    let lasts = Duration::from_secs(if is_soak() { 60 } else { 12 });
    let end = Instant::now() + lasts;
    let writers = (0..3).map(|number| {
        let (api, name): (Api<Node>, _) = (scene.nodes(), name.clone());
        async move {
            let key = format!("theirs-{number}");
            let mut wanted = false;
            let mut writes = 0;
            // Twenty times a second; what was missed is made up for.
            let mut pace = tokio::time::interval(Duration::from_millis(50));
            while Instant::now() < end {
                pace.tick().await;
                wanted = !wanted;
                // Reads and writes as one, with the version that was read.
                loop {
                    let seen = api.get(&name).await.doing(|| "no node")?;
                    let mut all = seen
                        .spec
                        .clone()
                        .and_then(|it| it.taints)
                        .unwrap_or_default();
                    let is_there = all.iter().any(|it| it.key == key);
                    assert_eq!(is_there, !wanted, "{key} was lost, or came back");
                    if wanted {
                        let taint = json!({ "key": key, "effect": "PreferNoSchedule" });
                        all.push(serde_json::from_value(taint).doing(|| "no taint")?);
                    } else {
                        all.retain(|it| it.key != key);
                    }
                    let patch = json!({
                        "metadata": { "resourceVersion": seen.metadata.resource_version },
                        "spec": { "taints": all },
                    });
                    match api
                        .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                        .await
                    {
                        Ok(_) => break,
                        Err(kube::Error::Api(status)) if status.code == 409 => {}
                        Err(error) => {
                            return Err(evenkeel_testbed::Error::because("cannot toggle", error));
                        }
                    }
                }
                writes += 1;
            }
            Ok::<u32, evenkeel_testbed::Error>(writes)
        }
    });
    // Meanwhile ours comes and goes.
    let ours = async {
        let mut turns = 0;
        while Instant::now() < end {
            scene.tainted(&name, true).await?;
            scene.renew(&name, "dp", SignedDuration::ZERO).await?;
            scene.tainted(&name, false).await?;
            turns += 1;
        }
        Ok::<u32, evenkeel_testbed::Error>(turns)
    };
    let (writes, turns) = futures::join!(futures::future::join_all(writers), ours);
    let writes: u32 = writes.into_iter().sum::<Result<u32>>()?;
    let turns = turns?;
    println!(
        "proof: {writes} writes of three others and {turns} turns of ours on one node within {lasts:?}: none lost, none came back"
    );
    assert!(turns >= 2 && writes >= 60, "{turns} {writes}");
    Ok(())
}

/// Covers R01.
#[tokio::test]
async fn a_node_that_lists_its_own_extensions_waits_for_them_and_a_broken_list_is_told()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("own").await?;
    scene.prepare_readiness()?;
    let node = scene.start(scene.describe("n1")).await?;
    let name = node.name().to_owned();
    let _operator = scene.operator(&["--rule-selector", &format!("place={}", scene.name)])?;
    let list = |text: &str| json!({ "metadata": { "annotations": { annotation::SYSTEM_EXTENSIONS: text } } });
    scene
        .patch(
            &name,
            &list(r#"[{"name": "csi", "lease": {"expiry": "3s"}}]"#),
        )
        .await?;
    let held = scene.tainted(&name, true).await?;
    assert_eq!(
        annotated(&held, annotation::READINESS_OWNERS),
        Some(annotation::SYSTEM_EXTENSIONS)
    );
    // A lease of somebody else is no evidence, and that is told.
    let foreign = json!({ "metadata": { "name": format!("{name}.csi") }, "spec": { "holderIdentity": "another", "renewTime": "2026-01-01T00:00:00.000000Z" } });
    let foreign = serde_json::from_value(foreign).doing(|| "no lease")?;
    scene
        .leases()
        .create(&kube::api::PostParams::default(), &foreign)
        .await
        .doing(|| "no lease")?;
    let note = scene.event(&name, "ForeignLease").await?;
    assert!(note.contains("\"another\" is not on this node"), "{note}");
    assert!(is_tainted(&scene.node(&name).await?));
    scene.renew(&name, "csi", SignedDuration::ZERO).await?;
    scene.tainted(&name, false).await?;
    scene
        .patch(
            &name,
            &list(r#"[{"name": "csi", "lease": {}, "pods": {}}]"#),
        )
        .await?;
    let note = scene.event(&name, "InvalidConfig").await?;
    assert!(note.contains("lease and pods are set together"), "{note}");
    tokio::time::sleep(Duration::from_secs(4)).await;
    let seen = scene.node(&name).await?;
    assert_eq!(
        taints(&seen),
        Vec::<String>::new(),
        "never a taint by mistake"
    );
    Ok(())
}
