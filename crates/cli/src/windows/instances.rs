//! `evenkeel status instances` and `evenkeel instances trust`: the progress of every Windows instance, and
//! trust in a host key that has changed for a good reason.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use evenkeel_api::names::{label, object};
use evenkeel_plan::fleet::node::Node;
use evenkeel_plan::windows::instances::{InstanceRecord, InstanceState};
use evenkeel_plan::windows::windows_pool::removal::{Removal, RemovalStep, is_asked};
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::Ending;
use crate::arguments::{InstancesArguments, InstancesCommand, StatusArguments};
use crate::cluster::{self, Cluster, core_kind};
use crate::output::{self, Paint};
use crate::table::{lines, table};

/// The record of each instance, or why it cannot be read.
type Instances = BTreeMap<String, Result<InstanceRecord, String>>;

/// Shows every instance.
pub(crate) fn status(arguments: &StatusArguments) -> Result<Ending> {
    let namespace = &arguments.namespace;
    let found = cluster::with(&arguments.cluster, async |cluster| {
        instances(&cluster, namespace).await
    })?;
    output::show(
        arguments.output.format,
        |paint| text(&found, paint),
        || document(&found),
    )?;
    let is_ready = |it: &Result<InstanceRecord, String>| {
        it.as_ref().is_ok_and(|it| it.state == InstanceState::Ready)
    };
    Ok(Ending::well_if(found.values().all(is_ready)))
}

async fn instances(cluster: &Cluster, namespace: &str) -> Result<Instances> {
    let found = read(cluster, namespace).await;
    found.map_err(|error| cluster.explain("read the status of Windows instances", error))
}

/// The progress of the removal of a Windows node, or what it waits for; nothing if it is not removed. Whoever may not read
/// the records of instances sees what the Node says.
pub(crate) async fn removal(
    cluster: &Cluster,
    namespace: &str,
    node: &Node,
) -> Result<Option<String>> {
    if node.windows.is_none() {
        return Ok(None);
    }
    let by_its_node = || {
        let removal = is_asked(node).then(|| Removal::Granted(RemovalStep::of(node)))?;
        let waits_for = removal.waits_for(node);
        Some(
            waits_for.unwrap_or_else(|| "all pods have left; the node is being removed".to_owned()),
        )
    };
    let instances = match read(cluster, namespace).await {
        Ok(instances) => instances,
        Err(kube::Error::Api(status)) if status.code == 403 => return Ok(by_its_node()),
        Err(error) => return Err(cluster.explain("read the status of Windows instances", error)),
    };
    let mut records = instances.into_values().filter_map(Result::ok);
    let own = records.find(|it| it.node.as_ref() == Some(&node.name));
    let leaving = own.filter(|it| it.state == InstanceState::Leaving);
    Ok(leaving.map(|it| it.message).or_else(by_its_node))
}

async fn read(cluster: &Cluster, namespace: &str) -> kube::Result<Instances> {
    let maps = cluster.inside(namespace, &core_kind("ConfigMap", "configmaps"));
    let read = |text: &Value| {
        let text = text.as_str().unwrap_or_default();
        serde_json::from_str(text).map_err(|error| error.to_string())
    };
    // An operator before this one may have written all of them into one.
    let old = maps.get_opt(object::INSTANCES_STATUS).await?;
    let old = old.and_then(|it| it.data.get("data").cloned());
    let old = old.unwrap_or_default();
    let old = old.as_object().into_iter().flatten();
    let mut all: Instances = old.map(|(name, text)| (name.clone(), read(text))).collect();
    let labels = format!("{}=true", label::INSTANCE_STATUS);
    let found = cluster
        .pages(&maps, &ListParams::default().labels(&labels))
        .await?;
    all.extend(found.iter().filter_map(|it| {
        let data = &it.data["data"];
        let name = data[object::INSTANCE_STATUS_NAME].as_str()?;
        Some((name.to_owned(), read(&data[object::INSTANCE_STATUS_RECORD])))
    }));
    Ok(all)
}

fn text(instances: &Instances, paint: Paint) -> String {
    if instances.is_empty() {
        return format!(
            "There are no Windows instances: list them in ConfigMap {}.\n",
            object::WINDOWS_INSTANCES
        );
    }
    let mut rows = table(&["INSTANCE", "STATE", "NODE", "SINCE", "MESSAGE"], paint);
    for (name, record) in instances {
        rows.add_row(match record {
            Ok(it) => [
                name.clone(),
                it.state.to_string(),
                it.node.clone().unwrap_or_default(),
                it.since.strftime("%Y-%m-%d %H:%M:%SZ").to_string(),
                it.message.clone(),
            ],
            Err(why) => [
                name.clone(),
                "unreadable".to_owned(),
                String::new(),
                String::new(),
                why.clone(),
            ],
        });
    }
    lines(&rows)
}

fn document(instances: &Instances) -> Value {
    let all = instances.iter().map(|(name, record)| match record {
        Ok(record) => {
            let mut value = json!(record);
            value["instance"] = json!(name);
            value
        }
        Err(why) => json!({ "instance": name, "state": null, "message": why }),
    });
    json!({ "instances": all.collect::<Vec<_>>() })
}

/// Removes the pinned host key of an instance: the operator trusts the next one that it shows.
pub(crate) fn run(arguments: &InstancesArguments) -> Result<Ending> {
    let InstancesCommand::Trust {
        address,
        namespace,
        cluster,
    } = &arguments.command;
    cluster::with(cluster, async |cluster| {
        let secrets = cluster.inside(namespace, &core_kind("Secret", "secrets"));
        let what = "trust a new host key";
        let failed = |error| cluster.explain(what, error);
        let found = secrets.get_opt(object::HOST_KEYS).await.map_err(failed)?;
        let data = found.and_then(|it| it.data.get("data").cloned());
        let data = data.unwrap_or_default();
        let name = address.to_ascii_lowercase();
        if data.get(&name).is_none() {
            let known: Vec<&str> = data
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, _)| name.as_str())
                .collect();
            let known = if known.is_empty() {
                "no instance has one".to_owned()
            } else {
                format!("the instances with one are {}", known.join(", "))
            };
            return Err(anyhow!(
                "no host key of {address} is pinned in namespace {namespace}: {known}"
            ));
        }
        let patch = Patch::Merge(json!({ "data": { name: null } }));
        let parameters = PatchParams::default();
        let patched = secrets.patch(object::HOST_KEYS, &parameters, &patch).await;
        patched.map_err(failed)?;
        let said = format!(
            "Removed the pinned host key of {address}. The operator trusts the next key that the instance shows.\n"
        );
        output::print(said.as_bytes())?;
        Ok(Ending::Well)
    })
}
