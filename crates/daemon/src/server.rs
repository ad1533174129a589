//! `/healthz`, `/readyz` and `/metrics` over plain HTTP.
//!
//! One answer a connection, a few connections at once, and not for long: nobody can hold the program
//! up by talking to it slowly.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{ALLOW, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::health::Verdict;
use crate::{Error, Health, Metrics, Result, metrics};

const CONNECTIONS: usize = 16;
const PATIENCE: Duration = Duration::from_secs(10);
/// After an error of the system, such as no more file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Listens at `address`, and answers until the runtime ends. Returns where it listens.
pub(crate) async fn start(
    address: SocketAddr,
    health: Health,
    metrics: Metrics,
) -> Result<SocketAddr> {
    let failed = |source| Error::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    tokio::spawn(serve(listener, health, metrics));
    Ok(address)
}

async fn serve(listener: TcpListener, health: Health, metrics: Metrics) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    // The semaphore is never closed.
    while let Ok(place) = places.clone().acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let (health, metrics) = (health.clone(), metrics.clone());
        tokio::spawn(async move {
            let _ = tokio::time::timeout(PATIENCE, converse(stream, &health, &metrics)).await;
            drop(place);
        });
    }
}

async fn converse(stream: TcpStream, health: &Health, metrics: &Metrics) {
    let service = service_fn(async |request: Request<Incoming>| {
        Ok::<_, Infallible>(answer(
            request.method(),
            request.uri().path(),
            health,
            metrics,
        ))
    });
    // Whoever asked may go away in the middle; that is their business.
    let _ = http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn answer(
    method: &Method,
    path: &str,
    health: &Health,
    metrics: &Metrics,
) -> Response<Full<Bytes>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned());
        let allowed = http::HeaderValue::from_static("GET, HEAD");
        refusal.headers_mut().insert(ALLOW, allowed);
        return refusal;
    }
    match path {
        "/healthz" => judged(health.liveness(Instant::now())),
        "/readyz" => judged(health.readiness()),
        "/metrics" => {
            let mut page = text(StatusCode::OK, metrics.text());
            let kind = http::HeaderValue::from_static(metrics::CONTENT_TYPE);
            page.headers_mut().insert(CONTENT_TYPE, kind);
            page
        }
        _ => text(
            StatusCode::NOT_FOUND,
            "there are /healthz, /readyz and /metrics\n".to_owned(),
        ),
    }
}

fn judged(Verdict { good, mut words }: Verdict) -> Response<Full<Bytes>> {
    if good {
        words.push_str("ok\n");
        text(StatusCode::OK, words)
    } else {
        text(StatusCode::SERVICE_UNAVAILABLE, words)
    }
}

fn text(status: StatusCode, words: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(words)));
    *response.status_mut() = status;
    let plain = http::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}
