//! Whether an operator is the leader: only then what nodes wait for makes progress. Nothing is said of a cluster that
//! never had one, or whose Leases the person may not read.

use std::time::Duration;

use evenkeel_api::names::program;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams};
use serde_json::Value;

use crate::cluster::{Cluster, leases_kind};

/// A leader renews every few seconds, and its successor comes within fifteen.
const LATE: Duration = Duration::from_mins(1);

/// What is to be said if no operator is the leader.
pub(crate) async fn missing(cluster: &Cluster) -> Option<String> {
    let leases = cluster.all(&leases_kind());
    let ours = ListParams::default().fields(&format!("metadata.name={}", program::OPERATOR));
    let found = cluster.pages(&leases, &ours).await.ok()?;
    let renewed = |it: &DynamicObject| it.data["spec"]["renewTime"].as_str()?.parse().ok();
    let times = found.iter().filter_map(|it| Some((renewed(it)?, it)));
    let (last, lease) = times.max_by_key(|(time, _): &(Timestamp, _)| *time)?;
    let holder = &lease.data["spec"]["holderIdentity"];
    let is_held = holder != &Value::Null && holder != "";
    let age = Timestamp::now().duration_since(last);
    if is_held && Duration::try_from(age).unwrap_or_default() < LATE {
        return None;
    }
    let namespace = lease.namespace().unwrap_or_default();
    Some(format!(
        "no operator has been the leader since {last}: rollouts, drains and readiness do not make progress. Check `kubectl get pods --namespace {namespace}`"
    ))
}
