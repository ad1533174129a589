//! Whatever somebody changes on a Windows node by hand is put back, at once and with an Event; and a
//! node that is as it should be costs next to nothing.

use std::time::{Duration, Instant};

use evenkeel_testbed::chance::{is_soak, seed};
use evenkeel_testbed::promise::kept;
use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::{Doing, Result};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::edits::{EDITS, PAYLOAD};
use super::scene::{ENVIRONMENT, SOON, Scene};

const MISSING: &str = "evenkeel.dev/missing-files";
/// A service that was killed longer ago than this is started at once when it is killed again.
const STEADY: Duration = Duration::from_secs(12);
/// How long a repair may take on a machine that is as busy as one that runs all tests.
const BUSY: Duration = Duration::from_secs(10);
/// How long it may take elsewhere.
const PROMISED: Duration = Duration::from_secs(1);
/// A variable that is declared.
const VARIABLE: &str = "EK_PROXY";

/// Covers H28, H29, H30, H32, H33, X04.
#[test]
fn whatever_is_changed_by_hand_is_put_back_at_once_and_told() -> Result<()> {
    let Some(scene) = Scene::start("win-drift")? else {
        return Ok(());
    };
    let proxy = json!([{"name": "EK_PROXY", "value": "http://proxy"}]);
    let boot = scene.instance.boot_id()?;
    scene.instance.ask(&[
        "reg.exe",
        "add",
        ENVIRONMENT,
        "/v",
        "EK_WATCHED",
        "/d",
        "theirs",
        "/f",
    ])?;
    let hash = scene.publish(&scene.data("", &proxy)?)?;
    scene.bootstrap()?;
    let mut scene = scene;
    scene.instance.ask(&[super::AGENT, "service", "install"])?;
    scene.instance.until_rebooted(&boot)?;
    scene.tell(&hash)?;
    scene.until_annotation(super::CURRENT, &hash, super::BOOT)?;
    scene.until_runs("network", SOON)?;

    let rounds = if is_soak() { 30 } else { 1 };
    let mut times = Vec::new();
    let mut last: Option<Instant> = None;
    for round in 0..rounds {
        let is_soon_mostly = |times: &Vec<_>| quantile(times, 50) < PROMISED;
        kept("in the median within a second", is_soon_mostly, || {
            // A service that is killed more often than that is left alone for a while, as promised.
            let rest = last.map(|it| STEADY.saturating_sub(it.elapsed()));
            std::thread::sleep(rest.unwrap_or_default());
            last = Some(Instant::now());
            let these = edits(&scene, round == 0)?;
            times.extend_from_slice(&these);
            Ok(these)
        })?;
    }
    // What is not declared and watched is as it was before we came.
    for (what, words) in [("set", "value differs"), ("unset", "missing")] {
        scene.meddle(what, "EK_WATCHED")?;
        scene.until_told(
            "DriftHealed",
            &format!("environment variable EK_WATCHED: {words}"),
        )?;
    }
    scene.meddle("set", "EK_ABSENT")?;
    let (median, p99) = (quantile(&times, 50), quantile(&times, 99));
    println!(
        "proof: {} edits, put back after {median:?} (median), {p99:?} (p99)",
        times.len(),
    );
    assert!(!is_soak() || p99 < PROMISED, "{times:?}");

    hostile(&scene)?;
    lost(&scene)?;
    quiet(&scene, &hash)
}

/// Makes every edit once, and says how long each of them stayed.
fn edits(scene: &Scene, are_told: bool) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for (what, on, words) in EDITS {
        // Services of a busy machine take their time to stop and start; a variable does not.
        let limit = if on == VARIABLE { PROMISED } else { BUSY };
        let promise = format!("{what} {on} is put back within {limit:?}");
        let took = kept(
            &promise,
            |took| *took < limit,
            || Ok(Duration::from_millis(scene.meddle(what, on)?)),
        )?;
        times.push(took);
        if are_told {
            println!("proof: {what} {on} was put back after {took:?}");
            scene.until_told("DriftHealed", words)?;
        }
        scene.until_runs("network", SOON)?;
    }
    Ok(times)
}

