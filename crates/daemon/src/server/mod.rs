//! What a program answers about itself: health over plain HTTP, metrics there or over HTTPS.
//!
//! Nobody can hold it up by talking slowly or often: one answer a connection, not for long, and when
//! there are too many connections the oldest one is closed. So a probe of the kubelet, which asks and is
//! answered within a millisecond, is always answered.

mod access;
mod certificate;
pub(crate) mod health;
pub(crate) mod metrics;

use std::collections::VecDeque;
use std::time::Duration;

use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::Metrics;

/// How many connections of one listener are open at once.
const CONNECTIONS: usize = 64;
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// After an error of the system, such as no more file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

type Page = Response<Full<Bytes>>;

/// Answers every connection by `converse`, until the runtime ends.
async fn serve<C>(listener: TcpListener, converse: impl Fn(TcpStream) -> C)
where
    C: Future<Output = ()> + Send + 'static,
{
    let mut open = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let conversation = tokio::time::timeout(PATIENCE, converse(stream));
        admit(
            &mut open,
            tokio::spawn(async move {
                let _ = conversation.await;
            }),
        );
    }
}

/// One more; the oldest goes if they are too many.
fn admit(open: &mut VecDeque<JoinHandle<()>>, next: JoinHandle<()>) {
    open.retain(|it| !it.is_finished());
    if open.len() >= CONNECTIONS
        && let Some(oldest) = open.pop_front()
    {
        oldest.abort();
    }
    open.push_back(next);
}

/// The refusal of everything but reading.
fn refused(method: &Method) -> Option<Page> {
    if matches!(*method, Method::GET | Method::HEAD) {
        return None;
    }
    let mut refusal = text(
        StatusCode::METHOD_NOT_ALLOWED,
        "method not allowed: use GET or HEAD\n".to_owned(),
    );
    let allowed = HeaderValue::from_static("GET, HEAD");
    refusal.headers_mut().insert(ALLOW, allowed);
    Some(refusal)
}

fn metrics_page(metrics: &Metrics) -> Page {
    let mut page = text(StatusCode::OK, metrics.text());
    let kind = HeaderValue::from_static(crate::metrics::CONTENT_TYPE);
    page.headers_mut().insert(CONTENT_TYPE, kind);
    page
}

fn text(status: StatusCode, words: String) -> Page {
    let mut response = Response::new(Full::new(Bytes::from(words)));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}
