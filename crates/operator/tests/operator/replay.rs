//! 5,000 Nodes of real size, and what tells of the extensions of each, from a replayed list and watch: a server that says what a cluster
//! would say, to the real program.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_testbed::process::Running;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};

pub(crate) const NODES: usize = 5_000;
/// The size of a real Node.
pub(crate) const SIZE: usize = 11 * 1024;
pub(crate) const LIMIT_KIB: u32 = 80 * 1024;
/// How large the status of a readiness rule may be.
const LARGEST_STATUS: usize = 2048;

/// How often each Lease is renewed, where any is.
const BEAT: Duration = Duration::from_secs(10);
/// How many renewals a watch tells at a time.
const AT_ONCE: usize = 50;

/// What readiness rules ask of all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Rules {
    /// There are none.
    #[default]
    None,
    /// Two Leases of extensions.
    Leases,
    /// Leases, pods, conditions with and without freshness, probes, and objects with a Lease inside.
    AllKinds,
}

impl Rules {
    fn extensions(self) -> Option<Value> {
        let leases = [
            json!({ "name": "cni", "lease": { "expiry": "40s" } }),
            json!({ "name": "dp", "lease": { "expiry": "40s" } }),
        ];
        let others = [
            json!({ "name": "storage", "pods": { "namespace": "storage", "selector": { "matchLabels": { "app": "csi" } } } }),
            json!({ "name": "net", "condition": { "type": "NetReady" } }),
            json!({ "name": "kernel", "condition": { "type": "KernelHealthy", "freshness": "10m" } }),
            json!({ "name": "dns", "probe": { "httpGet": { "port": 9400, "path": "/healthz" } } }),
            json!({ "name": "gpu", "status": {
                "apiVersion": "example.com/v1", "kind": "DeviceStatus", "namespace": "node-extensions", "name": "{node}", "lease": ".lease",
            } }),
        ];
        match self {
            Self::None => None,
            Self::Leases => Some(json!(leases)),
            Self::AllKinds => Some(leases.into_iter().chain(others).collect()),
        }
    }
}

/// A Node with all that a real one has: labels, images, conditions, and what controllers note on it.
fn node(number: usize, version: usize) -> String {
    let images: Vec<_> = (0..45)
        .map(|image| {
            json!({
                "names": [
                    format!("registry.example.com/shop/part-{image}@sha256:{:064x}", number * 31 + image),
                    format!("registry.example.com/shop/part-{image}:1.{number}"),
                ],
                "sizeBytes": 123_456_789 + image,
            })
        })
        .collect();
    let labels: serde_json::Map<_, _> = (0..14)
        .map(|label| {
            (
                format!("feature.node.example.com/cpu-{label}"),
                json!(format!("value-{}", number % 7)),
            )
        })
        .chain([
            ("kubernetes.io/os".to_owned(), json!("linux")),
            (
                "kubernetes.io/hostname".to_owned(),
                json!(format!("node-{number:05}")),
            ),
            (
                "topology.kubernetes.io/zone".to_owned(),
                json!(format!("z{}", number % 3)),
            ),
        ])
        .collect();
    let mut node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": format!("node-{number:05}"), "uid": format!("uid-{number}"),
            "resourceVersion": version.to_string(), "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": labels,
            "annotations": {
                "machineconfiguration.openshift.io/currentConfig": "rendered-web-0123456789abcdef0123456789abcdef",
                "machineconfiguration.openshift.io/desiredConfig": "rendered-web-0123456789abcdef0123456789abcdef",
                "evenkeel.dev/desired-config": "rendered-web-0123456789abcdef0123456789abcdef",
                "machineconfiguration.openshift.io/state": "Done",
                "machineconfiguration.openshift.io/reason": "",
                "example.com/inventory": "",
            },
        },
        "spec": { "podCIDR": "10.0.0.0/24" },
        "status": {
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status",
                "lastHeartbeatTime": format!("2026-01-01T00:{:02}:00Z", version % 60), "lastTransitionTime": "2026-01-01T00:00:00Z",
            }, {
                "type": "NetReady", "status": "True", "reason": "Ready", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }, {
                "type": "KernelHealthy", "status": "True", "reason": "Ready", "message": "",
                "lastHeartbeatTime": format!("2026-01-01T00:{:02}:00Z", version % 60), "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
            "images": images,
        },
    });
    let missing = SIZE.saturating_sub(node.to_string().len());
    node["metadata"]["annotations"]["example.com/inventory"] = json!("x".repeat(missing));
    node.to_string()
}

