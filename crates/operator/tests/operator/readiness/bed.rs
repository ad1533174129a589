//! Rules, extensions that renew Leases, and what became of a node's taints.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_api::names::{annotation, group, program, taint};
use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::wait::{Look, until_async, within};
use evenkeel_testbed::{Doing, Result};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::scene::{SOON, Scene, annotated, metrics};

pub(crate) const EXTENSIONS: &str = "node-extensions";

/// The rules of a scene are marked as its own, and are about its own nodes.
impl Scene {
    pub(crate) fn rules(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(group::EVENKEEL, "v1alpha1", "NodeReadinessRule");
        let kind = ApiResource::from_gvk_with_plural(&kind, "nodereadinessrules");
        Api::all_with(self.client.clone(), &kind)
    }

    pub(crate) fn called(&self, rule: &str) -> String {
        format!("{}-{rule}", self.name)
    }

    pub(crate) async fn rule(&self, name: &str, mut spec: Value) -> Result<()> {
        if spec["nodeSelector"].is_null() {
            spec["nodeSelector"] = json!({ "matchLabels": { "place": self.name } });
        }
        let rule = json!({
            "apiVersion": "evenkeel.dev/v1alpha1", "kind": "NodeReadinessRule",
            "metadata": { "name": self.called(name), "labels": { "place": self.name } },
            "spec": spec,
        });
        let rule = serde_json::from_value(rule).doing(|| "no rule")?;
        let made = self.rules().create(&PostParams::default(), &rule).await;
        made.map(|_| ())
            .doing(|| format!("cannot make rule {name}"))
    }

