//! A node on its way to another version, on the machine that it is: its old agent and its services go, new and
//! changed files come, and the new agent is started once the Node was told. Whoever is killed in the middle is
//! followed by somebody who begins again: every step finds what the one before has left.

use std::time::{Duration, Instant};

use evenkeel_api::names::{annotation, windows};
use evenkeel_api::notice::Notice;
use evenkeel_plan::windows::instances::{FailureKind, InstanceFailure, InstanceState};
use evenkeel_plan::windows::upgrade::in_place::Supplied;
use evenkeel_plan::windows::windows_pool::Grant;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde::Deserialize;
use serde_json::json;

use super::copy::make_folders;
use super::reach::{AgentCommand, Reached};
use super::{CLEANUP, Job, QUESTION, problem};
use crate::windows::instances::supply::Supply;
use crate::windows::ssh::Local;

/// How long its Node may take to be told, and how often that is looked at.
const TOLD: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(200);

/// What the agent says after it has taken the services of a version away.
#[derive(Debug, Deserialize)]
struct Cleaned {
    /// Payload files of that version.
    #[serde(default)]
    files: Vec<String>,
}

impl Job {
    /// Stop the agent, `cleanup --upgrade` by the new one, copy what differs, start the new agent when the Node was told.
    pub(super) async fn upgrade(&self) -> Result<(), InstanceFailure> {
        let start = Instant::now();
        let supply = self.fleet.supply()?;
        let record = self.fleet.records.get(&self.name).unwrap_or_default();
        let name = record.node.ok_or_else(|| lost(&self.name))?;
        self.touch().await?;
        let mut reached = self.reach().await?;
        let node = self.own_node(&name).await?;
        let node = node.ok_or_else(|| lost(&name))?;
        let from = node.annotations().get(annotation::WINDOWS_VERSION).cloned();
        let mut copied = None;
        if supplied(&node).is_none_or(|it| it.version != supply.version) {
            self.take_new_agent(&mut reached, &supply).await?;
            copied = Some(self.exchange(&reached, &supply, &name).await?);
            self.put_new_agent_in_place(&mut reached).await?;
            self.step("recording that its files are complete");
            self.note_supplied(&name, &supply).await?;
        }
        self.step("waiting until its Node has the new desired version");
        self.until_told(&name, &supply.version).await?;
        self.step("starting its new agent");
        let line = format!("service install --namespace {}", self.fleet.namespace);
        self.agent::<serde_json::Value>(&reached, &line, QUESTION)
            .await?;
        for leftover in [windows::LOGIN, &format!("{}.old", windows::AGENT)] {
            _ = reached.files.remove(leftover).await;
        }
        _ = reached.files.remove_folder(windows::UPGRADE).await;
        reached.session.close().await;
        self.fleet.records.change(&self.name, |it| {
            let message = "its new agent starts its services";
            it.enter(InstanceState::Starting, message, Timestamp::now());
            it.started = Some(supply.version.clone());
        });
        let copied = copied.map_or_else(
            || "its files were there already".to_owned(),
            |copied| format!("{copied} of {} files were copied", supply.files.len()),
        );
        let note = format!(
            "instance {}: Node {name} is upgraded from {} to {} in {:.1}s: {copied}, and its new agent runs",
            self.name,
            from.as_deref().unwrap_or("no version"),
            supply.version,
            start.elapsed().as_secs_f64()
        );
        self.fleet
            .tell(&self.name, Notice::normal("InstanceUpgraded", note));
        Ok(())
    }

    /// Brings the new agent beside the one that is there, and asks that one from now on. If it is the same,
    /// there is nothing to bring.
    async fn take_new_agent(
        &self,
        reached: &mut Reached,
        supply: &Supply,
    ) -> Result<(), InstanceFailure> {
        let agent = supply.agent()?;
        self.step("checking whether its agent is the new one");
        if self.has(reached, agent).await? {
            return Ok(());
        }
        let coexistence = Local {
            place: windows::NEW_AGENT.to_owned(),
            ..agent.clone()
        };
        reached.program = windows::NEW_AGENT;
        if self.has(reached, &coexistence).await? {
            return Ok(());
        }
        self.step("copying the new agent next to the old one");
        self.put_whole(reached, &coexistence).await
    }

    /// Takes the old services out, and brings the new files: says how many were copied.
    async fn exchange(
        &self,
        reached: &Reached,
        supply: &Supply,
        node: &str,
    ) -> Result<usize, InstanceFailure> {
        self.step("stopping its old agent");
        self.agent::<serde_json::Value>(reached, "service remove", QUESTION)
            .await?;
        self.step("removing the services of its old version");
        let cleanup = AgentCommand::CleanupForUpgrade;
        let (line, claim) = self
            .with_login(reached, supply, Some(node), &cleanup)
            .await?;
        let cleaned: Cleaned = self.agent(reached, &line, CLEANUP).await?;
        drop(claim);
        self.step("copying files that are new or changed");
        let agent = supply.agent()?;
        // The new agent is there already, beside its place or in it.
        let is_beside = reached.program == windows::NEW_AGENT;
        let others: Vec<Local> = supply
            .files
            .iter()
            .filter(|it| it.place != agent.place)
            .cloned()
            .collect();
        let copied = self.copy(reached, &others).await?;
        make_folders(reached, supply).await?;
        self.step("removing files that only its old version has");
        for file in obsolete(&cleaned.files, &supply.files) {
            let removed = reached.files.remove(&file).await;
            removed.map_err(|error| problem(&error))?;
            remove_empty_folders(reached, &file).await?;
        }
        Ok(copied + usize::from(is_beside))
    }

