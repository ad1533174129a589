//! What a drain promises, as tables and as properties over any node and any pods.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_api::names::{annotation, autoscaler, cordon, pod};
use evenkeel_api::notice::Severity;
use evenkeel_plan::fleet::autoscaler_marks::{AutoscalerMarks, Mark};
use evenkeel_plan::fleet::drain::{
    Attempt, DrainSettings, Eviction, Next, Ours, Owner, Pod, Refusal, Stay, answered, evict,
    grant, losses, next,
};
use evenkeel_plan::fleet::node::{Node, NodePatch};
use jiff::Timestamp;
use proptest::prelude::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or_default()
}

fn text(text: &str) -> String {
    text.to_owned()
}

fn owner(kind: &str) -> Owner {
    Owner {
        kind: kind.to_owned(),
        ..Owner::default()
    }
}

fn web(name: &str) -> Pod {
    Pod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
        owner: Some(owner("ReplicaSet")),
        phase: Some(text("Running")),
        ..Pod::default()
    }
}

fn annotated(key: &str, value: &str) -> Pod {
    Pod {
        annotations: BTreeMap::from([(key.to_owned(), value.to_owned())]),
        ..web("x")
    }
}

/// A node that asks, and got its permit at second 1000.
fn draining() -> Node {
    let node = Node {
        name: "n1".to_owned(),
        ready: true,
        has_permit: true,
        desired_drain: Some(text("drain-new")),
        ..Node::default()
    };
    grant(&node, at(1000)).0.made_to(&node)
}

#[test]
fn who_stays_and_who_goes() {
    let owned = |kind: &str| Pod {
        owner: Some(owner(kind)),
        ..web("x")
    };
    let phase = |phase: &str| Pod {
        phase: Some(text(phase)),
        ..web("x")
    };
    let class = |class: &str| Pod {
        priority_class: Some(text(class)),
        ..web("x")
    };
    let agent = Pod {
        ours: Some(Ours::Agent),
        ..web("x")
    };
    for (given, expected) in [
        (web("x"), None),
        (owned("Node"), Some(Stay::Static)),
        (annotated(pod::MIRROR, "hash"), Some(Stay::Static)),
        (annotated(pod::SOURCE, "file"), Some(Stay::Static)),
        (annotated(pod::SOURCE, "api"), None),
        (owned("DaemonSet"), Some(Stay::DaemonSet)),
        (owned("StatefulSet"), None),
        (class(pod::NODE_CRITICAL), Some(Stay::NodeCritical)),
        (class("system-cluster-critical"), None),
        (annotated(pod::CRITICAL, ""), Some(Stay::Critical)),
        (agent, Some(Stay::Agent)),
        (phase("Succeeded"), Some(Stay::Finished)),
        (phase("Failed"), Some(Stay::Finished)),
        (phase("Pending"), None),
    ] {
        assert_eq!(given.stays(), expected, "{given:?}");
        let pods = [given];
        let round = evict(
            &draining(),
            &pods,
            &BTreeMap::new(),
            DrainSettings::default(),
            at(1001),
        );
        assert_eq!(round.evict.is_empty(), expected.is_some(), "{pods:?}");
        assert_eq!(round.is_over, expected.is_some(), "{pods:?}");
    }
}

#[test]
fn a_cordon_is_written_together_with_whose_it_is() {
    let node = draining();
    assert!(node.unschedulable && node.is_cordoned_by_drain());
    assert_eq!(node.permit_since(at(2000)), Some(at(1000)));
    assert_eq!(next(&node), Next::Evict);
    // A person uncordons it in the middle.
    let opened = Node {
        unschedulable: false,
        ..node
    };
    let Next::Write(change, said) = next(&opened) else {
        panic!("{:?}", next(&opened));
    };
    assert_eq!(said.category, "Cordoned");
    assert_eq!(next(&change.made_to(&opened)), Next::Evict);
}