#[derive(Default)]
struct Replay {
    rules: Rules,
    /// Whether all Leases are renewed, every ten seconds.
    are_renewed: AtomicBool,
    lease: Mutex<Option<Value>>,
    /// Who leads, and since when.
    leader: Mutex<Option<(String, Instant)>>,
    /// How often somebody wanted to write a Node.
    node_writes: AtomicUsize,
    version: AtomicUsize,
    watched: AtomicUsize,
    /// How many nodes the pool has, by its last status.
    counted: AtomicUsize,
    bytes: AtomicUsize,
    /// How many nodes are ready by the rule's last status, and how large that ever was.
    ready: AtomicUsize,
    status: AtomicUsize,
}

/// A pod of a DaemonSet, as far as anybody looks.
fn pod(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("csi-{number:05}"), "namespace": "storage", "uid": format!("pod-{number}"), "resourceVersion": "1",
            "labels": { "app": "csi" }, "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": { "nodeName": format!("node-{number:05}"), "containers": [{ "name": "csi", "image": "registry.example.com/csi:1" }] },
        "status": {
            "phase": "Running",
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
            "containerStatuses": [{ "name": "csi", "containerID": format!("containerd://{number:064x}"), "restartCount": 0, "ready": true }],
        },
    })
}

/// An object of an extension that has a Lease inside.
fn device(number: usize, renewed: &str) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "DeviceStatus",
        "metadata": {
            "name": format!("node-{number:05}"), "namespace": "node-extensions", "uid": format!("device-{number}"), "resourceVersion": "1",
        },
        "lease": { "holderIdentity": format!("node-{number:05}"), "leaseDurationSeconds": 40, "renewTime": renewed },
    })
}

const FIRST: &str = "2026-01-01T00:00:00.000000Z";

/// A Lease of a node.
fn lease(number: usize, suffix: &str, renewed: &str) -> String {
    let report = if suffix == ".evenkeel-agent" {
        json!({ "evenkeel.dev/report": json!({
            "bootId": format!("boot-{number}"), "kubeletStart": format!("start-{number}"), "state": "Done",
            "probes": { "dns": { "healthy": true, "since": "2026-01-01T00:00:00Z", "message": "" } },
        }).to_string() })
    } else {
        json!({})
    };
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "name": format!("node-{number:05}{suffix}"), "uid": format!("lease-{number}{suffix}"),
            "resourceVersion": "1", "annotations": report,
        },
        "spec": { "holderIdentity": format!("node-{number:05}"), "leaseDurationSeconds": 30, "renewTime": renewed },
    })
    .to_string()
}

