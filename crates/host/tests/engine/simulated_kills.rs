//! Killed or without power after any change, a simulated machine is exactly at the old or exactly at
//! the new configuration after the next start.

use evenkeel_host::Error;
use evenkeel_host::disk::{Disk, Host};
use evenkeel_host::execute::Claim;
use evenkeel_host::simulated::SimulatedHost;
use evenkeel_plan::machine::os::{Deployment, OsSnapshot};

use crate::configs::{Config, live_on};
use crate::machine::{Machine, Tree, bring, planned, state, without_state};
use crate::random::{Chance, Pair, for_pairs};

/// A machine on its way from one configuration to the next.
struct Journey {
    start: SimulatedHost,
    old: (Config, Tree, Deployment),
    new: (Config, Tree, Deployment),
    /// How many changes the way takes.
    changes: usize,
    /// How many calls.
    calls: usize,
}

impl Journey {
    fn of((old, new, _): &Pair) -> Self {
        let start = lived_on();
        bring(&start, old).unwrap();
        // An update begins on a machine that has booted what was staged for it.
        let start = start.rebooted();
        resume(&start).unwrap();
        Self::from(&start, old, new)
    }

    /// From a configuration that still waits for its boot: a person applied twice.
    fn without_a_boot((old, new, _): &Pair) -> Self {
        let start = lived_on();
        bring(&start, old).unwrap();
        Self::from(&start, old, new)
    }

    /// To a machine that we never saw before.
    fn of_first_contact((_, new, _): &Pair) -> Self {
        Self::from(&lived_on(), &Config::default(), new)
    }

    fn from(start: &SimulatedHost, old: &Config, new: &Config) -> Self {
        start.settle();
        let end = start.snapshot();
        bring(&end, new).unwrap();
        let next = |host: &SimulatedHost| host.operating_system().next();
        Self {
            old: (old.clone(), without_state(start.tree()), next(start)),
            new: (new.clone(), without_state(end.tree()), next(&end)),
            start: start.snapshot(),
            changes: end.changes(),
            calls: end.calls(),
        }
    }

    /// A machine at the start that is killed after so many changes on its way.
    fn killed_after(&self, changes: usize) -> SimulatedHost {
        let host = self.start.snapshot();
        host.stop_after(changes);
        // Killed while it forgets what nobody needs, it has done all it was asked to.
        _ = bring(&host, &self.new.0);
        assert!(host.has_stopped());
        host
    }

    /// The next start brings `host` to one end of the journey, durably and with the right record.
    fn ends_well(&self, host: &SimulatedHost, chance: &mut Chance, what: &str) {
        let resumed = resume(host);
        assert!(resumed.is_ok(), "{what}: {resumed:?}");
        self.is_at_an_end(host, what);
        let later = host.cut(&mut |ways| chance.below(ways));
        let what = format!("{what}, and the power cut after that");
        assert_eq!(
            without_state(later.tree()),
            without_state(host.tree()),
            "{what}"
        );
        // What was staged may be lost, and is staged again.
        resume(&later).unwrap();
        self.is_at_an_end(&later, &what);
    }

    fn is_at_an_end(&self, host: &SimulatedHost, what: &str) {
        let tree = without_state(host.tree());
        let end = [&self.old, &self.new]
            .into_iter()
            .filter(|(_, expected, _)| *expected == tree)
            .find(|(_, _, next)| boots_alike(next, &host.operating_system().next()));
        let Some((config, ..)) = end else {
            let differs = |end: &Tree| -> Tree {
                let both = tree.iter().chain(end);
                both.filter(|(path, _)| tree.get(*path) != end.get(*path))
                    .map(|(path, entry)| (path.clone(), entry.clone()))
                    .collect()
            };
            panic!(
                "{what}: a mixture, from the old {:#?}, from the new {:#?}; boots {:?}, old {:?}, new {:?}",
                differs(&self.old.1),
                differs(&self.new.1),
                host.operating_system().next(),
                self.old.2,
                self.new.2,
            );
        };
        let plan = planned(host, config).unwrap().0;
        assert_eq!(plan.steps, [], "{what}: the record is not that of the tree");
    }
}

