//! 5,000 Nodes of real size, and four Leases for each, from a replayed list and watch: a server that says what a cluster would say, to
//! the real program.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_testbed::process::Running;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

pub(crate) const NODES: usize = 5_000;
/// The size of a real Node.
pub(crate) const SIZE: usize = 11 * 1024;
pub(crate) const LIMIT_KIB: u32 = 80 * 1024;
/// How large the status of a readiness rule may be.
const LARGEST_STATUS: usize = 2048;

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
    /// Whether there is a readiness rule about all of them.
    has_rule: bool,
    lease: Mutex<Option<Value>>,
    version: AtomicUsize,
    watched: AtomicUsize,
    /// How many nodes the pool has, by its last status.
    counted: AtomicUsize,
    bytes: AtomicUsize,
    /// How many nodes are ready by the rule's last status, and how large that ever was.
    ready: AtomicUsize,
    status: AtomicUsize,
}

/// A Lease of a node.
fn lease(number: usize, suffix: &str) -> String {
    let report = if suffix == ".evenkeel-agent" {
        json!({ "evenkeel.dev/report": json!({
            "bootId": format!("boot-{number}"), "kubeletStart": format!("start-{number}"), "state": "Done",
            "probes": { "cni": { "healthy": true, "since": "2026-01-01T00:00:00Z", "message": "" } },
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
        "spec": { "holderIdentity": format!("node-{number:05}"), "leaseDurationSeconds": 10, "renewTime": "2026-01-01T00:00:00.000000Z" },
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
            ("GET", "/apis/evenkeel.dev/v1alpha1/nodereadinessrules") if self.has_rule => {
                let mut list = empty("NodeReadinessRuleList");
                list["items"] = json!([{
                    "apiVersion": "evenkeel.dev/v1alpha1", "kind": "NodeReadinessRule",
                    "metadata": { "name": "all", "uid": "all", "resourceVersion": "1", "generation": 1 },
                    "spec": { "nodeSelector": {}, "extensions": [{ "name": "cni", "lease": {} }, { "name": "dp", "lease": {} }] },
                }]);
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
                let suffixes: &[&str] = if path.contains("/kube-node-lease/") {
                    &[""]
                } else {
                    &[".cni", ".dp", ".evenkeel-agent"]
                };
                let names = (0..NODES)
                    .flat_map(|number| suffixes.iter().map(move |suffix| (number, *suffix)));
                let items: Vec<_> = names
                    .map(|(number, suffix)| lease(number, suffix))
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
            ("PATCH", _) => status(409),
            ("GET", path) if path.ends_with("/nodereadinessrules") => {
                (200, empty("NodeReadinessRuleList").to_string())
            }
            ("GET", path) if path.ends_with("/machineconfigs") => {
                (200, empty("MachineConfigList").to_string())
            }
            _ => status(404),
        }
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
                // Nothing else changes.
                let mut rest = Vec::new();
                read.read_to_end(&mut rest).await?;
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

/// Starts the operator, and lets it list, count and watch all of them; with a readiness rule about them, their
/// Leases, too.
pub(crate) async fn measure(has_rule: bool) -> Result<Needed> {
    let listener = TcpListener::bind("127.0.0.1:0").await.doing(|| "no port")?;
    let port = listener.local_addr().doing(|| "no port")?.port();
    let replay = Arc::new(Replay {
        has_rule,
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
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel-operator"));
    command
        .args(["run", "--listen", "off", "--kubeconfig"])
        .arg(&kubeconfig);
    let mut operator = Running::start(
        "evenkeel-operator",
        &mut command,
        &scratch.path().join("log"),
    )?;
    until_async(
        "all nodes to be listed, counted and watched",
        Duration::from_mins(3),
        async || {
            operator.still_runs()?;
            let (watched, counted) = (
                replay.watched.load(Ordering::SeqCst),
                replay.counted.load(Ordering::SeqCst),
            );
            let ready = replay.ready.load(Ordering::SeqCst);
            let is_ready = !has_rule || ready == NODES;
            Ok(if watched == NODES && counted == NODES && is_ready {
                Look::Found(())
            } else {
                Look::NotYet(format!(
                    "{watched} watched, {counted} counted, {ready} ready; {}",
                    operator.last_words()
                ))
            })
        },
    )
    .await?;
    let status = replay.status.load(Ordering::SeqCst);
    if status > LARGEST_STATUS {
        return Err(Error::failed(format!(
            "the status of a readiness rule has {status} bytes, and {LARGEST_STATUS} are allowed"
        )));
    }
    Ok(Needed {
        size: replay.bytes.load(Ordering::SeqCst) / NODES,
        now_kib: kib(operator.id(), "VmRSS:"),
        most_kib: kib(operator.id(), "VmHWM:"),
    })
}
