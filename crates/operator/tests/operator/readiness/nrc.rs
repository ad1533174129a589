//! Rules of node-readiness-controller. What its own tests promise is in `scenarios.json`: rules, nodes, what is done, and the taints,
//! annotations and status that are there in the end. Here it is done with our operator, through its kind.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenkeel_api::names::annotation;
use evenkeel_api::readiness::{NRC_FINALIZER, NRC_GROUP, NRC_LEASE, NrcRule, NrcStatus};
use evenkeel_plan::readiness::{Limits, Moment, NodeSnapshot, Readiness};
use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result, need};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt};
use serde::Deserialize;
use serde_json::{Value, json};

use super::powers::{full_taints, until_taints};
use crate::scene::{SOON, Scene, alone};

/// Their leader's Lease counts for the whole cluster: one test at a time.
static QUIET: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
/// How long nothing else happens where nothing is to.
const STILL: Duration = Duration::from_millis(1_500);

#[derive(Deserialize)]
struct Scenario {
    name: String,
    /// The tests that it restates.
    from: String,
    steps: Vec<Value>,
}

/// A scene with their kind, and the rights of the chart to follow its rules.
async fn their_scene(prefix: &str) -> Result<Scene> {
    let scene = Scene::new(prefix).await?;
    let file = scene.scratch.path().join("crd.json");
    std::fs::write(&file, include_str!("nrc/crd.json")).doing(|| "cannot write")?;
    let _alone = alone();
    scene
        .control_plane
        .kubectl(&["apply", "-f", &file.display().to_string()])?;
    let established = "--for=condition=Established";
    let kind = format!("crd/nodereadinessrules.{NRC_GROUP}");
    scene.control_plane.kubectl(&["wait", established, &kind])?;
    let chart = Chart::render(&scene.name, &["--set", "readiness.nrcRules=true"])?;
    chart
        .component("operator")
        .rights()
        .apply(scene.control_plane)?;
    Ok(scene)
}

impl Scene {
    fn their_rules(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(NRC_GROUP, "v1alpha1", "NodeReadinessRule");
        let kind = ApiResource::from_gvk_with_plural(&kind, "nodereadinessrules");
        Api::all_with(self.client.clone(), &kind)
    }

    async fn their_rule(&self, name: &str, mut spec: Value) -> Result<String> {
        let finalizers = spec.as_object_mut().and_then(|it| it.remove("finalizers"));
        spec["nodeSelector"]["matchLabels"]["place"] = json!(self.name);
        let rule = json!({
            "apiVersion": format!("{NRC_GROUP}/v1alpha1"), "kind": "NodeReadinessRule",
            "metadata": { "name": self.called(name), "labels": { "place": self.name }, "finalizers": finalizers },
            "spec": spec,
        });
        let rule: DynamicObject = serde_json::from_value(rule).doing(|| "no rule")?;
        let made = self
            .their_rules()
            .create(&PostParams::default(), &rule)
            .await;
        let made = made.doing(|| format!("cannot make rule {name}"))?;
        Ok(made.metadata.uid.unwrap_or_default())
    }

    async fn bare_node(
        &self,
        name: &str,
        said: &Value,
        names: &dyn Fn(&str) -> String,
    ) -> Result<()> {
        let taints: Vec<_> = strings(&said["taints"])
            .iter()
            .map(|it| taint(it))
            .collect();
        let annotations: BTreeMap<_, _> = said["annotations"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, value)| (names(key), names(value.as_str().unwrap_or_default())))
            .collect();
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": self.own(name), "annotations": annotations,
                "labels": { "place": self.name, "role": said["role"] },
            },
            "spec": { "taints": taints },
        });
        let node: Node = serde_json::from_value(node).doing(|| "no node")?;
        let made = self.nodes().create(&PostParams::default(), &node).await;
        made.doing(|| format!("cannot make node {name}"))?;
        for (kind, status) in said["conditions"].as_object().into_iter().flatten() {
            let status = status.as_str().unwrap_or_default();
            self.condition(&self.own(name), kind, status).await?;
        }
        Ok(())
    }

    fn operator_with_theirs(&self) -> Result<evenkeel_testbed::process::Running> {
        let place = format!("place={}", self.name);
        self.operator(&[
            "--rule-selector",
            &place,
            "--nrc-rules",
            "--eviction-pause",
            "0s",
        ])
    }

    /// The status of one of their rules, when it has `wanted`.
    async fn their_status(&self, rule: &str, wanted: &Value) -> Result<Value> {
        until_async(&format!("rule {rule} to say {wanted}"), SOON, async || {
            let seen = self.their_rules().get(&self.called(rule)).await;
            let status = seen.doing(|| "no rule")?.data["status"].clone();
            Ok(if has(&status, wanted) {
                Look::Found(status)
            } else {
                Look::NotYet(format!("{status}\n{}", self.log()))
            })
        })
        .await
    }

    async fn until_rule(
        &self,
        rule: &str,
        what: &str,
        is_so: impl Fn(Option<&DynamicObject>) -> bool,
    ) -> Result<()> {
        until_async(&format!("rule {rule} to be {what}"), SOON, async || {
            let seen = self.their_rules().get_opt(&self.called(rule)).await;
            let seen = seen.doing(|| "cannot read the rule")?;
            Ok(if is_so(seen.as_ref()) {
                Look::Found(())
            } else {
                Look::NotYet(format!("{:?}\n{}", seen.map(|it| it.metadata), self.log()))
            })
        })
        .await
    }
}

