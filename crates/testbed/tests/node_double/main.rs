//! What a node double promises: that the real control plane takes it for a node.

use std::time::{Duration, Instant};

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::node_double::{NodeDouble, Os};
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result, need};
use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, EvictParams, ListParams, PostParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

mod crowd;
mod machines;

const SOON: Duration = Duration::from_secs(30);

/// A namespace of one test on the shared control plane. Its name is also a label of the test's nodes,
/// by which its pods find them and no others.
struct Place {
    control_plane: &'static ControlPlane,
    client: Client,
    name: String,
}

impl Place {
    async fn new(prefix: &str) -> Result<Self> {
        let control_plane = ControlPlane::shared()?;
        Ok(Self {
            control_plane,
            client: control_plane.admin_kubeconfig().client().await?,
            name: control_plane.namespace(prefix)?,
        })
    }

    fn node(&self, suffix: &str) -> evenkeel_testbed::node_double::NodeDescription {
        NodeDouble::named(&format!("{}-{suffix}", self.name)).label("place", &self.name)
    }

    async fn start(&self, suffix: &str) -> Result<NodeDouble> {
        let login = self.control_plane.admin_kubeconfig();
        self.node(suffix).start(&login).await
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Makes a pod that only the test's nodes can have, and waits until it runs and is ready.
    async fn run(&self, name: &str, grace: u32) -> Result<Pod> {
        let pod = json!({
            "metadata": { "name": name, "labels": { "app": "test" } },
            "spec": {
                "nodeSelector": { "place": self.name },
                "terminationGracePeriodSeconds": grace,
                "containers": [{ "name": "main", "image": "example.com/main:1" }],
            },
        });
        let pod = self
            .pods()
            .create(&PostParams::default(), &from(pod)?)
            .await;
        pod.doing(|| format!("cannot make pod {name}"))?;
        until_async(&format!("pod {name} to be ready"), SOON, async || {
            let pod = self.pod(name).await?;
            Ok(match condition_of_pod(&pod, "Ready") {
                Some("True") => Look::Found(pod),
                seen => Look::NotYet(format!("{seen:?} {:?}", pod.status)),
            })
        })
        .await
    }

    async fn pod(&self, name: &str) -> Result<Pod> {
        let pod = self.pods().get(name).await;
        pod.doing(|| format!("cannot read pod {name}"))
    }

    async fn node_named(&self, name: &str) -> Result<Node> {
        let node = self.nodes().get(name).await;
        node.doing(|| format!("cannot read node {name}"))
    }

    async fn gone(&self, pod: &str) -> Result<()> {
        until_async(&format!("pod {pod} to go"), SOON, async || {
            let left = self.pods().get_opt(pod).await;
            Ok(match left.doing(|| "cannot read the pod")? {
                None => Look::Found(()),
                Some(pod) => Look::NotYet(format!("{:?}", pod.status)),
            })
        })
        .await
    }
}

fn from<T: serde::de::DeserializeOwned>(object: Value) -> Result<T> {
    serde_json::from_value(object).doing(|| "cannot put an object together")
}

fn condition_of_pod<'a>(pod: &'a Pod, kind: &str) -> Option<&'a str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|it| it.type_ == kind)?;
    Some(found.status.as_str())
}

fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a str> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|it| it.type_ == kind)?;
    Some(found.status.as_str())
}

/// Restarts, and when the container started.
fn container(pod: &Pod) -> Result<(i32, k8s_openapi::jiff::Timestamp)> {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|it| it.container_statuses.as_ref());
    let status = statuses.and_then(|it| it.first());
    let started = status.and_then(|it| it.state.as_ref()?.running.as_ref()?.started_at.clone());
    match (status, started) {
        (Some(status), Some(started)) => Ok((status.restart_count, started.0)),
        seen => Err(Error::failed(format!("no running container: {seen:?}"))),
    }
}

/// Whether a request is for a certificate of `user`: other tests have nodes that ask, too.
fn asks_for(request: &CertificateSigningRequest, user: &str) -> bool {
    let pem = String::from_utf8_lossy(&request.spec.request.0);
    let body: String = pem.lines().filter(|it| !it.starts_with("-----")).collect();
    let der = serde_json::from_value::<ByteString>(json!(body));
    let der = der.map_or_else(|_| Vec::new(), |it| it.0);
    der.windows(user.len()).any(|it| it == user.as_bytes())
}

