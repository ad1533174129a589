//! Where disruption permits are recorded: in the status of the node's pool, and for nodes without one (or whose pool's kind
//! is somebody else's, and keeps no such field) in a ConfigMap of ours. `evenkeel_plan::fleet::permit` says what
//! may be written there, and when; here it is read and written.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use evenkeel_api::fleet::permits::Permits;
use evenkeel_api::names::object;
use evenkeel_daemon::Term;
use evenkeel_plan::fleet::node::Node;
use evenkeel_plan::fleet::node_facts::NodeFacts;
use evenkeel_plan::fleet::permit;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;

use crate::fleet::pools::{ObservedPool, Pools};
use crate::objects::ours;
use crate::windows::pool::{ObservedWindowsPool, Windows};

/// One record of permits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Record {
    /// In the status of this pool.
    Pool(String),
    /// In the status of the `WindowsPool`.
    Windows,
    /// In the ConfigMap, for all others.
    Rest,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(name) => write!(f, "pool {name}"),
            Self::Windows => f.write_str("the Windows pool"),
            Self::Rest => write!(f, "ConfigMap {}", object::PERMITS),
        }
    }
}

/// A record as it was at one version.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    pub(crate) permits: Option<Permits>,
    holder: Holder,
}

/// The object that a record is in.
#[derive(Debug, Clone)]
enum Holder {
    Pool(Box<ObservedPool>),
    Windows(Box<ObservedWindowsPool>),
    Rest {
        uid: String,
        version: String,
    },
    /// There is no ConfigMap yet.
    Nobody,
}

impl Page {
    fn uid(&self) -> &str {
        match &self.holder {
            Holder::Pool(seen) => &seen.uid,
            Holder::Windows(seen) => &seen.uid,
            Holder::Rest { uid, .. } => uid,
            Holder::Nobody => "",
        }
    }
}

impl From<ObservedPool> for Page {
    fn from(seen: ObservedPool) -> Self {
        Self {
            permits: seen.status.permits.clone(),
            holder: Holder::Pool(Box::new(seen)),
        }
    }
}

impl From<ObservedWindowsPool> for Page {
    fn from(seen: ObservedWindowsPool) -> Self {
        Self {
            permits: seen.status.permits.clone(),
            holder: Holder::Windows(Box::new(seen)),
        }
    }
}

impl From<ConfigMap> for Page {
    fn from(map: ConfigMap) -> Self {
        let written = map.data.as_ref().and_then(|it| it.get(object::PERMITS_KEY));
        Self {
            permits: written.and_then(|it| serde_json::from_str(it).ok()),
            holder: Holder::Rest {
                uid: map.metadata.uid.unwrap_or_default(),
                version: map.metadata.resource_version.unwrap_or_default(),
            },
        }
    }
}

/// All records. Clones are the same.
#[derive(Clone)]
pub(crate) struct PermitRecords {
    shared: Rc<PermitsState>,
}

struct PermitsState {
    pools: Pools,
    windows: Windows,
    rest: Api<ConfigMap>,
    /// The ConfigMap as it was read or written last. Nobody but the leader writes it, so nobody watches it.
    rest_page: RefCell<Option<Page>>,
    term: Term,
    /// Those that we have claimed: which object it was, and under which epoch.
    claimed: RefCell<BTreeMap<Record, (String, i64)>>,
    /// Pools whose status does not keep permits.
    forgetful: RefCell<BTreeSet<Record>>,
    changes: watch::Sender<()>,
}

impl PermitRecords {
    /// For one who leads in `term`.
    pub(crate) fn new(
        client: &Client,
        namespace: &str,
        pools: &Pools,
        windows: &Windows,
        term: Term,
    ) -> Self {
        Self {
            shared: Rc::new(PermitsState {
                pools: pools.clone(),
                windows: windows.clone(),
                rest: Api::namespaced(client.clone(), namespace),
                rest_page: RefCell::default(),
                term,
                claimed: RefCell::default(),
                forgetful: RefCell::default(),
                changes: watch::Sender::default(),
            }),
        }
    }

    /// Tells of changes that no store of pools tells of.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }

    /// Where the permits of the nodes of a pool are recorded.
    pub(crate) fn of_pool(&self, pool: &str) -> Record {
        self.kept(Record::Pool(pool.to_owned()))
    }

    /// Where the permits of Windows nodes are recorded.
    pub(crate) fn of_windows(&self) -> Record {
        match self.shared.windows.seen() {
            Some(_) => self.kept(Record::Windows),
            None => Record::Rest,
        }
    }

    /// Where permits are kept that were to be recorded there.
    fn kept(&self, record: Record) -> Record {
        if self.shared.forgetful.borrow().contains(&record) {
            Record::Rest
        } else {
            record
        }
    }

    /// What is known of a record.
    pub(crate) fn page(&self, record: &Record) -> Option<Page> {
        match record {
            Record::Pool(name) => {
                let seen = |all: &BTreeMap<String, ObservedPool>| all.get(name).cloned();
                self.shared.pools.store().look(seen).map(Into::into)
            }
            Record::Windows => self.shared.windows.seen().map(Into::into),
            Record::Rest => self.shared.rest_page.borrow().clone(),
        }
    }

    /// All that there are, as far as is known.
    fn all(&self) -> Vec<Record> {
        let names = |all: &BTreeMap<String, ObservedPool>| {
            let pools = all.keys().cloned().map(Record::Pool);
            pools.chain([Record::Windows, Record::Rest]).collect()
        };
        self.shared.pools.store().look(names)
    }

