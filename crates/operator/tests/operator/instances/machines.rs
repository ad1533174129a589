//! Machines that somebody else's controller makes and removes, on a cluster that learns of them late.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::machine_double::{
    self, Body, MachineController, Maker, SimulatedMachine, machine_set, machine_sets, machines,
};
use evenkeel_testbed::node_double::{NodeDouble, Os};
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::windows_instance::WindowsInstance;
use evenkeel_testbed::{Doing, Error, Result};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::bed::{Bed, LONG, is_skipped};
use crate::scene::{annotated, free_port, requests};

/// One without Machines, until a test says otherwise.
fn control_plane() -> Result<&'static ControlPlane> {
    static OWN: OnceLock<Result<ControlPlane>> = OnceLock::new();
    let own = OWN.get_or_init(ControlPlane::start);
    own.as_ref().map_err(Clone::clone)
}

const WINDOWS: &str = "machine.openshift.io/os-id";
const INSTANCE: &str = "evenkeel.dev/instance";
/// A Machine whose machine never comes.
const LATE: &str = "op-mach-late";
const LINUX: &str = "op-mach-linux";

type Instances = Arc<Mutex<BTreeMap<String, Arc<WindowsInstance>>>>;

/// Windows Machines are instances that know the operator's key; others are nodes of Linux.
fn maker(bed: &Bed, instances: &Instances) -> Result<Maker> {
    let key = bed.key.with_extension("pub");
    let key = std::fs::read_to_string(key).doing(|| "cannot read a key")?;
    let login = bed.scene.control_plane.admin_kubeconfig();
    let (place, instances) = (bed.scene.name.clone(), instances.clone());
    Ok(Arc::new(move |name: String, labels: Value| {
        let (key, login) = (key.clone(), login.clone());
        let (place, instances) = (place.clone(), instances.clone());
        Box::pin(async move {
            if name == LATE {
                std::future::pending::<()>().await;
            }
            if labels[WINDOWS] != "Windows" {
                let node = NodeDouble::named(&name)
                    .label("place", &place)
                    .os(Os::Linux);
                let made = SimulatedMachine::start(node, &json!({}), &login).await?;
                return Ok(Box::new(made) as Box<dyn Body>);
            }
            let boot = tokio::task::spawn_blocking(move || {
                let instance = WindowsInstance::boot(&name)?;
                instance.authorize(&key)?;
                let instance = Arc::new(instance);
                let mut all = instances.lock().unwrap_or_else(PoisonError::into_inner);
                all.insert(name, instance.clone());
                Ok::<_, Error>(instance)
            });
            let instance = boot.await.doing(|| "cannot boot")??;
            Ok(Box::new(instance) as Box<dyn Body>)
        })
    }))
}

async fn make(api: &Api<DynamicObject>, object: Value) -> Result<()> {
    let object = serde_json::from_value(object).doing(|| "no object")?;
    let made = api.create(&PostParams::default(), &object).await;
    made.map(|_| ()).doing(|| "cannot make an object")
}

fn machine(name: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
        "metadata": { "name": name, "labels": labels },
    })
}

/// Waits for the instance of a Machine of the set that is not `other`.
async fn instance(instances: &Instances, other: &str) -> Result<(String, Arc<WindowsInstance>)> {
    until_async("a Machine to be a machine", LONG, async || {
        let all = instances.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().find(|(name, _)| *name != other);
        Ok(match found {
            Some((name, instance)) => Look::Found((name.clone(), instance.clone())),
            None => Look::NotYet(format!("{:?}", all.keys())),
        })
    })
    .await
}

/// Reasons and notes of Events on a Machine.
async fn told(bed: &Bed, machine: &str) -> Result<Vec<(String, String)>> {
    let events: Api<Event> = Api::namespaced(bed.scene.client.clone(), &bed.scene.name);
    let all = events.list(&ListParams::default()).await;
    let all = all.doing(|| "cannot list Events")?.items.into_iter();
    let on_it = all.filter(|it| {
        let on = it.regarding.clone().unwrap_or_default();
        on.kind.as_deref() == Some("Machine") && on.name.as_deref() == Some(machine)
    });
    let said = on_it.map(|it| (it.reason.unwrap_or_default(), it.note.unwrap_or_default()));
    Ok(said.collect())
}

