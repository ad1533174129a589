//! Which Node a machine may be. A machine may claim any name, and a kubelet may write anything on its own Node:
//! a claim counts only if nobody else's word is against it, and no claim of one decides over another.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use evenkeel_api::windows::version::StatedVersion;

use super::{DesiredInstance, FailureKind, InstanceFailure, InstanceRecord, WindowsNode};
use crate::excerpt::excerpt;
use crate::fleet::node_facts::NodeFacts;
use crate::windows::take_over::{self, Missing};

/// Names that lead to the API server or to a Service from wherever somebody asks.
const RESERVED: [&str; 4] = ["localhost", "kubernetes", "kubernetes.default", "svc"];
/// The longest name that an object may have.
const LONGEST_NAME: usize = 253;

/// A machine that says which Node it is.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// The machine, as it is called among instances.
    pub instance: &'a str,
    /// The name that it claims.
    pub node: &'a str,
    /// Where it is listed, and where it was reached: what it says of that itself does not count.
    pub addresses: &'a [IpAddr],
    /// The Node of that name, if there is one.
    pub found: Option<&'a Found>,
    /// What is remembered of all machines.
    pub records: &'a BTreeMap<String, InstanceRecord>,
    /// Whether the machine may be a Node that OpenShift's operator made.
    pub takes_over: bool,
}

/// A Node of any kind, as far as it tells whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// Its name.
    pub name: String,
    /// Whether its label says that it runs Windows.
    pub is_windows: bool,
    /// The machine that it was made of, as our annotation says.
    pub instance: Option<String>,
    /// Its addresses and names, as its kubelet says.
    pub addresses: Vec<String>,
    /// Which object it is, and at which version: whoever writes to it writes to this one.
    pub uid: Option<String>,
    /// See `uid`.
    pub resource_version: Option<String>,
    /// The version that it runs.
    pub version: Option<StatedVersion>,
    /// The version that it was told to run.
    pub desired_version: Option<StatedVersion>,
    /// Whose files were brought to its machine in the middle of an upgrade, as written on it.
    pub supplied: Option<String>,
    /// What of a node of OpenShift's operator is not as it must be, if it is one.
    pub wmco: Option<Vec<Missing>>,
}

impl From<NodeFacts> for Found {
    fn from(facts: NodeFacts) -> Self {
        let is_windows = facts.node.is_windows();
        let wmco = take_over::unfinished(&facts.node);
        let windows = facts.node.windows.map(|it| *it).unwrap_or_default();
        let instance = facts.instance.map(|it| {
            let name = it.rsplit_once('@').map_or(&*it, |(_, name)| name);
            name.to_owned()
        });
        Self {
            name: facts.node.name,
            is_windows,
            instance,
            addresses: windows.addresses,
            uid: Some(facts.uid),
            resource_version: Some(facts.version),
            version: windows.version,
            desired_version: windows.desired_version,
            supplied: windows.supplied,
            wmco,
        }
    }
}

impl Found {
    fn is_at(&self, addresses: &[IpAddr]) -> bool {
        has_any(&self.addresses, addresses)
    }
}

impl Claim<'_> {
    /// Refuses a name that is somebody else's.
    pub fn check(&self) -> Result<(), InstanceFailure> {
        if !is_node_name(self.node) {
            return Err(InstanceFailure::new(
                FailureKind::InvalidNodeName,
                format!(
                    "the computer name {:?} is not a valid name for a Node: give the machine a computer name of letters, digits and hyphens that no Service has",
                    excerpt(self.node)
                ),
            ));
        }
        match self.objection() {
            None => Ok(()),
            Some(why) => Err(InstanceFailure::new(
                FailureKind::NodeNameTaken,
                format!("the machine claims to be Node {}, but {why}", self.node),
            )),
        }
    }

    /// Why the claim does not count.
    fn objection(&self) -> Option<String> {
        let is_known = self.records.get(self.instance);
        let is_known = is_known.is_some_and(|it| it.node.as_deref() == Some(self.node));
        let mut others = self.records.iter();
        // Who only claimed a name and never was that Node keeps it from nobody.
        let other = others.find(|(name, it)| {
            *name != self.instance && it.node.as_deref() == Some(self.node) && it.started.is_some()
        });
        if let Some((other, _)) = other {
            return Some(format!(
                "instance {other} is that Node: give one of them another computer name"
            ));
        }
        let found = self.found?;
        if !found.is_windows {
            return Some(
                "that Node does not run Windows: give the machine another computer name".to_owned(),
            );
        }
        let is_taken_over = self.takes_over && found.wmco.is_some();
        match found.instance.as_deref() {
            Some(instance) if instance != self.instance => Some(format!(
                "that Node belongs to instance {}: give the machine another computer name",
                excerpt(instance)
            )),
            // It was at our own hands that it became this one.
            Some(_) if is_known => None,
            None if !(is_known || is_taken_over) => Some(
                "Evenkeel did not create that Node: delete it if its machine was recreated, or give this machine another computer name"
                    .to_owned(),
            ),
            _ if found.is_at(self.addresses) => None,
            // Its cloud gives it one when it knows it, and until then its name is all that there is of it.
            None if is_known && has_none(&found.addresses) => None,
            _ => Some(format!(
                "that Node has the address {} and the machine {}: give the machine another computer name, or, if it is that Node, list it with nodeAddress=<address of the Node>",
                excerpt(&found.addresses.join(", ")),
                joined(self.addresses)
            )),
        }
    }
}

