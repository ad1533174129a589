//! An agent that is ended between any two of its steps leaves a machine that the next one brings to
//! its declared state.

use std::collections::BTreeMap;

use evenkeel_testbed::chance::{Chance, is_soak, seed};
use evenkeel_testbed::{Doing, Result};
use serde_json::{Value, json};

use super::scene::{BOOT, ENVIRONMENT, SOON, Scene, hash_of};
use super::steps::Steps;

const JOURNAL: &str = r"C:\k\state\journal";
const LOG: &str = r"C:\var\log\evenkeel\agent.log";
const NAMES: [&str; 4] = ["one", "two", "three", "network"];
/// A variable, a service that changes, one that comes, one that goes, and one that depends on others.
const STEPS: usize = 5;
const KINDS: [&str; 4] = [
    "configure service",
    "remove service",
    "remove variable",
    "set variable",
];
/// How often a long run ends the agent after each step.
const TIMES: usize = 8;

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

/// A variable that is there every other time.
fn variables(round: usize) -> Value {
    if round.is_multiple_of(2) {
        json!([])
    } else {
        json!([{"name": "EK_ROUND", "value": format!("round {round}")}])
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

/// What is declared in this round is there, and nothing else of ours.
fn is_declared(scene: &Scene, round: usize) -> Result<()> {
    let there = commands(scene)?;
    let is_of_round = |name: &str| {
        let command = there.get(name);
        command.map(|it| it.contains(&format!("--round {round}")))
    };
    assert_eq!(is_of_round("one"), Some(true), "{there:?}");
    assert_eq!(is_of_round("network"), Some(true), "{there:?}");
    let is_even = round.is_multiple_of(2);
    assert_eq!(there.contains_key("two"), is_even, "{there:?}");
    assert_eq!(there.contains_key("three"), !is_even, "{there:?}");
    let value = (!is_even).then(|| format!("round {round}"));
    assert_eq!(scene.value(ENVIRONMENT, "EK_ROUND")?, value);
    for name in there.keys() {
        scene.until_runs(name, SOON)?;
    }
    Ok(())
}

/// Covers H34, X04.
#[test]
fn an_agent_that_is_killed_at_any_step_leaves_the_old_services_or_the_new_ones() -> Result<()> {
    let Some(scene) = Scene::start("win-kills")? else {
        return Ok(());
    };
    let mut scene = scene;
    let data = |scene: &Scene, round| {
        scene.data_with(
            &format!("--round {round}"),
            &variables(round),
            &services(round),
        )
    };
    scene.at_rest(&data(&scene, 0)?)?;
    let journal = scene.instance.path(JOURNAL)?;
    let log = scene.instance.path(LOG)?;
    let mut chance = Chance(seed());
    // After so many steps; before the first one too, and after the last.
    let all = 0..=STEPS;
    let plan: Vec<usize> = if is_soak() {
        all.clone()
            .flat_map(|steps| std::iter::repeat_n(steps, TIMES))
            .collect()
    } else {
        // One with the variable still to come, or just done; one among the services.
        vec![chance.below(2), 2 + chance.below(3)]
    };
    let mut hits: BTreeMap<usize, usize> = BTreeMap::new();
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    let mut middle = 0;
    for (round, steps) in (1..).zip(&plan) {
        let agent = scene.agent_process()?;
        let wanted = data(&scene, round)?;
        let hash = hash_of(&wanted)?;
        let boot = scene.instance.boot_id()?;
        // The variable takes leave, which is given as soon as it is asked for.
        let leave = format!("{}=drain-{hash}", super::ANSWERED);
        scene.kubectl(&["annotate", "node", &scene.name, "--overwrite", &leave])?;
        scene.put_configmap(&wanted)?;
        let under_way = Steps::of(&journal, &log);
        scene.tell(&hash)?;
        let end = under_way.end_after(agent, *steps)?;
        println!("proof: killed when {steps} steps were done: {end:?}");
        middle += usize::from(end.in_the_middle);
        *hits.entry(end.done.len()).or_default() += 1;
        if let Some(kind) = end.done.last() {
            *kinds.entry(kind.clone()).or_default() += 1;
        }
        scene.start_agent()?;
        scene.instance.until_rebooted(&boot)?;
        scene.until_annotation(super::CURRENT, &hash, BOOT)?;
        is_declared(&scene, round)?;
        let left = journal.try_exists().doing(|| "no journal")?;
        assert!(!left, "nobody finished the journal");
    }
    println!(
        "proof: {} kills with seed {}, {middle} of them in the middle: {hits:?} after so many steps, {kinds:?} after such a step",
        plan.len(),
        seed()
    );
    assert_ne!(middle, 0, "no kill was in the middle");
    if is_soak() {
        for steps in all {
            assert!(hits.contains_key(&steps), "never after {steps} steps");
        }
        for kind in KINDS {
            assert!(kinds.contains_key(kind), "never after {kind}");
        }
    }
    Ok(())
}
