//! Beside OpenShift's own operators: whether one is on this cluster, whether it is alive, and whether its half of
//! the work is ours.
//!
//! One is on this cluster while its namespace is there; it is alive while a leader of it renews its Lease. Two looks
//! tell, by our own clock; before the second one, a Lease counts by the time that is written on it, and whoever
//! would take over watches it for as long as it lasts. A Lease that
//! lapsed, or that was given back, is an outage of theirs and no invitation: only the owner's word is one.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use evenkeel_api::notice::Notice;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// One of OpenShift's operators, and with it one half of our work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Half {
    /// The machine-config operator: pools and Linux nodes.
    MachineConfig,
    /// The Windows Machine Config Operator: Windows nodes.
    Windows,
}

impl Half {
    /// Both.
    pub const ALL: [Self; 2] = [Self::MachineConfig, Self::Windows];

    /// The word for it on the command line, in metrics and in documents.
    pub const fn word(self) -> &'static str {
        match self {
            Self::MachineConfig => "machine-config",
            Self::Windows => "windows",
        }
    }

    /// Whose work it is on OpenShift.
    pub const fn operator(self) -> &'static str {
        match self {
            Self::MachineConfig => "OpenShift's machine-config operator",
            Self::Windows => "OpenShift's Windows Machine Config Operator",
        }
    }

    /// What it is about.
    pub const fn subject(self) -> &'static str {
        match self {
            Self::MachineConfig => "pools and Linux nodes",
            Self::Windows => "Windows nodes",
        }
    }
}

impl fmt::Display for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Half {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|it| it.word() == text);
        found.ok_or_else(|| format!("cannot take over {text:?}: write machine-config or windows"))
    }
}

/// What was seen of one of OpenShift's operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Neither its namespace nor a lock of it is there.
    Absent,
    /// It is there, and nobody of it leads.
    Silent,
    /// It is there; a leader of it has its Lease, which is over by what is written on it, and was not watched for as long as it
    /// lasts.
    Unsure,
    /// A leader of it is alive.
    Alive,
}

impl Presence {
    /// How an operator is of which this `is_there`: the lock of older releases, which lives as long as the pod that holds
    /// it and is never renewed, or a leader's Lease; and for how long it is so, if nothing more is observed.
    pub fn of(is_there: bool, has_lock: bool, life: Life) -> (Self, Option<Duration>) {
        match life {
            _ if has_lock => (Self::Alive, None),
            Life::Alive(left) => (Self::Alive, Some(left)),
            Life::Unsure(left) => (Self::Unsure, Some(left)),
            Life::Gone if is_there => (Self::Silent, None),
            Life::Gone => (Self::Absent, None),
        }
    }
}

/// How we live with one of OpenShift's operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coexistence {
    /// It is not on this cluster: the work is ours.
    Absent,
    /// It is alive, and the work is its own.
    Alive,
    /// It is there and nobody of it leads: an outage of theirs, and still its own work.
    Lapsed,
    /// The owner wants us to take over, and its leader is still alive, or may be.
    Waiting,
    /// The owner wants us to take over, and nobody of it leads: the work is ours.
    TakenOver,
}

impl Coexistence {
    /// Decides, from what was seen and whether the owner says to take over.
    pub fn of(presence: Presence, take_over: bool) -> Self {
        match (presence, take_over) {
            (Presence::Absent, _) => Self::Absent,
            (Presence::Alive, false) => Self::Alive,
            (Presence::Alive | Presence::Unsure, true) => Self::Waiting,
            (Presence::Silent | Presence::Unsure, false) => Self::Lapsed,
            (Presence::Silent, true) => Self::TakenOver,
        }
    }

    /// Whether we leave that half of the work alone.
    pub const fn is_idle(self) -> bool {
        match self {
            Self::Alive | Self::Lapsed | Self::Waiting => true,
            Self::Absent | Self::TakenOver => false,
        }
    }

    /// All of them, as [`Coexistence::word`] says them.
    pub const ALL: [Self; 5] = [
        Self::Absent,
        Self::Alive,
        Self::Lapsed,
        Self::Waiting,
        Self::TakenOver,
    ];

