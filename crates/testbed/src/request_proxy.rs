//! A proxy between a client and the API server that knows requests, and can hold one back: before the server has seen it, or
//! with the server's answer. What is held goes on when it is released, also if whoever sent it is gone by then: so a write
//! is late.
//!
//! It is plain HTTP on the client's side; on the other it logs in as the one whose proxy it is.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, HOST};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::kubeconfig::Kubeconfig;
use crate::{Doing, Error, Result};

type Which = Box<dyn FnMut(&str, &str, &[u8]) -> bool + Send>;

/// A proxy for one login. Its connections end when it is dropped.
pub struct RequestProxy {
    address: SocketAddr,
    login: Kubeconfig,
    rules: Arc<Mutex<Option<Rule>>>,
    runtime: Option<Runtime>,
}

/// Where a request is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// Before the server sees it.
    Before,
    /// When the server has done it, and before the client hears so.
    After,
}

struct Rule {
    which: Which,
    place: Where,
    hit: oneshot::Sender<()>,
    released: oneshot::Receiver<()>,
    status: oneshot::Sender<u16>,
}

/// The next request of a kind, which will be held.
#[derive(Debug)]
pub struct Held {
    hit: oneshot::Receiver<()>,
    release: oneshot::Sender<()>,
    status: oneshot::Receiver<u16>,
}

impl Held {
    /// Waits until the request is there.
    pub async fn is_there(&mut self) -> Result<()> {
        let there = (&mut self.hit).await;
        there.map_err(|_| Error::failed("a test already waits for another request"))
    }

    /// Lets it go on, and says what the server answered.
    pub async fn release(self) -> Result<u16> {
        let _ = self.release.send(());
        self.status
            .await
            .map_err(|_| Error::failed("the request was not sent"))
    }
}

impl RequestProxy {
    /// A proxy for `login`.
    pub fn of(login: &Kubeconfig) -> Result<Self> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))
            .doing(|| "no port is free for a proxy")?;
        listener
            .set_nonblocking(true)
            .doing(|| "cannot prepare the port of a proxy")?;
        let address = listener
            .local_addr()
            .doing(|| "cannot read the port of a proxy")?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .doing(|| "cannot make the runtime of a proxy")?;
        let rules = Arc::<Mutex<Option<Rule>>>::default();
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener).doing(|| "cannot listen as a proxy")?
        };
        let (known, server) = (Arc::clone(&rules), login.clone());
        runtime.spawn(async move {
            let Ok(client) = server.client().await else {
                return;
            };
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(converse(stream, client.clone(), Arc::clone(&known)));
            }
        });
        Ok(Self {
            address,
            login: login.clone(),
            rules,
            runtime: Some(runtime),
        })
    }

    /// How to log in through it.
    pub fn login(&self) -> Kubeconfig {
        self.login.at_url(&format!("http://{}", self.address))
    }

    /// Holds the next request that `which` is true of: method, path and body. Only one is waited for at a time.
    pub fn hold(
        &self,
        place: Where,
        which: impl FnMut(&str, &str, &[u8]) -> bool + Send + 'static,
    ) -> Held {
        let (hit, is_hit) = oneshot::channel();
        let (release, released) = oneshot::channel();
        let (status, answered) = oneshot::channel();
        *lock(&self.rules) = Some(Rule {
            which: Box::new(which),
            place,
            hit,
            released,
            status,
        });
        Held {
            hit: is_hit,
            release,
            status: answered,
        }
    }
}

impl Drop for RequestProxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn converse(stream: TcpStream, client: Client, rules: Arc<Mutex<Option<Rule>>>) {
    let service = service_fn(|request: Request<Incoming>| {
        let (client, rules) = (client.clone(), Arc::clone(&rules));
        async move {
            let (mut head, body) = request.into_parts();
            let body = body.collect().await.map_err(std::io::Error::other)?;
            head.headers.remove(HOST);
            head.headers.remove(AUTHORIZATION);
            // In a task of its own: it goes on when the client is gone.
            let carried = tokio::spawn(carry(
                Request::from_parts(head, body.to_bytes()),
                client,
                rules,
            ));
            carried.await.map_err(std::io::Error::other)?
        }
    });
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn carry(
    request: Request<Bytes>,
    client: Client,
    rules: Arc<Mutex<Option<Rule>>>,
) -> std::io::Result<Response<Body>> {
    let rule = {
        let mut rules = lock(&rules);
        let (method, path) = (request.method().as_str(), request.uri().path());
        let fits = |rule: &mut Rule| (rule.which)(method, path, request.body());
        if rules.as_mut().is_some_and(fits) {
            rules.take()
        } else {
            None
        }
    };
    let (head, body) = request.into_parts();
    let request = Request::from_parts(head, Body::from(body.to_vec()));
    let Some(rule) = rule else {
        return client.send(request).await.map_err(std::io::Error::other);
    };
    let Rule {
        place,
        hit,
        released,
        status,
        ..
    } = rule;
    if place == Where::Before {
        let _ = hit.send(());
        let _ = released.await;
        let answer = client.send(request).await.map_err(std::io::Error::other)?;
        let _ = status.send(answer.status().as_u16());
        return Ok(answer);
    }
    let answer = client.send(request).await.map_err(std::io::Error::other)?;
    let _ = hit.send(());
    let _ = released.await;
    let _ = status.send(answer.status().as_u16());
    Ok(answer)
}