#[tokio::test]
async fn a_node_joins_with_a_certificate_once_somebody_has_approved_it() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let place = Place::new("join").await?;
    let bootstrap = place.control_plane.bootstrap_kubeconfig()?;
    let user = format!("system:node:{}-n1", place.name);
    let joining = tokio::spawn(async move { place.node("n1").join(&bootstrap).await });
    let control_plane = ControlPlane::shared()?;
    let requests: Api<CertificateSigningRequest> =
        Api::all(control_plane.admin_kubeconfig().client().await?);
    let request = until_async("the node's request", SOON, async || {
        let all = requests.list(&ListParams::default()).await;
        let open = all
            .doing(|| "cannot list requests")?
            .items
            .into_iter()
            .find(|request| {
                let status = request.status.as_ref();
                status.is_none_or(|status| status.conditions.is_none()) && asks_for(request, &user)
            });
        Ok(open.map_or(Look::NotYet("none".to_owned()), Look::Found))
    })
    .await?;
    assert_eq!(
        request.spec.username.as_deref(),
        Some("system:bootstrap:testbed")
    );
    assert!(!joining.is_finished(), "it joined without approval");
    control_plane.kubectl(&["certificate", "approve", &request.name_any()])?;
    let node = joining.await.doing(|| "joining panicked")??;
    let review = Api::<SelfSubjectReview>::all(node.kubeconfig().client().await?)
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .doing(|| "its certificate does not log in")?;
    let logged_in = review
        .status
        .and_then(|it| it.user_info)
        .unwrap_or_default();
    assert_eq!(logged_in.username, Some(user));
    assert!(
        logged_in
            .groups
            .unwrap_or_default()
            .contains(&"system:nodes".to_owned())
    );
    Ok(())
}

#[tokio::test]
async fn a_node_with_its_own_certificate_runs_and_ends_pods() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let place = Place::new("own").await?;
    let admin = place.control_plane.admin_kubeconfig();
    let bootstrap = place.control_plane.bootstrap_kubeconfig()?;
    let node = place
        .node("n1")
        .approved_by(&admin)
        .join(&bootstrap)
        .await?;
    let pod = place.run("web", 0).await?;
    let spec = pod.spec.unwrap_or_default();
    assert_eq!(spec.node_name.as_deref(), Some(node.name()));
    let now = DeleteParams::default().grace_period(1);
    place
        .pods()
        .delete("web", &now)
        .await
        .doing(|| "cannot delete")?;
    place.gone("web").await
}

#[tokio::test]
async fn a_node_is_as_large_as_a_real_one() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let place = Place::new("size").await?;
    for (suffix, os, name) in [("l", Os::Linux, "linux"), ("w", Os::Windows, "windows")] {
        let login = place.control_plane.admin_kubeconfig();
        let zone = place.node(suffix).os(os).zone("east-1").boot_id("first");
        let double = zone.start(&login).await?;
        let node = place.node_named(double.name()).await?;
        let size = serde_json::to_vec(&node).unwrap_or_default().len();
        assert!(size >= 11 * 1024, "{size} bytes");
        assert_eq!(node.labels()["kubernetes.io/os"], name);
        assert_eq!(node.labels()["topology.kubernetes.io/zone"], "east-1");
        assert!(!node.managed_fields().is_empty());
        let status = node.status.unwrap_or_default();
        let info = status.node_info.unwrap_or_default();
        assert_eq!(info.operating_system, name);
        assert_eq!(info.boot_id, "first");
        assert_eq!(status.images.unwrap_or_default().len(), 50);
    }
    Ok(())
}

#[tokio::test]
async fn the_scheduler_binds_a_pod_to_a_double_and_not_to_a_tainted_one() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let place = Place::new("schedule").await?;
    let login = place.control_plane.admin_kubeconfig();
    let tainted = place.node("tainted").taint("broken", "yes", "NoSchedule");
    let _tainted = tainted.start(&login).await?;
    let good = place.start("good").await?;
    for name in ["a", "b", "c"] {
        let pod = place.run(name, 0).await?;
        let status = pod.status.unwrap_or_default();
        assert_eq!(
            pod.spec.unwrap_or_default().node_name.as_deref(),
            Some(good.name())
        );
        assert_eq!(status.phase.as_deref(), Some("Running"));
        assert!(status.pod_ip.is_some() && status.start_time.is_some());
    }
    Ok(())
}

#[tokio::test]
async fn a_disruption_budget_refuses_an_eviction_and_an_evicted_pod_goes_after_its_grace()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let place = Place::new("budget").await?;
    let _node = place.start("n1").await?;
    place.run("web", 2).await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(place.client.clone(), &place.name);
    let budget = json!({
        "metadata": { "name": "web" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "test" } } },
    });
    let made = budgets.create(&PostParams::default(), &from(budget)?).await;
    made.doing(|| "cannot make a budget")?;
    until_async("the budget to be computed", SOON, async || {
        let budget = budgets
            .get("web")
            .await
            .doing(|| "cannot read the budget")?;
        let status = budget.status.unwrap_or_default();
        Ok(if status.current_healthy == 1 {
            Look::Found(())
        } else {
            Look::NotYet(format!("{status:?}"))
        })
    })
    .await?;
    match place.pods().evict("web", &EvictParams::default()).await {
        Err(kube::Error::Api(answer)) => assert_eq!(answer.code, 429, "{answer:?}"),
        other => panic!("the budget allowed {other:?}"),
    }
    let deleted = budgets.delete("web", &DeleteParams::default()).await;
    deleted.doing(|| "cannot delete the budget")?;
    let start = Instant::now();
    until_async("the eviction to be allowed", SOON, async || {
        let evicted = place.pods().evict("web", &EvictParams::default()).await;
        Ok(match evicted {
            Ok(_) => Look::Found(()),
            Err(error) => Look::NotYet(error.to_string()),
        })
    })
    .await?;
    place.gone("web").await?;
    assert!(
        start.elapsed() >= Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    Ok(())
}

