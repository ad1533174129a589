use evenkeel_api::names::annotation;
use proptest::prelude::*;

use super::*;
use crate::windows::instances::Found;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

pub(super) fn failure(category: FailureKind, message: &str) -> InstanceFailure {
    InstanceFailure::new(category, message)
}

/// The work on a machine that was reached and secured before.
pub(super) fn workflow(work: Work) -> Workflow {
    let grant = Grant {
        version: "2.0.0-abc1234".parse().unwrap(),
        hash: "hash".to_owned(),
    };
    Workflow {
        work,
        instance: "10.0.0.1".to_owned(),
        namespace: "evenkeel".to_owned(),
        record: InstanceRecord {
            user: "core".to_owned(),
            node: Some("win-1".to_owned()),
            message: "no answer".to_owned(),
            is_secured: true,
            ..InstanceRecord::default()
        },
        takes_over: false,
        supply: Ok((grant, 7)),
        began: at(0),
    }
}

pub(super) fn found(desired: &str, resource_version: &str) -> Found {
    Found {
        name: "win-1".to_owned(),
        is_windows: true,
        uid: Some("u1".to_owned()),
        resource_version: Some(resource_version.to_owned()),
        version: Some("1.0.0-aaaaaaa".to_owned().into()),
        desired_version: Some(desired.to_owned().into()),
        ..Found::default()
    }
}

/// What OpenShift's operator leaves on a machine.
pub(super) fn wmco() -> WmcoMachine {
    WmcoMachine {
        kubelet: Some(r"C:\k\kubelet.exe --hostname-override=WIN-1".to_owned()),
        host_name: Some("EC2AMAZ-1".to_owned()),
        has_login: true,
    }
}

/// A Node of that operator, of which this is not as it must be.
pub(super) fn found_wmco(unfinished: &[Missing]) -> Found {
    Found {
        version: Some("10.20.1-4bd2d8b".to_owned().into()),
        wmco: Some(unfinished.to_vec()),
        ..found("10.20.1-4bd2d8b", "1")
    }
}

fn node(desired: &str) -> Answer {
    Answer::Node(Ok(Some(found(desired, "1"))))
}

fn machine(has_agent: bool) -> Answer {
    Answer::Machine(MachineFacts {
        host_name: "WIN-1".to_owned(),
        node_name: None,
        node_name_problem: None,
        node: None,
        services: has_agent
            .then(|| "Evenkeel-Agent".to_owned())
            .into_iter()
            .collect(),
    })
}

/// What a machine answers on which nothing is wrong.
pub(super) fn usual(step: &WorkflowStep) -> Answer {
    match step {
        WorkflowStep::Connect
        | WorkflowStep::MakeFolder
        | WorkflowStep::LookForAgent
        | WorkflowStep::BringNewAgent
        | WorkflowStep::AskWhetherLeaving => Answer::Is(true),
        WorkflowStep::InspectFolder => Answer::Folder(PayloadFolder::Missing),
        WorkflowStep::RestoreFiles | WorkflowStep::CopyNewFiles => Answer::Count(3),
        WorkflowStep::Prepare | WorkflowStep::Supply => machine(true),
        WorkflowStep::ReadNode(_) => node("2.0.0-abc1234"),
        WorkflowStep::Survey => Answer::Survey(wmco()),
        WorkflowStep::ReadWmcoNode(_) => Answer::Node(Ok(Some(found_wmco(&[])))),
        WorkflowStep::Ask(..) => Answer::Said(CommandReport {
            node: Some("win-1".to_owned()),
            ends: Some(at(600)),
            files: vec![r"C:\k\old.exe".to_owned()],
        }),
        _ => Answer::Done,
    }
}

/// All steps until the work ends.
pub(super) fn steps(
    workflow: &Workflow,
    mut answers: impl FnMut(&WorkflowStep) -> Answer,
) -> Result<Vec<WorkflowStep>, InstanceFailure> {
    let (mut progress, mut answer, mut all) = (WorkflowState::Begun, Answer::Done, Vec::new());
    let mut now = at(0);
    while progress != WorkflowState::Ended {
        let (next, steps) = workflow.next(progress, answer, now)?;
        (progress, answer) = (next, Answer::Done);
        for step in steps {
            if let WorkflowStep::Pause(time) = step {
                now += time;
            }
            answer = answers(&step);
            all.push(step);
        }
        assert!(all.len() < 5000, "it never ends");
    }
    Ok(all)
}

