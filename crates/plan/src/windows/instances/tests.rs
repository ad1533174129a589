use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn wanted(addresses: &[(&str, &str)]) -> BTreeMap<String, DesiredInstance> {
    let one = |&(name, address): &(&str, &str)| {
        let addresses = Ok(vec![address.parse().unwrap()]);
        let wanted = DesiredInstance {
            user: "Administrator".to_owned(),
            addresses,
            node_addresses: vec![address.parse().unwrap()],
            node: None,
        };
        (name.to_owned(), wanted)
    };
    addresses.iter().map(one).collect()
}

/// A machine of the list with this name that has been worked on, and is Node win-1.
fn touched(name: &str, state: InstanceState) -> (String, InstanceRecord) {
    let record = InstanceRecord {
        state,
        since: at(0),
        node: Some("win-1".to_owned()),
        is_touched: true,
        ..InstanceRecord::default()
    };
    (name.to_owned(), record)
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "annotations are there or not, and here they are"
)]
fn stated(version: &str) -> Option<StatedVersion> {
    Some(version.to_owned().into())
}

fn node(name: &str, instance: Option<&str>, address: &str, is_done: bool) -> WindowsNode {
    let runs = (stated("1.2.3-abc1234"), Some("hash".to_owned()));
    WindowsNode {
        name: name.to_owned(),
        instance: instance.map(str::to_owned),
        addresses: vec![address.to_owned()],
        current: if is_done { runs.clone() } else { (None, None) },
        desired: runs,
        is_ready: true,
        ..WindowsNode::default()
    }
}

#[derive(Default)]
struct World {
    wanted: Option<BTreeMap<String, DesiredInstance>>,
    unclear: BTreeSet<String>,
    records: BTreeMap<String, InstanceRecord>,
    nodes: Vec<WindowsNode>,
    busy: BTreeMap<String, Work>,
    obstacle: Option<InstanceFailure>,
    version: Option<Version>,
}

impl World {
    fn decide(&self, now: i64) -> InstanceDecision {
        decide(&InstanceSnapshot {
            wanted: self.wanted.as_ref(),
            unclear: &self.unclear,
            records: &self.records,
            nodes: &self.nodes,
            busy: &self.busy,
            obstacle: self.obstacle.as_ref(),
            version: self.version.as_ref(),
            parallel: 2,
            leave_within: Duration::from_mins(15),
            now: at(now),
        })
    }

    fn todo(&self, name: &str, now: i64) -> Option<Todo> {
        self.decide(now).todo.remove(name)
    }
}

#[test]
fn new_machines_are_configured_no_more_at_once_than_may_be() {
    let list = [("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3")];
    let mut world = World {
        wanted: Some(wanted(&list)),
        ..World::default()
    };
    let todo = world.decide(0).todo;
    let begin = Todo::Begin(Work::Configure);
    let waiting = Todo::Note(InstanceState::Waiting, None);
    assert_eq!(todo["a"], begin);
    assert_eq!(todo["b"], begin);
    assert_eq!(todo["c"], waiting);
    world.busy = BTreeMap::from([("a".to_owned(), Work::Configure)]);
    // One that fails and fails takes nobody's turn.
    let record = InstanceRecord {
        failures: 3,
        ..InstanceRecord::default()
    };
    world.records.insert("b".to_owned(), record);
    let todo = world.decide(0).todo;
    assert_eq!(todo.get("a"), None, "it is being worked on");
    assert_eq!(todo["b"], waiting);
    assert_eq!(todo["c"], begin);
    world.obstacle = Some(InstanceFailure::new(FailureKind::InvalidPayload, "no"));
    let Todo::Note(InstanceState::Waiting, Some(_)) = &world.decide(0).todo["c"] else {
        panic!("{:?}", world.decide(0))
    };
}

