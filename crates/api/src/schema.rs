//! Schemas of fields that several kinds have.

use schemars::{Schema, SchemaGenerator, json_schema};

/// A point in time.
pub(crate) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}
