//! `WindowsPool` for the cluster.

use serde_json::{Value, json};

use super::{AGE, Naming, definition, structural};
use crate::names::group;
use crate::windows::windows_pool::{KIND, PLURAL, VERSION, WindowsPoolSpec, WindowsPoolStatus};

pub(super) fn pools() -> Value {
    let status = |kind: &str| format!(".status.conditions[?(@.type==\"{kind}\")].status");
    let (updating, degraded) = (status("Updating"), status("Degraded"));
    let columns = [
        ("Version", "string", ".status.version"),
        ("Nodes", "integer", ".status.nodes.total"),
        ("Updated", "integer", ".status.nodes.updated"),
        ("Failing", "integer", ".status.nodes.failing"),
        ("Updating", "string", updating.as_str()),
        ("Degraded", "string", degraded.as_str()),
        AGE,
    ];
    let schema = json!({
        "description": "How the Windows nodes of the cluster are changed, and the progress of that. Only the object named windows is read.",
        "type": "object",
        "properties": { "spec": structural::<WindowsPoolSpec>(), "status": structural::<WindowsPoolStatus>() },
    });
    let naming = Naming {
        group: group::EVENKEEL,
        version: VERSION,
        kind: KIND,
        plural: PLURAL,
        short: "wpool",
        has_status: true,
    };
    definition(&naming, &columns, &schema)
}