fn lived_on() -> SimulatedHost {
    let machine = Machine::simulated();
    live_on(&machine);
    let host = machine.into_simulated().unwrap();
    host.operating_system().runs(Deployment {
        image: Some("os:0".to_owned()),
        arguments: vec!["root=/dev/sda".to_owned(), "quiet".to_owned()],
    });
    host
}

/// The same image and the same arguments; those of others may stand elsewhere among ours.
fn boots_alike(one: &Deployment, other: &Deployment) -> bool {
    let sorted = |deployment: &Deployment| {
        let mut arguments = deployment.arguments.clone();
        arguments.sort();
        arguments
    };
    one.image == other.image && sorted(one) == sorted(other)
}

fn resume<H: Host>(host: &H) -> Result<(), Error> {
    Claim::take(host, &state())?.take_note_of_boot()
}

/// Covers M09, X05.
#[test]
fn killed_after_any_change_a_machine_is_at_the_old_or_at_the_new_configuration() {
    for_pairs(8, |pair| {
        let journey = Journey::of(pair);
        let mut chance = Chance(pair.2);
        for changes in 0..journey.changes {
            let host = journey.killed_after(changes).reborn();
            journey.ends_well(&host, &mut chance, &format!("killed after {changes}"));
        }
    });
}

/// Covers M09, X05.
#[test]
fn without_power_after_any_change_a_machine_is_at_the_old_or_at_the_new_configuration() {
    for_pairs(8, |pair| {
        let journey = Journey::of(pair);
        let mut chance = Chance(pair.2);
        for changes in 0..journey.changes {
            let killed = journey.killed_after(changes);
            for _ in 0..2 {
                let host = killed.cut(&mut |ways| chance.below(ways));
                let what = format!("power cut after {changes}");
                journey.ends_well(&host, &mut chance, &what);
            }
        }
        let done = journey.start.snapshot();
        bring(&done, &journey.new.0).unwrap();
        let host = done.cut(&mut |ways| chance.below(ways));
        assert_eq!(without_state(host.tree()), journey.new.1, "all was durable");
        let host = done.cut(&mut |_| 0);
        let left = state().unfinished(&host).unwrap();
        assert_eq!(left, None, "a run that is over does not come back");
    });
}

/// Covers M09, X05.
#[test]
fn killed_again_and_again_while_it_recovers_a_machine_still_ends_well() {
    for_pairs(8, |pair| recovers(&Journey::of(pair), &mut Chance(pair.2)));
}

/// Covers M09, X05.
#[test]
fn killed_again_and_again_on_first_contact_a_machine_still_ends_well() {
    for_pairs(8, |pair| {
        recovers(&Journey::of_first_contact(pair), &mut Chance(pair.2));
    });
}

/// Killed after any change, and then again while it recovers, in either way.
fn recovers(journey: &Journey, chance: &mut Chance) {
    // Each pair takes every third change, beginning somewhere else.
    for changes in (chance.below(3)..journey.changes).step_by(3) {
        let mut host = journey.killed_after(changes);
        let mut what = format!("killed after {changes}");
        for _ in 0..3 {
            host = if chance.below(2) == 0 {
                host.reborn()
            } else {
                what.push_str(", power cut");
                host.cut(&mut |ways| chance.below(ways))
            };
            let after = chance.below(40);
            what = format!("{what}, again after {after}");
            host.stop_after(after);
            // On first contact nothing may have begun yet: then it is begun anew.
            _ = bring(&host, &journey.new.0);
        }
        let host = host.cut(&mut |ways| chance.below(ways));
        journey.ends_well(&host, chance, &what);
    }
}

