//! The agent's own Lease.

use std::time::{Duration, SystemTime};

use evenkeel_api::names::annotation;
use evenkeel_api::names::object::EXTENSIONS_NAMESPACE;
use evenkeel_api::readiness::{AGENT_EXTENSION, Report};
use evenkeel_plan::readiness::{Moment, Renewal};
use k8s_openapi::api::coordination::v1::Lease as LeaseObject;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;

/// How long the API server may take for an answer. A connection that hangs is given up with the
/// question, and the next one is asked on another.
pub(super) const ANSWER: Duration = Duration::from_secs(3);
/// How long after a failure it is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// The Lease, as it was written last.
pub(super) struct Lease {
    api: Api<LeaseObject>,
    node: String,
    name: String,
    /// Its version; nothing if it has to be read first.
    version: Option<String>,
    written: Option<Report>,
    renewal: Renewal,
    /// When it could not be written last; nothing if it could.
    failed: Option<Moment>,
}

/// Now, by this machine's clock.
pub(super) fn clock() -> String {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let now = k8s_openapi::jiff::Timestamp::from_microsecond(
        i64::try_from(since.as_micros()).unwrap_or_default(),
    );
    let now = now.unwrap_or_default();
    now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

impl Lease {
    pub(super) fn new(client: &Client, node: &str) -> Self {
        Self {
            api: Api::namespaced(client.clone(), EXTENSIONS_NAMESPACE),
            node: node.to_owned(),
            name: format!("{node}.{AGENT_EXTENSION}"),
            version: None,
            written: None,
            renewal: Renewal::of(node),
            failed: None,
        }
    }

    /// Writes it if something has changed, or it is time; from now on it is renewed every `period`.
    pub(super) async fn keep(
        &mut self,
        report: &Report,
        period: Duration,
        now: &impl Fn() -> Moment,
    ) {
        self.renewal.set_period(period, now());
        let is_news = self.written.as_ref() != Some(report);
        let is_due = match self.failed {
            Some(at) => now().since(at) >= AGAIN,
            None => is_news || self.renewal.is_due(now()),
        };
        if !is_due {
            return;
        }
        match tokio::time::timeout(ANSWER, self.write(report)).await {
            Ok(Ok(())) => {
                self.failed = None;
                self.renewal.written(now());
                self.written = Some(report.clone());
            }
            Ok(Err(error)) => self.give_up(&error.to_string(), now()),
            Err(_) => self.give_up("the API server did not answer", now()),
        }
    }

    fn give_up(&mut self, why: &str, now: Moment) {
        if self.failed.is_none() {
            tracing::warn!(
                lease = self.name,
                "cannot write the node report, will retry: {why}"
            );
        }
        self.failed = Some(now);
        self.renewal.failed();
        self.version = None;
    }

    async fn write(&mut self, report: &Report) -> kube::Result<()> {
        if self.version.is_none() {
            let found = self.api.get_opt(&self.name).await?;
            self.version = found.and_then(|it| it.metadata.resource_version);
        }
        let lease = json!({
            "metadata": {
                "name": self.name,
                "resourceVersion": self.version,
                "annotations": { annotation::REPORT: report.to_json() },
            },
            "spec": {
                "holderIdentity": self.node,
                "leaseDurationSeconds": self.renewal.lasts().as_secs(),
                "renewTime": clock(),
            },
        });
        let lease: LeaseObject = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
        let parameters = PostParams::default();
        let written = if self.version.is_some() {
            self.api.replace(&self.name, &parameters, &lease).await?
        } else {
            self.api.create(&parameters, &lease).await?
        };
        self.version = written.metadata.resource_version;
        Ok(())
    }
}
