//! When a window opens, as its owner writes it: days first, then the time of day. What the time means is for whoever
//! knows the time zone.

use jiff::civil::{Date, Time, Weekday};

/// What would be right, for people.
const CURE: &str = "write days and a time, for example \"Sat 22:00\", \"Mon-Fri 01:30\", \"daily 22:00\", \"2nd Tuesday 03:00\", \"1st,15th 04:00\" or \"last day 23:00\"";

/// Days, and a time of day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Schedule {
    days: Days,
    /// The time of day.
    pub(super) time: Time,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Days {
    Every,
    OfWeek(Vec<Weekday>),
    OfMonth(Vec<Ordinal>),
    /// The first, second, …, last of each of these days in a month.
    WeekdaysOfMonth(Vec<Ordinal>, Vec<Weekday>),
}

/// Which one, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ordinal {
    Number(i8),
    Last,
}

impl Schedule {
    /// Reads a schedule.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let lower = text.to_lowercase();
        let words: Vec<&str> = lower.split_whitespace().collect();
        let read = words.split_last().and_then(|(time, days)| {
            let (days, time) = (Days::read(days)?, time_of_day(time)?);
            Some(Self { days, time })
        });
        read.ok_or_else(|| format!("{text:?} is not a schedule: {CURE}"))
    }

    /// Whether a window opens on that day.
    pub(super) fn is_on(&self, date: Date) -> bool {
        let is_one_of = |weekdays: &[Weekday]| weekdays.contains(&date.weekday());
        match &self.days {
            Days::Every => true,
            Days::OfWeek(weekdays) => is_one_of(weekdays),
            Days::OfMonth(ordinals) => ordinals.iter().any(|it| match it {
                Ordinal::Number(number) => date.day() == *number,
                Ordinal::Last => date.day() == date.days_in_month(),
            }),
            Days::WeekdaysOfMonth(ordinals, weekdays) => {
                is_one_of(weekdays)
                    && ordinals.iter().any(|it| match it {
                        Ordinal::Number(number) => (date.day() - 1) / 7 + 1 == *number,
                        Ordinal::Last => date.day() + 7 > date.days_in_month(),
                    })
            }
        }
    }
}

impl Days {
    fn read(words: &[&str]) -> Option<Self> {
        match words {
            ["daily"] => Some(Self::Every),
            [days] => match list(days, ordinal) {
                // "last" alone may be meant of anything.
                Some(ordinals) if ordinals.contains(&Ordinal::Last) => None,
                Some(ordinals) => Some(Self::OfMonth(ordinals)),
                None => weekdays(days).map(Self::OfWeek),
            },
            [ordinals, "day"] => list(ordinals, ordinal).map(Self::OfMonth),
            [ordinals, days] => {
                let ordinals = list(ordinals, ordinal)?;
                // No day of the week is in a month six times.
                let fits = |it: &Ordinal| matches!(it, Ordinal::Last | Ordinal::Number(1..=5));
                let days = weekdays(days).filter(|_| ordinals.iter().all(fits))?;
                Some(Self::WeekdaysOfMonth(ordinals, days))
            }
            _ => None,
        }
    }
}

/// The parts between commas, each read; nothing if one of them makes no sense.
fn list<T>(text: &str, read: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    text.split(',').map(read).collect()
}

/// `last`, or `1st` to `31st`.
fn ordinal(text: &str) -> Option<Ordinal> {
    if text == "last" {
        return Some(Ordinal::Last);
    }
    let (digits, ending) = text.split_at_checked(text.len().checked_sub(2)?)?;
    let is_number = !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit());
    let number: i8 = digits.parse().ok().filter(|_| is_number)?;
    let right = match number {
        11..=13 => "th",
        _ => match number % 10 {
            1 => "st",
            2 => "nd",
            3 => "rd",
            _ => "th",
        },
    };
    ((1..=31).contains(&number) && ending == right).then_some(Ordinal::Number(number))
}

/// Days of the week and ranges of them, with commas between.
fn weekdays(text: &str) -> Option<Vec<Weekday>> {
    let all = list(text, |part| match part.split_once('-') {
        None => Some(vec![weekday(part)?]),
        Some((first, last)) => {
            let (first, last) = (weekday(first)?, weekday(last)?);
            let days = usize::try_from(first.until(last)).ok()?;
            Some(first.cycle_forward().take(days + 1).collect())
        }
    });
    Some(all?.concat())
}

