//! Makes a machine a node: variables, bootstrap services in their order, the Node, a login, a cordon.

use std::time::{Duration, Instant};

use evenkeel_api::names::{annotation, cordon};
use evenkeel_api::windows::services::{Services, hostname_override};
use evenkeel_daemon::{Daemon, Error, Result};
use evenkeel_host::windows::about;
use evenkeel_plan::fleet::node::NodePatch;
use evenkeel_plan::machine::targets::Part;
use evenkeel_plan::windows::trust::{Published, has_proxy};
use evenkeel_plan::windows::windows_node::has_served;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt};

use super::arguments::BootstrapArguments;
use super::cluster;
use super::machine::{DesiredServices, Kept, Machine};
use super::values::commands_now;
use super::{HostResult, answer, login, on_machine};
use crate::node_client::NodeClient;
use crate::reconcile::blocking;

/// How long bootstrap services may take until all of them run.
const RUNNING: Duration = Duration::from_mins(2);
/// How long the right services ConfigMap is waited for.
const RIGHT: Duration = Duration::from_mins(2);
const ASK_AGAIN: Duration = Duration::from_secs(1);

pub(crate) async fn bootstrap(
    daemon: &Daemon,
    bootstrap_login: &std::path::Path,
    arguments: BootstrapArguments,
) -> Result<()> {
    let client = daemon.client();
    let namespace = arguments.scripts.namespace.clone();
    let (services, kept) = told(&client, &arguments).await?;
    let limit = arguments.scripts.script_timeout;
    let bundle = cluster::bundle(&client, &namespace).await;
    let bundle = bundle.map_err(Error::work)?;
    let bring = move || {
        let machine = Machine::open();
        trust(&machine, &bundle, &services)?;
        bring(&machine, services, &kept, limit)
    };
    let name = blocking(bring)
        .await
        .map_err(|reason| Error::work(reason.text))??;
    let node = own_node(&client, name.as_deref(), arguments.node_timeout).await?;
    let remembered = node.clone();
    on_machine(move |machine| machine.remember_node(&remembered)).await?;
    login::obtain(&client, bootstrap_login, &node).await?;
    let own = login::client(daemon).await?;
    hold(&NodeClient::new(own, &node)).await?;
    answer(&serde_json::json!({ "node": node, "version": arguments.desired_version.to_string() }))
}

