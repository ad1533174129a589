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
    /// Takes note of a Lease, and says whether its holder is alive. `now` is our clock, `at` the time since we
    /// began, which no one sets back.
    pub fn is_alive(&mut self, name: &str, sight: Sight<'_>, now: Timestamp, at: Duration) -> bool {
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
        sight.holder.is_some_and(|it| !it.is_empty()) && seen.counts(lasts, now, at)
    }
}

impl Seen {
    fn counts(&self, lasts: Duration, now: Timestamp, at: Duration) -> bool {
        match (self.changed, self.renewed) {
            (Some(changed), _) => at.saturating_sub(changed) < lasts,
            (None, Some(renewed)) => {
                // A clock that is ahead is no reason to do its work.
                Duration::try_from(now.duration_since(renewed)).is_ok_and(|age| age < lasts)
                    || renewed > now
            }
            (None, None) => false,
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
            leases.is_alive(name, sight, now, Duration::from_secs(seconds))
        };
        let hour_ago = at("2026-01-01T11:00:00Z");
        assert!(!is_alive("a", hour_ago, 0), "left behind an hour ago");
        let renewed = at("2026-01-01T11:00:10Z");
        assert!(
            is_alive("a", renewed, 5),
            "its clock is an hour late, and it lives"
        );
        assert!(is_alive("a", renewed, 64));
        assert!(!is_alive("a", renewed, 65), "and does so no more");
        assert!(is_alive("b", at("2026-01-01T11:59:30Z"), 0));
        assert!(
            is_alive("c", at("2026-01-01T13:00:00Z"), 0),
            "a clock that is ahead"
        );
        assert!(!is_alive("d", None, 0));
        let nobodys = Sight {
            holder: Some(""),
            renewed: Some(now),
            lasts: None,
        };
        assert!(!leases.is_alive("e", nobodys, now, Duration::ZERO));
    }
}
