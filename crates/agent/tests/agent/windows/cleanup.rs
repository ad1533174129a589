//! Cleanup takes away exactly what is ours, wherever it is interrupted, and leaves the Node to the operator.

use std::collections::BTreeMap;

use evenkeel_testbed::chance::{Chance, is_soak, seed};
use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::{Doing, Result};
use serde_json::{Value, json};

use super::scene::{AGENT, ENVIRONMENT, SOON, Scene};
use super::steps::{End, Steps};

/// Services of somebody else, one of which looks like ours at first sight.
const STRANGERS: [&str; 2] = ["stranger", "kubelet-helper"];

/// Two services and a variable go.
const STEPS: usize = 3;
/// How often a long run ends cleanup after each step.
const TIMES: usize = 4;

fn strangers(scene: &Scene) -> Result<()> {
    for name in STRANGERS {
        let program = r"C:\k\service-double.exe";
        scene
            .instance
            .ask(&["windows-probe", "service", "create", name, "auto", program])?;
        scene
            .instance
            .ask(&["windows-probe", "service", "start", name])?;
    }
    Ok(())
}

fn stop_agent(scene: &Scene) -> Result<()> {
    scene
        .instance
        .ask(&[AGENT, "service", "remove"])
        .map(|_| ())
}

fn ours_are_gone(scene: &Scene) -> Result<()> {
    for name in ["network", "kubelet", "containerd"] {
        let state = scene.state(name);
        assert!(
            state.contains("1060") || state.contains("does not exist") || state.contains("cannot"),
            "{name}: {state}"
        );
        assert_eq!(
            scene.value(&format!(r"{}\{name}", super::SERVICES), "ImagePath")?,
            None
        );
    }
    for name in STRANGERS {
        assert_eq!(scene.state(name), "Running", "{name}");
    }
    Ok(())
}

/// Covers H34, H35.
#[test]
fn cleanup_takes_exactly_what_is_ours_also_when_it_was_killed_and_the_configmap_is_gone()
-> Result<()> {
    let Some(scene) = Scene::start("win-cleanup")? else {
        return Ok(());
    };
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
    strangers(&scene)?;
    let before = scene.instance.snapshot()?;
    let data = scene.data("", &json!([]))?;
    scene.at_rest(&data)?;

    // What the operator asks before.
    let said = scene.instance.ask(&[AGENT, "inspect"])?;
    let said: Value = serde_json::from_str(&said).doing(|| said.clone())?;
    assert_eq!(said["node"], json!(scene.name));
    assert_eq!(said["version"], json!(scene.version));
    let owned = said["services"].as_array().map(Vec::len);
    assert_eq!(owned, Some(4), "three and the agent itself: {said}");

    stop_agent(&scene)?;
    certificate(&scene)?;
    // An upgrade keeps the Node, and all that the next version decides. What we remember is lost: the
    // newest ConfigMap and the tag say what is ours.
    for note in ["record", "services"] {
        let note = scene.instance.path(&format!(r"C:\k\state\{note}"))?;
        std::fs::remove_file(note).doing(|| "there is no such note")?;
    }
    let said = scene.cleanup(&["--upgrade"])?;
    assert!(said.contains("service network"), "{said}");
    ours_are_gone(&scene)?;
    assert_ne!(scene.node()?, Value::Null);
    scene.bootstrap()?;
    assert_eq!(scene.state("kubelet"), "Running");

    interrupted_at_its_steps(&scene)?;
    let said = scene.cleanup(&[])?;
    ours_are_gone(&scene)?;
    // The Node is the operator's to delete: a machine that could, would shed what an administrator set there.
    assert!(said.contains(&scene.name), "{said}");
    assert_ne!(scene.node()?, Value::Null);
    // Once more is nothing more.
    scene.cleanup(&[])?;
    let after = scene.instance.snapshot()?;
    let left: Vec<String> = before
        .diff(&after)
        .into_iter()
        .filter(|line| !is_operators_or_wines(line))
        .collect();
    assert_eq!(left, Vec::<String>::new());
    assert_eq!(
        scene.value(ENVIRONMENT, "EK_WATCHED")?.as_deref(),
        Some("theirs")
    );
    Ok(())
}