/// The services of the version, if they are those that count. Somebody may have meddled with the ConfigMap:
/// the operator puts that right, which is waited for.
async fn told(client: &Client, arguments: &BootstrapArguments) -> Result<(Services, Kept)> {
    let version = &arguments.desired_version;
    let (name, namespace) = (version.config_map_name(), &arguments.scripts.namespace);
    let deadline = Instant::now() + RIGHT;
    loop {
        let found = cluster::services(client, namespace, &name).await;
        let wrong = match found.map_err(Error::work)? {
            None => format!(
                "ConfigMap {namespace}/{name} does not exist: check that {version} is the version of the operator"
            ),
            Some(data) => match Services::from_data(&format!("ConfigMap {name}"), &data) {
                Err(problems) => problems.to_string(),
                Ok((services, warnings)) => {
                    let hash = services.hash();
                    let wanted = arguments.desired_services.as_ref();
                    if wanted.is_none_or(|it| *it == hash) {
                        for warning in warnings {
                            tracing::warn!("{warning}");
                        }
                        let version = version.to_string();
                        return Ok((
                            services,
                            Kept {
                                version,
                                hash,
                                data,
                            },
                        ));
                    }
                    format!(
                        "ConfigMap {namespace}/{name} has hash {hash}, which is not that of --desired-services"
                    )
                }
            },
        };
        if arguments.desired_services.is_none() || Instant::now() >= deadline {
            return Err(Error::work(wrong));
        }
        tracing::warn!("{wrong}; waiting for the operator to correct it");
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// Trusts whom the cluster's bundle names, before anything is started that may meet them.
fn trust(machine: &Machine, published: &Published, services: &Services) -> Result<()> {
    let trusted = machine
        .trust(published, Some(has_proxy(services)))
        .or_fail()?;
    let synced = trusted.synced.or_fail()?;
    // It is tried again by the agent, which also tells the Node.
    for refused in &synced.refused {
        tracing::warn!("certificate {}: {}", refused.fingerprint, refused.why);
    }
    let bundle = trusted.bundle;
    let problems = bundle.problems.iter().map(ToString::to_string);
    for words in problems.chain(bundle.warnings.iter().map(ToString::to_string)) {
        tracing::warn!("{words}");
    }
    let (added, removed) = (synced.added.len(), synced.removed.len());
    tracing::info!("trusted roots updated from the trust bundle: {added} added, {removed} removed");
    Ok(())
}

/// Sets the variables, and starts exactly the bootstrap services. Others that are there already, because
/// this is not the first time, stay as they are. Says what they were told that the Node is called.
fn bring(
    machine: &Machine,
    services: Services,
    kept: &Kept,
    limit: Duration,
) -> Result<Option<String>> {
    machine.settle().or_fail()?;
    let mut first = services.clone();
    first.services.retain(|service| service.bootstrap);
    let commands = commands_now(&first, limit);
    if !commands.missing.is_empty() {
        return Err(Error::work(commands.missing.join("\n")));
    }
    let mut told = commands.found.values();
    let name = told.find_map(|command| hostname_override(command));
    let name = name.map(str::to_owned);
    let desired = DesiredServices {
        services,
        commands: commands.found,
        hash: None,
    };
    let plan = machine.bring(&desired, kept).or_fail()?;
    if !plan.missing.is_empty() {
        return Err(Error::work(format!(
            "these payload files are missing or differ from the ConfigMap: {}: copy the payload first",
            plan.missing.join(", ")
        )));
    }
    let standing = machine.settle().or_fail()?;
    let mut targets = standing.targets;
    // Its files were looked at a moment ago; whoever watches them comes next.
    targets.retain(|_, target| !matches!(target.part, Part::Payload(_)));
    let deadline = Instant::now() + RUNNING;
    loop {
        let drift = machine.drift(&targets);
        let Some(first) = drift.first() else {
            return Ok(name);
        };
        let again = evenkeel_host::watch::put_back(&machine.host, &machine.state, first);
        if Instant::now() >= deadline {
            let why = again
                .err()
                .map(|error| format!(": {}", error.with_causes()));
            return Err(Error::work(format!(
                "{} does not stay as declared: {}{}",
                first.resource,
                first.why,
                why.unwrap_or_default()
            )));
        }
        std::thread::sleep(ASK_AGAIN);
    }
}

/// The Node with the `name` that its kubelet was given, else the one whose internal address is this machine's, as soon as
/// there is one.
pub(crate) async fn own_node(
    client: &Client,
    name: Option<&str>,
    patience: Duration,
) -> Result<String> {
    let addresses = about::addresses().or_fail()?;
    let mut last = match name {
        Some(name) => format!(
            "there is no Node {name}, or it has another internal address than this machine ({addresses:?})"
        ),
        None => format!("no Node has one of the internal addresses {addresses:?}"),
    };
    let found = cluster::find_node(client, name, &addresses, &mut last);
    let found = tokio::time::timeout(patience, found).await;
    match found {
        Ok(found) => found.map_err(Error::work),
        Err(_) => Err(Error::work(format!(
            "no Node for this machine after {patience:?}: {last}"
        ))),
    }
}

/// Lets no pods on a node that has not served yet. A cordon that is there stays whoever's it is.
async fn hold(own_node: &NodeClient) -> Result<()> {
    let api: Api<Node> = Api::all(own_node.client.clone());
    let node = api.get_opt(&own_node.name).await.map_err(Error::work)?;
    let Some(node) = node else {
        return Err(Error::work(
            "the Node of this machine was deleted during bootstrap: run bootstrap again".to_owned(),
        ));
    };
    let is_cordoned = node.spec.as_ref().and_then(|it| it.unschedulable);
    if is_cordoned == Some(true) || has_served(node.annotations()) {
        return Ok(());
    }
    let mut change = NodePatch::default().with(annotation::CORDONED_BY, cordon::AGENT);
    change.unschedulable = Some(true);
    own_node.patch(&change).await.map_err(Error::work)
}