impl Replay {
    /// The answer to a request, unless it is a watch.
    fn answer(&self, method: &str, path: &str, body: &[u8]) -> (u16, String) {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let body = || serde_json::from_slice::<Value>(body).unwrap_or_default();
        let empty = |kind: &str| json!({ "apiVersion": "v1", "kind": kind, "metadata": { "resourceVersion": "1" }, "items": [] });
        match (method, path) {
            ("GET", "/api/v1/nodes") => {
                let after = query.split('&').find_map(|it| it.strip_prefix("continue="));
                let first: usize = after.and_then(|it| it.parse().ok()).unwrap_or_default();
                let end = (first + 500).min(NODES);
                let items: Vec<_> = (first..end).map(|number| node(number, 1)).collect();
                let next = if end < NODES {
                    end.to_string()
                } else {
                    String::new()
                };
                let page = format!(
                    r#"{{"apiVersion":"v1","kind":"NodeList","metadata":{{"resourceVersion":"1","continue":"{next}"}},"items":[{}]}}"#,
                    items.join(",")
                );
                (200, page)
            }
            ("GET", "/apis/machineconfiguration.openshift.io/v1/machineconfigpools") => {
                let mut list = empty("MachineConfigPoolList");
                list["items"] = json!([{
                    "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool",
                    "metadata": { "name": "web", "uid": "web", "resourceVersion": "1", "generation": 1 },
                    "spec": {
                        "nodeSelector": {}, "maxUnavailable": "10%", "paused": true,
                        "configuration": { "name": "rendered-web-0123456789abcdef0123456789abcdef" },
                    },
                }]);
                (200, list.to_string())
            }
            // A rule about all of them, and what tells of its two extensions.
            ("GET", "/apis/evenkeel.dev/v1alpha1/nodereadinessrules")
                if self.rules != Rules::None =>
            {
                let mut list = empty("NodeReadinessRuleList");
                list["items"] = json!([{
                    "apiVersion": "evenkeel.dev/v1alpha1", "kind": "NodeReadinessRule",
                    "metadata": { "name": "all", "uid": "all", "resourceVersion": "1", "generation": 1 },
                    "spec": { "nodeSelector": {}, "extensions": self.rules.extensions() },
                }]);
                (200, list.to_string())
            }
            ("GET", "/api/v1/namespaces/storage/pods") => {
                let mut list = empty("PodList");
                list["items"] = (0..NODES).map(pod).collect();
                (200, list.to_string())
            }
            ("GET", "/apis/example.com/v1") => {
                let kinds = json!({
                    "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "example.com/v1",
                    "resources": [{
                        "name": "devicestatuses", "singularName": "devicestatus", "namespaced": true, "kind": "DeviceStatus",
                        "verbs": ["get", "list", "watch"],
                    }],
                });
                (200, kinds.to_string())
            }
            ("GET", path) if path.ends_with("/devicestatuses") => {
                let mut list = empty("DeviceStatusList");
                list["items"] = (0..NODES).map(|number| device(number, FIRST)).collect();
                (200, list.to_string())
            }
            ("PATCH", "/apis/evenkeel.dev/v1alpha1/nodereadinessrules/all/status") => {
                let said = body();
                let ready = said["status"]["nodes"]["ready"]
                    .as_u64()
                    .unwrap_or_default();
                self.ready
                    .store(usize::try_from(ready).unwrap_or(0), Ordering::SeqCst);
                self.status
                    .fetch_max(said["status"].to_string().len(), Ordering::SeqCst);
                status(409)
            }
            // OpenShift's own operators are not here.
            ("GET", "/api/v1/namespaces") => (200, empty("NamespaceList").to_string()),
            ("GET", path) if path.contains("/namespaces/openshift-") => {
                (200, empty("List").to_string())
            }
            ("GET", path) if path.ends_with("/leases") => {
                let items: Vec<_> = leases_at(path)
                    .map(|(number, suffix)| lease(number, suffix, FIRST))
                    .collect();
                let list = format!(
                    r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"LeaseList","metadata":{{"resourceVersion":"1"}},"items":[{}]}}"#,
                    items.join(",")
                );
                (200, list)
            }
            ("GET", path) if path.ends_with("/leases/evenkeel-operator") => {
                let lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
                lease
                    .as_ref()
                    .map_or_else(|| status(404), |it| (200, it.to_string()))
            }
            ("PATCH", path) if path.ends_with("/leases/evenkeel-operator") => {
                let lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
                lease
                    .as_ref()
                    .map_or_else(|| status(404), |it| (200, it.to_string()))
            }
            ("POST" | "PUT", path) if path.contains("/leases") => {
                let version = self.version.fetch_add(1, Ordering::SeqCst) + 1;
                let mut lease = body();
                lease["metadata"]["resourceVersion"] = json!(version.to_string());
                lease["metadata"]["uid"] = json!("lease");
                self.leads(&lease);
                *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = Some(lease.clone());
                (200, lease.to_string())
            }
            ("PATCH", path) if path.ends_with("/machineconfigpools/web/status") => {
                let counted = body()["status"]["machineCount"]
                    .as_u64()
                    .unwrap_or_default();
                self.counted
                    .store(usize::try_from(counted).unwrap_or(0), Ordering::SeqCst);
                status(409)
            }
            ("POST", path) if path.contains("/events") => (201, body().to_string()),
            ("PATCH", path) => {
                if path.starts_with("/api/v1/nodes/") {
                    self.node_writes.fetch_add(1, Ordering::SeqCst);
                }
                status(409)
            }
            ("GET", path) if path.ends_with("/nodereadinessrules") => {
                (200, empty("NodeReadinessRuleList").to_string())
            }
            ("GET", path) if path.ends_with("/machineconfigs") => {
                (200, empty("MachineConfigList").to_string())
            }
            _ => status(404),
        }
    }

    fn leads(&self, lease: &Value) {
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        let mut leader = self.leader.lock().unwrap_or_else(PoisonError::into_inner);
        if leader.as_ref().is_none_or(|(known, _)| known != holder) {
            *leader = Some((holder.to_owned(), Instant::now()));
        }
    }

    fn leader(&self) -> Option<(String, Instant)> {
        let leader = self.leader.lock().unwrap_or_else(PoisonError::into_inner);
        leader.clone().filter(|(holder, _)| !holder.is_empty())
    }

    /// Tells a watch of renewals, evenly over the time between two of the same Lease; for ever.
    async fn renew(&self, path: &str, write: &mut OwnedWriteHalf) -> std::io::Result<()> {
        let objects: Vec<(usize, &str)> = if path.ends_with("/leases") {
            leases_at(path).collect()
        } else if path.ends_with("/devicestatuses") {
            (0..NODES).map(|number| (number, "device")).collect()
        } else {
            return std::future::pending().await;
        };
        let batches = objects.len().div_ceil(AT_ONCE);
        let mut pace = tokio::time::interval(BEAT / u32::try_from(batches).unwrap_or(1));
        for (round, batch) in objects.chunks(AT_ONCE).cycle().enumerate() {
            pace.tick().await;
            if !self.are_renewed.load(Ordering::SeqCst) {
                continue;
            }
            let renewed = format!("2026-01-01T01:00:00.{:06}Z", round / batches + 1);
            let mut chunks = String::new();
            for (number, suffix) in batch {
                let object = if *suffix == "device" {
                    device(*number, &renewed).to_string()
                } else {
                    lease(*number, suffix, &renewed)
                };
                let event = format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n");
                let _ = write!(chunks, "{:x}\r\n{event}\r\n", event.len());
            }
            write.write_all(chunks.as_bytes()).await?;
        }
        Ok(())
    }

    async fn serve(self: Arc<Self>, stream: TcpStream) -> std::io::Result<()> {
        let (read, mut write) = stream.into_split();
        let mut read = BufReader::new(read);
        loop {
            let mut line = String::new();
            if read.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            let mut words = line.split(' ');
            let (method, path) = (
                words.next().unwrap_or_default().to_owned(),
                words.next().unwrap_or_default().to_owned(),
            );
            let mut length = 0;
            loop {
                let mut header = String::new();
                read.read_line(&mut header).await?;
                let header = header.trim().to_lowercase();
                if header.is_empty() {
                    break;
                }
                if let Some(number) = header.strip_prefix("content-length: ") {
                    length = number.parse().unwrap_or(0);
                }
            }
            let mut body = vec![0; length];
            read.read_exact(&mut body).await?;
            if path.contains("watch=true") {
                write.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").await?;
                if path.starts_with("/api/v1/nodes") {
                    // Every node says once more that it is well.
                    for number in 0..NODES {
                        let event = format!(
                            "{{\"type\":\"MODIFIED\",\"object\":{}}}\n",
                            node(number, number + 2)
                        );
                        self.bytes.fetch_add(event.len(), Ordering::SeqCst);
                        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
                        write.write_all(chunk.as_bytes()).await?;
                        self.watched.fetch_add(1, Ordering::SeqCst);
                    }
                }
                let path = path.split('?').next().unwrap_or_default();
                let mut rest = Vec::new();
                tokio::select! {
                    hung_up = read.read_to_end(&mut rest) => hung_up.map(|_| ())?,
                    failed = self.renew(path, &mut write) => failed?,
                }
                return Ok(());
            }
            let (code, text) = self.answer(&method, &path, &body);
            let head = format!(
                "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                text.len()
            );
            write.write_all(head.as_bytes()).await?;
            write.write_all(text.as_bytes()).await?;
        }
    }
}

