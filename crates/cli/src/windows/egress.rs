//! How a Windows node reaches the world: the proxy that its services are given, without user and password, and whom
//! it trusts on the way.

use std::collections::BTreeMap;

use anyhow::Result;
use evenkeel_api::names::annotation;
use evenkeel_api::names::object::EXTENSIONS_NAMESPACE;
use evenkeel_api::readiness::{AGENT_EXTENSION, CertificateReport, Report};
use evenkeel_api::windows::services::Services;
use evenkeel_api::windows::version::StatedVersion;
use evenkeel_plan::fleet::node::Node;
use evenkeel_plan::windows::proxy::ProxySettings;
use serde_json::{Value, json};

use crate::cluster::{Cluster, core_kind, leases_kind};

/// What is known of that.
pub(crate) struct Egress {
    proxy: Proxy,
    certificates: Option<CertificateReport>,
}

enum Proxy {
    /// The node runs with this.
    Runs(ProxySettings),
    /// The node runs with other settings, and this is desired.
    Waits(ProxySettings),
    /// It cannot be read, and why.
    Unknown(String),
}

impl Egress {
    /// That of a managed Windows node; nothing for any other.
    pub(crate) async fn of(
        cluster: &Cluster,
        namespace: &str,
        node: &Node,
    ) -> Result<Option<Self>> {
        let Some(windows) = &node.windows else {
            return Ok(None);
        };
        let Some(version) = windows
            .version
            .as_ref()
            .or(windows.desired_version.as_ref())
        else {
            return Ok(None);
        };
        let hash = windows.current_services.as_deref();
        Ok(Some(Self {
            proxy: proxy(cluster, namespace, version, hash).await?,
            certificates: certificates(cluster, &node.name).await?,
        }))
    }

    /// In a line each.
    pub(crate) fn lines(&self) -> Vec<String> {
        let shown = |settings: &ProxySettings| match settings.to_string() {
            none if none.is_empty() => "none".to_owned(),
            some => some,
        };
        let proxy = match &self.proxy {
            Proxy::Runs(settings) => format!("proxy: {}", shown(settings)),
            Proxy::Waits(settings) => format!(
                "proxy: {} (pending: the node does not run these services yet)",
                shown(settings)
            ),
            Proxy::Unknown(why) => format!("proxy: unknown: {why}"),
        };
        let certificates = self.certificates.map(|it| {
            let CertificateReport {
                ours,
                missing,
                foreign,
            } = it;
            format!("trusted certificates: {ours} managed, {missing} missing, {foreign} foreign")
        });
        [proxy].into_iter().chain(certificates).collect()
    }

    pub(crate) fn document(&self) -> Value {
        let by_name = |settings: &ProxySettings| -> BTreeMap<&str, String> {
            settings.shown().into_iter().collect()
        };
        let (state, variables, why) = match &self.proxy {
            Proxy::Runs(settings) => ("runs", Some(by_name(settings)), None),
            Proxy::Waits(settings) => ("waits", Some(by_name(settings)), None),
            Proxy::Unknown(why) => ("unknown", None, Some(why)),
        };
        json!({
            "proxy": { "state": state, "variables": variables, "why": why },
            "certificates": self.certificates,
        })
    }
}

/// What the services of a node of this version say of a proxy; it runs those with that `hash`.
async fn proxy(
    cluster: &Cluster,
    namespace: &str,
    version: &StatedVersion,
    hash: Option<&str>,
) -> Result<Proxy> {
    let name = match version.version() {
        Ok(version) => version.config_map_name(),
        Err(error) => return Ok(Proxy::Unknown(error.to_string())),
    };
    let maps = cluster.inside(namespace, &core_kind("ConfigMap", "configmaps"));
    let found = match maps.get_opt(&name).await {
        Ok(found) => found,
        // Whoever may only look at nodes still sees all the rest.
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let why = format!(
                "you are not allowed to read ConfigMaps in namespace {namespace}: ask your administrator for the ClusterRole evenkeel-support there"
            );
            return Ok(Proxy::Unknown(why));
        }
        Err(error) => return Err(cluster.explain(&format!("read ConfigMap {name}"), error)),
    };
    let Some(found) = found else {
        let why = format!(
            "ConfigMap {namespace}/{name} does not exist: give the namespace that Evenkeel is installed in with --namespace"
        );
        return Ok(Proxy::Unknown(why));
    };
    let data = serde_json::from_value(found.data["data"].clone()).unwrap_or_default();
    // What is wrong with it may repeat parts of it.
    let Ok((services, _)) = Services::from_data(&name, &data) else {
        return Ok(Proxy::Unknown(format!(
            "ConfigMap {namespace}/{name} is invalid"
        )));
    };
    let settings = ProxySettings::declared_in(&services);
    Ok(if hash == Some(services.hash().as_str()) {
        Proxy::Runs(settings)
    } else {
        Proxy::Waits(settings)
    })
}

/// What the node's agent says of its trusted roots.
async fn certificates(cluster: &Cluster, node: &str) -> Result<Option<CertificateReport>> {
    let leases = cluster.inside(EXTENSIONS_NAMESPACE, &leases_kind());
    let name = format!("{node}.{AGENT_EXTENSION}");
    let found = leases.get_opt(&name).await;
    let found = found.map_err(|error| cluster.explain("read leases", error))?;
    let annotations = found.and_then(|it| it.metadata.annotations);
    let report = annotations.and_then(|mut it| it.remove(annotation::REPORT));
    Ok(report.and_then(|it| Report::from_json(&it).ok()?.certificates))
}
