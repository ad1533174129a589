//! Whether another operator is alive, by the Leases of its leaders.
//!
//! It is alive while one of them is renewed. Two looks tell, by our own clock; before the second one, a
//! Lease counts by the time that is written on it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

/// How long a Lease lasts that does not say.
const LASTS: Duration = Duration::from_secs(137);

/// A Lease, as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sight<'a> {
    /// Who holds it.
    pub holder: Option<&'a str>,
    /// When it was renewed last, by its holder's clock.
    pub renewed: Option<Timestamp>,
    /// How long it lasts, if it says.
    pub lasts: Option<Duration>,
}

/// What is known of the Leases of another operator.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leases {
    seen: BTreeMap<String, Seen>,
}

/// A Lease, as it was when it last changed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    renewed: Option<Timestamp>,
    /// When we saw it change, by our own clock; not when it was there at our first look.
    changed: Option<Duration>,
}

impl Leases {
    /// Takes note of a Lease, and says how long its holder counts as alive if nothing more is heard of it; nothing if it
    /// does not. `now` is our clock, `at` the time since we began, which no one sets back.
    pub fn alive_for(
        &mut self,
        name: &str,
        sight: Sight<'_>,
        now: Timestamp,
        at: Duration,
    ) -> Option<Duration> {
        let lasts = sight.lasts.unwrap_or(LASTS);
        let first = Seen {
            renewed: sight.renewed,
            changed: None,
        };
        let seen = self.seen.entry(name.to_owned()).or_insert(first);
        if seen.renewed != sight.renewed {
            seen.renewed = sight.renewed;
            seen.changed = Some(at);
        }
        let is_held = sight.holder.is_some_and(|it| !it.is_empty());
        let left = seen.left(lasts, now, at).filter(|_| is_held);
        left.filter(|left| !left.is_zero())
    }

    /// Nobody could renew anything for a while: a Lease that is still there counts as renewed now.
    pub fn excuse(&mut self, name: &str, at: Duration) {
        if let Some(seen) = self.seen.get_mut(name) {
            seen.changed = Some(at);
        }
    }
}

impl Seen {
    /// How long it still lasts.
    fn left(&self, lasts: Duration, now: Timestamp, at: Duration) -> Option<Duration> {
        match (self.changed, self.renewed) {
            (Some(changed), _) => lasts.checked_sub(at.saturating_sub(changed)),
            (None, Some(renewed)) => match Duration::try_from(now.duration_since(renewed)) {
                Ok(age) => lasts.checked_sub(age),
                // A clock that is ahead is no reason to do its work.
                Err(_) => Some(lasts),
            },
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_while_it_is_renewed_by_whatever_clock() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let at = |text: &str| Some(text.parse::<Timestamp>().unwrap());
        let mut leases = Leases::default();
        let mut is_alive = |name: &str, renewed: Option<Timestamp>, seconds: u64| {
            let sight = Sight {
                holder: Some("theirs"),
                renewed,
                lasts: Some(Duration::from_mins(1)),
            };
            let left = leases.alive_for(name, sight, now, Duration::from_secs(seconds));
            left.map(|it| it.as_secs())
        };
        let hour_ago = at("2026-01-01T11:00:00Z");
        let left_behind = is_alive("a", hour_ago, 0);
        assert_eq!(left_behind, None, "left behind an hour ago");
        let renewed = at("2026-01-01T11:00:10Z");
        let late = is_alive("a", renewed, 5);
        assert_eq!(late, Some(60), "its clock is an hour late, and it lives");
        assert_eq!(is_alive("a", renewed, 64), Some(1));
        assert_eq!(is_alive("a", renewed, 65), None, "and does so no more");
        assert_eq!(is_alive("b", at("2026-01-01T11:59:30Z"), 0), Some(30));
        let ahead = is_alive("c", at("2026-01-01T13:00:00Z"), 0);
        assert_eq!(ahead, Some(60), "a clock that is ahead");
        assert_eq!(is_alive("d", None, 0), None);
        let nobodys = Sight {
            holder: Some(""),
            renewed: Some(now),
            lasts: None,
        };
        let left = leases.alive_for("e", nobodys, now, Duration::ZERO);
        assert_eq!(left, None);
    }

    #[test]
    fn whoever_could_not_renew_is_given_the_time_to_do_it() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let sight = Sight {
            holder: Some("theirs"),
            renewed: Some(now),
            lasts: Some(Duration::from_mins(1)),
        };
        let mut leases = Leases::default();
        let second = Duration::from_secs;
        let later = |seconds| now + second(seconds);
        assert_eq!(
            leases.alive_for("a", sight, now, second(0)),
            Some(second(60))
        );
        assert_eq!(leases.alive_for("a", sight, later(90), second(90)), None);
        leases.excuse("a", second(90));
        let left = leases.alive_for("a", sight, later(100), second(100));
        assert_eq!(left, Some(second(50)));
        assert_eq!(leases.alive_for("a", sight, later(150), second(150)), None);
    }
}