async fn until_told(bed: &Bed, machine: &str, reason: &str, word: &str) -> Result<()> {
    until_async(&format!("{reason} on {machine}"), LONG, async || {
        let said = told(bed, machine).await?;
        let is_it = |(it, note): &(String, String)| it == reason && note.contains(word);
        Ok(if said.iter().any(is_it) {
            Look::Found(())
        } else {
            Look::NotYet(format!("{said:?}\n{}", bed.last_words(5)))
        })
    })
    .await
}

/// How often the operator began to connect to an instance.
fn connections(bed: &Bed, name: &str) -> usize {
    let log = bed.scene.log();
    let lines = log.lines();
    let to_it = |it: &&str| it.contains("connecting") && it.contains(&format!("{name:?}"));
    lines.filter(to_it).count()
}

async fn host_keys(bed: &Bed) -> Result<Vec<String>> {
    let secrets: Api<Secret> = Api::namespaced(bed.scene.client.clone(), &bed.scene.name);
    let found = secrets.get("evenkeel-host-keys").await;
    let data = found.doing(|| "no host keys")?.data.unwrap_or_default();
    Ok(data.into_keys().collect())
}

/// An operator that has nothing to do asks the API server for nothing, and never for kinds that the cluster does not have.
async fn asks_for_nothing(bed: &Bed, port: u16) -> Result<()> {
    const RENEWAL: &str = r#"verb="update",resource="leases""#;
    const READING: &str = r#"verb="get",resource="leases""#;
    // Its own Lease is renewed for as long as it leads, and read first where a renewal was not answered in time.
    let asked = async || -> Result<(f64, BTreeMap<String, f64>)> {
        let mut others = requests(port).await?;
        let mut take = |what: &str| -> f64 {
            let taken = others.extract_if(.., |it, _| it.contains(what));
            taken.map(|it| it.1).sum()
        };
        let (renewals, readings) = (take(RENEWAL), take(READING));
        // One before it leads, and one before each renewal at most.
        assert!(readings <= 1.0 + renewals, "{readings} > {renewals}");
        Ok((renewals, others))
    };
    // As long as two renewals take: the first one may meet what we have written on that Lease since, and read it once more.
    let two_renewals = async || -> Result<_> {
        let before = asked().await?;
        until_async("two renewals of the operator's Lease", LONG, async || {
            let after = asked().await?;
            Ok(if after.0 >= before.0 + 2.0 {
                Look::Found(after.1)
            } else {
                Look::NotYet(format!("{} renewals of {}", after.0, before.0 + 2.0))
            })
        })
        .await
        .map(|after| (before.1, after))
    };
    bed.services().await?;
    until_async("the operator to have read everything", LONG, async || {
        let (before, after) = two_renewals().await?;
        Ok(if before == after {
            Look::Found(())
        } else {
            Look::NotYet(format!("{after:?}"))
        })
    })
    .await?;
    let (before, after) = two_renewals().await?;
    assert_eq!(before, after, "somebody asks again and again");
    for kind in ["machines", "machinesets", "proxies"] {
        let mut all = after.keys();
        let name = format!("resource=\"{kind}\"");
        assert!(!all.any(|it| it.contains(&name)), "{after:?}");
    }
    let definitions = r#"verb="watch",resource="customresourcedefinitions""#;
    assert!(after.keys().any(|it| it.contains(definitions)), "{after:?}");
    Ok(())
}