#[test]
fn what_failed_is_tried_again_later_and_ever_later() {
    let mut record = InstanceRecord::default();
    let problem = InstanceFailure::new(FailureKind::InstanceSilent, "it said nothing");
    let mut pauses = Vec::new();
    for _ in 0..8 {
        record.fail(&problem, at(0));
        let until = record.retry_at.unwrap();
        pauses.push(until.duration_since(at(0)).as_secs());
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300]);
    let world = World {
        wanted: Some(wanted(&[("a", "10.0.0.1")])),
        records: BTreeMap::from([("a".to_owned(), record)]),
        ..World::default()
    };
    let decision = world.decide(299);
    assert_eq!(decision.todo.get("a"), None);
    assert_eq!(decision.again, Some(at(300)));
    assert_eq!(world.todo("a", 300), Some(Todo::Begin(Work::Configure)));
}

#[test]
fn a_node_that_has_what_it_needs_is_left_in_peace() {
    let mut world = World {
        wanted: Some(wanted(&[("a", "10.0.0.1")])),
        records: BTreeMap::from([touched("a", InstanceState::Ready)]),
        nodes: vec![node("win-1", Some("a"), "10.0.0.1", true)],
        ..World::default()
    };
    let ready = Some(Todo::Note(InstanceState::Ready, None));
    assert_eq!(world.todo("a", 0), ready);
    // Also if somebody took our annotation off, and if an upgrade is on its way.
    world.nodes[0].instance = None;
    assert_eq!(world.todo("a", 0), ready);
    world.nodes[0].desired.0 = stated("2.0.0-abc1234");
    assert_eq!(
        world.todo("a", 0),
        Some(Todo::Note(InstanceState::Starting, None))
    );
    world.nodes[0].lacks_files = true;
    assert_eq!(world.todo("a", 0), Some(Todo::Begin(Work::Restore)));
}

/// Covers W15.
#[test]
fn an_agent_whose_login_has_ended_is_brought_a_new_one_before_anything_else() {
    let (name, mut record) = touched("a", InstanceState::Ready);
    record.login_ends = Some(at(100));
    let mut world = World {
        wanted: Some(wanted(&[("a", "10.0.0.1")])),
        nodes: vec![node("win-1", Some("a"), "10.0.0.1", true)],
        records: BTreeMap::from([(name, record)]),
        ..World::default()
    };
    assert_eq!(
        world.todo("a", 99),
        Some(Todo::Note(InstanceState::Ready, None))
    );
    assert_eq!(world.decide(99).again, Some(at(100)));
    let log_in = Some(Todo::Begin(Work::LogIn));
    assert_eq!(world.todo("a", 100), log_in);
    // Whatever else is to be done: its agent would not hear of it.
    world.nodes[0].upgrade = Some(UpgradeStage::Apply);
    assert_eq!(world.todo("a", 100), log_in);
    // A machine that is off is tried again, as ever.
    let record = world.records.get_mut("a").unwrap();
    record.fail(
        &InstanceFailure::new(FailureKind::InstanceUnreachable, "it is off"),
        at(100),
    );
    assert_eq!(world.todo("a", 101), None);
    assert_eq!(world.todo("a", 105), log_in);
}

#[test]
fn a_node_that_never_served_is_waited_for_and_then_configured_again() {
    let mut world = World {
        wanted: Some(wanted(&[("a", "10.0.0.1")])),
        nodes: vec![node("win-1", Some("a"), "10.0.0.1", false)],
        records: BTreeMap::from([touched("a", InstanceState::Starting)]),
        ..World::default()
    };
    assert_eq!(
        world.todo("a", 60),
        Some(Todo::Note(InstanceState::Starting, None))
    );
    assert_eq!(world.decide(60).again, Some(at(1200)));
    assert_eq!(world.todo("a", 1200), Some(Todo::Begin(Work::Configure)));
    // The operator ended between the Node and its agent.
    world.records = BTreeMap::from([touched("a", InstanceState::Configuring)]);
    assert_eq!(world.todo("a", 60), Some(Todo::Begin(Work::Configure)));
}

