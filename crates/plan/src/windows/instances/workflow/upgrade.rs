//! A node on its way to another version, on the machine that it is: its old agent and its services go, new and changed
//! files come, and the new agent is started once the Node was told. Whoever is killed in the middle is followed by
//! somebody who begins again.

use std::time::Duration;

use evenkeel_api::windows::version::Version;
use jiff::Timestamp;

use super::configure::starting;
use super::{
    NextState, Transition, Upgrade, Workflow, WorkflowState, WorkflowStep, remove_service,
};
use crate::windows::instances::{Fact, FailureKind, Found, InstanceFailure};
use crate::windows::upgrade::gate;
use crate::windows::upgrade::in_place::Supplied;

/// How long its Node may take to be told, and how often it is looked at.
const TOLD: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(200);

impl Workflow {
    pub(super) fn upgrade(&self, node: String, found: Option<Found>, now: Timestamp) -> NextState {
        let found = found.ok_or_else(|| lost(&node))?;
        let supplied = found.supplied.and_then(|it| it.parse::<Supplied>().ok());
        let mut upgrade = Upgrade::of(node);
        upgrade.from = found.version;
        upgrade.is_wmcos = found.wmco.is_some();
        let version = &self.grant()?.version;
        if supplied.is_some_and(|it| it.grant.version == *version) {
            return Ok(Self::await_version(upgrade, now));
        }
        let say = WorkflowStep::Say("checking whether its agent is the new one");
        let steps = vec![say, WorkflowStep::BringNewAgent];
        Ok((WorkflowState::BringingAgent(upgrade), steps))
    }

    pub(super) fn clean(&self, upgrade: Upgrade) -> Transition {
        let steps = vec![
            WorkflowStep::Say("stopping its old agent"),
            remove_service(),
            WorkflowStep::Say("removing the services of its old version"),
            self.clean_up_for_upgrade(&upgrade.node, upgrade.is_wmcos),
        ];
        (WorkflowState::Cleaning(upgrade), steps)
    }

    pub(super) fn copied(mut upgrade: Upgrade, old: Vec<String>, count: usize) -> Transition {
        let say = WorkflowStep::Say("removing files that only its old version has");
        let mut steps = vec![say, WorkflowStep::RemoveObsolete(old)];
        if upgrade.has_new_agent {
            let say = WorkflowStep::Say("replacing the old agent with the new one");
            steps.extend([say, WorkflowStep::PlaceNewAgent]);
        }
        let say = WorkflowStep::Say("recording that its files are complete");
        steps.extend([say, WorkflowStep::ReadNode(upgrade.node.clone())]);
        upgrade.copied = Some(count + usize::from(upgrade.has_new_agent));
        (WorkflowState::Writing(upgrade), steps)
    }

    /// Its agent must not find anything else on its Node.
    pub(super) fn await_version(upgrade: Upgrade, now: Timestamp) -> Transition {
        let say = WorkflowStep::Say("waiting until its Node has the new desired version");
        let read = WorkflowStep::ReadNode(upgrade.node.clone());
        let progress = WorkflowState::AwaitingVersion(upgrade, now + TOLD);
        (progress, vec![say, read])
    }

    pub(super) fn looked(
        &self,
        upgrade: Upgrade,
        until: Timestamp,
        found: Option<Found>,
        now: Timestamp,
    ) -> NextState {
        let (node, version) = (&upgrade.node, &self.grant()?.version);
        let found = found.ok_or_else(|| lost(node))?;
        if found
            .desired_version
            .as_ref()
            .is_some_and(|it| it == version)
        {
            return Ok(self.upgraded(&upgrade, version, now));
        }
        if now >= until {
            let message = format!(
                "Node {node} did not get the desired version {version} within {}s",
                TOLD.as_secs()
            );
            return Err(InstanceFailure::new(FailureKind::NotToldYet, message));
        }
        let steps = vec![
            WorkflowStep::Pause(LOOK),
            WorkflowStep::ReadNode(node.clone()),
        ];
        Ok((WorkflowState::AwaitingVersion(upgrade, until), steps))
    }

    fn upgraded(&self, upgrade: &Upgrade, version: &Version, now: Timestamp) -> Transition {
        let files = self.supply.as_ref().map_or(0, |(_, files)| *files);
        let copied = upgrade.copied.map_or_else(
            || "its files were there already".to_owned(),
            |copied| format!("{copied} of {files} files were copied"),
        );
        let note = format!(
            ": Node {} is upgraded from {} to {version} in {:.1}s: {copied}, and its new agent runs",
            upgrade.node,
            gate::shown(upgrade.from.as_ref()),
            now.duration_since(self.began).as_secs_f64()
        );
        let steps = vec![
            WorkflowStep::Say("starting its new agent"),
            self.install_service(),
            WorkflowStep::RemoveLogin,
            WorkflowStep::RemoveUpgrade,
            WorkflowStep::Disconnect,
            WorkflowStep::Remember(Fact::Started(version.clone())),
            starting("its new agent starts its services"),
            self.done("InstanceUpgraded", &note),
        ];
        (WorkflowState::Ended, steps)
    }
}

pub(super) fn lost(node: &str) -> InstanceFailure {
    let message = format!("Node {node} is gone: there is nothing to upgrade");
    InstanceFailure::new(FailureKind::NodeGone, message)
}
