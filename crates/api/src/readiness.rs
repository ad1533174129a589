//! `NodeReadinessRule`: which extensions a node must have before pods come to it, and what tells
//! that each is well. The node's own list of extensions has elements of the same shape.

mod read;

use std::time::Duration;

pub use read::extensions_from_json;
pub(crate) use read::{RULE, read_rule};

pub use crate::selector::{Operator, Requirement, Selector};

/// A rule about nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadinessRule {
    /// The object's name.
    pub name: String,
    /// The nodes that it is about; empty is all.
    pub node_selector: Selector,
    /// How long a node may be unready before pods are evicted; zero is never.
    pub evict_after: Duration,
    /// Whether it only says what it would do.
    pub dry_run: bool,
    /// Whether every extension becomes a condition of the Node.
    pub publish_conditions: bool,
    /// Whether the node also has the Cluster Autoscaler's taint while it is not ready.
    pub autoscaler_startup_taint: bool,
    /// What a node must have.
    pub extensions: Vec<Extension>,
}

/// Something that a node must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension {
    /// Its name, unique in its rule.
    pub name: String,
    /// Whether the node is unready without it.
    pub affects_readiness: bool,
    /// What tells that it is well.
    pub source: Source,
}

/// What tells that an extension is well. `{node}` in a name stands for the node's.
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
        /// The status that is well.
        status: String,
        /// How old its heartbeat may be; zero is any.
        freshness: Duration,
    },
    /// A question that the node's agent asks.
    Probe {
        /// The question.
        check: Check,
        /// How often.
        period: Duration,
        /// How long the answer may take.
        timeout: Duration,
        /// How many failures in a row count.
        failure_threshold: u32,
    },
}

/// What a probe asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// An HTTP GET on the node.
    HttpGet {
        /// The port.
        port: u16,
        /// The path.
        path: String,
    },
    /// A connection to a port of the node.
    TcpSocket {
        /// The port.
        port: u16,
    },
    /// gRPC's own health service.
    Grpc {
        /// The port.
        port: u16,
        /// Which service to ask for; empty is the whole server.
        service: String,
    },
    /// A connection to a socket file.
    UnixSocket {
        /// The file.
        path: String,
    },
    /// A service of the system that runs.
    Service {
        /// Its name.
        name: String,
    },
}
