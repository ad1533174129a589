//! Maintenance windows on a real control plane: nodes are doubles, their agents the real engine on simulated machines, and
//! the clock is the machine's own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_api::fleet::machine_config_pool::condition;
use evenkeel_api::fleet::rollout_policy::{KIND, PLURAL, VERSION};
use evenkeel_api::names::{annotation, group};
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use futures::StreamExt;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::pools::{is, said};
use crate::rollout::LONG;
use crate::scene::{SOON, Scene, annotated};

/// How late the operator may wake on a busy machine.
const LATE: SignedDuration = SignedDuration::from_secs(5);

fn policies(scene: &Scene) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(group::EVENKEEL, VERSION, KIND);
    let kind = ApiResource::from_gvk_with_plural(&kind, PLURAL);
    Api::all_with(scene.client.clone(), &kind)
}

async fn make(scene: &Scene, name: &str, spec: Value) -> kube::Result<()> {
    let policy = json!({
        "apiVersion": format!("{}/{VERSION}", group::EVENKEEL), "kind": KIND,
        "metadata": { "name": scene.own(name) }, "spec": spec,
    });
    let policy = serde_json::from_value(policy).map_err(kube::Error::SerdeError)?;
    let (policies, parameters) = (policies(scene), PostParams::default());
    policies.create(&parameters, &policy).await.map(|_| ())
}

async fn edit(scene: &Scene, name: &str, spec: Value) -> Result<()> {
    let patch = Patch::Merge(json!({ "spec": spec }));
    let (policies, parameters) = (policies(scene), PatchParams::default());
    let patched = policies.patch(&scene.own(name), &parameters, &patch).await;
    patched.map(|_| ()).doing(|| "cannot change the policy")
}

/// The schedule of a window that opens at `moment`, on its minute.
fn daily_at(moment: Timestamp) -> String {
    format!(
        "daily {}",
        TimeZone::UTC.to_datetime(moment).strftime("%H:%M")
    )
}

/// Somebody who sees when each node began: when it was told what to run, and when it got its permit.
struct BeginWatcher {
    begun: Arc<Mutex<BTreeMap<String, Vec<Timestamp>>>>,
    task: JoinHandle<()>,
}

impl BeginWatcher {
    fn of(scene: &Scene) -> Self {
        let begun: Arc<Mutex<BTreeMap<String, Vec<Timestamp>>>> = Arc::default();
        let config = watcher::Config::default().labels(&format!("place={}", scene.name));
        let mut changes = watcher(scene.nodes(), config).boxed();
        let noted = Arc::clone(&begun);
        let task = tokio::spawn(async move {
            let mut known: BTreeMap<String, [Option<String>; 2]> = BTreeMap::new();
            while let Some(change) = changes.next().await {
                let Ok(watcher::Event::Apply(node) | watcher::Event::InitApply(node)) = change
                else {
                    continue;
                };
                let name = node.name_any();
                let is = [annotation::DESIRED_CONFIG, annotation::DRAIN_GRANTED]
                    .map(|it| annotated(&node, it).map(str::to_owned));
                let was = known.insert(name.clone(), is.clone()).unwrap_or_default();
                let begins = is
                    .iter()
                    .zip(&was)
                    .any(|(is, was)| is.is_some() && is != was);
                if begins {
                    let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
                    noted.entry(name).or_default().push(Timestamp::now());
                }
            }
        });
        Self { begun, task }
    }

