use proptest::prelude::*;

use super::super::tests::{answers, brief, failure, found_wmco, steps, usual, workflow};
use super::super::{Answer, PayloadFolder};
use super::*;

/// A machine that OpenShift's operator made a node, and on which nothing is ours.
fn untaken(work: Work) -> Workflow {
    let mut workflow = workflow(work);
    workflow.record.is_secured = false;
    workflow.takes_over = true;
    workflow
}

/// What it answers on which nothing is wrong.
fn of_wmco(step: &WorkflowStep) -> Answer {
    match step {
        WorkflowStep::InspectFolder => Answer::Folder(PayloadFolder::Wmcos),
        other => usual(other),
    }
}

/// Covers O08.
#[test]
fn a_node_of_openshifts_operator_is_looked_at_and_nothing_of_it_is_touched() {
    for work in [Work::Configure, Work::Survey] {
        let done = steps(&untaken(work), |step| {
            if let WorkflowStep::ReadWmcoNode(name) = step {
                assert_eq!(name, "win-1", "as its kubelet was told");
            }
            of_wmco(step)
        });
        let done = done.unwrap();
        assert!(done.contains(&WorkflowStep::Remember(Fact::Surveyed)));
        assert!(done.contains(&WorkflowStep::Remember(Fact::Node("win-1".to_owned()))));
        let done = brief(&done);
        let expected = "Connect, Remember, InspectFolder, Survey, ReadWmcoNode, Remember, Remember, Disconnect, TakeOverPrepared";
        assert!(done.ends_with(expected), "{work:?} {done}");
    }
    // Also where it was ours before.
    let before = Workflow {
        takes_over: true,
        ..workflow(Work::Survey)
    };
    let done = brief(&steps(&before, of_wmco).unwrap());
    assert!(done.contains("InspectFolder, Survey"), "{done}");
    // Who takes it off the list again leaves it as it is.
    let done = steps(&untaken(Work::Deconfigure), of_wmco).unwrap();
    assert_eq!(
        brief(&done),
        "Connect, Remember, InspectFolder, Disconnect, Forget"
    );
}

/// Covers O08.
#[test]
fn what_a_node_of_openshifts_operator_lacks_is_said_before_anything_is_done() {
    let reason = |workflow: &Workflow, answers: &dyn Fn(&WorkflowStep) -> Answer| {
        let problem = steps(workflow, answers).unwrap_err();
        (problem.category, problem.message)
    };
    let unsaid = Workflow {
        takes_over: false,
        ..untaken(Work::Configure)
    };
    let (category, words) = reason(&unsaid, &of_wmco);
    assert_eq!(category, FailureKind::NotTakenOver);
    assert!(words.contains("--take-over=windows"), "{words}");
    let bare = WmcoMachine {
        host_name: Some("WIN-1".to_owned()),
        ..WmcoMachine::default()
    };
    let (category, words) = reason(&untaken(Work::Survey), &|step| match step {
        WorkflowStep::Survey => Answer::Survey(bare.clone()),
        WorkflowStep::ReadWmcoNode(_) => Answer::Node(Ok(Some(found_wmco(&[Missing::Upgrading])))),
        other => of_wmco(other),
    });
    assert_eq!(category, FailureKind::TakeOverRefused);
    for part in [
        "service kubelet is not installed",
        r"file C:\k\kubeconfig is missing",
        "label windowsmachineconfig.openshift.io/upgrading",
        "start OpenShift's operator again",
    ] {
        assert!(words.contains(part), "{part}: {words}");
    }
    for (found, part) in [
        (None, "there is no Node win-1"),
        (
            Some(Found {
                wmco: None,
                ..found_wmco(&[])
            }),
            "Node win-1 lacks the annotations",
        ),
    ] {
        let (category, words) = reason(&untaken(Work::Survey), &|step| match step {
            WorkflowStep::ReadWmcoNode(_) => Answer::Node(Ok(found.clone())),
            other => of_wmco(other),
        });
        assert_eq!(category, FailureKind::TakeOverRefused);
        assert!(words.contains(part), "{words}");
    }
    // A claim that does not count is refused in its own words.
    let taken = failure(FailureKind::NodeNameTaken, "that Node has another address");
    let done = steps(&untaken(Work::Survey), |step| match step {
        WorkflowStep::ReadWmcoNode(_) => Answer::Node(Err(taken.clone())),
        other => of_wmco(other),
    });
    assert_eq!(done, Err(taken));
    // It was there when it was looked at, and is gone.
    let mut gone = untaken(Work::Upgrade);
    gone.record.is_surveyed = true;
    for found in [PayloadFolder::Foreign, PayloadFolder::Missing] {
        let (category, words) = reason(&gone, &|step| match step {
            WorkflowStep::InspectFolder => Answer::Folder(found),
            other => usual(other),
        });
        assert_eq!(category, FailureKind::TakeOverRefused);
        assert!(words.contains("windows-instance-config-daemon"), "{words}");
    }
}

