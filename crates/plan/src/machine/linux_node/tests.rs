use std::collections::BTreeMap;

use evenkeel_api::names::annotation;

use super::Report;
use crate::machine::disruption::{Disruption, UnitAction};
use crate::machine::phase::{AgentSnapshot, Drain, Failed, OnDrift, Phase, Reason, Wanted};
use crate::machine::problem::MachineProblem;
use crate::machine::record::{BootId, Record};
use crate::machine::resource::Resource;
use crate::machine::{ChangeAction, Plan, PlannedChange};

const OLD: &str = "rendered-worker-1";
const NEW: &str = "rendered-worker-2";

fn plan(resource: Resource, actions: &[UnitAction]) -> Plan {
    Plan {
        changes: vec![PlannedChange {
            resource,
            action: ChangeAction::Update,
            why: "contents differ".to_owned(),
            disruption: Disruption::None,
            policy: None,
        }],
        steps: Vec::new(),
        actions: actions.to_vec(),
        record: Record::default(),
        warnings: Vec::new(),
        beyond: Vec::new(),
    }
}

fn file(actions: &[UnitAction]) -> Plan {
    plan(Resource::File("/etc/a".to_owned()), actions)
}

fn at_rest() -> AgentSnapshot<'static> {
    AgentSnapshot {
        current: Some(OLD),
        settled: true,
        awaits_boot: false,
        wanted: Wanted::AsItIs,
        drift: &[],
        lasting: &[],
        on_drift: OnDrift::Degrade,
        forced: false,
        failed: None,
        drain: Drain::default(),
    }
}

fn towards(plan: &Plan) -> AgentSnapshot<'_> {
    AgentSnapshot {
        wanted: Wanted::Planned { name: NEW, plan },
        ..at_rest()
    }
}

#[test]
fn a_node_of_nobody_says_nothing() {
    let snapshot = AgentSnapshot {
        current: None,
        ..at_rest()
    };
    let phase = Phase::next(&snapshot);
    assert_eq!(phase, Phase::Unmanaged);
    assert_eq!(Report::of(&phase, &snapshot), None);
}

#[test]
fn an_update_is_applied_only_once_pods_have_left_if_it_needs_that() {
    let (quiet, loud) = (file(&[]), file(&[UnitAction::Drain, UnitAction::Reboot]));
    let apply = |phase: &Phase| matches!(phase, Phase::Apply { target, .. } if target == NEW);
    assert!(apply(&Phase::next(&towards(&quiet))));
    let (asked, other, away) = (
        Drain::request(NEW),
        Drain::request(OLD),
        Drain::release(NEW),
    );
    for (drain, granted) in [
        (Drain::default(), false),
        (
            Drain {
                asked: Some(&asked),
                applied: None,
            },
            false,
        ),
        (
            Drain {
                asked: Some(&asked),
                applied: Some(&other),
            },
            false,
        ),
        (
            Drain {
                asked: Some(&away),
                applied: Some(&asked),
            },
            false,
        ),
        (
            Drain {
                asked: Some(&asked),
                applied: Some(&asked),
            },
            true,
        ),
    ] {
        let snapshot = AgentSnapshot {
            drain,
            ..towards(&loud)
        };
        let phase = Phase::next(&snapshot);
        assert_eq!(apply(&phase), granted, "{drain:?}");
        if !granted {
            let report = Report::of(&phase, &snapshot).unwrap();
            assert_eq!(report.drain.as_deref(), Some(asked.as_str()));
            assert!(
                report
                    .reason
                    .contains("update file /etc/a (contents differ); needs: drain, reboot"),
                "{}",
                report.reason
            );
        }
    }
}

#[test]
fn drift_stops_an_update_unless_it_may_be_healed_or_is_forced() {
    let drift: Vec<_> = (0..5)
        .map(|number| format!("file /etc/{number}: contents differ"))
        .collect();
    let quiet = file(&[]);
    let snapshot = AgentSnapshot {
        drift: &drift,
        ..towards(&quiet)
    };
    let Phase::Degraded(reason) = Phase::next(&snapshot) else {
        panic!("drift was overlooked");
    };
    assert_eq!(reason.category, "ConfigDrift");
    assert!(
        reason.text.starts_with(
            "not as rendered-worker-1 declares: file /etc/0: contents differ; file /etc/1: \
             contents differ; file /etc/2: contents differ; and 2 more: put it back"
        ),
        "{}",
        reason.text
    );
    let healing = AgentSnapshot {
        on_drift: OnDrift::Heal,
        ..snapshot.clone()
    };
    assert!(matches!(Phase::next(&healing), Phase::Heal { .. }));
    let forced = AgentSnapshot {
        forced: true,
        ..snapshot
    };
    assert!(matches!(Phase::next(&forced), Phase::Apply { .. }));
}

