use proptest::prelude::*;
use proptest::sample::select;

use super::{Deployment, OsSnapshot, differences, edits, has_arrived, present, remaining, split};
use crate::machine::desired::{Contents, Desired};
use crate::machine::disruption::Disruption;
use crate::machine::entry::Entry;
use crate::machine::record::{BootId, Record};
use crate::machine::targets::Targets;
use crate::machine::{ChangeAction, MachineSnapshot, Plan, plan};

fn list(text: &str) -> Vec<String> {
    split(&[text])
}

fn deployment(image: &str, arguments: &str) -> Deployment {
    Deployment {
        image: (!image.is_empty()).then(|| image.to_owned()),
        arguments: list(arguments),
    }
}

fn wants(image: &str, arguments: &str) -> Desired {
    Desired {
        os_image_url: image.to_owned(),
        kernel_arguments: list(arguments),
        ..Desired::default()
    }
}

fn at(booted: &Deployment, next: &Deployment) -> OsSnapshot {
    OsSnapshot::Deployments {
        booted: booted.clone(),
        next: next.clone(),
        image_beyond: None,
        arguments_beyond: None,
    }
}

fn planned(desired: &Desired, snapshot: OsSnapshot, record: &Record) -> Plan {
    let seen = MachineSnapshot {
        os: Some(snapshot),
        ..MachineSnapshot::default()
    };
    let (none, contents) = (Targets::new(), Contents::default());
    plan(desired, &none, &contents, &seen, record).unwrap()
}

/// What the next boot brings once `plan` is carried out.
fn staged(plan: &Plan, mut next: Deployment) -> Deployment {
    for step in &plan.steps {
        match &step.after {
            Entry::Image { reference } => next.image = Some(reference.clone()),
            Entry::Arguments { arguments } => next.arguments.clone_from(arguments),
            other => panic!("{other:?} is nothing of the operating system"),
        }
    }
    next
}

#[test]
fn arguments_are_split_as_the_kernel_does_it() {
    assert_eq!(
        list(" quiet  dyndbg=\"file a.c +p; file b.c +p\" console=tty0\n"),
        [
            "quiet",
            "dyndbg=\"file a.c +p; file b.c +p\"",
            "console=tty0"
        ]
    );
    assert_eq!(split(&["a b", "", "c"]), ["a", "b", "c"]);
}

/// Covers M10.
#[test]
fn arguments_change_by_what_differs_in_order_and_as_often_as_declared() {
    for (from, to, delete, append) in [
        ("", "a b", "", "a b"),
        ("a b", "a b c", "", "c"),
        ("a b c", "a c", "b", ""),
        ("a", "a a", "", "a"),
        ("a a a", "a", "a a", ""),
        (
            "console=tty0 console=ttyS0",
            "console=ttyS0 console=tty0",
            "console=tty0 console=ttyS0",
            "console=ttyS0 console=tty0",
        ),
        ("a b", "b a", "a b", "b a"),
        ("a b", "b c", "a", "c"),
    ] {
        let edits = edits(&list(from), &list(to));
        assert_eq!(
            (edits.delete, edits.append),
            (list(delete), list(append)),
            "{from} to {to}"
        );
    }
}

