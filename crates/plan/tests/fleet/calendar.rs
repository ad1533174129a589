//! Windows and freezes as a person reckons them, day by day on a calendar: it shares no code with the planner, and only
//! writes down what that reads.
#![allow(clippy::unwrap_used)] // In a test, a panic is the report.

use jiff::civil::{Date, Weekday};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan};
use proptest::prelude::*;
use serde_json::{Value, json};

const ZONES: [&str; 4] = [
    "UTC",
    "Europe/Prague",
    "America/New_York",
    "Australia/Lord_Howe",
];
const WEEK: [(&str, Weekday); 7] = [
    ("Mon", Weekday::Monday),
    ("Tuesday", Weekday::Tuesday),
    ("wed", Weekday::Wednesday),
    ("Thu", Weekday::Thursday),
    ("Friday", Weekday::Friday),
    ("SAT", Weekday::Saturday),
    ("Sun", Weekday::Sunday),
];

#[derive(Debug, Clone)]
pub(crate) struct Calendar {
    windows: Vec<Window>,
    /// First and last day, in UTC.
    freezes: Vec<(Date, Date)>,
}

#[derive(Debug, Clone)]
struct Window {
    days: Days,
    hour: i8,
    minute: i8,
    minutes: i64,
    zone: usize,
}

#[derive(Debug, Clone)]
enum Days {
    Daily,
    Weekday(usize),
    Nth(i8, usize),
    LastOf(usize),
    Day(i8),
    LastDay,
}

pub(crate) fn any_calendar() -> impl Strategy<Value = Calendar> {
    let days = prop_oneof![
        1 => Just(Days::Daily),
        4 => (0..7usize).prop_map(Days::Weekday),
        1 => (1..=5i8, 0..7usize).prop_map(|(nth, day)| Days::Nth(nth, day)),
        1 => (0..7usize).prop_map(Days::LastOf),
        1 => (1..=31i8).prop_map(Days::Day),
        1 => Just(Days::LastDay),
    ];
    let window = (days, 0..24i8, 0..60i8, 30..3_000i64, 0..ZONES.len());
    let window = window.prop_map(|(days, hour, minute, minutes, zone)| Window {
        days,
        hour,
        minute,
        minutes,
        zone,
    });
    let freeze = (0..700i64, 0..20i64).prop_map(|(from, days)| {
        let from = jiff::civil::date(2026, 1, 1).saturating_add(from.days());
        (from, from.saturating_add(days.days()))
    });
    let windows = prop::collection::vec(window, 1..4);
    let all = (windows, prop::collection::vec(freeze, 0..3));
    all.prop_map(|(windows, freezes)| Calendar { windows, freezes })
}

fn ending(number: i8) -> &'static str {
    match number {
        1 | 21 | 31 => "st",
        2 | 22 => "nd",
        3 | 23 => "rd",
        _ => "th",
    }
}

impl Calendar {
    /// The spec of a policy.
    pub(crate) fn spec(&self) -> Value {
        let windows = self.windows.iter().map(|it| {
            let days = match it.days {
                Days::Daily => "daily".to_owned(),
                Days::Weekday(day) => WEEK[day].0.to_owned(),
                Days::Nth(nth, day) => format!("{nth}{} {}", ending(nth), WEEK[day].0),
                Days::LastOf(day) => format!("last {}", WEEK[day].0),
                Days::Day(day) => format!("{day}{}", ending(day)),
                Days::LastDay => "last day".to_owned(),
            };
            json!({
                "schedule": format!("{days} {:02}:{:02}", it.hour, it.minute),
                "duration": format!("{}m", it.minutes),
                "timezone": ZONES[it.zone],
            })
        });
        let freezes = self.freezes.iter();
        let freezes =
            freezes.map(|(from, to)| json!({ "from": from.to_string(), "to": to.to_string() }));
        json!({ "windows": windows.collect::<Vec<_>>(), "freezes": freezes.collect::<Vec<_>>() })
    }

    /// Whether a node may begin.
    pub(crate) fn is_open(&self, now: Timestamp) -> bool {
        let day = TimeZone::UTC.to_datetime(now).date();
        let is_frozen = self
            .freezes
            .iter()
            .any(|(from, to)| (*from..=*to).contains(&day));
        !is_frozen && self.windows.iter().any(|it| it.is_open(now))
    }
}

impl Window {
    fn is_open(&self, now: Timestamp) -> bool {
        let zone = TimeZoneDatabase::bundled().get(ZONES[self.zone]).unwrap();
        let today = TimeZone::UTC.to_datetime(now).date();
        // Two days are the longest window here; a day more at each end for the zone.
        (-4..=1).any(|days: i64| {
            let date = today.saturating_add(days.days());
            let opened = date
                .at(self.hour, self.minute, 0, 0)
                .to_zoned(zone.clone())
                .unwrap()
                .timestamp();
            let seconds = now.as_second() - opened.as_second();
            self.is_on(date) && (0..self.minutes * 60).contains(&seconds)
        })
    }

    fn is_on(&self, date: Date) -> bool {
        let in_month = |step: i64| date.saturating_add(step.days()).month() == date.month();
        // How many of this day of the week there were in its month by then.
        let count = (0..5i8)
            .filter(|weeks| in_month(-7 * i64::from(*weeks)))
            .count();
        match self.days {
            Days::Daily => true,
            Days::Weekday(day) => date.weekday() == WEEK[day].1,
            Days::Nth(nth, day) => {
                date.weekday() == WEEK[day].1 && count == usize::try_from(nth).unwrap()
            }
            Days::LastOf(day) => date.weekday() == WEEK[day].1 && !in_month(7),
            Days::Day(day) => date.day() == day,
            Days::LastDay => !in_month(1),
        }
    }
}