/// Whose Leases a namespace has: node and suffix.
fn leases_at(path: &str) -> impl Iterator<Item = (usize, &'static str)> {
    let suffixes: &[&str] = if path.contains("/kube-node-lease/") {
        &[""]
    } else {
        &[".cni", ".dp", ".evenkeel-agent"]
    };
    (0..NODES).flat_map(move |number| suffixes.iter().map(move |suffix| (number, *suffix)))
}

fn status(code: u16) -> (u16, String) {
    let reason = if code == 404 { "NotFound" } else { "Conflict" };
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "replayed",
    });
    (code, status.to_string())
}

pub(crate) fn kib(process: u32, field: &str) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|it| it.strip_prefix(field));
    let number = line.and_then(|it| it.split_whitespace().next()?.parse().ok());
    number.unwrap_or_default()
}

/// What the operator needed for all of them.
pub(crate) struct Needed {
    /// Bytes of a Node on the wire.
    pub(crate) size: usize,
    /// Resident when all was quiet.
    pub(crate) now_kib: u32,
    /// Resident at most.
    pub(crate) most_kib: u32,
}

/// An operator that has listed, counted and watched all of them.
pub(crate) struct Watched {
    replay: Arc<Replay>,
    kubeconfig: PathBuf,
    scratch: Scratch,
    operators: Vec<Running>,
}

