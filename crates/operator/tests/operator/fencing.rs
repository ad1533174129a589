//! Two operators, of which one is frozen in the middle of a grant, with what it sent under way for later: never is one node
//! too many down. And what a node writes on itself grants it nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_api::names::{annotation, cordon};
use evenkeel_testbed::chance::{Chance, is_soak, seed};
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::kubeconfig::Kubeconfig;
use evenkeel_testbed::request_proxy::{RequestProxy, Where};
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result, need};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::rollout_watcher::RolloutWatcher;
use crate::scene::{SOON, Scene, annotated, is_cordoned};

/// A write of an operator, on the way from a request to the node that serves again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// The record of permits is made its own.
    Claim,
    /// A permit is put on it.
    Record,
    /// The Node is told.
    Grant,
    /// Its pods have left.
    Drained,
    /// It serves again.
    Uncordon,
    /// The permit is taken off the record.
    Return,
}

const STEPS: [Step; 6] = [
    Step::Claim,
    Step::Record,
    Step::Grant,
    Step::Drained,
    Step::Uncordon,
    Step::Return,
];

/// Knows steps by their requests.
#[derive(Debug, Default)]
struct Reader {
    granted: BTreeSet<String>,
}

impl Reader {
    /// Which steps a request is, if any: permits are granted and returned in one write.
    fn read(&mut self, method: &str, path: &str, body: &[u8]) -> Option<Vec<Step>> {
        let body: Value = (method == "PATCH").then(|| serde_json::from_slice(body).ok())??;
        if path.ends_with("/status") {
            let permits = body.pointer("/status/permits/granted")?.as_array()?;
            let names = permits.iter().filter_map(|it| it["node"].as_str());
            let names: BTreeSet<String> = names.map(str::to_owned).collect();
            let before = std::mem::replace(&mut self.granted, names);
            let steps = [
                (Step::Record, !self.granted.is_subset(&before)),
                (Step::Return, !before.is_subset(&self.granted)),
                (Step::Claim, self.granted == before),
            ];
            let steps = steps.into_iter().filter(|(_, is_so)| *is_so);
            return Some(steps.map(|(step, _)| step).collect());
        }
        let annotations = body.pointer("/metadata/annotations")?;
        let answer = annotations[annotation::LAST_APPLIED_DRAIN].as_str();
        match answer.map(|it| it.split_once('-')) {
            Some(Some(("drain", _))) => Some(vec![Step::Drained]),
            Some(Some(("uncordon", _))) => Some(vec![Step::Uncordon]),
            _ if annotations[annotation::DRAIN_GRANTED].is_string() => Some(vec![Step::Grant]),
            _ => None,
        }
    }
}

