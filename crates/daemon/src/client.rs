//! The client of the API server: our name in its logs, a limit to every answer, no hidden repeats, and
//! every request counted by what it asks for.

use std::path::Path;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::header::USER_AGENT;
use http::{HeaderValue, Method, Request, Response};
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::{BoxError, Layer, Service};

use crate::program::Program;
use crate::reachability::CONNECT;
use crate::{Error, Metrics, Result};

/// How long the beginning of an answer may take; a watch, too, begins at once.
const ANSWER: Duration = Duration::from_secs(30);
/// How long a connection may be silent in the middle of an answer. A watch ends by itself before that.
const SILENCE: Duration = Duration::from_mins(5);

/// How to reach the cluster: `file`, else the pod's service account, else the variable KUBECONFIG.
pub async fn kubeconfig(file: Option<&Path>) -> Result<Config> {
    if let Some(path) = file {
        let failed = |source| Error::Kubeconfig {
            path: path.to_owned(),
            source,
        };
        let loaded = Kubeconfig::read_from(path).map_err(failed)?;
        return direct(loaded).await.map_err(failed);
    }
    if let Ok(config) = Config::incluster() {
        return Ok(config);
    }
    let loaded = Kubeconfig::read().map_err(Error::NoCluster)?;
    direct(loaded).await.map_err(Error::NoCluster)
}

/// The way that a kubeconfig describes, and no other. The proxy in a machine's environment is for the world outside:
/// the client would take it for the API server, too, whatever `NO_PROXY` says.
pub async fn direct(mut kubeconfig: Kubeconfig) -> std::result::Result<Config, KubeconfigError> {
    /// Keeps the environment from being asked; nobody goes there.
    const NOBODY: &str = "nobody.invalid";
    let clusters = kubeconfig.clusters.iter_mut();
    for cluster in clusters.filter_map(|it| it.cluster.as_mut()) {
        let is_absent = |it: &String| it.trim().is_empty();
        if cluster.proxy_url.as_ref().is_none_or(is_absent) {
            cluster.proxy_url = Some(format!("http://{NOBODY}"));
        }
    }
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.proxy_url.take_if(|it| it.host() == Some(NOBODY));
    Ok(config)
}

/// A client for `config` that counts in `metrics`. A program whose login changes makes another one.
pub fn connect(mut config: Config, program: Program, metrics: &Metrics) -> Result<Client> {
    let name = format!(
        "{}/{} ({}/{})",
        program.name,
        program.version,
        std::env::consts::OS,
        std::env::consts::ARCH
    );
    let agent = HeaderValue::from_str(&name).map_err(|_| Error::UserAgent(name))?;
    config.headers.push((USER_AGENT, agent));
    config.connect_timeout = Some(CONNECT);
    config.write_timeout = Some(ANSWER);
    config.read_timeout = Some(SILENCE);
    config.reset_reader_on_write = true;
    config.default_retry = false;
    let server = server(&config);
    let builder = ClientBuilder::try_from(config).map_err(|source| Error::Client {
        server: server.clone(),
        source: Box::new(source),
    })?;
    let counting = Counting {
        metrics: metrics.clone(),
        server,
    };
    Ok(builder.with_layer(&counting).build())
}

/// The address of the API server, for people.
pub(crate) fn server(config: &Config) -> String {
    config
        .cluster_url
        .to_string()
        .trim_end_matches('/')
        .to_owned()
}

/// Counts requests and failures, takes note of who cannot be reached, and limits how long an answer may take to begin.
struct Counting {
    metrics: Metrics,
    server: String,
}

struct Counted<S> {
    inner: S,
    metrics: Metrics,
    server: String,
}

/// The API server did not begin to answer in time.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer within {0:?}")]
struct Late(Duration);

impl<S> Layer<S> for Counting {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted {
            inner,
            metrics: self.metrics.clone(),
            server: self.server.clone(),
        }
    }
}

impl<S, B> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let asked = Asked::of(
            request.method(),
            request.uri().path(),
            request.uri().query(),
        );
        self.metrics.request(asked.verb, &asked.resource).inc();
        let (metrics, server) = (self.metrics.clone(), self.server.clone());
        let answer = self.inner.call(request);
        Box::pin(async move {
            match tokio::time::timeout(ANSWER, answer).await {
                Ok(Ok(response)) => {
                    metrics.reachability().answered();
                    let status = response.status();
                    if status.is_client_error() || status.is_server_error() {
                        metrics.failed(status.as_str());
                    }
                    Ok(response)
                }
                Ok(Err(error)) => {
                    metrics.failed("connection");
                    metrics.reachability().failed(&server, error.as_ref());
                    Err(error)
                }
                Err(_) => {
                    metrics.failed("timeout");
                    metrics.reachability().failed(&server, &Late(ANSWER));
                    Err(Late(ANSWER).into())
                }
            }
        })
    }
}

