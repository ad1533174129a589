//! From one version to another: who may begin, who goes on, and who stops, whatever happens on the way.

mod fleets;
mod scenarios;
#[path = "../script/mod.rs"]
mod script;
mod world;

use evenkeel_api::windows::version::StatedVersion;
use evenkeel_api::windows::windows_pool::{Strategy, UpdatePhase, condition};
use evenkeel_plan::fleet::budget::MaxUnavailable;
use evenkeel_plan::windows::upgrade::in_place::{InPlaceStep, Supplied};
use evenkeel_plan::windows::upgrade::{Backing, UpgradePath, gate, way};
use evenkeel_plan::windows::windows_pool::{WindowsNodeState, status};

use self::world::{World, version};

const ONE: MaxUnavailable = MaxUnavailable::Count(1);

fn stands(world: &World) -> Vec<WindowsNodeState> {
    let round = world.round();
    let mut rollouts = round.rollouts;
    rollouts.sort_by_key(|it| it.node.name.as_str());
    rollouts.into_iter().map(|it| it.state).collect()
}

/// A version by its number, as a node says it.
#[expect(
    clippy::unnecessary_wraps,
    reason = "annotations are there or not, and here they are"
)]
fn stated(number: u8) -> Option<StatedVersion> {
    Some(version(number).version.into())
}

fn facts(world: &World, at: usize) -> (Option<StatedVersion>, Option<StatedVersion>) {
    let windows = world.nodes[at].windows.as_deref();
    let windows = windows.cloned().unwrap_or_default();
    (windows.version, windows.desired_version)
}

/// Covers U01, U02, U03, H11.
#[test]
fn a_node_goes_step_by_step_and_is_told_only_when_its_files_are_there() {
    let mut world = World::new(2, ONE);
    let (old, new) = (stated(1), stated(2));
    let phase = |world: &World| world.granted.first().map(|it| it.phase);
    world.operate(false);
    assert_eq!(phase(&world), Some(UpdatePhase::Granted));
    assert_eq!(
        world.nodes[0].desired_drain, None,
        "the status says it first"
    );
    world.operate(false);
    let asked = "drain-upgrade-1.2.0-abc1234";
    assert_eq!(world.nodes[0].desired_drain.as_deref(), Some(asked));
    world.operate(false);
    assert_eq!(phase(&world), Some(UpdatePhase::Draining));
    assert!(!world.supply(0), "its pods have not left");
    world.drain();
    world.drain();
    world.operate(false);
    assert_eq!(phase(&world), Some(UpdatePhase::Supplying));
    assert_eq!(facts(&world, 0), (old.clone(), old.clone()));
    assert!(world.supply(0));
    world.operate(false);
    assert_eq!(phase(&world), Some(UpdatePhase::Applying));
    assert_eq!(facts(&world, 0), (old.clone(), new.clone()));
    world.agent(0);
    assert_eq!(facts(&world, 0).0, new);
    assert_eq!(
        facts(&world, 1),
        (old.clone(), old.clone()),
        "nobody else has begun"
    );
    world.operate(false);
    world.drain();
    assert!(!world.nodes[0].unschedulable && !world.nodes[0].claims_permit());
    world.operate(false);
    let granted: Vec<_> = world.granted.iter().map(|it| it.node.as_str()).collect();
    assert_eq!(granted, ["win-0001"]);
}

/// Covers U03.
#[test]
fn an_unhealthy_node_goes_first_and_keeps_all_others_from_beginning() {
    let mut world = World::new(3, MaxUnavailable::Count(3));
    world.nodes[2].ready = false;
    world.pool.budget.max_unavailable = ONE;
    world.operate(false);
    assert_eq!(world.granted[0].node, "win-0002");
    // Whatever the limit: it fails.
    world.pool.budget.max_unavailable = MaxUnavailable::Count(3);
    assert!(matches!(stands(&world)[2], WindowsNodeState::Failing(_)));
    assert_eq!(stands(&world)[0], WindowsNodeState::Stopped);
    for _ in 0..12 {
        world.calm_round();
    }
    assert_eq!(facts(&world, 2).0, stated(2), "it was repaired");
    assert!(world.is_done());
}