/// Steps in short, without what is only said.
pub(super) fn brief(steps: &[WorkflowStep]) -> String {
    let one = |step: &WorkflowStep| match step {
        WorkflowStep::Say(_) | WorkflowStep::Save(_) => None,
        WorkflowStep::Ask(line, ..) => Some(line.split(" --kube").next().unwrap().to_owned()),
        WorkflowStep::Tell(notice) => Some(notice.category.to_string()),
        other => {
            let text = format!("{other:?}");
            let end = text.find(|it: char| !it.is_alphanumeric());
            Some(text[..end.unwrap_or(text.len())].to_owned())
        }
    };
    let all: Vec<String> = steps.iter().filter_map(one).collect();
    all.join(", ")
}

#[test]
fn each_work_is_a_list_of_steps_that_ends_with_what_people_hear() {
    for (work, expected) in [
        (
            Work::Configure,
            "LearnKubelets, Connect, Remember, BringAgent, Supply, ReadNode, Remember, RemoveLogin, ReadNode, \
             WriteNode, service install --namespace evenkeel, Disconnect, Remember, Remember, InstanceConfigured",
        ),
        (
            Work::Restore,
            "Connect, RestoreFiles, Disconnect, Remember, FilesRestored",
        ),
        (
            Work::LogIn,
            "Connect, ReadNode, login, RemoveLogin, Disconnect, Remember, Remember, AgentLoggedIn",
        ),
        (
            Work::Upgrade,
            "Remember, Connect, ReadNode, BringNewAgent, service remove, cleanup --upgrade, CopyNewFiles, \
             RemoveObsolete, PlaceNewAgent, ReadNode, WriteNode, ReadNode, service install --namespace evenkeel, \
             RemoveLogin, RemoveUpgrade, Disconnect, Remember, Remember, InstanceUpgraded",
        ),
        (
            Work::Deconfigure,
            "Connect, BringAgent, Prepare, ReadNode, AskWhetherLeaving, Remember, service remove, cleanup, \
             RemoveFiles, Disconnect, ReadNode, DeleteNode, Forget, InstanceRemoved",
        ),
        (
            Work::Abandon,
            "ReadNode, DeleteNode, Forget, InstanceAbandoned",
        ),
        (Work::Forget, "Forget"),
    ] {
        let done = steps(&workflow(work), usual).unwrap();
        assert_eq!(brief(&done), expected, "{work:?}");
    }
}

#[test]
fn bootstrap_is_left_out_where_agent_and_node_are_there_and_begins_anew_where_the_node_is_gone() {
    let bootstrap = "bootstrap --desired-version 2.0.0-abc1234 --desired-services hash";
    let anew = format!("service remove, cleanup --upgrade, {bootstrap}");
    for (has_agent, exists, expected) in [
        (true, true, ""),
        (false, true, bootstrap),
        (false, false, bootstrap),
        (true, false, anew.as_str()),
    ] {
        let mut bootstrapped = exists;
        let done = steps(&workflow(Work::Configure), |step| match step {
            WorkflowStep::Supply => machine(has_agent),
            WorkflowStep::ReadNode(name) => {
                assert_eq!(name, "win-1");
                let there = bootstrapped.then(|| found("", "1"));
                bootstrapped = true;
                Answer::Node(Ok(there))
            }
            other => usual(other),
        });
        let done = brief(&done.unwrap());
        let between = done.split("ReadNode, Remember, ").nth(1).unwrap();
        let between = between.split("RemoveLogin").next().unwrap();
        assert_eq!(
            between.trim_end_matches(", "),
            expected,
            "{has_agent} {exists}"
        );
    }
    // Who may ask for certificates in the name of the Node, and joins by it.
    let logins = |work| {
        let done = steps(&workflow(work), |step| match step {
            WorkflowStep::Supply => machine(false),
            other => usual(other),
        });
        let logins = done.unwrap().into_iter().filter_map(|it| match it {
            WorkflowStep::Ask(_, _, login) => login.map(|it| (it.node, it.joins)),
            _ => None,
        });
        logins.collect::<Vec<_>>()
    };
    let node = Some("win-1".to_owned());
    assert_eq!(logins(Work::Configure), [(node.clone(), true)]);
    assert_eq!(logins(Work::Deconfigure), [(node, false)]);
}

