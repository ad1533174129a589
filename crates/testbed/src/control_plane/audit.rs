//! What the API server itself writes down about requests of our programs: counted there, none is missed,
//! also when the program that made them is gone.

use std::fmt;

use serde_json::Value;

/// The file with the policy.
pub(super) const POLICY_FILE: &str = "audit.yaml";
/// The file with what was asked.
pub(super) const LOG: &str = "audit.log";
/// Who asked for what, for agents by certificate: they are few, and the rest is much. Of service accounts, such as the
/// operator's, what they wrote.
pub(super) const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
  userGroups: ['evenkeel:agents']
- level: Metadata
  userGroups: ['system:serviceaccounts']
  verbs: [create, update, patch, delete, deletecollection]
- level: None
";

/// A request that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// As in an RBAC rule: `get`, `patch`, `watch`.
    pub verb: String,
    /// The plural: `nodes`.
    pub resource: String,
    /// Empty for what belongs to the whole cluster.
    pub namespace: String,
    /// The status code of the answer.
    pub code: u64,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.verb, self.resource, self.code)
    }
}

/// The requests of `user`, oldest first.
pub(super) fn requests(log: &str, user: &str) -> Vec<Request> {
    let entries = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    entries
        .filter(|entry| entry["user"]["username"] == user)
        .map(|entry| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            Request {
                verb: text(&entry["verb"]),
                resource: text(&entry["objectRef"]["resource"]),
                namespace: text(&entry["objectRef"]["namespace"]),
                code: entry["responseStatus"]["code"].as_u64().unwrap_or_default(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_of_that_user_are_requests() {
        let log = r#"{"verb":"patch","user":{"username":"a"},"objectRef":{"resource":"nodes"},"responseStatus":{"code":200}}
{"verb":"get","user":{"username":"b"},"objectRef":{"resource":"nodes"},"responseStatus":{"code":200}}
{"verb":"watch","user":{"userna"#;
        let found: Vec<_> = requests(log, "a").iter().map(Request::to_string).collect();
        assert_eq!(found, ["patch nodes 200"]);
    }
}
