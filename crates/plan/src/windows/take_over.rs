//! Nodes that OpenShift's operator for Windows nodes made (WMCO): by what they are recognised, what must be there before
//! one of them is drained for its upgrade, and what of it is replaced.
//!
//! That operator writes its version and the hash of its SSH key on a Node. On the machine are its agent
//! `windows-instance-config-daemon` and the services that this one keeps, all with our tag, and everything else of it below
//! `C:\k`. A Node's annotations are evidence about that Node: which machine it is, the machine says that was
//! reached at a listed address.

use std::fmt;

use evenkeel_api::names::{label, windows};
use evenkeel_api::windows::services::hostname_override;

use crate::fleet::node::Node;
use crate::windows::upgrade::gate;

/// What that operator left on a machine, as programs of Windows say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WmcoMachine {
    /// The command of the kubelet's service, if there is one.
    pub kubelet: Option<String>,
    /// The name of the machine, if it has one.
    pub host_name: Option<String>,
    /// Whether the kubelet's own login is there.
    pub has_login: bool,
}

impl WmcoMachine {
    /// The Node that it is, as its kubelet was told, or by its own name.
    pub fn node_name(&self) -> String {
        let told = self.kubelet.as_deref().and_then(hostname_override);
        let name = told.or(self.host_name.as_deref()).unwrap_or_default();
        name.to_lowercase()
    }
}

/// What a node lacks that is to be taken over, or its machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// The service of the operator's agent.
    Daemon,
    /// The kubelet's service.
    Kubelet,
    /// The kubelet's own login.
    Login,
    /// The Node of this name.
    Node(String),
    /// On this Node, what that operator writes on every node of its own.
    Marks(String),
    /// That operator was stopped while it upgraded the node.
    Upgrading,
    /// That operator was stopped before it rebooted the node.
    Reboot,
    /// The node does not run what that operator told it.
    Behind {
        /// What it was told.
        told: String,
        /// What it runs.
        runs: String,
    },
}

/// What helps where that operator did not come to its end.
const FINISH: &str = "start OpenShift's operator again until it has finished the node";
/// What helps where a machine is not as that operator leaves it.
const ANEW: &str = "start OpenShift's operator again until it has repaired the node, or drain and delete the Node and reset the machine: Evenkeel then configures it as a new one";

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Daemon => write!(
                f,
                "service {} with program {} is not installed: {ANEW}",
                windows::WMCO_SERVICE,
                windows::WMCO_AGENT
            ),
            Self::Kubelet => write!(
                f,
                "service {} is not installed: {ANEW}",
                windows::KUBELET_SERVICE
            ),
            Self::Login => write!(
                f,
                "file {} is missing, with which the kubelet logs in as its Node: {ANEW}",
                windows::KUBECONFIG
            ),
            Self::Node(name) => write!(
                f,
                "there is no Node {name}, as which its kubelet runs: start service {} on it, or {ANEW}",
                windows::KUBELET_SERVICE
            ),
            Self::Marks(name) => write!(
                f,
                "Node {name} lacks the annotations that OpenShift's operator writes at its end: {FINISH}"
            ),
            Self::Upgrading => write!(
                f,
                "label {} is on its Node, because OpenShift's operator was stopped during an upgrade: {FINISH}",
                label::WMCO_UPGRADING
            ),
            Self::Reboot => write!(
                f,
                "its Node waits for a reboot by OpenShift's operator: {FINISH}"
            ),
            Self::Behind { told, runs } => write!(
                f,
                "its Node was told to run {told} and runs {runs}: {FINISH}"
            ),
        }
    }
}

/// In one sentence, for people.
pub fn joined(missing: &[Missing]) -> String {
    let all: Vec<_> = missing.iter().map(ToString::to_string).collect();
    all.join("; ")
}

/// What that operator did not finish on `node`; nothing of a node that it did not make.
pub fn unfinished(node: &Node) -> Option<Vec<Missing>> {
    let windows = node.windows.as_deref().filter(|it| it.is_wmcos())?;
    let mut missing = Vec::new();
    if node.labels.get(label::WMCO_UPGRADING).is_some() {
        missing.push(Missing::Upgrading);
    }
    if windows.wmco_reboot.is_some() {
        missing.push(Missing::Reboot);
    }
    if windows.version != windows.desired_version {
        missing.push(Missing::Behind {
            told: gate::shown(windows.desired_version.as_ref()),
            runs: gate::shown(windows.version.as_ref()),
        });
    }
    Some(missing)
}

/// What a `machine` lacks that has the operator's agent.
pub fn missing(machine: &WmcoMachine) -> Vec<Missing> {
    let mut missing = Vec::new();
    if machine.kubelet.is_none() {
        missing.push(Missing::Kubelet);
    }
    if !machine.has_login {
        missing.push(Missing::Login);
    }
    missing
}

