//! A node that gets another version on the machine that it is: its pods leave, its agent is stopped, the services of
//! the old version go, the files of the new one come, it is told the new version, and its new agent does
//! the rest. All that anybody needs to go on from the middle is on the Node.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use evenkeel_api::names::annotation;
use evenkeel_api::notice::Notice;
use evenkeel_api::windows::version::Version;
use evenkeel_api::windows::windows_pool::UpdatePhase;
use jiff::Timestamp;

use crate::fleet::budget;
use crate::fleet::node::{DrainRequest, Node, NodePatch};
use crate::machine::phase::Drain;
use crate::windows::instances::{START, UpgradeStage};
use crate::windows::upgrade::gate;
use crate::windows::windows_pool::release::Grant;

/// How long after its files were there a node may take until it runs them and is ready.
pub const WITHIN: Duration = START;

/// The services whose files were brought to a node's machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Supplied {
    /// Version and hash.
    pub grant: Grant,
    /// When.
    pub at: Timestamp,
}

impl Supplied {
    /// As it is written on `node`; what cannot be read was not written by us.
    pub fn on(node: &Node) -> Option<Self> {
        node.windows.as_ref()?.supplied.as_ref()?.parse().ok()
    }
}

/// A text that does not say what was supplied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotSupplied;

impl FromStr for Supplied {
    type Err = NotSupplied;

    fn from_str(text: &str) -> Result<Self, NotSupplied> {
        let parts: Vec<_> = text.split(' ').collect();
        let [version, hash, at] = parts.as_slice() else {
            return Err(NotSupplied);
        };
        Ok(Self {
            grant: Grant {
                version: version.parse().map_err(|_| NotSupplied)?,
                hash: (*hash).to_owned(),
            },
            at: at.parse().map_err(|_| NotSupplied)?,
        })
    }
}

impl fmt::Display for Supplied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Grant { version, hash } = &self.grant;
        write!(f, "{version} {hash} {}", self.at)
    }
}

/// What is next for a node that was granted another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InPlaceStep {
    /// Its pods are asked to leave.
    Ask,
    /// They leave.
    AwaitDrain,
    /// Its machine is prepared: the old agent and its services go, new files come.
    Supply,
    /// Its files are there: it is told, and its agent brings it there.
    Apply,
}

impl InPlaceStep {
    /// What is next for `node` on its way to `version`.
    pub fn of(node: &Node, version: &Version) -> Self {
        let is_supplied = Supplied::on(node).is_some_and(|it| it.grant.version == *version);
        if is_supplied {
            Self::Apply
        } else if node.desired_drain.as_deref() != Some(&Drain::for_upgrade(version)) {
            Self::Ask
        } else if is_drained(node) {
            Self::Supply
        } else if node.request() == DrainRequest::None {
            // It was answered, and somebody took the permit away since.
            Self::Ask
        } else {
            Self::AwaitDrain
        }
    }

    /// How the pool's status calls it.
    pub fn phase(self) -> UpdatePhase {
        match self {
            Self::Ask => UpdatePhase::Granted,
            Self::AwaitDrain => UpdatePhase::Draining,
            Self::Supply => UpdatePhase::Supplying,
            Self::Apply => UpdatePhase::Applying,
        }
    }
}

/// Whether the pods of a node have left for what it asked for last.
fn is_drained(node: &Node) -> bool {
    node.claims_permit() && node.request() == DrainRequest::None
}

/// Whether pods of a node were asked to leave for an upgrade, and were not let in since.
pub fn is_held(node: &Node) -> bool {
    release_of(node).is_some()
}

/// How they are let in again. One that is down by our doing and asks for nothing, because somebody took its request
/// off, is let go, too.
fn release_of(node: &Node) -> Option<String> {
    match node.desired_drain.as_deref().filter(|it| !it.is_empty()) {
        Some(asked) => Drain::release_of_upgrade(asked),
        None if budget::holds_permit(node) => {
            let version = node.windows.as_ref()?.version.as_ref()?;
            Drain::release_of_upgrade(&Drain::for_upgrade(version))
        }
        None => None,
    }
}

/// Whether hands are needed on the machine of `node`, which was granted `version`.
pub fn hands_on(node: &Node, version: &Version) -> Option<UpgradeStage> {
    let windows = node.windows.as_ref()?;
    let has_served = windows.version.is_some() || windows.current_services.is_some();
    if !has_served || windows.runs(version) {
        return None;
    }
    match InPlaceStep::of(node, version) {
        InPlaceStep::Ask | InPlaceStep::AwaitDrain => None,
        InPlaceStep::Supply => Some(UpgradeStage::Supply),
        InPlaceStep::Apply => Some(UpgradeStage::Apply),
    }
}

/// Asks the pods of `node` to leave for `version`, unless that was asked.
pub fn ask(node: &Node, version: &Version) -> NodePatch {
    if InPlaceStep::of(node, version) != InPlaceStep::Ask {
        return keep_asking(node, version);
    }
    NodePatch::default()
        .with(annotation::DESIRED_DRAIN, Drain::for_upgrade(version))
        .without(annotation::LAST_APPLIED_DRAIN)
}

/// What was asked for stays so until the end, whoever writes there.
fn keep_asking(node: &Node, version: &Version) -> NodePatch {
    let request = Drain::for_upgrade(version);
    if node.desired_drain.as_deref() == Some(&request) {
        return NodePatch::default();
    }
    NodePatch::default().with(annotation::DESIRED_DRAIN, request)
}

/// Lets pods back on a `node` that runs what it is to run, and takes off what only an upgrade needs.
pub fn release(node: &Node) -> NodePatch {
    let mut change = NodePatch::default();
    if let Some(release) = release_of(node) {
        change = change.with(annotation::DESIRED_DRAIN, release);
    }
    let windows = node.windows.as_deref();
    if windows.is_some_and(|it| it.supplied.is_some()) {
        change = change.without(annotation::SUPPLIED);
    }
    // From here nobody takes it for a node of OpenShift's operator any more.
    if windows.is_some_and(|it| it.wmco_key.is_some()) {
        change = change.without(annotation::WMCO_KEY_HASH);
    }
    change
}

/// What `change` means for people, on its way to `target`: a node begins, is told, or is done.
pub fn notice(node: &Node, change: &NodePatch, target: Option<&Grant>) -> Option<Notice> {
    let to = &target?.version;
    let windows = node.windows.as_ref()?;
    let from = gate::shown(windows.version.as_ref());
    let after = change.made_to(node);
    let asked = after.desired_drain.as_deref();
    if change.annotations.contains_key(annotation::DESIRED_DRAIN) {
        if asked.is_some_and(Drain::is_for_upgrade) {
            let message = format!("upgrading from {from} to {to}: draining the node");
            return Some(Notice::normal("UpgradeBegins", message));
        }
        let message = format!("upgraded to {from}: the node takes pods again");
        return Some(Notice::normal("Upgraded", message));
    }
    let is_told = after.windows.as_ref()?.is_told(to);
    let is_upgrade = is_told && !windows.is_told(to) && !windows.runs(to);
    is_upgrade.then(|| {
        let message = format!(
            "upgrading from {from} to {to}: the files are copied, and the new agent starts"
        );
        Notice::normal("UpgradeApplies", message)
    })
}

/// Why a node that has its files for too long has not come to its end.
pub fn overdue(node: &Node, now: Timestamp) -> Option<String> {
    let supplied = Supplied::on(node)?;
    let late = now > supplied.at + WITHIN;
    late.then(|| {
        format!(
            "the files are complete since {}, but the node is not ready at version {}",
            supplied.at, supplied.grant.version
        )
    })
}