    async fn put_new_agent_in_place(&self, reached: &mut Reached) -> Result<(), InstanceFailure> {
        if reached.program == windows::NEW_AGENT {
            self.step("replacing the old agent with the new one");
            let files = &reached.files;
            let placed = files.replace(windows::NEW_AGENT, windows::AGENT).await;
            placed.map_err(|error| problem(&error))?;
            reached.program = windows::AGENT;
        }
        Ok(())
    }

    /// Says on the Node whose files its machine has: it is told what to run after that.
    async fn note_supplied(&self, node: &str, supply: &Supply) -> Result<(), InstanceFailure> {
        let supplied = Supplied {
            grant: Grant {
                version: supply.version.clone(),
                hash: supply.hash.clone(),
            },
            at: Timestamp::now(),
        };
        let annotations = json!({
            annotation::SUPPLIED: supplied.to_string(),
            annotation::INSTANCE: format!("{}@{}", self.user, self.name),
        });
        let what = "cannot record on its Node that its files are complete";
        self.write_on_node(node, &annotations, what).await
    }

    /// Waits until the Node is told `version`: its agent must not find anything else there.
    async fn until_told(&self, node: &str, version: &str) -> Result<(), InstanceFailure> {
        let until = Instant::now() + TOLD;
        loop {
            let found = self.node(node).await?.ok_or_else(|| lost(node))?;
            let told = found.annotations().get(annotation::WINDOWS_DESIRED_VERSION);
            if told.map(String::as_str) == Some(version) {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(InstanceFailure {
                    category: FailureKind::NotToldYet,
                    message: format!(
                        "Node {node} did not get the desired version {version} within {}s",
                        TOLD.as_secs()
                    ),
                });
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Folders of the payload that have nothing left in them go, too.
async fn remove_empty_folders(reached: &Reached, file: &str) -> Result<(), InstanceFailure> {
    let mut folder = file;
    while let Some((above, _)) = folder.rsplit_once('\\') {
        if !is_below(above, windows::PAYLOAD) {
            return Ok(());
        }
        let removed = reached.files.remove_if_empty(above).await;
        removed.map_err(|error| problem(&error))?;
        folder = above;
    }
    Ok(())
}

/// What was supplied to the machine of a Node.
fn supplied(node: &Node) -> Option<Grant> {
    let text = node.annotations().get(annotation::SUPPLIED)?;
    let supplied: Supplied = text.parse().ok()?;
    Some(supplied.grant)
}

/// Files of the payload before this one that this one does not have. Only what lies where payloads do is ever removed.
fn obsolete(before: &[String], now: &[Local]) -> Vec<String> {
    let plain = |path: &str| path.replace('/', r"\").to_lowercase();
    let now: Vec<String> = now.iter().map(|it| plain(&it.place)).collect();
    let paths = before.iter().map(|path| path.replace('/', r"\"));
    let gone = paths.filter(|path| !now.contains(&plain(path)));
    gone.filter(|path| is_below(path, windows::PAYLOAD) && !path.contains(r"\..\"))
        .filter(|path| !is_below(path, windows::OWN_STATE) && !is_below(path, windows::STORE))
        .collect()
}

fn is_below(path: &str, folder: &str) -> bool {
    let start = path.get(..folder.len());
    path.len() > folder.len() && start.is_some_and(|it| it.eq_ignore_ascii_case(folder))
}

fn lost(node: &str) -> InstanceFailure {
    InstanceFailure {
        category: FailureKind::NodeGone,
        message: format!("Node {node} is gone: there is nothing to upgrade"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::windows::ssh::Contents;

    #[test]
    fn only_payload_files_that_the_new_version_does_not_have_are_removed() {
        let local = |place: &str| Local {
            place: place.to_owned(),
            checksum: String::new(),
            size: 0,
            contents: Contents::Bytes(Vec::new().into()),
        };
        let now = [local(r"C:\k\kubelet.exe"), local(r"C:\k\cni\new.exe")];
        let before = [
            r"c:/K/Kubelet.exe",
            r"C:\k\cni\old.exe",
            r"C:\k\state\record",
            r"C:\k\store\abc",
            r"C:\Windows\system32\kernel32.dll",
            r"C:\k\..\Windows\x",
        ];
        let before = before.map(str::to_owned);
        assert_eq!(obsolete(&before, &now), [r"C:\k\cni\old.exe"]);
    }
}