/// Whether a Node is that of `instance`, whose record names it: by our annotation, or while it has none by its address; while
/// its cloud has not given it one either, by its name alone.
fn is_of(node: &WindowsNode, instance: &str, addresses: &[IpAddr]) -> bool {
    match node.instance.as_deref() {
        Some(of) => of == instance,
        None => has_any(&node.addresses, addresses) || has_none(&node.addresses),
    }
}

/// Where a machine is: as it is called, as people or its Machine say (`told`), and where it was reached. Where a name leads is
/// not among it, for whoever keeps the name can say anything.
pub fn addresses(instance: &str, record: Option<&InstanceRecord>, told: &[IpAddr]) -> Vec<IpAddr> {
    let called = instance.parse().ok();
    let reached = record.and_then(|it| it.address);
    let mut all: Vec<IpAddr> = told.iter().copied().chain(called).chain(reached).collect();
    all.sort();
    all.dedup();
    all
}

/// Where a machine is reached: where it is listed, else where it was last, or as it is called.
pub fn ways(
    instance: &str,
    record: &InstanceRecord,
    wanted: Option<&DesiredInstance>,
) -> Vec<IpAddr> {
    let listed = wanted.and_then(|it| it.addresses.clone().ok());
    let known = record.address.into_iter();
    listed.unwrap_or_else(|| known.chain(instance.parse()).collect())
}

/// The Node that a machine is: the one that our record of it names, or its Machine, if that is of it.
pub fn node_of<'n>(
    instance: &str,
    record: Option<&InstanceRecord>,
    wanted: Option<&DesiredInstance>,
    nodes: &'n [WindowsNode],
) -> Option<&'n WindowsNode> {
    let known = record.and_then(|it| it.node.as_deref());
    let known = known.or_else(|| wanted.and_then(|it| it.node.as_deref()))?;
    let told = wanted.map(|it| it.node_addresses.as_slice());
    let addresses = addresses(instance, record, told.unwrap_or_default());
    let mut nodes = nodes.iter();
    nodes.find(|it| it.name == known && is_of(it, instance, &addresses))
}

/// The Nodes that are machines of ours.
pub fn owned(
    records: &BTreeMap<String, InstanceRecord>,
    wanted: &BTreeMap<String, DesiredInstance>,
    nodes: &[WindowsNode],
) -> BTreeSet<String> {
    let machines: BTreeSet<&String> = records.keys().chain(wanted.keys()).collect();
    let owned = machines.into_iter().filter_map(|name| {
        let node = node_of(name, records.get(name), wanted.get(name), nodes)?;
        Some(node.name.clone())
    });
    owned.collect()
}

/// Whether a text can name a Node, and names nothing else.
pub fn is_node_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_fine = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'-';
        !label.is_empty()
            && label.bytes().all(is_fine)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_number = text.parse::<IpAddr>().is_ok();
    let is_service = text.split('.').skip(1).any(|it| it == "svc");
    text.len() <= LONGEST_NAME
        && text.split('.').all(is_label)
        && !is_number
        && !is_service
        && !RESERVED.contains(&text)
}

fn has_any(own: &[String], addresses: &[IpAddr]) -> bool {
    let own = own.iter().filter_map(|it| it.parse::<IpAddr>().ok());
    own.into_iter().any(|it| addresses.contains(&it))
}

