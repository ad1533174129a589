//! `/metrics` over HTTPS, for who may read it.
//!
//! It runs on a thread of its own: handshakes cost time, and whoever makes many of them takes it from
//! nobody else.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::access::{Access, Answer};
use super::certificate::Certificate;
use super::{Page, metrics_page, refused, serve, text};
use crate::{Error, Metrics, Result};

const PATH: &str = "/metrics";

/// What is served, to whom, and by which certificate.
pub(crate) struct Options<'a> {
    pub(crate) address: SocketAddr,
    /// The folder of the certificate; without one it is made at every start.
    pub(crate) certificate: Option<&'a Path>,
    /// Whom to ask about those who ask; without it everybody may read.
    pub(crate) reviewer: Option<kube::Client>,
    pub(crate) metrics: Metrics,
}

/// Listens, and answers until the program ends. Returns where it listens.
pub(crate) fn start(options: Options<'_>) -> Result<SocketAddr> {
    let address = options.address;
    let failed = |source| Error::ListenForMetrics { address, source };
    let certificate = Certificate::open(options.certificate)?;
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let desk = Arc::new(Desk {
        certificate,
        access: options.reviewer.map(Access::new),
        metrics: options.metrics,
    });
    let work = move || {
        runtime.block_on(async {
            match TcpListener::from_std(listener) {
                Ok(listener) => {
                    serve(listener, |stream| converse(stream, Arc::clone(&desk))).await;
                }
                Err(error) => tracing::error!("cannot serve metrics: {error}"),
            }
        });
    };
    std::thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(work)
        .map_err(failed)?;
    Ok(address)
}

struct Desk {
    certificate: Certificate,
    access: Option<Access>,
    metrics: Metrics,
}

async fn converse(stream: TcpStream, desk: Arc<Desk>) {
    let acceptor = TlsAcceptor::from(desk.certificate.now());
    // Whoever does not speak TLS is not answered.
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let desk = &desk;
    let service = service_fn(async move |request| Ok::<_, Infallible>(desk.answer(&request).await));
    let _ = http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

impl Desk {
    async fn answer(&self, request: &Request<Incoming>) -> Page {
        if let Some(refusal) = refused(request.method()) {
            return refusal;
        }
        if let Some(access) = &self.access {
            let Some(token) = token(request.headers()) else {
                return who_are_you("no token: send the header Authorization: Bearer TOKEN\n");
            };
            match access.judge(token, request.uri().path()).await {
                Answer::Allowed => {}
                Answer::Unknown => {
                    return who_are_you("the API server does not accept this token\n");
                }
                Answer::Forbidden(user) => {
                    let words = format!(
                        "{user} is not allowed to get {}: bind the ClusterRole evenkeel-metrics-reader to this user\n",
                        request.uri().path()
                    );
                    return text(StatusCode::FORBIDDEN, words);
                }
                Answer::TooMany => {
                    let words = "too many unknown tokens at once: retry in a second\n";
                    return text(StatusCode::TOO_MANY_REQUESTS, words.to_owned());
                }
                Answer::NotAnswered(error) => {
                    let words = format!("the API server cannot review the token: {error}\n");
                    return text(StatusCode::SERVICE_UNAVAILABLE, words);
                }
            }
        }
        match request.uri().path() {
            PATH => metrics_page(&self.metrics),
            _ => text(
                StatusCode::NOT_FOUND,
                "not found: this address serves /metrics\n".to_owned(),
            ),
        }
    }
}

fn token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn who_are_you(words: &str) -> Page {
    let mut page = text(StatusCode::UNAUTHORIZED, words.to_owned());
    let scheme = HeaderValue::from_static("Bearer");
    page.headers_mut().insert(WWW_AUTHENTICATE, scheme);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_follows_bearer() {
        for (value, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Bearer ", None),
            ("Bearer", None),
            ("Basic abc", None),
        ] {
            let value = HeaderValue::from_static(value);
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.clone())]);
            assert_eq!(token(&headers), expected, "{value:?}");
        }
        assert_eq!(token(&HeaderMap::new()), None);
    }
}
