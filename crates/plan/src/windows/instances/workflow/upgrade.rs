//! A node on its way to another version, on the machine that it is: its old agent and its services go, new and changed
//! files come, and the new agent is started once the Node was told. Whoever is killed in the middle is followed by
//! somebody who begins again.

use std::time::Duration;

use jiff::Timestamp;

use super::configure::starting;
use super::{Next, Progress, Step, Transition, Upgrade, Workflow, remove_service};
use crate::windows::instances::{Fact, FailureKind, Found, InstanceFailure};
use crate::windows::upgrade::in_place::Supplied;

/// How long its Node may take to be told, and how often it is looked at.
const TOLD: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(200);

impl Workflow {
    pub(super) fn upgrade(&self, node: String, found: Option<Found>, now: Timestamp) -> Next {
        let found = found.ok_or_else(|| lost(&node))?;
        let supplied = found.supplied.and_then(|it| it.parse::<Supplied>().ok());
        let mut upgrade = Upgrade::of(node);
        upgrade.from = found.version;
        let version = &self.grant()?.version;
        if supplied.is_some_and(|it| it.grant.version == *version) {
            return Ok(Self::await_version(upgrade, now));
        }
        let say = Step::Say("checking whether its agent is the new one");
        let steps = vec![say, Step::BringNewAgent];
        Ok((Progress::BringingAgent(upgrade), steps))
    }

    pub(super) fn clean(&self, upgrade: Upgrade) -> Transition {
        let steps = vec![
            Step::Say("stopping its old agent"),
            remove_service(),
            Step::Say("removing the services of its old version"),
            self.clean_up_for_upgrade(&upgrade.node),
        ];
        (Progress::Cleaning(upgrade), steps)
    }

    pub(super) fn copied(mut upgrade: Upgrade, old: Vec<String>, count: usize) -> Transition {
        let say = Step::Say("removing files that only its old version has");
        let mut steps = vec![say, Step::RemoveObsolete(old)];
        if upgrade.is_beside {
            let say = Step::Say("replacing the old agent with the new one");
            steps.extend([say, Step::PlaceNewAgent]);
        }
        let say = Step::Say("recording that its files are complete");
        steps.extend([say, Step::ReadNode(upgrade.node.clone())]);
        upgrade.copied = Some(count + usize::from(upgrade.is_beside));
        (Progress::Writing(upgrade), steps)
    }

    /// Its agent must not find anything else on its Node.
    pub(super) fn await_version(upgrade: Upgrade, now: Timestamp) -> Transition {
        let say = Step::Say("waiting until its Node has the new desired version");
        let read = Step::ReadNode(upgrade.node.clone());
        let progress = Progress::AwaitingVersion(upgrade, now + TOLD);
        (progress, vec![say, read])
    }

    pub(super) fn looked(
        &self,
        upgrade: Upgrade,
        until: Timestamp,
        found: Option<Found>,
        now: Timestamp,
    ) -> Next {
        let (node, version) = (&upgrade.node, &self.grant()?.version);
        let found = found.ok_or_else(|| lost(node))?;
        if found.desired_version.as_ref() == Some(version) {
            return Ok(self.upgraded(&upgrade, version, now));
        }
        if now >= until {
            let message = format!(
                "Node {node} did not get the desired version {version} within {}s",
                TOLD.as_secs()
            );
            return Err(InstanceFailure::new(FailureKind::NotToldYet, message));
        }
        let steps = vec![Step::Pause(LOOK), Step::ReadNode(node.clone())];
        Ok((Progress::AwaitingVersion(upgrade, until), steps))
    }

    fn upgraded(&self, upgrade: &Upgrade, version: &str, now: Timestamp) -> Transition {
        let files = self.supply.as_ref().map_or(0, |(_, files)| *files);
        let copied = upgrade.copied.map_or_else(
            || "its files were there already".to_owned(),
            |copied| format!("{copied} of {files} files were copied"),
        );
        let note = format!(
            ": Node {} is upgraded from {} to {version} in {:.1}s: {copied}, and its new agent runs",
            upgrade.node,
            upgrade.from.as_deref().unwrap_or("no version"),
            now.duration_since(self.began).as_secs_f64()
        );
        let steps = vec![
            Step::Say("starting its new agent"),
            self.install_service(),
            Step::RemoveLogin,
            Step::RemoveUpgrade,
            Step::Disconnect,
            Step::Remember(Fact::Started(version.to_owned())),
            starting("its new agent starts its services"),
            self.done("InstanceUpgraded", &note),
        ];
        (Progress::Ended, steps)
    }
}

pub(super) fn lost(node: &str) -> InstanceFailure {
    let message = format!("Node {node} is gone: there is nothing to upgrade");
    InstanceFailure::new(FailureKind::NodeGone, message)
}
