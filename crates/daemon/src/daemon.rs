//! One value with everything that a program of ours has from its first moment to its last.

use std::net::SocketAddr;
use std::time::Duration;

use crate::events::{Events, EventsOptions};
use crate::program::Program;
use crate::reachability::{PART, Watch};
use crate::stop::Signals;
use crate::{
    Arguments, Error, Health, Leadership, LeaseName, Listen, Metrics, Result, Stop, Timing, client,
    log, server,
};

/// How long work may go on after it was asked to stop. The kubelet gives a pod 30 s.
const STOP: Duration = Duration::from_secs(20);
/// How long the last Events may take after that.
const LAST_EVENTS: Duration = Duration::from_secs(3);

/// A running program: its log, its metrics, its health, its client and its end.
#[derive(Clone)]
pub struct Daemon {
    program: Program,
    client: kube::Client,
    metrics: Metrics,
    health: Health,
    events: Events,
    stop: Stop,
    address: Option<SocketAddr>,
    limit: Duration,
}

impl Daemon {
    /// Starts to log, to answer at `--listen`, and to take note of signals; makes the client. The API
    /// server need not be there: the program says so, and is not ready until it has answered once.
    pub async fn start(program: Program, arguments: &Arguments) -> Result<Self> {
        log::start(arguments)?;
        let metrics = Metrics::new(program);
        let health = Health::default();
        let config = client::kubeconfig(arguments.kubeconfig.as_deref()).await?;
        let server = client::server(&config);
        let client = client::connect(config, program, &metrics)?;
        let check = health.check(PART);
        check.not_ready("has not connected yet");
        let address = match arguments.listen {
            Listen::Off => None,
            Listen::At(address) => {
                let metrics = arguments.metrics_listen.is_none().then(|| metrics.clone());
                Some(server::health::start(address, health.clone(), metrics).await?)
            }
        };
        let metrics_address = match arguments.metrics_listen {
            None => None,
            Some(address) => Some(server::metrics::start(server::metrics::Options {
                address,
                certificate: arguments.metrics_certificate.as_deref(),
                reviewer: arguments.metrics_auth.then(|| client.clone()),
                metrics: metrics.clone(),
            })?),
        };
        let stop = Stop::default();
        let mut signals = Signals::listen()?;
        let asked = stop.clone();
        tokio::spawn(async move {
            loop {
                let signal = signals.next().await;
                tracing::info!(signal, "stopping on a signal");
                asked.stop();
            }
        });
        let options = EventsOptions::default();
        let events = Events::start(client.clone(), program, metrics.clone(), options);
        tracing::info!(
            program = program.name,
            version = program.version,
            listen = address.map(tracing::field::display),
            metrics_listen = metrics_address.map(tracing::field::display),
            "started"
        );
        let watch = Watch {
            client: client.clone(),
            server,
            reachability: metrics.reachability().clone(),
            health: health.clone(),
            check,
        };
        tokio::spawn(watch.go());
        Ok(Self {
            program,
            client,
            metrics,
            health,
            events,
            stop,
            address,
            limit: STOP,
        })
    }

    /// The same daemon, whose work may take `limit` to end once it was asked to (20 s unless said).
    #[must_use]
    pub fn stopping_within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Which program this is.
    pub fn program(&self) -> Program {
        self.program
    }

    /// The client of the API server. It repeats nothing by itself and counts every request.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// The program's metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The program's health.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Publishes Kubernetes Events.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Asks the program to stop, or tells that it was asked.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Where health is served, and metrics unless they have an address of their own.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Is a candidate for leadership by `lease`, from now on.
    pub fn stand_for(&self, lease: LeaseName, timing: Timing) -> Leadership {
        Leadership::start(
            self.client(),
            lease,
            timing,
            &self.metrics,
            self.stop.clone(),
        )
    }

    /// Runs `work` until it ends, or until it was asked to stop and has not ended in time; then sends
    /// the last Events. `work` is told by [`Daemon::stop`] when to end.
    pub async fn run(self, work: impl AsyncFnOnce(&Self) -> Result<()>) -> Result<()> {
        let ended = {
            let too_late = async {
                self.stop.stopped().await;
                self.health.stopping();
                tokio::time::sleep(self.limit).await;
            };
            tokio::select! {
                biased;
                result = work(&self) => result,
                () = too_late => Err(Error::StopTimeout(self.limit)),
            }
        };
        self.stop.stop();
        self.health.stopping();
        self.events.flush(LAST_EVENTS).await;
        match &ended {
            Ok(()) => tracing::info!("stopped"),
            Err(error) => tracing::error!(category = error.category(), "stopped: {error}"),
        }
        ended
    }
}

impl std::fmt::Debug for Daemon {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} {}", self.program.name, self.program.version)
    }
}
