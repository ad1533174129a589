//! `/healthz` and `/readyz` over plain HTTP, and `/metrics` where it has no listener of its own.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Instant;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use super::{Page, metrics_page, refused, serve, text};
use crate::health::Verdict;
use crate::{Error, Health, Metrics, Result};

/// What is answered.
#[derive(Clone)]
struct Pages {
    health: Health,
    /// Unless they are served elsewhere.
    metrics: Option<Metrics>,
}

/// Listens at `address`, and answers until the runtime ends. Returns where it listens.
pub(crate) async fn start(
    address: SocketAddr,
    health: Health,
    metrics: Option<Metrics>,
) -> Result<SocketAddr> {
    let failed = |source| Error::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let pages = Pages { health, metrics };
    tokio::spawn(serve(listener, move |stream| {
        converse(stream, pages.clone())
    }));
    Ok(address)
}

async fn converse(stream: TcpStream, pages: Pages) {
    let service = service_fn(async |request: Request<Incoming>| {
        Ok::<_, Infallible>(pages.answer(request.method(), request.uri().path()))
    });
    // Whoever asked may go away in the middle; that is their business.
    let _ = http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

impl Pages {
    fn answer(&self, method: &Method, path: &str) -> Page {
        if let Some(refusal) = refused(method) {
            return refusal;
        }
        match (path, &self.metrics) {
            ("/healthz", _) => judged(self.health.liveness(Instant::now())),
            ("/readyz", _) => judged(self.health.readiness()),
            ("/metrics", Some(metrics)) => metrics_page(metrics),
            (_, Some(_)) => text(
                StatusCode::NOT_FOUND,
                "not found: this address serves /healthz, /readyz and /metrics\n".to_owned(),
            ),
            (_, None) => text(
                StatusCode::NOT_FOUND,
                "not found: this address serves /healthz and /readyz; /metrics is at the address of --metrics-listen, over HTTPS\n".to_owned(),
            ),
        }
    }
}

fn judged(Verdict { good, mut words }: Verdict) -> Page {
    if good {
        words.push_str("ok\n");
        text(StatusCode::OK, words)
    } else {
        text(StatusCode::SERVICE_UNAVAILABLE, words)
    }
}