fn strings(list: &Value) -> Vec<String> {
    let all = list.as_array().into_iter().flatten();
    all.filter_map(|it| it.as_str().map(str::to_owned))
        .collect()
}

/// `key=value:effect` as it stands on a Node.
fn taint(text: &str) -> Value {
    let (rest, effect) = text.rsplit_once(':').unwrap_or((text, ""));
    let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
    json!({ "key": key, "value": value, "effect": effect })
}

/// Whether all that is wanted is there: of objects these keys, of lists these elements and no others.
fn has(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => wanted
            .iter()
            .all(|(key, wanted)| has(found.get(key).unwrap_or(&Value::Null), wanted)),
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len()
                && found.iter().zip(wanted).all(|(one, other)| has(one, other))
        }
        (found, wanted) => found == wanted,
    }
}

/// The annotations of a node that have to do with readiness.
fn marks(node: &Node) -> BTreeMap<String, String> {
    let all = node.annotations().iter();
    let ours = all.filter(|(key, _)| {
        key.starts_with("readiness.k8s.io/") || key.starts_with("evenkeel.dev/")
    });
    ours.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Gives a scenario nodes of its own: Kubernetes' controllers still write to one that was of this name before.
fn with_own_nodes(scenario: &mut Scenario, number: usize) {
    let rename = |name: &mut Value| {
        if let Some(text) = name.as_str() {
            *name = json!(format!("{text}{number}"));
        }
    };
    for step in &mut scenario.steps {
        for key in ["node", "of", "expect", "removeNode"] {
            step.get_mut(key).into_iter().for_each(rename);
        }
        let Some(has) = step.get_mut("has") else {
            continue;
        };
        for list in ["appliedNodes", "failedNodes"] {
            let names = has.get_mut(list).and_then(Value::as_array_mut);
            names.into_iter().flatten().for_each(rename);
        }
        let evaluations = has.get_mut("nodeEvaluations").and_then(Value::as_array_mut);
        for evaluation in evaluations.into_iter().flatten() {
            evaluation.get_mut("nodeName").into_iter().for_each(rename);
        }
    }
}

async fn play(scene: &Scene, scenario: &Scenario) -> Result<()> {
    let own = |name: &str| scene.own(name);
    let mut uids: BTreeMap<String, String> = BTreeMap::new();
    let last = |key: &str| {
        let mut steps = scenario.steps.iter().rev();
        let found = steps.find(|it| it["expect"] == key);
        found.map(std::ptr::from_ref)
    };
    for step in &scenario.steps {
        let text = |key: &str| step[key].as_str().unwrap_or_default();
        if let Some(node) = step["node"].as_str() {
            let names = |text: &str| {
                let mut text = text.to_owned();
                for (rule, uid) in &uids {
                    text = text.replace(&format!("{{uid:{rule}}}"), uid);
                }
                text.replace("{r}", &scene.called("r"))
            };
            scene.bare_node(node, step, &names).await?;
        } else if let Some(rule) = step["rule"].as_str() {
            let uid = scene.their_rule(rule, step["spec"].clone()).await?;
            uids.insert(rule.to_owned(), uid);
        } else if let Some(kind) = step["condition"].as_str() {
            scene
                .condition(&own(text("of")), kind, text("status"))
                .await?;
        } else if let Some(node) = step["expect"].as_str() {
            let taints = strings(&step["taints"]);
            let taints: Vec<_> = taints.iter().map(String::as_str).collect();
            let mut wanted = BTreeMap::new();
            for rule in strings(&step["completed"]) {
                let (key, value) = match rule.strip_prefix("legacy:") {
                    Some(rule) => (scene.called(rule), "true".to_owned()),
                    None => (
                        uids.get(&rule).cloned().unwrap_or_default(),
                        json!({ "rule-name": scene.called(&rule) }).to_string(),
                    ),
                };
                let key = format!("{}{key}", annotation::NRC_BOOTSTRAP_COMPLETED);
                wanted.insert(key, value);
            }
            until_taints(scene, &own(node), &taints).await?;
            let is_so = async || {
                let seen = scene.node(&own(node)).await?;
                Ok((full_taints(&seen) == taints, marks(&seen)))
            };
            until_async(&format!("{node} to have {wanted:?}"), SOON, async || {
                let (_, marks) = is_so().await?;
                Ok(if marks == wanted {
                    Look::Found(())
                } else {
                    Look::NotYet(format!("{marks:?}\n{}", scene.log()))
                })
            })
            .await?;
            // In the end it stays so.
            if last(node) == Some(std::ptr::from_ref(step)) {
                let all = async || is_so().await.map(|(is_so, marks)| is_so && marks == wanted);
                scene.stays(&format!("{node} as it is"), STILL, all).await?;
            }
        } else if let Some(rule) = step["status"].as_str() {
            let mut wanted = step["has"].clone();
            for list in ["appliedNodes", "failedNodes"] {
                for name in wanted[list].as_array_mut().into_iter().flatten() {
                    *name = json!(own(name.as_str().unwrap_or_default()));
                }
            }
            if let Some(all) = wanted["nodeEvaluations"].as_array_mut() {
                for it in all {
                    it["nodeName"] = json!(own(it["nodeName"].as_str().unwrap_or_default()));
                }
            }
            let mut keys = wanted.as_object().cloned().unwrap_or_default();
            keys.retain(|_, value| !value.is_null());
            scene.their_status(rule, &Value::Object(keys)).await?;
        } else if let Some(rule) = step["finalizer"].as_str() {
            let is_wanted = step["is"] == true;
            let is_so = |it: Option<&DynamicObject>| {
                it.is_some_and(|it| {
                    it.finalizers().iter().any(|it| it == NRC_FINALIZER) == is_wanted
                })
            };
            scene.until_rule(rule, "held, or not", is_so).await?;
        } else if let Some(rule) = step["delete"].as_str() {
            let deleted = scene
                .their_rules()
                .delete(&scene.called(rule), &DeleteParams::default())
                .await;
            deleted.doing(|| "cannot delete the rule")?;
        } else if let Some(rule) = step["release"].as_str() {
            let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
            let freed = scene
                .their_rules()
                .patch(&scene.called(rule), &PatchParams::default(), &free)
                .await;
            freed.doing(|| "cannot release the rule")?;
        } else if let Some(rule) = step["gone"].as_str() {
            scene.until_rule(rule, "gone", |it| it.is_none()).await?;
        } else if let Some(node) = step["removeNode"].as_str() {
            let removed = scene
                .nodes()
                .delete(&own(node), &DeleteParams::default())
                .await;
            removed.doing(|| "cannot remove the node")?;
        } else {
            return Err(Error::failed(format!("nobody knows how to do {step}")));
        }
    }
    Ok(())
}

/// Removes what a scenario has made, rules first, so that the next begins with nothing.
async fn clean(scene: &Scene, scenario: &Scenario) -> Result<()> {
    for step in &scenario.steps {
        if let Some(rule) = step["rule"].as_str() {
            _ = scene
                .their_rules()
                .delete(&scene.called(rule), &DeleteParams::default())
                .await;
            scene.until_rule(rule, "gone", |it| it.is_none()).await?;
        }
    }
    for step in &scenario.steps {
        if let Some(node) = step["node"].as_str() {
            _ = scene
                .nodes()
                .delete(&scene.own(node), &DeleteParams::default())
                .await;
        }
    }
    Ok(())
}

/// Covers N10.
#[tokio::test]
async fn its_own_scenarios_end_with_the_same_taints_and_annotations() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let _quiet = QUIET.lock().await;
    let scene = their_scene("nrc").await?;
    let mut scenarios: Vec<Scenario> =
        serde_json::from_str(include_str!("nrc/scenarios.json")).doing(|| "no scenarios")?;
    assert_eq!(scenarios.len(), 30);
    for (number, scenario) in scenarios.iter_mut().enumerate() {
        with_own_nodes(scenario, number);
    }
    let _operator = scene.operator_with_theirs()?;
    let mut failed = Vec::new();
    for scenario in &scenarios {
        let played = match play(&scene, scenario).await {
            Ok(()) => clean(&scene, scenario).await,
            failed => failed,
        };
        if let Err(error) = played {
            let text: String = error.to_string().chars().take(1500).collect();
            failed.push(format!("{} ({}): {text}", scenario.name, scenario.from));
            _ = clean(&scene, scenario).await;
        }
    }
    println!(
        "proof: {} scenarios of node-readiness-controller end as there",
        scenarios.len() - failed.len()
    );
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    Ok(())
}

