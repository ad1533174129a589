//! Approves the certificates of kubelets and agents on Windows nodes of ours. `evenkeel_plan::certificates`
//! decides; here requests are read, and answered.
//!
//! A request that cannot be decided yet is looked at again when something changes that it may depend on.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_plan::certificates::{Identity, Known, Request, Verdict, World, decide};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::Patch;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::Shared;
use crate::configuring::Configuring;
use crate::nodes::{Nodes, ours};
use crate::signing_request;

/// How long after an answer could not be written it is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often what waits is looked at also when nothing changes.
const NOW_AND_THEN: Duration = Duration::from_secs(30);

/// Approves until the program is asked to stop.
pub(crate) async fn run(shared: &Shared, configuring: &Configuring, namespace: &str) {
    let api: Api<CertificateSigningRequest> = Api::all(shared.client.clone());
    let requests = watcher(api.clone(), watcher::Config::default()).default_backoff();
    let mut requests = std::pin::pin!(requests);
    let mut nodes = shared.nodes.store().changes();
    let mut pool = shared.windows.store().changes();
    let mut machines = configuring.changes();
    let mut beside = shared.beside.changes();
    let mut approver = Approver {
        api,
        seen: Seen {
            nodes: &shared.nodes,
            configuring,
            namespace,
        },
        waiting: BTreeMap::new(),
    };
    let mut pause = NOW_AND_THEN;
    loop {
        tokio::select! {
            () = shared.stop.stopped() => return,
            change = requests.next() => match change {
                None => return,
                Some(Ok(change)) => approver.note(change),
                Some(Err(error)) => tracing::warn!("cannot watch requests for certificates, and try again: {error}"),
            },
            Ok(()) = nodes.changed() => {}
            Ok(()) = pool.changed() => {}
            Ok(()) = machines.changed() => {}
            Ok(()) = beside.changed() => {}
            () = tokio::time::sleep(pause) => {}
        }
        // Beside OpenShift's own operator for Windows nodes they are its to approve.
        let is_ours_to_say = shared.knows_windows() && !shared.beside.is_idle_for_windows();
        pause = if is_ours_to_say {
            approver.answer().await
        } else {
            NOW_AND_THEN
        };
    }
}

struct Approver<'s> {
    api: Api<CertificateSigningRequest>,
    seen: Seen<'s>,
    /// Requests without an answer, by name, with the version they were seen at.
    waiting: BTreeMap<String, (String, Request)>,
}

impl Approver<'_> {
    fn note(&mut self, change: watcher::Event<CertificateSigningRequest>) {
        match change {
            watcher::Event::Init => self.waiting.clear(),
            watcher::Event::InitApply(object) | watcher::Event::Apply(object) => {
                let status = object.status.as_ref();
                let conditions = status.and_then(|it| it.conditions.as_ref());
                if conditions.is_some_and(|it| !it.is_empty()) {
                    self.waiting.remove(&object.name_any());
                    if let Some((node, ends)) = signing_request::agent_login(&object) {
                        self.seen.configuring.know_login(&node, ends);
                    }
                    return;
                }
                let version = object.resource_version().unwrap_or_default();
                let request = signing_request::read(&object);
                self.waiting.insert(object.name_any(), (version, request));
            }
            watcher::Event::Delete(object) => {
                self.waiting.remove(&object.name_any());
            }
            watcher::Event::InitDone => {}
        }
    }

    /// Answers what can be answered, and says how long it can rest then.
    async fn answer(&mut self) -> Duration {
        let decided: Vec<_> = self
            .waiting
            .iter()
            .map(|(name, (version, request))| {
                (name.clone(), version.clone(), decide(request, &self.seen))
            })
            .filter(|(.., verdict)| *verdict != Verdict::Leave)
            .collect();
        let mut pause = NOW_AND_THEN;
        for (name, version, verdict) in decided {
            let (kind, why) = match &verdict {
                Verdict::Approve(why) => ("Approved", why),
                Verdict::Deny(why) => ("Denied", why),
                Verdict::Leave => continue,
            };
            match self.write(&name, &version, kind, why).await {
                Ok(()) => {
                    let user = self.waiting.remove(&name).map(|(_, request)| request.user);
                    tracing::info!(request = name, user, answer = kind, "{why}");
                }
                // Somebody has changed or removed it: the watch tells.
                Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {
                    self.waiting.remove(&name);
                }
                Err(error) => {
                    tracing::warn!(request = name, "cannot answer, and try again: {error}");
                    pause = AGAIN;
                }
            }
        }
        pause
    }

    async fn write(&self, name: &str, version: &str, kind: &str, why: &str) -> kube::Result<()> {
        let answer = json!({
            "metadata": { "resourceVersion": version },
            "status": { "conditions": [{
                "type": kind,
                "status": "True",
                "reason": "Evenkeel",
                "message": why,
                "lastUpdateTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            }] },
        });
        let answer = Patch::Merge(answer);
        let written = self.api.patch_approval(name, &ours(), &answer).await;
        written.map(|_| ())
    }
}

/// What decisions look at.
struct Seen<'s> {
    nodes: &'s Nodes,
    configuring: &'s Configuring,
    namespace: &'s str,
}

impl World for Seen<'_> {
    fn namespace(&self) -> &str {
        self.namespace
    }

    fn bootstrapper(&self) -> Option<Identity> {
        self.configuring.bootstrapper()
    }

    fn is_configured_now(&self, node: &str) -> bool {
        self.configuring.joins(node)
    }

    fn credential(&self, node: &str) -> Option<String> {
        self.configuring.credential(node)
    }

    fn node(&self, name: &str) -> Option<Known> {
        self.nodes.store().look(|all| {
            let seen = all.get(name)?;
            let windows = seen.node.windows.as_ref();
            let is_told = windows.is_some_and(|it| it.desired_version.is_some());
            let joins = windows.is_some() && self.configuring.joins(name);
            Some(Known {
                is_ours: is_told || joins,
                addresses: seen.addresses.iter().map(ToString::to_string).collect(),
            })
        })
    }

    fn owners(&self, address: &str) -> Vec<String> {
        let owns = |it: &&crate::nodes::Seen| {
            it.addresses
                .iter()
                .any(|known| evenkeel_plan::certificates::is_same(known, address))
        };
        self.nodes.store().look(|all| {
            let owners = all.values().filter(owns);
            owners.map(|it| it.node.name.clone()).collect()
        })
    }
}
