//! Windows machines that are to be nodes: where they are listed, what is remembered of them, and the work
//! on each. What is to be done is decided in `evenkeel_plan::windows::instances`.

pub(crate) mod controller;
mod followed;
mod host_keys;
mod list;
mod login;
mod machine_sets;
mod machines;
mod metrics;
mod names;
mod records;
mod removals;
mod supply;
mod work;

use std::cell::RefCell;
use std::net::IpAddr;

use evenkeel_api::notice::Notice;
use evenkeel_daemon::Events;
use evenkeel_plan::excerpt::{LONGEST, excerpt};
use evenkeel_plan::windows::certificates::Identity;
use evenkeel_plan::windows::instances::{FailureKind, InstanceFailure, addresses};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;

pub(crate) use self::host_keys::HostKeys;
pub(crate) use self::list::List;
pub(crate) use self::machine_sets::MachineSets;
pub(crate) use self::machines::Machines;
pub(crate) use self::metrics::InstanceMetrics;
pub(crate) use self::names::Names;
pub(crate) use self::records::Records;
pub(crate) use self::removals::Removals;
use self::supply::Supply;
pub(crate) use self::work::Job;
use crate::windows::certificates::configuring::Configuring;
use crate::windows::pool::{Offer, Windows};
use crate::windows::ssh::{Key, Ssh};

/// What all work on instances shares.
pub(crate) struct Fleet {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) events: Events,
    pub(crate) ssh: Ssh,
    pub(crate) records: Records,
    pub(crate) removals: Removals,
    pub(crate) host_keys: HostKeys,
    pub(crate) windows: Windows,
    pub(crate) configuring: Configuring,
    pub(crate) metrics: InstanceMetrics,
    pub(crate) machines: Machines,
    pub(crate) machine_sets: MachineSets,
    pub(crate) known: Known,
    /// Whether the owner says that nodes of OpenShift's operator are taken over.
    pub(crate) takes_over: bool,
}

/// What is learned on the way.
#[derive(Default)]
pub(crate) struct Known {
    /// The list, for Events about its entries.
    pub(crate) list: RefCell<List>,
    /// Where the names in it lead.
    pub(crate) names: Names,
    /// The last key with which somebody let us in.
    key: RefCell<Option<Key>>,
    /// The bootstrap login of which is known whose it is.
    bootstrap: RefCell<Vec<u8>>,
}

impl Fleet {
    /// Says something of an instance, on what it is listed in.
    pub(crate) fn tell(&self, name: &str, mut notice: Notice) {
        if notice.message.len() > LONGEST {
            notice.message = excerpt(&notice.message);
        }
        // The object is the list of all of them: the log also says which one.
        let line = tracing::info_span!("notice", instance = name);
        line.in_scope(|| {
            self.events
                .notify(self.listed_in(name), "Configure", notice);
        });
    }

    /// Where an instance is, as it is listed, as its Machine says, and where it was reached.
    pub(crate) fn addresses(&self, name: &str) -> Vec<IpAddr> {
        let mut told = self.known.list.borrow().addresses(name);
        if let Some(machine) = self.machines.get(name) {
            told.extend(
                machine
                    .known_as()
                    .iter()
                    .filter_map(|it| it.parse::<IpAddr>().ok()),
            );
        }
        addresses(name, self.records.get(name).as_ref(), &told)
    }

    /// The object that lists an instance: its Machine, or the ConfigMap.
    fn listed_in(&self, name: &str) -> ObjectReference {
        match self.machines.get(name) {
            Some(machine) => machine.reference(),
            None => self.known.list.borrow().reference(),
        }
    }

    /// Why no instance can be configured now.
    pub(crate) fn obstacle(&self) -> Option<InstanceFailure> {
        let trouble = self.windows.target().err()?;
        Some(match trouble {
            Some(trouble) => InstanceFailure::new(trouble.category.to_owned().into(), trouble.note),
            None => InstanceFailure::new(
                FailureKind::NotKnownYet,
                "the payload and the configuration of workers are not read yet",
            ),
        })
    }

    /// What a new node gets, or why nobody gets anything.
    fn supply(&self) -> Result<Supply, InstanceFailure> {
        if let Some(obstacle) = self.obstacle() {
            return Err(obstacle);
        }
        match self.windows.offer() {
            Offer::Ready(ready) => Supply::of(&ready),
            // The obstacle has said so.
            _ => Err(InstanceFailure::new(
                FailureKind::NotKnownYet,
                "the payload and the configuration of workers are not available any more",
            )),
        }
    }

    /// Whether it is known whose this bootstrap login is.
    fn knows(&self, bootstrap: &[u8]) -> bool {
        *self.known.bootstrap.borrow() == bootstrap && self.configuring.bootstrapper().is_some()
    }

    fn learn(&self, bootstrap: &[u8], who: Identity) {
        tracing::info!(user = who.user, "read the user of the bootstrap kubeconfig");
        self.configuring.know_bootstrapper(who);
        self.known.bootstrap.replace(bootstrap.to_vec());
    }

    fn works(&self, key: &Key) {
        self.known.key.replace(Some(key.clone()));
    }

    fn worked_before(&self) -> Option<Key> {
        self.known.key.borrow().clone()
    }
}
