//! How to reach a control plane, and as whom: a value that becomes a client, a file, or the same
//! login through another address.

use std::path::Path;

use k8s_openapi::ByteString;
use kube::config::{KubeConfigOptions, Kubeconfig as Loaded};
use serde_json::{Value, json};

use crate::{Doing, Error, Result};

/// An address, the authority to trust there, and a login.
#[derive(Debug, Clone)]
pub struct Kubeconfig(Loaded);

impl Kubeconfig {
    /// A login with a client certificate.
    pub fn with_certificate(
        server: &str,
        authority: &str,
        certificate: &str,
        key: &str,
    ) -> Result<Self> {
        let user = json!({
            "client-certificate-data": base64(certificate)?,
            "client-key-data": base64(key)?,
        });
        Self::new(server, authority, &user)
    }

    /// A login with a bearer token.
    pub fn with_token(server: &str, authority: &str, token: &str) -> Result<Self> {
        Self::new(server, authority, &json!({ "token": token }))
    }

    fn new(server: &str, authority: &str, user: &Value) -> Result<Self> {
        let whole = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "testbed",
                "cluster": { "server": server, "certificate-authority-data": base64(authority)? },
            }],
            "users": [{ "name": "testbed", "user": user }],
            "contexts": [{
                "name": "testbed",
                "context": { "cluster": "testbed", "user": "testbed" },
            }],
            "current-context": "testbed",
        });
        serde_json::from_value(whole)
            .map(Self)
            .doing(|| "cannot put a kubeconfig together")
    }

    /// Reads the file at `path`.
    pub fn read(path: &Path) -> Result<Self> {
        Loaded::read_from(path)
            .map(Self)
            .doing(|| format!("cannot read the kubeconfig {}", path.display()))
    }

    /// The text of a kubeconfig file (YAML, of the kind that is also JSON).
    pub fn as_yaml(&self) -> Result<String> {
        serde_json::to_string_pretty(&self.0).doing(|| "cannot serialize a kubeconfig")
    }

    /// Writes the file at `path`.
    pub fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, self.as_yaml()?)
            .doing(|| format!("cannot write the kubeconfig {}", path.display()))
    }

    /// The URL of the server.
    pub fn server(&self) -> &str {
        self.0
            .clusters
            .iter()
            .find_map(|named| named.cluster.as_ref()?.server.as_deref())
            .unwrap_or_default()
    }

    /// The same login at another `address`: a host, which keeps the port, or `host:port`.
    #[must_use]
    pub fn at(&self, address: &str) -> Self {
        let port = self.server().rsplit(':').next().unwrap_or_default();
        let server = if address.contains(':') {
            format!("https://{address}")
        } else {
            format!("https://{address}:{port}")
        };
        self.at_url(&server)
    }

    /// The same login at another server.
    #[must_use]
    pub(crate) fn at_url(&self, server: &str) -> Self {
        let mut moved = self.clone();
        for cluster in &mut moved.0.clusters {
            if let Some(cluster) = cluster.cluster.as_mut() {
                cluster.server = Some(server.to_owned());
            }
        }
        moved
    }

    /// The same server, with a client certificate instead of this login.
    pub(crate) fn logged_in_with(&self, certificate: &str, key: &str) -> Result<Self> {
        let login = Self::with_certificate("", "", certificate, key)?;
        let mut changed = self.clone();
        changed
            .0
            .auth_infos
            .iter_mut()
            .zip(login.0.auth_infos)
            .for_each(|(mine, theirs)| mine.auth_info = theirs.auth_info);
        Ok(changed)
    }

    /// A client for the calling runtime. It repeats nothing by itself: a test sees every answer the
    /// server gives, also a 429.
    pub async fn client(&self) -> Result<kube::Client> {
        let options = KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(self.0.clone(), &options)
            .await
            .doing(|| "cannot use a kubeconfig")?;
        config.default_retry = false;
        // The proxy of a machine's environment is for the world outside: a real kubelet asks NO_PROXY.
        config.proxy_url = None;
        kube::Client::try_from(config)
            .doing(|| format!("cannot make a client for {}", self.server()))
    }
}

fn base64(text: &str) -> Result<Value> {
    serde_json::to_value(ByteString(text.as_bytes().to_vec()))
        .map_err(|error| Error::because("cannot encode a certificate", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_address_keeps_the_port_unless_it_brings_one() -> Result<()> {
        let config = Kubeconfig::with_token("https://127.0.0.1:6443", "authority", "token")?;
        assert_eq!(config.at("198.18.0.1").server(), "https://198.18.0.1:6443");
        assert_eq!(config.at("127.0.0.1:80").server(), "https://127.0.0.1:80");
        assert!(
            config
                .at("127.0.0.1:80")
                .as_yaml()?
                .contains("\"token\": \"token\"")
        );
        Ok(())
    }
}
