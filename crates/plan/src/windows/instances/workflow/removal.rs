//! From a node to a bare machine, or to one that nobody reaches any more.

use evenkeel_api::names::windows;
use evenkeel_api::notice::Notice;

use super::{
    AgentCommand, CLEANUP, Transition, Workflow, WorkflowState, WorkflowStep, remember,
    remove_service,
};
use crate::windows::instances::{Fact, Found, InstanceFailure, Work};

impl Workflow {
    /// A machine that is not the Node which it claims to be leaves without it.
    pub(super) fn confirm(
        node: String,
        found: Result<Option<Found>, InstanceFailure>,
    ) -> Transition {
        let (node, warn) = match found {
            Ok(_) => (Some(node), None),
            Err(problem) => (None, Some(WorkflowStep::Warn(problem.message))),
        };
        let steps = warn.into_iter().chain([WorkflowStep::AskWhetherLeaving]);
        (WorkflowState::Confirming(node), steps.collect())
    }

    /// It is taken out to the end from here, also by whoever comes after us.
    pub(super) fn take_out(&self, node: Option<String>) -> Transition {
        let cleanup = if self.supply.is_ok() {
            self.log_in_and(AgentCommand::CleanUp, "", node.clone(), CLEANUP)
        } else {
            let own = format!("{}kubeconfig", windows::OWN_STATE);
            let line = format!("cleanup --kubeconfig {own} --namespace {}", self.namespace);
            WorkflowStep::Ask(line, CLEANUP, None)
        };
        let mut steps = remember(Fact::Going).to_vec();
        steps.extend([
            WorkflowStep::Say("stopping its agent"),
            remove_service(),
            WorkflowStep::Say("removing services, variables and certificates"),
            cleanup,
            WorkflowStep::Say("removing its files"),
            WorkflowStep::RemoveFiles,
            WorkflowStep::Disconnect,
        ]);
        self.part(node, steps)
    }

    /// Its Node goes after `steps`, and then all that is known of it.
    pub(super) fn part(&self, node: Option<String>, mut steps: Vec<WorkflowStep>) -> Transition {
        let Some(node) = node else {
            let (progress, rest) = self.let_go(None);
            return (progress, [steps, rest].concat());
        };
        steps.push(WorkflowStep::ReadNode(node.clone()));
        (WorkflowState::DeletingNode(node, None), steps)
    }

    /// Deletes the Node of this machine. One that is not, or that another machine has become meanwhile, stays.
    pub(super) fn delete(
        &self,
        node: String,
        uid: Option<String>,
        found: Result<Option<Found>, InstanceFailure>,
    ) -> Transition {
        match found {
            Ok(Some(seen)) if uid.is_none() || uid == seen.uid => {
                let progress = WorkflowState::DeletingNode(node, uid.or(seen.uid.clone()));
                (progress, vec![WorkflowStep::DeleteNode(seen)])
            }
            Ok(_) => self.let_go(None),
            Err(problem) => {
                let note = format!(
                    "instance {}: Node {node} is not deleted: {}",
                    self.instance, problem.message
                );
                self.let_go(Some(Notice::warning("NodeKept", note)))
            }
        }
    }

    /// Forgets it, and says what became of it.
    pub(super) fn let_go(&self, first: Option<Notice>) -> Transition {
        let tell = match self.work {
            Work::Forget => None,
            Work::Abandon => Some(WorkflowStep::Tell(self.abandoned())),
            _ => Some(self.done("InstanceRemoved", " is cleaned up and no longer a node")),
        };
        let steps = first
            .map(WorkflowStep::Tell)
            .into_iter()
            .chain([WorkflowStep::Forget]);
        (WorkflowState::Ended, steps.chain(tell).collect())
    }

    /// What stays behind on a machine that nobody reaches any more.
    fn abandoned(&self) -> Notice {
        let note = format!(
            "instance {} cannot be reached ({}), so its Node {} was deleted. Evenkeel's services, the folders {} and {}, environment variables and certificates are still on it. If it comes back, list it and remove it again, or recreate it",
            self.instance,
            self.record.message,
            self.record.node.as_deref().unwrap_or("(none)"),
            windows::PAYLOAD,
            windows::LOGS,
        );
        Notice::warning("InstanceAbandoned", note)
    }
}