fn any_arguments() -> impl Strategy<Value = Vec<String>> {
    let words = select(vec!["a", "b", "b=1", "b=2"]);
    prop::collection::vec(words.prop_map(str::to_owned), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Covers M10.
    #[test]
    fn edits_lead_exactly_there_and_are_needed_once(from in any_arguments(), to in any_arguments(), theirs in any_arguments()) {
        prop_assert_eq!(edits(&from, &to).made_to(&from), to.clone());
        // Among those of the machine itself, and taken up again at any time.
        let before: Vec<String> = theirs.iter().chain(&from).cloned().collect();
        let after = edits(&from, &to).made_to(&before);
        prop_assert_eq!(present(&to, &after), to.clone());
        prop_assert_eq!(after.len(), theirs.len() + to.len());
        prop_assert!(remaining(&after, &before, &after).is_empty());
        let done = remaining(&before, &before, &after).made_to(&before);
        prop_assert!(remaining(&done, &before, &after).is_empty());
        let undone = remaining(&after, &after, &before).made_to(&after);
        prop_assert!(remaining(&undone, &after, &before).is_empty());
        prop_assert_eq!(undone.len(), before.len());
    }

    /// Covers M10.
    #[test]
    fn a_plan_brings_the_operating_system_there_once_and_back_when_nothing_is_desired(
        machine in any_arguments(),
        configs in prop::collection::vec((select(vec!["", "os:1", "os:2"]), any_arguments()), 1..4),
    ) {
        let start = Deployment { image: Some("os:0".to_owned()), arguments: machine };
        let (mut booted, mut record) = (start.clone(), Record::default());
        for (image, arguments) in configs.iter().chain([&("", Vec::new())]) {
            let desired = wants(image, &arguments.join(" "));
            let plan = planned(&desired, at(&booted, &booted), &record);
            let next = staged(&plan, booted.clone());
            if !image.is_empty() {
                prop_assert_eq!(next.image.as_deref(), Some(*image));
            }
            prop_assert_eq!(&present(arguments, &next.arguments), arguments);
            let disrupts = if plan.changes.is_empty() { Disruption::None } else { Disruption::Reboot };
            prop_assert_eq!(plan.disruption(), disrupts);
            // Not yet booted, and booted: nothing is staged a second time.
            let again = planned(&desired, at(&booted, &next), &plan.record);
            prop_assert_eq!(again.steps, vec![]);
            let again = planned(&desired, at(&next, &next), &plan.record);
            prop_assert_eq!((again.steps, again.changes), (vec![], vec![]));
            prop_assert!(differences(&plan.record, &next).is_empty());
            (booted, record) = (next, plan.record);
        }
        prop_assert_eq!(record, Record::default());
        prop_assert_eq!(booted.image, start.image);
        let (mut left, mut had) = (booted.arguments, start.arguments);
        left.sort();
        had.sort();
        prop_assert_eq!(left, had);
    }
}

#[test]
fn what_the_machine_boots_already_is_adopted_without_a_step() {
    let booted = deployment("os:1", "root=x quiet quiet");
    let plan = planned(
        &wants("os:1", "quiet"),
        at(&booted, &booted),
        &Record::default(),
    );
    assert_eq!(
        (plan.steps, plan.changes, plan.actions),
        (vec![], vec![], vec![])
    );
    assert_eq!(plan.record.kernel_arguments_before, ["quiet"]);
    // And stays when nobody names it any more.
    let plan = planned(&Desired::default(), at(&booted, &booted), &plan.record);
    assert_eq!((plan.steps, plan.record), (vec![], Record::default()));
}

#[test]
fn what_only_the_next_boot_brings_needs_the_boot_and_nothing_staged() {
    let (booted, next) = (deployment("os:0", ""), deployment("os:1", "quiet"));
    let plan = planned(
        &wants("os:1", "quiet"),
        at(&booted, &next),
        &Record::default(),
    );
    assert_eq!(plan.steps, []);
    assert_eq!(plan.disruption(), Disruption::Reboot);
    let whys: Vec<_> = plan
        .changes
        .iter()
        .map(|change| change.why.as_str())
        .collect();
    assert_eq!(
        whys,
        [
            "is none, should be quiet, which the next boot brings",
            "is os:0, should be os:1, which the next boot brings"
        ]
    );
}

#[test]
fn what_somebody_else_staged_is_replaced() {
    let (booted, next) = (deployment("os:1", ""), deployment("os:9", ""));
    let record = Record {
        os_image_url: "os:1".to_owned(),
        os_image_before: Some("os:0".to_owned()),
        ..Record::default()
    };
    let plan = planned(&wants("os:1", ""), at(&booted, &next), &record);
    assert_eq!(
        plan.changes[0].why,
        "is os:1, but the next boot brings os:9"
    );
    assert_eq!(staged(&plan, next).image.as_deref(), Some("os:1"));
}

/// Covers M04, M10.
#[test]
fn what_cannot_be_staged_is_named_and_what_is_as_recorded_is_no_change() {
    let why = "there is neither rpm-ostree nor bootc".to_owned();
    let plan = planned(
        &wants("os:1", "quiet"),
        OsSnapshot::Beyond(why.clone()),
        &Record::default(),
    );
    let told = plan.refusal().unwrap().to_string();
    assert!(
        told.contains("os image: is none, should be os:1, but there is neither"),
        "{told}"
    );
    assert!(
        told.contains("kernel arguments: is none, should be quiet, but"),
        "{told}"
    );
    let plan = planned(
        &wants("os:1", "quiet"),
        OsSnapshot::Beyond(why.clone()),
        &plan.record,
    );
    assert_eq!((plan.refusal(), plan.changes), (None, vec![]));
    // An image alone can be staged.
    let booted = deployment("os:0", "");
    let snapshot = OsSnapshot::Deployments {
        booted: booted.clone(),
        next: booted,
        image_beyond: None,
        arguments_beyond: Some(why),
    };
    assert_eq!(
        planned(&wants("os:1", ""), snapshot.clone(), &Record::default()).refusal(),
        None
    );
    let told = planned(&wants("os:1", "quiet"), snapshot, &Record::default());
    let told = told.refusal().unwrap();
    assert_eq!(told.0.len(), 1, "{told}");
    assert_eq!(told.0[0].section, "kernel arguments");
}

#[test]
fn an_image_that_had_no_name_is_not_asked_back() {
    let booted = deployment("", "");
    let plan = planned(&wants("os:1", ""), at(&booted, &booted), &Record::default());
    assert_eq!(plan.changes[0].action, ChangeAction::Create);
    let next = staged(&plan, booted);
    let plan = planned(&Desired::default(), at(&next, &next), &plan.record);
    assert_eq!((plan.steps, plan.changes), (vec![], vec![]));
}

/// Covers M09, M11.
#[test]
fn what_a_boot_did_not_bring_is_staged_once_more_and_then_a_difference() {
    let (boot, booted) = (BootId("one".to_owned()), deployment("os:0", "old"));
    let record = Record {
        kernel_arguments: list("old"),
        ..Record::default()
    };
    let plan = planned(&wants("os:1", ""), at(&booted, &booted), &record);
    let next = staged(&plan, booted.clone());
    let record = plan.carried_out_in(boot).record;
    assert_eq!(record.staged.len(), 2);
    assert!(record.staged.iter().all(|step| has_arrived(step, &next)));

    let (after, lost) = record.clone().after_boot(Some(&next));
    assert!(!lost && after.staged.is_empty() && after.written_in.is_none());
    let (after, lost) = record.clone().after_boot(Some(&booted));
    assert!(lost && after == record);
    // A power cut is nobody's fault; two boots that we asked for are enough.
    let told = |boots| Record {
        boots,
        ..record.clone()
    };
    assert!(told(1).after_boot(Some(&booted)).1);
    let (after, lost) = told(2).after_boot(Some(&booted));
    assert!(!lost && after.written_in.is_none() && after.boots == 0);
    assert_eq!(
        differences(&after, &booted),
        [
            "os image: os:0 is booted, should be os:1",
            "kernel arguments: booted with old, which should be gone"
        ]
    );
    let (after, lost) = after.after_boot(Some(&next));
    assert!(!lost && differences(&after, &next).is_empty());
}
