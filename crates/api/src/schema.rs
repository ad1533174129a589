//! Schemas of fields that several kinds have.

use schemars::{Schema, SchemaGenerator, json_schema};

/// A number of nodes from 1, or a percentage of them.
pub(crate) fn number_or_percent(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "anyOf": [{ "type": "integer" }, { "type": "string" }],
        "default": 1,
        "x-kubernetes-validations": [{
            "rule": "type(self) == int ? self >= 1 : self.matches('^(100|[1-9][0-9]?)%$')",
            "message": "write a number of nodes from 1, or a percentage from \"1%\" to \"100%\"",
        }],
    })
}

/// A point in time.
pub(crate) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}
