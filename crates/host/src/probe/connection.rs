//! A connection to a port of this machine, and to nobody else's.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use evenkeel_api::readiness::ProbeHost;

/// A connection that waits for nothing beyond a moment, however slowly the other side goes.
pub(super) struct Connection {
    stream: TcpStream,
    end: Instant,
}

impl Connection {
    /// Whom it asks.
    pub(super) fn peer(&self) -> io::Result<IpAddr> {
        self.stream.peer_addr().map(|it| it.ip())
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.end)?))?;
        self.stream.read(buffer)
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(left(self.end)?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    Ok(left)
}

/// Connects to the first of the addresses that takes a connection, until `end`.
pub(super) fn connect(
    host: ProbeHost,
    addresses: &[IpAddr],
    port: u16,
    end: Instant,
) -> Result<Connection, String> {
    let loopback = [
        IpAddr::from(Ipv4Addr::LOCALHOST),
        IpAddr::from(Ipv6Addr::LOCALHOST),
    ];
    let only = match host {
        ProbeHost::At(address) => [address],
        _ => [loopback[0]],
    };
    let candidates = match host {
        ProbeHost::Loopback => &loopback,
        ProbeHost::Node => addresses,
        ProbeHost::At(_) => &only[..],
    };
    let mut first = None;
    for address in candidates {
        match try_one(*address, port, end) {
            Ok(stream) => return Ok(Connection { stream, end }),
            // Where there is no IPv6, that is not why.
            Err(error) => _ = first.get_or_insert(error),
        }
    }
    Err(first.unwrap_or_else(|| {
        format!("cannot connect to port {port}: the Node does not say its address")
    }))
}

fn try_one(address: IpAddr, port: u16, end: Instant) -> Result<TcpStream, String> {
    if !is_own(address) {
        return Err(format!(
            "cannot connect to port {port}: {address} is not an address of this node"
        ));
    }
    let place = if address == IpAddr::from(Ipv4Addr::LOCALHOST) {
        format!("port {port}")
    } else {
        format!("port {port} of {address}")
    };
    let left = left(end);
    let stream =
        left.and_then(|left| TcpStream::connect_timeout(&SocketAddr::from((address, port)), left));
    stream.map_err(|error| format!("cannot connect to {place}: {error}"))
}

/// Whether an address is this machine's: then the way there begins at the very same address. Nothing is sent.
fn is_own(address: IpAddr) -> bool {
    if address.is_loopback() {
        return true;
    }
    let any = match address {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let way = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    way.is_ok_and(|it| it.ip() == address && !address.is_unspecified())
}
