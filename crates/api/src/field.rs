//! A field of an object from the cluster. One that makes no sense is found and named by whoever reads the object, and
//! keeps nobody from reading the rest of it, or the other objects of its kind.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A field, as far as it makes sense.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Field<T> {
    /// It is not there.
    #[default]
    Absent,
    /// It says this.
    Valid(T),
    /// It says something else.
    Invalid {
        /// What.
        found: Value,
        /// Why that makes no sense.
        why: String,
    },
}

impl<T> Field<T> {
    /// What it says; nothing if it is not there or makes no sense.
    pub fn valid(self) -> Option<T> {
        match self {
            Self::Valid(value) => Some(value),
            Self::Absent | Self::Invalid { .. } => None,
        }
    }

    /// The same, while it stays.
    pub fn get(&self) -> Option<&T> {
        match self {
            Self::Valid(value) => Some(value),
            Self::Absent | Self::Invalid { .. } => None,
        }
    }
}

impl<T: DeserializeOwned> From<Value> for Field<T> {
    fn from(found: Value) -> Self {
        match serde_json::from_value(found.clone()) {
            Ok(Some(value)) => Self::Valid(value),
            Ok(None) => Self::Absent,
            Err(error) => Self::Invalid {
                why: error.to_string(),
                found,
            },
        }
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::from)
    }
}

impl<T: JsonSchema> JsonSchema for Field<T> {
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// Reads what only we write: what makes no sense is as good as absent, and written anew.
pub(crate) fn or_default<'de, T: DeserializeOwned + Default, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Object {
        flag: Field<bool>,
        number: Field<u32>,
        #[serde(deserialize_with = "or_default")]
        names: Vec<String>,
    }

    #[test]
    fn a_field_that_makes_no_sense_keeps_nobody_from_reading_the_others() {
        let read = |json| serde_json::from_value::<Object>(json).unwrap();
        assert_eq!(read(json!({ "flag": null })), Object::default());
        let object = read(json!({ "flag": "on", "number": 3, "names": "x" }));
        assert_eq!(object.number.valid(), Some(3));
        assert_eq!(object.flag.get(), None);
        let Field::Invalid { found, why } = object.flag else {
            panic!("\"on\" is no flag");
        };
        assert_eq!(found, "on");
        assert!(why.contains("boolean"), "{why}");
        assert_eq!(object.names, [""; 0]);
    }
}