/// Covers N07.
#[tokio::test]
async fn while_its_leader_leads_its_rules_are_left_alone_and_it_says_so() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let _quiet = QUIET.lock().await;
    let scene = their_scene("nrc-leads").await?;
    let leases: Api<Lease> = Api::namespaced(scene.client.clone(), &scene.name);
    let renew = async |holder: &str| {
        let now = Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%S.%6fZ")
            .to_string();
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": NRC_LEASE },
            "spec": { "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": now },
        });
        let parameters = PatchParams::apply("test").force();
        let applied = leases
            .patch(NRC_LEASE, &parameters, &Patch::Apply(lease))
            .await;
        applied.map(|_| ()).doing(|| "cannot renew")
    };
    let said = json!({ "role": "w", "conditions": { "TestReady": "False" } });
    scene
        .bare_node("n", &said, &|it: &str| it.to_owned())
        .await?;
    let spec = json!({
        "conditions": [{ "type": "TestReady", "requiredStatus": "True" }], "enforcementMode": "continuous",
        "taint": { "key": "readiness.k8s.io/mine", "effect": "NoSchedule" },
        "nodeSelector": { "matchLabels": { "role": "w" } },
    });
    scene.their_rule("r", spec).await?;
    renew("manager-1").await?;
    let _operator = scene.operator_with_theirs()?;
    let node = scene.own("n");
    until_async("it to say so", SOON, async || {
        let log = scene.log();
        Ok(if log.contains("node-readiness-controller leads") {
            Look::Found(())
        } else {
            Look::NotYet(log)
        })
    })
    .await?;
    // It taints as it sees fit, and for longer than its Lease lasts it renews it.
    let theirs = json!([{ "key": "readiness.k8s.io/mine", "effect": "NoSchedule" }]);
    let seen = Patch::Merge(json!({ "spec": { "taints": theirs } }));
    let held = ["readiness.k8s.io/mine=:NoSchedule"];
    for (is_tainted, seconds) in [(false, 10), (true, 10)] {
        if is_tainted {
            scene.condition(&node, "TestReady", "True").await?;
            let tainted = scene
                .nodes()
                .patch(&node, &PatchParams::default(), &seen)
                .await;
            tainted.doing(|| "cannot taint")?;
        }
        for _ in 0..seconds / 2 {
            renew("manager-1").await?;
            let lasts = Duration::from_secs(2);
            let is_so = async || {
                let taints = full_taints(&scene.node(&node).await?);
                Ok(taints == if is_tainted { &held[..] } else { &[] })
            };
            scene.stays("left to its controller", lasts, is_so).await?;
        }
    }
    let rule = scene.their_rules().get(&scene.called("r")).await;
    let rule = rule.doing(|| "no rule")?;
    assert!(
        rule.finalizers().is_empty() && rule.data["status"].is_null(),
        "{rule:?}"
    );
    // It gives its Lease back, and the rule is followed at once.
    renew("").await?;
    until_taints(&scene, &node, &[]).await?;
    scene
        .their_status("r", &json!({ "appliedNodes": [node] }))
        .await?;
    scene.condition(&node, "TestReady", "False").await?;
    until_taints(&scene, &node, &held).await?;
    // It comes back: what is there stays there.
    renew("manager-2").await?;
    until_async("it to say so again", SOON, async || {
        let log = scene.log();
        Ok(if log.contains("manager-2") {
            Look::Found(())
        } else {
            Look::NotYet(log)
        })
    })
    .await?;
    scene.condition(&node, "TestReady", "True").await?;
    let is_so = async || Ok(full_taints(&scene.node(&node).await?) == held);
    scene
        .stays("left to its controller", Duration::from_secs(4), is_so)
        .await?;
    let deleted = leases.delete(NRC_LEASE, &DeleteParams::default()).await;
    deleted.doing(|| "cannot delete the Lease")?;
    until_taints(&scene, &node, &[]).await?;
    Ok(())
}

