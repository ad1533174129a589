//! The engine on a machine whose power is cut: a real kernel, a real disk, and nothing that was not
//! flushed survives. After the next start the tree is exactly the old or exactly the new one.
//!
//! The program inside is this test binary: in there, two of these tests do their work on the disk.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use evenkeel_host::disk::Disk;
use evenkeel_host::execute::Claim;
use evenkeel_plan::entry::Hash;
use evenkeel_plan::step::Step;
use evenkeel_testbed::process::tell;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::{Doing, Error, PowerCutMachine, PowerCutOptions, Result, need};

use crate::machine::{Machine, Tree, state};
use crate::random::{Chance, is_soak, seed};
use crate::real_kills::{Journey, new};

/// The tree on the machine's disk; only there do the two tests below do anything.
const INSIDE: &str = "/disk/tree";
const DEADLINE: Duration = Duration::from_mins(2);

/// Brings the machine from the old configuration to the new one, and says before which change it is.
#[test]
fn inside_the_machine_the_new_configuration_is_applied() {
    let Some(mut machine) = inside() else {
        return;
    };
    let changes = Cell::new(0_usize);
    machine.disk.before_change = Some(Box::new(move || {
        println!("change {}.", changes.get());
        changes.set(changes.get() + 1);
    }));
    machine.bring(&new()).unwrap();
    println!("applied");
}

/// Takes up what was left, and says what was under way and where it ended.
#[test]
fn inside_the_machine_the_next_start_takes_it_up() {
    let Some(machine) = inside() else {
        return;
    };
    let state = state();
    let left = state.unfinished(&machine).unwrap();
    let under_way = left.as_ref().map(|journal| {
        let mut steps = journal.steps().iter();
        steps
            .find(|step| machine.disk.look(&step.path).unwrap() != step.after)
            .map_or("after the steps", Step::kind)
    });
    println!("under way: {}", under_way.unwrap_or("no journal"));
    drop(Claim::take(&machine, &state).unwrap());
    println!("tree: {}", mark(&machine.tree()));
}

fn inside() -> Option<Machine> {
    let tree = Path::new(INSIDE);
    // The harness has begun a line of its own.
    tree.is_dir().then(|| println!());
    tree.is_dir().then(|| Machine::linux_at(tree))
}

fn mark(tree: &Tree) -> Hash {
    Hash::of(format!("{tree:?}").as_bytes())
}

fn words(test: &str) -> [&str; 4] {
    ["--exact", test, "--nocapture", "--test-threads=1"]
}

const APPLY: &str = "power_cuts::inside_the_machine_the_new_configuration_is_applied";
const TAKE_UP: &str = "power_cuts::inside_the_machine_the_next_start_takes_it_up";

fn said<'l>(lines: &'l [String], beginning: &str) -> Result<&'l str> {
    let mut rest = lines.iter().filter_map(|line| line.strip_prefix(beginning));
    rest.next()
        .ok_or_else(|| Error::failed(format!("no line begins with {beginning:?}: {lines:#?}")))
}

/// Covers M09, X05.
#[test]
fn after_a_power_cut_the_machine_has_the_old_or_the_new_configuration() -> Result<()> {
    if need::skip(PowerCutMachine::NEEDS)? || need::skip(&[need::Need::Root])? {
        return Ok(());
    }
    let journey = Journey::new();
    let [old, new] = [&journey.ends[0].1, &journey.ends[1].1].map(mark);
    assert_ne!(old, new);
    let (cuts, seed) = (if is_soak() { 50 } else { 3 }, seed());
    let mut chance = Chance(seed);
    let mut hit: BTreeMap<String, usize> = BTreeMap::new();
    let mut ends = [0, 0];
    for cut in 0..cuts {
        // Spread over the whole way, at a place by chance within each part of it.
        let part = journey.changes.div_ceil(cuts);
        let change = (cut * part + chance.below(part)).min(journey.changes - 1);
        let mut machine = machine(&journey)?;
        machine.start(&words(APPLY))?;
        machine.wait_for_line(&format!("change {change}."), DEADLINE)?;
        machine.cut_after(Duration::from_micros(chance.below(3000) as u64))?;
        let after = machine.run_to_end(&words(TAKE_UP), DEADLINE)?;
        let what = format!("cut {cut} at change {change}, EVENKEEL_SEED={seed}");
        let tree = said(&after.lines, "tree: ")?;
        let end = [old, new].iter().position(|end| end.to_string() == tree);
        let end = end.ok_or_else(|| Error::failed(format!("{what}: a mixture: {after:?}")))?;
        ends[end] += 1;
        *hit.entry(said(&after.lines, "under way: ")?.to_owned())
            .or_default() += 1;
        assert_eq!(after.code, 0, "{what}: {after:?}");
    }
    tell(&format!(
        "proof: {cuts} power cuts, seed {seed}: ended old {} times, new {} times; under way: {hit:?}",
        ends[0], ends[1]
    ));
    if is_soak() {
        for kind in journey.kinds {
            assert!(hit.contains_key(kind), "{kind} was never hit: {hit:?}");
        }
    }
    assert!(hit.keys().any(|kind| kind != "no journal"), "{hit:?}");
    Ok(())
}

/// A machine whose disk has the tree that every way starts from.
fn machine(journey: &Journey) -> Result<PowerCutMachine> {
    let disk = Scratch::new("power-cut")?;
    let from = journey.start.root();
    let from = from.ok_or_else(|| Error::failed("the tree is not on a disk"))?;
    evenkeel_testbed::process::run(
        std::process::Command::new("cp")
            .arg("-a")
            .args([from, &disk.path().join("tree")]),
    )?;
    PowerCutMachine::new(&PowerCutOptions {
        disk_megabytes: 64,
        tree: Some(disk.path().to_owned()),
        program: std::env::current_exe().doing(|| "which program is this?")?,
    })
}