/// Covers H12, H38.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_becomes_a_node_and_one_that_goes_is_forgotten_and_never_knocked_at() -> Result<()>
{
    if is_skipped()? {
        return Ok(());
    }
    let bed = Bed::on(control_plane()?, "win-mach", "kubelet-double").await?;
    let (namespace, client) = (bed.scene.name.clone(), bed.scene.client.clone());
    let port = free_port()?;
    let _operator = bed.operator(&["--listen", &format!("127.0.0.1:{port}")])?;
    bed.led().await?;
    asks_for_nothing(&bed, port).await?;

    // The cluster learns of Machines only now.
    machine_double::install_kinds(bed.scene.control_plane)?;
    let instances = Instances::default();
    let login = bed.scene.control_plane.admin_kubeconfig();
    let make_one = maker(&bed, &instances)?;
    let _controller = MachineController::start(&login, &namespace, make_one).await?;
    let api = machines(client.clone(), &namespace);
    let sets = machine_sets(client, &namespace);
    let labels = json!({ "place": namespace, WINDOWS: "Windows" });
    make(&sets, machine_set("op-mach", 1, &json!({}), &labels)).await?;
    make(&api, machine(LATE, &labels)).await?;
    make(&api, machine(LINUX, &json!({ "place": namespace }))).await?;

    let (first, machine) = instance(&instances, "").await?;
    let called = format!("machine_{namespace}_{first}");
    let node = bed.serves(&machine).await?;
    let of = annotated(&node, INSTANCE);
    assert_eq!(of, Some(format!("Administrator@{called}").as_str()));
    let status = bed.settled(&called).await?;
    assert_eq!(status["node"], first.as_str());
    assert_eq!(host_keys(&bed).await?, [called.as_str()]);
    until_told(&bed, &first, "InstanceConfigured", "is configured as Node").await?;
    // One without an address is told so, and what to do; one that runs no Windows is nobody's.
    until_told(&bed, LATE, "NoAddress", "kubectl describe").await?;
    assert_eq!(connections(&bed, &format!("machine_{namespace}_{LATE}")), 0);
    let linux = bed.scene.node(LINUX).await?;
    assert_eq!(annotated(&linux, INSTANCE), None);
    let status = bed.status(&format!("machine_{namespace}_{LINUX}")).await?;
    assert_eq!(status, Value::Null);

    // It goes, and somebody holds that up: it is forgotten at once, while its Node is still there.
    let hooks = |hooks: Value| {
        let patch = json!({ "spec": { "lifecycleHooks": { "preTerminate": hooks } } });
        let (api, first) = (api.clone(), first.clone());
        async move {
            let patch = Patch::Merge(patch);
            let patched = api.patch(&first, &PatchParams::default(), &patch).await;
            patched.map(|_| ()).doing(|| "cannot write a hook")
        }
    };
    hooks(json!([{ "name": "wait", "owner": "test" }])).await?;
    let before = connections(&bed, &called);
    assert!(before > 0);
    drop(machine);
    let deleted = api.delete(&first, &DeleteParams::default()).await;
    deleted.doing(|| "cannot delete a Machine")?;
    bed.forgotten(&called).await?;
    let (second, machine) = instance(&instances, &first).await?;
    bed.serves(&machine).await?;
    let keys = host_keys(&bed).await?;
    assert_eq!(keys, [format!("machine_{namespace}_{second}")]);
    assert_eq!(bed.scene.node(&first).await?.uid(), node.uid());
    {
        let mut all = instances.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&first);
    }
    hooks(json!([])).await?;
    until_async("the Machine to be gone", LONG, async || {
        let found = api.get_opt(&first).await.doing(|| "no answer")?;
        let node = bed.scene.nodes().get_opt(&first).await;
        let node = node.doing(|| "no answer")?;
        Ok(match (found, node) {
            (None, None) => Look::Found(()),
            (machine, node) => Look::NotYet(format!("{machine:?} {node:?}")),
        })
    })
    .await?;
    assert_eq!(connections(&bed, &called), before, "{}", bed.last_words(20));
    assert_eq!(bed.status(&called).await?, Value::Null);
    let said = bed.told_so_far().await?;
    let wrong = ["InstanceAbandoned", "InstanceRemoved"];
    let mut said = said.iter().map(|(reason, _)| reason.as_str());
    assert!(!said.any(|it| wrong.contains(&it)), "{said:?}");
    bed.serves(&machine).await.map(|_| ())
}
