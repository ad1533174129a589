//! A machine that OpenShift's operator made a node: it is looked at before anything is decided about it, and its folder is
//! taken in its turn. Until then nothing is written on it.

#[cfg(test)]
mod tests;

use evenkeel_api::names::windows;
use evenkeel_api::notice::Notice;

use super::{NextState, Transition, Workflow, WorkflowState, WorkflowStep, remember};
use crate::windows::instances::{Fact, FailureKind, Found, InstanceFailure, Work};
use crate::windows::take_over::{Missing, WmcoMachine, joined, missing};
use crate::windows::upgrade::gate;

impl Workflow {
    /// The machine has the agent of OpenShift's operator, as a service of Windows.
    pub(super) fn found_wmco(&self) -> NextState {
        match self.work {
            // Whoever takes it off the list has nothing of ours on it.
            Work::Deconfigure | Work::Abandon | Work::Forget => {
                let say = WorkflowStep::Say("it stays a node of OpenShift's operator");
                let steps = vec![say, WorkflowStep::Disconnect, WorkflowStep::Forget];
                Ok((WorkflowState::Ended, steps))
            }
            _ if !self.takes_over => {
                let message = format!(
                    "it is a node of OpenShift's Windows Machine Config Operator (service {}): start evenkeel-operator with --take-over=windows to take it over, or take it off the list",
                    windows::WMCO_SERVICE
                );
                Err(InstanceFailure::new(FailureKind::NotTakenOver, message))
            }
            Work::Upgrade => {
                let say = WorkflowStep::Say("closing the folder of OpenShift's operator to others");
                let steps = vec![say, WorkflowStep::TakeFolder];
                Ok((WorkflowState::TakingFolder, steps))
            }
            Work::Configure | Work::Survey | Work::Restore | Work::LogIn => {
                let say =
                    WorkflowStep::Say("checking what OpenShift's operator left on the machine");
                Ok((WorkflowState::Surveying, vec![say, WorkflowStep::Survey]))
            }
        }
    }

    /// It is the Node that its kubelet says, if that one says so, too.
    pub(super) fn surveyed(machine: WmcoMachine) -> Transition {
        let read = WorkflowStep::ReadWmcoNode(machine.node_name());
        (WorkflowState::Recognising(machine), vec![read])
    }

    pub(super) fn recognised(&self, machine: &WmcoMachine, found: Option<Found>) -> NextState {
        let mut lacking = missing(machine);
        match &found {
            None => lacking.push(Missing::Node(machine.node_name())),
            Some(found) => match &found.wmco {
                None => lacking.push(Missing::Marks(found.name.clone())),
                Some(unfinished) => lacking.extend(unfinished.clone()),
            },
        }
        let Some(found) = found.filter(|_| lacking.is_empty()) else {
            return Err(lacks(&lacking));
        };
        let note = format!(
            "instance {} is Node {} of OpenShift's Windows Machine Config Operator {}, and has all that its upgrade needs: it waits for its turn",
            self.instance,
            found.name,
            gate::shown(found.version.as_ref())
        );
        let mut steps = vec![WorkflowStep::Remember(Fact::Surveyed)];
        steps.extend(remember(Fact::Node(found.name)));
        steps.extend([
            WorkflowStep::Disconnect,
            WorkflowStep::Tell(Notice::normal("TakeOverPrepared", note)),
        ]);
        Ok((WorkflowState::Ended, steps))
    }
}

/// What a machine lacks that is to be taken over.
pub(super) fn lacks(lacking: &[Missing]) -> InstanceFailure {
    InstanceFailure::new(FailureKind::TakeOverRefused, joined(lacking))
}
