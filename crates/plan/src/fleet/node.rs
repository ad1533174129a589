//! What the operator remembers of a Node: the few facts that decide, and not the 12 KiB of the whole
//! object. Also what it changes on one, as a value.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::field::Field;
use evenkeel_api::machine::node_state::NodeState;
use evenkeel_api::names::{annotation, autoscaler, cordon, label};
use evenkeel_api::windows::version::{StatedVersion, Version};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::fleet::autoscaler_marks::{AutoscalerMarks, Mark};
use crate::fleet::labels::Labels;
use crate::machine::phase::OnDrift;
use crate::machine::voucher::DesiredConfig;

/// A Node, as narrow as decisions need it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// When its object was made.
    pub created: Timestamp,
    /// Its operating system, as its label says.
    pub os: Option<String>,
    /// All of its labels.
    pub labels: Labels,
    /// Whether its kubelet says that it is ready.
    pub ready: bool,
    /// Since when it is not ready, or its kubelet is not heard, as its condition says.
    pub not_ready_since: Option<Timestamp>,
    /// Whether it is cordoned, by whomever.
    pub unschedulable: bool,
    /// The taints of ours that it has, by their keys.
    pub taints: BTreeSet<&'static str>,
    /// What its agent asks for.
    pub desired_drain: Option<String>,
    /// What was answered last.
    pub last_applied_drain: Option<String>,
    /// Who of us cordoned it.
    pub cordoned_by: Option<String>,
    /// Since when it has a permit to be down, as written on it.
    pub drain_granted: Option<String>,
    /// Whether the operator's own record says that it has a disruption permit, whatever is written on it; for the caller
    /// to fill in.
    pub has_permit: bool,
    /// Which of the operator's own pods go in its drain, as written on it.
    pub own_pods: Option<String>,
    /// What it says to autoscalers.
    pub autoscalers: AutoscalerMarks,
    /// What the operator said of a drain that takes too long.
    pub drain_overdue: Option<String>,
    /// Why its state is what it is, for people.
    pub reason: Option<String>,
    /// The rendered configuration that it is to run.
    pub desired_config: Option<String>,
    /// The configuration that our operator vouches for.
    pub voucher: Option<String>,
    /// The rendered configuration that it runs.
    pub current_config: Option<String>,
    /// What its agent says.
    pub state: Option<NodeState>,
    /// What happens on drift, as written on it.
    pub drift: Field<OnDrift>,
    /// What only a Windows node has; most nodes are none.
    pub windows: Option<Box<WindowsFacts>>,
}

/// What is remembered of a Windows node besides the rest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WindowsFacts {
    /// The version that it runs, as its agent says.
    pub version: Option<StatedVersion>,
    /// The version that it was granted.
    pub desired_version: Option<StatedVersion>,
    /// The hash of the services that it is to run.
    pub desired_services: Option<String>,
    /// The hash of the services that it runs.
    pub current_services: Option<String>,
    /// Payload files that its agent could not restore, as written on it.
    pub missing_files: Option<String>,
    /// Whose files were brought to its machine in the middle of an upgrade, as written on it.
    pub supplied: Option<String>,
    /// The hash of the SSH key of OpenShift's operator, on a node that this one made.
    pub wmco_key: Option<String>,
    /// Whether that operator is to reboot it, as written on it.
    pub wmco_reboot: Option<String>,
    /// Its addresses and host names; for the caller to fill in.
    pub addresses: Vec<String>,
}

impl WindowsFacts {
    /// Whether it runs this version, as its agent says.
    pub fn runs(&self, version: &Version) -> bool {
        self.version.as_ref().is_some_and(|it| it == version)
    }

    /// Whether OpenShift's operator made it, and nobody of us came after that one. Whose its machine is this does not say.
    pub fn is_wmcos(&self) -> bool {
        self.wmco_key.is_some()
            && self.version.is_some()
            && self.supplied.is_none()
            && self.current_services.is_none()
    }

    /// Whether it is told this version.
    pub fn is_told(&self, version: &Version) -> bool {
        let told = self.desired_version.as_ref();
        told.is_some_and(|it| it == version)
    }
}

