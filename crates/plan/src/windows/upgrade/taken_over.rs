//! Whether a node that OpenShift's operator made may begin its upgrade: the owner says so, and its machine was checked.

use evenkeel_api::windows::windows_pool::Strategy;

use super::{UpgradeContext, gate};
use crate::fleet::node::Node;
use crate::windows::take_over::{joined, unfinished};
use crate::windows::windows_pool::trouble::PoolFailure;

/// Why a `node` of that operator is not upgraded now. One whose Machine is made anew needs nothing of its machine.
pub fn refused(node: &Node, strategy: Strategy, context: &UpgradeContext) -> Option<PoolFailure> {
    let trouble = |category, note| Some(PoolFailure { category, note });
    let version = node.windows.as_ref().and_then(|it| it.version.as_ref());
    let made = format!(
        "it was made by OpenShift's Windows Machine Config Operator {}",
        gate::shown(version)
    );
    if !context.takes_over {
        let note = format!(
            "{made}: start evenkeel-operator with --take-over=windows to take it over, or leave it as it is"
        );
        return trouble(gate::NOT_TAKEN_OVER, note);
    }
    if !context.backing.contains_key(&node.name) {
        let note = format!(
            "{made}, and no listed machine was recognised as it: list its address in windows-instances, or see in `evenkeel status instances` what its machine lacks"
        );
        return trouble(gate::NOT_LISTED, note);
    }
    if context.renewed(strategy, &node.name).is_some() {
        return None;
    }
    let unfinished = unfinished(node).unwrap_or_default();
    if !unfinished.is_empty() {
        return trouble(gate::TAKE_OVER_REFUSED, joined(&unfinished));
    }
    if !context.surveyed.contains(&node.name) {
        let why = context.troubles.get(&node.name);
        let why = why.map_or("its machine was not checked yet", String::as_str);
        return trouble(gate::TAKE_OVER_REFUSED, format!("{made}: {why}"));
    }
    None
}

#[cfg(test)]
mod tests {
    use evenkeel_api::names::label;

    use super::*;
    use crate::windows::take_over::tests::{VERSION, node};
    use crate::windows::upgrade::Backing;

    /// Covers O08.
    #[test]
    fn none_of_their_nodes_is_drained_before_the_owner_says_so_and_its_machine_was_checked() {
        let own = node(&[], &[]);
        let mut context = UpgradeContext::default();
        let why = |node: &Node, context: &UpgradeContext| {
            let refused = refused(node, Strategy::InPlace, context);
            refused.map(|it| (it.category, it.note))
        };
        let (category, note) = why(&own, &context).unwrap();
        assert_eq!(category, gate::NOT_TAKEN_OVER);
        assert!(note.contains(VERSION) && note.contains("--take-over=windows"));
        context.takes_over = true;
        let (category, note) = why(&own, &context).unwrap();
        assert_eq!(category, gate::NOT_LISTED);
        assert!(note.contains("windows-instances"), "{note}");
        context.backing.insert("win-1".to_owned(), Backing::Listed);
        let (category, note) = why(&own, &context).unwrap();
        assert_eq!(category, gate::TAKE_OVER_REFUSED);
        assert!(note.contains("was not checked yet"), "{note}");
        let failed = "the instance refused the login".to_owned();
        context.troubles.insert("win-1".to_owned(), failed);
        let (_, note) = why(&own, &context).unwrap();
        assert!(note.contains("refused the login"), "{note}");
        context.troubles.clear();
        context.surveyed.insert("win-1".to_owned());
        assert_eq!(why(&own, &context), None);
        // What happens on it after it was checked counts, too.
        let (category, note) = why(&node(&[], &[label::WMCO_UPGRADING]), &context).unwrap();
        assert_eq!(category, gate::TAKE_OVER_REFUSED);
        assert!(note.contains(label::WMCO_UPGRADING), "{note}");
        // A Machine that is made anew loses nothing.
        context.surveyed.clear();
        let machine = Backing::Machine {
            name: "m".to_owned(),
            set: Some("set".to_owned()),
        };
        context.backing.insert("win-1".to_owned(), machine);
        assert!(why(&own, &context).is_some());
        let anew = refused(&own, Strategy::Recreate, &context);
        assert_eq!(anew, None);
    }
}