/// Covers S01.
#[test]
fn a_machine_that_claims_another_name_or_anothers_node_gets_no_further() {
    let done = steps(&workflow(Work::Configure), |step| match step {
        WorkflowStep::Supply => machine(false),
        WorkflowStep::Ask(..) => Answer::Said(CommandReport {
            node: Some("win-2".to_owned()),
            ..CommandReport::default()
        }),
        WorkflowStep::WriteNode { .. } => panic!("{step:?}"),
        other => usual(other),
    });
    let problem = done.unwrap_err();
    assert_eq!(problem.category, FailureKind::NodeNameTaken);
    assert!(
        problem.message.contains("now claims to be \"win-2\""),
        "{problem:?}"
    );
    let taken = failure(
        FailureKind::NodeNameTaken,
        "that Node belongs to instance b",
    );
    for work in [Work::Configure, Work::Upgrade, Work::LogIn] {
        let done = steps(&workflow(work), |step| match step {
            WorkflowStep::ReadNode(_) => Answer::Node(Err(taken.clone())),
            WorkflowStep::Ask(..) | WorkflowStep::WriteNode { .. } => panic!("{work:?} {step:?}"),
            other => usual(other),
        });
        assert_eq!(done, Err(taken.clone()), "{work:?}");
    }
    // One that leaves is cleaned up without that Node, which stays.
    let done = steps(&workflow(Work::Deconfigure), |step| match step {
        WorkflowStep::ReadNode(_) => Answer::Node(Err(taken.clone())),
        WorkflowStep::Ask(_, _, Some(login)) => {
            assert_eq!(login.node, None);
            usual(step)
        }
        other => usual(other),
    });
    let done = brief(&done.unwrap());
    assert!(
        done.contains("Warn, AskWhetherLeaving") && !done.contains("DeleteNode"),
        "{done}"
    );
    // It turns out last.
    let mut reads = 0;
    let done = steps(&workflow(Work::Deconfigure), |step| match step {
        WorkflowStep::ReadNode(_) => {
            reads += 1;
            if reads == 1 {
                usual(step)
            } else {
                Answer::Node(Err(taken.clone()))
            }
        }
        other => usual(other),
    });
    let done = brief(&done.unwrap());
    assert!(
        done.ends_with("ReadNode, NodeKept, Forget, InstanceRemoved"),
        "{done}"
    );
}

#[test]
fn a_node_that_somebody_else_wrote_meanwhile_is_looked_at_anew() {
    for work in [Work::Configure, Work::Upgrade, Work::Deconfigure] {
        let mut writes = Vec::new();
        let done = steps(&workflow(work), |step| match step {
            WorkflowStep::WriteNode { seen, .. } | WorkflowStep::DeleteNode(seen) => {
                writes.push(seen.resource_version.clone().unwrap());
                match writes.len() {
                    1 => Answer::Node(Ok(Some(found("", "2")))),
                    _ => Answer::Done,
                }
            }
            other => usual(other),
        });
        done.unwrap();
        assert_eq!(writes, ["1", "2"], "{work:?}");
    }
    // It is gone, or somebody else's by now.
    let other = failure(FailureKind::NodeNameTaken, "it is another");
    for (now, category) in [
        (Ok(None), FailureKind::NodeGone),
        (Err(other), FailureKind::NodeNameTaken),
    ] {
        let done = steps(&workflow(Work::Configure), |step| match step {
            WorkflowStep::WriteNode { .. } => Answer::Node(now.clone()),
            other => usual(other),
        });
        assert_eq!(done.unwrap_err().category, category);
    }
    // A Node that was made anew under the same name is not the one that leaves.
    let mut deleted = 0;
    let done = steps(&workflow(Work::Abandon), |step| match step {
        WorkflowStep::DeleteNode(_) => {
            deleted += 1;
            let uid = Some("u2".to_owned());
            Answer::Node(Ok(Some(Found {
                uid,
                ..found("", "9")
            })))
        }
        other => usual(other),
    });
    assert_eq!(
        brief(&done.unwrap()),
        "ReadNode, DeleteNode, Forget, InstanceAbandoned"
    );
    assert_eq!(deleted, 1);
}