    /// Nodes with a permit, each with where that is recorded.
    pub(crate) fn granted(&self) -> BTreeMap<String, Record> {
        let mut granted = BTreeMap::new();
        for record in self.all() {
            let permits = self.page(&record).and_then(|it| it.permits);
            for permit in permits.into_iter().flat_map(|it| it.granted) {
                granted.insert(permit.node, record.clone());
            }
        }
        granted
    }

    /// All nodes, with what is recorded of them.
    pub(crate) fn on(&self, all: &BTreeMap<String, NodeFacts>) -> Permitted {
        Permitted::of(self.granted().keys(), all)
    }

    /// Our epoch in a record, if it is ours as far as is known.
    pub(crate) fn epoch(&self, record: &Record) -> Option<i64> {
        let page = self.page(record)?;
        let claimed = self.shared.claimed.borrow();
        let (uid, epoch) = claimed.get(record)?;
        let is_own_epoch = uid == page.uid() && page.permits.is_some_and(|it| it.epoch == *epoch);
        is_own_epoch.then_some(*epoch)
    }

    /// Makes a record ours: whoever led before writes there no more. It is ours only with an answer.
    pub(crate) async fn claim(&self, record: &Record) -> kube::Result<()> {
        self.disown(record);
        let Some(page) = self.read(record).await? else {
            return Ok(());
        };
        let permits = permit::claim(page.permits.as_ref(), self.shared.term.0);
        let written = self.write(&page, &permits).await?;
        if written.permits.as_ref() != Some(&permits) {
            // Helm installs kinds once and never anew, so an upgrade meets those of before; after a take-over they are OpenShift's.
            tracing::warn!(
                "the CRD of {record} has no status.permits, so permits are recorded in ConfigMap {}: update it with kubectl apply -f deploy/crds",
                object::PERMITS
            );
            self.shared.forgetful.borrow_mut().insert(record.clone());
            self.shared.changes.send_replace(());
            return Ok(());
        }
        tracing::info!(
            "claimed the permits of {record} with epoch {}",
            permits.epoch
        );
        let claim = (written.uid().to_owned(), permits.epoch);
        self.shared
            .claimed
            .borrow_mut()
            .insert(record.clone(), claim);
        self.shared.changes.send_replace(());
        Ok(())
    }

    /// A record is not ours any more, until it is claimed anew.
    pub(crate) fn disown(&self, record: &Record) {
        self.shared.claimed.borrow_mut().remove(record);
    }

    /// The record as it is now.
    pub(crate) async fn read(&self, record: &Record) -> kube::Result<Option<Page>> {
        Ok(match record {
            Record::Pool(name) => self.shared.pools.read(name).await?.map(Into::into),
            Record::Windows => self.shared.windows.read().await?.map(Into::into),
            Record::Rest => {
                let found = self.shared.rest.get_opt(object::PERMITS).await?;
                let page = found.map_or(
                    Page {
                        permits: None,
                        holder: Holder::Nobody,
                    },
                    Page::from,
                );
                self.shared.rest_page.replace(Some(page.clone()));
                Some(page)
            }
        })
    }

    /// Writes a record over that version of it, and of no other.
    pub(crate) async fn write(&self, page: &Page, permits: &Permits) -> kube::Result<Page> {
        let data = json!({ object::PERMITS_KEY: json!(permits).to_string() });
        let (rest, name) = (&self.shared.rest, object::PERMITS);
        let map = match &page.holder {
            Holder::Pool(seen) => {
                return Ok(self.shared.pools.record(seen, permits).await?.into());
            }
            Holder::Windows(seen) => {
                return Ok(self.shared.windows.record(seen, permits).await?.into());
            }
            Holder::Rest { uid, version } => {
                let metadata = json!({ "uid": uid, "resourceVersion": version });
                let patch = Patch::Merge(json!({ "metadata": metadata, "data": data }));
                rest.patch(name, &ours(), &patch).await?
            }
            Holder::Nobody => {
                let map = json!({ "metadata": { "name": name }, "data": data });
                let map = serde_json::from_value(map).map_err(kube::Error::SerdeError)?;
                let parameters = PostParams {
                    field_manager: ours().field_manager,
                    ..PostParams::default()
                };
                rest.create(&parameters, &map).await?
            }
        };
        let page = Page::from(map);
        self.shared.rest_page.replace(Some(page.clone()));
        self.shared.changes.send_replace(());
        Ok(page)
    }

    /// Whether `node` has a permit, after a look at its record: whoever writes on the Node must have read it before.
    pub(crate) async fn is_good(&self, node: &str) -> kube::Result<bool> {
        let Some(record) = self.granted().remove(node) else {
            return Ok(false);
        };
        let Some(epoch) = self.epoch(&record) else {
            return Ok(false);
        };
        let page = self.read(&record).await?;
        Ok(page.is_some_and(|it| permit::is_good(it.permits.as_ref(), epoch, node)))
    }
}

/// Nodes with what is recorded of them.
pub(crate) struct Permitted {
    nodes: BTreeMap<String, Node>,
}

impl Permitted {
    /// `names` have permits.
    pub(crate) fn of<'n>(
        names: impl Iterator<Item = &'n String>,
        all: &BTreeMap<String, NodeFacts>,
    ) -> Self {
        let known = names.filter_map(|name| all.get(name));
        let nodes = known.map(|seen| {
            let node = Node {
                has_permit: true,
                ..seen.node.clone()
            };
            (node.name.clone(), node)
        });
        Self {
            nodes: nodes.collect(),
        }
    }

    /// A node.
    pub(crate) fn node<'n>(&'n self, seen: &'n NodeFacts) -> &'n Node {
        self.nodes.get(&seen.node.name).unwrap_or(&seen.node)
    }
}
