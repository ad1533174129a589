//! One maintenance window, which comes back, and one freeze, which does not.

use std::time::Duration;

use evenkeel_api::duration;
use evenkeel_api::field::Field;
use evenkeel_api::fleet::rollout_policy::{FreezeSpec, WindowSpec};
use jiff::civil::{Date, DateTime};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};

use super::schedule::Schedule;
use crate::fleet::field_problem::FieldProblem;

/// The longest window: the longest month.
const LONGEST: Duration = Duration::from_hours(744);
/// For how many days the next opening is looked for: 29 February may be eight years away.
const HORIZON: usize = 9 * 366;

/// A maintenance window, which comes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaintenanceWindow {
    /// Its schedule, as its owner wrote it.
    pub schedule: String,
    /// How long it is open, as its owner wrote it.
    pub lasts: String,
    /// How long it is open. That is time that passes: the change to summer time makes no window longer or shorter.
    pub duration: Duration,
    /// Its time zone.
    pub timezone: TimeZone,
    when: Schedule,
}

/// From one moment to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// When it begins.
    pub from: Timestamp,
    /// The first moment after it.
    pub to: Timestamp,
}

impl Span {
    /// Whether that moment is in it.
    pub fn has(self, moment: Timestamp) -> bool {
        self.from <= moment && moment < self.to
    }
}

impl MaintenanceWindow {
    /// Reads a window; each problem is named by the field below `place`.
    pub(super) fn read(
        place: &str,
        spec: &WindowSpec,
        problems: &mut Vec<FieldProblem>,
    ) -> Option<Self> {
        let mut problem = |field: &str, message: String| {
            problems.push(FieldProblem {
                field: format!("{place}.{field}"),
                message,
            });
        };
        let when = match &spec.schedule {
            Field::Valid(text) => Schedule::read(text).map(|it| (it, text.clone())),
            Field::Absent => Err("it is missing: write for example \"Sat 22:00\"".to_owned()),
            Field::Invalid { found, .. } => Err(format!(
                "{found} is not a schedule: write for example \"Sat 22:00\""
            )),
        };
        let lasts = match &spec.duration {
            Field::Valid(text) => duration::parse(text).and_then(|it| match it {
                Duration::ZERO => Err(format!("{text:?} is no time at all: write for example 6h")),
                it if it > LONGEST => Err(format!("{text:?} is longer than a month: write at most 744h, or leave the windows out to allow any time")),
                it => Ok((it, text.clone())),
            }),
            Field::Absent => Err("it is missing: write for example 6h".to_owned()),
            Field::Invalid { found, .. } => Err(format!("{found} is not a duration: write for example 6h")),
        };
        let when = when.map_err(|it| problem("schedule", it)).ok();
        let lasts = lasts.map_err(|it| problem("duration", it)).ok();
        let timezone = timezone(&spec.timezone)
            .map_err(|it| problem("timezone", it))
            .ok();
        let ((when, schedule), (duration, lasts)) = (when?, lasts?);
        Some(Self {
            schedule,
            lasts,
            duration,
            timezone: timezone?,
            when,
        })
    }

    /// When it opens on that day, if it does. A time that the change to summer time leaves out is as much later; of one
    /// that comes twice it is the first.
    fn on(&self, date: Date) -> Option<Span> {
        if !self.when.is_on(date) {
            return None;
        }
        let time = date.to_datetime(self.when.time);
        let from = self
            .timezone
            .to_ambiguous_timestamp(time)
            .compatible()
            .ok()?;
        let to = from
            .checked_add(SignedDuration::try_from(self.duration).ok()?)
            .ok()?;
        Some(Span { from, to })
    }

    /// The first time that it opens after `moment`; never, if not in years.
    pub fn next(&self, moment: Timestamp) -> Option<Span> {
        let mut date = self.timezone.to_datetime(moment).date();
        for _ in 0..HORIZON {
            if let Some(span) = self.on(date).filter(|it| it.from > moment) {
                return Some(span);
            }
            date = date.tomorrow().ok()?;
        }
        None
    }

    /// Since when and until when it is open, if it is open at `moment`. Of several that overlap that is the last one.
    pub fn open_at(&self, moment: Timestamp) -> Option<Span> {
        let mut date = self.timezone.to_datetime(moment).date();
        // A day more for the longest day that there is.
        for _ in 0..=self.duration.as_secs() / 86_400 + 1 {
            if let Some(span) = self.on(date).filter(|it| it.from <= moment) {
                // Those before it are over earlier.
                return Some(span).filter(|it| it.has(moment));
            }
            date = date.yesterday().ok()?;
        }
        None
    }
}

/// Reads a freeze; each problem is named by the field below `place`.
pub(super) fn freeze(
    place: &str,
    spec: &FreezeSpec,
    problems: &mut Vec<FieldProblem>,
) -> Option<Span> {
    let before = problems.len();
    let mut problem = |field: &str, message: String| {
        problems.push(FieldProblem {
            field: format!("{place}.{field}"),
            message,
        });
    };
    let zone = timezone(&spec.timezone)
        .map_err(|it| problem("timezone", it))
        .ok();
    let mut read = |name: &str, field: &Field<String>, day: fn(Date) -> Option<Date>| {
        let read = match field {
            Field::Absent => Err("it is missing: write for example \"2026-12-20\"".to_owned()),
            Field::Valid(text) => moment(text, zone.as_ref()?, day).ok_or_else(|| refused(text)),
            Field::Invalid { found, .. } => Err(refused(found)),
        };
        read.map_err(|it| problem(name, it)).ok()
    };
    let from = read("from", &spec.from, Some);
    // A date is the last day of it.
    let to = read("to", &spec.to, |it| it.tomorrow().ok());
    let span = Span {
        from: from?,
        to: to?,
    };
    if span.from >= span.to {
        problem("to", "it is not after from: write a later time".to_owned());
    }
    (problems.len() == before).then_some(span)
}

fn refused(found: impl std::fmt::Debug) -> String {
    format!(
        "{found:?} is not a time: write for example \"2026-12-20\", \"2026-12-20T18:00\" or \"2026-12-20T18:00:00Z\""
    )
}

/// A moment as people write it: with its offset, or a time in `zone`, or the beginning of the `day` that a date means.
fn moment(text: &str, zone: &TimeZone, day: fn(Date) -> Option<Date>) -> Option<Timestamp> {
    if let Ok(moment) = text.parse() {
        return Some(moment);
    }
    let time = match text.len() {
        10 => day(text.parse().ok()?)?.to_datetime(jiff::civil::Time::midnight()),
        _ => text.parse::<DateTime>().ok()?,
    };
    zone.to_ambiguous_timestamp(time).compatible().ok()
}

/// The time zone of that name; UTC where there is none.
fn timezone(name: &Field<String>) -> Result<TimeZone, String> {
    let refused = |name: String| {
        format!("{name} is not a time zone: write an IANA name such as Europe/Prague, or UTC")
    };
    match name {
        Field::Absent => Ok(TimeZone::UTC),
        // The one that comes with the program, whatever the machine has.
        Field::Valid(name) => TimeZoneDatabase::bundled()
            .get(name)
            .map_err(|_| refused(format!("{name:?}"))),
        Field::Invalid { found, .. } => Err(refused(found.to_string())),
    }
}