#[test]
fn who_leaves_is_taken_out_and_who_cannot_be_reached_is_given_up() {
    let mut world = World {
        wanted: Some(BTreeMap::new()),
        records: BTreeMap::from([touched("a", InstanceState::Ready)]),
        ..World::default()
    };
    let out = Some(Todo::Begin(Work::Deconfigure));
    assert_eq!(world.todo("a", 0), out);
    let record = world.records.get_mut("a").unwrap();
    record.leaving_since = Some(at(0));
    let gone = InstanceFailure::new(FailureKind::InstanceUnreachable, "no answer");
    record.fail(&gone, at(0));
    assert_eq!(record.state, InstanceState::Leaving);
    assert_eq!(world.todo("a", 4), None);
    assert_eq!(world.decide(4).again, Some(at(5)));
    assert_eq!(world.todo("a", 5), out);
    assert_eq!(world.todo("a", 15 * 60), Some(Todo::Begin(Work::Abandon)));
    // One that can be reached, and does not go, is never given up.
    let record = world.records.get_mut("a").unwrap();
    record.category = Some(FailureKind::AgentFailed);
    assert_eq!(world.todo("a", 15 * 60), out);

    // Nothing was ever put on it.
    world.records.get_mut("a").unwrap().is_touched = false;
    assert_eq!(world.todo("a", 0), Some(Todo::Forget));
    // What a Node says that it was made of sends nobody anywhere.
    world.records.clear();
    world.nodes = vec![node("win-1", Some("a"), "10.0.0.1", false)];
    assert_eq!(world.decide(0), nothing());
}

/// Nothing is to be done, and nobody leaves.
fn nothing() -> InstanceDecision {
    InstanceDecision {
        leaving: Some(BTreeMap::new()),
        ..InstanceDecision::default()
    }
}

/// Covers S14.
#[test]
fn who_serves_is_taken_out_when_its_pods_have_left_or_when_nobody_hears_of_it_any_more() {
    let (name, mut record) = touched("a", InstanceState::Ready);
    record.address = Some([10, 0, 0, 1].into());
    let mut world = World {
        wanted: Some(BTreeMap::new()),
        records: BTreeMap::from([(name, record)]),
        nodes: vec![node("win-1", Some("a"), "10.0.0.1", true)],
        ..World::default()
    };
    let out = Some(Todo::Begin(Work::Deconfigure));
    let leaving = BTreeMap::from([("a".to_owned(), Some("win-1".to_owned()))]);
    assert_eq!(world.decide(0).leaving, Some(leaving));
    let wait = |why: &str, is_ready| {
        let why = why.to_owned();
        Some(Todo::Wait { why, is_ready })
    };
    assert_eq!(world.todo("a", 0), wait(WAITING, true));
    let waits = Clearance::Waits(Some("waiting: x".to_owned()));
    world.nodes[0].clearance = waits.clone();
    assert_eq!(world.todo("a", 0), wait("waiting: x", true));
    // However long that takes, it is not given up for what failed before.
    let record = world.records.get_mut("a").unwrap();
    record.wait("waiting: x", true, at(0));
    assert_eq!(world.todo("a", 99_999), wait("waiting: x", true));
    world.nodes[0].clearance = Clearance::Cleared;
    assert_eq!(world.todo("a", 99_999), out);
    // From then on it is looked for as long as ever.
    let gone = InstanceFailure::new(FailureKind::InstanceUnreachable, "no answer");
    let record = world.records.get_mut("a").unwrap();
    record.fail(&gone, at(99_999));
    assert_eq!(world.todo("a", 99_999 + 10), out);
    assert_eq!(
        world.todo("a", 99_999 + 15 * 60),
        Some(Todo::Begin(Work::Abandon))
    );

    // Nobody hears of it: its pods cannot leave, and nobody waits for them longer than for anybody who leaves.
    let record = world.records.get_mut("a").unwrap();
    *record = InstanceRecord {
        node: record.node.clone(),
        address: record.address,
        is_touched: true,
        ..InstanceRecord::default()
    };
    record.wait("waiting: x", true, at(0));
    world.nodes[0].clearance = waits;
    world.nodes[0].is_ready = false;
    assert_eq!(world.todo("a", 1000), wait("waiting: x", false));
    assert_eq!(world.decide(1000).again, Some(at(1000 + 15 * 60)));
    let record = world.records.get_mut("a").unwrap();
    record.wait("waiting: x", false, at(1000));
    assert_eq!(world.todo("a", 1899), wait("waiting: x", false));
    let since = at(1000);
    let undrained = Some(Todo::BeginUndrained { since });
    assert_eq!(world.todo("a", 1900), undrained);
    // It was away for a moment only.
    let record = world.records.get_mut("a").unwrap();
    record.wait("waiting: x", true, at(1500));
    assert_eq!(record.lost_since, None);
    assert_eq!(world.todo("a", 1900), wait("waiting: x", false));
    // What another Node says of itself changes nothing, nor does its own name for its machine.
    world.nodes[0].is_ready = true;
    world.nodes[0].instance = None;
    world
        .nodes
        .push(node("win-2", Some("a"), "10.0.0.2", false));
    assert_eq!(world.todo("a", 2000), wait("waiting: x", true));
    // Its Node is gone.
    world.nodes.clear();
    assert_eq!(world.todo("a", 2000), out);
}

