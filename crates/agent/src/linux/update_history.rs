//! What a node's updates came to, kept over its boots: the program that counts a reboot is gone when
//! the machine is up again. Nothing is decided by it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use evenkeel_plan::phase::Phase;
use serde::{Deserialize, Serialize};

/// A part of an update whose time is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stage {
    /// From when the new configuration was heard of: it is read, planned, and drift is healed.
    Prepare,
    /// From when pods are asked to leave until they have.
    Drain,
    /// What is written, reloaded and restarted.
    Apply,
    /// From when the machine is told to boot until it is verified.
    Reboot,
}

impl Stage {
    pub(crate) const ALL: [Self; 4] = [Self::Prepare, Self::Drain, Self::Apply, Self::Reboot];

    /// The label in metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Drain => "drain",
            Self::Apply => "apply",
            Self::Reboot => "reboot",
        }
    }

    /// The stage that `phase` is in; a node that waits for somebody is in none.
    fn of(phase: &Phase) -> Option<Self> {
        match phase {
            Phase::Unmanaged | Phase::Done { .. } | Phase::Degraded(_) => None,
            Phase::Heal { .. } => Some(Self::Prepare),
            Phase::AwaitDrain { .. } => Some(Self::Drain),
            Phase::Apply { .. } => Some(Self::Apply),
            Phase::Reboot => Some(Self::Reboot),
        }
    }
}

/// Counts, and the times of updates.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct UpdateHistory {
    /// Boots that a configuration waited for.
    pub(crate) reboots: u64,
    /// Times that pods were asked to leave.
    pub(crate) drains: u64,
    /// What the last update that came to its end took, in seconds.
    pub(crate) last: BTreeMap<Stage, f64>,
    /// The one on its way.
    under_way: Option<Update>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Update {
    target: String,
    took: BTreeMap<Stage, f64>,
    /// The stage it is in, and since when: seconds of the machine's clock, which goes on over a boot.
    stage: Option<(Stage, f64)>,
}

impl UpdateHistory {
    /// What [`UpdateHistory::text`] wrote; a new one from anything else.
    pub(crate) fn read(text: &[u8]) -> Self {
        serde_json::from_slice(text).unwrap_or_default()
    }

    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The node is going to `target` from now on, if it was not already.
    pub(crate) fn heads_for(&mut self, target: &str, now: SystemTime) {
        let known = self.under_way.as_ref();
        if known.is_none_or(|update| update.target != target) {
            self.under_way = Some(Update {
                target: target.to_owned(),
                took: BTreeMap::new(),
                stage: Some((Stage::Prepare, seconds(now))),
            });
        }
    }

    /// The node has come to `phase`. Says whether that is worth writing down: it should outlast the
    /// program.
    pub(crate) fn comes_to(&mut self, phase: &Phase, now: SystemTime) -> bool {
        let Some(update) = &mut self.under_way else {
            return false;
        };
        let (stage, now) = (Stage::of(phase), seconds(now));
        if update.stage.map(|(stage, _)| stage) != stage {
            if let Some((stage, since)) = update.stage {
                // A clock that was set back makes it short, not negative.
                *update.took.entry(stage).or_default() += (now - since).max(0.0);
            }
            update.stage = stage.map(|stage| (stage, now));
        } else if !matches!(phase, Phase::Done { .. }) {
            return false;
        }
        if let Phase::Done { config } = phase {
            let update = self.under_way.take().filter(|it| it.target == *config);
            return update.map(|it| self.last = it.took).is_some();
        }
        stage == Some(Stage::Reboot)
    }
}

fn seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or(Duration::ZERO).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn drain() -> Phase {
        Phase::AwaitDrain {
            target: "new".to_owned(),
            changes: String::new(),
        }
    }

    fn apply() -> Phase {
        Phase::Apply {
            target: "new".to_owned(),
            changes: String::new(),
        }
    }

    fn done() -> Phase {
        Phase::Done {
            config: "new".to_owned(),
        }
    }

    fn degraded() -> Phase {
        Phase::Degraded(evenkeel_plan::phase::Reason::missing("new"))
    }

    #[test]
    fn every_stage_has_its_time_also_over_a_boot() {
        let mut logbook = UpdateHistory::default();
        logbook.heads_for("new", at(100));
        logbook.heads_for("new", at(101));
        assert!(!logbook.comes_to(&drain(), at(102)));
        assert!(!logbook.comes_to(&drain(), at(104)));
        assert!(!logbook.comes_to(&apply(), at(110)));
        assert!(logbook.comes_to(&Phase::Reboot, at(111)));
        let mut logbook = UpdateHistory::read(logbook.text().as_bytes());
        assert!(logbook.comes_to(&done(), at(141)));
        let times = [
            (Stage::Prepare, 2.0),
            (Stage::Drain, 8.0),
            (Stage::Apply, 1.0),
            (Stage::Reboot, 30.0),
        ];
        assert_eq!(logbook.last, BTreeMap::from(times));
        assert!(!logbook.comes_to(&done(), at(150)), "it was over");
    }

    #[test]
    fn the_wait_for_somebody_is_no_stage_and_a_clock_set_back_takes_nothing_away() {
        let mut logbook = UpdateHistory::default();
        logbook.heads_for("new", at(100));
        logbook.comes_to(&drain(), at(100));
        logbook.comes_to(&degraded(), at(103));
        logbook.comes_to(&drain(), at(5000));
        logbook.comes_to(&apply(), at(4000));
        assert!(logbook.comes_to(&done(), at(4001)));
        let times = [
            (Stage::Prepare, 0.0),
            (Stage::Drain, 3.0),
            (Stage::Apply, 1.0),
        ];
        assert_eq!(logbook.last, BTreeMap::from(times));
    }

    #[test]
    fn an_update_that_was_taken_back_has_no_times() {
        let mut logbook = UpdateHistory::default();
        logbook.heads_for("newer", at(100));
        assert!(!logbook.comes_to(&done(), at(101)));
        assert!(logbook.last.is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_a_new_page() {
        for text in ["", "rubbish", "[]", "{\"reboots\":-1}"] {
            assert_eq!(
                UpdateHistory::read(text.as_bytes()),
                UpdateHistory::default(),
                "{text}"
            );
        }
        let older = UpdateHistory::read(br#"{"reboots":3,"untold":null}"#);
        assert_eq!((older.reboots, older.drains), (3, 0));
    }
}
