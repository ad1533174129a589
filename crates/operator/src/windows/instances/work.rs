//! The work on one instance, carried out: the steps that `evenkeel_plan::windows::instances::workflow` says, in its order. Each
//! can be done again, and is told in the record of the instance before it begins.

mod copy;
mod node;
mod reach;
mod secure;
mod take_over;
mod upgrade;

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use evenkeel_api::names::windows;
use evenkeel_plan::windows::instances::workflow::{
    Answer, Workflow, WorkflowState, WorkflowStep, slow,
};
use evenkeel_plan::windows::instances::{FailureKind, InstanceFailure, InstanceRecord, Work};
use evenkeel_plan::windows::windows_pool::Grant;
use jiff::Timestamp;

use self::reach::Reached;
use super::Fleet;
use super::supply::Supply;
use crate::windows::ssh::{Error, FileKind};

/// A machine, and what is done to it.
pub(crate) struct Job {
    pub(crate) fleet: Rc<Fleet>,
    pub(crate) name: String,
    pub(crate) user: String,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) work: Work,
    /// How long all of it may take.
    pub(crate) limit: Duration,
}

impl Job {
    pub(crate) async fn run(&self) -> Result<(), InstanceFailure> {
        let done = tokio::time::timeout(self.limit, self.follow()).await;
        done.unwrap_or_else(|_| Err(slow(self.limit, &self.record())))
    }

    fn record(&self) -> InstanceRecord {
        self.fleet.records.get(&self.name).unwrap_or_default()
    }

    /// Does the steps of the work, and tells what the last of them has answered.
    async fn follow(&self) -> Result<(), InstanceFailure> {
        let supply = self.fleet.supply();
        let granted = |it: &Supply| {
            let (version, hash) = (it.version.clone(), it.hash.clone());
            (Grant { version, hash }, it.files.len())
        };
        let workflow = Workflow {
            work: self.work,
            instance: self.name.clone(),
            namespace: self.fleet.namespace.clone(),
            record: self.record(),
            takes_over: self.fleet.takes_over,
            supply: supply.as_ref().map(granted).map_err(Clone::clone),
            began: Timestamp::now(),
        };
        let mut way = None;
        let (mut progress, mut answer) = (WorkflowState::Begun, Answer::Done);
        while progress != WorkflowState::Ended {
            let (next, steps) = workflow.next(progress, answer, Timestamp::now())?;
            (progress, answer) = (next, Answer::Done);
            for step in steps {
                answer = self.perform(step, supply.as_ref(), &mut way).await?;
            }
        }
        Ok(())
    }

    async fn perform(
        &self,
        step: WorkflowStep,
        supply: Result<&Supply, &InstanceFailure>,
        way: &mut Option<Reached>,
    ) -> Result<Answer, InstanceFailure> {
        let records = &self.fleet.records;
        let given = || supply.map_err(Clone::clone);
        match step {
            WorkflowStep::Say(message) => self.step(message),
            WorkflowStep::Warn(message) => tracing::warn!(instance = self.name, "{message}"),
            WorkflowStep::Tell(notice) => self.fleet.tell(&self.name, notice),
            WorkflowStep::Remember(fact) => records.learn(&self.name, fact),
            WorkflowStep::Save(failing) => {
                let saved = records.save().await;
                saved.map_err(|error| api(failing, &error))?;
            }
            WorkflowStep::LearnKubelets => self.know_kubelets(given()?).await?,
            WorkflowStep::AskWhetherLeaving => {
                return Ok(Answer::Is(self.fleet.removals.has(&self.name)));
            }
            WorkflowStep::Pause(time) => tokio::time::sleep(time).await,
            WorkflowStep::ReadNode(node) => return Ok(Answer::Node(self.own_node(&node).await?)),
            WorkflowStep::WriteNode {
                seen,
                annotations,
                failing,
            } => return self.write_node(&seen, &annotations, failing).await,
            WorkflowStep::DeleteNode(seen) => return self.delete_node(&seen).await,
            WorkflowStep::Forget => self.forget().await?,
            WorkflowStep::Connect => {
                let (reached, is_known) = self.reach().await?;
                *way = Some(reached);
                return Ok(Answer::Is(is_known));
            }
            WorkflowStep::Disconnect => {
                if let Some(reached) = way.take() {
                    reached.session.close().await;
                }
            }
            WorkflowStep::Survey => return Ok(Answer::Survey(there(way)?.survey().await?)),
            WorkflowStep::ReadWmcoNode(node) => {
                return Ok(Answer::Node(self.wmco_node(&node).await?));
            }
            WorkflowStep::TakeFolder => there(way)?.take_folder().await?,
            WorkflowStep::InspectFolder => {
                return Ok(Answer::Folder(there(way)?.inspect_folder().await?));
            }
            WorkflowStep::PutAside(aside) => there(way)?.put_aside(&aside).await?,
            WorkflowStep::MakeFolder => return Ok(Answer::Is(there(way)?.make_folder().await?)),
            WorkflowStep::LookForAgent => {
                let found = there(way)?.files.kind(windows::AGENT).await?;
                return Ok(Answer::Is(found == FileKind::File));
            }
            WorkflowStep::BringAgent => self.copy_agent(there(way)?, given()?).await?,
            WorkflowStep::Prepare => return Ok(Answer::Machine(there(way)?.prepare().await?)),
            WorkflowStep::Supply => {
                return Ok(Answer::Machine(self.supply(there(way)?, given()?).await?));
            }
            WorkflowStep::RestoreFiles => {
                let brought = self.copy(there(way)?, &given()?.files).await?;
                return Ok(Answer::Count(brought));
            }
            WorkflowStep::Ask(line, within, login) => {
                let reached = there(way)?;
                let claim = match login {
                    Some(login) => self.bring_login(reached, given()?, login).await?,
                    None => None,
                };
                let said = reached.ask(&line, within).await?;
                drop(claim);
                return Ok(Answer::Said(said));
            }
            WorkflowStep::BringNewAgent => {
                let is_new = self.bring_new_agent(there(way)?, given()?).await?;
                return Ok(Answer::Is(is_new));
            }
            WorkflowStep::CopyNewFiles => {
                let copied = self.copy_new_files(there(way)?, given()?).await?;
                return Ok(Answer::Count(copied));
            }
            WorkflowStep::RemoveObsolete(old) => {
                there(way)?.remove_obsolete(&old, given()?).await?;
            }
            WorkflowStep::PlaceNewAgent => there(way)?.place_new_agent().await?,
            WorkflowStep::RemoveLogin => _ = there(way)?.files.remove(windows::LOGIN).await,
            WorkflowStep::RemoveUpgrade => there(way)?.remove_upgrade().await,
            WorkflowStep::RemoveFiles => there(way)?.remove_files(supply.ok()).await?,
        }
        Ok(Answer::Done)
    }

    /// Forgets the instance, and who answered there.
    async fn forget(&self) -> Result<(), InstanceFailure> {
        let forgotten = self.fleet.host_keys.pin(&self.name, None).await;
        forgotten.map_err(|error| api("cannot remove its host key", &error))?;
        self.fleet.records.forget(&self.name);
        Ok(())
    }
}

/// The instance, once it is reached.
fn there(way: &mut Option<Reached>) -> Result<&mut Reached, InstanceFailure> {
    way.as_mut()
        .ok_or_else(|| Error::Broken("it is closed".to_owned()).into())
}

fn api(what: &str, error: &kube::Error) -> InstanceFailure {
    InstanceFailure::new(FailureKind::ApiFailed, format!("{what}: {error}"))
}
