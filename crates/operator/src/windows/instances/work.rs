//! The work on one instance: from a bare machine to a node, and back. Each step can be done again, and is
//! told in the record of the instance before it begins.

mod copy;
mod node;
mod reach;
mod secure;
mod upgrade;

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use evenkeel_api::names::{annotation, windows};
use evenkeel_api::notice::Notice;
use evenkeel_plan::excerpt::excerpt;
use evenkeel_plan::windows::instances::{FailureKind, InstanceFailure, InstanceState, Work};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use self::reach::{AgentCommand, Reached};
use super::Fleet;
use super::supply::Supply;
use crate::windows::ssh::{Error, Kind};

/// How long a question to the agent may take.
const QUESTION: Duration = Duration::from_mins(1);
/// How long a machine may take to become a node, and to be none any more.
const BOOTSTRAP: Duration = Duration::from_mins(15);
const CLEANUP: Duration = Duration::from_mins(10);
/// How long a machine may take to ask for a login and to get it.
const LOG_IN: Duration = Duration::from_mins(3);

/// What an agent says of its machine.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct About {
    host_name: String,
    node: Option<String>,
    services: Vec<String>,
}

/// What becomes of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// What is to be done to it is done.
    Done,
    /// Nobody can reach it any more.
    Abandoned,
    /// Nothing of ours is on it, or it goes with all that is on it.
    Forgotten,
}

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
        let work = async {
            match self.work {
                Work::Configure => self.configure().await,
                Work::Restore => self.restore().await,
                Work::LogIn => self.bring_login().await,
                Work::Upgrade => self.upgrade().await,
                Work::Deconfigure => self.deconfigure().await,
            }
        };
        let done = tokio::time::timeout(self.limit, work).await;
        done.unwrap_or_else(|_| Err(self.slow()))
    }

    /// It took too long, though every step went on: others go first now.
    fn slow(&self) -> InstanceFailure {
        let record = self.fleet.records.get(&self.name).unwrap_or_default();
        InstanceFailure {
            category: FailureKind::InstanceSlow,
            message: format!(
                "did not finish within {}s; the last step was: {}. Copied files stay, and the next attempt continues from there. Check its network and load, or raise --instance-timeout",
                self.limit.as_secs(),
                record.message,
            ),
        }
    }

    /// Copy the payload, `bootstrap`, tell the Node what to run, install the agent's service.
    async fn configure(&self) -> Result<(), InstanceFailure> {
        let supply = self.fleet.supply()?;
        self.know_kubelets(&supply).await?;
        let reached = self.reach().await?;
        self.touch().await?;
        let about = self.supply(&reached, &supply).await?;
        let node = about.node.clone();
        let node = node.unwrap_or_else(|| about.host_name.to_lowercase());
        let exists = self.own_node(&node).await?.is_some();
        self.note_node(&node).await?;
        let mut services = about.services.iter();
        let has_agent = services.any(|it| it.eq_ignore_ascii_case(windows::AGENT_SERVICE));
        if has_agent && !exists {
            // Somebody deleted the Node: the kubelet makes it again when it starts anew.
            self.step("starting over: its Node is gone");
            self.agent::<serde_json::Value>(&reached, "service remove", QUESTION)
                .await?;
            let cleanup = AgentCommand::CleanupForUpgrade;
            let (line, _claim) = self
                .with_login(&reached, &supply, Some(&node), &cleanup)
                .await?;
            self.agent::<serde_json::Value>(&reached, &line, CLEANUP)
                .await?;
        }
        if !has_agent || !exists {
            self.step("starting its bootstrap services, and waiting for its Node");
            let bootstrap = AgentCommand::Bootstrap {
                version: supply.version.clone(),
                services: supply.hash.clone(),
            };
            let (line, _claim) = self
                .with_login(&reached, &supply, Some(&node), &bootstrap)
                .await?;
            let said: Bootstrapped = self.agent(&reached, &line, BOOTSTRAP).await?;
            if said.node != node {
                return Err(another_name(&node, &said.node));
            }
        }
        // Its login has done its work, and lasts only minutes.
        _ = reached.files.remove(windows::LOGIN).await;
        self.step("writing the desired version on its Node");
        self.annotate(&node, &supply).await?;
        self.step("installing its agent's service");
        let line = format!("service install --namespace {}", self.fleet.namespace);
        self.agent::<serde_json::Value>(&reached, &line, QUESTION)
            .await?;
        reached.session.close().await;
        self.fleet.records.change(&self.name, |it| {
            it.enter(
                InstanceState::Starting,
                "its agent starts its services",
                Timestamp::now(),
            );
            it.started = Some(supply.version.clone());
        });
        let note = format!(
            "instance {} is configured as Node {node} and its agent runs",
            self.name
        );
        self.fleet
            .tell(&self.name, Notice::normal("InstanceConfigured", note));
        Ok(())
    }

    /// Brings files again that the node's own store does not have.
    async fn restore(&self) -> Result<(), InstanceFailure> {
        let supply = self.fleet.supply()?;
        let reached = self.reach().await?;
        let brought = self.copy(&reached, &supply.files).await?;
        reached.session.close().await;
        self.fleet.records.change(&self.name, |it| {
            it.enter(
                InstanceState::Starting,
                "its missing files are copied",
                Timestamp::now(),
            );
        });
        let note = format!(
            "instance {}: copied {brought} files that were missing on its node",
            self.name
        );
        self.fleet
            .tell(&self.name, Notice::normal("FilesRestored", note));
        Ok(())
    }

    /// Brings its agent a new login: the old one has ended, while the machine was off or could not renew it.
    async fn bring_login(&self) -> Result<(), InstanceFailure> {
        let supply = self.fleet.supply()?;
        let record = self.fleet.records.get(&self.name).unwrap_or_default();
        let node = record.node.unwrap_or_default();
        let reached = self.reach().await?;
        self.own_node(&node).await?;
        self.step("creating a new login for its agent");
        let (line, claim) = self
            .with_login(&reached, &supply, Some(&node), &AgentCommand::Login)
            .await?;
        let said: LoggedIn = self.agent(&reached, &line, LOG_IN).await?;
        drop(claim);
        _ = reached.files.remove(windows::LOGIN).await;
        reached.session.close().await;
        self.fleet.records.change(&self.name, |it| {
            let message = "its agent has a new login";
            it.enter(InstanceState::Starting, message, Timestamp::now());
            it.login_ends = Some(said.ends);
        });
        let note = format!(
            "instance {}: the login of the agent of Node {node} had expired: it has a new one",
            self.name
        );
        self.fleet
            .tell(&self.name, Notice::normal("AgentLoggedIn", note));
        Ok(())
    }

    /// Stop the agent, `cleanup`, take the files away, forget the host key.
    async fn deconfigure(&self) -> Result<(), InstanceFailure> {
        let record = self.fleet.records.get(&self.name).unwrap_or_default();
        let reached = self.reach().await?;
        let supply = self.fleet.supply().ok();
        let agent = reached.files.kind(windows::AGENT).await;
        let agent = agent.map_err(|error| problem(&error))?;
        // Nothing is run of which nobody knows what it is, unless there is nothing else and the folder is ours.
        if supply.is_some() || agent != Kind::File {
            self.copy_agent(&reached, &self.fleet.supply()?).await?;
        }
        let about = self.prepare(&reached).await?;
        let host = about.host_name.to_lowercase();
        // What we remember counts; what the machine says, only if nobody knows better.
        let claimed = record.node.or(about.node).unwrap_or(host);
        let node = match self.own_node(&claimed).await {
            Ok(_) => Some(claimed.as_str()),
            Err(problem) if problem.category == FailureKind::ApiFailed => return Err(problem),
            Err(problem) => {
                tracing::warn!(instance = self.name, "{}", problem.message);
                None
            }
        };
        if !self.passes_the_point_of_no_return().await? {
            reached.session.close().await;
            return Ok(());
        }
        self.step("stopping its agent");
        self.agent::<serde_json::Value>(&reached, "service remove", QUESTION)
            .await?;
        self.step("removing services, variables and certificates");
        let (line, claim) = if let Some(supply) = &supply {
            let cleanup = AgentCommand::Cleanup;
            self.with_login(&reached, supply, node, &cleanup).await?
        } else {
            let own = format!("{}kubeconfig", windows::OWN_STATE);
            let namespace = &self.fleet.namespace;
            let line = format!("cleanup --kubeconfig {own} --namespace {namespace}");
            (line, None)
        };
        self.agent::<serde_json::Value>(&reached, &line, CLEANUP)
            .await?;
        drop(claim);
        self.step("removing its files");
        self.remove_files(&reached, supply.as_ref()).await?;
        reached.session.close().await;
        if let Some(node) = node {
            self.delete_node(node).await?;
        }
        self.let_go().await?;
        let note = format!("instance {} is cleaned up and no longer a node", self.name);
        self.fleet
            .tell(&self.name, Notice::normal("InstanceRemoved", note));
        Ok(())
    }

    /// Unless it was listed again meanwhile, it is taken out to the end from here, also by whoever comes after us.
    async fn passes_the_point_of_no_return(&self) -> Result<bool, InstanceFailure> {
        if !self.fleet.removals.has(&self.name) {
            tracing::info!(instance = self.name, "listed again: it stays");
            return Ok(false);
        }
        let records = &self.fleet.records;
        records.change(&self.name, |it| it.is_going = true);
        let saved = records.save().await;
        saved.map_err(|error| api("cannot write the status of the instance", &error))?;
        Ok(true)
    }

    async fn remove_files(
        &self,
        reached: &Reached,
        supply: Option<&Supply>,
    ) -> Result<(), InstanceFailure> {
        let files = &reached.files;
        for folder in [windows::PAYLOAD, windows::LOGS] {
            files
                .remove_folder(folder)
                .await
                .map_err(|error| problem(&error))?;
        }
        let made = supply.map(|it| it.folders.clone()).unwrap_or_default();
        let logs = [r"C:\var\log".to_owned(), r"C:\var".to_owned()];
        for folder in made.iter().rev().chain(&logs) {
            files
                .remove_if_empty(folder)
                .await
                .map_err(|error| problem(&error))?;
        }
        Ok(())
    }

    /// Nobody can reach it any more: its Node goes, and what stays behind is told.
    pub(crate) async fn abandon(&self) -> Result<(), InstanceFailure> {
        let record = self.fleet.records.get(&self.name).unwrap_or_default();
        if let Some(node) = &record.node {
            self.delete_node(node).await?;
        }
        self.let_go().await?;
        let note = format!(
            "instance {} cannot be reached ({}), so its Node {} was deleted. Evenkeel's services, the folders {} and {}, environment variables and certificates are still on it. If it comes back, list it and remove it again, or recreate it",
            self.name,
            record.message,
            record.node.as_deref().unwrap_or("(none)"),
            windows::PAYLOAD,
            windows::LOGS,
        );
        self.fleet
            .tell(&self.name, Notice::warning("InstanceAbandoned", note));
        Ok(())
    }

    /// Forgets the instance, and who answered there.
    pub(crate) async fn let_go(&self) -> Result<(), InstanceFailure> {
        let forgotten = self.fleet.host_keys.pin(&self.name, None).await;
        forgotten.map_err(|error| api("cannot remove its host key", &error))?;
        self.fleet.records.forget(&self.name);
        Ok(())
    }
}

