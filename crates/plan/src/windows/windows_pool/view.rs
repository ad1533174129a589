//! The Windows pool as people look at it: which node is on its way from where to where, how far it is, and what it waits
//! for. All of it is read off the pool's status and the nodes, by anybody who may look.

use std::fmt;

use evenkeel_api::windows::version::StatedVersion;
use evenkeel_api::windows::windows_pool::{
    UpdatePhase, UpdatingNode, WindowsPoolStatus, condition,
};

use super::{OwnedNodes, is_managed_node};
use crate::fleet::node::Node;
use crate::windows::upgrade::gate::OF_THE_NODE;

/// A node as people look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowsNodeView<'a> {
    /// The name of the node.
    pub node: &'a str,
    /// The version that it runs.
    pub from: Option<&'a StatedVersion>,
    /// The version that it goes to; none if it is there.
    pub to: Option<&'a StatedVersion>,
    /// How far it is.
    pub state: WindowsNodeProgress,
    /// What it waits for; nothing if it is as it should be.
    pub waits_for: String,
}

impl WindowsNodeView<'_> {
    /// Whether it is as it should be.
    pub fn is_done(&self) -> bool {
        self.state == WindowsNodeProgress::Done
    }
}

/// How far a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowsNodeProgress {
    /// It is as it should be.
    Done,
    /// It runs what it is to run, and its kubelet is not ready.
    NotReady,
    /// It is being configured for the first time.
    New,
    /// It has to wait.
    Waiting,
    /// It is on its way, or cannot go on.
    Updating(UpdatePhase),
}

impl fmt::Display for WindowsNodeProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "Done",
            Self::NotReady => "NotReady",
            Self::New => "New",
            Self::Waiting => "Waiting",
            Self::Updating(phase) => phase.as_str(),
        })
    }
}

