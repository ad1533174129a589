//! How many nodes of a pool may be unavailable at once, as its owner writes it.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

/// How many nodes of a pool may be down at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxUnavailable {
    /// This many.
    Count(u32),
    /// This share of the pool, rounded down.
    Percent(u32),
}

impl Default for MaxUnavailable {
    fn default() -> Self {
        Self::Count(1)
    }
}

impl MaxUnavailable {
    /// The number for a pool of `total` nodes: never 0, or the pool could never change.
    pub fn of(self, total: usize) -> usize {
        let number = match self {
            Self::Count(count) => usize::try_from(count).unwrap_or(usize::MAX),
            Self::Percent(percent) => {
                total.saturating_mul(usize::try_from(percent).unwrap_or(usize::MAX)) / 100
            }
        };
        number.max(1)
    }

    /// The limit as a pool's `maxUnavailable` has it: a number from 1, or a percentage as text.
    pub fn read(value: &Value) -> Result<Self, String> {
        let limit = match value {
            Value::Number(number) => number
                .as_u64()
                .and_then(|it| u32::try_from(it).ok())
                .filter(|it| *it > 0)
                .map(Self::Count),
            Value::String(text) => text
                .strip_suffix('%')
                .filter(|it| it.bytes().all(|byte| byte.is_ascii_digit()))
                .and_then(|it| it.parse().ok())
                .filter(|it| (1..=100).contains(it))
                .map(Self::Percent),
            _ => None,
        };
        limit.ok_or_else(|| {
            let cure = match value {
                Value::String(text) if text.parse::<u32>().is_ok_and(|it| it > 0) => {
                    format!("write {text} without quotes, or \"{text}%\" (for example \"10%\")")
                }
                _ => "write a number of at least 1, or a percentage such as \"10%\"".to_owned(),
            };
            format!("{value} is not a valid number of nodes, so no node may start: {cure}")
        })
    }
}

impl<'de> Deserialize<'de> for MaxUnavailable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::read(&Value::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl JsonSchema for MaxUnavailable {
    fn schema_name() -> Cow<'static, str> {
        "MaxUnavailable".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
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
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_share_is_rounded_down_and_never_none() {
        for (limit, total, number) in [
            (json!(1), 5, 1),
            (json!(3), 2, 3),
            (json!("10%"), 25, 2),
            (json!("10%"), 5, 1),
            (json!("100%"), 5, 5),
        ] {
            let read = MaxUnavailable::read(&limit).unwrap();
            assert_eq!(read.of(total), number, "{limit} of {total}");
        }
        for (limit, total) in [
            (MaxUnavailable::Count(0), 5),
            (MaxUnavailable::Percent(0), 5),
        ] {
            assert_eq!(limit.of(total), 1, "{limit:?} of {total}");
        }
        for text in ["", "-1", "many", "1.5", "%", "5 %", "0%", "1"] {
            assert!(MaxUnavailable::read(&json!(text)).is_err(), "{text}");
        }
    }
}
