//! What this machine's Node is called, and at which address: what the scripts of a payload ask us, and what the operator is told.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_daemon::{Error, Result};
use evenkeel_host::metadata;
use evenkeel_host::windows::{about, script};
use evenkeel_plan::windows::node_name::node_name;
use kube::config::Kubeconfig;

use super::HostResult;
use super::arguments::NodeNameArguments;

/// How long a script may take that says what a Node is called.
const SCRIPT: Duration = Duration::from_mins(2);
const ASK_AGAIN: Duration = Duration::from_secs(1);

pub(crate) fn say_name(arguments: &NodeNameArguments) -> Result<()> {
    let deadline = Instant::now() + arguments.within;
    let name = loop {
        // A cloud may not know a machine yet that has just begun.
        match name(arguments) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(ASK_AGAIN),
            ended => break ended?,
        }
    };
    say(&name)
}

fn name(arguments: &NodeNameArguments) -> Result<String> {
    let ask = |request| metadata::ask(&arguments.metadata, &request).or_fail();
    let platform = arguments.platform;
    let token = platform.token_request().map(ask).transpose()?;
    let request = platform.name_request(token.as_deref().unwrap_or_default());
    let said = match request {
        Some(request) => ask(request)?,
        None => about::host_name().or_fail()?,
    };
    node_name(&said).map_err(Error::work)
}

/// What a script says that this machine's Node is called.
pub(crate) fn by_script(path: &str) -> Result<String, String> {
    let said = script::output_of(path, SCRIPT).map_err(|error| error.with_causes())?;
    node_name(&said)
}

pub(crate) fn say_address(kubeconfig: Option<&Path>) -> Result<()> {
    let file = kubeconfig.ok_or_else(|| {
        Error::work("node-ip needs --kubeconfig FILE: it names the API server".to_owned())
    })?;
    let shown = file.display();
    let config = Kubeconfig::read_from(file)
        .map_err(|error| Error::work(format!("cannot read {shown}: {error}")))?;
    let mut clusters = config.clusters.into_iter();
    let server = clusters.find_map(|it| it.cluster?.server);
    let server = server.ok_or_else(|| Error::work(format!("{shown} names no API server")))?;
    let address = way_to(&server)
        .map_err(|error| Error::work(format!("cannot find the way to {server}: {error}")))?;
    say(&address.to_string())
}

/// The address from which this machine would talk to a server. Nothing is sent.
fn way_to(server: &str) -> std::io::Result<IpAddr> {
    let (scheme, rest) = server.split_once("://").unwrap_or(("https", server));
    let host = rest.split('/').next().unwrap_or_default();
    let port = if scheme == "http" { 80 } else { 443 };
    let has_port = host
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let found = if has_port {
        host.to_socket_addrs()
    } else {
        format!("{host}:{port}").to_socket_addrs()
    };
    let mut last = std::io::ErrorKind::AddrNotAvailable.into();
    for to in found? {
        let any: SocketAddr = if to.is_ipv4() {
            ([0; 4], 0).into()
        } else {
            ([0; 16], 0).into()
        };
        match UdpSocket::bind(any).and_then(|it| it.connect(to).and_then(|()| it.local_addr())) {
            Ok(own) => return Ok(own.ip()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// What a script takes as its own line.
fn say(line: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{line}")
        .map_err(|error| Error::work(format!("cannot write to standard output: {error}")))
}