/// All nodes of ours in the order of their names, and those that are gone until another one serves in their place. Who
/// is only listed, and never was a node, is not among them.
pub fn view<'a>(status: &'a WindowsPoolStatus, nodes: &[&'a Node]) -> Vec<WindowsNodeView<'a>> {
    let nobody = OwnedNodes::default();
    let ours = nodes
        .iter()
        .copied()
        .filter(|it| is_managed_node(it, &nobody));
    let mut views: Vec<_> = ours.map(|node| one(status, node)).collect();
    let is_there = |name: &str| nodes.iter().any(|it| it.name == name);
    let gone = status.updating.iter().filter(|it| !is_there(&it.node));
    views.extend(gone.map(|granted| WindowsNodeView {
        node: &granted.node,
        from: None,
        to: Some(&granted.to).filter(|it| !it.is_empty()),
        state: WindowsNodeProgress::Updating(granted.phase),
        waits_for: match &granted.machine_set {
            Some(set) => format!("a new Machine of MachineSet {set} to replace it"),
            None => "its Node, which was deleted".to_owned(),
        },
    }));
    views.sort_by_key(|it| it.node);
    views
}

fn one<'a>(status: &'a WindowsPoolStatus, node: &'a Node) -> WindowsNodeView<'a> {
    let windows = node.windows.as_deref();
    let from = windows.and_then(|it| it.version.as_ref());
    let has_served = from.is_some() || windows.is_some_and(|it| it.current_services.is_some());
    let is_there = from == Some(&status.version) || status.version.is_empty();
    let granted = status.granted(&node.name);
    let (state, waits_for) = match granted {
        Some(granted) => (
            WindowsNodeProgress::Updating(granted.phase),
            on_its_way(status, granted, node),
        ),
        None if !has_served => (
            WindowsNodeProgress::New,
            "being configured for the first time".to_owned(),
        ),
        None if !is_there => (WindowsNodeProgress::Waiting, before_rollout(status)),
        None if node.is_degraded() => (
            WindowsNodeProgress::Updating(UpdatePhase::Failing),
            node.reason.clone().unwrap_or_default(),
        ),
        None if !node.ready => (
            WindowsNodeProgress::NotReady,
            "the kubelet to become ready".to_owned(),
        ),
        None => (WindowsNodeProgress::Done, String::new()),
    };
    let to = match granted {
        Some(granted) if granted.removal => None,
        Some(granted) => Some(&granted.to).filter(|it| from != Some(it)),
        None if is_there => None,
        None => Some(&status.version),
    };
    WindowsNodeView {
        node: &node.name,
        from,
        to,
        state,
        waits_for,
    }
}

fn on_its_way(status: &WindowsPoolStatus, granted: &UpdatingNode, node: &Node) -> String {
    let reason = node.reason.clone().filter(|it| !it.is_empty());
    match granted.phase {
        UpdatePhase::Granted => "its drain to start".to_owned(),
        UpdatePhase::Draining => reason.unwrap_or_else(|| "its pods to leave".to_owned()),
        UpdatePhase::Supplying => "its new files to be copied".to_owned(),
        UpdatePhase::Removing => "its instance to be cleaned up".to_owned(),
        UpdatePhase::Replacing => {
            let set = granted.machine_set.as_deref().unwrap_or_default();
            format!("its Machine to be deleted; MachineSet {set} creates a new one")
        }
        UpdatePhase::Failing => reason
            .or_else(|| said(status, condition::DEGRADED, "True"))
            .unwrap_or_default(),
        UpdatePhase::Applying => {
            reason.unwrap_or_else(|| "its agent to apply the new version".to_owned())
        }
    }
}

fn before_rollout(status: &WindowsPoolStatus) -> String {
    let refused = said(status, condition::UPGRADEABLE, "False");
    let stopped = status
        .condition(condition::UPDATING)
        .filter(|it| {
            let words = ["Stopped", "Paused", "Waiting"];
            let mut words = words.into_iter().chain(OF_THE_NODE);
            words.any(|word| word == it.reason)
        })
        .map(|it| it.message.clone());
    let ahead: Vec<_> = status.updating.iter().map(|it| it.node.as_str()).collect();
    refused.or(stopped).unwrap_or_else(|| {
        if ahead.is_empty() {
            "the operator".to_owned()
        } else {
            format!("{} to finish", ahead.join(", "))
        }
    })
}

/// What a condition that is `value` says.
fn said(status: &WindowsPoolStatus, kind: &str, value: &str) -> Option<String> {
    let found = status.condition(kind).filter(|it| it.status == value);
    found.map(|it| it.message.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::node::WindowsFacts;
    use crate::fleet::rollout::told;

    #[test]
    fn every_node_says_where_it_goes_and_what_it_waits_for() {
        let node = |name: &str, version: &str| Node {
            name: name.to_owned(),
            ready: true,
            windows: Some(Box::new(WindowsFacts {
                version: Some(version.to_owned().into()),
                ..WindowsFacts::default()
            })),
            ..Node::default()
        };
        let nodes = [node("c", "1.0"), node("a", "2.0"), node("b", "1.0")];
        let nodes: Vec<_> = nodes.iter().collect();
        let mut status = WindowsPoolStatus {
            version: "2.0".to_owned().into(),
            updating: vec![UpdatingNode {
                node: "b".to_owned(),
                to: "2.0".to_owned().into(),
                phase: UpdatePhase::Draining,
                ..UpdatingNode::default()
            }],
            ..WindowsPoolStatus::default()
        };
        let shown = |status: &WindowsPoolStatus| {
            let view = view(status, &nodes);
            let line = |it: &WindowsNodeView<'_>| {
                let text =
                    |it: Option<&StatedVersion>| it.map(ToString::to_string).unwrap_or_default();
                let versions = (text(it.from), text(it.to));
                format!("{} {versions:?} {}: {}", it.node, it.state, it.waits_for)
            };
            view.iter().map(line).collect::<Vec<_>>()
        };
        assert_eq!(
            shown(&status),
            [
                r#"a ("2.0", "") Done: "#,
                r#"b ("1.0", "2.0") Draining: its pods to leave"#,
                r#"c ("1.0", "2.0") Waiting: b to finish"#,
            ]
        );
        let kind = condition::UPDATING;
        status.conditions = vec![told(kind, true, "Paused", "spec.paused is true")];
        assert!(shown(&status)[2].ends_with("Waiting: spec.paused is true"));
        let kind = condition::UPGRADEABLE;
        status.conditions = vec![told(kind, false, "KubernetesTooOld", "too old")];
        assert!(shown(&status)[2].ends_with("Waiting: too old"));

        // One that is removed goes to no version.
        status.updating = vec![UpdatingNode {
            node: "b".to_owned(),
            phase: UpdatePhase::Removing,
            removal: true,
            ..UpdatingNode::default()
        }];
        status.conditions = Vec::new();
        assert_eq!(
            shown(&status)[1],
            r#"b ("1.0", "") Removing: its instance to be cleaned up"#
        );

        // With Recreate the node goes, and its place is kept.
        status.updating = ["b", "gone"]
            .map(|node| UpdatingNode {
                node: node.to_owned(),
                to: "2.0".to_owned().into(),
                phase: UpdatePhase::Replacing,
                machine_set: Some("ns/win".to_owned()),
                removal: false,
            })
            .into();
        assert_eq!(
            [1, 3].map(|at| shown(&status)[at].clone()),
            [
                r#"b ("1.0", "2.0") Replacing: its Machine to be deleted; MachineSet ns/win creates a new one"#,
                r#"gone ("", "2.0") Replacing: a new Machine of MachineSet ns/win to replace it"#,
            ]
        );
    }
}
