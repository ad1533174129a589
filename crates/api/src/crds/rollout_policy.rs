//! `RolloutPolicy` for the cluster.

use serde_json::{Value, json};

use super::{AGE, Naming, definition, structural};
use crate::fleet::rollout_policy::{KIND, PLURAL, RolloutPolicySpec, VERSION};
use crate::names::group;

pub(super) fn policies() -> Value {
    let schema = json!({
        "description": "How pools are rolled out. A MachineConfigPool names its policy by the annotation evenkeel.dev/rollout-policy, the WindowsPool by spec.rolloutPolicy.",
        "type": "object",
        "required": ["spec"],
        "properties": { "spec": structural::<RolloutPolicySpec>() },
    });
    let naming = Naming {
        group: group::EVENKEEL,
        version: VERSION,
        kind: KIND,
        plural: PLURAL,
        short: "rpol",
        has_status: false,
    };
    definition(&naming, &[AGE], &schema)
}
