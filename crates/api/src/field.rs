//! A field of an object from the cluster. One that makes no sense is found and named by whoever reads the object, and
//! keeps nobody from reading the rest of it, or the other objects of its kind.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// A field, as far as it makes sense.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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

impl<T: DeserializeOwned + Default> Field<T> {
    /// What it says where nobody but us writes it: a part of it that makes no sense is as good as absent, and written
    /// anew. The other parts count.
    pub fn recorded(self) -> T {
        let Self::Invalid { found, .. } = self else {
            return self.valid().unwrap_or_default();
        };
        let Value::Object(mut parts) = found else {
            return T::default();
        };
        parts.retain(|name, part| {
            let alone = Map::from_iter([(name.clone(), part.clone())]);
            serde_json::from_value::<T>(Value::Object(alone)).is_ok()
        });
        serde_json::from_value(Value::Object(parts)).unwrap_or_default()
    }
}

impl<T> From<Option<T>> for Field<T> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Absent, Self::Valid)
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
    use crate::fleet::machine_config_pool::PoolStatus;

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

    #[test]
    fn of_what_only_we_write_one_odd_part_takes_nothing_from_the_others() {
        let read = |json| Field::<PoolStatus>::from(json).recorded();
        assert_eq!(read(json!(null)), PoolStatus::default());
        assert_eq!(read(json!("x")), PoolStatus::default());
        let permits = json!({ "epoch": 3, "granted": [{ "node": "a" }] });
        let status =
            read(json!({ "machineCount": "x", "readyMachineCount": 2, "permits": permits }));
        assert_eq!((status.machine_count, status.ready_machine_count), (0, 2));
        assert!(
            status
                .permits
                .is_some_and(|it| it.epoch == 3 && it.has("a"))
        );
    }
}
