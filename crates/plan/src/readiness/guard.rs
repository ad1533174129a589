//! The storm guard: what is done about silence, and whose pods are evicted, when much is wrong at
//! once. Bad evidence does not come here: it taints at once, however many nodes it hits.

use std::collections::BTreeMap;
use std::time::Duration;

use super::time::Moment;

/// How careful the guard is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// A zone with this share of its nodes in trouble, in percent, is disturbed.
    pub disturbed: u32,
    /// So few nodes in trouble disturb nothing.
    pub few: u32,
    /// The time between two taints for silence in a disturbed zone.
    pub silence_pause: Duration,
    /// How long a zone that was quiet still counts as such: who was cut off comes back one by one.
    pub cool_down: Duration,
    /// The time between two nodes of a zone whose pods are evicted.
    pub eviction_pause: Duration,
    /// The same in a disturbed zone of more than `small` nodes; smaller ones wait until it is over.
    pub slow_eviction_pause: Duration,
    /// A zone with no more nodes than this is small.
    pub small: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            disturbed: 55,
            few: 2,
            silence_pause: Duration::from_secs(1),
            cool_down: Duration::from_secs(30),
            eviction_pause: Duration::from_secs(10),
            slow_eviction_pause: Duration::from_secs(100),
            small: 50,
        }
    }
}

/// Nodes of a zone that a rule selects, counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZoneCounts {
    /// All of them.
    pub nodes: u32,
    /// Those of which something was not heard for half of its time, or longer.
    pub quiet: u32,
    /// Those that are held.
    pub held: u32,
    /// Those that fell silent and are not held yet.
    pub held_back: u32,
}

/// How a zone is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZoneState {
    /// As it should be, or nearly.
    Normal,
    /// Most of it is in trouble.
    Disturbed,
}

#[derive(Debug, Default)]
struct Zone {
    counts: ZoneCounts,
    /// Until when it counts as quiet, though not much of it is.
    quiet_until: Moment,
    /// When the next taint for silence may come, if the zone is disturbed.
    silence_from: Moment,
    /// When pods of the last node were granted to be evicted.
    evicted_at: Option<Moment>,
}

/// What is remembered of zones.
#[derive(Debug, Default)]
pub(super) struct Guard {
    limits: Limits,
    zones: BTreeMap<Box<str>, Zone>,
}

/// What a node counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "any of the four may hold without the others, and each is counted by itself"
)]
pub(super) struct Class {
    pub(super) governed: bool,
    pub(super) quiet: bool,
    pub(super) held: bool,
    pub(super) held_back: bool,
}

