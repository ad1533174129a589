//! Bad input and odd times: a node that cannot go on says why, keeps what it has, holds nobody up, and
//! goes on when the cause is gone.

use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_testbed::process::run;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::{Doing, Error, Result};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

use super::drift::is_within_a_second;
use super::scene::{
    ANSWERED, ASKED, BOOT, CURRENT, ON_DRIFT, REASON, SOON, STATE, Scene, says, spec,
};

const MANAGED: &str = "/etc/managed";
const PULL_SECRET: &str = "/var/lib/kubelet/config.json";

#[tokio::test]
async fn a_configuration_deleted_on_the_way_stops_nothing_that_is_written_and_holds_nobody_up()
-> Result<()> {
    let Some(mut scene) = Scene::start("deleted").await? else {
        return Ok(());
    };
    let base = scene.at_rest(spec(&[], &["ssh-ed25519 A"])).await?;
    let wanted = spec(&[(MANAGED, "new\n")], &["ssh-ed25519 A"]);
    let new = scene.config("new", wanted.clone()).await?;
    let (request, release) = (format!("drain-{new}"), format!("uncordon-{new}"));
    scene.desire(&new).await?;
    scene
        .until("a drain", SOON, |seen| says(seen, ASKED, &request))
        .await?;

    // While pods leave: they may come back.
    scene.delete_config("new").await?;
    let reason = scene.until_degraded("does not exist", SOON).await?;
    assert!(reason.contains(&new), "{reason}");
    let seen = scene.annotations().await?;
    assert!(says(&seen, ASKED, &release), "{seen:#?}");
    assert!(says(&seen, CURRENT, &base), "{seen:#?}");
    scene.annotate(ANSWERED, &release).await?;
    assert!(scene.node.read(MANAGED).is_err());

    // It is back: they are asked again. Then it goes while it is being written.
    scene.config("new", wanted).await?;
    scene
        .until("another drain", SOON, |seen| says(seen, ASKED, &request))
        .await?;
    let boot = scene.node.boot_id()?;
    scene.annotate(ANSWERED, &request).await?;
    scene.until_written(MANAGED).await?;
    scene.delete_config("new").await?;
    scene.node.wait_for_reboot(&boot)?;
    let seen = scene.until_done(&new, BOOT).await?;
    assert!(says(&seen, ASKED, &release), "{seen:#?}");
    assert_eq!(scene.node.read(MANAGED)?, b"new\n");
    Ok(())
}

#[tokio::test]
async fn a_configuration_for_another_system_is_refused_by_the_paths_that_give_it_away() -> Result<()>
{
    let Some(scene) = Scene::start("foreign").await? else {
        return Ok(());
    };
    let base = scene.at_rest(spec(&[(PULL_SECRET, "one\n")], &[])).await?;
    let files = [
        (r"C:\k\kubelet.exe", "binary"),
        (PULL_SECRET, "for another system\n"),
    ];
    let foreign = scene.config("windows", spec(&files, &[])).await?;
    scene.desire(&foreign).await?;
    let reason = scene.until_degraded("kubelet.exe", SOON).await?;
    assert!(reason.contains("is a Windows path"), "{reason}");
    let seen = scene.annotations().await?;
    assert!(says(&seen, CURRENT, &base), "{seen:#?}");
    assert_eq!(scene.node.read(PULL_SECRET)?, b"one\n");
    scene
        .replace_config("windows", spec(&[(PULL_SECRET, "two\n")], &[]))
        .await?;
    scene.until_done(&foreign, SOON).await?;
    Ok(())
}

#[tokio::test]
async fn rubbish_in_annotations_is_put_right_or_means_nothing() -> Result<()> {
    let Some(scene) = Scene::start("rubbish").await? else {
        return Ok(());
    };
    let base = scene.at_rest(spec(&[(PULL_SECRET, "one\n")], &[])).await?;
    for (name, right) in [(STATE, "Done"), (CURRENT, base.as_str()), (REASON, "")] {
        scene.annotate(name, "\u{1f4a5} rubbish").await?;
        scene
            .until("it to be put right", SOON, |seen| says(seen, name, right))
            .await?;
    }
    // What is done about drift must be understood to be done.
    scene.annotate(ON_DRIFT, "HEAL everything").await?;
    scene.node.write(PULL_SECRET, "drifted\n")?;
    scene.until_degraded(PULL_SECRET, SOON).await?;
    scene.node.write(PULL_SECRET, "one\n")?;
    scene.until_done(&base, SOON).await?;

    let wanted = spec(&[(PULL_SECRET, "one\n"), (MANAGED, "new\n")], &[]);
    let new = scene.config("new", wanted).await?;
    let request = format!("drain-{new}");
    let asks = |seen: &_| says(seen, ASKED, &request);
    scene.desire(&new).await?;
    scene.until("a drain", SOON, asks).await?;
    for (name, text) in [
        (ANSWERED, "rubbish"),
        (ANSWERED, "drain-"),
        (ANSWERED, &request[..request.len() - 1]),
        (ASKED, "rubbish"),
        (ASKED, &format!("uncordon-{new}")),
    ] {
        scene.annotate(name, text).await?;
        scene.until("the drain again", SOON, asks).await?;
    }
    scene
        .stays(Duration::from_secs(2), |seen| says(seen, STATE, "Working"))
        .await?;
    assert!(
        scene.node.read(MANAGED).is_err(),
        "written without a permit"
    );

    scene.desire(" ").await?;
    scene
        .until_degraded("is not a valid object name", SOON)
        .await?;
    scene
        .until("the permit to be returned", SOON, |seen| {
            says(seen, ASKED, &format!("uncordon-{new}"))
        })
        .await?;
    scene.desire(&base).await?;
    scene.until_done(&base, SOON).await?;
    Ok(())
}

