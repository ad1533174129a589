//! What counts for upgrades of Windows nodes besides the nodes themselves: what each is made of, what went wrong
//! on its machine, and whether the cluster is new enough.

use std::time::{Duration, Instant};

use evenkeel_plan::windows::instances::{InstanceState, is_machine};
use evenkeel_plan::windows::upgrade::gate::{self, Kubernetes};
use evenkeel_plan::windows::upgrade::recreate::Machines;
use evenkeel_plan::windows::upgrade::{Backing, UpgradeContext};
use evenkeel_plan::windows::windows_pool::PoolFailure;
use jiff::Timestamp;
use kube::Client;

use crate::windows::instances::Fleet;

/// How long what the cluster says of its version is believed.
const BELIEVED: Duration = Duration::from_mins(5);

/// What is around, as it is now.
pub(crate) fn context(fleet: &Fleet, closed: Option<PoolFailure>) -> UpgradeContext {
    let mut context = UpgradeContext {
        closed,
        removals: fleet.removals.nodes(),
        takes_over: fleet.takes_over,
        now: Timestamp::now(),
        ..UpgradeContext::default()
    };
    let records = fleet.records.all();
    let node = |instance: &str| records.get(instance)?.node.clone();
    let machines = fleet.machines.renewable(node);
    let sets = fleet.machine_sets.all();
    // As long as nobody knows who makes a Machine anew, nobody says how to reach it.
    let machines = machines.zip(sets);
    let is_known = machines.is_some();
    if let Some((machines, sets)) = machines {
        context.machines = Machines { machines, sets };
    }
    let claims = fleet.windows.claims();
    for (name, record) in &records {
        // A name that a machine only claims says nothing of the Node that has it.
        let node = record.node.clone();
        let Some(node) = node.filter(|it| claims.nodes.contains(it)) else {
            continue;
        };
        // What leaves is upgraded no more.
        if record.leaving_since.is_some() {
            continue;
        }
        if record.is_surveyed {
            context.surveyed.insert(node.clone());
        }
        if record.state == InstanceState::Failing {
            context
                .troubles
                .insert(node.clone(), record.message.clone());
        }
        if !is_machine(name) {
            context.backing.insert(node, Backing::Listed);
        } else if let Some(machine) = context.machines.of_node(&node).filter(|_| is_known) {
            let set = context.machines.set_of(machine);
            let backing = Backing::Machine {
                name: machine.name.clone(),
                set: set.map(|(name, _)| name.to_owned()),
            };
            context.backing.insert(node, backing);
        }
    }
    context
}

/// Knows whether the cluster is new enough for upgrades.
pub(crate) struct ClusterGate {
    client: Client,
    minimum: Kubernetes,
    asked: Option<(Instant, String)>,
}

impl ClusterGate {
    /// Refuses clusters older than `minimum`.
    pub(crate) fn new(client: Client, minimum: Kubernetes) -> Self {
        Self {
            client,
            minimum,
            asked: None,
        }
    }

    /// Why no node may be upgraded on this cluster. What it said last holds while it does not answer; before it has ever
    /// answered nobody begins.
    pub(crate) async fn closed(&mut self) -> Option<PoolFailure> {
        let is_known = self.asked.as_ref();
        if is_known.is_none_or(|(at, _)| at.elapsed() > BELIEVED) {
            match self.client.apiserver_version().await {
                Ok(version) => self.asked = Some((Instant::now(), version.git_version)),
                Err(error) => tracing::warn!("cannot read the version of the cluster: {error}"),
            }
        }
        match &self.asked {
            Some((_, version)) => gate::of_cluster(version, self.minimum),
            None => Some(PoolFailure {
                category: gate::OLD_KUBERNETES,
                note:
                    "the version of the cluster is not known yet: Windows nodes keep their version"
                        .to_owned(),
            }),
        }
    }
}