#[test]
fn only_our_own_cordon_is_taken_off() {
    for (unschedulable, by, still, note) in [
        (
            true,
            Some(cordon::DRAIN),
            false,
            "uncordoned: the node takes pods again",
        ),
        (
            true,
            None,
            true,
            "stays cordoned: Evenkeel did not set this cordon",
        ),
        (
            true,
            Some("upgrade"),
            true,
            "stays cordoned: Evenkeel did not set this cordon",
        ),
        (
            false,
            None,
            false,
            "the node takes pods: it was not cordoned",
        ),
    ] {
        let node = Node {
            unschedulable,
            cordoned_by: by.map(str::to_owned),
            drain_granted: Some(text("1970-01-01T00:16:40Z")),
            desired_drain: Some(text("uncordon-new")),
            last_applied_drain: Some(text("drain-new")),
            ..Node::default()
        };
        let Next::Write(change, said) = next(&node) else {
            panic!("{:?}", next(&node));
        };
        assert_eq!(said.message, note);
        let after = change.made_to(&node);
        assert_eq!(after.unschedulable, still, "{by:?}");
        assert!(!after.claims_permit() && !after.is_cordoned_by_drain());
        assert_eq!(next(&after), Next::Nothing);
    }
}

#[test]
fn a_request_that_nobody_knows_is_named_and_nothing_is_done() {
    for rubbish in ["drain-", "uncordon-", "drain", "reboot-now", " "] {
        let node = Node {
            desired_drain: Some(text(rubbish)),
            ..Node::default()
        };
        let Next::Unknown(said) = next(&node) else {
            panic!("{rubbish}");
        };
        assert!(
            said.message.contains(&format!("{rubbish:?}")),
            "{}",
            said.message
        );
        assert_eq!(said.severity, Severity::Warning);
    }
    assert_eq!(next(&Node::default()), Next::Nothing);
}

#[test]
fn a_drain_is_over_when_the_evicted_are_gone_and_not_when_they_are_ending() {
    let ending = Pod {
        ends: Some(at(900)),
        phase: Some(text("Succeeded")),
        ..web("a")
    };
    let none = BTreeMap::new();
    let pods = [ending, annotated(pod::MIRROR, "")];
    let round = evict(
        &draining(),
        &pods,
        &none,
        DrainSettings::default(),
        at(1001),
    );
    assert!(round.evict.is_empty() && !round.is_over);
    let round = evict(
        &draining(),
        &pods[1..],
        &none,
        DrainSettings::default(),
        at(1001),
    );
    assert!(round.is_over);
    assert_eq!(
        round.notices[0].message,
        "drained for drain-new; pods that stay: shop/x (static)"
    );
    assert_eq!(next(&round.write.made_to(&draining())), Next::Nothing);
}

#[test]
fn pods_that_no_kubelet_ends_are_waited_for_no_longer_than_the_bound() {
    let bound = |text| DrainSettings::read(None, None, Some(text)).unwrap();
    let five = bound("5m");
    assert_eq!(DrainSettings::default(), five, "unless said");
    let ready = draining();
    let down = |since: i64| Node {
        ready: false,
        not_ready_since: Some(at(since)),
        ..draining()
    };
    let pods = [Pod {
        ends: Some(at(1100)),
        ..web("a")
    }];
    for (node, settings, second, is_over, because) in [
        (&ready, five, 9999, false, "its kubelet is there"),
        (&down(1000), five, 1399, false, "from when it should end"),
        (&down(1000), five, 1400, true, "and no longer"),
        (&down(2000), five, 2299, false, "from when the node went"),
        (&down(2000), five, 2300, true, "and no longer"),
        (&down(9000), five, 1400, false, "a clock ahead of ours"),
        (&down(0), bound("0s"), 9999, false, "for ever, if asked to"),
        (
            &down(0),
            bound("10s"),
            1110,
            true,
            "as short as the pool says",
        ),
    ] {
        let round = evict(node, &pods, &BTreeMap::new(), settings, at(second));
        assert_eq!(round.is_over, is_over, "{because}");
    }
    // Who was not told to end has no reason to be gone: a budget still protects it.
    let mut pods = vec![pods[0].clone(), web("b")];
    let round = evict(&down(1000), &pods, &BTreeMap::new(), five, at(1400));
    assert!(!round.is_over && round.evict.len() == 1 && round.stuck.len() == 1);
    pods.pop();
    let round = evict(&down(1000), &pods, &BTreeMap::new(), five, at(1400));
    let said: Vec<_> = round.notices.iter().map(|it| &*it.category).collect();
    assert_eq!(said, ["DrainSkipsTerminating", "Drained"]);
    assert_eq!(
        round.notices[0].message,
        "the node is not ready, so no kubelet ends its pods: ended drain-new without waiting for pods that are terminating: shop/a"
    );
}

fn held(times: u32) -> BTreeMap<String, Attempt> {
    let budget = "The disruption budget web needs 1 healthy pods and has 1 currently";
    let attempt = Attempt {
        times,
        at: at(1000),
        wait: Duration::ZERO,
        refusal: Refusal::Budget(budget.to_owned()),
    };
    BTreeMap::from([("a".to_owned(), attempt)])
}

