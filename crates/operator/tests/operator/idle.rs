//! Beside OpenShift's own machine-config operator ours does nothing, and says so without a word in an object of theirs. It
//! takes over only where the owner says so, and not before their leader is gone.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use evenkeel_api::fleet::machine_config_pool::condition;
use evenkeel_api::names::{annotation, label, openshift, program};
use evenkeel_plan::fleet::coexistence::CoexistenceReports;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result, need};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::agents::Agents;
use crate::pools::file;
use crate::rollout::LONG;
use crate::scene::{SOON, Scene, annotated, free_port, metrics};

/// How long nothing may happen after the operator has said that it does nothing.
const QUIET: Duration = Duration::from_secs(4);

/// Everybody on the shared control plane would fall idle.
pub(crate) fn control_plane() -> Result<&'static ControlPlane> {
    static OWN: OnceLock<Result<ControlPlane>> = OnceLock::new();
    let own = OWN.get_or_init(ControlPlane::start);
    own.as_ref().map_err(Clone::clone)
}

/// A leader of OpenShift's operator: it renews its Lease until it is dropped.
pub(crate) struct Leader {
    task: JoinHandle<()>,
}

impl Leader {
    pub(crate) async fn start(
        client: &Client,
        namespace: &str,
        name: &'static str,
    ) -> Result<Self> {
        let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let renew = async move || {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": { "name": name },
                "spec": {
                    "holderIdentity": "theirs", "leaseDurationSeconds": 6,
                    // Their clock is an hour late, which must not matter.
                    "renewTime": (jiff::Timestamp::now() - Duration::from_hours(1)).strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
                },
            });
            let parameters = PatchParams::apply("theirs").force();
            leases
                .patch(name, &parameters, &Patch::Apply(lease))
                .await
                .map(|_| ())
        };
        // A second look tells that it lives.
        renew().await.doing(|| "cannot make their Lease")?;
        let task = tokio::spawn(async move {
            loop {
                let _ = renew().await;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        Ok(Self { task })
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Waits until the operator tells on its own Lease that it coexists so, and says the words.
pub(crate) async fn told(scene: &Scene, reason: &str) -> Result<String> {
    let api: Api<Event> = Api::namespaced(scene.client.clone(), &scene.name);
    until_async(
        &format!("an Event {reason} on our own Lease"),
        SOON,
        async || {
            let events = api.list(&ListParams::default()).await;
            let events = events.doing(|| "cannot list Events")?.items.into_iter();
            let found = events.filter(|it| {
                let on = it.regarding.clone().unwrap_or_default();
                on.kind.as_deref() == Some("Lease") && on.name.as_deref() == Some(program::OPERATOR)
            });
            let said: Vec<_> = found
                .map(|it| (it.reason.unwrap_or_default(), it.note.unwrap_or_default()))
                .collect();
            Ok(match said.iter().find(|(found, _)| found == reason) {
                Some((_, note)) => Look::Found(note.clone()),
                None => Look::NotYet(format!("{said:?}; {}", scene.log())),
            })
        },
    )
    .await
}

/// Waits until our Lease and the metrics say that `half` is in `state`.
pub(crate) async fn until_state(scene: &Scene, port: u16, half: &str, state: &str) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(scene.client.clone(), &scene.name);
    let line = format!("evenkeel_coexistence{{half=\"{half}\",state=\"{state}\"}} 1");
    until_async(&format!("{half} to be {state}"), SOON, async || {
        let lease = leases.get_opt(program::OPERATOR).await;
        let lease = lease.doing(|| "cannot read our Lease")?;
        let text = lease.and_then(|it| it.annotations().get(annotation::COEXISTENCE).cloned());
        let reports: CoexistenceReports = serde_json::from_str(text.as_deref().unwrap_or("{}"))
            .doing(|| "the Lease says something else")?;
        let said = reports.get(half).is_some_and(|it| it.state == state);
        let shown = metrics(port).await.unwrap_or_default();
        Ok(if said && shown.contains(&line) {
            Look::Found(())
        } else {
            Look::NotYet(format!("{text:?}"))
        })
    })
    .await
}

/// All of theirs that could be written to: the pool to the last byte, MachineConfigs, and what Nodes are told.
async fn theirs(scene: &Scene) -> Result<Value> {
    let pool = scene.pool_object("web").await?;
    let of_scene = ListParams::default().labels(&format!("place={}", scene.name));
    let nodes = scene.nodes().list(&of_scene).await;
    let nodes = nodes.doing(|| "cannot list nodes")?.items.into_iter();
    let nodes: Vec<_> = nodes
        .map(|it| json!([it.metadata.name, it.metadata.annotations, it.spec]))
        .collect();
    let configs = scene.configs().list(&ListParams::default()).await;
    let configs = configs.doing(|| "cannot list MachineConfigs")?.items;
    let configs: Vec<_> = configs
        .iter()
        .filter(|it| it.name_any().contains(&scene.name))
        .map(|it| json!([it.name_any(), it.metadata.resource_version]))
        .collect();
    Ok(json!({ "pool": pool, "nodes": nodes, "configs": configs }))
}

/// An error as soon as anything of theirs is written to.
async fn stays(scene: &Scene, before: &Value) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < QUIET {
        let now = theirs(scene).await?;
        if now != *before {
            let log = scene.log();
            return Err(Error::failed(format!("{before:#} became {now:#}\n{log}")));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Covers X09, O01, O02, O03.
#[tokio::test]
async fn next_to_the_machine_config_operator_nothing_is_written_until_the_owner_says_to_take_over()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::on(control_plane()?, "beside").await?;
    let port = free_port()?;
    let listen = format!("127.0.0.1:{port}");
    let nodes = scene.fleet("web", 2, 1).await?;
    let agents = Agents::start(&scene, &nodes).await?;
    scene
        .config("web", "00-base", file("/etc/base", "1"))
        .await?;
    scene.pool("web", json!({})).await?;
    // Ours comes first, and works: nobody else is here.
    let mut operator = scene.operator(&["--listen", &listen])?;
    let first = scene.until_updated("web", "", LONG).await?;
    until_state(&scene, port, "machine-config", "absent").await?;

    // Then theirs is installed, and lives.
    let namespace = openshift::NAMESPACE;
    scene
        .control_plane
        .kubectl(&["create", "namespace", namespace])?;
    let name = openshift::LEASES[1];
    let leader = Leader::start(&scene.client, namespace, name).await?;
    let note = told(&scene, "OtherOperatorAlive").await?;
    assert!(
        note.contains("machine-config operator is running"),
        "{note}"
    );
    until_state(&scene, port, "machine-config", "alive").await?;
    let text = metrics(port).await?;
    let line = "evenkeel_idle{half=\"machine-config\"} 1";
    assert!(text.contains(line), "{text}");
    // It has its own ideas: another configuration, a node that asks it for a drain, and a pool that was not looked at.
    scene
        .config("web", "00-base", file("/etc/base", "2"))
        .await?;
    let theirs_now = json!({ "metadata": { "annotations": {
        annotation::DESIRED_CONFIG: "rendered-theirs",
        annotation::DESIRED_DRAIN: "drain-rendered-theirs",
    } } });
    scene.patch(nodes[0].name(), &theirs_now).await?;
    scene.ask(nodes[1].name(), "drain-theirs").await?;
    scene
        .edit_pool("web", json!({ "spec": { "maxUnavailable": 2 } }))
        .await?;
    let before = theirs(&scene).await?;
    let of_pool = &before["pool"];
    assert_ne!(
        of_pool["metadata"]["generation"],
        of_pool["status"]["observedGeneration"]
    );
    stays(&scene, &before).await?;

    // An outage of theirs is no invitation; nor is a Lease that was given back, or none.
    drop(leader);
    let note = told(&scene, "OtherOperatorLapsed").await?;
    assert!(note.contains("--take-over=machine-config"), "{note}");
    until_state(&scene, port, "machine-config", "lapsed").await?;
    stays(&scene, &before).await?;
    let leases: Api<Lease> = Api::namespaced(scene.client.clone(), namespace);
    let released = Patch::Merge(json!({ "spec": { "holderIdentity": "" } }));
    let released = leases.patch(name, &PatchParams::default(), &released).await;
    released.doing(|| "cannot give their Lease back")?;
    stays(&scene, &before).await?;
    let deleted = leases.delete(name, &DeleteParams::default()).await;
    deleted.doing(|| "cannot delete their Lease")?;
    stays(&scene, &before).await?;
    until_state(&scene, port, "machine-config", "lapsed").await?;

    // The owner says to take over, while they are alive: it waits, and says for what.
    let leader = Leader::start(&scene.client, namespace, name).await?;
    operator.kill()?;
    scene.nobody_leads().await?;
    let options = ["--take-over=machine-config", "--listen", &listen];
    let _operator = scene.operator(&options)?;
    let note = told(&scene, "TakeOverWaits").await?;
    assert!(
        note.contains("machine-config operator is stopped"),
        "{note}"
    );
    until_state(&scene, port, "machine-config", "waiting").await?;
    stays(&scene, &before).await?;
    drop(leader);
    told(&scene, "TookOver").await?;
    // What a node asked of them, it asked of them; its own agent asks anew.
    for node in nodes.iter() {
        let nothing = json!({ "metadata": { "annotations": { annotation::DESIRED_DRAIN: null } } });
        scene.patch(node.name(), &nothing).await?;
    }
    let second = scene.until_updated("web", &first, LONG).await?;
    until_state(&scene, port, "machine-config", "taken-over").await?;
    for node in nodes.iter() {
        let seen = scene.node(node.name()).await?;
        for name in [annotation::DESIRED_CONFIG, annotation::VOUCHER] {
            assert_eq!(annotated(&seen, name), Some(second.as_str()));
        }
    }
    let status = scene.status("web").await?;
    assert!(status.condition(condition::IDLE).is_none());
    agents.check_violations()
}

/// Covers O01.
#[tokio::test]
async fn nodes_of_a_version_without_vouchers_are_adopted_without_any_disruption() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("adopts").await?;
    let (nodes, agents) = scene.web(3, 1, json!({})).await?;
    let mut operator = scene.operator(&[])?;
    let first = scene.until_updated("web", "", LONG).await?;
    // The last node is up to date a moment before its permit is returned.
    until_async("all permits to be returned", SOON, async || {
        let mut holders = Vec::new();
        for node in nodes.iter() {
            let seen = scene.node(node.name()).await?;
            holders.extend(annotated(&seen, annotation::DRAIN_GRANTED).map(|_| seen.name_any()));
        }
        Ok(if holders.is_empty() {
            Look::Found(())
        } else {
            Look::NotYet(format!("{holders:?}"))
        })
    })
    .await?;
    operator.kill()?;
    scene.nobody_leads().await?;
    // As an earlier version left them, and one that somebody else tells what to run.
    let without = json!({ "metadata": { "annotations": { annotation::VOUCHER: null } } });
    for node in nodes.iter() {
        scene.patch(node.name(), &without).await?;
    }
    let other = scene.describe("other").label("place", &scene.name);
    let other = scene.start(other).await?;
    let foreign = json!({ "metadata": { "annotations": {
        annotation::DESIRED_CONFIG: first, annotation::DESIRED_DRAIN: format!("drain-{first}"),
    } } });
    scene.patch(other.name(), &foreign).await?;
    // A paused pool moves nobody, and takes care of its nodes all the same.
    scene
        .edit_pool("web", json!({ "spec": { "paused": true } }))
        .await?;
    let (boots, before) = (agents.boots(), scene.target("web").await?);
    let _operator = scene.operator(&[])?;
    until_async("all nodes to have their vouchers", SOON, async || {
        let mut missing = Vec::new();
        for node in nodes.iter() {
            let seen = scene.node(node.name()).await?;
            if annotated(&seen, annotation::VOUCHER) != Some(&first) {
                missing.push(seen.name_any());
            }
            assert_eq!(annotated(&seen, annotation::DESIRED_CONFIG), Some(&*first));
            assert_eq!(annotated(&seen, annotation::DRAIN_GRANTED), None);
        }
        Ok(if missing.is_empty() {
            Look::Found(())
        } else {
            Look::NotYet(format!("{missing:?}"))
        })
    })
    .await?;
    assert_eq!(
        (agents.boots(), scene.target("web").await?),
        (boots, before)
    );
    // One that is in no pool of ours is not adopted, and gets no answer.
    let seen = scene.node(other.name()).await?;
    assert_eq!(annotated(&seen, annotation::VOUCHER), None);
    assert_eq!(annotated(&seen, annotation::DRAIN_GRANTED), None);
    let rendered = scene.configs().get(&first).await.doing(|| "it is gone")?;
    assert!(rendered.labels().contains_key(label::RENDERED));
    agents.check_violations()
}