#[test]
fn a_boot_comes_before_everything_else_and_currents_name_waits_for_it() {
    let quiet = file(&[]);
    let snapshot = AgentSnapshot {
        awaits_boot: true,
        ..towards(&quiet)
    };
    let phase = Phase::next(&snapshot);
    assert_eq!(phase, Phase::Reboot);
    assert_eq!(Report::of(&phase, &snapshot).unwrap().current, None);
}

#[test]
fn an_operating_system_that_cannot_be_staged_is_refused_before_anything_is_asked() {
    let reboot = [UnitAction::Drain, UnitAction::Reboot];
    let staged = plan(Resource::OsImage, &reboot);
    assert!(matches!(
        Phase::next(&towards(&staged)),
        Phase::AwaitDrain { .. }
    ));
    let problem = MachineProblem::new(
        "os image",
        "",
        "is a, should be b, but there is no rpm-ostree",
    );
    let beyond = Plan {
        beyond: vec![problem],
        ..staged
    };
    let Phase::Degraded(reason) = Phase::next(&towards(&beyond)) else {
        panic!("it was taken for possible");
    };
    assert_eq!(reason.category, "OsChangeUnsupported");
    assert!(
        reason.text.contains("os image: is a, should be b, but"),
        "{}",
        reason.text
    );
}

#[test]
fn what_cannot_be_put_back_degrades_a_node_that_heals_as_well() {
    let lasting = ["os image: a is booted, should be b".to_owned()];
    let quiet = file(&[]);
    for on_drift in [OnDrift::Degrade, OnDrift::Heal] {
        for wanted in [
            Wanted::AsItIs,
            Wanted::Planned {
                name: NEW,
                plan: &quiet,
            },
        ] {
            let snapshot = AgentSnapshot {
                lasting: &lasting,
                on_drift,
                wanted,
                ..at_rest()
            };
            let Phase::Degraded(reason) = Phase::next(&snapshot) else {
                panic!("it was overlooked");
            };
            assert!(reason.text.contains(&lasting[0]), "{}", reason.text);
        }
    }
    let forced = AgentSnapshot {
        lasting: &lasting,
        forced: true,
        ..towards(&quiet)
    };
    assert!(matches!(Phase::next(&forced), Phase::Apply { .. }));
}

#[test]
fn pods_come_back_when_all_is_done_and_only_if_they_were_asked_to_leave() {
    for (asked, expected) in [
        (None, None),
        (
            Some("drain-rendered-worker-1"),
            Some("uncordon-rendered-worker-1"),
        ),
        // Asked for on the way to another one that was taken back.
        (
            Some("drain-rendered-worker-9"),
            Some("uncordon-rendered-worker-1"),
        ),
        (Some("uncordon-rendered-worker-1"), None),
    ] {
        let snapshot = AgentSnapshot {
            drain: Drain {
                asked,
                applied: None,
            },
            ..at_rest()
        };
        let report = Report::of(&Phase::next(&snapshot), &snapshot).unwrap();
        assert_eq!(report.drain.as_deref(), expected, "{asked:?}");
    }
}