    /// The word for it in metrics and in documents.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Alive => "alive",
            Self::Lapsed => "lapsed",
            Self::Waiting => "waiting",
            Self::TakenOver => "taken-over",
        }
    }

    /// The reason of its Event, and of its condition where the object is ours.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Absent => "OtherOperatorAbsent",
            Self::Alive => "OtherOperatorAlive",
            Self::Lapsed => "OtherOperatorLapsed",
            Self::Waiting => "TakeOverWaits",
            Self::TakenOver => "TookOver",
        }
    }

    /// What people should hear of it. A leader that no longer renews its Lease is an outage of theirs.
    pub fn notice(self, half: Half) -> Notice {
        let (category, message) = (self.reason(), self.message(half));
        match self {
            Self::Lapsed => Notice::warning(category, message),
            _ => Notice::normal(category, message),
        }
    }

    /// For people: who has that half of the work, why, and how to change that.
    pub fn message(self, half: Half) -> String {
        let (operator, subject) = (half.operator(), half.subject());
        let take_over = format!("--take-over={half}");
        match self {
            Self::Absent => {
                format!("{operator} is not on this cluster: Evenkeel manages {subject}")
            }
            Self::Alive => format!("{operator} is running: Evenkeel leaves {subject} to it"),
            Self::Lapsed => format!(
                "{operator} is installed, but its leader no longer renews its Lease: Evenkeel still leaves {subject} to it. \
                 To hand them to Evenkeel, start evenkeel-operator with {take_over}"
            ),
            Self::Waiting => format!(
                "{take_over} takes effect when {operator} is stopped and its leader's Lease has expired: until then Evenkeel leaves {subject} to it"
            ),
            Self::TakenOver => format!(
                "{operator} is installed but has no leader: Evenkeel manages {subject} because of {take_over}"
            ),
        }
    }
}

/// What the operator says on its own Lease about one of OpenShift's operators, for whoever asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoexistenceReport {
    /// The word for how we live with it.
    pub state: String,
    /// Whether we leave that half of the work alone.
    pub idle: bool,
    /// For people.
    pub message: String,
}

impl CoexistenceReport {
    /// What is said of `half`.
    pub fn of(half: Half, coexistence: Coexistence) -> Self {
        Self {
            state: coexistence.word().to_owned(),
            idle: coexistence.is_idle(),
            message: coexistence.message(half),
        }
    }

    /// How we live with it, if that is a word that we know.
    pub fn coexistence(&self) -> Option<Coexistence> {
        Coexistence::ALL
            .into_iter()
            .find(|it| it.word() == self.state)
    }
}

/// What the operator says of both halves, by [`Half::word`].
pub type CoexistenceReports = BTreeMap<String, CoexistenceReport>;

/// How long a Lease lasts that does not say.
const LASTS: Duration = Duration::from_secs(137);

/// A Lease, as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperatorSnapshot<'a> {
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
    seen: BTreeMap<String, ObservedOperator>,
}

/// A Lease, as it was when it last changed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ObservedOperator {
    renewed: Option<Timestamp>,
    /// When we saw it for the first time, by our own clock.
    since: Duration,
    /// When we saw it change; not when it was there at our first look.
    changed: Option<Duration>,
}

/// What a Lease says of its holder, and for how long if nothing more is heard of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Life {
    /// Nobody holds it, or whoever does is alive no more.
    Gone,
    /// It is over by what is written on it. Whether its holder's clock is right is known only after this time.
    Unsure(Duration),
    /// Its holder is alive.
    Alive(Duration),
}

impl Leases {
    /// Takes note of a Lease, and says what it tells. `now` is our clock, `at` the time since we began, which no one sets
    /// back.
    pub fn look(
        &mut self,
        name: &str,
        snapshot: OperatorSnapshot<'_>,
        now: Timestamp,
        at: Duration,
    ) -> Life {
        let lasts = snapshot.lasts.unwrap_or(LASTS);
        let first = ObservedOperator {
            renewed: snapshot.renewed,
            since: at,
            changed: None,
        };
        let seen = self.seen.entry(name.to_owned()).or_insert(first);
        if seen.renewed != snapshot.renewed {
            seen.renewed = snapshot.renewed;
            seen.changed = Some(at);
        }
        if snapshot.holder.is_none_or(str::is_empty) {
            return Life::Gone;
        }
        let some = |left: Option<Duration>| left.filter(|left| !left.is_zero());
        if let Some(left) = some(seen.left(lasts, now, at)) {
            return Life::Alive(left);
        }
        let watched_for = at.saturating_sub(seen.since);
        match some(lasts.checked_sub(watched_for)) {
            Some(left) if seen.changed.is_none() => Life::Unsure(left),
            _ => Life::Gone,
        }
    }

    /// Nobody could renew anything for a while: a Lease that is still there counts as renewed now.
    pub fn excuse(&mut self, name: &str, at: Duration) {
        if let Some(seen) = self.seen.get_mut(name) {
            seen.changed = Some(at);
        }
    }
}

impl ObservedOperator {
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