#[test]
fn a_refused_eviction_is_tried_again_after_one_two_four_and_at_most_ten_seconds() {
    let pods = [web("a")];
    for (times, wait) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (99, 10)] {
        let tried = |second| {
            let round = evict(
                &draining(),
                &pods,
                &held(times),
                DrainSettings::default(),
                at(second),
            );
            !round.evict.is_empty()
        };
        assert!(!tried(1000 + wait - 1) || wait == 1, "{times}");
        assert!(tried(1000 + wait), "{times}");
        assert!(tried(900), "a clock set back");
    }
    let mut asked_to_wait = held(1);
    for attempt in asked_to_wait.values_mut() {
        attempt.wait = Duration::from_secs(30);
    }
    let round = evict(
        &draining(),
        &pods,
        &asked_to_wait,
        DrainSettings::default(),
        at(1029),
    );
    assert!(round.evict.is_empty());
}

#[test]
fn an_overdue_drain_names_pod_and_budget_once_and_goes_on_trying() {
    let settings = DrainSettings::read(Some("5m"), None, None).unwrap();
    let ending = Pod {
        ends: Some(at(900)),
        ..web("b")
    };
    let pods = [ending, web("a")];
    let node = draining();
    let untried = evict(&node, &pods, &BTreeMap::new(), settings, at(1300));
    assert!(untried.notices.is_empty() && untried.evict.len() == 1);
    let early = evict(&node, &pods, &held(3), settings, at(1299));
    assert!(early.notices.is_empty() && early.write.is_empty());
    let late = evict(&node, &pods, &held(3), settings, at(1300));
    let note = "the drain takes longer than 5m: eviction of pod shop/a is blocked: The disruption budget web needs 1 healthy pods and has 1 currently; pod shop/b is evicted and still terminating";
    assert_eq!(late.notices[0].message, note);
    assert_eq!(late.evict.len(), 1, "it goes on trying");
    assert!(!late.is_over);
    let told = late.write.made_to(&node);
    assert_eq!(told.reason.as_deref(), Some(note));
    let again = evict(&told, &pods, &held(3), settings, at(1400));
    assert!(again.notices.is_empty() && again.write.is_empty());
    // What we wrote, and only that, goes with the answer.
    let done = evict(&told, &[], &held(3), settings, at(1500));
    let answered = done.write.made_to(&told);
    assert_eq!(answered.reason.as_deref(), Some(""));
    assert_eq!(answered.drain_overdue, None);
    let foreign = Node {
        reason: Some(text("from the agent")),
        ..told
    };
    let done = evict(&foreign, &[], &held(3), settings, at(1500));
    assert_eq!(done.write.made_to(&foreign).reason, foreign.reason);
}

#[test]
fn with_proceed_it_goes_ahead_at_the_deadline_and_says_without_whom() {
    let settings = DrainSettings::read(Some("5s"), Some("proceed"), None).unwrap();
    let pods = [web("a")];
    assert!(!evict(&draining(), &pods, &held(1), settings, at(1004)).is_over);
    let round = evict(&draining(), &pods, &held(1), settings, at(1005));
    assert!(round.is_over && round.evict.is_empty());
    assert_eq!(round.notices[0].category, "DrainProceeds");
    assert!(
        round.notices[0].message.contains("pod shop/a"),
        "{:?}",
        round.notices
    );
    assert_eq!(next(&round.write.made_to(&draining())), Next::Nothing);
}

#[test]
fn settings_that_are_none_are_refused_with_what_would_be_right() {
    assert_eq!(
        DrainSettings::read(None, None, None),
        Ok(DrainSettings::default())
    );
    assert_eq!(
        DrainSettings::read(None, Some("explode"), None),
        Err(
            "unknown action \"explode\" for a drain that takes too long: write wait or proceed"
                .to_owned()
        )
    );
    assert!(DrainSettings::read(Some("soon"), None, None).is_err());
    assert!(DrainSettings::read(None, None, Some("never")).is_err());
    let read = DrainSettings::read(None, None, Some("0s"));
    assert_eq!(read.map(|it| it.skip_wait_for_delete), Ok(Duration::ZERO));
}