/// Covers N07.
#[tokio::test]
async fn a_rule_that_is_gone_takes_nothing_off_a_node_that_comes_after_it() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let _quiet = QUIET.lock().await;
    let scene = their_scene("nrc-gone").await?;
    let _operator = scene.operator_with_theirs()?;
    let spec = json!({
        "conditions": [{ "type": "TestReady", "requiredStatus": "True" }], "enforcementMode": "continuous",
        "taint": { "key": "readiness.k8s.io/next", "effect": "NoSchedule" },
        "nodeSelector": { "matchLabels": { "role": "w" } },
    });
    let born = ["readiness.k8s.io/next=:NoSchedule"];
    let said = json!({ "role": "w", "taints": born });
    for number in 0..12 {
        scene.their_rule("r", spec.clone()).await?;
        let is_held = |it: Option<&DynamicObject>| {
            it.is_some_and(|it| it.finalizers().contains(&NRC_FINALIZER.to_owned()))
        };
        scene.until_rule("r", "held", is_held).await?;
        let rules = scene.their_rules();
        let name = scene.called("r");
        let deleted = rules.delete(&name, &DeleteParams::default()).await;
        deleted.doing(|| "cannot delete the rule")?;
        // The moment the API server says that it is gone; the operator's watch may tell it later.
        let deadline = Instant::now() + SOON;
        while rules.get_opt(&name).await.doing(|| "no answer")?.is_some() {
            assert!(Instant::now() < deadline, "{}", scene.log());
        }
        let node = format!("n{number}");
        scene
            .bare_node(&node, &said, &|it: &str| it.to_owned())
            .await?;
        let is_so = async || Ok(full_taints(&scene.node(&scene.own(&node)).await?) == born);
        scene
            .stays(&node, Duration::from_millis(600), is_so)
            .await?;
        let nodes = scene.nodes();
        let removed = nodes
            .delete(&scene.own(&node), &DeleteParams::default())
            .await;
        removed.doing(|| "cannot remove the node")?;
    }
    Ok(())
}

