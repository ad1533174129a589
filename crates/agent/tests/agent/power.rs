//! The power is cut anywhere in an update: the node ends at the new configuration, or at the old one
//! with a reason, and never in between.
//!
//! What was under way is read from the disk of the node while it is off, not guessed from the time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_host::disk::Disk;
use evenkeel_host::execute::State;
use evenkeel_host::linux::LinuxHost;
use evenkeel_host::{disk::Host, observe};
use evenkeel_plan::machine::step::Step;
use evenkeel_testbed::chance::{Chance, is_soak, seed};
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::{Doing, Error, Result};
use serde_json::{Value, json};

use super::scene::{ANSWERED, ASKED, BOOT, SOON, Scene, says, spec};

const OWN_STATE: &str = "/etc/machine-config-daemon/state";
/// So many that a cut finds the machine in the middle of them.
const FILES: usize = 120;
const UNITS: usize = 20;
/// How many more cuts a soak may take to hit a kind of step that it has missed.
const MORE: usize = 30;

/// Where the cut is meant to hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Aim {
    /// Pods are asked to leave.
    PodsLeave,
    /// As soon as this path is as the new configuration wants it, of all paths that change.
    Step(usize),
    /// Everything is written; the machine is told to boot, or will be.
    Written,
    /// The machine is up again, and this many milliseconds have passed.
    Up(u64),
}

/// One of the two configurations that the node goes to in turns: each has paths that the other has not,
/// and paths that differ.
fn config(round: usize) -> Value {
    let side = if round.is_multiple_of(2) {
        "even"
    } else {
        "odd"
    };
    let text = format!("round {round}\n");
    let paths: Vec<String> = (0..FILES)
        .map(|number| match number % 3 {
            0 => format!("/etc/app/both-{number:03}"),
            1 => format!("/etc/app/{side}-{number:03}"),
            _ => format!("/etc/app/{side}/{number:03}/deep"),
        })
        .collect();
    let files: Vec<(&str, &str)> = paths
        .iter()
        .map(|path| (path.as_str(), text.as_str()))
        .collect();
    let mut wanted = spec(&files, &["ssh-ed25519 A"]);
    let unit = format!(
        "[Service]\nExecStart=/bin/true\n# {round}\n[Install]\nWantedBy=multi-user.target\n"
    );
    let own = (0..UNITS).map(|number| {
        json!({ "name": format!("{side}-{number}.service"), "enabled": true, "contents": unit })
    });
    let both = json!({ "name": "both.service", "contents": unit });
    let units: Vec<Value> = own.chain([both]).collect();
    wanted["config"]["systemd"] = json!({ "units": units });
    wanted
}

/// The node's disk while it is off, or as it is now.
struct Platter(LinuxHost, State);

impl Platter {
    fn at(root: &Path) -> Result<Self> {
        let host = LinuxHost::offline(root).doing(|| "cannot open the node's tree")?;
        Ok(Self(host, State::at(OWN_STATE)))
    }

    /// What was under way: the kind of the first step of the journal that is not done.
    fn under_way(&self) -> Result<&'static str> {
        let Self(host, state) = self;
        let Some(journal) = state.unfinished(host).doing(|| "cannot read the journal")? else {
            let record = state.record(host).doing(|| "cannot read the record")?;
            return Ok(match record.written_in {
                Some(_) => "written, not booted",
                None => "nothing written",
            });
        };
        for step in journal.steps() {
            let seen = host.disk().look(&step.path);
            if seen.doing(|| "cannot look at a path")? != step.after {
                return Ok(step.kind());
            }
        }
        Ok("after the steps")
    }
}

/// The steps from one round to the next, as a machine would take them.
fn steps(scene: &Scene, root: &Path, next: &Value) -> Result<Vec<Step>> {
    let Platter(host, state) = Platter::at(root)?;
    let text = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": { "name": scene.called("next") },
        "spec": next,
    })
    .to_string();
    let (documents, _) = evenkeel_api::document::read("next", text.as_bytes())
        .map_err(|problems| Error::failed(problems.to_string()))?;
    let Some(evenkeel_api::document::Document::MachineConfig(config)) =
        documents.into_iter().next()
    else {
        return Err(Error::failed("no configuration"));
    };
    let (desired, contents) = evenkeel_plan::machine::desired::Desired::of(config);
    let plan = observe::plan(&host, &state, &desired, &contents);
    Ok(plan.doing(|| "cannot plan")?.steps)
}

