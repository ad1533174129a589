//! What a probe checks on the node that its agent runs on.

use std::fmt;
use std::net::IpAddr;

/// In the `host` of a probe: the addresses of the node, as its kubelet says them.
pub const NODE_IP: &str = "{nodeIP}";
/// The longest text of a CA, in bytes.
pub const CA: usize = 16 * 1024;
/// The most headers of a request.
pub const HEADERS: usize = 16;
/// The longest value of a header.
pub const HEADER: usize = 1024;
/// The most words of a command.
pub const COMMAND: usize = 32;
/// The longest word of a command.
pub const WORD: usize = 1024;

/// Headers that say where a request ends, or what becomes of its connection: the agent's own business.
pub const RESERVED_HEADERS: [&str; 7] = [
    "connection",
    "content-length",
    "expect",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What a probe checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// An HTTP GET on the node.
    HttpGet(HttpGet),
    /// A connection to a port of the node.
    TcpSocket {
        /// Where it listens.
        host: ProbeHost,
        /// The port.
        port: u16,
    },
    /// gRPC's own health service.
    Grpc {
        /// Where it listens.
        host: ProbeHost,
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
    /// A program of the machine that ends well.
    Exec {
        /// Its path, and its arguments.
        command: Vec<String>,
    },
}

/// An HTTP GET.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HttpGet {
    /// Where it listens.
    pub host: ProbeHost,
    /// The port.
    pub port: u16,
    /// The path.
    pub path: String,
    /// Names and values of headers.
    pub headers: Vec<(String, String)>,
    /// How TLS is spoken; nothing is HTTP without it.
    pub tls: Option<ProbeTls>,
}

/// Which address of the node is asked. What listens elsewhere tells nothing of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProbeHost {
    /// The loopback address, of IPv4 or else of IPv6.
    #[default]
    Loopback,
    /// The addresses of the node, one after the other.
    Node,
    /// This one, which must be the node's.
    At(IpAddr),
}

/// Whose certificate is good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeTls {
    /// One that these have signed, for this name.
    Ca {
        /// Certificates in PEM.
        pem: String,
        /// Whose name the certificate must have; empty for the address that is asked.
        server_name: String,
    },
    /// Anybody's.
    Unverified,
}

impl ProbeHost {
    /// Reads the `host` of a probe; empty is the loopback address.
    pub fn read(text: &str) -> Result<Self, String> {
        match text {
            "" => Ok(Self::Loopback),
            NODE_IP => Ok(Self::Node),
            address => address.parse().map(Self::At).map_err(|_| {
                format!("host {address:?} is no address of a node: write an IP address of it, {NODE_IP}, or nothing for loopback")
            }),
        }
    }
}

impl fmt::Display for ProbeHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => Ok(()),
            Self::Node => f.write_str(NODE_IP),
            Self::At(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::At(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// For people: what is asked of whom.
impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HttpGet(it) => {
                let scheme = if it.tls.is_some() { "HTTPS" } else { "HTTP" };
                write!(f, "{scheme} {}:{}{}", it.host, it.port, it.path)
            }
            Self::TcpSocket { host, port } => write!(f, "TCP {host}:{port}"),
            Self::Grpc {
                host,
                port,
                service,
            } if service.is_empty() => write!(f, "gRPC {host}:{port}"),
            Self::Grpc {
                host,
                port,
                service,
            } => write!(f, "gRPC {host}:{port} {service}"),
            Self::UnixSocket { path } => write!(f, "socket {path}"),
            Self::Service { name } => write!(f, "service {name}"),
            Self::Exec { command } => write!(f, "exec {}", command.join(" ")),
        }
    }
}

/// Whether a text is the name of a header.
pub fn is_header_name(text: &str) -> bool {
    let is_token = |it: char| it.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(it);
    !text.is_empty() && text.len() <= 128 && text.chars().all(is_token)
}