#[test]
fn a_degraded_node_holds_nobody_up_unless_it_may_still_boot_or_tries_again_soon() {
    let reason = Reason::new("Failed", "the disk is full");
    let drift = ["file /etc/a: contents differ".to_owned()];
    let failed = |tries| {
        Some(Failed {
            reason: &reason,
            tries,
        })
    };
    let held = AgentSnapshot {
        drain: Drain {
            asked: Some("drain-rendered-worker-2"),
            applied: Some("drain-rendered-worker-2"),
        },
        ..at_rest()
    };
    let loud = file(&[UnitAction::Drain, UnitAction::Reboot]);
    let wanted = Wanted::Planned {
        name: NEW,
        plan: &loud,
    };
    let back = Some("uncordon-rendered-worker-2");
    for (what, snapshot, expected) in [
        (
            "its configuration went away",
            AgentSnapshot {
                wanted: Wanted::Unfit(Reason::missing(NEW)),
                ..held.clone()
            },
            back,
        ),
        (
            "it drifted while pods left",
            AgentSnapshot {
                wanted,
                drift: &drift,
                ..held.clone()
            },
            back,
        ),
        (
            "it failed once",
            AgentSnapshot {
                failed: failed(1),
                ..held.clone()
            },
            None,
        ),
        (
            "it failed over and over",
            AgentSnapshot {
                failed: failed(4),
                ..held.clone()
            },
            back,
        ),
        (
            "it failed over and over to boot",
            AgentSnapshot {
                failed: failed(9),
                awaits_boot: true,
                ..held.clone()
            },
            None,
        ),
        (
            "nobody knows what it is at",
            AgentSnapshot {
                failed: failed(9),
                settled: false,
                current: None,
                ..held.clone()
            },
            None,
        ),
        (
            "it never asked",
            AgentSnapshot {
                failed: failed(9),
                drain: Drain::default(),
                ..held.clone()
            },
            None,
        ),
    ] {
        let phase = Phase::next(&snapshot);
        assert!(matches!(phase, Phase::Degraded(_)), "{what}: {phase:?}");
        let report = Report::of(&phase, &snapshot).unwrap();
        assert_eq!(report.drain.as_deref(), expected, "{what}");
    }
}

#[test]
fn only_what_is_not_said_already_is_written() {
    let snapshot = at_rest();
    let report = Report::of(&Phase::next(&snapshot), &snapshot).unwrap();
    let mut annotations = BTreeMap::new();
    let first = report.changes(&annotations);
    assert_eq!(
        first,
        BTreeMap::from([
            (annotation::CURRENT_CONFIG, OLD),
            (annotation::STATE, "Done")
        ])
    );
    for (name, value) in first {
        annotations.insert(name.to_owned(), value.to_owned());
    }
    assert!(report.changes(&annotations).is_empty());
    annotations.insert(annotation::REASON.to_owned(), "old news".to_owned());
    assert_eq!(
        report.changes(&annotations),
        BTreeMap::from([(annotation::REASON, "")])
    );
}

#[test]
fn what_the_operator_says_of_a_long_drain_stays_while_pods_are_waited_for() {
    let plan = file(&[UnitAction::Drain, UnitAction::Reboot]);
    let snapshot = towards(&plan);
    let phase = Phase::next(&snapshot);
    let report = Report::of(&phase, &snapshot).unwrap();
    let mut annotations = BTreeMap::new();
    for (name, value) in report.changes(&BTreeMap::new()) {
        annotations.insert(name.to_owned(), value.to_owned());
    }
    assert!(
        annotations[annotation::REASON].starts_with("waiting for the drain before the update to")
    );
    let late = "the drain takes longer than 1h: a/b".to_owned();
    annotations.insert(annotation::REASON.to_owned(), late.clone());
    assert!(!report.changes(&annotations).is_empty());
    annotations.insert(annotation::DRAIN_OVERDUE.to_owned(), late);
    assert!(report.changes(&annotations).is_empty());
}

#[test]
fn only_what_can_be_an_objects_name_is_looked_for() {
    for name in ["rendered-worker-1", "a", "a.b-c.d1"] {
        assert_eq!(Reason::misnamed(name), None, "{name}");
    }
    let long = "a".repeat(254);
    for name in [
        "",
        "A",
        "-a",
        "a-",
        "a..b",
        "a/b",
        "../nodes/x",
        "a?b",
        "a b",
        "ä",
        &long,
    ] {
        assert!(Reason::misnamed(name).is_some(), "{name}");
    }
}

#[test]
fn a_plan_that_needs_a_boot_remembers_in_which_one_it_was_carried_out() {
    let boot = BootId("one".to_owned());
    let quiet = file(&[]).carried_out_in(boot.clone());
    assert!(!quiet.record.awaits_boot(&boot));
    let loud = quiet.forced().carried_out_in(boot.clone());
    assert_eq!(loud.actions, [UnitAction::Drain, UnitAction::Reboot]);
    assert!(loud.record.awaits_boot(&boot));
    assert!(!loud.record.awaits_boot(&BootId("two".to_owned())));
}