/// Where to cut: each kind of moment, and in a soak each kind of step, at least once; the rest by
/// chance.
fn aims(steps: &[Step], cuts: usize, chance: &mut Chance) -> Vec<Aim> {
    let mut aims = vec![
        Aim::PodsLeave,
        Aim::Step(chance.below(steps.len())),
        Aim::Step(steps.len() - 1),
        Aim::Written,
        Aim::Up(0),
    ];
    if cuts > aims.len() {
        for kind in kinds(steps) {
            aims.extend([kind; 2].map(|kind| at(kind, steps, chance)));
        }
    }
    while aims.len() < cuts {
        aims.push(match chance.below(4) {
            0 => Aim::Written,
            1 => Aim::Up(chance.below(3000) as u64),
            _ => Aim::Step(chance.below(steps.len())),
        });
    }
    aims
}

/// A step of this kind. The one before it is aimed at, so that it is the one under way.
fn at(kind: &str, steps: &[Step], chance: &mut Chance) -> Aim {
    let of_kind: Vec<usize> = (0..steps.len())
        .filter(|step| steps[*step].kind() == kind)
        .collect();
    Aim::Step(of_kind[chance.below(of_kind.len())].saturating_sub(1))
}

/// The path of the step that is aimed at, on the way to `round`: every other way is the same with the
/// sides exchanged.
fn path_of(aim: Aim, way: &[Step], round: usize) -> String {
    let Aim::Step(number) = aim else {
        return String::new();
    };
    let path = &way[number].path;
    if round.is_multiple_of(2) {
        path.replace("even", "\0")
            .replace("odd", "even")
            .replace('\0', "odd")
    } else {
        path.clone()
    }
}

fn kinds(steps: &[Step]) -> BTreeSet<&'static str> {
    steps.iter().map(Step::kind).collect()
}