/// Covers S14.
#[test]
fn an_entry_that_is_put_back_keeps_its_machine_unless_its_agent_was_stopped_already() {
    let (name, mut record) = touched("a", InstanceState::Leaving);
    record.wait("waiting: x", true, at(0));
    let mut one = node("win-1", Some("a"), "10.0.0.1", true);
    one.clearance = Clearance::Cleared;
    let mut world = World {
        wanted: Some(wanted(&[("a", "10.0.0.1")])),
        records: BTreeMap::from([(name, record)]),
        nodes: vec![one],
        ..World::default()
    };
    assert_eq!(world.decide(10).leaving, Some(BTreeMap::new()));
    assert_eq!(
        world.todo("a", 10),
        Some(Todo::Note(InstanceState::Ready, None))
    );
    // Also while the entry cannot be read.
    world.wanted = Some(BTreeMap::new());
    world.unclear = BTreeSet::from(["a".to_owned()]);
    assert_eq!(world.decide(10), nothing());
    // It comes to its end first, and then it is a new machine; its Node keeps its permit until then.
    world.records.get_mut("a").unwrap().is_going = true;
    for clearance in [Clearance::Cleared, Clearance::default()] {
        world.nodes[0].clearance = clearance;
        let decision = world.decide(10);
        assert_eq!(decision.todo["a"], Todo::Begin(Work::Deconfigure));
        assert!(decision.leaving.unwrap().contains_key("a"));
    }
    world.unclear.clear();
    world.wanted = Some(wanted(&[("a", "10.0.0.1")]));
    assert_eq!(world.todo("a", 10), Some(Todo::Begin(Work::Deconfigure)));
    world.records.clear();
    world.nodes.clear();
    assert_eq!(world.todo("a", 10), Some(Todo::Begin(Work::Configure)));
}

#[test]
fn no_more_are_taken_out_at_once_than_may_be() {
    let all = ["a", "b", "c"].map(|name| touched(name, InstanceState::Ready));
    let mut world = World {
        wanted: Some(BTreeMap::new()),
        records: BTreeMap::from(all),
        // Whoever is configured takes nobody's turn.
        busy: BTreeMap::from([("d".to_owned(), Work::Configure)]),
        ..World::default()
    };
    let out = Todo::Begin(Work::Deconfigure);
    let todo = world.decide(0).todo;
    assert_eq!([&todo["a"], &todo["b"]], [&out, &out]);
    assert_eq!(todo["c"], Todo::Note(InstanceState::Leaving, None));
    // One that fails and fails takes nobody's turn.
    world.records.get_mut("a").unwrap().failures = 3;
    let todo = world.decide(0).todo;
    assert_eq!([&todo["b"], &todo["c"]], [&out, &out]);
    for name in ["a", "b"] {
        world.busy.insert(name.to_owned(), Work::Deconfigure);
    }
    world.records.extend([touched("c", InstanceState::Leaving)]);
    assert_eq!(world.decide(0).todo, BTreeMap::new());
    world.busy.remove("a");
    world.records.remove("a");
    assert_eq!(world.todo("c", 0), Some(out));
}