    pub(crate) async fn edit_rule(&self, name: &str, patch: Value) -> Result<()> {
        let patched = self
            .rules()
            .patch(
                &self.called(name),
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await;
        patched
            .map(|_| ())
            .doing(|| format!("cannot edit rule {name}"))
    }

    pub(crate) async fn delete_rule(&self, name: &str) -> Result<()> {
        let deleted = self
            .rules()
            .delete(&self.called(name), &DeleteParams::default())
            .await;
        deleted
            .map(|_| ())
            .doing(|| format!("cannot delete rule {name}"))
    }

    /// The status of a rule, when it is as it should be.
    pub(crate) async fn rule_status(
        &self,
        name: &str,
        is_it: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        until_async(&format!("the status of rule {name}"), SOON, async || {
            let rule = self
                .rules()
                .get(&self.called(name))
                .await
                .doing(|| "no rule")?;
            let status = rule.data["status"].clone();
            Ok(if is_it(&status) {
                Look::Found(status)
            } else {
                Look::NotYet(status.to_string())
            })
        })
        .await
    }

    pub(crate) fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), EXTENSIONS)
    }

    /// The namespace that extensions keep their Leases in, and the chart's admission policy for new nodes.
    pub(crate) fn prepare_readiness(&self) -> Result<()> {
        let alone = crate::scene::alone();
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": EXTENSIONS } });
        let file = self.scratch.path().join("namespace.json");
        std::fs::write(&file, namespace.to_string()).doing(|| "cannot write")?;
        self.control_plane
            .kubectl(&["apply", "-f", &file.display().to_string()])?;
        let has = "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy";
        let policies = ["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"];
        let chart = Chart::render(&self.name, &[has])?
            .component("operator")
            .kinds(&policies);
        assert_eq!(chart.objects().len(), 2);
        chart.apply(self.control_plane)?;
        drop(alone);
        Ok(())
    }

    /// An error with what the operator said.
    pub(crate) fn explain(&self, error: &evenkeel_testbed::Error) -> evenkeel_testbed::Error {
        evenkeel_testbed::Error::failed(format!("{error}\n{}", self.log()))
    }

    /// Waits until Kubernetes has nothing more to write on a new node.
    pub(crate) async fn settled(&self, node: &str) -> Result<Node> {
        until_async(&format!("{node} to be settled"), SOON, async || {
            let seen = self.node(node).await?;
            let keys = all_taints(&seen);
            Ok(
                if keys.iter().any(|it| it.starts_with("node.kubernetes.io/")) {
                    Look::NotYet(format!("{keys:?}"))
                } else {
                    Look::Found(seen)
                },
            )
        })
        .await
    }

    /// Renews a Lease once, by a clock that is so wrong.
    pub(crate) async fn renew(
        &self,
        node: &str,
        extension: &str,
        clock: SignedDuration,
    ) -> Result<()> {
        renew(&self.leases(), node, extension, clock)
            .await
            .doing(|| format!("cannot renew {node}.{extension}"))
    }

    /// What the agent of a node says in its Lease.
    pub(crate) async fn report(&self, node: &str, boot: &str, kubelet: &str) -> Result<()> {
        let report =
            json!({ "bootId": boot, "kubeletStart": kubelet, "state": "Done", "probes": {} });
        self.report_of(node, &report).await
    }

    /// The same, whatever it says.
    pub(crate) async fn report_of(&self, node: &str, report: &Value) -> Result<()> {
        let name = format!("{node}.evenkeel-agent");
        let renewed = Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%S.%6fZ")
            .to_string();
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": name, "annotations": { annotation::REPORT: report.to_string() } },
            "spec": { "holderIdentity": node, "leaseDurationSeconds": 30, "renewTime": renewed },
        });
        let parameters = PatchParams::apply("test").force();
        let applied = self
            .leases()
            .patch(&name, &parameters, &Patch::Apply(lease))
            .await;
        applied.map(|_| ()).doing(|| "cannot report")
    }

    /// Writes a condition of a Node once, with heartbeat and transition time of now.
    pub(crate) async fn condition(&self, node: &str, kind: &str, status: &str) -> Result<()> {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let patch = Patch::Strategic(json!({ "status": { "conditions": [{
            "type": kind, "status": status, "reason": "Test", "message": "",
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        }] } }));
        let written = self
            .nodes()
            .patch_status(node, &PatchParams::default(), &patch)
            .await;
        written
            .map(|_| ())
            .doing(|| format!("cannot write condition {kind} of {node}"))
    }

    /// Looks again and again for so long, and has `is_so` each time.
    pub(crate) async fn stays(
        &self,
        what: &str,
        lasts: Duration,
        is_so: impl AsyncFn() -> Result<bool>,
    ) -> Result<()> {
        let end = Instant::now() + lasts;
        while Instant::now() < end {
            assert!(is_so().await?, "{what}: {}", self.log());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    /// Waits until the taint is on the node, or is not; the Node.
    pub(crate) async fn tainted(&self, node: &str, wanted: bool) -> Result<Node> {
        let what = format!(
            "{node} {} the taint",
            if wanted { "to have" } else { "to lose" }
        );
        until_async(&what, SOON, async || {
            let seen = self.node(node).await?;
            Ok(if is_tainted(&seen) == wanted {
                Look::Found(seen)
            } else {
                let log = self.log();
                let lines: Vec<_> = log.lines().rev().take(6).collect();
                Look::NotYet(format!(
                    "{:?} {:?}; {lines:#?}",
                    seen.spec,
                    annotated(&seen, annotation::READINESS_OWNERS)
                ))
            })
        })
        .await
    }
}

pub(crate) async fn renew(
    api: &Api<Lease>,
    node: &str,
    extension: &str,
    clock: SignedDuration,
) -> kube::Result<()> {
    let name = format!("{node}.{extension}");
    let now = (Timestamp::now() + clock)
        .strftime("%Y-%m-%dT%H:%M:%S.%6fZ")
        .to_string();
    let spec = json!({ "holderIdentity": node, "leaseDurationSeconds": 10, "renewTime": now });
    let patch = Patch::Merge(json!({ "spec": spec }));
    match api.patch(&name, &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let lease = json!({ "metadata": { "name": name }, "spec": spec });
            let lease = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
            api.create(&PostParams::default(), &lease).await.map(|_| ())
        }
        other => other.map(|_| ()),
    }
}

/// An extension on a node that renews its Lease until it is stopped.
pub(crate) struct Extension {
    stopped: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Instant>,
}

impl Extension {
    pub(crate) fn start(
        scene: &Scene,
        node: &str,
        name: &str,
        every: Duration,
        clock: SignedDuration,
    ) -> Self {
        let stopped = Arc::<AtomicBool>::default();
        let (api, node, name) = (scene.leases(), node.to_owned(), name.to_owned());
        let asked = Arc::clone(&stopped);
        let task = tokio::spawn(async move {
            let mut last = Instant::now();
            let mut round = 0;
            while !asked.load(Ordering::SeqCst) {
                // Its clock steps back by half a minute every now and then.
                round += 1;
                let step = if round % 4 == 0 {
                    SignedDuration::from_secs(-30)
                } else {
                    SignedDuration::ZERO
                };
                let begun = Instant::now();
                if renew(&api, &node, &name, clock + step).await.is_ok() {
                    last = begun;
                }
                tokio::time::sleep(every).await;
            }
            last
        });
        Self { stopped, task }
    }

    /// Renews no more; when it did last.
    pub(crate) async fn stop(self) -> Result<Instant> {
        self.stopped.store(true, Ordering::SeqCst);
        self.task.await.doing(|| "an extension failed")
    }
}