/// What a request asks for, in the words of an RBAC rule.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    verb: &'static str,
    resource: String,
}

impl Asked {
    fn of(method: &Method, path: &str, query: Option<&str>) -> Self {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let inside = match *parts.as_slice() {
            ["api", _, ref inside @ ..] | ["apis", _, _, ref inside @ ..] => inside,
            _ => &[],
        };
        let (resource, named) = match *inside {
            [] => return Self::other(method),
            // A namespace itself, or something of a namespace.
            ["namespaces", _, resource, _, sub] => (format!("{resource}/{sub}"), true),
            ["namespaces", _, "status" | "finalize"] => ("namespaces/status".to_owned(), true),
            ["namespaces", _, resource, ref name @ ..] => (resource.to_owned(), !name.is_empty()),
            [resource, _, sub, ..] => (format!("{resource}/{sub}"), true),
            [resource, ref name @ ..] => (resource.to_owned(), !name.is_empty()),
        };
        let watched = query.unwrap_or_default().split('&').any(|pair| {
            matches!(pair.split_once('='), Some(("watch", "true" | "1"))) || pair == "watch"
        });
        let verb = match *method {
            Method::GET if watched => "watch",
            Method::GET if named => "get",
            Method::GET => "list",
            Method::DELETE if !named => "deletecollection",
            _ => verb(method),
        };
        Self { verb, resource }
    }

    /// A page that is no object: the version, the discovery of groups.
    fn other(method: &Method) -> Self {
        Self {
            verb: verb(method),
            resource: "other".to_owned(),
        }
    }
}

fn verb(method: &Method) -> &'static str {
    match *method {
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_counted_in_the_words_of_an_rbac_rule() {
        let lease = "/apis/coordination.k8s.io/v1/namespaces/node-extensions/leases";
        for (method, path, verb, resource) in [
            (Method::GET, "/api/v1/nodes", "list", "nodes"),
            (
                Method::GET,
                "/api/v1/nodes?watch=true&limit=1",
                "watch",
                "nodes",
            ),
            (
                Method::GET,
                "/api/v1/nodes?&fieldSelector=a%3Db&watch=1",
                "watch",
                "nodes",
            ),
            (Method::GET, "/api/v1/nodes?watch=false", "list", "nodes"),
            (Method::GET, "/api/v1/nodes/n1", "get", "nodes"),
            (Method::PATCH, "/api/v1/nodes/n1?", "patch", "nodes"),
            (
                Method::PATCH,
                "/api/v1/nodes/n1/status",
                "patch",
                "nodes/status",
            ),
            (Method::GET, "/api/v1/namespaces", "list", "namespaces"),
            (Method::GET, "/api/v1/namespaces/a", "get", "namespaces"),
            (
                Method::PUT,
                "/api/v1/namespaces/a/finalize",
                "update",
                "namespaces/status",
            ),
            (Method::GET, "/api/v1/namespaces/a/pods", "list", "pods"),
            (
                Method::DELETE,
                "/api/v1/namespaces/a/pods",
                "deletecollection",
                "pods",
            ),
            (
                Method::DELETE,
                "/api/v1/namespaces/a/pods/p",
                "delete",
                "pods",
            ),
            (
                Method::POST,
                "/api/v1/namespaces/a/pods/p/eviction",
                "create",
                "pods/eviction",
            ),
            (Method::POST, lease, "create", "leases"),
            (
                Method::PUT,
                &format!("{lease}/n1.evenkeel-agent"),
                "update",
                "leases",
            ),
            (
                Method::GET,
                "/apis/machineconfiguration.openshift.io/v1/machineconfigs/rendered-a",
                "get",
                "machineconfigs",
            ),
            (Method::GET, "/version", "get", "other"),
            (Method::GET, "/apis/apps/v1", "get", "other"),
        ] {
            let (path, query) = path
                .split_once('?')
                .map_or((path, None), |(a, b)| (a, Some(b)));
            let asked = Asked::of(&method, path, query);
            let expected = Asked {
                verb,
                resource: resource.to_owned(),
            };
            assert_eq!(asked, expected, "{method} {path} {query:?}");
        }
    }

    #[tokio::test]
    async fn a_kubeconfig_that_is_not_there_is_named() {
        let error = kubeconfig(Some(Path::new("/no/such/file")))
            .await
            .unwrap_err();
        assert_eq!(error.category(), "NoCluster");
        assert!(error.to_string().contains("/no/such/file"), "{error}");
    }
}
