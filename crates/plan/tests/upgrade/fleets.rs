//! Whatever a fleet is like, in whatever order things happen, and whoever is killed on the way.

use std::time::{Duration, Instant};

use evenkeel_plan::fleet::budget::MaxUnavailable;
use proptest::prelude::*;

use super::world::{World, version};

#[derive(Debug, Clone)]
enum Happening {
    Operate,
    Killed,
    Drain,
    Supply,
    Agent,
    Tamper(u8),
    AskForBoot,
    Boot,
    Dies,
    Leaves,
    NextVersion,
    Pause(bool),
    List(bool),
    TakeOut,
    Restart,
    Uncordon,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        6 => Just(Happening::Operate),
        1 => Just(Happening::Killed),
        4 => Just(Happening::Drain),
        5 => Just(Happening::Supply),
        5 => Just(Happening::Agent),
        2 => (0..10u8).prop_map(Happening::Tamper),
        2 => Just(Happening::AskForBoot),
        2 => Just(Happening::Boot),
        1 => Just(Happening::Dies),
        1 => Just(Happening::Leaves),
        1 => Just(Happening::NextVersion),
        1 => any::<bool>().prop_map(Happening::Pause),
        2 => prop::bool::weighted(0.4).prop_map(Happening::List),
        3 => Just(Happening::TakeOut),
        1 => Just(Happening::Restart),
        1 => Just(Happening::Uncordon),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Covers U03, U08, X08, H11, S14.
    #[test]
    fn limits_hold_in_any_order_of_events_and_in_the_end_all_run_the_newest_and_who_is_delisted_is_gone(
        size in 1..7usize,
        max in 1..4u32,
        happenings in prop::collection::vec((any::<prop::sample::Index>(), happening()), 0..150),
    ) {
        let mut world = World::new(size, MaxUnavailable::Count(max));
        let limit = world.limit();
        let mut number = 2;
        for (at, happening) in happenings {
            if world.nodes.is_empty() {
                break;
            }
            let at = at.index(world.nodes.len());
            let down = world.down().len();
            match happening {
                Happening::Operate => {
                    let begun = world.operate(false);
                    prop_assert!(!world.pool.budget.paused || begun.is_empty());
                }
                Happening::Killed => _ = world.operate(true),
                Happening::Drain => world.drain(),
                Happening::Supply => _ = world.supply(at),
                Happening::Agent => world.agent(at),
                Happening::Tamper(what) => world.tamper(at, what),
                Happening::AskForBoot => world.ask_for_boot(at),
                Happening::Boot => world.boot(at),
                Happening::Dies => world.nodes[at].ready = false,
                Happening::Leaves => if world.nodes.len() > 1 {
                    world.nodes.remove(at);
                },
                Happening::NextVersion => {
                    number += 1;
                    world.target = version(number);
                }
                Happening::Pause(paused) => world.pool.budget.paused = paused,
                Happening::List(is_listed) => world.list(at, is_listed),
                Happening::TakeOut => world.take_out(at),
                // Another operator leads, and has not read the list yet; nor does it know of what was changed meanwhile.
                Happening::Restart => world.context.removals = None,
                Happening::Uncordon => world.nodes[at].unschedulable = false,
            }
            prop_assert!(world.down().len() <= limit.max(down), "{:?}", world.down());
            // Nobody runs, or is told, what was not granted.
            for node in &world.nodes {
                let windows = node.windows.as_deref().unwrap();
                if let Some(runs) = &windows.version {
                    prop_assert!(runs.to_string().starts_with("1."), "{runs}");
                }
            }
        }
        // Whoever died comes up again, and nobody disturbs any more.
        world.pool.budget.paused = false;
        world.know();
        for node in &mut world.nodes {
            node.ready = true;
        }
        for _ in 0..(20 * size + 20) {
            world.calm_round();
        }
        let left = world.nodes.iter().filter(|it| world.delisted.contains(&it.name));
        prop_assert_eq!(left.count(), 0, "{:?} {:#?}", world.granted, world.nodes);
        prop_assert!(world.is_done(), "{:?} {:#?}", world.granted, world.nodes);
    }
}

/// A thousand nodes with a limit of a tenth: all of them are upgraded, and no look takes long.
#[test]
fn a_thousand_nodes_are_upgraded_within_a_minute() {
    let mut world = World::new(1000, MaxUnavailable::Percent(10));
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    let mut rounds = 0;
    while !world.is_done() {
        rounds += 1;
        assert!(rounds < 500, "{:?}", world.granted);
        let look = Instant::now();
        let round = world.round();
        longest = longest.max(look.elapsed());
        assert!(round.updating.len() <= 100);
        world.calm_round();
        assert!(world.down().len() <= 100);
    }
    let took = start.elapsed();
    println!(
        "proof: 1,000 nodes were upgraded in {rounds} rounds and {took:?}; the longest look took {longest:?}"
    );
    assert!(took < Duration::from_mins(1), "{took:?}");
}