/// A day of the week, by its name or the first three letters of it.
fn weekday(text: &str) -> Option<Weekday> {
    let all = [
        ("monday", Weekday::Monday),
        ("tuesday", Weekday::Tuesday),
        ("wednesday", Weekday::Wednesday),
        ("thursday", Weekday::Thursday),
        ("friday", Weekday::Friday),
        ("saturday", Weekday::Saturday),
        ("sunday", Weekday::Sunday),
    ];
    let found = all.into_iter().find(|(name, _)| {
        let short = name.get(..3).unwrap_or_default();
        text == *name || text == short
    });
    found.map(|(_, day)| day)
}

/// `HH:MM`, from 00:00 to 23:59.
fn time_of_day(text: &str) -> Option<Time> {
    let (hour, minute) = text.split_once(':')?;
    let number = |text: &str, lengths: std::ops::RangeInclusive<usize>| -> Option<i8> {
        let is_number = text.bytes().all(|it| it.is_ascii_digit());
        let fits = is_number && lengths.contains(&text.len());
        text.parse().ok().filter(|_| fits)
    };
    Time::new(number(hour, 1..=2)?, number(minute, 2..=2)?, 0, 0).ok()
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan;
    use jiff::civil::date;

    use super::*;

    /// The days from the 1st of that month on that a schedule names.
    fn days(schedule: &str, year: i16, month: i8, count: usize) -> Vec<String> {
        let schedule = Schedule::read(schedule).unwrap();
        let all = date(year, month, 1).series(1.day());
        let named = all.filter(|it| schedule.is_on(*it)).take(count);
        named.map(|it| it.to_string()).collect()
    }

    /// Covers T01.
    #[test]
    fn days_are_every_day_or_those_of_the_week_the_month_or_both() {
        for (schedule, year, month, expected) in [
            ("daily 22:00", 2026, 2, "2026-02-01 2026-02-02 2026-02-03"),
            ("Sat 22:00", 2026, 11, "2026-11-07 2026-11-14 2026-11-21"),
            (
                "saturday,SUN 9:30",
                2026,
                11,
                "2026-11-01 2026-11-07 2026-11-08",
            ),
            (
                "Fri-Mon 01:00",
                2026,
                11,
                "2026-11-01 2026-11-02 2026-11-06",
            ),
            (
                "Mon-Mon 01:00",
                2026,
                11,
                "2026-11-02 2026-11-09 2026-11-16",
            ),
            (
                "2nd Tuesday 03:00",
                2026,
                11,
                "2026-11-10 2026-12-08 2027-01-12",
            ),
            (
                "1st,3rd Wed 03:00",
                2026,
                11,
                "2026-11-04 2026-11-18 2026-12-02",
            ),
            (
                "last Friday 03:00",
                2026,
                11,
                "2026-11-27 2026-12-25 2027-01-29",
            ),
            (
                "5th Fri 03:00",
                2026,
                11,
                "2027-01-29 2027-04-30 2027-07-30",
            ),
            ("1st 00:00", 2026, 11, "2026-11-01 2026-12-01 2027-01-01"),
            (
                "1st,15th 04:00",
                2026,
                11,
                "2026-11-01 2026-11-15 2026-12-01",
            ),
            ("31st 04:00", 2026, 11, "2026-12-31 2027-01-31 2027-03-31"),
            ("29th 04:00", 2027, 2, "2027-03-29 2027-04-29 2027-05-29"),
            (
                "last day 04:00",
                2028,
                2,
                "2028-02-29 2028-03-31 2028-04-30",
            ),
            (
                "last day 04:00",
                2027,
                2,
                "2027-02-28 2027-03-31 2027-04-30",
            ),
            (
                "1st,last day 04:00",
                2027,
                2,
                "2027-02-01 2027-02-28 2027-03-01",
            ),
        ] {
            assert_eq!(
                days(schedule, year, month, 3).join(" "),
                expected,
                "{schedule}"
            );
        }
    }

    #[test]
    fn what_is_no_schedule_is_refused_with_what_would_be_one() {
        for text in [
            "",
            "Sat",
            "22:00",
            "Sat 24:00",
            "Sat 22:60",
            "Sat 22",
            "Sat 22:0",
            "Sat 10pm",
            "Sat 022:00",
            "Sat +2:00",
            "Sut 22:00",
            "Satur 22:00",
            "Sat, 22:00",
            "Sat-22:00",
            "Mon- 22:00",
            "last 22:00",
            "0th 22:00",
            "32nd 22:00",
            "2th 22:00",
            "6th Tue 22:00",
            "2nd 2nd 22:00",
            "2 Tuesday 22:00",
            "daily Sat 22:00",
            "2nd Tue day 22:00",
            "é 22:00",
            "0 22 * * 6",
        ] {
            let refused = Schedule::read(text).unwrap_err();
            assert!(
                refused.starts_with(&format!("{text:?} is not a schedule: write")),
                "{refused}"
            );
        }
    }
}
