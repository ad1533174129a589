//! A machine that somebody else provisioned: before its first configuration of ours the agent finds out what it was
//! provisioned from. Where the machine itself has only the name of that, the cluster has the rest.

use evenkeel_plan::machine::phase::Reason;
use evenkeel_plan::machine::provision::Provision;

use super::cluster;
use super::machine::Machine;
use super::system::Linux;
use crate::node_event::NodeEvent;
use crate::reconcile::{ReconcileError, blocking};
use crate::worker::Worker;

impl Worker<Linux> {
    /// Finds out what this machine was provisioned from, as long as that counts, and says so once.
    pub(super) async fn adopt(&mut self) -> Result<(), ReconcileError> {
        let Some(mut provision) = self.on_machine(Machine::provision).await? else {
            return Ok(());
        };
        if let Some(name) = provision.named().map(str::to_owned)
            && let Some(whole) = self.provision_in_cluster(&name).await?
        {
            // The object may be gone tomorrow.
            let adopted = whole.clone();
            self.on_machine(move |machine| machine.adopt(&adopted))
                .await?;
            provision = whole;
        }
        let said = provision.words();
        if !said.is_empty() && self.system.adopted.as_deref() != Some(&said) {
            self.tell(NodeEvent::adopted(&said));
            self.system.adopted = Some(said);
        }
        Ok(())
    }

    /// What the MachineConfig `name` says, if the cluster still has it.
    async fn provision_in_cluster(&self, name: &str) -> Result<Option<Provision>, ReconcileError> {
        if Reason::misnamed(name).is_some() {
            return Ok(None);
        }
        let text = cluster::config(&self.own_node.client, name).await;
        let Some(text) = text.map_err(ReconcileError::Cluster)? else {
            return Ok(None);
        };
        let read = blocking(move || Provision::read("in the cluster", text.as_bytes()));
        match read.await? {
            Ok(provision) => Ok(Some(provision)),
            Err(problems) => {
                tracing::warn!("cannot adopt this machine from MachineConfig {name}: {problems}");
                Ok(None)
            }
        }
    }
}