#[test]
fn an_upgrade_goes_on_where_its_files_are_complete_and_waits_a_minute_for_its_node() {
    let supplied = |version: &str| Found {
        supplied: Some(format!("{version} hash 2026-11-18T00:00:00Z")),
        ..found("2.0.0-abc1234", "1")
    };
    for (version, brings) in [("2.0.0-abc1234", false), ("1.0.0-aaaaaaa", true)] {
        let done = steps(&workflow(Work::Upgrade), |step| match step {
            WorkflowStep::ReadNode(_) => Answer::Node(Ok(Some(supplied(version)))),
            other => usual(other),
        });
        let done = done.unwrap();
        assert_eq!(brief(&done).contains("BringNewAgent"), brings);
        let Some(WorkflowStep::Tell(notice)) = done.last() else {
            panic!("{done:?}")
        };
        let copied = if brings {
            "4 of 7 files were copied"
        } else {
            "its files were there already"
        };
        let expected = format!(
            "instance 10.0.0.1: Node win-1 is upgraded from 1.0.0-aaaaaaa to 2.0.0-abc1234 in 0.0s: {copied}, and its new agent runs"
        );
        assert_eq!(notice.message, expected);
    }
    // The same agent: nothing lies beside it.
    let done = steps(&workflow(Work::Upgrade), |step| match step {
        WorkflowStep::BringNewAgent => Answer::Is(false),
        other => usual(other),
    });
    assert!(!brief(&done.unwrap()).contains("PlaceNewAgent"));
    let mut waits = 0;
    let done = steps(&workflow(Work::Upgrade), |step| match step {
        WorkflowStep::ReadNode(_) => node("1.0.0-aaaaaaa"),
        WorkflowStep::Pause(_) => {
            waits += 1;
            Answer::Done
        }
        other => usual(other),
    });
    assert_eq!(done.unwrap_err().category, FailureKind::NotToldYet);
    assert_eq!(waits, 300);
    let done = steps(&workflow(Work::Upgrade), |step| match step {
        WorkflowStep::ReadNode(_) => Answer::Node(Ok(None)),
        other => usual(other),
    });
    assert_eq!(done.unwrap_err().category, FailureKind::NodeGone);
}

/// Covers S14.
#[test]
fn one_that_is_listed_again_is_left_as_it_is() {
    let done = steps(&workflow(Work::Deconfigure), |step| match step {
        WorkflowStep::AskWhetherLeaving => Answer::Is(false),
        other => usual(other),
    });
    let done = brief(&done.unwrap());
    assert!(
        done.ends_with("ReadNode, AskWhetherLeaving, Disconnect"),
        "{done}"
    );
}

#[test]
fn without_a_payload_nothing_begins_but_a_removal_by_the_agent_that_is_there() {
    let obstacle = failure(FailureKind::InvalidPayload, "no");
    let work = |work| Workflow {
        supply: Err(obstacle.clone()),
        ..workflow(work)
    };
    for kind in [Work::Configure, Work::Restore, Work::LogIn, Work::Upgrade] {
        let done = steps(&work(kind), |step| panic!("{kind:?} {step:?}"));
        assert_eq!(done, Err(obstacle.clone()));
    }
    let done = steps(&work(Work::Deconfigure), usual).unwrap();
    let own = r"cleanup --kubeconfig C:\k\state\kubeconfig --namespace evenkeel";
    assert!(
        done.iter()
            .any(|it| matches!(it, WorkflowStep::Ask(line, _, None) if line == own)),
        "{done:?}"
    );
    let done = steps(&work(Work::Deconfigure), |step| match step {
        WorkflowStep::LookForAgent => Answer::Is(false),
        other => usual(other),
    });
    assert_eq!(done, Err(obstacle));
}

/// Covers S04.
#[test]
fn a_folder_of_unknown_origin_is_put_aside_and_one_of_ours_is_kept() {
    for (found, is_known, expected) in [
        (
            PayloadFolder::Own,
            false,
            "Connect, Remember, InspectFolder, Remember, RestoreFiles",
        ),
        (
            PayloadFolder::Missing,
            false,
            "Connect, Remember, InspectFolder, MakeFolder, Remember, RestoreFiles",
        ),
        (
            PayloadFolder::Foreign,
            false,
            "Connect, Remember, InspectFolder, PutAside, FolderMovedAside, MakeFolder, Remember, RestoreFiles",
        ),
        (PayloadFolder::Foreign, true, "Connect, RestoreFiles"),
    ] {
        let done = steps(&workflow(Work::Restore), |step| match step {
            WorkflowStep::Connect => Answer::Is(is_known),
            WorkflowStep::InspectFolder => Answer::Folder(found),
            other => usual(other),
        });
        let done = brief(&done.unwrap());
        assert!(done.starts_with(expected), "{found:?} {done}");
    }
    // Also with the key of before, if an earlier try did not come that far.
    let mut new = workflow(Work::Restore);
    new.record.is_secured = false;
    for (found, is_empty, words) in [
        (
            PayloadFolder::Link,
            true,
            r"folder C:\k on the instance is a link",
        ),
        (
            PayloadFolder::Missing,
            false,
            "was changed by somebody else",
        ),
    ] {
        let done = steps(&new, |step| match step {
            WorkflowStep::InspectFolder => Answer::Folder(found),
            WorkflowStep::MakeFolder => Answer::Is(is_empty),
            other => usual(other),
        });
        let problem = done.unwrap_err();
        assert_eq!(problem.category, FailureKind::ForeignFolder);
        assert!(problem.message.contains(words), "{problem:?}");
    }
}