/// What the operator takes away (the payload, our folders) and what Wine writes by itself.
fn is_operators_or_wines(line: &str) -> bool {
    let line = line.to_lowercase();
    line.contains(r"c:\k")
        || line.contains(r"c:\var")
        || line.contains(r"c:\windows")
        || line.contains(r"c:\users")
}

/// Cleanup is ended between its steps, with the ConfigMap gone, and is begun again after it.
fn interrupted_at_its_steps(scene: &Scene) -> Result<()> {
    let data = scene.data("", &json!([{"name": "EK_GONE", "value": "soon"}]))?;
    let mut chance = Chance(seed());
    // After so many steps; before the first one too, and after the last.
    let plan: Vec<usize> = if is_soak() {
        (0..=STEPS)
            .flat_map(|steps| std::iter::repeat_n(steps, TIMES))
            .collect()
    } else {
        vec![chance.below(STEPS)]
    };
    let mut hits: BTreeMap<usize, usize> = BTreeMap::new();
    let mut middle = 0;
    for steps in &plan {
        scene.put_configmap(&data)?;
        scene.bootstrap()?;
        let name = format!("services-{}", scene.version.replace('.', "-"));
        scene.kubectl(&["delete", "configmap", &name, "-n", "evenkeel"])?;
        let end = interrupted(scene, *steps)?;
        println!("proof: cleanup was killed when {steps} steps were done: {end:?}");
        *hits.entry(end.done.len()).or_default() += 1;
        middle += usize::from(end.in_the_middle);
        scene.cleanup(&["--upgrade"])?;
        ours_are_gone(scene)?;
    }
    println!(
        "proof: {} kills of cleanup with seed {}, {middle} of them in the middle: {hits:?} after so many steps",
        plan.len(),
        seed()
    );
    assert_ne!(middle, 0, "no kill was in the middle");
    if is_soak() {
        for steps in 0..=STEPS {
            assert!(hits.contains_key(&steps), "never after {steps} steps");
        }
    }
    Ok(())
}

/// Runs `cleanup`, and ends it when this many steps are done.
fn interrupted(scene: &Scene, steps: usize) -> Result<End> {
    let journal = scene.instance.path(r"C:\k\state\journal")?;
    let words = [AGENT, "cleanup", "--kubeconfig", r"C:\k\login"];
    let mut command = scene.instance.command(&words)?;
    let path = scene.instance.folder().join("cleanup.log");
    let log = std::fs::File::create(&path).doing(|| "no log")?;
    let errors = log.try_clone().doing(|| "no log")?;
    let under_way = Steps::of(&journal, &path);
    let child = command.stdout(log).stderr(errors).spawn();
    let mut child = child.doing(|| "cannot run the agent")?;
    let process = until("cleanup to run", SOON, || {
        Ok(match scene.process_of("cleanup")? {
            Some(process) => Look::Found(process),
            None => Look::NotYet("it does not".to_owned()),
        })
    })?;
    let end = under_way.end_after(Some(process), steps)?;
    child.wait().doing(|| "no such program")?;
    Ok(end)
}

/// A root of ours comes with `trust sync`, and goes with cleanup.
fn certificate(scene: &Scene) -> Result<()> {
    let key = rcgen::KeyPair::generate().doing(|| "no key")?;
    let parameters =
        rcgen::CertificateParams::new(vec!["root.example".to_owned()]).doing(|| "no name")?;
    let pem = parameters
        .self_signed(&key)
        .doing(|| "no certificate")?
        .pem();
    std::fs::write(scene.instance.path(r"C:\k\bundle.pem")?, pem).doing(|| "cannot write")?;
    let sync = || {
        scene
            .instance
            .ask(&[AGENT, "trust", "sync", r"C:\k\bundle.pem"])
    };
    let said: Value = serde_json::from_str(&sync()?).doing(|| "no JSON")?;
    assert_eq!(said["added"].as_array().map(Vec::len), Some(1), "{said}");
    let said: Value = serde_json::from_str(&sync()?).doing(|| "no JSON")?;
    assert_eq!(said["added"], json!([]));
    let listed = scene.instance.ask(&[AGENT, "trust", "list"])?;
    assert!(listed.contains(r#""ours":true"#), "{listed}");
    Ok(())
}
