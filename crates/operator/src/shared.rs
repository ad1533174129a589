//! What all controllers look at together.

use evenkeel_daemon::{Events, Stop};
use kube::Client;

use crate::fleet::coexistence::Neighbours;
use crate::fleet::configs::Configs;
use crate::fleet::disruption_policy::DisruptionPolicies;
use crate::fleet::nodes::Nodes;
use crate::fleet::permits::PermitRecords;
use crate::fleet::policies::Policies;
use crate::fleet::pools::Pools;
use crate::windows::pool::Windows;

/// What all controllers look at. Clones are the same.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) events: Events,
    pub(crate) stop: Stop,
    pub(crate) nodes: Nodes,
    pub(crate) pools: Pools,
    pub(crate) policies: Policies,
    pub(crate) configs: Configs,
    pub(crate) disruption_policies: DisruptionPolicies,
    pub(crate) coexistence: Neighbours,
    pub(crate) windows: Windows,
    pub(crate) permits: PermitRecords,
    /// Whether anything is done for Windows nodes, so that their pool is known.
    pub(crate) has_windows: bool,
}

impl Shared {
    /// Whether the record of permits of Windows nodes is known: their pool's, or if there is none, another one.
    pub(crate) fn knows_windows_pool(&self) -> bool {
        !self.has_windows || self.windows.store().is_listed()
    }

    /// Whether everything is known that decides about Windows nodes: nobody decides before.
    pub(crate) fn knows_windows(&self) -> bool {
        self.nodes.store().is_listed()
            && self.windows.store().is_listed()
            && self.coexistence.is_known_for_windows()
    }

    /// Whether nodes, pools and who else is here are known: nobody decides before.
    pub(crate) fn is_listed(&self) -> bool {
        self.nodes.store().is_listed()
            && self.pools.store().is_listed()
            && self.coexistence.is_known()
    }
}