/// The agent's clock of the day, and no other clock, off by as many seconds as `/run/clock` says.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, time);
    long long off = 0;
    FILE *file = clock == CLOCK_REALTIME ? fopen("/run/clock", "re") : NULL;
    if (file) {
        if (fscanf(file, "%lld", &off) != 1) off = 0;
        fclose(file);
    }
    time->tv_sec += off;
    return result;
}
"#;

#[tokio::test]
async fn a_clock_that_is_set_back_delays_nothing() -> Result<()> {
    const DAY: i64 = 24 * 60 * 60;
    let Some(mut scene) = Scene::start("clock").await? else {
        return Ok(());
    };
    let scratch = Scratch::new("clock")?;
    let (source, library) = (
        scratch.path().join("clock.c"),
        scratch.path().join("clock.so"),
    );
    std::fs::write(&source, CLOCK).doing(|| "cannot write the clock")?;
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library);
    run(compiler.arg(&source).arg("-ldl"))?;
    scene.node.install(&library, "/usr/local/lib/clock.so")?;
    scene.drop_in(
        "clock",
        "[Service]\nEnvironment=LD_PRELOAD=/usr/local/lib/clock.so\n",
    )?;
    let base = scene.at_rest(spec(&[(PULL_SECRET, "one\n")], &[])).await?;

    let new = spec(&[(PULL_SECRET, "one\n"), (MANAGED, "new\n")], &[]);
    let new = scene.config("new", new).await?;
    scene.desire(&new).await?;
    let request = format!("drain-{new}");
    scene
        .until("a drain", SOON, |seen| says(seen, ASKED, &request))
        .await?;
    // In the middle of an update, and it stays so.
    scene.node.write(
        "/etc/tmpfiles.d/clock.conf",
        format!("f /run/clock - - - - -{DAY}\n"),
    )?;
    scene
        .node
        .run(&["systemd-tmpfiles", "--create", "clock.conf"])?;
    scene.desire(&base).await?;
    scene.until_done(&base, SOON).await?;
    scene.go_to(&new).await?;

    let in_a_second = "drift is told within a second";
    kept_async(in_a_second, is_within_a_second, async || {
        let write = Instant::now();
        scene.node.write(PULL_SECRET, "two\n")?;
        scene.until_degraded(PULL_SECRET, SOON).await?;
        let took = write.elapsed();
        scene.until_told("ConfigDrift", PULL_SECRET, SOON).await?;
        scene.node.write(PULL_SECRET, "one\n")?;
        scene.until_done(&new, SOON).await?;
        Ok(took)
    })
    .await?;
    assert!(was_told_a_day_ago(&scene).await?, "the clock was right");
    let metrics = scene.metrics()?;
    let times: Vec<_> = metrics
        .lines()
        .filter(|line| line.starts_with("evenkeel_node_update_seconds{"))
        .collect();
    let negative = times.iter().find(|line| line.contains("} -"));
    assert_eq!((times.len(), negative), (4, None), "{times:?}");
    Ok(())
}

/// Whether the agent's clock was off when it told of the drift.
async fn was_told_a_day_ago(scene: &Scene) -> Result<bool> {
    let list = ListParams::default().fields(&format!("regarding.name={}", scene.name));
    let events = Api::<Event>::all(scene.client.clone()).list(&list).await;
    let events = events.doing(|| "cannot list events")?.items;
    let drift = events
        .iter()
        .find(|it| it.reason.as_deref() == Some("ConfigDrift"))
        .ok_or_else(|| Error::failed("drift was not told"))?;
    let (told, made) = (&drift.event_time, &drift.metadata.creation_timestamp);
    let (Some(told), Some(made)) = (told, made) else {
        return Err(Error::failed(format!("{} has no times", json!(drift))));
    };
    Ok(made.0.duration_since(told.0).as_hours() >= 23)
}