#[test]
fn only_payload_files_that_the_new_version_does_not_have_are_removed() {
    let now = [r"C:\k\kubelet.exe", r"C:\k\cni\new.exe"];
    let before = [
        r"c:/K/Kubelet.exe",
        r"C:\k\cni\old.exe",
        r"C:\k\state\record",
        r"C:\k\store\abc",
        r"C:\Windows\system32\kernel32.dll",
        r"C:\k\..\Windows\x",
    ];
    let before = before.map(str::to_owned);
    assert_eq!(obsolete(&before, now.into_iter()), [r"C:\k\cni\old.exe"]);
}

pub(super) fn answers() -> impl Strategy<Value = Answer> {
    prop_oneof![
        Just(Answer::Done),
        any::<bool>().prop_map(Answer::Is),
        (0..9usize).prop_map(Answer::Count),
        any::<bool>().prop_map(machine),
        "[12]".prop_map(|version| Answer::Node(Ok(Some(found("", &version))))),
        Just(Answer::Node(Ok(None))),
        Just(Answer::Node(Err(failure(FailureKind::NodeNameTaken, "no")))),
        Just(Answer::Folder(PayloadFolder::Foreign)),
        Just(usual(&WorkflowStep::Ask(String::new(), QUESTION, None))),
    ]
}

proptest! {
    /// Covers S01.
    #[test]
    fn whatever_is_answered_a_node_is_written_only_as_it_was_read_last_and_found_to_be_its_own(
        all in prop::collection::vec(answers(), 1..40),
        is_random in prop::collection::vec(any::<bool>(), 40),
        work in prop::sample::select(vec![Work::Configure, Work::LogIn, Work::Upgrade, Work::Deconfigure, Work::Abandon]),
    ) {
        let (mut random, mut coins) = (all.into_iter(), is_random.into_iter().cycle());
        let mut last = None;
        let mut is_right = true;
        _ = steps(&workflow(work), |step| {
            if let WorkflowStep::WriteNode { seen, .. } | WorkflowStep::DeleteNode(seen) = step {
                is_right &= last.as_ref() == Some(seen) && seen.uid.is_some();
            }
            let is_random = coins.next().unwrap_or_default();
            let answer = is_random.then(|| random.next()).flatten();
            let answer = answer.unwrap_or_else(|| usual(step));
            if let Answer::Node(found) = &answer {
                last = found.clone().ok().flatten();
            }
            answer
        });
        prop_assert!(is_right);
    }
}

#[test]
fn a_nodes_annotations_say_what_it_is_told_and_what_it_is_made_of() {
    let written = |work| {
        let done = steps(&workflow(work), usual).unwrap();
        let written = done.into_iter().find_map(|it| match it {
            WorkflowStep::WriteNode { annotations, .. } => Some(annotations),
            _ => None,
        });
        written.unwrap()
    };
    let told = written(Work::Configure);
    assert_eq!(told[annotation::INSTANCE], "core@10.0.0.1");
    assert_eq!(told[annotation::WINDOWS_DESIRED_VERSION], "2.0.0-abc1234");
    assert_eq!(told[annotation::DESIRED_SERVICES], "hash");
    // It is told what to run only after its files are there.
    let told = written(Work::Upgrade);
    let supplied = format!("2.0.0-abc1234 hash {}", at(0));
    assert_eq!(told[annotation::SUPPLIED], supplied);
    assert!(!told.contains_key(annotation::WINDOWS_DESIRED_VERSION));
}