impl Guard {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            zones: BTreeMap::new(),
        }
    }

    /// A node of a zone counts as something else now.
    pub(super) fn count(&mut self, zone: &str, before: Class, after: Class, now: Moment) {
        if before == after {
            return;
        }
        // Before and after: the last one that is heard again ends it, too.
        self.take_note_of_quiet(zone, now);
        let counts = &mut self.zones.entry(zone.into()).or_default().counts;
        for (before, after, count) in [
            (before.governed, after.governed, &mut counts.nodes),
            (before.quiet, after.quiet, &mut counts.quiet),
            (before.held, after.held, &mut counts.held),
            (before.held_back, after.held_back, &mut counts.held_back),
        ] {
            *count = count
                .saturating_add(u32::from(after))
                .saturating_sub(u32::from(before));
        }
        if counts.nodes == 0 {
            self.zones.remove(zone);
        }
        self.take_note_of_quiet(zone, now);
    }

    fn take_note_of_quiet(&mut self, zone: &str, now: Moment) {
        let until = now + self.limits.cool_down;
        let Some(counts) = self.zones.get(zone).map(|it| it.counts) else {
            return;
        };
        let is_quiet = self.state(counts.quiet, counts) == ZoneState::Disturbed;
        if let Some(zone) = self.zones.get_mut(zone).filter(|_| is_quiet) {
            zone.quiet_until = until;
        }
    }

    /// All zones, with how each is.
    pub(super) fn zones(&self) -> impl Iterator<Item = (&str, ZoneCounts, ZoneState)> {
        self.zones.iter().map(|(name, zone)| {
            let troubled = zone.counts.quiet.max(zone.counts.held);
            (&**name, zone.counts, self.state(troubled, zone.counts))
        })
    }

    fn state(&self, troubled: u32, counts: ZoneCounts) -> ZoneState {
        let is_most = u64::from(troubled) * 100
            >= u64::from(self.limits.disturbed) * u64::from(counts.nodes.max(1));
        if troubled > self.limits.few && is_most {
            ZoneState::Disturbed
        } else {
            ZoneState::Normal
        }
    }

    /// Whether so much of a zone is quiet that silence may not be the nodes' own.
    pub(super) fn is_quiet(&self, zone: &str, now: Moment) -> bool {
        self.zones.get(zone).is_some_and(|zone| {
            now < zone.quiet_until
                || self.state(zone.counts.quiet, zone.counts) == ZoneState::Disturbed
        })
    }

    /// Whether a node of the zone may be tainted for silence now; else from when on.
    pub(super) fn allows_silence(&mut self, zone: &str, now: Moment) -> Result<(), Moment> {
        let is_quiet = self.is_quiet(zone, now);
        let pause = self.limits.silence_pause;
        let Some(zone) = self.zones.get_mut(zone) else {
            return Ok(());
        };
        if !is_quiet {
            return Ok(());
        }
        if now < zone.silence_from {
            return Err(zone.silence_from);
        }
        zone.silence_from = now + pause;
        Ok(())
    }

    /// Whether most of everything is held.
    fn is_all_disturbed(&self) -> bool {
        let all =
            |count: fn(&ZoneCounts) -> u32| self.zones.values().map(|it| count(&it.counts)).sum();
        let counts = ZoneCounts {
            nodes: all(|it| it.nodes),
            ..ZoneCounts::default()
        };
        self.state(all(|it| it.held), counts) == ZoneState::Disturbed
    }

    /// What is limited in a zone that is disturbed, for people.
    pub(super) fn limits_of(&self, counts: ZoneCounts) -> String {
        let limits = self.limits;
        let is_held = self.state(counts.held, counts) == ZoneState::Disturbed;
        let evictions = if self.is_all_disturbed() {
            "no evictions while most nodes of all zones are not ready".to_owned()
        } else if !is_held {
            format!("evictions from one node every {:?}", limits.eviction_pause)
        } else if counts.nodes <= limits.small {
            format!("no evictions in a zone of up to {} nodes", limits.small)
        } else {
            let pause = limits.slow_eviction_pause;
            format!("evictions from one node every {pause:?}")
        };
        format!(
            "one taint for silence every {:?}, {evictions}",
            limits.silence_pause
        )
    }

    /// Whether pods of one more node of the zone may be evicted now; else from when on, if ever.
    pub(super) fn allows_eviction(
        &mut self,
        zone: &str,
        now: Moment,
    ) -> Result<(), Option<Moment>> {
        if self.is_all_disturbed() {
            return Err(None);
        }
        let limits = self.limits;
        let Some(counts) = self.zones.get(zone).map(|it| it.counts) else {
            return Err(None);
        };
        let pause = match self.state(counts.held, counts) {
            ZoneState::Normal => limits.eviction_pause,
            ZoneState::Disturbed if counts.nodes > limits.small => limits.slow_eviction_pause,
            ZoneState::Disturbed => return Err(None),
        };
        let Some(zone) = self.zones.get_mut(zone) else {
            return Err(None);
        };
        match zone.evicted_at {
            Some(at) if now < at + pause => Err(Some(at + pause)),
            _ => {
                zone.evicted_at = Some(now);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    fn zone(guard: &mut Guard, name: &str, nodes: u32, troubled: u32) {
        for number in 0..nodes {
            let trouble = number < troubled;
            let class = Class {
                governed: true,
                quiet: trouble,
                held: trouble,
                held_back: false,
            };
            guard.count(name, Class::default(), class, at(0));
        }
    }

    #[test]
    fn evictions_slow_down_in_a_disturbed_zone_and_stop_when_all_are() {
        let mut guard = Guard::new(Limits::default());
        zone(&mut guard, "a", 100, 60);
        zone(&mut guard, "b", 100, 1);
        assert_eq!(guard.allows_eviction("b", at(0)), Ok(()));
        assert_eq!(guard.allows_eviction("b", at(1)), Err(Some(at(10))));
        assert_eq!(guard.allows_eviction("b", at(10)), Ok(()));
        assert_eq!(guard.allows_eviction("a", at(0)), Ok(()));
        assert_eq!(guard.allows_eviction("a", at(10)), Err(Some(at(100))));
        zone(&mut guard, "c", 100, 100);
        zone(&mut guard, "d", 20, 20);
        assert_eq!(guard.allows_eviction("b", at(50)), Err(None), "181 of 320");
        zone(&mut guard, "e", 100, 0);
        assert_eq!(guard.allows_eviction("d", at(50)), Err(None), "small");
        assert_eq!(guard.allows_eviction("b", at(50)), Ok(()));
    }

    #[test]
    fn one_node_of_two_is_no_storm_and_silence_of_most_is_taken_one_by_one() {
        let mut guard = Guard::new(Limits::default());
        zone(&mut guard, "", 2, 2);
        assert_eq!(guard.allows_eviction("", at(0)), Ok(()));
        assert_eq!(guard.allows_silence("", at(0)), Ok(()));
        assert_eq!(guard.allows_silence("", at(0)), Ok(()));
        zone(&mut guard, "", 2, 2);
        assert_eq!(guard.allows_silence("", at(1)), Ok(()));
        assert_eq!(guard.allows_silence("", at(1)), Err(at(2)));
        assert_eq!(guard.allows_silence("", at(2)), Ok(()));
    }
}
