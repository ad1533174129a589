//! Whether a newer version of the operator may be installed, as OLM is told: not while nodes are still on their way to
//! this one, and not while something stands in their way.

use evenkeel_api::fleet::machine_config_pool::Condition;
use evenkeel_api::windows::windows_pool::{WindowsPoolStatus, condition};

use crate::fleet::rollout::told;

/// What OLM is told; `status` is that of the Windows pool, if there is one.
pub fn upgradeable(status: Option<&WindowsPoolStatus>) -> Condition {
    let kind = condition::UPGRADEABLE;
    let Some(status) = status else {
        return told(kind, true, "AsExpected", "there is no WindowsPool");
    };
    // What another operator cares for does not hold ours up.
    if status
        .condition(condition::IDLE)
        .is_some_and(|it| it.status == "True")
    {
        return told(
            kind,
            true,
            "AsExpected",
            "another operator manages Windows nodes",
        );
    }
    match status.condition(kind) {
        Some(said) if said.status == "False" => {
            return told(kind, false, said.reason.as_str(), said.message.as_str());
        }
        _ => {}
    }
    let nodes = status.nodes;
    if nodes.updated < nodes.total {
        let note = format!(
            "{} of {} Windows nodes do not run {} yet: install the next version when they do",
            nodes.total - nodes.updated,
            nodes.total,
            status.version
        );
        return told(kind, false, "NodesUpdating", note);
    }
    told(kind, true, "AsExpected", "all Windows nodes are updated")
}

#[cfg(test)]
mod tests {
    use evenkeel_api::windows::windows_pool::WindowsNodeCounts;

    use super::*;

    fn status(total: u32, updated: u32, conditions: Vec<Condition>) -> WindowsPoolStatus {
        WindowsPoolStatus {
            version: "1.2.3-abc1234".to_owned().into(),
            nodes: WindowsNodeCounts {
                total,
                updated,
                ..WindowsNodeCounts::default()
            },
            conditions,
            ..WindowsPoolStatus::default()
        }
    }

    #[test]
    fn a_newer_version_waits_for_nodes_on_their_way_and_for_what_stands_in_their_way() {
        let trouble = told(
            condition::UPGRADEABLE,
            false,
            "NewerVersionInstalled",
            "uninstall it",
        );
        let fine = told(condition::UPGRADEABLE, true, "AsExpected", "");
        let idle = told(condition::IDLE, true, "OtherOperatorAlive", "");
        for (status, says, reason) in [
            (None, "True", "AsExpected"),
            (Some(status(0, 0, vec![])), "True", "AsExpected"),
            (Some(status(3, 3, vec![fine.clone()])), "True", "AsExpected"),
            (Some(status(3, 2, vec![fine])), "False", "NodesUpdating"),
            (
                Some(status(3, 3, vec![trouble.clone()])),
                "False",
                "NewerVersionInstalled",
            ),
            (
                Some(status(3, 1, vec![trouble, idle])),
                "True",
                "AsExpected",
            ),
        ] {
            let said = upgradeable(status.as_ref());
            assert_eq!(
                (said.status.as_str(), said.reason.as_str()),
                (says, reason),
                "{status:?}"
            );
            // The API server wants both.
            assert!(
                !said.reason.is_empty() && !said.message.is_empty(),
                "{said:?}"
            );
        }
    }
}