/// Waits until the operator's numbers say so.
pub(crate) async fn until_counted(port: u16, wanted: &str) -> Result<()> {
    until_async("the metrics to say so", SOON, async || {
        let text = metrics(port).await?;
        Ok(if text.contains(wanted) {
            Look::Found(())
        } else {
            let lines = text.lines().filter(|it| it.contains("readiness"));
            Look::NotYet(lines.collect::<Vec<_>>().join("\n"))
        })
    })
    .await
}

/// Follows a Node, and says when its taint came and went and how often the operator wrote it.
pub(crate) struct TaintWatcher {
    /// How often the operator was seen to write the Node. What kubelet and Kubernetes write is not counted.
    pub(crate) writes: u32,
    /// The version of the Node that it spoke of last.
    pub(crate) version: Option<u64>,
    /// Who else had written it then.
    others: Option<Vec<(String, String)>>,
    changes: mpsc::UnboundedReceiver<(Instant, Node)>,
    task: tokio::task::JoinHandle<()>,
}

impl TaintWatcher {
    pub(crate) fn of(client: &Client, node: &str) -> Self {
        let api: Api<Node> = Api::all(client.clone());
        let config = watcher::Config::default().fields(&format!("metadata.name={node}"));
        let (sender, changes) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            use futures::StreamExt;
            let mut stream =
                std::pin::pin!(watcher(api, config).default_backoff().applied_objects());
            while let Some(change) = stream.next().await {
                if let Ok(node) = change
                    && sender.send((Instant::now(), node)).is_err()
                {
                    return;
                }
            }
        });
        Self {
            writes: 0,
            version: None,
            others: None,
            changes,
            task,
        }
    }

    fn look(&mut self, node: &Node) {
        self.version = order(node);
        let others = written_by_others(node);
        if self.others.replace(others.clone()) == Some(others) {
            self.writes += 1;
        }
    }

    /// When the taint next is there, or is not.
    pub(crate) async fn taint(&mut self, wanted: bool) -> Result<Instant> {
        let wait = async {
            while let Some((at, node)) = self.changes.recv().await {
                let is_it = is_tainted(&node) == wanted;
                self.look(&node);
                if is_it {
                    return Some(at);
                }
            }
            None
        };
        let found = within(SOON, wait).await.flatten();
        found.ok_or_else(|| {
            evenkeel_testbed::Error::failed(format!("the taint never became {wanted}"))
        })
    }
}

impl TaintWatcher {
    /// Looks on until `node` was seen, as it is here or newer.
    pub(crate) async fn catch_up(&mut self, node: &Node) -> Result<()> {
        let wait = async {
            while self.version < order(node) {
                let (_, next) = self.changes.recv().await?;
                self.look(&next);
            }
            Some(())
        };
        let found = within(SOON, wait).await.flatten();
        found.ok_or_else(|| evenkeel_testbed::Error::failed("the Node was never seen"))
    }

    /// Looks on for so long.
    pub(crate) async fn look_on(&mut self, lasts: Duration) {
        let look = async {
            while let Some((_, node)) = self.changes.recv().await {
                self.look(&node);
            }
        };
        // It ends with its time.
        let _ = tokio::time::timeout(lasts, look).await;
    }
}

/// Who wrote the Node and when, but for the operator: equal before and after a write of its own.
fn written_by_others(node: &Node) -> Vec<(String, String)> {
    let entries = node.managed_fields().iter();
    let mut others: Vec<_> = entries
        .filter(|it| it.manager.as_deref() != Some(program::OPERATOR))
        .map(|it| {
            let who = format!("{:?} {:?} {:?}", it.manager, it.operation, it.subresource);
            (who, format!("{:?}", it.time))
        })
        .collect();
    others.sort();
    others
}

impl Drop for TaintWatcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The keys of a node's taints, but for what Kubernetes itself has there for a moment.
pub(crate) fn taints(node: &Node) -> Vec<String> {
    let is_passing = |key: &String| key.starts_with("node.kubernetes.io/");
    let mut keys = all_taints(node);
    keys.retain(|key| !is_passing(key));
    keys
}

fn all_taints(node: &Node) -> Vec<String> {
    let taints = node
        .spec
        .as_ref()
        .and_then(|it| it.taints.clone())
        .unwrap_or_default();
    taints.into_iter().map(|it| it.key).collect()
}

pub(crate) fn is_tainted(node: &Node) -> bool {
    taints(node).iter().any(|it| it == taint::META_READINESS)
}

/// How often whom wrote a Node, as far as the object says.
pub(crate) fn version(node: &Node) -> String {
    node.resource_version().unwrap_or_default()
}

/// Where a write stands in the order of all writes, whatever their kind: etcd counts them as one.
/// Two watches may tell of two writes the other way round.
pub(crate) fn order(written: &impl ResourceExt) -> Option<u64> {
    written.resource_version()?.parse().ok()
}