/// Covers U03, X08.
#[test]
fn who_was_told_by_somebody_else_too_early_is_put_back_also_if_the_target_has_gone_on() {
    let mut world = World::new(2, ONE);
    let (told, asked) = (0, 7);
    for _ in 0..3 {
        world.operate(false);
    }
    let granted = world.granted[0].clone();
    assert_eq!(
        (granted.node.as_str(), granted.phase),
        ("win-0000", UpdatePhase::Draining)
    );
    // Another one is down, so that this one is not the first to be granted what comes next.
    world.nodes[1].ready = false;
    world.tamper(0, told);
    world.target = version(3);
    world.tamper(0, asked);
    let old = stated(1);
    assert_eq!(facts(&world, 0), (old.clone(), stated(2)));
    world.operate(false);
    assert_eq!(facts(&world, 0), (old.clone(), old));
    world.nodes[1].ready = true;
    for _ in 0..40 {
        world.calm_round();
        assert!(world.down().len() <= 1, "{:?}", world.down());
    }
    assert!(world.is_done(), "{:?} {:?}", world.granted, world.nodes);
}

/// Covers U03, U09.
#[test]
fn a_version_that_breaks_its_node_stops_there_and_the_next_one_repairs_all() {
    let mut world = World::new(3, MaxUnavailable::Count(2));
    world.broken = Some(version(2).version);
    for _ in 0..20 {
        world.calm_round();
    }
    let round = world.round();
    let failing = round.stopped.clone().unwrap_or_default();
    assert!(failing.contains("service network: is stopped"), "{failing}");
    assert_eq!(facts(&world, 2).0, stated(1), "it never began");
    let said = status(&world.pool, Some(&world.target), &round, None);
    let degraded = said
        .condition(condition::DEGRADED)
        .map(|it| it.reason.as_str());
    assert_eq!(degraded, Some("NodesFailing"));
    world.target = version(3);
    for _ in 0..30 {
        world.calm_round();
        assert!(world.down().len() <= 2, "{:?}", world.down());
    }
    assert!(world.is_done(), "{:?} {:?}", world.granted, world.nodes);
}

#[test]
fn a_node_that_has_its_files_for_too_long_fails() {
    let mut world = World::new(1, ONE);
    for _ in 0..3 {
        world.operate(false);
        world.drain();
    }
    assert!(world.supply(0));
    world.operate(false);
    world.operate(false);
    assert_eq!(stands(&world), [WindowsNodeState::Moving]);
    world.context.now += std::time::Duration::from_mins(21);
    let [WindowsNodeState::Failing(why)] = &stands(&world)[..] else {
        panic!("{:?}", stands(&world));
    };
    assert!(why.contains("1.2.0-abc1234"), "{why}");
}

/// Covers U07.
#[test]
fn nobody_is_upgraded_who_may_not_be_and_the_pool_says_why() {
    let refusal_in = |world: &World, kind: &str| {
        let round = world.round();
        assert_eq!(round.updating, [], "nobody begins");
        let said = status(&world.pool, Some(&world.target), &round, None);
        let found = said.condition(kind).cloned();
        found.map_or_else(Default::default, |it| (it.status, it.reason, it.message))
    };
    let refusal = |world: &World| refusal_in(world, condition::UPGRADEABLE);
    let mut old = World::new(2, ONE);
    old.context.closed = gate::of_cluster("v1.20.3", gate::MINIMUM);
    let (is_so, reason, message) = refusal(&old);
    assert_eq!(
        (is_so.as_str(), reason.as_str()),
        ("False", gate::OLD_KUBERNETES)
    );
    assert!(message.contains("win-0000, win-0001"), "{message}");
    let mut skips = World::new(1, ONE);
    skips.target.version = "3.0.0-abc1234".parse().unwrap();
    assert_eq!(refusal(&skips).1, gate::SKIPS_MAJOR);
    let mut lost = World::new(1, ONE);
    lost.context.backing.clear();
    assert_eq!(refusal_in(&lost, condition::UPDATING).1, gate::NOT_LISTED);
    assert_eq!(refusal(&lost).0, "True", "the version is not at fault");
    // Mended, it goes on.
    old.context.closed = gate::of_cluster("v1.35.0", gate::MINIMUM);
    for _ in 0..20 {
        old.calm_round();
    }
    assert!(old.is_done());
}

