//! A new node takes no pods before its first configuration is `Done`, where its pool says so.

use evenkeel_api::machine::node_state::NodeState;
use evenkeel_api::names::taint;

use crate::fleet::node::Node;
use crate::fleet::pool::Pool;

/// Whether the taint is to be on a node of `pool` from now on; nothing if it is as it should be. A pause and a rollout that
/// has stopped change nothing about it. What somebody else configures is not ours to taint.
pub(super) fn taint_of(pool: &Pool, node: &Node) -> Option<bool> {
    if node.is_foreign() {
        return None;
    }
    let has_it = node.taints.contains(taint::FIRST_CONFIG);
    let is_done = node.current_config.is_some() && node.state == Some(NodeState::Done);
    // A node that had its first configuration before is never closed again.
    let is_new = node.current_config.is_none() || has_it;
    let wanted = pool.first_config_first && is_new && !is_done;
    (wanted != has_it).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_new_node_is_closed_until_it_is_done_once() {
        let pool = Pool {
            first_config_first: true,
            ..Pool::default()
        };
        let new = Node::default();
        assert_eq!(taint_of(&pool, &new), Some(true));
        assert_eq!(taint_of(&Pool::default(), &new), None);
        let closed = Node {
            taints: BTreeSet::from([taint::FIRST_CONFIG]),
            ..new
        };
        assert_eq!(taint_of(&pool, &closed), None);
        // The pool asks for it no more.
        assert_eq!(taint_of(&Pool::default(), &closed), Some(false));
        let working = Node {
            current_config: Some("first".to_owned()),
            state: Some(NodeState::Working),
            ..closed.clone()
        };
        assert_eq!(taint_of(&pool, &working), None);
        let done = Node {
            state: Some(NodeState::Done),
            ..working
        };
        assert_eq!(taint_of(&pool, &done), Some(false));
        let open = Node {
            taints: BTreeSet::new(),
            ..done
        };
        for state in [NodeState::Working, NodeState::Degraded, NodeState::Done] {
            let later = Node {
                state: Some(state),
                ..open.clone()
            };
            assert_eq!(taint_of(&pool, &later), None, "{later:?}");
        }
        let foreign = Node {
            desired_config: Some("theirs".to_owned()),
            taints: BTreeSet::from([taint::FIRST_CONFIG]),
            ..Node::default()
        };
        assert_eq!(taint_of(&pool, &foreign), None);
    }
}
