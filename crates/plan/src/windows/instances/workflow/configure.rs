//! From a bare machine to a node, and what brings one back that lacks something.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_api::names::annotation;
use jiff::Timestamp;

use super::{
    AgentCommand, NextState, Transition, Upgrade, Workflow, WorkflowState, WorkflowStep, remember,
    remove_service, unexpected,
};
use crate::excerpt::excerpt;
use crate::windows::instances::{Fact, FailureKind, Found, InstanceFailure, Work};
use crate::windows::upgrade::in_place::Supplied;
use crate::windows::windows_pool::Grant;

/// How long a machine may take to become a node.
const BOOTSTRAP: Duration = Duration::from_mins(15);
/// How long a machine may take to ask for a login and to get it.
const LOG_IN: Duration = Duration::from_mins(3);

impl Workflow {
    pub(super) fn configure(&self, node: String, has_agent: bool, exists: bool) -> NextState {
        let mut steps = remember(Fact::Node(node.clone())).to_vec();
        if has_agent && exists {
            let (progress, annotate) = annotate(node);
            return Ok((progress, [steps, annotate].concat()));
        }
        if has_agent {
            // Somebody deleted the Node: the kubelet makes it again when it starts anew.
            let say = WorkflowStep::Say("starting over: its Node is gone");
            steps.extend([
                say,
                remove_service(),
                self.clean_up_for_upgrade(&node, false),
            ]);
        }
        let Grant { version, hash } = self.grant()?;
        let options = format!(" --desired-version {version} --desired-services {hash}");
        let say = WorkflowStep::Say("starting its bootstrap services, and waiting for its Node");
        let bootstrap = self.log_in_and(
            AgentCommand::Bootstrap,
            &options,
            Some(node.clone()),
            BOOTSTRAP,
        );
        steps.extend([say, bootstrap]);
        Ok((WorkflowState::Bootstrapping(node), steps))
    }

    /// Writes on the Node what it is to run and what it is made of, or whose files its machine has: it is told what to run
    /// after that.
    pub(super) fn write(
        &self,
        upgrade: Upgrade,
        found: Option<Found>,
        now: Timestamp,
    ) -> NextState {
        let gone = format!("Node {} is gone", upgrade.node);
        let seen = found.ok_or_else(|| InstanceFailure::new(FailureKind::NodeGone, gone))?;
        let grant = self.grant()?.clone();
        let instance = format!("{}@{}", self.record.user, self.instance);
        let mut annotations = BTreeMap::from([(annotation::INSTANCE, instance)]);
        let failing = if self.work == Work::Configure {
            let version = grant.version.to_string();
            annotations.insert(annotation::WINDOWS_DESIRED_VERSION, version);
            annotations.insert(annotation::DESIRED_SERVICES, grant.hash);
            "cannot write the desired version on its Node"
        } else {
            let supplied = Supplied { grant, at: now };
            annotations.insert(annotation::SUPPLIED, supplied.to_string());
            "cannot record on its Node that its files are complete"
        };
        let write = WorkflowStep::WriteNode {
            seen,
            annotations,
            failing,
        };
        Ok((WorkflowState::Writing(upgrade), vec![write]))
    }

    pub(super) fn configured(&self, node: &str) -> NextState {
        let note = format!(" is configured as Node {node} and its agent runs");
        let steps = vec![
            WorkflowStep::Say("installing its agent's service"),
            self.install_service(),
            WorkflowStep::Disconnect,
            WorkflowStep::Remember(Fact::Started(self.grant()?.version.clone())),
            starting("its agent starts its services"),
            self.done("InstanceConfigured", &note),
        ];
        Ok((WorkflowState::Ended, steps))
    }

    pub(super) fn restored(&self, brought: usize) -> Transition {
        let note = format!(": copied {brought} files that were missing on its node");
        let started = starting("its missing files are copied");
        let tell = self.done("FilesRestored", &note);
        (
            WorkflowState::Ended,
            vec![WorkflowStep::Disconnect, started, tell],
        )
    }

    pub(super) fn log_in(&self, node: String) -> Transition {
        let say = WorkflowStep::Say("creating a new login for its agent");
        let ask = self.log_in_and(AgentCommand::LogIn, "", Some(node.clone()), LOG_IN);
        (WorkflowState::LoggingIn(node), vec![say, ask])
    }

    pub(super) fn logged_in(&self, node: &str, ends: Option<Timestamp>) -> NextState {
        let ends = ends.ok_or_else(|| unexpected(&node))?;
        let note = format!(": the login of the agent of Node {node} had expired: it has a new one");
        let steps = vec![
            WorkflowStep::RemoveLogin,
            WorkflowStep::Disconnect,
            WorkflowStep::Remember(Fact::LoginEnds(ends)),
            starting("its agent has a new login"),
            self.done("AgentLoggedIn", &note),
        ];
        Ok((WorkflowState::Ended, steps))
    }
}

pub(super) fn bootstrapped(node: String, said: Option<String>) -> NextState {
    let said = said.ok_or_else(|| unexpected(&node))?;
    if said == node {
        return Ok(annotate(node));
    }
    let message = format!(
        "the machine claimed to be Node {node}, and now claims to be {:?}: its kubelet must use the computer name",
        excerpt(&said)
    );
    Err(InstanceFailure::new(FailureKind::NodeNameTaken, message))
}

/// The Node is there. The login of its agent has done its work, and lasts only minutes.
fn annotate(node: String) -> Transition {
    let say = WorkflowStep::Say("writing the desired version on its Node");
    let steps = vec![
        WorkflowStep::RemoveLogin,
        say,
        WorkflowStep::ReadNode(node.clone()),
    ];
    (WorkflowState::Writing(Upgrade::of(node)), steps)
}

pub(super) fn starting(message: &'static str) -> WorkflowStep {
    WorkflowStep::Remember(Fact::Starting(message))
}
