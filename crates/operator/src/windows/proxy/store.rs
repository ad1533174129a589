//! The cluster's Proxy, whose status says what the network operator made of it; and what was decided about the
//! proxy of Windows nodes. Many clusters have no such kind, and it may come later.

use std::rc::Rc;

use evenkeel_api::names::{group, proxy};
use evenkeel_daemon::{Check, Stop};
use evenkeel_plan::windows::proxy::{ProxyDecision, ProxySettings, Variable};
use kube::core::{ApiResource, GroupVersionKind, Object};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::watch;

use crate::kinds::Kind;
use crate::store::{Identity, Kept, Store};

type ProxyObject = Object<Value, Value>;

/// The Proxy as it was at one version: of it only the status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedProxy {
    name: String,
    uid: String,
    version: String,
    status: ProxySettings,
}

impl From<ProxyObject> for ObservedProxy {
    fn from(object: ProxyObject) -> Self {
        let metadata = object.metadata;
        let status = object.status.unwrap_or_default();
        let values = Variable::ALL
            .into_iter()
            .filter_map(|it| Some((it, status.get(it.field())?.as_str()?)));
        Self {
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            version: metadata.resource_version.unwrap_or_default(),
            status: values.collect(),
        }
    }
}

impl Kept for ObservedProxy {
    fn identity(&self) -> Identity<'_> {
        Identity {
            name: &self.name,
            uid: &self.uid,
            version: &self.version,
        }
    }

    fn is_as(&self, other: &Self) -> bool {
        self.status == other.status
    }
}

/// What is known of the proxy. Clones are the same.
#[derive(Clone)]
pub(crate) struct Proxy {
    api: Api<ProxyObject>,
    kind: Rc<Kind>,
    store: Store<ObservedProxy>,
    decision: watch::Sender<Option<Rc<ProxyDecision>>>,
}

impl Proxy {
    pub(crate) fn new(client: Client) -> Self {
        let kind = GroupVersionKind::gvk(group::CONFIG, "v1", "Proxy");
        let kind = ApiResource::from_gvk_with_plural(&kind, "proxies");
        Self {
            kind: Rc::new(Kind::new(client.clone(), &kind)),
            api: Api::all_with(client, &kind),
            store: Store::new(),
            decision: watch::Sender::new(None),
        }
    }

    /// Tells when the cluster says something else.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.store.changes()
    }

    /// Keeps the cluster's Proxy, until the program is asked to stop.
    pub(crate) async fn keep(&self, check: Check, stop: &Stop) {
        let only = watcher::Config::default().fields(&format!("metadata.name={}", proxy::OBJECT));
        let changes = || watcher(self.api.clone(), only.clone());
        let what = "proxies of config.openshift.io";
        let kept = self
            .store
            .keep_if_known(what, &self.kind, changes, check, stop);
        kept.await;
    }

    /// What the cluster says, once somebody has looked.
    pub(crate) fn said_by_cluster(&self) -> Option<ProxySettings> {
        let said = |it: &ObservedProxy| it.status.clone();
        self.store.is_listed().then(|| {
            let found = self.store.look(|all| all.get(proxy::OBJECT).map(said));
            found.unwrap_or_default()
        })
    }

    /// Takes note of what was decided.
    pub(crate) fn decide(&self, decision: ProxyDecision) {
        self.decision.send_if_modified(|known| {
            let differs = known.as_deref() != Some(&decision);
            if differs {
                *known = Some(Rc::new(decision));
            }
            differs
        });
    }

    /// What was decided, if anything was.
    pub(crate) fn decision(&self) -> Option<Rc<ProxyDecision>> {
        self.decision.borrow().clone()
    }

    /// What nodes get, if anybody knows.
    pub(crate) fn settings(&self) -> Option<ProxySettings> {
        let decision = self.decision.borrow();
        decision.as_ref().map(|it| it.settings.clone())
    }

    /// Tells when something else was decided.
    pub(crate) fn decisions(&self) -> watch::Receiver<Option<Rc<ProxyDecision>>> {
        self.decision.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_status_of_a_proxy_counts() {
        let read = |status: Value| {
            let object: ProxyObject = serde_json::from_value(json!({
                "apiVersion": "config.openshift.io/v1", "kind": "Proxy", "metadata": { "name": "cluster" },
                "spec": { "httpProxy": "http://wished:1" }, "status": status,
            }))
            .unwrap();
            ObservedProxy::from(object).status
        };
        assert_eq!(read(Value::Null), ProxySettings::default());
        let both =
            read(json!({ "httpsProxy": "http://real:2", "noProxy": "a,b", "httpProxy": "" }));
        assert_eq!(both.get(Variable::HttpProxy), None);
        assert_eq!(both.get(Variable::HttpsProxy), Some("http://real:2"));
        assert_eq!(both.get(Variable::NoProxy), Some("a,b"));
    }
}