/// Covers M09, X05.
#[test]
fn what_stands_there_but_is_not_durable_is_made_durable_before_it_is_relied_on() {
    for_pairs(8, |pair| {
        let mut chance = Chance(pair.2);
        let mut relies = |journey: &Journey, changes: usize| {
            let killed = journey.killed_after(changes);
            for _ in 0..4 {
                let after = chance.below(journey.changes);
                let host = killed.reborn();
                host.stop_after(after);
                _ = bring(&host, &journey.new.0);
                let host = host.cut(&mut |ways| chance.below(ways));
                let what = format!("killed after {changes}, power cut after {after}");
                journey.ends_well(&host, &mut chance, &what);
            }
        };
        // While our folders are made.
        let journey = Journey::of_first_contact(pair);
        for changes in 0..journey.changes.min(10) {
            relies(&journey, changes);
        }
        // Just when the journal is there.
        let journey = Journey::of(pair);
        let has_journal = |changes: &usize| {
            let host = journey.killed_after(*changes).reborn();
            state().unfinished(&host).unwrap().is_some()
        };
        let written = (0..journey.changes).find(has_journal);
        for changes in std::iter::repeat_n(written, 4).flatten() {
            relies(&journey, changes);
        }
    });
}

/// Covers M09, X05.
#[test]
fn when_also_turning_back_meets_a_failure_nothing_is_left_half_done() {
    for_pairs(8, |pair| {
        let journey = Journey::of(pair);
        let mut chance = Chance(pair.2);
        for _ in 0..40 {
            let call = chance.below(journey.calls);
            let then = call + 1 + chance.below(10);
            let host = journey.start.snapshot();
            host.fail_at(call);
            host.fail_at(then);
            let what = format!("calls {call} and {then} failed");
            let brought = bring(&host, &journey.new.0);
            let kept = state().unfinished(&host.reborn()).unwrap().is_some();
            let end = match brought {
                Ok(()) | Err(Error::Unfinished { .. }) => Some(&journey.new.1),
                Err(Error::Stuck { .. }) => None,
                Err(_) => Some(&journey.old.1),
            };
            match end {
                Some(end) => assert_eq!(without_state(host.tree()), *end, "{what}"),
                None => assert!(kept, "{what}: stuck, and nobody will know"),
            }
            journey.ends_well(&host.reborn(), &mut chance, &what);
        }
    });
}

/// Covers M09, X05.
#[test]
fn when_any_call_fails_everything_is_put_back_or_the_next_start_does_it() {
    for_pairs(8, |pair| {
        let journey = Journey::of(pair);
        let mut chance = Chance(pair.2);
        for call in 0..journey.calls {
            let host = journey.start.snapshot();
            host.fail_at(call);
            let what = format!("call {call} failed");
            match bring(&host, &journey.new.0) {
                // Some failures are nobody's business: contents that were not forgotten, for one.
                Ok(()) => assert_eq!(without_state(host.tree()), journey.new.1, "{what}"),
                Err(Error::Unfinished { .. }) => {
                    assert_eq!(without_state(host.tree()), journey.new.1, "{what}");
                }
                Err(Error::Stuck { step, source }) => panic!("{what}: {step}: {source:?}"),
                Err(_) => {
                    assert_eq!(without_state(host.tree()), journey.old.1, "{what}");
                    assert_eq!(state().unfinished(&host).unwrap(), None, "{what}");
                }
            }
            journey.ends_well(&host.reborn(), &mut chance, &what);
        }
    });
}

/// Covers M09, X05.
#[test]
fn killed_while_it_goes_back_a_machine_ends_well() {
    for_pairs(8, |pair| {
        let journey = Journey::of(pair);
        let mut chance = Chance(pair.2);
        for _ in 0..40 {
            let call = chance.below(journey.calls);
            let whole = journey.start.snapshot();
            whole.fail_at(call);
            _ = bring(&whole, &journey.new.0);
            let changes = chance.below(whole.changes());
            let host = journey.start.snapshot();
            host.fail_at(call);
            host.stop_after(changes);
            _ = bring(&host, &journey.new.0);
            let what = format!("call {call} failed, killed after {changes}");
            journey.ends_well(&host.reborn(), &mut chance, &what);
            let host = host.cut(&mut |ways| chance.below(ways));
            journey.ends_well(&host, &mut chance, &format!("{what}, power cut"));
        }
    });
}