fn quantile(times: &[Duration], percent: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

/// Edits by chance as fast as they go: the declared state in the end, and no handle lost.
fn hostile(scene: &Scene) -> Result<()> {
    let handles = || -> Result<u64> {
        let said = scene
            .instance
            .ask(&["windows-probe", "handles", "evenkeel-agent"])?;
        said.parse().doing(|| said.clone())
    };
    let before = handles()?;
    let count = if is_soak() { "200" } else { "50" };
    let said = scene.instance.ask(&[
        "windows-probe",
        "meddle",
        "many",
        &seed().to_string(),
        count,
        "200",
        "network",
        "kubelet",
        "$EK_PROXY",
        "$EK_ABSENT",
        r"C:\k\service-double.exe",
    ])?;
    println!("proof: hostile edits with seed {}: {said}", seed());
    // Every service that was killed too often has its back-off behind it.
    let patience = Duration::from_mins(3);
    let is_right = || -> Result<Look<()>> {
        let mut wrong = Vec::new();
        for service in ["containerd", "kubelet", "network"] {
            let key = format!(r"{}\{service}", super::SERVICES);
            let description = scene.value(&key, "Description")?;
            if scene.state(service) != "Running"
                || description.as_deref() != Some(&format!("OpenShift managed {service}"))
            {
                wrong.push(service);
            }
        }
        let proxy = scene.value(ENVIRONMENT, "EK_PROXY")?;
        if proxy.as_deref() != Some("http://proxy")
            || scene.value(ENVIRONMENT, "EK_ABSENT")?.is_some()
        {
            wrong.push("environment");
        }
        Ok(if wrong.is_empty() {
            Look::Found(())
        } else {
            Look::NotYet(format!("{wrong:?}"))
        })
    };
    until("the declared state", patience, is_right)
        .map_err(|error| evenkeel_testbed::Error::failed(format!("{error}\n{}", scene.log())))?;
    // What a repair needs is open while it goes on; after it, there are as many as before, give or
    // take a connection to the API server.
    until("as many handles as before", SOON, || {
        let now = handles()?;
        Ok(if now <= before + 8 {
            println!("proof: {before} handles before the hostile edits, {now} after");
            Look::Found(())
        } else {
            Look::NotYet(format!("{now}, it had {before}"))
        })
    })
}

/// A payload file that is wrong and that the store has lost is named on the Node until somebody has
/// brought it; then the store has it again.
fn lost(scene: &Scene) -> Result<()> {
    let place = scene.instance.path(PAYLOAD)?;
    let right = std::fs::read(&place).doing(|| "cannot read the payload")?;
    let name = format!("{:x}", Sha256::digest(&right));
    let store = scene.instance.path(r"C:\k\store")?.join(name);
    std::fs::remove_file(&store).doing(|| "the store has no copy")?;
    let aside = place.with_extension("aside");
    std::fs::rename(&place, &aside).doing(|| "cannot rename the payload")?;
    let listed = r#"["C:\\k\\service-double.exe"]"#;
    scene.until_annotation(MISSING, listed, SOON)?;
    scene.until_told("ServicesIncomplete", PAYLOAD)?;
    std::fs::rename(&aside, &place).doing(|| "cannot rename the payload")?;
    until("the Node to lack nothing", SOON, || {
        Ok(match scene.annotation(MISSING)? {
            None => Look::Found(()),
            Some(still) => Look::NotYet(still),
        })
    })?;
    scene.until_written(&store)?;
    // The program that runs is another one after it came back.
    let started = scene.instance.path(r"C:\k\network.json")?;
    let started = || started.metadata().and_then(|it| it.modified()).ok();
    let before = started();
    scene.meddle("tamper", PAYLOAD)?;
    until("its service to start again", SOON, || {
        Ok(if started() > before {
            Look::Found(())
        } else {
            Look::NotYet("it runs as before".to_owned())
        })
    })
}

/// A node that is as it should be asks the API server nothing, and keeps little in memory.
fn quiet(scene: &Scene, hash: &str) -> Result<()> {
    // Events that happened again are counted every ten seconds.
    let before = scene.settled(12)?;
    // Somebody touches the Node, which starts a reconcile with nothing to do.
    scene.tell(hash)?;
    let touched = format!("example.com/touched={before}");
    scene.kubectl(&["annotate", "node", &scene.name, "--overwrite", &touched])?;
    let after = scene.settled(4)?;
    let asked = scene.requests()?;
    assert_eq!(before, after, "{:?}", &asked[before..]);
    let mib = scene.memory()?;
    println!("proof: the idle agent has RssAnon {mib:.1} MiB");
    assert!(mib < 12.0, "{mib}");
    Ok(())
}
