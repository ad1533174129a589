//! The way to one instance, and to the agent on it: who logs in, who answers, and what is asked with which
//! login.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::names::{object, windows};
use evenkeel_plan::windows::instances::workflow::AgentLogin;
use evenkeel_plan::windows::instances::{Fact, FailureKind, InstanceFailure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde::de::DeserializeOwned;

use super::{Job, api};
use crate::windows::certificates::configuring::NodeClaim;
use crate::windows::instances::login::{self, Login};
use crate::windows::instances::metrics::OpenConnection;
use crate::windows::instances::supply::Supply;
use crate::windows::ssh::{Contents, Error, Files, Key, Local, Progress, Result, Session, Target};

/// How long the API server may take to say who somebody is.
const WHO: Duration = Duration::from_mins(1);

/// An instance that was reached.
pub(super) struct Reached {
    pub(super) session: Session,
    pub(super) files: Files,
    /// The agent that is asked.
    pub(super) program: &'static str,
    _open: OpenConnection,
}

impl Job {
    pub(super) fn step(&self, message: &str) {
        tracing::info!(instance = self.name, "{message}");
        self.fleet.records.change(&self.name, |it| it.say(message));
    }

    /// Learns who the kubelets of new machines are, which the certificates controller wants to know.
    pub(super) async fn know_kubelets(&self, supply: &Supply) -> Result<(), InstanceFailure> {
        if self.fleet.knows(&supply.bootstrap) {
            return Ok(());
        }
        let who = tokio::time::timeout(WHO, login::who(&supply.bootstrap)).await;
        let who = who.unwrap_or_else(|_| Err("no answer".to_owned()));
        let who = who.map_err(|why| InstanceFailure::new(FailureKind::BootstrapLoginRefused, format!(
                "the bootstrap kubeconfig of the worker Ignition cannot log in at {}: {why}: renew it there",
                supply.server
            )))?;
        self.fleet.learn(&supply.bootstrap, who);
        Ok(())
    }

    /// Connects, as who answered the first time. Says also whether that was seen before.
    pub(super) async fn reach(&self) -> Result<(Reached, bool), InstanceFailure> {
        let keys = self.keys().await?;
        let pinned = self.fleet.host_keys.of(&self.name).await;
        let pinned = pinned.map_err(|error| api("cannot read its host key", &error))?;
        let open = self.fleet.metrics.connection();
        let mut session = Err(Error::Unreachable("it has no address".to_owned()));
        let mut reached = None;
        for address in &self.addresses {
            let target = Target {
                name: self.name.clone(),
                address: *address,
                user: self.user.clone(),
                host_key: pinned.clone(),
            };
            session = self.log_in(&target, &keys).await;
            reached = Some(*address);
            // Where nobody answers at one address of a name, somebody may at the next.
            if !matches!(session, Err(Error::Unreachable(_))) {
                break;
            }
        }
        let session = session?;
        let is_known = pinned.is_some();
        if !is_known {
            let host_keys = &self.fleet.host_keys;
            let pinned = host_keys.pin(&self.name, Some(&session.host_key)).await;
            pinned.map_err(|error| api("cannot store its host key", &error))?;
        }
        let records = &self.fleet.records;
        records.learn(&self.name, Fact::Reached(reached));
        let files = session.files().await?;
        files.must_be_windows().await?;
        let reached = Reached {
            session,
            files,
            program: windows::AGENT,
            _open: open,
        };
        Ok((reached, is_known))
    }

    /// Connects at one address, with whichever key is taken.
    async fn log_in(&self, target: &Target, keys: &[Key]) -> Result<Session> {
        let mut session = Err(Error::Key("there is no key".to_owned()));
        for key in keys {
            session = self.fleet.ssh.connect(target, key).await;
            match &session {
                // The instance may still know the key before this one.
                Err(Error::Refused { .. }) => {}
                Ok(_) => {
                    self.fleet.works(key);
                    break;
                }
                Err(_) => break,
            }
        }
        session
    }

    /// The key of the Secret, and the last one that worked.
    async fn keys(&self) -> Result<Vec<Key>, InstanceFailure> {
        let secrets: Api<Secret> =
            Api::namespaced(self.fleet.client.clone(), &self.fleet.namespace);
        let found = secrets.get_opt(object::CLOUD_PRIVATE_KEY).await;
        let found = found.map_err(|error| api("cannot read the SSH key", &error))?;
        let data = found.and_then(|it| it.data).unwrap_or_default();
        let text = data.get(object::CLOUD_PRIVATE_KEY_FILE);
        let key = Key::read(text.map(|it| it.0.as_slice()))?;
        let before = self.fleet.worked_before().filter(|it| *it != key);
        Ok(std::iter::once(key).chain(before).collect())
    }

    /// Brings a login of ten minutes to the instance. If the machine may be a Node, whoever asks for a certificate for that
    /// with it is heard until the claim ends.
    pub(super) async fn bring_login(
        &self,
        reached: &Reached,
        supply: &Supply,
        of: AgentLogin,
    ) -> Result<Option<NodeClaim>, InstanceFailure> {
        let fleet = &self.fleet;
        let authority = supply.authority.as_deref();
        let made =
            login::of_agent(&fleet.client, &fleet.namespace, &supply.server, authority).await;
        let Login { text, credential } =
            made.map_err(|error| api("cannot create a login for its agent", &error))?;
        let claim = of.node.map(|node| {
            let claim = fleet
                .configuring
                .begin(&self.name, &node, of.joins, credential);
            let taken = format!("another machine claims to be Node {node}, too");
            claim.ok_or_else(|| InstanceFailure::new(FailureKind::NodeNameTaken, taken))
        });
        let claim = claim.transpose()?;
        let bytes: Arc<[u8]> = text.into_bytes().into();
        let local = Local {
            place: windows::LOGIN.to_owned(),
            // It is not resumed: every one is another.
            checksum: Timestamp::now().as_nanosecond().to_string(),
            size: u64::try_from(bytes.len()).unwrap_or_default(),
            contents: Contents::Bytes(bytes),
        };
        reached.files.put(&local, &Progress::default()).await?;
        Ok(claim)
    }
}

impl Reached {
    /// Asks the agent on the instance.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        question: &str,
        limit: Duration,
    ) -> Result<T> {
        let line = format!("{} {question}", self.program);
        self.session.ask(&line, limit).await
    }
}
