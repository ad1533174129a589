//! The manifest by which krew, the plugin manager of kubectl, installs `kubectl evenkeel`.

use serde_json::{Value, json};

/// A file that krew downloads.
#[derive(Debug, Clone)]
pub(crate) struct Download {
    pub(crate) system: &'static str,
    pub(crate) architecture: &'static str,
    pub(crate) url: String,
    pub(crate) checksum: String,
}

/// The manifest for `version`.
pub(crate) fn manifest(version: &str, downloads: &[Download]) -> Value {
    let platforms: Vec<Value> = downloads
        .iter()
        .map(|it| {
            json!({
                "selector": { "matchLabels": { "os": it.system, "arch": it.architecture } },
                "uri": it.url,
                "sha256": it.checksum,
                "bin": "evenkeel",
            })
        })
        .collect();
    json!({
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": { "name": "evenkeel" },
        "spec": {
            "version": format!("v{version}"),
            "homepage": "https://evenkeel.dev",
            "shortDescription": "See, explain and roll out the configuration of nodes",
            "description": "Shows what Evenkeel does with every node of a cluster, explains why a node is as it is,\nand watches, pauses and resumes rollouts.\n",
            "platforms": platforms,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_download_is_a_platform_with_its_checksum() {
        let download = Download {
            system: "linux",
            architecture: "arm64",
            url: "https://example.com/it.tar.gz".to_owned(),
            checksum: "abc".to_owned(),
        };
        let manifest = manifest("0.1.0", &[download]);
        assert_eq!(manifest["spec"]["version"], "v0.1.0");
        let platform = &manifest["spec"]["platforms"][0];
        assert_eq!(platform["selector"]["matchLabels"]["arch"], "arm64");
        assert_eq!(platform["sha256"], "abc");
    }
}
