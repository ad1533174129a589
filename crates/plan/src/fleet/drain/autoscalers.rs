//! Nodes with a disruption permit are left alone by those who would remove them meanwhile: the Cluster Autoscaler, which sees an
//! empty node, and Karpenter, which sees one that is unhealthy, too. Their annotations go on with the permit and off
//! with it, in the same write; what people set there stays as they set it.

use evenkeel_api::names::{annotation, autoscaler};

use crate::fleet::autoscaler_marks::Mark;
use crate::fleet::node::{DrainRequest, Node, NodePatch};

/// The same change, with which the node is held from autoscalers.
pub(super) fn held(node: &Node, mut change: NodePatch) -> NodePatch {
    let marks = &node.autoscalers;
    let mut ours = Vec::new();
    for (name, mark) in marks.all() {
        if mark == Mark::Absent {
            change = change.with(name, autoscaler::HELD);
            ours.push(name);
        } else if marks.has_ours(name) {
            ours.push(name);
        }
    }
    change.with(annotation::AUTOSCALER_ANNOTATIONS, ours.join(","))
}

/// The same change, with which autoscalers may have the node again. What a person wrote over ours stays.
pub(super) fn released(node: &Node, mut change: NodePatch) -> NodePatch {
    let marks = &node.autoscalers;
    if marks.ours.is_none() {
        return change;
    }
    for name in autoscaler::ALL {
        if marks.has_ours(name) {
            change = change.without(name);
        }
    }
    change.without(annotation::AUTOSCALER_ANNOTATIONS)
}

/// What is to be written because somebody else took an annotation off a node with a permit, or its permit off a node with
/// annotations of ours, or because a version that knew nothing of them granted it.
pub(super) fn put_right(node: &Node) -> Option<NodePatch> {
    let marks = &node.autoscalers;
    let change = if !node.claims_permit() {
        released(node, NodePatch::default())
    } else if !node.has_permit
        || node.is_foreign()
        || matches!(node.request(), DrainRequest::Uncordon(_))
        || (marks.ours.is_some() && !marks.found.contains(&Mark::Absent))
    {
        return None;
    } else {
        held(node, NodePatch::default())
    };
    (!change.is_empty()).then_some(change)
}