/// Covers O08.
#[test]
fn a_node_of_openshifts_operator_serves_on_until_it_was_checked_and_goes_in_its_turn() {
    let mut world = World::new(3, ONE);
    world.made_by_wmco(1);
    let theirs = world.nodes[1].clone();
    for (is_said, why) in [
        (false, gate::NOT_TAKEN_OVER),
        (true, gate::TAKE_OVER_REFUSED),
    ] {
        world.context.takes_over = is_said;
        for _ in 0..30 {
            world.calm_round();
            assert_eq!(world.nodes[1], theirs, "nobody writes on it");
        }
        let round = world.round();
        let said = status(&world.pool, Some(&world.target), &round, None);
        let found = said.condition(condition::UPDATING).cloned().unwrap();
        assert_eq!((&*found.status, &*found.reason), ("False", why));
        assert!(found.message.starts_with("win-0001: it was made by"));
        let found = said.condition(condition::UPGRADEABLE).cloned().unwrap();
        assert_eq!(found.status, "True", "the version is not at fault");
    }
    // It holds nobody up.
    for at in [0, 2] {
        assert_eq!(facts(&world, at), (stated(2), stated(2)));
    }
    world.context.surveyed.insert("win-0001".to_owned());
    for _ in 0..30 {
        world.calm_round();
        assert!(world.down().len() <= 1, "{:?}", world.down());
    }
    assert!(world.is_done(), "{:?} {:?}", world.granted, world.nodes);
    let windows = world.nodes[1].windows.as_deref().unwrap();
    assert_eq!(windows.wmco_key, None, "it is theirs no more");
}

/// Covers U01, H35.
#[test]
fn a_node_of_a_version_that_nobody_knows_is_upgraded_and_never_told_rubbish() {
    for (written, hash) in [
        (Some("0.0.1-0000000"), Some("gone")),
        (Some("0.0.1-0000000"), None),
        (Some("rubbish"), Some("gone")),
    ] {
        let mut world = World::new(1, ONE);
        if let Some(windows) = &mut world.nodes[0].windows {
            windows.version = written.map(|it| it.to_owned().into());
            windows.current_services = hash.map(str::to_owned);
            windows.desired_version.clone_from(&windows.version);
        }
        for _ in 0..20 {
            world.calm_round();
            let told = facts(&world, 0).1;
            let is_as_written = told.as_ref().map(ToString::to_string).as_deref() == written;
            assert!(told == stated(2) || is_as_written);
        }
        assert!(world.is_done(), "{written:?}: {:?}", world.nodes);
    }
    // A version that somebody took off is written again by its agent.
    let mut world = World::new(1, ONE);
    world.target = version(1);
    if let Some(windows) = &mut world.nodes[0].windows {
        windows.version = None;
    }
    assert_eq!(stands(&world), [WindowsNodeState::Moving]);
    world.operate(false);
    assert_eq!(world.nodes[0].desired_drain, None);
}

/// Covers U04.
#[test]
fn only_a_machine_of_a_set_is_ever_made_anew() {
    let machine = |set: Option<&str>| Backing::Machine {
        name: "m".to_owned(),
        set: set.map(str::to_owned),
    };
    let in_set = machine(Some("s"));
    for backing in [Backing::Listed, machine(None)] {
        assert_eq!(way(Strategy::Recreate, &backing), UpgradePath::InPlace);
    }
    assert_eq!(way(Strategy::InPlace, &in_set), UpgradePath::InPlace);
    let anew = UpgradePath::Recreate {
        machine: "m",
        set: "s",
    };
    assert_eq!(way(Strategy::Recreate, &in_set), anew);
}

#[test]
fn what_was_supplied_is_written_and_read_back() {
    let supplied = Supplied {
        grant: version(4),
        at: jiff::Timestamp::UNIX_EPOCH,
    };
    assert_eq!(supplied.to_string().parse(), Ok(supplied));
    for text in ["", "1.2.0-abc1234", "a b c", "a b 2026-01-01T00:00:00Z d"] {
        assert!(text.parse::<Supplied>().is_err(), "{text}");
    }
    let bare = World::new(1, ONE);
    assert_eq!(
        InPlaceStep::of(&bare.nodes[0], &version(2).version),
        InPlaceStep::Ask
    );
}