/// Covers M20.
#[test]
fn killed_while_it_heals_a_machine_has_the_drift_or_not() {
    let start = lived_on();
    let config = Config::default().file("/opt/ours/file", "ours", 0o640);
    bring(&start, &config).unwrap();
    let healthy = start.tree();
    let owned = state().record(&start).unwrap().owned;
    let heal = |host: &SimulatedHost| -> Result<_, Error> {
        let state = state();
        let claim = Claim::take(host, &state)?;
        claim.heal(
            "/opt/ours/file",
            &owned["/opt/ours/file"].resource,
            &owned["/opt/ours/file"].entry,
        )
    };
    start.disk().remove("/opt/ours/file").unwrap();
    let whole = start.snapshot();
    heal(&whole).unwrap();
    assert_eq!(whole.tree(), healthy);
    for changes in 0..whole.changes() {
        let host = start.snapshot();
        host.stop_after(changes);
        heal(&host).unwrap_err();
        let host = host.reborn();
        heal(&host).unwrap();
        assert_eq!(host.tree(), healthy, "killed after {changes}");
    }
}

/// Covers M09, M10.
#[test]
fn what_still_waits_for_a_boot_is_not_lost_when_more_is_staged_upon_it() {
    for_pairs(8, |pair| {
        let journey = Journey::without_a_boot(pair);
        let mut chance = Chance(pair.2);
        for changes in 0..journey.changes {
            let killed = journey.killed_after(changes);
            for _ in 0..3 {
                let host = killed.cut(&mut |ways| chance.below(ways));
                let what = format!("power cut after {changes}");
                journey.ends_well(&host, &mut chance, &what);
            }
        }
        for _ in 0..40 {
            let call = chance.below(journey.calls);
            let host = journey.start.snapshot();
            host.fail_at(call);
            _ = bring(&host, &journey.new.0);
            let host = host.cut(&mut |ways| chance.below(ways));
            journey.ends_well(
                &host,
                &mut chance,
                &format!("call {call} failed, power cut"),
            );
        }
    });
}

/// Covers M09, M10.
#[test]
fn what_ran_before_comes_back_also_if_a_boot_on_the_way_had_brought_something_else() {
    let os = |image: &str, arguments: &[&str]| {
        let mut config = Config::default().file("/etc/with-the-image", image, 0o644);
        config.0.os_image_url = image.to_owned();
        config.0.kernel_arguments = arguments.iter().map(ToString::to_string).collect();
        config
    };
    let journey = Journey::of(&(os("os:1", &["a=1"]), os("os:2", &["b=2"]), 0));
    let mut chance = Chance(7);
    let mut boots_twice = 0;
    for call in 0..journey.calls {
        let whole = journey.start.snapshot();
        whole.fail_at(call);
        _ = bring(&whole, &journey.new.0);
        for changes in 0..whole.changes() {
            let host = journey.start.snapshot();
            host.fail_at(call);
            host.stop_after(changes);
            _ = bring(&host, &journey.new.0);
            // What was staged by then is written down, and booted.
            let host = host.cut(&mut |ways| ways - 1);
            let what = format!("call {call} failed, killed after {changes}, booted");
            journey.ends_well(&host, &mut chance, &what);
            let record = state().record(&host).unwrap();
            let runs = host.operating_system().look().unwrap();
            let OsSnapshot::Deployments { booted, next, .. } = runs else {
                panic!("{what}: {runs:?}");
            };
            let awaits_boot = record.awaits_boot(&host.operating_system().boot_id());
            assert!(awaits_boot || booted == next, "{what}: {record:?}");
            boots_twice += usize::from(awaits_boot && record.os_image_url == "os:1");
        }
    }
    assert!(boots_twice > 0, "the way back never needed a boot");
}