/// The value `name` in what `reg.exe query` prints.
pub fn registry_value(printed: &str, name: &str) -> Option<String> {
    printed.lines().find_map(|line| {
        let (found, rest) = line.trim().split_once(char::is_whitespace)?;
        let (kind, value) = rest.trim().split_once(char::is_whitespace)?;
        let is_it = found.eq_ignore_ascii_case(name) && kind.starts_with("REG_");
        is_it.then(|| value.trim().to_owned())
    })
}

#[cfg(test)]
pub(in crate::windows) mod tests {
    use std::collections::BTreeMap;

    use evenkeel_api::names::annotation;
    use jiff::Timestamp;

    use super::*;

    pub(in crate::windows) const VERSION: &str = "10.20.1-4bd2d8b";

    /// A Node as that operator leaves it.
    pub(in crate::windows) fn node(others: &[(&str, &str)], labels: &[&str]) -> Node {
        let mut annotations = BTreeMap::from([
            (annotation::WINDOWS_VERSION, VERSION),
            (annotation::WINDOWS_DESIRED_VERSION, VERSION),
            (annotation::WMCO_KEY_HASH, "1f3a"),
        ]);
        annotations.extend(others.iter().copied());
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let labels = labels.iter().map(|it| (*it, "true"));
        let labels = labels.chain([(label::OS, "windows")]).map(own).collect();
        let annotations = annotations.into_iter().filter(|(_, it)| !it.is_empty());
        Node::of(
            "win-1".to_owned(),
            Timestamp::UNIX_EPOCH,
            &labels,
            annotations.map(own).collect(),
        )
    }

    /// Covers O08.
    #[test]
    fn a_node_is_theirs_by_their_version_and_key_until_it_has_anything_of_ours() {
        assert_eq!(unfinished(&node(&[], &[])), Some(Vec::new()));
        for (name, value) in [
            (annotation::WMCO_KEY_HASH, ""),
            (annotation::WINDOWS_VERSION, ""),
            (annotation::CURRENT_SERVICES, "hash"),
            (
                annotation::SUPPLIED,
                "2.0.0-abc1234 hash 2026-01-01T00:00:00Z",
            ),
        ] {
            let node = node(&[(name, value)], &[]);
            assert_eq!(unfinished(&node), None, "{name}={value}");
        }
        let linux = Node {
            windows: None,
            ..node(&[], &[])
        };
        assert_eq!(unfinished(&linux), None);
    }

    /// Covers O08.
    #[test]
    fn what_their_operator_did_not_finish_is_named_with_what_helps() {
        let behind = Missing::Behind {
            told: "10.21.0-aaaaaaa".to_owned(),
            runs: VERSION.to_owned(),
        };
        for (annotations, labels, expected) in [
            (vec![], vec![label::WMCO_UPGRADING], Missing::Upgrading),
            (
                vec![(annotation::WMCO_REBOOT, " ")],
                vec![],
                Missing::Reboot,
            ),
            (
                vec![(annotation::WINDOWS_DESIRED_VERSION, "10.21.0-aaaaaaa")],
                vec![],
                behind,
            ),
        ] {
            let found = unfinished(&node(&annotations, &labels)).unwrap();
            assert_eq!(found, std::slice::from_ref(&expected));
            assert!(expected.to_string().ends_with(FINISH), "{expected}");
        }
    }

    /// Covers O08.
    #[test]
    fn a_machine_lacks_what_its_node_could_not_go_on_without() {
        let whole = WmcoMachine {
            kubelet: Some("kubelet.exe".to_owned()),
            host_name: Some("WIN-1".to_owned()),
            has_login: true,
        };
        assert_eq!(whole.node_name(), "win-1");
        assert_eq!(missing(&whole), []);
        let both = [Missing::Kubelet, Missing::Login];
        assert_eq!(missing(&WmcoMachine::default()), both);
    }

    #[test]
    fn what_the_registry_says_is_read_whatever_stands_around_it() {
        let printed = "\r\nHKEY_LOCAL_MACHINE\\SYSTEM\\CurrentControlSet\\Services\\kubelet\r\n    ImagePath    REG_EXPAND_SZ    C:\\k\\kubelet.exe --v=2\r\n\r\n";
        let value = |name| registry_value(printed, name);
        assert_eq!(
            value("imagepath").as_deref(),
            Some(r"C:\k\kubelet.exe --v=2")
        );
        assert_eq!(value("Hostname"), None);
        assert_eq!(registry_value("ERROR: not found", "ERROR:"), None);
    }
}
