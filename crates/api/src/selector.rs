//! Label selectors, as Kubernetes has them: what they select, and how a request says the same.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Labels that must match; empty matches everything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Selector {
    /// Labels that must have these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// A requirement on one label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Requirement {
    /// Name of the label.
    pub key: String,
    /// How the label is compared.
    pub operator: Operator,
    /// Values to compare with, only for In and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// How a label compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    /// One of the values.
    In,
    /// None of the values.
    NotIn,
    /// There, with any value.
    Exists,
    /// Not there.
    DoesNotExist,
}

impl Selector {
    /// Whether it selects an object whose label of a name is what `label` says.
    pub fn matches<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        let labels = self.match_labels.iter();
        labels
            .map(|(key, value)| label(key) == Some(value))
            .chain(self.match_expressions.iter().map(|it| {
                let found = label(&it.key);
                let is_listed = || found.is_some_and(|found| it.values.iter().any(|v| v == found));
                match it.operator {
                    Operator::In => is_listed(),
                    Operator::NotIn => !is_listed(),
                    Operator::Exists => found.is_some(),
                    Operator::DoesNotExist => found.is_none(),
                }
            }))
            .all(|holds| holds)
    }

    /// The same as the parameter `labelSelector` of a request.
    pub fn to_query(&self) -> String {
        let labels = self.match_labels.iter();
        let labels = labels.map(|(key, value)| format!("{key}={value}"));
        let expressions = self.match_expressions.iter().map(|it| {
            let (key, values) = (&it.key, it.values.join(","));
            match it.operator {
                Operator::In => format!("{key} in ({values})"),
                Operator::NotIn => format!("{key} notin ({values})"),
                Operator::Exists => key.clone(),
                Operator::DoesNotExist => format!("!{key}"),
            }
        });
        labels.chain(expressions).collect::<Vec<_>>().join(",")
    }

    /// What makes no sense in it, if anything does.
    pub fn problem(&self) -> Option<String> {
        self.match_expressions.iter().find_map(|it| {
            let key = &it.key;
            match (it.operator, it.values.is_empty()) {
                (Operator::In | Operator::NotIn, true) => Some(format!(
                    "matchExpressions {key}: {:?} needs values: name at least one",
                    it.operator
                )),
                (Operator::Exists | Operator::DoesNotExist, false) => Some(format!(
                    "matchExpressions {key}: {:?} takes no values: remove them",
                    it.operator
                )),
                _ => None,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(json: serde_json::Value) -> Selector {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_selector_selects_what_all_of_it_allows() {
        let labels = BTreeMap::from([("role", "infra"), ("empty", "")]);
        let get = |key: &str| labels.get(key).copied();
        let expression = |key: &str, operator: &str, values: &[&str]| serde_json::json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] });
        for (json, expected, query) in [
            (serde_json::json!({}), true, ""),
            (
                serde_json::json!({ "matchLabels": { "role": "infra" } }),
                true,
                "role=infra",
            ),
            (
                serde_json::json!({ "matchLabels": { "role": "infra", "x": "" } }),
                false,
                "role=infra,x=",
            ),
            (
                serde_json::json!({ "matchLabels": { "empty": "" } }),
                true,
                "empty=",
            ),
            (
                expression("role", "In", &["a", "infra"]),
                true,
                "role in (a,infra)",
            ),
            (
                expression("role", "NotIn", &["infra"]),
                false,
                "role notin (infra)",
            ),
            (
                expression("x", "NotIn", &["infra"]),
                true,
                "x notin (infra)",
            ),
            (expression("empty", "Exists", &[]), true, "empty"),
            (expression("x", "DoesNotExist", &[]), true, "!x"),
            (expression("role", "DoesNotExist", &[]), false, "!role"),
        ] {
            let selector = selector(json);
            assert_eq!(selector.matches(get), expected, "{selector:?}");
            assert_eq!(selector.to_query(), query);
            assert_eq!(selector.problem(), None);
        }
        assert!(selector(expression("a", "In", &[])).problem().is_some());
        assert!(
            selector(expression("a", "Exists", &["b"]))
                .problem()
                .is_some()
        );
    }
}