#[test]
fn a_pool_that_keeps_its_pods_evicts_nobody_and_answers_at_once() {
    let settings = DrainSettings {
        keeps_pods: true,
        ..DrainSettings::default()
    };
    let (node, pods) = (draining(), [web("a"), web("b")]);
    let round = evict(&node, &pods, &BTreeMap::new(), settings, at(1001));
    assert!(round.is_over && round.evict.is_empty(), "{round:?}");
    let after = round.write.made_to(&node);
    assert_eq!(after.last_applied_drain, node.desired_drain);
    assert!(after.unschedulable, "it goes down all the same");
    assert_eq!(DrainSettings::keeps_pods("never"), Ok(true));
    assert_eq!(DrainSettings::keeps_pods("evict"), Ok(false));
    assert_eq!(
        DrainSettings::keeps_pods("yes"),
        Err("unknown value \"yes\": write evict or never".to_owned())
    );
}

#[test]
fn what_is_lost_with_a_pod_is_said_and_so_is_what_can_never_be_evicted() {
    let bare = Pod {
        owner: None,
        ..web("bare")
    };
    let scratch = Pod {
        has_empty_dir: true,
        ..web("scratch")
    };
    let said = losses(&[&web("a"), &bare, &scratch]);
    let notes: Vec<_> = said.iter().map(|it| it.message.as_str()).collect();
    assert_eq!(
        notes,
        [
            "evicted pods that have no owner, so nothing recreates them: shop/bare",
            "evicted pods whose emptyDir volumes are lost: shop/scratch"
        ]
    );
    assert_eq!(losses(&[&web("a")]), []);
    let mut attempts = BTreeMap::new();
    let mut said =
        |answer, second| answered(&mut attempts, &bare, answer, at(second)).map(|it| it.message);
    let held = Refusal::Budget(text("web"));
    let held = Eviction::Refused(held, Duration::ZERO);
    assert_eq!(said(held, 0), None);
    let two = Eviction::refused(500, None, "more than one budget", Duration::from_secs(3));
    let said_of_two = said(two.clone(), 1).unwrap();
    assert!(said_of_two.contains("shop/bare") && said_of_two.contains("more than one budget"));
    assert_eq!(said(Eviction::Gone, 2), None);
    said(two, 3);
    let attempt = &attempts["bare"];
    let noted = (attempt.times, attempt.at, attempt.wait);
    assert_eq!(noted, (3, at(3), Duration::from_secs(3)));
    assert_eq!(
        answered(&mut attempts, &bare, Eviction::Accepted, at(4)),
        None
    );
    assert_eq!(attempts, BTreeMap::new());
}

#[test]
fn a_budget_is_told_from_a_busy_server_and_from_what_is_broken() {
    for (code, budget, category) in [
        (429, Some("The disruption budget web"), "budget"),
        (429, None, "busy"),
        (500, None, "misconfigured"),
        (403, None, "failed"),
    ] {
        let answer = Eviction::refused(code, budget, "said", Duration::ZERO);
        assert_eq!(answer.category(), category);
    }
    for code in [404, 409] {
        let answer = Eviction::refused(code, None, "said", Duration::ZERO);
        assert_eq!(answer, Eviction::Gone, "the next list tells");
    }
}