#[test]
fn a_node_that_serves_needs_no_address_until_somebody_has_to_go_there() {
    let unknown = InstanceFailure::new(FailureKind::AddressUnknown, "no answer");
    let failing = Some(Todo::Note(InstanceState::Failing, Some(unknown.clone())));
    let mut list = wanted(&[("win.a", "10.0.0.1")]);
    list.get_mut("win.a").unwrap().addresses = Err(unknown);
    let mut world = World {
        wanted: Some(list),
        records: BTreeMap::from([touched("win.a", InstanceState::Ready)]),
        nodes: vec![node("win-1", Some("win.a"), "10.0.0.1", true)],
        ..World::default()
    };
    assert_eq!(
        world.todo("win.a", 0),
        Some(Todo::Note(InstanceState::Ready, None))
    );
    world.nodes[0].lacks_files = true;
    assert_eq!(world.todo("win.a", 0), failing);
    world.nodes.clear();
    assert_eq!(world.todo("win.a", 0), failing);
}

#[test]
fn a_list_that_cannot_be_read_takes_nobody_out() {
    let mut world = World {
        records: BTreeMap::from([touched("a", InstanceState::Ready)]),
        ..World::default()
    };
    assert_eq!(world.decide(0), InstanceDecision::default());
    world.wanted = Some(BTreeMap::new());
    world.unclear = BTreeSet::from(["a".to_owned()]);
    assert_eq!(world.decide(0), nothing());
}

#[test]
fn a_machine_that_is_listed_twice_is_one() {
    let mut world = World {
        wanted: Some(wanted(&[("10.0.0.1", "10.0.0.1"), ("win.a", "10.0.0.1")])),
        ..World::default()
    };
    let begin = Todo::Begin(Work::Configure);
    let todo = world.decide(0).todo;
    assert_eq!(todo["10.0.0.1"], begin);
    let Todo::Note(InstanceState::Failing, Some(problem)) = &todo["win.a"] else {
        panic!("{todo:?}")
    };
    assert!(
        problem.message.contains("same machine as 10.0.0.1"),
        "{problem:?}"
    );
    // The one that was there first counts.
    let (name, record) = touched("win.a", InstanceState::Configuring);
    world.records.insert(name, record);
    let todo = world.decide(0).todo;
    assert_eq!(todo["win.a"], begin);
    assert!(matches!(
        todo["10.0.0.1"],
        Todo::Note(InstanceState::Failing, Some(_))
    ));
}

#[test]
fn what_a_machine_was_goes_with_it_and_nobody_knocks_there_again() {
    let name = called("machines", "w1");
    let mut world = World {
        wanted: Some(BTreeMap::new()),
        records: BTreeMap::from([touched(&name, InstanceState::Ready)]),
        nodes: vec![node("w1", Some(&name), "10.0.0.1", true)],
        ..World::default()
    };
    assert_eq!(world.todo(&name, 0), Some(Todo::Forget));
    // Its Node stays until somebody else has drained it.
    world.records.clear();
    assert_eq!(world.decide(0), nothing());
    // Work that was begun ends first.
    world
        .records
        .extend([touched(&name, InstanceState::Failing)]);
    world.busy.insert(name.clone(), Work::Configure);
    assert_eq!(world.todo(&name, 0), None);
    // A machine of the list is never taken for one.
    assert!(!is_machine("10.0.0.1") && !is_machine("machine.example.com"));
}

