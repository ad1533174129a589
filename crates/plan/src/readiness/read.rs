//! What is seen of Leases and pods, from objects as the API server writes them.

use std::time::Duration;

use evenkeel_api::names::annotation;
use serde_json::Value;

use super::snapshot::{LeaseSnapshot, PodSnapshot};

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl LeaseSnapshot {
    /// A Lease.
    pub fn read(object: &Value) -> Self {
        let report = &object["metadata"]["annotations"][annotation::REPORT];
        Self {
            report: report.as_str().map(str::to_owned),
            ..Self::read_spec(&object["spec"])
        }
    }

    /// The Lease inside another object; nothing if there is none.
    pub fn read_inside(object: &Value, path: &str) -> Option<Self> {
        let keys = path.split('.').filter(|it| !it.is_empty());
        let found = keys.fold(object, |at, key| &at[key]);
        (!found.is_null()).then(|| Self::read_spec(found))
    }

    fn read_spec(spec: &Value) -> Self {
        let renewed = text(&spec["renewTime"]);
        let lasts = spec["leaseDurationSeconds"].as_u64();
        Self {
            // One that was never renewed is there all the same.
            renewed: if renewed.is_empty() {
                "never".to_owned()
            } else {
                renewed
            },
            holder: text(&spec["holderIdentity"]),
            lasts: lasts.map(Duration::from_secs),
            report: None,
        }
    }
}

impl PodSnapshot {
    /// A Pod; nothing if it is on no node.
    pub fn read(object: &Value) -> Option<Self> {
        let node = object["spec"]["nodeName"].as_str()?.to_owned();
        let (metadata, status) = (&object["metadata"], &object["status"]);
        let conditions = status["conditions"].as_array();
        let ready = conditions
            .into_iter()
            .flatten()
            .find(|it| it["type"] == "Ready");
        let started: Vec<_> = status["containerStatuses"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|it| format!("{} {}", it["containerID"], it["restartCount"]))
            .collect();
        let (is, since) = ready.map_or((&Value::Null, &Value::Null), |it| {
            (&it["status"], &it["lastTransitionTime"])
        });
        let is_over = status["phase"] == "Succeeded" || status["phase"] == "Failed";
        Some(Self {
            name: text(&metadata["name"]),
            node,
            ready: *is == "True",
            ending: is_over || !metadata["deletionTimestamp"].is_null(),
            mark: format!("{} {is} {since} {}", metadata["uid"], started.join(" ")),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_decides_is_found_in_the_objects() {
        let lease = json!({ "renewTime": "1", "holderIdentity": "n1", "leaseDurationSeconds": 10 });
        let inside =
            LeaseSnapshot::read_inside(&json!({ "status": { "lease": lease } }), ".status.lease");
        assert_eq!(inside, Some(LeaseSnapshot::read(&json!({ "spec": lease }))));
        assert_eq!(
            LeaseSnapshot::read_inside(&json!({}), ".status.lease"),
            None
        );
        assert_eq!(LeaseSnapshot::read(&json!({})).renewed, "never");
        let pod = |ready: &str| {
            let conditions = json!([{ "type": "Ready", "status": ready }]);
            let pod = json!({ "metadata": { "name": "p" }, "spec": { "nodeName": "n1" }, "status": { "conditions": conditions } });
            PodSnapshot::read(&pod).unwrap()
        };
        assert!(pod("True").ready && !pod("False").ready);
        assert_ne!(pod("True").mark, pod("False").mark);
        assert_eq!(PodSnapshot::read(&json!({})), None);
    }
}