/// What an agent asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainRequest<'a> {
    /// Nothing, or it was answered.
    None,
    /// Pods shall leave the node; the text is the whole request.
    Drain(&'a str),
    /// Pods may come again; the text is the whole request.
    Uncordon(&'a str),
    /// Something that we do not know.
    Unknown(&'a str),
}

impl Node {
    /// Whether pods were ever let on a Windows node, as far as its agent says.
    pub fn has_served(&self) -> bool {
        let windows = self.windows.as_deref();
        windows.is_some_and(|it| it.version.is_some() || it.current_services.is_some())
    }

    /// What it is to run, and whether that is our word.
    pub fn desired(&self) -> DesiredConfig<'_> {
        DesiredConfig::of(self.desired_config.as_deref(), self.voucher.as_deref())
    }

    /// Whether it is told by somebody else what to run. Windows nodes have no such configurations.
    pub fn is_foreign(&self) -> bool {
        !self.is_windows() && matches!(self.desired(), DesiredConfig::Foreign(_))
    }

    /// What its agent asks for and did not get yet. What a foreign node asks for is asked of somebody else.
    pub fn request(&self) -> DrainRequest<'_> {
        if self.is_foreign() {
            return DrainRequest::None;
        }
        let Some(desired) = self.desired_drain.as_deref().filter(|it| !it.is_empty()) else {
            return DrainRequest::None;
        };
        // A permit is returned with the answer to an uncordon: whoever has it still was answered so to an
        // earlier request of the same words, and not to this one.
        let is_answered = !desired.starts_with("uncordon-") || !self.claims_permit();
        if self.last_applied_drain.as_deref() == Some(desired) && is_answered {
            return DrainRequest::None;
        }
        let has_target = |prefix| {
            desired
                .strip_prefix(prefix)
                .is_some_and(|target: &str| !target.is_empty())
        };
        if has_target("drain-") {
            DrainRequest::Drain(desired)
        } else if has_target("uncordon-") {
            DrainRequest::Uncordon(desired)
        } else {
            DrainRequest::Unknown(desired)
        }
    }

    /// The zone it is in; none if it does not say.
    pub fn zone(&self) -> &str {
        self.labels.get(label::ZONE).unwrap_or_default()
    }

    /// Whether it runs Windows, whatever else its labels say.
    pub fn is_windows(&self) -> bool {
        self.os.as_deref() == Some("windows")
    }

    /// Whether its agent says that it cannot go on. A state without a reason is older than the last
    /// thing that it was told: whoever tells it something new takes the reason off.
    pub fn is_degraded(&self) -> bool {
        self.state == Some(NodeState::Degraded)
            && self.reason.as_deref().is_some_and(|it| !it.is_empty())
    }

    /// Whether the cordon is that of the drain controller.
    pub fn is_cordoned_by_drain(&self) -> bool {
        self.cordoned_by.as_deref() == Some(cordon::DRAIN)
    }

    /// Whether it says that it has a permit to be down: that was written on it, and not yet taken off. What grants it
    /// something is the operator's own record alone.
    pub fn claims_permit(&self) -> bool {
        self.drain_granted.is_some()
    }

    /// Since when it has its permit. What cannot be read, or lies in the future because a clock was set
    /// back, counts as `now`.
    pub fn permit_since(&self, now: Timestamp) -> Option<Timestamp> {
        let written = self.drain_granted.as_deref()?;
        Some(
            written
                .parse()
                .map_or(now, |since: Timestamp| since.min(now)),
        )
    }
}

impl Node {
    /// What the labels and annotations of the Node `name` say; the rest is for the caller to fill in.
    pub fn of(
        name: String,
        created: Timestamp,
        labels: &BTreeMap<String, String>,
        mut annotations: BTreeMap<String, String>,
    ) -> Self {
        let os = labels.get(label::OS).cloned();
        let mut node = Self {
            name,
            created,
            windows: (os.as_deref() == Some("windows")).then(Box::default),
            os,
            labels: labels.iter().collect(),
            ..Self::default()
        };
        for (name, field) in node.annotated() {
            field.read(annotations.remove(name));
        }
        node
    }

