//! An agent that is ended in the middle leaves a machine that the next one brings to its declared
//! state, wherever that was.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_testbed::Result;
use evenkeel_testbed::chance::{Chance, is_soak, seed};
use serde_json::{Value, json};

use super::scene::{SOON, Scene, hash_of, kill};

const JOURNAL: &str = r"C:\k\state\journal";
const NAMES: [&str; 4] = ["one", "two", "three", "network"];

/// How many milliseconds after the journal was written an update is over, more or less.
const LONGEST: usize = 120;

/// Services that differ from round to round: one is changed, one comes, one goes.
fn services(round: usize) -> Value {
    let service = |name: &str, arguments: &str, priority: u32| {
        json!({
            "name": name, "bootstrap": false, "priority": priority,
            "command": format!(r"C:\k\service-double.exe {arguments}"),
        })
    };
    let changed = service("one", &format!("--round {round}"), 10);
    if round.is_multiple_of(2) {
        json!([changed, service("two", "", 11)])
    } else {
        json!([changed, service("three", "", 11)])
    }
}

/// The commands that are there, by the service's name.
fn commands(scene: &Scene) -> Result<BTreeMap<&'static str, String>> {
    let mut found = BTreeMap::new();
    for name in NAMES {
        let key = format!(r"{}\{name}", super::SERVICES);
        if let Some(command) = scene.value(&key, "ImagePath")? {
            found.insert(name, command);
        }
    }
    Ok(found)
}

/// Covers H34, X04.
#[test]
fn an_agent_that_is_killed_at_any_step_leaves_the_old_services_or_the_new_ones() -> Result<()> {
    let Some(scene) = Scene::start("win-kills")? else {
        return Ok(());
    };
    let data = |round| scene.data_with(&format!("--round {round}"), &json!([]), &services(round));
    scene.at_rest(&data(0)?)?;
    let mut chance = Chance(seed());
    let journal = scene.instance.path(JOURNAL)?;
    let rounds = if is_soak() { 80 } else { 3 };
    let (mut hit, mut early) = (BTreeSet::new(), 0);
    for round in 1..=rounds {
        let before = commands(&scene)?;
        let agent = scene.agent_process()?;
        let wanted = data(round)?;
        let hash = hash_of(&wanted)?;
        scene.tell(&hash)?;
        scene.put_configmap(&wanted)?;
        let begun = scene.until_written(&journal)?;
        let pause = Duration::from_millis(u64::try_from(chance.below(LONGEST)).unwrap_or(0));
        std::thread::sleep(pause);
        kill(agent)?;
        let after = begun.elapsed();
        let there = commands(&scene)?;
        if journal.exists() {
            // Which steps were done, by what is there.
            let steps: Vec<&str> = NAMES
                .into_iter()
                .filter(|name| there.get(name) != before.get(name))
                .collect();
            println!(
                "proof: killed {after:?} after the journal was written, with {steps:?} changed"
            );
            hit.insert(steps);
        } else {
            early += 1;
        }
        scene.start_agent()?;
        scene.until_annotation(super::CURRENT, &hash, SOON)?;
        let declared = commands(&scene)?;
        let round_of = |name: &str| {
            declared
                .get(name)
                .map(|it| it.contains(&format!("--round {round}")))
        };
        assert_eq!(round_of("one"), Some(true), "{declared:?}");
        assert_eq!(round_of("network"), Some(true), "{declared:?}");
        assert_eq!(
            declared.contains_key("two"),
            round.is_multiple_of(2),
            "{declared:?}"
        );
        assert_eq!(
            declared.contains_key("three"),
            !round.is_multiple_of(2),
            "{declared:?}"
        );
        assert!(!journal.exists());
        for name in declared.keys() {
            scene.until_runs(name, SOON)?;
        }
    }
    println!(
        "proof: {} different instants hit in {rounds} kills, {early} of them after the end: {hit:?}",
        hit.len()
    );
    assert!(!hit.is_empty(), "no kill was in the middle");
    Ok(())
}