    /// When nodes began, by name.
    fn saw(&self) -> BTreeMap<String, Vec<Timestamp>> {
        assert!(!self.task.is_finished(), "nobody watches");
        self.begun
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for BeginWatcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Covers T01.
#[tokio::test]
async fn nobody_begins_outside_a_window_and_the_operator_wakes_by_itself_when_one_opens()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("nights").await?;
    let begins = BeginWatcher::of(&scene);
    let (nodes, agents) = scene
        .web(5, 1, json!({ "maxUnavailable": 2, "paused": true }))
        .await?;
    let named = json!({ "metadata": { "annotations": { annotation::ROLLOUT_POLICY: scene.own("nights") } } });
    scene.edit_pool("web", named).await?;
    let _operator = scene.operator(&[])?;
    scene
        .edit_pool("web", json!({ "spec": { "paused": false } }))
        .await?;
    // Without its policy the pool is held, and says so.
    let held = scene
        .until_pool("web", "to miss its policy", SOON, |it| {
            said(it, condition::UPDATING).0 == "InvalidPolicy" && it.machine_count == 5
        })
        .await?;
    let (reason, message) = said(&held, condition::DEGRADED);
    assert_eq!(reason, "InvalidPool");
    assert!(
        message.contains(&format!(
            "RolloutPolicy {} does not exist",
            scene.own("nights")
        )),
        "{message}"
    );
    // What makes no sense is refused at once, as far as the API server can tell, and else by the operator.
    let window = |schedule: &str, duration: &str| json!({ "windows": [{ "schedule": schedule, "duration": duration }] });
    for wrong in [
        window("0 22 * * 6", "6h"),
        window("Sat 22:00", "6 hours"),
        json!({ "windows": [{ "schedule": "Sat 22:00" }] }),
    ] {
        let refused = make(&scene, "nights", wrong.clone()).await;
        assert!(
            matches!(&refused, Err(kube::Error::Api(it)) if it.code == 422),
            "{wrong}: {refused:?}"
        );
    }
    make(&scene, "nights", window("Sut 22:00", "6h"))
        .await
        .doing(|| "cannot make a policy")?;
    scene
        .until_pool("web", "to name the field", SOON, |it| {
            said(it, condition::DEGRADED)
                .1
                .contains("spec.windows[0].schedule: \"Sut 22:00\" is not a schedule")
        })
        .await?;
    // A window in the future holds it, too.
    let later = Timestamp::now() + SignedDuration::from_hours(12);
    edit(&scene, "nights", window(&daily_at(later), "1h")).await?;
    let opens = TimeZone::UTC
        .to_datetime(later)
        .strftime("%Y-%m-%dT%H:%M:00Z")
        .to_string();
    scene
        .until_pool("web", "to wait for its window", SOON, |it| {
            let (reason, message) = said(it, condition::UPDATING);
            reason == "OutsideWindow"
                && message.contains(&format!("the next window opens at {opens}"))
        })
        .await?;
    scene
        .told(&scene.own("web"), "InvalidPool", "does not exist")
        .await?;
    assert_eq!(begins.saw(), BTreeMap::new());
    // The window of today is open already, and a freeze keeps it shut for some seconds; soon after another one begins.
    agents.hold_boots(true);
    let now = Timestamp::now();
    let opening = now + SignedDuration::from_secs(10);
    let closing = opening + SignedDuration::from_secs(20);
    let begun_by = now - SignedDuration::from_mins(5);
    let mut spec = window(&daily_at(begun_by), "2h");
    spec["freezes"] = json!([
        { "from": begun_by.to_string(), "to": opening.to_string() },
        { "from": closing.to_string(), "to": (closing + SignedDuration::from_hours(24)).to_string() },
    ]);
    edit(&scene, "nights", spec).await?;
    scene
        .until_pool("web", "to be frozen", SOON, |it| {
            said(it, condition::UPDATING).0 == "Frozen"
        })
        .await?;
    // Nothing changes in the cluster until then, and nobody but the clock wakes the operator.
    let saw = until_async("two nodes to begin", SOON, async || {
        let saw = begins.saw();
        let begun = saw.values().filter(|it| it.len() == 2).count();
        Ok(if begun == 2 {
            Look::Found(saw)
        } else {
            Look::NotYet(format!("{saw:?}"))
        })
    })
    .await?;
    let first = saw.values().flatten().min().copied().unwrap_or_default();
    assert!(
        first >= opening,
        "a node began at {first}, and the window opened at {opening}"
    );
    assert!(
        first <= opening + LATE,
        "a node began at {first}, and the window opened at {opening}"
    );
    let last = saw.values().flatten().max().copied().unwrap_or_default();
    assert!(
        last < closing,
        "they began until {last}: the machine is too slow for this window"
    );
    // The window closes while both are down. They arrive, and nobody else begins.
    scene
        .until_pool("web", "to be frozen with two on their way", SOON, |it| {
            said(it, condition::UPDATING).0 == "Frozen" && is(it, condition::UPDATING)
        })
        .await?;
    agents.hold_boots(false);
    let status = scene
        .until_pool("web", "to have the two that began", LONG, |it| {
            it.updated_machine_count == 2
                && !is(it, condition::UPDATING)
                && it.unavailable_machine_count == 0
        })
        .await?;
    assert_eq!(said(&status, condition::UPDATING).0, "Frozen");
    // In an emergency somebody says who and why, and without that nothing is overridden.
    let overridden = |text: &str| json!({ "metadata": { "annotations": { annotation::ROLLOUT_OVERRIDE: text } } });
    scene.edit_pool("web", overridden("true")).await?;
    scene
        .told(&scene.own("web"), "InvalidPool", "it must say who and why")
        .await?;
    assert_eq!(begins.saw().len(), 2, "somebody began after {closing}");
    scene
        .edit_pool("web", overridden("jane: CVE-2026-1234"))
        .await?;
    let told = scene
        .told(&scene.own("web"), "WindowsOverridden", "CVE-2026-1234")
        .await?;
    assert!(
        told.starts_with("jane overrides the maintenance windows and freezes"),
        "{told}"
    );
    scene.until_updated("web", "", LONG).await?;
    assert_eq!(begins.saw().len(), nodes.len());
    agents.check_violations()
}