#[derive(Debug, Deserialize)]
struct Bootstrapped {
    node: String,
}

#[derive(Debug, Deserialize)]
struct LoggedIn {
    ends: Timestamp,
}

impl Job {
    /// Tells the Node what to run, and what it was made of.
    async fn annotate(&self, node: &str, supply: &Supply) -> Result<(), InstanceFailure> {
        let annotations = json!({
            annotation::WINDOWS_DESIRED_VERSION: supply.version,
            annotation::DESIRED_SERVICES: supply.hash,
            annotation::INSTANCE: format!("{}@{}", self.user, self.name),
        });
        let what = "cannot write the desired version on its Node";
        self.write_on_node(node, &annotations, what).await
    }
}

/// Machines write parts of it.
fn problem(error: &Error) -> InstanceFailure {
    InstanceFailure {
        category: error.category(),
        message: excerpt(&error.to_string()),
    }
}

fn another_name(node: &str, said: &str) -> InstanceFailure {
    InstanceFailure {
        category: FailureKind::NodeNameTaken,
        message: format!(
            "the machine claimed to be Node {node}, and now claims to be {:?}: its kubelet must use the computer name",
            excerpt(said)
        ),
    }
}

fn api(what: &str, error: &kube::Error) -> InstanceFailure {
    InstanceFailure {
        category: FailureKind::ApiFailed,
        message: format!("{what}: {error}"),
    }
}