/// Starts the operator, and lets it list, count and watch all of them; with readiness rules about them, what tells of their extensions,
/// too.
pub(crate) async fn measure(rules: Rules) -> Result<Needed> {
    Watched::by_operator(rules).await?.needed()
}

impl Watched {
    pub(crate) async fn by_operator(rules: Rules) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.doing(|| "no port")?;
        let port = listener.local_addr().doing(|| "no port")?.port();
        let replay = Arc::new(Replay {
            rules,
            ..Replay::default()
        });
        let served = Arc::clone(&replay);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let replay = Arc::clone(&served);
                tokio::spawn(async move {
                    // Who hangs up has what it wanted.
                    _ = replay.serve(stream).await;
                });
            }
        });
        let scratch = Scratch::new("memory")?;
        let login = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": format!("http://127.0.0.1:{port}") } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
            "users": [{ "name": "c", "user": {} }],
        });
        let kubeconfig = scratch.path().join("kubeconfig");
        std::fs::write(&kubeconfig, login.to_string()).doing(|| "cannot write")?;
        let mut watched = Self {
            replay,
            kubeconfig,
            scratch,
            operators: Vec::new(),
        };
        watched.start()?;
        let Self {
            replay, operators, ..
        } = &mut watched;
        until_async(
            "all nodes to be listed, counted and watched",
            Duration::from_mins(3),
            async || {
                for operator in &mut *operators {
                    operator.still_runs()?;
                }
                let (watched, counted) = (
                    replay.watched.load(Ordering::SeqCst),
                    replay.counted.load(Ordering::SeqCst),
                );
                let ready = replay.ready.load(Ordering::SeqCst);
                let is_ready = rules == Rules::None || ready == NODES;
                Ok(if watched == NODES && counted == NODES && is_ready {
                    Look::Found(())
                } else {
                    let said: Vec<_> = operators.iter().map(Running::last_words).collect();
                    Look::NotYet(format!(
                        "{watched} watched, {counted} counted, {ready} ready; {said:?}"
                    ))
                })
            },
        )
        .await?;
        let status = watched.replay.status.load(Ordering::SeqCst);
        if status > LARGEST_STATUS {
            return Err(Error::failed(format!(
                "the status of a readiness rule has {status} bytes, and {LARGEST_STATUS} are allowed"
            )));
        }
        Ok(watched)
    }

    /// Starts one more operator.
    fn start(&mut self) -> Result<()> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel-operator"));
        command
            .args(["run", "--listen", "off", "--kubeconfig"])
            .arg(&self.kubeconfig);
        let name = format!("log-{}", self.operators.len());
        let log = self.scratch.path().join(name);
        let operator = Running::start("evenkeel-operator", &mut command, &log)?;
        self.operators.push(operator);
        Ok(())
    }

    pub(crate) fn needed(&self) -> Result<Needed> {
        let process = self.operator()?.id();
        Ok(Needed {
            size: self.replay.bytes.load(Ordering::SeqCst) / NODES,
            now_kib: kib(process, "VmRSS:"),
            most_kib: kib(process, "VmHWM:"),
        })
    }

    /// The share of one processor that the operator has, with all Leases renewed every ten seconds or not at all.
    pub(crate) async fn processor(&self, are_renewed: bool, lasts: Duration) -> Result<f64> {
        self.replay.are_renewed.store(are_renewed, Ordering::SeqCst);
        // What it had to do before is done by then.
        tokio::time::sleep(BEAT).await;
        let before = self.operator()?.processor_time()?;
        tokio::time::sleep(lasts).await;
        let after = self.operator()?.processor_time()?;
        Ok(after.saturating_sub(before).div_duration_f64(lasts))
    }

    fn operator(&self) -> Result<&Running> {
        let last = self.operators.last();
        last.ok_or_else(|| Error::failed("no operator runs"))
    }

    /// Kills the operator while another one waits, and says how long after it leads the other has judged all nodes again, and how often
    /// it wanted to write a Node meanwhile.
    pub(crate) async fn hand_over(&mut self) -> Result<(Duration, usize)> {
        self.start()?;
        let first = self.replay.leader();
        // It holds what it has to hold before it leads.
        tokio::time::sleep(BEAT).await;
        let mut killed = self.operators.remove(0);
        killed.kill()?;
        self.replay.ready.store(0, Ordering::SeqCst);
        let writes = self.replay.node_writes.load(Ordering::SeqCst);
        let (replay, operators) = (&self.replay, &self.operators);
        let took = until_async(
            "the next one to judge all nodes",
            Duration::from_mins(2),
            async || {
                let ready = replay.ready.load(Ordering::SeqCst);
                let leader = replay.leader();
                Ok(match leader {
                    Some((holder, since))
                        if ready == NODES && first.as_ref().is_none_or(|(it, _)| *it != holder) =>
                    {
                        Look::Found(since.elapsed())
                    }
                    other => {
                        let said: Vec<_> = operators.iter().map(Running::last_words).collect();
                        Look::NotYet(format!("{ready} ready, {other:?} leads; {said:?}"))
                    }
                })
            },
        )
        .await?;
        let after = self.replay.node_writes.load(Ordering::SeqCst);
        Ok((took, after - writes))
    }
}