/// Whether a Node has no address, but perhaps names.
fn has_none(own: &[String]) -> bool {
    own.iter().all(|it| it.parse::<IpAddr>().is_err())
}

fn joined(addresses: &[IpAddr]) -> String {
    let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::windows::instances::InstanceState;

    const OWN: [IpAddr; 1] = [IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1))];

    fn found(is_windows: bool, instance: Option<&str>, address: &str) -> Found {
        Found {
            is_windows,
            instance: instance.map(str::to_owned),
            addresses: vec![address.to_owned(), "win-1".to_owned()],
            ..Found::default()
        }
    }

    fn record(node: Option<&str>, started: bool) -> InstanceRecord {
        InstanceRecord {
            state: InstanceState::Configuring,
            node: node.map(str::to_owned),
            started: started.then(|| "1.2.3-abc1234".to_owned().into()),
            ..InstanceRecord::default()
        }
    }

    fn check(
        node: &str,
        found: Option<&Found>,
        own: Option<&str>,
        other: Option<(&str, bool)>,
    ) -> Result<(), InstanceFailure> {
        let mut records = BTreeMap::from([("a".to_owned(), record(own, false))]);
        if let Some((node, started)) = other {
            records.insert("b".to_owned(), record(Some(node), started));
        }
        let claim = Claim {
            instance: "a",
            node,
            addresses: &OWN,
            found,
            records: &records,
            takes_over: false,
        };
        claim.check()
    }

    /// Covers O08, S01.
    #[test]
    fn a_node_of_openshifts_operator_is_that_of_the_machine_at_its_address_and_of_no_other() {
        let node = |address: &str, instance: Option<&str>| Found {
            wmco: Some(Vec::new()),
            ..found(true, instance, address)
        };
        let records = BTreeMap::from([("b".to_owned(), record(Some("win-2"), true))]);
        let check = |name: &str, found: &Found, takes_over: bool| {
            let claim = Claim {
                instance: "a",
                node: name,
                addresses: &OWN,
                found: Some(found),
                records: &records,
                takes_over,
            };
            claim.check().map_err(|it| it.message)
        };
        let here = node("10.0.0.1", None);
        assert_eq!(check("win-1", &here, true), Ok(()));
        let bare = found(true, None, "10.0.0.1");
        for (what, name, found, takes_over, words) in [
            ("nobody looks", "win-1", &here, false, "did not create"),
            ("not theirs", "win-1", &bare, true, "did not create"),
            (
                "elsewhere",
                "win-1",
                &node("10.0.0.2", None),
                true,
                "has the address 10.0.0.2",
            ),
            (
                "without an address",
                "win-1",
                &node("win-1.internal", None),
                true,
                "has the address win-1.internal",
            ),
            (
                "of another instance",
                "win-1",
                &node("10.0.0.1", Some("b")),
                true,
                "belongs to instance b",
            ),
            ("another's", "win-2", &here, true, "instance b is that Node"),
        ] {
            let said = check(name, found, takes_over).unwrap_err();
            assert!(said.contains(words), "{what}: {said}");
        }
    }

    /// Covers S01.
    #[test]
    fn a_name_counts_only_if_nobody_has_it_or_it_is_our_node_at_the_address_that_was_reached() {
        let windows = |instance, address| Some(found(true, instance, address));
        let (here, there) = ("10.0.0.1", "10.0.0.2");
        for (what, found, own, other) in [
            ("a new name", None, None, None),
            (
                "a name that somebody only claimed",
                None,
                None,
                Some(("win-1", false)),
            ),
            (
                "our Node, whose record was lost",
                windows(Some("a"), here),
                None,
                None,
            ),
            ("our Node", windows(Some("a"), here), Some("win-1"), None),
            (
                "our Node at another of its addresses",
                windows(Some("a"), there),
                Some("win-1"),
                None,
            ),
            (
                "a Node that was not annotated yet",
                windows(None, here),
                Some("win-1"),
                None,
            ),
            (
                "a Node that its cloud gave no address yet",
                windows(None, "win-1.internal"),
                Some("win-1"),
                None,
            ),
        ] {
            assert_eq!(check("win-1", found.as_ref(), own, other), Ok(()), "{what}");
        }
        for (what, found, own, other, words) in [
            (
                "a Linux node",
                Some(found(false, None, here)),
                Some("win-1"),
                None,
                "not run Windows",
            ),
            (
                "one with our mark",
                Some(found(false, Some("a"), here)),
                None,
                None,
                "not run Windows",
            ),
            (
                "another instance's",
                windows(Some("b"), here),
                Some("win-1"),
                None,
                "instance b",
            ),
            (
                "that of others",
                windows(None, here),
                None,
                None,
                "Evenkeel did not create that Node",
            ),
            (
                "that of others, without an address",
                windows(None, "win-1.internal"),
                None,
                None,
                "Evenkeel did not create that Node",
            ),
            (
                "another instance's, without an address",
                windows(Some("b"), "win-1.internal"),
                Some("win-1"),
                None,
                "instance b",
            ),
            (
                "elsewhere",
                windows(None, there),
                Some("win-1"),
                None,
                "nodeAddress=",
            ),
            (
                "elsewhere, with our mark",
                windows(Some("a"), there),
                None,
                None,
                "nodeAddress=",
            ),
            (
                "another record's",
                None,
                Some("win-1"),
                Some(("win-1", true)),
                "instance b is",
            ),
            (
                "another record's Node",
                windows(Some("a"), here),
                Some("win-1"),
                Some(("win-1", true)),
                "instance b is",
            ),
        ] {
            let problem = check("win-1", found.as_ref(), own, other).unwrap_err();
            assert_eq!(problem.category, FailureKind::NodeNameTaken, "{what}");
            assert!(problem.message.contains(words), "{what}: {problem:?}");
        }
    }

    /// Covers S01.
    #[test]
    fn what_cannot_name_a_node_or_names_a_service_is_refused() {
        for name in ["win-1", "ip-10-0-0-1.ec2.internal", "w"] {
            assert_eq!(check(name, None, None, None), Ok(()), "{name}");
        }
        let long = "x".repeat(254);
        for name in [
            "",
            "Win-1",
            "win_1",
            "-win",
            "win-",
            "a..b",
            "a/status",
            "../secrets/x",
            "a b",
            "a\"b",
            "a\nb",
            "10.0.0.1",
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "web.shop.svc.cluster.local",
            &long,
        ] {
            let problem = check(name, None, None, None).unwrap_err();
            assert_eq!(problem.category, FailureKind::InvalidNodeName, "{name:?}");
            assert!(problem.message.len() < 2048, "{}", problem.message.len());
        }
    }

    /// Covers W02.
    #[test]
    fn a_node_without_an_address_is_the_machine_whose_record_names_it_and_no_other() {
        let record = InstanceRecord {
            address: Some(OWN[0]),
            ..record(Some("win-1"), true)
        };
        let node = |name: &str, instance: Option<&str>, addresses: &[&str]| WindowsNode {
            name: name.to_owned(),
            instance: instance.map(str::to_owned),
            addresses: addresses.iter().map(|it| (*it).to_owned()).collect(),
            ..WindowsNode::default()
        };
        let is = |node: WindowsNode| node_of("a", Some(&record), None, &[node]).is_some();
        assert!(is(node("win-1", None, &[])));
        assert!(is(node("win-1", None, &["win-1.internal"])));
        assert!(is(node("win-1", None, &["10.0.0.1"])));
        assert!(!is(node("win-1", None, &["10.0.0.2"])));
        assert!(!is(node("win-1", Some("b"), &[])));
        assert!(!is(node("win-2", None, &[])));
    }

    proptest! {
        /// Covers S01.
        #[test]
        fn whatever_other_nodes_say_a_machine_is_the_node_that_its_record_names(
            nodes in prop::collection::vec(("win-[1-3]", prop::option::of("[ab]"), "10\\.0\\.0\\.[1-3]"), 0..6),
            own in prop::option::of("win-[1-3]"),
        ) {
            let record = InstanceRecord { address: Some(OWN[0]), ..record(own.as_deref(), true) };
            let nodes: Vec<WindowsNode> = nodes.into_iter().map(|(name, instance, address)| WindowsNode {
                name, instance, addresses: vec![address], ..WindowsNode::default()
            }).collect();
            let seen = node_of("a", Some(&record), None, &nodes);
            prop_assert_eq!(own.is_none() && seen.is_some(), false);
            if let Some(seen) = seen {
                prop_assert_eq!(Some(&seen.name), own.as_ref());
                prop_assert_ne!(seen.instance.as_deref(), Some("b"));
            }
        }
    }
}