/// What an agent does that has much to change: it asks, is down for a moment, and comes back; sometimes it thinks better of it.
async fn ask_for_ever(
    client: kube::Client,
    name: String,
    mut chance: Chance,
    done: Arc<Mutex<usize>>,
) {
    let nodes: Api<Node> = Api::all(client);
    for round in 0.. {
        for wish in ["drain", "uncordon"] {
            let request = format!("{wish}-{round}");
            let patch =
                json!({ "metadata": { "annotations": { annotation::DESIRED_DRAIN: request } } });
            let asked = nodes
                .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await;
            let patience = if wish == "drain" && chance.below(3) == 0 {
                8
            } else {
                400
            };
            let mut looks = 0;
            while asked.is_ok() && looks < patience {
                let seen = nodes.get(&name).await;
                let is_answered = |it: &Node| {
                    annotated(it, annotation::LAST_APPLIED_DRAIN) == Some(request.as_str())
                };
                if seen.is_ok_and(|it| is_answered(&it)) {
                    break;
                }
                looks += 1;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        if let Ok(mut done) = done.lock() {
            *done += 1;
        }
        // Its work, for which others need not wait: who asks without end would always be the oldest to ask.
        let work = 1500 + u64::try_from(chance.below(1000)).unwrap_or_default();
        tokio::time::sleep(Duration::from_millis(work)).await;
    }
}

/// Waits until this many more rounds are over.
async fn progress(done: &Mutex<usize>, rounds: usize, why: &str) -> Result<()> {
    let count = || done.lock().map_or(0, |it| *it);
    let goal = count() + rounds;
    until_async(why, SOON, async || {
        Ok(if count() >= goal {
            Look::Found(())
        } else {
            Look::NotYet(format!("{} of {goal} rounds", count()))
        })
    })
    .await
}

/// Waits until another node has a permit while this one is as it was, which may never be.
async fn worst_moment(scene: &Scene, at_first: &Node) -> Result<()> {
    let of_scene = ListParams::default().labels(&format!("place={}", scene.name));
    loop {
        let nodes = scene.nodes().list(&of_scene).await;
        let nodes = nodes.doing(|| "cannot list nodes")?.items;
        let is_same = |it: &&Node| it.name_any() == at_first.name_any();
        let version = nodes
            .iter()
            .find(is_same)
            .and_then(ResourceExt::resource_version);
        let is_down = |it: &Node| annotated(it, annotation::DRAIN_GRANTED).is_some();
        if version == at_first.resource_version()
            && nodes.iter().any(|it| !is_same(&it) && is_down(it))
        {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// How often a leader was frozen at a step whose late write got this answer.
type Hits = BTreeMap<(Step, u16), usize>;

/// A pool whose leader is frozen in each of `cases`, and another one takes over; how often each step was hit, and over how
/// many versions of Nodes nobody saw one too many down.
async fn freeze(prefix: &str, cases: Vec<(Step, Where)>, seed: u64) -> Result<(Hits, usize)> {
    let scene = Scene::new(prefix).await?;
    let nodes = scene.fleet("web", 4, 1).await?;
    scene.pool("web", json!({ "maxUnavailable": 1 })).await?;
    let rollout_watcher = RolloutWatcher::of(&scene);
    let done = Arc::default();
    let mut agents = JoinSet::new();
    for (at, node) in nodes.iter().enumerate() {
        let chance = Chance(seed + at as u64);
        agents.spawn(ask_for_ever(
            scene.client.clone(),
            node.name().to_owned(),
            chance,
            Arc::clone(&done),
        ));
    }
    let login = scene.login()?;
    let mut hit = Hits::new();
    for (step, place) in cases {
        scene.nobody_leads().await?;
        let proxy = RequestProxy::of(&login)?;
        let mut reader = Reader {
            granted: granted(&scene).await?,
        };
        // Whoever comes next grants the others first, unless it knows better.
        let last = format!("/nodes/{}", nodes[nodes.len() - 1].name());
        let mut held = proxy.hold(place, move |method, path, body| {
            let steps = reader.read(method, path, body).unwrap_or_default();
            steps.contains(&step) && (step != Step::Grant || path.ends_with(&last))
        });
        let mut old = scene.operator_called("old", &proxy.login(), &[])?;
        let there = tokio::time::timeout(SOON, held.is_there()).await;
        there.doing(|| format!("{step:?} never came: {}", scene.log()))??;
        old.signal(Signal::STOP)?;
        scene.nobody_leads().await?;
        let mut new = scene.operator_called("new", &login, &[])?;
        let at_first = scene.node(nodes[nodes.len() - 1].name()).await?;
        let why = format!("others to go on while one is frozen at {step:?}");
        tokio::select! {
            went_on = progress(&done, 3, &why) => went_on?,
            // The worst moment for what is late: nobody has touched its Node since, and another one is down.
            is_bad = worst_moment(&scene, &at_first), if step == Step::Grant => is_bad?,
        }
        let status = held.release().await?;
        *hit.entry((step, status)).or_default() += 1;
        // What was late is there; now its sender goes on, too, and two lead for a moment.
        old.signal(Signal::CONT)?;
        progress(&done, 2, &format!("all to go on after {step:?}")).await?;
        let (down, _) = rollout_watcher.saw();
        if down > 1 {
            let log = scene.log();
            return Err(Error::failed(format!(
                "{down} nodes were down at once: {step:?} {place:?}, answered {status}: {log}"
            )));
        }
        old.kill()?;
        new.kill()?;
    }
    Ok((hit, rollout_watcher.versions()))
}

/// Covers S07.
#[tokio::test(flavor = "multi_thread")]
async fn frozen_in_any_step_of_a_grant_an_old_leader_never_has_one_node_too_many_down() -> Result<()>
{
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let mut chance = Chance(seed());
    // Each step once, held in a place by chance; in a soak often, and in both.
    let mut cases: Vec<(Step, Where)> = Vec::new();
    let place = |number: usize| {
        if number == 0 {
            Where::Before
        } else {
            Where::After
        }
    };
    for step in STEPS {
        // What the server has not seen yet is what comes late: that one is never left out.
        if is_soak() {
            cases.extend((0..20).map(|it| (step, place(it % 2))));
        } else if step == Step::Grant {
            cases.extend([(step, Where::Before), (step, Where::After)]);
        } else {
            cases.push((step, place(chance.below(2))));
        }
    }
    // What is waited for are Leases that lapse: pools that have nothing to do with each other wait together.
    let pools = if is_soak() { 4 } else { 1 };
    let running = (0..pools).map(async |pool| {
        let cases = cases.iter().skip(pool).step_by(pools).copied().collect();
        freeze(&format!("fenced-{pool}"), cases, seed() + 100 * pool as u64).await
    });
    let (mut hit, mut versions) = (Hits::new(), 0);
    for (hits, seen) in futures::future::try_join_all(running).await? {
        for (at, count) in hits {
            *hit.entry(at).or_default() += count;
        }
        versions += seen;
    }
    for step in STEPS {
        let of_it = hit.iter().filter(|((it, _), _)| *it == step);
        let count: usize = of_it.map(|(_, count)| count).sum();
        assert!(count > 0, "nobody was frozen at {step:?}");
    }
    let refused = hit
        .iter()
        .filter(|((_, status), _)| *status == 409)
        .map(|(_, it)| it);
    let refused: usize = refused.sum();
    assert!(refused > 0, "no late write was refused: {hit:?}");
    println!(
        "proof: an old leader frozen {} times, at {hit:?} (step, and the answer to what was late): never more than one node down, over {} versions of Nodes",
        hit.values().sum::<usize>(),
        versions,
    );
    Ok(())
}

/// Who has a permit, as the pool says.
async fn granted(scene: &Scene) -> Result<BTreeSet<String>> {
    let status = scene.status("web").await?;
    let permits = status.permits.unwrap_or_default().granted;
    Ok(permits.into_iter().map(|it| it.node).collect())
}

/// What somebody with that login gets for writing these annotations on a node.
async fn writes(
    login: &Kubeconfig,
    node: &str,
    annotations: &Value,
) -> Result<std::result::Result<(), u16>> {
    let nodes: Api<Node> = Api::all(login.client().await?);
    let patch = json!({ "metadata": { "annotations": annotations } });
    match nodes
        .patch(node, &PatchParams::default(), &Patch::Merge(&patch))
        .await
    {
        Ok(_) => Ok(Ok(())),
        Err(kube::Error::Api(status)) => Ok(Err(status.code)),
        Err(error) => Err(Error::because("cannot ask", error)),
    }
}

/// Covers S08.
#[tokio::test(flavor = "multi_thread")]
async fn neither_agent_nor_kubelet_can_write_what_grants_a_permit() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("claimant").await?;
    scene.let_agents_in()?;
    let nodes = scene.fleet("web", 1, 1).await?;
    let name = nodes[0].name();
    let agent = scene.agent_login(name)?;
    let kubelet = scene.control_plane.kubeconfig_for_node(name)?;
    let by_drain = json!({ annotation::CORDONED_BY: cordon::DRAIN });
    let lies = [
        by_drain.clone(),
        json!({ annotation::DRAIN_GRANTED: "2026-01-01T00:00:00Z" }),
        json!({ annotation::LAST_APPLIED_DRAIN: "drain-x" }),
        json!({ annotation::VOUCHER: "rendered-x" }),
        json!({ annotation::DRAIN_OWN_PODS: "" }),
        json!({ annotation::DRAIN_OVERDUE: "drain-x" }),
    ];
    // The API server takes a moment to know a new policy.
    until_async("the policies to hold", SOON, async || {
        let off = json!({ "metadata": { "annotations": { annotation::CORDONED_BY: null } } });
        scene.patch(name, &off).await?;
        Ok(
            match (
                writes(&agent, name, &by_drain).await?,
                writes(&kubelet, name, &by_drain).await?,
            ) {
                (Err(_), Err(_)) => Look::Found(()),
                other => Look::NotYet(format!("{other:?}")),
            },
        )
    })
    .await?;
    for (who, login) in [("agent", &agent), ("kubelet", &kubelet)] {
        for lie in &lies {
            let answer = writes(login, name, lie).await?;
            assert!(
                matches!(answer, Err(403 | 422)),
                "{who} writes {lie}: {answer:?}"
            );
        }
    }
    // What the operator wrote, neither takes off.
    let all = json!({ "metadata": { "annotations": {
        annotation::CORDONED_BY: cordon::DRAIN, annotation::DRAIN_GRANTED: "2026-01-01T00:00:00Z",
    } } });
    scene.patch(name, &all).await?;
    for login in [&agent, &kubelet] {
        for key in [annotation::CORDONED_BY, annotation::DRAIN_GRANTED] {
            let answer = writes(login, name, &json!({ key: null })).await?;
            assert!(
                matches!(answer, Err(403 | 422)),
                "{key} is gone: {answer:?}"
            );
        }
    }
    let none = json!({ "metadata": { "annotations": {
        annotation::CORDONED_BY: null, annotation::DRAIN_GRANTED: null,
    } } });
    scene.patch(name, &none).await?;
    // What an agent needs to say, it may.
    for value in [json!(cordon::AGENT), Value::Null] {
        let answer = writes(&agent, name, &json!({ annotation::CORDONED_BY: value })).await?;
        assert_eq!(answer, Ok(()), "{value}");
    }
    let asks = writes(
        &agent,
        name,
        &json!({ annotation::DESIRED_DRAIN: "drain-x" }),
    )
    .await?;
    assert_eq!(asks, Ok(()));
    Ok(())
}

/// Covers S08.
#[tokio::test(flavor = "multi_thread")]
async fn what_stands_on_a_node_grants_it_nothing_in_a_paused_or_full_pool() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("liars").await?;
    let nodes = scene.fleet("web", 3, 1).await?;
    let [honest, liar, bold] = [0, 1, 2].map(|at| nodes[at].name());
    scene.pool("web", json!({ "maxUnavailable": 1 })).await?;
    let _operator = scene.operator(&[])?;
    scene.ask(honest, "drain-next").await?;
    scene.answered(honest, "drain-next").await?;
    // The administrator writes for them, as if there were no policy.
    let lie = |more: Value| {
        let mut lie = json!({
            annotation::CORDONED_BY: cordon::DRAIN,
            annotation::DESIRED_DRAIN: "drain-next",
        });
        if let (Some(all), Some(more)) = (lie.as_object_mut(), more.as_object()) {
            all.extend(more.clone());
        }
        json!({ "metadata": { "annotations": lie }, "spec": { "unschedulable": true } })
    };
    scene.patch(liar, &lie(json!({}))).await?;
    let granted = json!({ annotation::DRAIN_GRANTED: "2026-01-01T00:00:00Z" });
    scene.patch(bold, &lie(granted)).await?;
    for name in [liar, bold] {
        let note = scene.event(name, "DrainWaits").await?;
        assert!(note.contains("maxUnavailable is 1"), "{note}");
    }
    let waits = async || {
        for name in [liar, bold] {
            let seen = scene.node(name).await?;
            assert_eq!(
                annotated(&seen, annotation::LAST_APPLIED_DRAIN),
                None,
                "{name}"
            );
        }
        Ok::<_, Error>(())
    };
    waits().await?;
    // Not when it is paused, either, and nobody else is down.
    scene
        .edit_pool("web", json!({ "spec": { "paused": true } }))
        .await?;
    scene.ask(honest, "uncordon-next").await?;
    let back = scene.answered(honest, "uncordon-next").await?;
    assert!(!is_cordoned(&back));
    until_async("the permit to be returned", SOON, async || {
        let granted = self::granted(&scene).await?;
        Ok(if granted.is_empty() {
            Look::Found(())
        } else {
            Look::NotYet(format!("{granted:?}"))
        })
    })
    .await?;
    waits().await?;
    // One of them, when there is room: in its turn, with a permit of its own, and then the other.
    let off = json!({ "metadata": { "annotations": { annotation::DRAIN_GRANTED: null } } });
    scene.patch(bold, &off).await?;
    scene
        .edit_pool("web", json!({ "spec": { "paused": false } }))
        .await?;
    until_async("one of them to be answered", SOON, async || {
        let mut answered = 0;
        for name in [liar, bold] {
            let seen = scene.node(name).await?;
            answered += usize::from(annotated(&seen, annotation::LAST_APPLIED_DRAIN).is_some());
        }
        assert!(answered < 2, "both at once");
        Ok(if answered == 1 {
            Look::Found(())
        } else {
            Look::NotYet(scene.log())
        })
    })
    .await
}
