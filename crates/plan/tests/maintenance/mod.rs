//! When windows open and freezes end, across summer time, leap years and each other.
#![allow(clippy::unwrap_used)] // In a test, a panic is the report.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_api::field::Field;
use evenkeel_plan::fleet::field_problem::FieldProblem;
use evenkeel_plan::fleet::maintenance::{Closed, FrozenPart};
use evenkeel_plan::fleet::policy::{PolicyLookup, RolloutPolicy};
use evenkeel_plan::fleet::pool::Pool;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fleet::calendar::any_calendar;

fn policy(spec: Value) -> RolloutPolicy {
    RolloutPolicy::read(&Field::from(spec))
}

fn window(schedule: &str, duration: &str, timezone: &str) -> RolloutPolicy {
    let window = json!({ "schedule": schedule, "duration": duration, "timezone": timezone });
    let policy = policy(json!({ "windows": [window] }));
    assert_eq!(policy.problems, []);
    policy
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// The next openings after a moment, each from when to when.
fn openings(policy: &RolloutPolicy, now: &str, count: usize) -> Vec<String> {
    let openings = policy.calendar.openings(at(now), count).into_iter();
    openings
        .map(|it| format!("{} {}", it.span.from, it.span.to))
        .collect()
}

/// Covers T01.
#[test]
fn a_window_opens_at_its_local_time_whatever_summer_time_does() {
    // Prague goes from UTC+1 to UTC+2 on 29 March 2026 at 2:00, and back on 25 October at 3:00.
    let prague = |schedule, duration| window(schedule, duration, "Europe/Prague");
    assert_eq!(
        openings(&prague("Sat 22:00", "6h"), "2026-03-20T00:00:00Z", 3),
        [
            "2026-03-21T21:00:00Z 2026-03-22T03:00:00Z",
            // The night in which an hour is missing: six hours pass all the same.
            "2026-03-28T21:00:00Z 2026-03-29T03:00:00Z",
            "2026-04-04T20:00:00Z 2026-04-05T02:00:00Z",
        ]
    );
    // 2:30 is not there on 29 March: it is 3:30 then.
    assert_eq!(
        openings(&prague("daily 02:30", "1h"), "2026-03-28T12:00:00Z", 2),
        [
            "2026-03-29T01:30:00Z 2026-03-29T02:30:00Z",
            "2026-03-30T00:30:00Z 2026-03-30T01:30:00Z",
        ]
    );
    // 2:30 comes twice on 25 October: the window opens once, the first time.
    assert_eq!(
        openings(&prague("daily 02:30", "1h"), "2026-10-24T12:00:00Z", 2),
        [
            "2026-10-25T00:30:00Z 2026-10-25T01:30:00Z",
            "2026-10-26T01:30:00Z 2026-10-26T02:30:00Z",
        ]
    );
    // A day later by its own calendar than by that of UTC.
    assert_eq!(
        openings(
            &window("1st 00:30", "30m", "Pacific/Kiritimati"),
            "2026-11-15T00:00:00Z",
            1
        ),
        ["2026-11-30T10:30:00Z 2026-11-30T11:00:00Z"]
    );
    assert_eq!(
        openings(
            &window("29th 04:00", "1h", "UTC"),
            "2027-01-30T00:00:00Z",
            2
        ),
        [
            "2027-03-29T04:00:00Z 2027-03-29T05:00:00Z",
            "2027-04-29T04:00:00Z 2027-04-29T05:00:00Z",
        ]
    );
    assert_eq!(
        openings(
            &window("last day 04:00", "1h", "UTC"),
            "2028-02-01T00:00:00Z",
            1
        ),
        ["2028-02-29T04:00:00Z 2028-02-29T05:00:00Z"]
    );
}

/// Covers T01.
#[test]
fn a_freeze_takes_windows_away_and_a_node_begins_after_it() {
    let policy = policy(json!({
        "windows": [{ "schedule": "daily 22:00", "duration": "4h", "timezone": "Europe/Prague" }],
        "freezes": [
            // Whole days in Prague, the last one with them.
            { "from": "2026-12-20", "to": "2027-01-02", "timezone": "Europe/Prague" },
            { "from": "2027-01-04T23:00:00+01:00", "to": "2027-01-05T00:00", "timezone": "Europe/Prague" },
        ],
    }));
    assert_eq!(policy.problems, []);
    let closed = |now: &str| policy.calendar.closed(at(now));
    let opens = |text: &str| Some(at(text));
    assert_eq!(closed("2026-12-19T22:30:00Z"), None);
    // It began on the 19th; midnight is the beginning of the freeze.
    let after = Closed::Freeze {
        opens: opens("2027-01-02T23:00:00Z"),
    };
    assert_eq!(closed("2026-12-19T23:00:00Z"), Some(after));
    assert_eq!(closed("2027-01-02T22:59:59Z"), Some(after));
    assert_eq!(
        closed("2027-01-02T23:00:00Z"),
        None,
        "the window of the evening before"
    );
    let evening = Closed::Window {
        opens: opens("2027-01-03T21:00:00Z"),
    };
    assert_eq!(closed("2027-01-03T01:00:00Z"), Some(evening));
    assert_eq!(
        evening.to_string(),
        "no maintenance window is open: the next window opens at 2027-01-03T21:00:00Z"
    );
    let next = |now: &str| policy.calendar.next_change(at(now));
    assert_eq!(next("2026-12-19T22:30:00Z"), opens("2026-12-19T23:00:00Z"));
    assert_eq!(next("2027-01-04T21:30:00Z"), opens("2027-01-04T22:00:00Z"));
    assert_eq!(next("2027-01-04T22:00:00Z"), opens("2027-01-04T23:00:00Z"));
    assert_eq!(next("2027-01-04T23:00:00Z"), opens("2027-01-05T01:00:00Z"));
    let frozen = policy.calendar.openings(at("2026-12-18T12:00:00Z"), 4);
    let frozen: Vec<_> = frozen.iter().map(|it| it.frozen).collect();
    assert_eq!(
        frozen,
        [
            FrozenPart::None,
            FrozenPart::Some,
            FrozenPart::All,
            FrozenPart::All
        ]
    );
}

#[test]
fn a_calendar_may_be_always_open_or_never_again() {
    let now = at("2026-11-19T12:00:00Z");
    let always = policy(json!({}));
    assert_eq!(
        (
            always.calendar.closed(now),
            always.calendar.next_change(now)
        ),
        (None, None)
    );
    let without_end = window("daily 00:00", "48h", "UTC");
    assert_eq!(
        (
            without_end.calendar.closed(now),
            without_end.calendar.next_change(now)
        ),
        (None, None)
    );
    let only_frozen = policy(json!({ "freezes": [{ "from": "2026-12-20", "to": "2026-12-31" }] }));
    assert_eq!(
        only_frozen.calendar.next_change(now),
        Some(at("2026-12-20T00:00:00Z"))
    );
    let frozen = at("2026-12-24T00:00:00Z");
    assert_eq!(
        only_frozen.calendar.next_change(frozen),
        Some(at("2027-01-01T00:00:00Z"))
    );
    assert_eq!(only_frozen.calendar.openings(now, 10), []);
    // Adjacent windows are one to whoever begins.
    let all_night = policy(json!({ "windows": [
        { "schedule": "daily 22:00", "duration": "2h" }, { "schedule": "daily 00:00", "duration": "2h" },
    ] }));
    let late = at("2026-11-19T23:00:00Z");
    assert_eq!(
        all_night.calendar.next_change(late),
        Some(at("2026-11-20T02:00:00Z"))
    );
}

/// Covers T01.
#[test]
fn what_makes_no_sense_is_named_by_its_field_with_the_cure() {
    let wrong = policy(json!({
        "windows": [
            { "schedule": "Sut 22:00", "duration": "6 hours", "timezone": "Europe/Praha" },
            { "duration": "800h" },
            "Sat 22:00",
            { "schedule": 22, "duration": "0s" },
        ],
        "freezes": [
            { "from": "2026-12-20", "to": "2026-12-19" },
            { "from": "Christmas" },
        ],
    }));
    let told: Vec<String> = wrong.problems.iter().map(FieldProblem::to_string).collect();
    insta::assert_snapshot!(told.join("\n"), @r#"
    spec.windows[0].schedule: "Sut 22:00" is not a schedule: write days and a time, for example "Sat 22:00", "Mon-Fri 01:30", "daily 22:00", "2nd Tuesday 03:00", "1st,15th 04:00" or "last day 23:00"
    spec.windows[0].duration: "6 hours" is not a duration: write for example 10s, 5m or 1h30m
    spec.windows[0].timezone: "Europe/Praha" is not a time zone: write an IANA name such as Europe/Prague, or UTC
    spec.windows[1].schedule: it is missing: write for example "Sat 22:00"
    spec.windows[1].duration: "800h" is longer than a month: write at most 744h, or leave the windows out to allow any time
    spec.windows[2]: "Sat 22:00" is not an object with fields
    spec.windows[3].schedule: 22 is not a schedule: write for example "Sat 22:00"
    spec.windows[3].duration: "0s" is no time at all: write for example 6h
    spec.freezes[0].to: it is not after from: write a later time
    spec.freezes[1].from: "Christmas" is not a time: write for example "2026-12-20", "2026-12-20T18:00" or "2026-12-20T18:00:00Z"
    spec.freezes[1].to: it is missing: write for example "2026-12-20"
    "#);
    for (spec, field) in [
        (json!(null), "spec"),
        (json!("x"), "spec"),
        (json!({ "windows": "Sat 22:00" }), "spec.windows"),
    ] {
        assert_eq!(policy(spec).problems[0].field, field);
    }
}

fn pool(annotations: &[(&str, &str)]) -> Pool {
    let named =
        |(name, value): &(&str, &str)| (format!("evenkeel.dev/{name}"), (*value).to_owned());
    let annotations: BTreeMap<_, _> = annotations.iter().map(named).collect();
    Pool::read(
        "worker",
        &annotations,
        &serde_json::from_value(json!({ "nodeSelector": {} })).unwrap(),
    )
}

/// Covers T01.
#[test]
fn a_policy_that_is_missing_or_invalid_holds_the_pool_and_an_override_says_who_and_why() {
    let now = at("2026-11-19T12:00:00Z");
    let nights = window("daily 22:00", "30m", "UTC");
    let broken = policy(json!({ "windows": [{ "schedule": "never", "duration": "1h" }] }));
    let found = |name: &str| match name {
        "nights" => PolicyLookup::Found(&nights),
        "broken" => PolicyLookup::Found(&broken),
        _ => PolicyLookup::Missing,
    };
    let held = |annotations: &[(&str, &str)]| {
        let pool = pool(annotations);
        let policy = found(pool.policy.name.as_deref().unwrap_or_default());
        let pool = pool.held_to(policy, now);
        (
            pool.budget.closed,
            FieldProblem::listed(&pool.problems).unwrap_or_default(),
        )
    };
    assert_eq!(held(&[]), (None, String::new()));
    let evening = Some(Closed::Window {
        opens: Some(at("2026-11-19T22:00:00Z")),
    });
    assert_eq!(
        held(&[("rollout-policy", "nights")]),
        (evening, String::new())
    );
    let (closed, why) = held(&[("rollout-policy", "days")]);
    assert_eq!(closed, Some(Closed::Policy));
    assert_eq!(
        why,
        "metadata.annotations evenkeel.dev/rollout-policy: RolloutPolicy days does not exist, so no node may start: create it, or name another one"
    );
    // Nobody knows what a broken one would allow: no override lifts that.
    let by_jane = ("rollout-override", "jane: CVE-2026-1234");
    let (closed, why) = held(&[("rollout-policy", "broken"), by_jane]);
    assert_eq!(closed, Some(Closed::Policy));
    assert!(why.contains("RolloutPolicy broken is not valid, so no node may start: spec.windows[0].schedule: \"never\" is not a schedule"), "{why}");
    assert_eq!(
        held(&[("rollout-policy", "nights"), by_jane]),
        (None, String::new())
    );
    let notice = pool(&[("rollout-policy", "nights"), by_jane])
        .policy
        .notice();
    assert_eq!(
        notice.as_deref(),
        Some(
            "jane overrides the maintenance windows and freezes: CVE-2026-1234 (RolloutPolicy nights)"
        )
    );
    for nobody in ["", "true", "jane:", ": CVE-2026-1234"] {
        let (closed, why) = held(&[("rollout-policy", "nights"), ("rollout-override", nobody)]);
        assert_eq!(closed, evening, "{nobody}");
        assert!(why.contains("it must say who and why"), "{why}");
    }
    let unread = pool(&[("rollout-policy", "nights")]).held_to(PolicyLookup::Unread, now);
    assert_eq!(
        (unread.budget.closed, unread.problems),
        (Some(Closed::Unread), Vec::new())
    );
    assert_eq!(
        nights.short_windows(Duration::from_hours(1)).as_deref(),
        Some(
            "windows are shorter than the drain timeout of 1h, so a node that starts in one may still be disrupted after it: \"daily 22:00\" for 30m"
        )
    );
    assert_eq!(nights.short_windows(Duration::from_mins(30)), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Covers T01.
    #[test]
    fn a_calendar_is_open_when_a_person_reckons_so_and_knows_its_next_change(
        calendar in any_calendar(),
        seconds in 0..730 * 86_400i64,
        samples in prop::collection::vec(any::<i64>(), 40),
    ) {
        let policy = policy(calendar.spec());
        prop_assert_eq!(&policy.problems, &[]);
        let now = at("2026-01-01T00:00:00Z") + SignedDuration::from_secs(seconds);
        let is_open = |now: Timestamp| policy.calendar.closed(now).is_none();
        prop_assert_eq!(is_open(now), calendar.is_open(now));
        let change = policy.calendar.next_change(now);
        let until = change.unwrap_or(now + SignedDuration::from_hours(24 * 400));
        let length = until.as_second() - now.as_second();
        for sample in samples {
            let between = now + SignedDuration::from_secs(sample.rem_euclid(length));
            prop_assert_eq!(calendar.is_open(between), is_open(now), "at {}", between);
        }
        if let Some(change) = change {
            prop_assert!(change > now);
            prop_assert_ne!(calendar.is_open(change), is_open(now), "at {}", change);
        }
    }
}