prop_compose! {
    fn any_pod()(
        number in 0..1000u32,
        kind in prop::option::of(prop::sample::select(vec!["Node", "DaemonSet", "ReplicaSet", "Job"])),
        class in prop::option::of(prop::sample::select(vec![pod::NODE_CRITICAL, "high"])),
        annotation in prop::option::of(prop::sample::select(vec![pod::MIRROR, pod::CRITICAL, pod::SOURCE, "other"])),
        ours in prop::option::of(prop::sample::select(vec![Ours::Agent, Ours::Operator])),
        phase in prop::sample::select(vec!["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
        ends in prop::option::of(0..10_000i64),
    ) -> Pod {
        Pod {
            owner: kind.map(owner),
            ours,
            priority_class: class.map(str::to_owned),
            annotations: annotation.map(|it| (it.to_owned(), String::new())).into_iter().collect(),
            phase: Some(text(phase)),
            ends: ends.map(at),
            ..web(&format!("p{number}"))
        }
    }
}

/// What a person, or one of us, may have left on a Node for autoscalers.
fn any_marks() -> impl Strategy<Value = AutoscalerMarks> {
    let one = || prop::sample::select(vec![Mark::Absent, Mark::Held, Mark::Other]);
    let all = autoscaler::ALL.join(",");
    let ours = prop::sample::select(vec![
        None,
        Some(String::new()),
        Some(all),
        Some(autoscaler::DO_NOT_REPAIR.to_owned()),
        Some("x,evenkeel.dev/drain-granted".to_owned()),
    ]);
    (one(), one(), one(), ours).prop_map(|(one, two, three, ours)| AutoscalerMarks {
        found: [one, two, three],
        ours,
    })
}

prop_compose! {
    fn any_node()(
        unschedulable in any::<bool>(),
        desired in prop::option::of(prop::sample::select(vec!["drain-a", "uncordon-a", "drain-", ""])),
        answered in prop::option::of(prop::sample::select(vec!["drain-a", "uncordon-a", "drain-old"])),
        by in prop::option::of(prop::sample::select(vec![cordon::DRAIN, "upgrade"])),
        granted in prop::option::of(prop::sample::select(vec!["1970-01-01T00:16:40Z", "rubbish", "2999-01-01T00:00:00Z"])),
        own_pods in prop::option::of(prop::sample::select(vec!["", "p1", "p1,p2"])),
        marks in any_marks(),
        has_permit in any::<bool>(),
        ready in any::<bool>(),
        not_ready_since in prop::option::of(0..10_000i64),
    ) -> Node {
        Node {
            has_permit,
            ready,
            not_ready_since: not_ready_since.map(at),
            unschedulable,
            desired_drain: desired.map(str::to_owned),
            last_applied_drain: answered.map(str::to_owned),
            cordoned_by: by.map(str::to_owned),
            drain_granted: granted.map(str::to_owned),
            own_pods: own_pods.map(str::to_owned),
            autoscalers: marks,
            ..Node::default()
        }
    }
}

proptest! {
    #[test]
    fn nobody_is_evicted_who_stays_or_is_ending_or_from_a_node_without_a_permit_and_a_cordon(
        node in any_node(),
        pods in prop::collection::vec(any_pod(), 0..8),
        now in 0..10_000i64,
        proceed in any::<bool>(),
        skip in 0..500u64,
    ) {
        let settings = DrainSettings {
            timeout: Duration::from_secs(500),
            proceed,
            skip_wait_for_delete: Duration::from_secs(skip),
            ..DrainSettings::default()
        };
        let round = evict(&node, &pods, &BTreeMap::new(), settings, at(now));
        for pod in &round.evict {
            prop_assert!(pod.stays().is_none() && !pod.is_ending());
            prop_assert!(node.unschedulable && node.claims_permit() && node.has_permit);
            // Of the operator's own, only those that were chosen before.
            let chosen = node.own_pods.as_deref().unwrap_or_default();
            let is_chosen = chosen.split(',').any(|it| it == pod.uid);
            prop_assert!(pod.ours != Some(Ours::Operator) || is_chosen);
        }
        // Over means that nobody is left, unless the owner said to go ahead after the deadline.
        if round.is_over && !proceed {
            prop_assert!(round.left.is_empty());
        }
        prop_assert_eq!(round.write.unschedulable, None);
        // Nobody is forgotten whom a kubelet may still end, or who was not told to end.
        for pod in &round.stuck {
            prop_assert!(!node.ready && skip > 0);
            let since = node.not_ready_since.max(pod.ends);
            prop_assert!(pod.ends.is_some() && since <= Some(at(now - i64::try_from(skip).unwrap())));
        }
        let all = round.left.len() + round.stay.len() + round.stuck.len();
        prop_assert!(all == pods.len() || next(&node) != Next::Evict);
    }

    /// However many pods there are, and whenever the kubelet died: once all of them were told to end, it is over by the bound.
    #[test]
    fn a_drain_without_a_kubelet_ends_by_the_bound(
        pods in prop::collection::vec(any_pod(), 0..8),
        died in 0..2_000i64,
        skip in 1..500u64,
    ) {
        let settings = DrainSettings { skip_wait_for_delete: Duration::from_secs(skip), ..DrainSettings::default() };
        let node = Node { ready: false, not_ready_since: Some(at(died)), ..draining() };
        let pods: Vec<_> = pods.into_iter().filter(Pod::is_ending).collect();
        let last = pods.iter().filter_map(|it| it.ends).max().unwrap_or_default().max(at(died));
        let bound = last + Duration::from_secs(skip);
        prop_assert!(evict(&node, &pods, &BTreeMap::new(), settings, bound).is_over);
    }

    #[test]
    fn a_cordon_that_is_not_ours_is_never_taken_off_and_every_write_leads_somewhere(node in any_node()) {
        let mut node = node;
        // What a node says of its cordon counts only for one that is down by our doing.
        let holds_permit = node.has_permit || node.claims_permit();
        let foreign = node.unschedulable && !(node.is_cordoned_by_drain() && holds_permit);
        // Each write is made once: whoever repeats them comes to an end.
        for _ in 0..4 {
            let change = match next(&node) {
                Next::Write(change, _) | Next::Mark(change) => change,
                Next::AskForPermit => {
                    node.has_permit = true;
                    grant(&node, at(1000)).0
                }
                Next::Evict => evict(&node, &[], &BTreeMap::new(), DrainSettings::default(), at(1000)).write,
                Next::Nothing | Next::Unknown(_) => NodePatch::default(),
            };
            if foreign {
                prop_assert_eq!(change.unschedulable, None);
                prop_assert!(!change.annotations.contains_key(annotation::CORDONED_BY));
            }
            // Whoever cordons says so in the same write.
            if change.unschedulable == Some(true) {
                prop_assert_eq!(&change.annotations[annotation::CORDONED_BY], &Some(text(cordon::DRAIN)));
            }
            node = change.made_to(&node);
        }
        prop_assert!(matches!(next(&node), Next::Nothing | Next::Unknown(_)));
    }

    /// Covers N11.
    #[test]
    fn autoscalers_are_held_off_as_long_as_a_node_has_its_permit_and_what_people_wrote_stays(
        node in any_node(),
        meddled in any_marks(),
    ) {
        let settle = |mut node: Node| {
            for _ in 0..5 {
                let (Next::Mark(change) | Next::Write(change, _)) = next(&node) else {
                    return node;
                };
                node = change.made_to(&node);
            }
            node
        };
        let marks = |node: &Node| node.autoscalers.clone();
        let is_ours = |marks: &AutoscalerMarks, name: &str| {
            marks.ours.as_deref().unwrap_or_default().split(',').any(|it| it == name)
        };
        let before = settle(Node { desired_drain: None, drain_granted: None, has_permit: false, ..node });
        prop_assert_eq!(&before.autoscalers.ours, &None, "no permit, and nothing of ours");
        // It gets a permit: whatever was there stays as it was, the rest is ours.
        let asks = Node { desired_drain: Some(text("drain-new")), last_applied_drain: None, has_permit: true, ..before.clone() };
        let granted = grant(&asks, at(1000)).0.made_to(&asks);
        for (at, name) in autoscaler::ALL.into_iter().enumerate() {
            let (was, is) = (before.autoscalers.found[at], granted.autoscalers.found[at]);
            prop_assert_eq!(is, if was == Mark::Absent { Mark::Held } else { was });
            prop_assert_eq!(is_ours(&marks(&granted), name), was == Mark::Absent);
        }
        prop_assert!(!matches!(next(&granted), Next::Mark(_)), "one write, with the permit");
        // Somebody changes them while it is down: what is missing comes back, what says something else stays.
        let mut other = granted.clone();
        other.autoscalers.found = meddled.found;
        let other = settle(other);
        for (is, was) in other.autoscalers.found.into_iter().zip(meddled.found) {
            prop_assert_eq!(is, if was == Mark::Absent { Mark::Held } else { was });
        }
        // The permit goes: ours go with it in the same write, and only ours.
        for node in [&granted, &other] {
            let back = Node { desired_drain: Some(text("uncordon-new")), ..node.clone() };
            let Next::Write(change, _) = next(&back) else {
                panic!("{:?}", next(&back));
            };
            let after = change.made_to(&back);
            prop_assert!(!after.claims_permit());
            prop_assert_eq!(&after.autoscalers.ours, &None);
            for (at, name) in autoscaler::ALL.into_iter().enumerate() {
                let is = node.autoscalers.found[at];
                let goes = is == Mark::Held && is_ours(&marks(node), name);
                prop_assert_eq!(after.autoscalers.found[at], if goes { Mark::Absent } else { is });
            }
            prop_assert_eq!(next(&after), Next::Nothing);
        }
        // A permit that somebody takes off the Node takes them along, too.
        let taken = settle(Node { drain_granted: None, has_permit: false, desired_drain: None, ..granted.clone() });
        prop_assert_eq!(&taken.autoscalers, &before.autoscalers);
        // What another operator drains is not ours to hold.
        let foreign = Node { desired_config: Some(text("theirs")), voucher: None, autoscalers: before.autoscalers.clone(), ..granted };
        prop_assert!(!matches!(next(&foreign), Next::Mark(_)));
    }
}