/// Waits, closely and from outside, until the aim is reached.
fn wait_for(scene: &mut Scene, aim: Aim, path: &str, boot: &str) -> Result<()> {
    let own = scene.node.own_files();
    let start = Instant::now();
    let closely = |reached: &dyn Fn() -> bool| {
        while !reached() {
            if start.elapsed() > BOOT {
                return Err(Error::failed(format!("{aim:?} was never reached")));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    };
    match aim {
        Aim::PodsLeave => Ok(()),
        Aim::Step(_) => {
            let journal = own.join(&OWN_STATE[1..]).join("journal");
            let path = own.join(path.trim_start_matches('/'));
            closely(&|| journal.exists())?;
            let before = identity(&path);
            closely(&|| identity(&path) != before || !journal.exists())
        }
        Aim::Written => {
            let record = own.join(&OWN_STATE[1..]).join("record");
            closely(&|| {
                std::fs::read_to_string(&record).is_ok_and(|text| text.contains("writtenIn"))
            })
        }
        Aim::Up(after) => {
            scene.node.wait_for_reboot(boot)?;
            std::thread::sleep(Duration::from_millis(after));
            Ok(())
        }
    }
}

/// What stands there, as far as a rename or a removal changes it.
fn identity(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    path.symlink_metadata().ok().map(|it| it.ino())
}

/// Covers M09.
#[tokio::test]
async fn a_node_whose_power_is_cut_anywhere_in_an_update_ends_at_the_new_configuration()
-> Result<()> {
    let Some(mut scene) = Scene::start("cuts").await? else {
        return Ok(());
    };
    let (cuts, seed) = (if is_soak() { 30 } else { 5 }, seed());
    let mut chance = Chance(seed);
    scene.at_rest(spec(&[], &["ssh-ed25519 A"])).await?;
    let first = scene.config("round-0", config(0)).await?;
    scene.go_to(&first).await?;
    let way = {
        scene.node.power_off()?;
        let copy = tree(&scene)?;
        scene.node.boot_again()?;
        steps(&scene, copy.path(), &config(1))?
    };
    let kinds = kinds(&way);
    let mut hit: BTreeMap<&str, usize> = BTreeMap::new();
    let mut aims: VecDeque<Aim> = aims(&way, cuts, &mut chance).into();
    let mut cut = 0;
    while let Some(aim) = aims.pop_front() {
        let round = cut + 1;
        let what = format!("cut {cut} at {aim:?}, EVENKEEL_SEED={seed}");
        let name = scene
            .config(&format!("round-{round}"), config(round))
            .await?;
        let boot = scene.node.boot_id()?;
        let request = format!("drain-{name}");
        scene.desire(&name).await?;
        scene
            .until("a drain to be asked for", SOON, |seen| {
                says(seen, ASKED, &request)
            })
            .await?;
        if aim != Aim::PodsLeave {
            scene.annotate(ANSWERED, &request).await?;
        }
        wait_for(&mut scene, aim, &path_of(aim, &way, round), &boot)?;
        scene.node.cut()?;
        let copy = tree(&scene)?;
        let under_way = Platter::at(copy.path())?.under_way()?;
        let moment = match aim {
            Aim::PodsLeave => "pods leave",
            Aim::Up(_) => "up again",
            _ => under_way,
        };
        *hit.entry(moment).or_default() += 1;
        scene.node.boot_again()?;
        if aim == Aim::PodsLeave {
            scene.annotate(ANSWERED, &request).await?;
        }
        let seen = scene.until_done(&name, BOOT).await?;
        assert!(
            says(&seen, ASKED, &format!("uncordon-{name}")),
            "{what}: {seen:#?}"
        );
        assert_ne!(scene.node.boot_id()?, boot, "{what}");
        is_exactly(&scene, round, &what)?;
        cut += 1;
        let missed = kinds.iter().find(|kind| !hit.contains_key(*kind));
        if let Some(kind) = missed.filter(|_| is_soak() && aims.is_empty() && cut < cuts + MORE) {
            aims.push_back(at(kind, &way, &mut chance));
        }
    }
    println!("proof: {cut} cuts of a node in an update, EVENKEEL_SEED={seed}: {hit:?}");
    for moment in ["pods leave", "written, not booted", "up again"] {
        assert!(hit.contains_key(moment), "{moment} was never hit: {hit:?}");
    }
    let steps_hit = kinds.iter().filter(|kind| hit.contains_key(*kind)).count();
    assert!(steps_hit > 0, "no step was ever hit: {hit:?}");
    if is_soak() {
        assert_eq!(steps_hit, kinds.len(), "of {kinds:?} only: {hit:?}");
    }
    Ok(())
}

/// What a start of the node would find in `/etc`.
fn tree(scene: &Scene) -> Result<Scratch> {
    let copy = Scratch::new("tree")?;
    scene
        .node
        .copy_while_off("/etc", &copy.path().join("etc"))?;
    Ok(copy)
}

/// The node has all of this round, and nothing of the one before.
fn is_exactly(scene: &Scene, round: usize, what: &str) -> Result<()> {
    let list = "cd /etc/app && find . -type f -exec sh -c 'echo $1 $(cat $1)' _ {} ';' | sort";
    let found = scene.node.run(&["sh", "-c", list])?;
    let wanted = config(round);
    let files = wanted["config"]["storage"]["files"].as_array();
    let mut expected: Vec<String> = files
        .into_iter()
        .flatten()
        .filter_map(|file| file["path"].as_str()?.strip_prefix("/etc/app/"))
        .map(|path| format!("./{path} round {round}"))
        .collect();
    expected.sort();
    let found: Vec<&str> = found.lines().collect();
    assert_eq!(found, expected, "{what}");
    let units = "ls /etc/systemd/system /etc/systemd/system/multi-user.target.wants";
    let units = scene.node.run(&["sh", "-c", units])?;
    let (here, gone) = if round.is_multiple_of(2) {
        ("even-", "odd-")
    } else {
        ("odd-", "even-")
    };
    let count = |side| units.lines().filter(|line| line.starts_with(side)).count();
    // Each with the link that enables it.
    assert_eq!(
        (count(here), count(gone)),
        (2 * UNITS, 0),
        "{what}: {units}"
    );
    Ok(())
}