    /// Covers O03.
    #[test]
    fn only_the_owners_word_ends_idleness_and_only_once_their_leader_is_gone() {
        use Coexistence::{Absent, Alive, Lapsed, TakenOver, Waiting};
        for (presence, take_over, expected, is_idle) in [
            (Presence::Absent, false, Absent, false),
            (Presence::Absent, true, Absent, false),
            (Presence::Alive, false, Alive, true),
            (Presence::Silent, false, Lapsed, true),
            (Presence::Unsure, false, Lapsed, true),
            (Presence::Unsure, true, Waiting, true),
            (Presence::Alive, true, Waiting, true),
            (Presence::Silent, true, TakenOver, false),
        ] {
            let decided = Coexistence::of(presence, take_over);
            assert_eq!((decided, decided.is_idle()), (expected, is_idle));
        }
        let lapsed = Lapsed.message(Half::MachineConfig);
        assert!(lapsed.ends_with("start evenkeel-operator with --take-over=machine-config"));
        let waiting = Waiting.message(Half::Windows);
        assert!(waiting.starts_with("--take-over=windows takes effect when OpenShift's Windows"));
    }

    #[test]
    fn what_can_be_taken_over_has_two_words() {
        assert_eq!("machine-config".parse(), Ok(Half::MachineConfig));
        assert_eq!("windows".parse(), Ok(Half::Windows));
        let said = "all".parse::<Half>();
        let said = said.map_err(|it| it.contains("write machine-config or windows"));
        assert_eq!(said, Err(true));
    }

    fn seconds(life: Life) -> (&'static str, u64) {
        match life {
            Life::Alive(left) => ("alive", left.as_secs()),
            Life::Unsure(left) => ("unsure", left.as_secs()),
            Life::Gone => ("gone", 0),
        }
    }

    /// Covers O03.
    #[test]
    fn a_lease_counts_while_it_is_renewed_by_whatever_clock() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let at = |text: &str| Some(text.parse::<Timestamp>().unwrap());
        let mut leases = Leases::default();
        let mut look = |name: &str, renewed: Option<Timestamp>, second: u64| {
            let snapshot = OperatorSnapshot {
                holder: Some("theirs"),
                renewed,
                lasts: Some(Duration::from_mins(1)),
            };
            seconds(leases.look(name, snapshot, now, Duration::from_secs(second)))
        };
        let hour_ago = at("2026-01-01T11:00:00Z");
        let left_behind = look("a", hour_ago, 0);
        assert_eq!(
            left_behind,
            ("unsure", 60),
            "left behind an hour ago, or its clock is late"
        );
        let renewed = at("2026-01-01T11:00:10Z");
        let late = look("a", renewed, 5);
        assert_eq!(
            late,
            ("alive", 60),
            "its clock is an hour late, and it lives"
        );
        assert_eq!(look("a", renewed, 64), ("alive", 1));
        assert_eq!(look("a", renewed, 65), ("gone", 0), "and does so no more");
        assert_eq!(look("b", hour_ago, 10), ("unsure", 60));
        assert_eq!(look("b", hour_ago, 69), ("unsure", 1));
        assert_eq!(
            look("b", hour_ago, 70),
            ("gone", 0),
            "it was watched for a minute"
        );
        assert_eq!(look("c", at("2026-01-01T11:59:30Z"), 0), ("alive", 30));
        let ahead = look("d", at("2026-01-01T13:00:00Z"), 0);
        assert_eq!(ahead, ("alive", 60), "a clock that is ahead");
        assert_eq!(look("e", None, 0), ("unsure", 60));
        for holder in [None, Some("")] {
            let nobodys = OperatorSnapshot {
                holder,
                renewed: Some(now),
                lasts: None,
            };
            assert_eq!(leases.look("f", nobodys, now, Duration::ZERO), Life::Gone);
        }
    }

    #[test]
    fn a_lock_of_an_older_release_counts_without_being_renewed() {
        let left = Duration::from_secs(5);
        for (is_there, has_lock, life, presence) in [
            (true, true, Life::Gone, (Presence::Alive, None)),
            (
                true,
                false,
                Life::Alive(left),
                (Presence::Alive, Some(left)),
            ),
            (
                true,
                false,
                Life::Unsure(left),
                (Presence::Unsure, Some(left)),
            ),
            (true, false, Life::Gone, (Presence::Silent, None)),
            (false, false, Life::Gone, (Presence::Absent, None)),
        ] {
            assert_eq!(Presence::of(is_there, has_lock, life), presence);
        }
    }

    #[test]
    fn whoever_could_not_renew_is_given_the_time_to_do_it() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let snapshot = OperatorSnapshot {
            holder: Some("theirs"),
            renewed: Some(now),
            lasts: Some(Duration::from_mins(1)),
        };
        let mut leases = Leases::default();
        let second = Duration::from_secs;
        let mut look = |at: u64| seconds(leases.look("a", snapshot, now + second(at), second(at)));
        assert_eq!(look(0), ("alive", 60));
        assert_eq!(look(90), ("gone", 0));
        leases.excuse("a", second(90));
        let mut look = |at: u64| seconds(leases.look("a", snapshot, now + second(at), second(at)));
        assert_eq!(look(100), ("alive", 50));
        assert_eq!(look(150), ("gone", 0));
    }
}
