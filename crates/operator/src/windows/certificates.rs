//! Approves the certificates of kubelets and agents on Windows nodes of ours. `evenkeel_plan::windows::certificates`
//! decides; here requests are read, and answered.
//!
//! A request that cannot be decided yet is looked at again when something changes that it may depend on.

pub(crate) mod configuring;
pub(crate) mod signing_request;

use std::net::IpAddr;
use std::time::Duration;

use evenkeel_api::names::certificate;
use evenkeel_daemon::panics::contain;
use evenkeel_plan::windows::certificates::waiting::{self, PendingRequests};
use evenkeel_plan::windows::certificates::{
    Approval, CertificateContext, Identity, KnownNode, Reserved, SigningRequest, decide,
};
use evenkeel_plan::windows::instances::{DesiredInstance, WindowsNode, node_of};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Service;
use kube::api::{ListParams, Patch};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::fleet::nodes::{Nodes, watching};
use crate::objects::ours;
use crate::shared::Shared;
use crate::triggers::Triggers;
use crate::windows::certificates::configuring::Configuring;
use crate::windows::instances::Fleet;
use crate::windows::pool::Offer;

/// How long after an answer could not be written it is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often what waits is looked at also when nothing changes.
const NOW_AND_THEN: Duration = Duration::from_secs(30);
/// How many Services are asked for at a time.
const PAGE: u32 = 500;

/// Approves until the program is asked to stop.
pub(crate) async fn run(shared: &Shared, fleet: &Fleet, namespace: &str) {
    let configuring = &fleet.configuring;
    let api: Api<CertificateSigningRequest> = Api::all(shared.client.clone());
    let requests = watcher(api.clone(), watching(None)).default_backoff();
    let mut requests = std::pin::pin!(requests);
    let mut triggers = Triggers::until(&shared.stop)
        .and(shared.nodes.store().changes())
        .and(shared.windows.store().changes())
        .and(configuring.changes())
        .and(fleet.records.changes())
        .and(shared.coexistence.changes());
    let mut approver = Approver {
        api,
        seen: OperatorContext {
            nodes: &shared.nodes,
            fleet,
            configuring,
            namespace,
            reserved: Reserved::default(),
        },
        waiting: PendingRequests::default(),
    };
    let mut pause = NOW_AND_THEN;
    loop {
        tokio::select! {
            goes_on = triggers.next(Some(pause)) => if !goes_on { return },
            change = requests.next() => match change {
                None => return,
                Some(Ok(change)) => approver.note(change),
                Some(Err(error)) => tracing::warn!("cannot watch CertificateSigningRequests, will retry: {error}"),
            },
        }
        // Where OpenShift's own operator manages Windows nodes, it approves them.
        let is_ours_to_say = shared.knows_windows() && !shared.coexistence.is_idle_for_windows();
        pause = if is_ours_to_say {
            approver.answer().await
        } else {
            NOW_AND_THEN
        };
    }
}