/// Covers O08.
#[test]
fn in_its_turn_its_folder_is_closed_and_its_agent_gets_a_login_in_the_cleanup() {
    let mut upgrade = untaken(Work::Upgrade);
    upgrade.record.is_surveyed = true;
    let answers = |step: &WorkflowStep| match step {
        // From the note that its files are there on it is ours.
        WorkflowStep::ReadNode(_) => Answer::Node(Ok(Some(Found {
            desired_version: Some("2.0.0-abc1234".to_owned().into()),
            ..found_wmco(&[])
        }))),
        other => of_wmco(other),
    };
    let done = steps(&upgrade, answers).unwrap();
    let short = brief(&done);
    let expected = "Remember, Connect, Remember, InspectFolder, TakeFolder, Remember, ReadNode, BringNewAgent, service remove, \
         cleanup --upgrade --take-over win-1, CopyNewFiles, RemoveObsolete, PlaceNewAgent, ReadNode, WriteNode";
    assert!(short.starts_with(expected), "{short}");
    let login = done.iter().find_map(|it| match it {
        WorkflowStep::Ask(line, _, login) if line.contains("--take-over") => login.clone(),
        _ => None,
    });
    let login = login.unwrap();
    assert_eq!((login.node.as_deref(), login.joins), (Some("win-1"), false));
    // Whoever is killed after that goes on without looking at what is not theirs any more.
    upgrade.record.is_secured = true;
    let again = brief(&steps(&upgrade, answers).unwrap());
    let expected = "Remember, Connect, ReadNode, BringNewAgent, service remove, cleanup --upgrade --take-over win-1";
    assert!(again.starts_with(expected), "{again}");
}

proptest! {
    /// Covers O08, S01.
    #[test]
    fn whatever_is_answered_a_node_of_openshifts_operator_is_not_changed_by_looking_at_it(
        all in prop::collection::vec(answers(), 1..30),
        is_random in prop::collection::vec(any::<bool>(), 30),
        work in prop::sample::select(vec![Work::Configure, Work::Survey]),
        takes_over in any::<bool>(),
    ) {
        let (mut random, mut coins) = (all.into_iter(), is_random.into_iter().cycle());
        let mut is_untouched = true;
        let workflow = Workflow { takes_over, ..untaken(work) };
        _ = steps(&workflow, |step| {
            is_untouched &= !matches!(
                step,
                WorkflowStep::Ask(..) | WorkflowStep::WriteNode { .. } | WorkflowStep::DeleteNode(_)
                    | WorkflowStep::PutAside(_) | WorkflowStep::MakeFolder | WorkflowStep::TakeFolder
                    | WorkflowStep::BringAgent | WorkflowStep::Supply | WorkflowStep::RemoveFiles
            );
            let is_random = coins.next().unwrap_or_default() && *step != WorkflowStep::InspectFolder
                && *step != WorkflowStep::Connect;
            let answer = is_random.then(|| random.next()).flatten();
            answer.unwrap_or_else(|| of_wmco(step))
        });
        prop_assert!(is_untouched);
    }
}
