//! `RolloutPolicy`: how pools that name it are rolled out. A `MachineConfigPool` names one by an annotation, the
//! `WindowsPool` by a field. What its texts mean is read by whoever decides by them.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use crate::field::Field;
use crate::located::Node;
use crate::shape::Shape::{Anything, List, Text};
use crate::shape::keys;

/// The kind of the object.
pub const KIND: &str = "RolloutPolicy";
/// Its name in requests.
pub const PLURAL: &str = "rolloutpolicies";
/// The version of its group.
pub const VERSION: &str = "v1alpha1";

/// How pools are rolled out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RolloutPolicySpec {
    /// Maintenance windows. A node starts to be disrupted only while one of them is open; without any, at any time. A
    /// node that started goes on after its window closes.
    #[schemars(length(max = 50))]
    pub windows: Field<Vec<Field<WindowSpec>>>,
    /// Freezes. While one lasts, no window is open.
    #[schemars(length(max = 100))]
    pub freezes: Field<Vec<Field<FreezeSpec>>>,
}

/// A maintenance window, which comes back.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["schedule", "duration"]))]
pub struct WindowSpec {
    /// When the window opens, days first, then the time of day. Days are `daily`, days of the week (`Sat`, `Mon-Fri`,
    /// `Sat,Sun`), days of the month (`1st`, `1st,15th`, `last day`), or both (`2nd Tuesday`, `last Friday`). For
    /// example `Sat 22:00`.
    #[schemars(schema_with = "schedule")]
    pub schedule: Field<String>,
    /// How long the window is open, for example `6h` or `1h30m`; at most 744h.
    #[schemars(schema_with = "duration")]
    pub duration: Field<String>,
    /// Time zone of the schedule, by its IANA name, for example `Europe/Prague`. Default UTC.
    #[schemars(length(min = 1, max = 64))]
    pub timezone: Field<String>,
}

/// A time in which nobody begins.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["from", "to"]))]
pub struct FreezeSpec {
    /// When the freeze begins. A date (`2026-12-20`), a date and time (`2026-12-20T18:00`), or the same with its offset
    /// (`2026-12-20T18:00:00Z`).
    #[schemars(length(min = 10, max = 40))]
    pub from: Field<String>,
    /// When the freeze ends, in the same form. A date is the last day of the freeze.
    #[schemars(length(min = 10, max = 40))]
    pub to: Field<String>,
    /// Time zone of times without an offset, by its IANA name. Default UTC.
    #[schemars(length(min = 1, max = 64))]
    pub timezone: Field<String>,
}

fn schedule(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 100,
        "pattern": r"^\s*[A-Za-z0-9,-]+(\s+[A-Za-z,-]+)?\s+([01]?[0-9]|2[0-3]):[0-5][0-9]\s*$",
    })
}

fn duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 20,
        "pattern": "^([0-9]+(ms|s|m|h))+$",
    })
}

keys! {
    /// The whole object.
    pub(crate) POLICY {
        apiVersion: Text.required(), kind: Text.required(), metadata: Anything.required(),
        spec: SPEC.required(), status: Anything,
    }
    SPEC { windows: List(WINDOW), freezes: List(FREEZE) }
    WINDOW { schedule: Text.required(), duration: Text.required(), timezone: Text }
    FREEZE { from: Text.required(), to: Text.required(), timezone: Text }
}

/// Reads the spec of a policy in a file, of which is known that it has only keys of ours.
pub(crate) fn read(policy: &Node<'_>) -> RolloutPolicySpec {
    let text = |node: &Node<'_>, key: &str| node.text(key).map(str::to_owned).into();
    let list = |key: &str| {
        policy
            .get("spec")
            .map(|spec| spec.list(key))
            .unwrap_or_default()
    };
    let windows = list("windows").iter().map(|it| {
        Field::Valid(WindowSpec {
            schedule: text(it, "schedule"),
            duration: text(it, "duration"),
            timezone: text(it, "timezone"),
        })
    });
    let freezes = list("freezes").iter().map(|it| {
        Field::Valid(FreezeSpec {
            from: text(it, "from"),
            to: text(it, "to"),
            timezone: text(it, "timezone"),
        })
    });
    RolloutPolicySpec {
        windows: Field::Valid(windows.collect()),
        freezes: Field::Valid(freezes.collect()),
    }
}
