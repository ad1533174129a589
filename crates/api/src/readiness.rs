//! `NodeReadinessRule`: which extensions a node must have before pods come to it, and the evidence
//! that each is healthy. The node's own list of extensions has elements of the same shape.

mod check;
mod keys;
mod nrc;
mod nrc_status;
mod read;
mod report;
mod status;
mod taint;

use std::time::Duration;

pub use check::{
    CA, COMMAND, Check, HEADER, HEADERS, HttpGet, NODE_IP, ProbeHost, ProbeTls, RESERVED_HEADERS,
    WORD, is_header_name,
};
pub(crate) use keys::{RULE, SPEC};
pub use nrc::{
    NRC_DEFAULT, NRC_FINALIZER, NRC_GROUP, NRC_LEASE, NRC_PREFIX, NrcCondition, NrcRule,
};
pub use nrc_status::{NrcDryRun, NrcEvaluation, NrcFailure, NrcResult, NrcStatus};
pub(crate) use read::read_rule;
pub use read::{extensions_from_json, rule_from_json, rule_from_spec};
pub use report::{CertificateReport, ProbeReport, Report};
pub use status::{NodeCounts, RuleStatus, Worst, condition};
pub use taint::{RuleTaint, TaintEffect};

pub use crate::selector::{Operator, Requirement, Selector};

/// The kind of the object.
pub const KIND: &str = "NodeReadinessRule";
/// Its name in requests.
pub const PLURAL: &str = "nodereadinessrules";
/// The version of its group.
pub const VERSION: &str = "v1alpha1";
/// The name of the extension that an agent itself is, and the end of the name of its Lease.
pub const AGENT_EXTENSION: &str = "evenkeel-agent";
/// How long an agent's Lease lasts while somebody asks for it; it is renewed three times in this time.
pub const AGENT_EXPIRY: Duration = Duration::from_secs(30);
/// The shortest expiry of a Lease: nobody renews more often than once a second, and three renewals
/// must fit.
pub const LEAST_EXPIRY: Duration = Duration::from_secs(3);
/// What stands for the node's name in the names of objects.
pub const NODE: &str = "{node}";
/// A node that is not ready for this long loses its pods, unless its rule says otherwise.
pub const EVICT_AFTER: Duration = Duration::from_mins(5);

/// A rule about nodes.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a key of the object, and any of them goes with any other"
)]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadinessRule {
    /// The object's name.
    pub name: String,
    /// Which of all objects that ever had this name it is; empty for one that is in no cluster.
    pub uid: String,
    /// Whose kind it is.
    pub origin: RuleOrigin,
    /// The taint of a node that is not ready by this rule.
    pub taint: RuleTaint,
    /// For how long it is about a node.
    pub enforcement: Enforcement,
    /// The nodes that it is about; empty is all.
    pub node_selector: Selector,
    /// How long a node may be unready before pods are evicted; zero is never.
    pub evict_after: Duration,
    /// Whether it only says what it would do.
    pub dry_run: bool,
    /// Whether all that it did stays as it is: it taints nobody, lets nobody go and evicts nothing.
    pub suspend: bool,
    /// Whether every extension becomes a condition of the Node.
    pub publish_conditions: bool,
    /// Whether the node also has the Cluster Autoscaler's taint while it is not ready.
    pub autoscaler_startup_taint: bool,
    /// What a node must have.
    pub extensions: Vec<Extension>,
}

impl ReadinessRule {
    /// The name of its object. Rules of other kinds stand beside ours with the kind before a slash.
    pub fn bare_name(&self) -> &str {
        self.name
            .split_once('/')
            .map_or(&self.name, |(_, name)| name)
    }
}

/// For how long a rule is about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Enforcement {
    /// As long as both are there.
    #[default]
    Continuous,
    /// Until the node was ready once.
    Bootstrap,
}

/// Whose kind a rule is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RuleOrigin {
    /// Ours.
    #[default]
    Evenkeel,
    /// node-readiness-controller's: its conditions count as they stand, and restarts mean nothing.
    Nrc,
}

/// Something that a node must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension {
    /// Its name, unique in its rule.
    pub name: String,
    /// Whether the node is unready without it.
    pub affects_readiness: bool,
    /// The evidence that it is healthy.
    pub source: Source,
}

/// The evidence that an extension is healthy. `{node}` in a name stands for the node's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A Lease that is renewed.
    Lease {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// How old the last renewal may be.
        expiry: Duration,
    },
    /// An object with a Lease inside.
    Status {
        /// Its group and version.
        api_version: String,
        /// Its kind.
        kind: String,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Where in it the Lease is; none for the Lease of the same name.
        lease: Option<String>,
    },
    /// Pods that are ready on the node.
    Pods {
        /// Their namespace.
        namespace: String,
        /// Which ones.
        selector: Selector,
        /// How long they must stay unready to count.
        debounce: Duration,
    },
    /// A condition of the Node.
    Condition {
        /// Its type.
        kind: String,
        /// The status that means healthy.
        status: String,
        /// How old its heartbeat may be; zero is any.
        freshness: Duration,
        /// The status that counts where the Node does not have it; empty if none does.
        default_status: String,
    },
    /// Conditions of the Node, each as an extension of this name, of which one is enough.
    AnyOf(Vec<Extension>),
    /// A probe that the node's agent runs.
    Probe {
        /// What it checks.
        check: Check,
        /// How often.
        period: Duration,
        /// How long the answer may take.
        timeout: Duration,
        /// How many failures in a row count.
        failure_threshold: u32,
    },
}

impl Extension {
    /// What is enough for it, each by itself.
    pub fn choices(&self) -> &[Self] {
        match &self.source {
            Source::AnyOf(choices) => choices,
            _ => std::slice::from_ref(self),
        }
    }
}

impl Source {
    /// The key that it has in a rule.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Lease { .. } => "lease",
            Self::Status { .. } => "status",
            Self::Pods { .. } => "pods",
            Self::Condition { .. } => "condition",
            Self::AnyOf(_) => "anyOf",
            Self::Probe { .. } => "probe",
        }
    }
}