#[test]
fn a_node_whose_pods_have_left_is_upgraded_until_its_new_agent_was_started() {
    let mut one = node("win-1", Some("a"), "10.0.0.1", true);
    one.current.0 = stated("1.0.0-aaaaaaa");
    one.desired.0.clone_from(&one.current.0);
    let mut world = World {
        wanted: Some(wanted(&[("a", "10.0.0.1")])),
        records: BTreeMap::from([touched("a", InstanceState::Ready)]),
        nodes: vec![one],
        version: "2.0.0-abc1234".parse().ok(),
        ..World::default()
    };
    assert_eq!(
        world.todo("a", 0),
        Some(Todo::Note(InstanceState::Ready, None))
    );
    // What it lacks we do not have: it is of another version.
    world.nodes[0].lacks_files = true;
    assert_eq!(
        world.todo("a", 0),
        Some(Todo::Note(InstanceState::Ready, None))
    );
    let begin = Some(Todo::Begin(Work::Upgrade));
    for (upgrade, state) in [
        (UpgradeStage::Supply, InstanceState::Ready),
        (UpgradeStage::Supply, InstanceState::Starting),
        (UpgradeStage::Supply, InstanceState::Upgrading),
        // Whoever did it was killed before the agent was started.
        (UpgradeStage::Apply, InstanceState::Upgrading),
        (UpgradeStage::Apply, InstanceState::Failing),
        // The same, and it was looked at before anybody knew that it is upgraded.
        (UpgradeStage::Apply, InstanceState::Starting),
    ] {
        world.nodes[0].upgrade = Some(upgrade);
        world.records = BTreeMap::from([touched("a", state)]);
        assert_eq!(world.todo("a", 0), begin, "{upgrade:?} {state}");
    }
    let (name, mut record) = touched("a", InstanceState::Starting);
    record.started = stated("1.0");
    world.records = BTreeMap::from([(name.clone(), record.clone())]);
    assert_eq!(world.todo("a", 0), begin, "its agent is of another version");
    record.started = world.version.clone().map(StatedVersion::from);
    world.records = BTreeMap::from([(name, record)]);
    assert_eq!(
        world.todo("a", 0),
        Some(Todo::Note(InstanceState::Starting, None))
    );
    // A failure is tried again after a pause.
    let (name, mut record) = touched("a", InstanceState::Failing);
    record.retry_at = Some(at(10));
    world.records = BTreeMap::from([(name, record)]);
    assert_eq!(world.todo("a", 5), None);
    assert_eq!(world.todo("a", 11), begin);
    // A version that somebody took off a node is no reason to configure it anew.
    world.nodes[0].upgrade = None;
    world.nodes[0].lacks_files = false;
    world.nodes[0].current.0 = None;
    assert_eq!(
        world.todo("a", 11),
        Some(Todo::Note(InstanceState::Starting, None))
    );
}

#[test]
fn pauses_grow_while_the_same_fails_and_are_short_again_when_something_else_does() {
    use FailureKind::{AgentFailed, DiskFull};

    let problem = |category| InstanceFailure::new(category, String::new());
    let mut record = InstanceRecord::default();
    let mut pauses = Vec::new();
    for category in [DiskFull, DiskFull, DiskFull, DiskFull, AgentFailed] {
        // It is tried again in between.
        record.enter(InstanceState::Configuring, "", at(0));
        record.fail(&problem(category), at(0));
        let until = record.retry_at.unwrap();
        pauses.push(until.duration_since(at(0)).as_secs());
    }
    assert_eq!(pauses, [5, 10, 20, 40, 10]);
    record.enter(InstanceState::Ready, "", at(0));
    record.fail(&problem(AgentFailed), at(0));
    assert_eq!(record.failures, 1);
}

#[test]
fn what_is_to_be_done_is_remembered_and_said_once() {
    let lost = InstanceFailure::new(FailureKind::NoAddress, "it has no address");
    let news = Some(Notice::warning(
        "NoAddress",
        "instance a: it has no address",
    ));
    let unread = InstanceFailure::new(FailureKind::NotKnownYet, "not read yet");
    let within = Duration::from_mins(15);
    let mut record = InstanceRecord::default();
    let failing = refused(lost.clone());
    assert_eq!(record.take("a", &failing, within, at(0)), news);
    assert_eq!(record.take("a", &failing, within, at(1)), None);
    assert_eq!(
        (record.state, record.since),
        (InstanceState::Failing, at(0))
    );
    // Nobody hears of what is only not known yet.
    let waiting = Todo::Note(InstanceState::Waiting, Some(unread));
    assert_eq!(record.take("a", &waiting, within, at(2)), None);
    assert_eq!(record.category, Some(FailureKind::NotKnownYet));
    assert_eq!(record.take("a", &failing, within, at(3)), news);

    let wait = Todo::Wait {
        why: "waiting: x".to_owned(),
        is_ready: false,
    };
    let said = record.take("a", &wait, within, at(4)).unwrap();
    assert_eq!(said.category, "RemovalWaits");
    assert_eq!(record.take("a", &wait, within, at(5)), None);
    let undrained = Todo::BeginUndrained { since: at(4) };
    let said = record.take("a", &undrained, within, at(1000)).unwrap();
    assert!(said.message.contains("longer than 900s"), "{said:?}");
    assert_eq!(record.leaving_since, Some(at(4)));

    // What failed counts as failing until it has come further, and what leaves as leaving.
    for (work, failures, state) in [
        (Work::Configure, 0, InstanceState::Configuring),
        (Work::Restore, 0, InstanceState::Configuring),
        (Work::LogIn, 0, InstanceState::Starting),
        (Work::Upgrade, 0, InstanceState::Upgrading),
        (Work::Upgrade, 2, InstanceState::Failing),
        (Work::Deconfigure, 2, InstanceState::Leaving),
    ] {
        let mut record = InstanceRecord::default();
        for _ in 0..failures {
            record.fail(&lost, at(0));
        }
        assert_eq!(record.take("a", &Todo::Begin(work), within, at(0)), None);
        assert_eq!(
            (record.state, record.failures),
            (state, failures),
            "{work:?}"
        );
        assert_eq!(record.message, "connecting");
        assert_eq!(record.leaving_since.is_some(), work == Work::Deconfigure);
    }
    // Nobody goes there: what was said last of it is why.
    let mut record = InstanceRecord::default();
    record.fail(&lost, at(0));
    let before = record.clone();
    record.take("a", &Todo::Begin(Work::Abandon), within, at(9));
    assert_eq!(record, before);
    let said = Work::Abandon.failed("a", &lost);
    assert_eq!(
        said.message,
        "instance a: cannot be removed: it has no address"
    );
}

