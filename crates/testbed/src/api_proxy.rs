//! A proxy between a client and the API server that can hurt their connections: stall, cut, delay,
//! refuse.
//!
//! It works on bytes, not on requests: TLS passes through untouched, and the server's certificate is
//! valid for the proxy's address. It runs in a thread of its own, not in a test's runtime.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::control_plane::ControlPlane;
use crate::kubeconfig::Kubeconfig;
use crate::{Doing, Result};

/// A chunk is what one read gives; its size bounds how much a stalled connection still swallows.
const CHUNK: usize = 16 << 10;

/// A proxy before one API server. Its connections end when it is dropped.
#[derive(Debug)]
pub struct ApiProxy {
    port: u16,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

/// One connection through the proxy, by its number: the first is 1.
#[derive(Debug, Clone)]
pub struct Connection {
    number: u64,
    treatment: watch::Sender<Treatment>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Treatment {
    stalled: bool,
    cut: bool,
    delay: Duration,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<ProxyState>,
    /// Bytes from clients.
    sent: AtomicU64,
}

#[derive(Debug, Default)]
struct ProxyState {
    refusing: bool,
    /// How the next connection is treated.
    next: Treatment,
    accepted: u64,
    refused: u64,
    open: BTreeMap<u64, Connection>,
}

impl ApiProxy {
    /// A proxy before `control_plane`, on a free port of every address of this machine.
    pub fn before(control_plane: &ControlPlane) -> Result<Self> {
        Self::to(control_plane.address())
    }

    /// A proxy before any server, at an address of its own: nobody knows that there is one.
    pub fn at(address: SocketAddr, server: SocketAddr) -> Result<Self> {
        Self::between(address, server)
    }

    fn to(server: SocketAddr) -> Result<Self> {
        Self::between(([0, 0, 0, 0], 0).into(), server)
    }

    fn between(address: SocketAddr, server: SocketAddr) -> Result<Self> {
        let listener = std::net::TcpListener::bind(address)
            .doing(|| format!("no port is free for a proxy at {address}"))?;
        listener
            .set_nonblocking(true)
            .doing(|| "cannot prepare the port of a proxy")?;
        let port = listener
            .local_addr()
            .doing(|| "cannot read the port of a proxy")?
            .port();
        // Last: a runtime must not be dropped by whoever awaits something, as an error before would do.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .doing(|| "cannot make the runtime of a proxy")?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener).doing(|| "cannot listen as a proxy")?
        };
        let shared = Arc::<Shared>::default();
        runtime.spawn(accept(listener, server, shared.clone()));
        Ok(Self {
            port,
            shared,
            runtime: Some(runtime),
        })
    }

    /// Where it listens, as this machine reaches it.
    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// The open connections, oldest first.
    pub fn connections(&self) -> Vec<Connection> {
        self.shared.state().open.values().cloned().collect()
    }

    /// How many connections were ever accepted.
    pub fn accepted(&self) -> u64 {
        self.shared.state().accepted
    }

    /// How many connections were ever refused.
    pub fn refused(&self) -> u64 {
        self.shared.state().refused
    }

    /// How many bytes clients have sent through it.
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    /// Passes nothing any more, either way, on open connections and on new ones, which are still
    /// accepted.
    pub fn stall(&self) {
        self.treat(|treatment| treatment.stalled = true);
    }

    /// Passes everything again, what was held back first.
    pub fn resume(&self) {
        self.treat(|treatment| treatment.stalled = false);
    }

    /// Delays every chunk by `delay`, each way, on open connections and on new ones.
    pub fn delay(&self, delay: Duration) {
        self.treat(|treatment| treatment.delay = delay);
    }

    /// Resets the open connections. New ones are not affected.
    pub fn cut(&self) {
        for connection in self.connections() {
            connection.cut();
        }
    }

    /// Resets new connections as soon as they come. Open ones are not affected.
    pub fn refuse(&self) {
        self.shared.state().refusing = true;
    }

    /// Takes new connections again.
    pub fn accept(&self) {
        self.shared.state().refusing = false;
    }

    fn treat(&self, change: impl Fn(&mut Treatment)) {
        let mut state = self.shared.state();
        change(&mut state.next);
        for connection in state.open.values() {
            connection.treatment.send_modify(&change);
        }
    }
}

impl Drop for ApiProxy {
    fn drop(&mut self) {
        // Waiting for a runtime is not allowed inside another one, and a test may well be inside.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Connection {
    /// Its number: the first of the proxy is 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Passes nothing any more, either way.
    pub fn stall(&self) {
        self.treatment
            .send_modify(|treatment| treatment.stalled = true);
    }

    /// Passes everything again, what was held back first.
    pub fn resume(&self) {
        self.treatment
            .send_modify(|treatment| treatment.stalled = false);
    }

    /// Delays every chunk by `delay`, each way.
    pub fn delay(&self, delay: Duration) {
        self.treatment
            .send_modify(|treatment| treatment.delay = delay);
    }

    /// Resets it, on both sides.
    pub fn cut(&self) {
        self.treatment.send_modify(|treatment| treatment.cut = true);
    }
}

impl Kubeconfig {
    /// The same login through `proxy`.
    #[must_use]
    pub fn through(&self, proxy: &ApiProxy) -> Self {
        self.at(&proxy.address().to_string())
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number and a treatment for a new connection, unless it is refused.
    fn admit(&self) -> Option<Connection> {
        let mut state = self.state();
        if state.refusing {
            state.refused += 1;
            return None;
        }
        state.accepted += 1;
        let connection = Connection {
            number: state.accepted,
            treatment: watch::Sender::new(state.next),
        };
        state.open.insert(connection.number, connection.clone());
        Some(connection)
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let Some(connection) = shared.admit() else {
            let _ = client.set_zero_linger();
            continue;
        };
        let shared = shared.clone();
        tokio::spawn(async move {
            let number = connection.number;
            let _ = carry(client, server, connection, &shared.sent).await;
            shared.state().open.remove(&number);
        });
    }
}

/// Carries one connection until both sides have closed it, or one has broken it, or it is cut. Only
/// the first ends politely; else both sides see a reset.
async fn carry(
    mut client: TcpStream,
    server: SocketAddr,
    connection: Connection,
    sent: &AtomicU64,
) -> std::io::Result<()> {
    let Ok(mut server) = TcpStream::connect(server).await else {
        return client.set_zero_linger();
    };
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let treatment = || connection.treatment.subscribe();
    let mut cut = treatment();
    let polite = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let both = async {
            tokio::try_join!(
                pump(from_client, to_server, treatment(), Some(sent)),
                pump(from_server, to_client, treatment(), None),
            )
        };
        tokio::select! {
            _ = cut.wait_for(|treatment| treatment.cut) => false,
            ended = both => ended.is_ok(),
        }
    };
    if !polite {
        client.set_zero_linger()?;
        server.set_zero_linger()?;
    }
    Ok(())
}

async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut treatment: watch::Receiver<Treatment>,
    count: Option<&AtomicU64>,
) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let length = from.read(&mut chunk).await?;
        let delay = treatment.borrow().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        // What came in just before the stall is held here; nothing more is read until it is passed.
        let going_on = treatment.wait_for(|treatment| !treatment.stalled).await;
        going_on.map_err(std::io::Error::other)?;
        match chunk.get(..length) {
            None | Some([]) => return to.shutdown().await,
            Some(passed) => {
                to.write_all(passed).await?;
                if let Some(count) = count {
                    count.fetch_add(passed.len() as u64, Ordering::Relaxed);
                }
            }
        }
    }
}