struct Approver<'s> {
    api: Api<CertificateSigningRequest>,
    seen: OperatorContext<'s>,
    /// Requests without an answer.
    waiting: PendingRequests,
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
                let (name, spec) = (object.name_any(), &object.spec);
                if !waiting::could_be_ours(&spec.signer_name, spec.request.0.len()) {
                    return;
                }
                let version = object.resource_version().unwrap_or_default();
                let read = || signing_request::read(&object);
                if let Some(request) = contain("certificates", &name, read) {
                    self.waiting.insert(name, version, request);
                }
            }
            watcher::Event::Delete(object) => {
                self.waiting.remove(&object.name_any());
            }
            watcher::Event::InitDone => {}
        }
    }

    /// Learns what belongs to Services and to the API server, if anybody of ours asks for a server's certificate.
    async fn know_reserved(&mut self) -> kube::Result<()> {
        let mut waiting = self.waiting.iter();
        let asks = |(_, _, request): (&str, &str, &SigningRequest)| {
            request.signer == certificate::KUBELET_SERVING
                && decide(request, &self.seen) != Approval::Leave
        };
        if waiting.any(asks) {
            self.seen.reserved = reserved(self.api.clone().into_client(), self.seen.fleet).await?;
        }
        Ok(())
    }

    /// Answers what can be answered, and says how long it can rest then.
    async fn answer(&mut self) -> Duration {
        if let Err(error) = self.know_reserved().await {
            tracing::warn!("cannot list Services, will retry: {error}");
            return AGAIN;
        }
        let decided: Vec<_> = self
            .waiting
            .iter()
            .filter_map(|(name, version, request)| {
                let verdict = contain("certificates", name, || decide(request, &self.seen))?;
                let is_managed = verdict != Approval::Leave;
                is_managed.then(|| (name.to_owned(), version.to_owned(), verdict))
            })
            .collect();
        let mut pause = NOW_AND_THEN;
        for (name, version, verdict) in decided {
            let (kind, why) = match &verdict {
                Approval::Approve(why) => ("Approved", why),
                Approval::Deny(why) => ("Denied", why),
                Approval::Leave => continue,
            };
            match self.write(&name, &version, kind, why).await {
                Ok(()) => {
                    let user = self.waiting.remove(&name);
                    tracing::info!(request = name, user, answer = kind, "{why}");
                }
                // Somebody has changed or removed it: the watch tells.
                Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {
                    self.waiting.remove(&name);
                }
                Err(error) => {
                    tracing::warn!(
                        request = name,
                        "cannot answer the request, will retry: {error}"
                    );
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

/// The addresses and names of all Services, and of the API server.
async fn reserved(client: Client, fleet: &Fleet) -> kube::Result<Reserved> {
    let mut reserved = Reserved::default();
    let services: Api<Service> = Api::all(client);
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = services.list(&page).await?;
        for service in list.items {
            let namespace = service.namespace().unwrap_or_default();
            let name = service.name_any();
            let spec = service.spec.unwrap_or_default();
            let given = service.status.and_then(|it| it.load_balancer);
            let given = given.and_then(|it| it.ingress).unwrap_or_default();
            let addresses = spec.cluster_ips.iter().chain(&spec.external_ips).flatten();
            let addresses = addresses.chain(given.iter().filter_map(|it| it.ip.as_ref()));
            reserved.service(&namespace, &name, addresses.map(String::as_str));
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    if let Offer::Ready(ready) = fleet.windows.offer() {
        reserved.api_server(&ready.worker.server);
    }
    Ok(reserved)
}

/// What decisions look at.
struct OperatorContext<'s> {
    nodes: &'s Nodes,
    fleet: &'s Fleet,
    configuring: &'s Configuring,
    namespace: &'s str,
    reserved: Reserved,
}

impl OperatorContext<'_> {
    /// The instance that a Node is, by our records.
    fn instance(&self, node: &WindowsNode) -> Option<String> {
        let fleet = self.fleet;
        fleet.records.look(|all| {
            let mut named = all.iter();
            let (name, _) = named.find(|(name, record)| {
                record.node.as_ref() == Some(&node.name) && {
                    let wanted = DesiredInstance {
                        user: String::new(),
                        addresses: Ok(Vec::new()),
                        node_addresses: fleet.addresses(name),
                        node: None,
                    };
                    let nodes = std::slice::from_ref(node);
                    node_of(name, Some(record), Some(&wanted), nodes).is_some()
                }
            })?;
            Some(name.clone())
        })
    }
}

impl CertificateContext for OperatorContext<'_> {
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

    fn node(&self, name: &str) -> Option<KnownNode> {
        self.nodes.store().look(|all| {
            let seen = all.get(name)?;
            let node = WindowsNode::of(seen);
            let Some(instance) = node.and_then(|it| self.instance(&it)) else {
                return Some(KnownNode::default());
            };
            let machine = self.fleet.machines.get(&instance);
            let names = machine.iter().flat_map(|it| it.known_as().to_vec());
            Some(KnownNode {
                is_managed: true,
                addresses: self.fleet.addresses(&instance),
                names: names.collect(),
            })
        })
    }

    fn owner(&self, address: &str, node: &str) -> Option<String> {
        if let Some(owner) = self.reserved.owner(address) {
            return Some(owner);
        }
        // Of other machines only what is known of them counts, and of other Nodes only their names.
        let number = address.parse::<IpAddr>().ok();
        let other = self.fleet.records.look(|all| {
            let mut others = all.iter().filter_map(|(name, record)| {
                let of = record.node.as_deref().filter(|it| *it != node)?;
                let has = number.is_some_and(|it| self.fleet.addresses(name).contains(&it));
                has.then(|| of.to_owned())
            });
            others.next()
        });
        let is_node = address != node && self.nodes.store().look(|all| all.contains_key(address));
        let named = is_node.then(|| address.to_owned());
        other.or(named).map(|name| format!("Node {name}"))
    }
}
