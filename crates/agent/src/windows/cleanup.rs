//! Removes what is managed from a machine. Run again after a crash, it goes on. Its Node is the operator's to delete: a
//! machine that could do it would shed what an administrator set there.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use evenkeel_api::names::windows::AGENT_SERVICE;
use evenkeel_api::windows::services::Services;
use evenkeel_api::windows::version::Version;
use evenkeel_daemon::{Daemon, Error, Result};
use evenkeel_host::windows::trust;
use kube::Client;

use super::arguments::CleanupArguments;
use super::bootstrap::own_node;
use super::cluster;
use super::machine::Machine;
use super::{answer, on_machine, take_over};

/// How long the Node is looked for if nobody remembers its name.
const LOOK: Duration = Duration::from_secs(5);

pub(crate) async fn cleanup(
    daemon: &Daemon,
    login: Option<&Path>,
    arguments: CleanupArguments,
) -> Result<()> {
    let listed = listed(&daemon.client(), &arguments.namespace).await?;
    let upgrade = arguments.upgrade;
    // Before anything goes: whoever has no login yet could not go on.
    if let Some(node) = &arguments.take_over {
        take_over::log_in(&daemon.client(), login, node).await?;
    }
    let variables = take_over::variables(arguments.take_over.is_some());
    let clear = move |machine: &Machine| {
        machine.settle()?;
        let node = machine.node_name()?;
        let mut listed = listed;
        let found = machine.host.tagged_services()?;
        for (name, error) in &found.unreadable {
            tracing::warn!(
                "service {name} is skipped, because it cannot be read: {}",
                error.with_causes()
            );
        }
        for tagged in found.names {
            let order = take_over::removal_order(&tagged);
            listed
                .entry(tagged.to_lowercase())
                .or_insert((tagged, order));
        }
        listed.remove(AGENT_SERVICE);
        let listed: Vec<_> = listed.into_values().collect();
        let plan = machine.clear(upgrade, &listed, variables)?;
        if !upgrade {
            trust::sync(&[])?.whole()?;
        }
        let gone = plan.changes.iter().map(|it| it.resource.to_string());
        Ok((node, gone.collect::<Vec<_>>()))
    };
    let (node, gone) = on_machine(clear).await?;
    if upgrade {
        // The operator brought them, and takes away what the next version does not have.
        let mut files = on_machine(Machine::kept_files).await?;
        if arguments.take_over.is_some() {
            files.extend(on_machine(take_over::files).await?);
        }
        return answer(&serde_json::json!({ "removed": gone, "node": null, "files": files }));
    }
    let node = match node {
        Some(node) => Some(node),
        None => own_node(&daemon.client(), None, LOOK).await.ok(),
    };
    if let Some(node) = &node {
        tracing::info!(
            "the operator deletes Node {node}; without an operator, run `kubectl delete node {node}`"
        );
    }
    on_machine(Machine::forget).await?;
    answer(&serde_json::json!({ "removed": gone, "node": node }))
}

/// The services that a ConfigMap lists, with their number in the order of creation, by name in small
/// letters: of the one that is kept, else of that version's, else of the newest.
async fn listed(client: &Client, namespace: &str) -> Result<BTreeMap<String, (String, u32)>> {
    let kept = on_machine(Machine::kept).await?;
    let data = match kept {
        Some(kept) => Some(kept.data),
        None => newest(client, namespace).await?,
    };
    let Some(data) = data else {
        return Ok(BTreeMap::new());
    };
    // One that does not hold says nothing that can be relied on; the tag remains.
    let Ok((services, _)) = Services::from_data("the services ConfigMap", &data) else {
        return Ok(BTreeMap::new());
    };
    let order = services.creation_order();
    let names = (0..)
        .zip(order)
        .map(|(at, it)| (it.name.to_lowercase(), (it.name.clone(), at)));
    Ok(names.collect())
}

/// The `data` of the services ConfigMap of the newest version.
async fn newest(client: &Client, namespace: &str) -> Result<Option<BTreeMap<String, String>>> {
    let all = cluster::all_services(client, namespace).await;
    let all = all.map_err(Error::work)?.into_iter();
    let mut versions: Vec<_> = all
        .filter_map(|(name, data)| Some((Version::from_config_map_name(&name).ok()?, data)))
        .collect();
    versions.sort_by(|(one, _), (other, _)| one.compare_release(other));
    Ok(versions.pop().map(|(_, data)| data))
}
