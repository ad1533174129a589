//! An address whose packets are dropped: whoever connects gets no answer at all, neither a connection nor a refusal.
//!
//! It is a listener with no room for waiting connections, which is full. The system drops what asks for another one.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::{Doing, Error, Result};

/// A connection that this machine takes is made at once.
const AT_ONCE: Duration = Duration::from_millis(500);
/// More than fit into a queue without room.
const ENOUGH: usize = 16;

/// A port of this machine that swallows everything until it is dropped.
#[derive(Debug)]
pub struct Blackhole {
    address: SocketAddr,
    /// Both keep the queue as full as it is.
    _listener: TcpListener,
    _waiting: Vec<TcpStream>,
}

impl Blackhole {
    /// On a free port of 127.0.0.1.
    pub async fn open() -> Result<Self> {
        let socket = TcpSocket::new_v4().doing(|| "no socket")?;
        let bound = socket.bind(([127, 0, 0, 1], 0).into());
        bound.doing(|| "no port is free for a black hole")?;
        let listener = socket.listen(0).doing(|| "cannot listen")?;
        let address = listener.local_addr().doing(|| "no address")?;
        let mut waiting = Vec::new();
        while let Ok(made) = tokio::time::timeout(AT_ONCE, TcpStream::connect(address)).await {
            waiting.push(made.doing(|| "cannot fill a black hole")?);
            if waiting.len() > ENOUGH {
                return Err(Error::failed("this machine keeps every connection waiting"));
            }
        }
        Ok(Self {
            address,
            _listener: listener,
            _waiting: waiting,
        })
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
