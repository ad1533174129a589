//! What is learned of machines without going there: from their Nodes, from logins that were given, from Secrets that have
//! changed.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{DesiredInstance, Fact, FailureKind, InstanceRecord, WindowsNode, node_of};

/// A Secret whose change may end failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cure {
    /// The key that the operator logs in with.
    PrivateKey,
    /// The keys that machines had the first time.
    HostKeys,
}

impl Cure {
    fn ends(self, failure: &FailureKind) -> bool {
        match self {
            Self::PrivateKey => matches!(
                failure,
                FailureKind::InvalidSshKey | FailureKind::LoginRefused
            ),
            Self::HostKeys => *failure == FailureKind::HostKeyChanged,
        }
    }
}

/// Machines whose failure may be over with that change: they are tried at once.
pub fn cured(records: &BTreeMap<String, InstanceRecord>, cure: Cure) -> Vec<(String, Fact)> {
    let failed = records.iter().filter(|(_, record)| {
        let failure = record.category.as_ref();
        failure.is_some_and(|it| cure.ends(it))
    });
    failed
        .map(|(name, _)| (name.clone(), Fact::Cured))
        .collect()
}

/// What is to be remembered of machines: the Node of a Machine of which nothing was remembered, and until when `login_ends`
/// says that the agent of a Node was given a login. Whoever comes after us cannot know either.
pub fn learned(
    records: &BTreeMap<String, InstanceRecord>,
    wanted: &BTreeMap<String, DesiredInstance>,
    nodes: &[WindowsNode],
    login_ends: impl Fn(&str) -> Option<Timestamp>,
) -> Vec<(String, Fact)> {
    let mut facts = Vec::new();
    for (name, record) in records {
        let ends = record.node.as_deref().and_then(&login_ends);
        if let Some(ends) = ends
            && Some(ends) > record.login_ends
        {
            facts.push((name.clone(), Fact::LoginEnds(ends)));
        }
    }
    for (name, machine) in wanted.iter().filter(|(_, it)| it.node.is_some()) {
        let record = records.get(name);
        if record.is_none_or(|it| it.node.is_none())
            && let Some(node) = node_of(name, record, Some(machine), nodes)
        {
            facts.push((name.clone(), Fact::Touched));
            facts.push((name.clone(), Fact::Node(node.name.clone())));
        }
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(kind: FailureKind) -> InstanceRecord {
        InstanceRecord {
            category: Some(kind),
            ..InstanceRecord::default()
        }
    }

    #[test]
    fn a_secret_that_changed_ends_the_failures_that_came_from_it_and_no_others() {
        let records = BTreeMap::from([
            ("a".to_owned(), failed(FailureKind::LoginRefused)),
            ("b".to_owned(), failed(FailureKind::HostKeyChanged)),
            ("c".to_owned(), failed(FailureKind::InvalidSshKey)),
            ("d".to_owned(), failed(FailureKind::DiskFull)),
            ("e".to_owned(), InstanceRecord::default()),
        ]);
        let names = |cure| {
            let cured = cured(&records, cure).into_iter();
            cured
                .map(|(name, fact)| (name, fact == Fact::Cured))
                .collect::<Vec<_>>()
        };
        let yes = |name: &str| (name.to_owned(), true);
        assert_eq!(names(Cure::PrivateKey), [yes("a"), yes("c")]);
        assert_eq!(names(Cure::HostKeys), [yes("b")]);
    }

    #[test]
    fn a_later_login_is_remembered_and_an_earlier_one_takes_nothing_back() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let remembered = |ends: Option<Timestamp>| {
            let record = InstanceRecord {
                node: Some("win-a".to_owned()),
                login_ends: ends,
                ..InstanceRecord::default()
            };
            BTreeMap::from([("a".to_owned(), record)])
        };
        let facts = |before, given: Option<Timestamp>| {
            let given = |node: &str| given.filter(|_| node == "win-a");
            learned(&remembered(before), &BTreeMap::new(), &[], given)
        };
        let later = vec![("a".to_owned(), Fact::LoginEnds(at(9)))];
        assert_eq!(facts(None, Some(at(9))), later);
        assert_eq!(facts(Some(at(5)), Some(at(9))), later);
        assert_eq!(facts(Some(at(9)), Some(at(9))), []);
        assert_eq!(facts(Some(at(9)), Some(at(5))), []);
        assert_eq!(facts(Some(at(9)), None), []);
    }

    #[test]
    fn the_node_of_a_machine_of_which_nothing_is_known_is_remembered_once() {
        let address = "10.0.0.7";
        let machine = DesiredInstance {
            user: "Administrator".to_owned(),
            addresses: Ok(vec![address.parse().unwrap()]),
            node_addresses: vec![address.parse().unwrap()],
            node: Some("win-a".to_owned()),
        };
        let name = super::super::called("machines", "a");
        let wanted = BTreeMap::from([(name.clone(), machine)]);
        let node = WindowsNode {
            name: "win-a".to_owned(),
            addresses: vec![address.to_owned()],
            ..WindowsNode::default()
        };
        let facts = learned(
            &BTreeMap::new(),
            &wanted,
            std::slice::from_ref(&node),
            |_| None,
        );
        let node_fact = Fact::Node("win-a".to_owned());
        assert_eq!(
            facts,
            [(name.clone(), Fact::Touched), (name.clone(), node_fact)]
        );
        let mut record = InstanceRecord::default();
        for (_, fact) in facts {
            record.learn(fact, Timestamp::UNIX_EPOCH);
        }
        let records = BTreeMap::from([(name, record)]);
        assert_eq!(learned(&records, &wanted, &[node], |_| None), []);
        // A Node that is somebody else's is not this machine's.
        let other = WindowsNode {
            name: "win-a".to_owned(),
            addresses: vec!["10.0.0.8".to_owned()],
            ..WindowsNode::default()
        };
        assert_eq!(learned(&BTreeMap::new(), &wanted, &[other], |_| None), []);
    }
}
