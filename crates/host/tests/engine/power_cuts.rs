//! The engine on a machine whose power is cut: a real kernel, a real disk, and nothing that was not
//! flushed survives. After the next start the tree is exactly the old or exactly the new one.
//!
//! The program inside is this test binary: in there, two of these tests do their work on the disk.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use evenkeel_host::execute::Claim;
use evenkeel_plan::machine::entry::Hash;
use evenkeel_testbed::process::tell;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::{Doing, Error, PowerCutMachine, PowerCutOptions, Result, need};

use crate::machine::{Machine, Tree, state};
use crate::random::{Chance, is_soak, seed};
use crate::real_kills::{Journey, new, under_way_on};

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
    println!("found: {}", under_way_on(&machine));
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

/// A soak gives up after this many.
const MOST_CUTS: usize = 90;

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
    let mut hit: BTreeMap<&str, usize> = BTreeMap::new();
    let mut ends = [0, 0];
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    let mut moments = moments(&journey, cuts, &mut chance);
    let mut made = 0;
    while let Some((change, delay)) = moments.pop().or_else(|| missed(&journey, &hit, made)) {
        made += 1;
        let mut machine = machine(&journey)?;
        machine.start(&words(APPLY))?;
        machine.wait_for_line(&format!("change {change}."), DEADLINE)?;
        machine.cut_after(delay)?;
        // The machine went on until the power was gone.
        let last = machine.lines().iter().rev().find_map(|line| {
            line.strip_prefix("change ")?
                .strip_suffix('.')?
                .parse()
                .ok()
        });
        let last: usize = last.ok_or_else(|| Error::failed("no change was printed"))?;
        *hit.entry(journey.under_way[last]).or_default() += 1;
        let after = machine.run_to_end(&words(TAKE_UP), DEADLINE)?;
        let what = format!("cut {made} at change {change}, EVENKEEL_SEED={seed}");
        let tree = said(&after.lines, "tree: ")?;
        let end = [old, new].iter().position(|end| end.to_string() == tree);
        let end = end.ok_or_else(|| Error::failed(format!("{what}: a mixture: {after:?}")))?;
        ends[end] += 1;
        let left = said(&after.lines, "found: ")?;
        *found.entry(left.to_owned()).or_default() += 1;
        assert_eq!(after.code, 0, "{what}: {after:?}");
    }
    tell(&format!(
        "proof: {made} power cuts, seed {seed}: ended old {} times, new {} times; under way when it was cut: {hit:?}; found by the next start: {found:?}",
        ends[0], ends[1]
    ));
    if is_soak() {
        for kind in journey.kinds {
            assert!(hit.contains_key(kind), "{kind} was never hit: {hit:?}");
        }
    }
    assert!(hit.keys().any(|kind| *kind != "no journal"), "{hit:?}");
    Ok(())
}

/// A cut beyond the count for a kind of step that is over so soon that no cut has hit it yet: a soak
/// goes on until each was hit, within reason.
fn missed(
    journey: &Journey,
    hit: &BTreeMap<&str, usize>,
    made: usize,
) -> Option<(usize, Duration)> {
    let is_missed = |change: &usize| !hit.contains_key(journey.under_way[*change]);
    let mut changes = 0..journey.changes;
    (is_soak() && made < MOST_CUTS)
        .then(|| changes.find(is_missed))
        .flatten()
        .map(|change| (change, Duration::ZERO))
}

/// Before which changes to cut, and how long after they were announced: three times during every kind
/// of step in a soak, else in each part of the way while the journal stands; the rest by chance.
fn moments(journey: &Journey, cuts: usize, chance: &mut Chance) -> Vec<(usize, Duration)> {
    let kinds: BTreeSet<&str> = journey.under_way.iter().copied().collect();
    let times = if is_soak() { 3 } else { 0 };
    let mut moments = Vec::with_capacity(cuts);
    for kind in kinds {
        let during: Vec<usize> = (0..journey.changes)
            .filter(|change| journey.under_way[*change] == kind)
            .collect();
        moments.extend((0..times).map(|_| during[chance.below(during.len())]));
    }
    if !is_soak() {
        let on_the_way: Vec<usize> = (0..journey.changes)
            .filter(|change| journey.under_way[*change] != "no journal")
            .collect();
        let parts = on_the_way.chunks(on_the_way.len().div_ceil(cuts));
        moments.extend(parts.map(|part| part[chance.below(part.len())]));
    }
    while moments.len() < cuts {
        moments.push(chance.below(journey.changes));
    }
    let mut delayed = |change| (change, Duration::from_micros(chance.below(3000) as u64));
    moments.into_iter().map(&mut delayed).collect()
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
