//! The node report of an agent: one JSON text on its Lease, rewritten only when something has
//! changed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::node_state::NodeState;

/// The annotation `evenkeel.dev/report` of an agent's Lease.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Report {
    /// Which boot of the machine this is.
    pub boot_id: String,
    /// Which start of the kubelet this is. Nobody reads a time in it: another text is another start.
    pub kubelet_start: String,
    /// What the agent makes of the node's configuration: Done, Working or Degraded; empty if nothing.
    pub state: NodeState,
    /// The results of its probes, by the extension's name.
    pub probes: BTreeMap<String, ProbeReport>,
    /// Whom the machine trusts, where the agent keeps that: on Windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificates: Option<CertificateReport>,
}

/// How many certificates are among a machine's trusted roots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CertificateReport {
    /// Those that Evenkeel manages.
    pub ours: usize,
    /// Those of the cluster's bundle that are not there.
    pub missing: usize,
    /// Those of others.
    pub foreign: usize,
}

/// The result of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProbeReport {
    /// Whether the answer is healthy.
    pub healthy: bool,
    /// Since when, by the node's own clock; for people.
    pub since: String,
    /// Why it is not, for people.
    pub message: String,
}

impl Report {
    /// Reads what an agent wrote.
    pub fn from_json(text: &str) -> Result<Self, String> {
        serde_json::from_str(text)
            .map_err(|error| format!("cannot read the node report of an agent: {error}"))
    }

    /// The text for the annotation.
    pub fn to_json(&self) -> String {
        serde_json::json!(self).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_written_as_others_read_it() {
        let text = r#"{"bootId":"b","kubeletStart":"k","state":"Done","probes":{"cni":{"healthy":true,"since":"2026-01-01T00:00:00Z","message":""}}}"#;
        let report = Report::from_json(text).unwrap();
        assert!(report.probes["cni"].healthy);
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&report.to_json()), value(text));
        assert_eq!(Report::from_json("{}"), Ok(Report::default()));
        let text = r#"{"bootId":"b","kubeletStart":"k","state":"Done","probes":{},"certificates":{"ours":3,"missing":1,"foreign":7}}"#;
        let report = Report::from_json(text).unwrap();
        assert_eq!(report.certificates.map(|it| it.foreign), Some(7));
        assert_eq!(value(&report.to_json()), value(text));
        assert!(Report::from_json("[").is_err());
    }
}