#[tokio::test]
async fn a_kubelet_restart_leaves_pods_alone_and_a_machine_restart_restarts_them() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let place = Place::new("restart").await?;
    let node = place.start("n1").await?;
    let before = place.run("web", 0).await?;
    let boot_id = node.boot_id();
    node.restart_kubelet().await?;
    let after = place.pod("web").await?;
    assert_eq!(after.resource_version(), before.resource_version());
    assert_eq!(node.boot_id(), boot_id);

    let only = watcher::Config::default().fields("metadata.name=web");
    let mut events = std::pin::pin!(watcher(place.pods(), only));
    // The watch is in place when it has listed.
    while !matches!(next(&mut events).await?, Event::InitDone) {}
    node.restart_machine().await?;
    let mut seen = Vec::new();
    let restarted = loop {
        if let Event::Apply(pod) = next(&mut events).await? {
            let ready = condition_of_pod(&pod, "Ready").map(str::to_owned);
            seen.push(ready.clone());
            if ready.as_deref() == Some("True") {
                break pod;
            }
        }
    };
    assert_eq!(seen.first(), Some(&Some("False".to_owned())), "{seen:?}");
    let ((restarts, started), (_, started_before)) = (container(&restarted)?, container(&before)?);
    assert_eq!(restarts, 1);
    assert!(started >= started_before);
    assert_ne!(node.boot_id(), boot_id);
    let info = place
        .node_named(node.name())
        .await?
        .status
        .and_then(|it| it.node_info);
    assert_eq!(info.unwrap_or_default().boot_id, node.boot_id());
    Ok(())
}

async fn next<T>(
    events: &mut (impl futures::Stream<Item = watcher::Result<Event<T>>> + Unpin),
) -> Result<Event<T>> {
    let event = tokio::time::timeout(SOON, events.next()).await;
    let event = event.map_err(|_| Error::failed("no event came"))?;
    event
        .ok_or_else(|| Error::failed("the watch ended"))?
        .doing(|| "the watch failed")
}

#[tokio::test]
async fn a_lie_is_visible_until_the_truth_is_told() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let place = Place::new("lie").await?;
    let node = place.start("n1").await?;
    for (kind, status) in [
        ("Ready", "False"),
        ("Ready", "True"),
        ("Melting", "Unknown"),
    ] {
        node.lie(kind, status).await?;
        let seen = place.node_named(node.name()).await?;
        assert_eq!(condition(&seen, kind), Some(status));
    }
    Ok(())
}

#[tokio::test]
async fn a_paused_node_writes_nothing_and_a_resumed_one_goes_on() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let place = Place::new("pause").await?;
    let login = place.control_plane.admin_kubeconfig();
    let often = place.node("n1").lease_interval(Duration::from_millis(100));
    let node = often.start(&login).await?;
    let leases: Api<Lease> = Api::namespaced(place.client.clone(), "kube-node-lease");
    let version = async || {
        let lease = leases.get(node.name()).await;
        lease
            .map(|lease| lease.resource_version())
            .doing(|| "no lease")
    };
    let changes = async |from: Option<String>, patience| {
        until_async("the lease to be renewed", patience, async || {
            let now = version().await?;
            Ok(if now == from {
                Look::NotYet(format!("{now:?}"))
            } else {
                Look::Found(())
            })
        })
        .await
    };
    changes(version().await?, SOON).await?;
    node.pause();
    // The one renewal that was on its way may still arrive; ten more would have in the second after.
    let mut late = 0;
    while changes(version().await?, Duration::from_secs(1))
        .await
        .is_ok()
    {
        late += 1;
        assert!(late < 2, "a paused node renewed its lease");
    }
    node.lie("Ready", "False").await?;
    let unseen = place.node_named(node.name()).await?;
    assert_eq!(condition(&unseen, "Ready"), Some("True"));
    let before = version().await?;
    node.resume().await?;
    changes(before, SOON).await?;
    let seen = place.node_named(node.name()).await?;
    assert_eq!(condition(&seen, "Ready"), Some("False"));
    Ok(())
}

#[tokio::test]
async fn a_vanished_node_leaves_its_object_and_a_deleted_one_does_not() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let place = Place::new("gone").await?;
    let admin = place.control_plane.admin_kubeconfig();
    let (vanishing, deleted) = (place.start("v").await?, place.start("d").await?);
    let names = [vanishing.name().to_owned(), deleted.name().to_owned()];
    vanishing.vanish();
    deleted.delete(&admin).await?;
    let [vanished, deleted] = &names;
    place.node_named(vanished).await?;
    let left = place.nodes().get_opt(deleted).await;
    assert!(left.doing(|| "cannot look")?.is_none());
    Ok(())
}
