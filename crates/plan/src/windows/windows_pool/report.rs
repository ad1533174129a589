//! What the status of the Windows pool says.

use evenkeel_api::machine_config_pool::Condition;
use evenkeel_api::windows_pool::{WindowsNodeCounts, WindowsPoolStatus, condition};

use super::removal::Removal;
use super::trouble::Trouble;
use super::{Grant, Round, Stand, Turn, WindowsPool};
use crate::fleet::coexistence::{Coexistence, Half};
use crate::fleet::rollout::told;
use crate::windows::upgrade::gate::NOT_LISTED;

/// How many names are given in a sentence.
const NAMES: usize = 5;

/// How many nodes are how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// All that are ours.
    pub total: usize,
    /// Those that run what they are to run.
    pub updated: usize,
    /// Those on their way, for the first time or again.
    pub updating: usize,
    /// Those that cannot go on.
    pub failing: usize,
    /// Those that served, are not ready, and have no leave to be down.
    pub not_ready: usize,
}

impl Counts {
    /// Counts.
    pub fn of(round: &Round<'_>) -> Self {
        let count = |what: &dyn Fn(&Stand) -> bool| {
            let turns = round.turns.iter();
            turns.filter(|turn| what(&turn.stand)).count()
        };
        Self {
            total: round.turns.len(),
            updated: count(&|it| *it == Stand::Updated),
            updating: count(&is_on_its_way),
            failing: count(&|it| matches!(it, Stand::Failing(_))),
            not_ready: round.turns.iter().filter(|it| is_away(it)).count(),
        }
    }
}

fn is_away(turn: &Turn<'_>) -> bool {
    turn.stand != Stand::New && !turn.node.ready && !turn.node.has_leave()
}

fn is_on_its_way(stand: &Stand) -> bool {
    matches!(
        stand,
        Stand::New
            | Stand::Moving
            | Stand::Next
            | Stand::Removal(Removal::Next | Removal::Granted(_))
    )
}

/// The status of the pool; `trouble` says why nobody can go on, if nobody can. Times are not set here.
pub fn status(
    pool: &WindowsPool,
    target: Option<&Grant>,
    round: &Round<'_>,
    trouble: Option<&Trouble>,
) -> WindowsPoolStatus {
    let counts = Counts::of(round);
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    WindowsPoolStatus {
        version: target.map(|it| it.version.clone()).unwrap_or_default(),
        nodes: WindowsNodeCounts {
            total: number(counts.total),
            updated: number(counts.updated),
            updating: number(counts.updating),
            failing: number(counts.failing),
        },
        updating: round.updating.clone(),
        conditions: vec![
            upgradeable(trouble, round),
            updating(pool, round, counts),
            degraded(pool, round, trouble),
        ],
        ..WindowsPoolStatus::default()
    }
}

/// The condition of a pool whose nodes are left to another operator.
pub fn idle(coexistence: Coexistence) -> Condition {
    told(
        condition::IDLE,
        true,
        coexistence.reason(),
        coexistence.message(Half::Windows),
    )
}

impl Round<'_> {
    /// Why nodes stay at what they run, by the first of all reasons, with who they are.
    pub fn refusal(&self) -> Option<Trouble> {
        let refused = |turn: &Turn<'_>| match &turn.stand {
            Stand::Refused(trouble) => Some(trouble.clone()),
            _ => None,
        };
        let first = self.turns.iter().find_map(refused)?;
        let same = |turn: &&Turn<'_>| refused(turn).is_some_and(|it| it.category == first.category);
        let count = self.turns.iter().filter(same).count();
        let names = listed(self.turns.iter().filter(same), count, |it| {
            it.node.name.clone()
        });
        Some(Trouble {
            category: first.category,
            note: format!("{names}: {}", first.note),
        })
    }
}

fn upgradeable(trouble: Option<&Trouble>, round: &Round<'_>) -> Condition {
    // One whose machine nobody lists says nothing about the version.
    let refusal = round.refusal().filter(|it| it.category != NOT_LISTED);
    match trouble.or(refusal.as_ref()) {
        Some(trouble) => told(
            condition::UPGRADEABLE,
            false,
            trouble.category,
            trouble.note.as_str(),
        ),
        None => told(condition::UPGRADEABLE, true, "AsExpected", ""),
    }
}

fn updating(pool: &WindowsPool, round: &Round<'_>, counts: Counts) -> Condition {
    let kind = condition::UPDATING;
    let moves = counts.updating > 0;
    let moving = round.turns.iter().filter(|it| is_on_its_way(&it.stand));
    let moving = listed(moving, counts.updating, |it| it.node.name.clone());
    let waits = |turn: &&Turn<'_>| {
        matches!(
            turn.stand,
            Stand::Waits(_) | Stand::Stopped | Stand::Removal(Removal::Waits(_))
        )
    };
    let first = round.turns.iter().find(waits);
    let is_stopped = round.turns.iter().any(|it| it.stand == Stand::Stopped);
    let refused = round.refusal();
    match first {
        _ if round.turns.is_empty() => told(kind, false, "NoNodes", "there is no node of ours"),
        Some(_) if is_stopped => {
            let why = round.stopped.as_deref().unwrap_or_default();
            let note = format!("no other node begins while nodes fail: {why}");
            told(kind, moves, "Stopped", note)
        }
        Some(_) if pool.allowance.paused => {
            told(kind, moves, "Paused", "spec.paused is true: no node begins")
        }
        _ if moves => {
            let note = format!("at most {} at once; on their way: {moving}", round.limit);
            told(kind, true, "RollingOut", note)
        }
        Some(first) => {
            let note = format!("{} {}", first.node.name, first.stand);
            told(kind, false, "Waiting", note)
        }
        None => match refused {
            Some(refusal) => told(kind, false, refusal.category, refusal.note),
            None => told(kind, false, "Done", ""),
        },
    }
}

fn degraded(pool: &WindowsPool, round: &Round<'_>, trouble: Option<&Trouble>) -> Condition {
    let kind = condition::DEGRADED;
    if let Some(trouble) = trouble {
        return told(kind, true, trouble.category, trouble.note.as_str());
    }
    if !pool.problems.is_empty() {
        let problems: Vec<_> = pool.problems.iter().map(ToString::to_string).collect();
        return told(kind, true, "InvalidPool", problems.join("; "));
    }
    match &round.stopped {
        Some(why) => told(kind, true, "NodesFailing", why.as_str()),
        None => told(kind, false, "AsExpected", ""),
    }
}

/// The first few, and how many there are more.
fn listed<'t>(
    turns: impl Iterator<Item = &'t Turn<'t>>,
    count: usize,
    name: impl Fn(&Turn<'_>) -> String,
) -> String {
    let named: Vec<_> = turns.take(NAMES).map(name).collect();
    match count.saturating_sub(named.len()) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}
