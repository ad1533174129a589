//! The measurements.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenkeel_testbed::table::Table;
use evenkeel_testbed::windows_instance::windows_program;
use evenkeel_testbed::{Doing, Error, Result};
use serde_json::json;

use crate::edits::EDITS;
use crate::windows_scene::{AGENT, BOOT, SOON, Scene};

const CURRENT: &str = "evenkeel.dev/current-services";
/// How often everything is changed by hand.
const ROUNDS: usize = 20;
/// A service that was killed longer ago than this is started at once when it is killed again.
const STEADY: Duration = Duration::from_secs(12);
const SETTLED: Duration = Duration::from_secs(15);

pub(crate) fn measure() -> Result<Table> {
    let Some(mut scene) = Scene::start("win-bench")? else {
        return Err(Error::failed("this machine has no test bed: run ./test"));
    };
    let mut table = Table::default();
    let program = windows_program("evenkeel-agent", "evenkeel-agent")?;
    let program = program.metadata().doing(|| "no program")?.len();
    table.row("the program, stripped", number(program) / 1e6, 12.0, "MB");

    let proxy = json!([{"name": "EK_PROXY", "value": "http://proxy"}]);
    let boot = scene.instance.boot_id()?;
    let hash = scene.publish(&scene.data("", &proxy)?)?;
    scene.bootstrap()?;
    scene.instance.ask(&[AGENT, "service", "install"])?;
    scene.instance.until_rebooted(&boot)?;
    scene.tell(&hash)?;
    scene.until_annotation(CURRENT, &hash, BOOT)?;
    scene.until_runs("network", SOON)?;
    std::thread::sleep(SETTLED);
    table.row("RssAnon, idle after a boot", scene.memory()?, 12.0, "MiB");

    let mut times: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for (what, on, _) in EDITS {
            let took = number(scene.meddle(what, on)?);
            times.entry(format!("{what} {on}")).or_default().push(took);
            scene.until_runs("network", SOON)?;
        }
        std::thread::sleep(STEADY.saturating_sub(start.elapsed()));
    }
    let mut all = Vec::new();
    for (edit, mut times) in times {
        times.sort_by(f64::total_cmp);
        Table::note(&format!("{edit}, median"), times[ROUNDS / 2], "ms");
        all.append(&mut times);
    }
    all.sort_by(f64::total_cmp);
    let at = |share: usize| all[(all.len() * share).div_ceil(100).min(all.len()) - 1];
    Table::note("put back, median of all", at(50), "ms");
    table.row("put back, p99 of all", at(99), 1000.0, "ms");

    let before = scene.settled(12)?;
    let touched = format!("example.com/touched={before}");
    scene.kubectl(&["annotate", "node", &scene.name, "--overwrite", &touched])?;
    let asked = scene.settled(4)? - before;
    table.row(
        "requests, with nothing to do",
        number(asked as u64),
        0.0,
        "",
    );
    std::thread::sleep(SETTLED);
    table.row(
        "RssAnon, idle after the edits",
        scene.memory()?,
        12.0,
        "MiB",
    );
    Ok(table)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "sizes and times are far below that"
)]
fn number(count: u64) -> f64 {
    count as f64
}