    /// The annotations that are remembered, and where.
    fn annotated(&mut self) -> impl Iterator<Item = (&'static str, &mut dyn Annotated)> {
        let all: [(&'static str, &mut dyn Annotated); 13] = [
            (annotation::DESIRED_DRAIN, &mut self.desired_drain),
            (annotation::LAST_APPLIED_DRAIN, &mut self.last_applied_drain),
            (annotation::CORDONED_BY, &mut self.cordoned_by),
            (annotation::DRAIN_GRANTED, &mut self.drain_granted),
            (annotation::DRAIN_OWN_PODS, &mut self.own_pods),
            (
                annotation::AUTOSCALER_ANNOTATIONS,
                &mut self.autoscalers.ours,
            ),
            (annotation::DRAIN_OVERDUE, &mut self.drain_overdue),
            (annotation::REASON, &mut self.reason),
            (annotation::DESIRED_CONFIG, &mut self.desired_config),
            (annotation::VOUCHER, &mut self.voucher),
            (annotation::CURRENT_CONFIG, &mut self.current_config),
            (annotation::STATE, &mut self.state),
            (annotation::DRIFT, &mut self.drift),
        ];
        let windows = self.windows.as_mut().map(|it| {
            let facts: [(&'static str, &mut dyn Annotated); 8] = [
                (annotation::WINDOWS_VERSION, &mut it.version),
                (annotation::WINDOWS_DESIRED_VERSION, &mut it.desired_version),
                (annotation::DESIRED_SERVICES, &mut it.desired_services),
                (annotation::CURRENT_SERVICES, &mut it.current_services),
                (annotation::MISSING_FILES, &mut it.missing_files),
                (annotation::SUPPLIED, &mut it.supplied),
                (annotation::WMCO_KEY_HASH, &mut it.wmco_key),
                (annotation::WMCO_REBOOT, &mut it.wmco_reboot),
            ];
            facts
        });
        let marks = autoscaler::ALL.into_iter();
        let marks = marks.zip(&mut self.autoscalers.found);
        let marks = marks.map(|(name, it)| (name, it as &mut dyn Annotated));
        all.into_iter()
            .chain(marks)
            .chain(windows.into_iter().flatten())
    }
}

impl Node {
    /// What the operator says of a drain that takes too long, while nobody has said anything else.
    pub fn overdue(&self) -> Option<&str> {
        let said = self.drain_overdue.as_deref();
        said.filter(|_| self.drain_overdue == self.reason)
    }
}

/// A fact that one annotation says.
trait Annotated {
    /// Takes what the annotation says now.
    fn read(&mut self, text: Option<String>);
}

impl<T: From<String>> Annotated for Option<T> {
    fn read(&mut self, text: Option<String>) {
        *self = text.map(T::from);
    }
}

impl Annotated for Mark {
    fn read(&mut self, text: Option<String>) {
        *self = Self::read(text.as_deref());
    }
}

impl<T: DeserializeOwned> Annotated for Field<T> {
    fn read(&mut self, text: Option<String>) {
        *self = Field::from(Value::from(text));
    }
}

/// What is to be different on a Node, in one write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodePatch {
    /// Cordoned or not; `None` leaves it.
    pub unschedulable: Option<bool>,
    /// Taints of ours that it is to have, or not to have, by their keys.
    pub taints: BTreeMap<&'static str, bool>,
    /// Annotations to write, or to remove.
    pub annotations: BTreeMap<&'static str, Option<String>>,
}

impl NodePatch {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Writes an annotation.
    #[must_use]
    pub fn with(mut self, annotation: &'static str, value: impl Into<String>) -> Self {
        self.annotations.insert(annotation, Some(value.into()));
        self
    }

    /// Removes an annotation.
    #[must_use]
    pub fn without(mut self, annotation: &'static str) -> Self {
        self.annotations.insert(annotation, None);
        self
    }

    /// Puts a taint of ours on, or takes it off.
    #[must_use]
    pub fn with_taint(mut self, key: &'static str, is_there: bool) -> Self {
        self.taints.insert(key, is_there);
        self
    }

    /// The node as it is once this is written.
    #[must_use]
    pub fn made_to(&self, node: &Node) -> Node {
        let mut node = node.clone();
        if let Some(unschedulable) = self.unschedulable {
            node.unschedulable = unschedulable;
        }
        for (key, is_there) in &self.taints {
            if *is_there {
                node.taints.insert(key);
            } else {
                node.taints.remove(key);
            }
        }
        for (name, field) in node.annotated() {
            if let Some(value) = self.annotations.get(name) {
                field.read(value.clone());
            }
        }
        node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uncordon_in_the_words_of_an_earlier_one_is_answered_once_more() {
        let text = |text: &str| Some(text.to_owned());
        let mut node = Node {
            desired_drain: text("uncordon-a"),
            last_applied_drain: text("uncordon-a"),
            ..Node::default()
        };
        assert_eq!(node.request(), DrainRequest::None);
        // It got a permit for drain-b and went back to a before the drain was over.
        node.drain_granted = text("2026-01-01T00:00:00Z");
        assert_eq!(node.request(), DrainRequest::Uncordon("uncordon-a"));
    }

    /// Covers O01.
    #[test]
    fn what_a_foreign_node_asks_for_is_not_asked_of_us() {
        let text = |text: &str| Some(text.to_owned());
        let mut node = Node {
            desired_config: text("rendered-worker-theirs"),
            desired_drain: text("drain-rendered-worker-theirs"),
            ..Node::default()
        };
        assert_eq!(node.request(), DrainRequest::None);
        node.voucher = text("rendered-worker-before");
        assert_eq!(
            node.request(),
            DrainRequest::None,
            "a voucher for something else"
        );
        node.voucher = node.desired_config.clone();
        let request = DrainRequest::Drain("drain-rendered-worker-theirs");
        assert_eq!(node.request(), request);
        // Windows nodes run no rendered configurations, whatever is written on them.
        node.voucher = None;
        node.os = text("windows");
        assert_eq!(node.request(), request);
    }
}