/// Covers N07.
#[tokio::test]
async fn the_api_server_takes_the_status_of_five_thousand_nodes() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = their_scene("nrc-crowd").await?;
    let spec = json!({
        "conditions": [{ "type": "A", "requiredStatus": "True" }, { "type": "B", "requiredStatus": "True" }],
        "enforcementMode": "continuous", "nodeSelector": { "matchLabels": { "role": "w" } },
        "taint": { "key": "readiness.k8s.io/crowd", "effect": "NoSchedule" },
    });
    scene.their_rule("r", spec.clone()).await?;
    let rule = NrcRule::from_spec("r", &spec).doing(|| "no rule")?;
    let mut readiness = Readiness::new(Limits::default());
    for number in 0..5_000 {
        let node = NodeSnapshot {
            name: format!("ip-10-0-{number:05}.eu-central-1.compute.internal"),
            labels: [("role", "w")].into_iter().collect(),
            ..NodeSnapshot::default()
        };
        readiness.see_node(node, Moment::default());
    }
    readiness.begin([rule.to_rule("u", false)], Moment::default());
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let before = NrcStatus::default();
    let status = readiness.nrc_status(&rule, ("u", 1), &before, &BTreeMap::new(), &now);
    let body = Patch::Merge(json!({ "status": status }));
    let written = scene
        .their_rules()
        .patch_status(&scene.called("r"), &PatchParams::default(), &body)
        .await;
    let written = written.doing(|| "the status is refused")?;
    let named = written.data["status"]["nodeEvaluations"]
        .as_array()
        .map(Vec::len);
    assert_eq!(named, Some(status.node_evaluations.len()));
    let size = serde_json::to_string(&written).doing(|| "no JSON")?.len();
    println!("proof: {named:?} of 5000 nodes are named in an object of {size} bytes");
    assert!(size < 1_400_000, "{size}");
    Ok(())
}
