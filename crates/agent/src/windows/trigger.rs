//! What may change on a Windows node, as the worker's queue holds it.

use std::collections::BTreeMap;

use evenkeel_plan::windows::trust::Published;

/// What may change on a Windows node.
#[derive(Debug)]
pub(crate) enum Change {
    /// The data of a services ConfigMap, or that there is none.
    Services {
        name: String,
        data: Option<BTreeMap<String, String>>,
    },
    /// Everything on the machine was looked at once.
    Looked,
    /// A script for the services with this hash has ended.
    Script {
        hash: String,
        path: String,
        printed: Result<String, String>,
    },
    /// What the cluster says of its trust bundle.
    Bundle(Published),
    /// The machine's trusted roots may have changed.
    Roots,
}

/// Something that may have changed.
pub(crate) type Trigger = crate::trigger::Trigger<Change>;