/// Covers O08.
#[test]
fn a_node_of_openshifts_operator_is_looked_at_once_waits_for_its_turn_and_is_left_alone_when_it_is_delisted()
 {
    let theirs = |upgrade| WindowsNode {
        current: (stated("10.20.1-4bd2d8b"), None),
        desired: (stated("10.20.1-4bd2d8b"), None),
        is_wmcos: true,
        upgrade,
        ..node("win-1", None, "10.0.0.1", false)
    };
    let mut world = World {
        wanted: Some(wanted(&[("10.0.0.1", "10.0.0.1")])),
        nodes: vec![theirs(None)],
        version: Some("1.2.3-abc1234".parse().unwrap()),
        ..World::default()
    };
    // By its address alone nobody knows it; whoever goes there finds out.
    let todo = world.todo("10.0.0.1", 0);
    assert_eq!(todo, Some(Todo::Begin(Work::Configure)));
    // Its Machine says which Node it is.
    let record = InstanceRecord {
        node: Some("win-1".to_owned()),
        ..InstanceRecord::default()
    };
    world.records.insert("10.0.0.1".to_owned(), record);
    for upgrade in [None, Some(UpgradeStage::Supply)] {
        world.nodes = vec![theirs(upgrade)];
        let todo = world.todo("10.0.0.1", 0);
        assert_eq!(todo, Some(Todo::Begin(Work::Survey)), "{upgrade:?}");
    }
    let record = world.records.get_mut("10.0.0.1").unwrap();
    record.is_touched = true;
    record.learn(Fact::Surveyed, at(0));
    assert!(record.is_untaken());
    world.nodes = vec![theirs(None)];
    let waits = Todo::Note(InstanceState::Waiting, None);
    assert_eq!(world.todo("10.0.0.1", 0), Some(waits));
    world.nodes = vec![theirs(Some(UpgradeStage::Supply))];
    let todo = world.todo("10.0.0.1", 0);
    assert_eq!(todo, Some(Todo::Begin(Work::Upgrade)));
    // Nothing of ours is on it.
    world.wanted = Some(BTreeMap::new());
    assert_eq!(world.todo("10.0.0.1", 0), Some(Todo::Forget));
    let leaving = world.decide(0).leaving.unwrap();
    assert_eq!(leaving["10.0.0.1"], None, "and its Node is not drained");
    // From the moment that its folder is ours it is taken out as every node is.
    let record = world.records.get_mut("10.0.0.1").unwrap();
    record.learn(Fact::Secured, at(0));
    let leaving = world.decide(0).leaving.unwrap();
    assert_eq!(leaving["10.0.0.1"].as_deref(), Some("win-1"));
    let todo = world.todo("10.0.0.1", 0);
    assert!(matches!(todo, Some(Todo::Wait { .. })), "{todo:?}");
}
