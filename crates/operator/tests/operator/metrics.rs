//! Who may read the operator's numbers, and what a flood of strangers costs it, with the chart's rights.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result, need};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::scene::{SOON, Scene, alone, free_port};

/// Whoever asks, trusting the certificate of the operator's metrics and no other.
struct Reader {
    connector: TlsConnector,
    address: SocketAddr,
}

impl Reader {
    fn new(certificate: CertificateDer<'static>, address: SocketAddr) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate).doing(|| "no certificate")?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .doing(|| "no TLS")?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            connector: TlsConnector::from(Arc::new(config)),
            address,
        })
    }

    async fn get(&self, path: &str, token: Option<&str>) -> Result<String> {
        let tcp = TcpStream::connect(self.address).await;
        let tcp = tcp.doing(|| "cannot connect")?;
        let name = ServerName::try_from("localhost").doing(|| "no name")?;
        let stream = self.connector.connect(name, tcp).await;
        let mut stream = stream.doing(|| "no TLS")?;
        let token = token.map_or(String::new(), |it| {
            format!("Authorization: Bearer {it}\r\n")
        });
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n{token}\r\n");
        let sent = stream.write_all(request.as_bytes()).await;
        sent.doing(|| "cannot ask")?;
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer).await;
        // Some end a connection without a word of farewell; what came before it counts.
        match read {
            Err(error) if answer.is_empty() => Err(Error::failed(format!("no answer: {error}"))),
            _ => Ok(answer),
        }
    }

    async fn is_answered(&self, token: Option<&str>, status: u16, words: &str) -> Result<()> {
        let line = format!("HTTP/1.1 {status} ");
        until_async(&format!("{status} with {words:?}"), SOON, async || {
            let seen = match self.get("/metrics", token).await {
                Ok(seen) if seen.starts_with(&line) && seen.contains(words) => {
                    return Ok(Look::Found(()));
                }
                Ok(seen) => seen,
                Err(error) => error.to_string(),
            };
            Ok(Look::NotYet(seen))
        })
        .await
    }
}

async fn plain(address: SocketAddr, path: &str) -> Result<String> {
    let stream = TcpStream::connect(address).await;
    let mut stream = stream.doing(|| "cannot connect")?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
    let sent = stream.write_all(request.as_bytes()).await;
    sent.doing(|| "cannot ask")?;
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer).await;
    read.doing(|| "no answer")?;
    Ok(answer)
}

/// Connections that say nothing, for as long as they are kept.
async fn silent(address: SocketAddr, count: usize) -> Result<Vec<TcpStream>> {
    let mut all = Vec::new();
    for _ in 0..count {
        let next = TcpStream::connect(address).await;
        all.push(next.doing(|| "cannot connect")?);
    }
    Ok(all)
}

/// Covers S10.
#[tokio::test(flavor = "multi_thread")]
async fn only_who_has_the_right_reads_metrics_and_health_answers_in_a_flood() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("numbers").await?;
    let kubectl = |arguments: &[&str]| scene.control_plane.kubectl(arguments);
    for account in ["reader", "stranger"] {
        kubectl(&["create", "serviceaccount", account, "-n", &scene.name])?;
    }
    let role = Chart::render(&scene.name, &[])?.component("people");
    let one = alone();
    role.kinds(&["ClusterRole"]).apply(scene.control_plane)?;
    drop(one);
    let own = scene.own("reader");
    kubectl(&[
        "create",
        "clusterrolebinding",
        &own,
        "--clusterrole=evenkeel-metrics-reader",
        &format!("--serviceaccount={}:reader", scene.name),
    ])?;
    let token = |account| kubectl(&["create", "token", account, "-n", &scene.name]);
    let (reader_token, stranger_token) = (token("reader")?, token("stranger")?);
    let (reader_token, stranger_token) = (reader_token.trim(), stranger_token.trim());

    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]);
    let made = made.doing(|| "no certificate")?;
    let folder = scene.scratch.path().join("certificate");
    std::fs::create_dir(&folder).doing(|| "no folder")?;
    for (name, text) in [
        ("tls.crt", made.cert.pem()),
        ("tls.key", made.signing_key.serialize_pem()),
    ] {
        std::fs::write(folder.join(name), text).doing(|| "no certificate")?;
    }
    let health = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let _operator = scene.operator(&[
        "--listen",
        &health.to_string(),
        "--metrics-listen",
        &metrics.to_string(),
        "--metrics-auth",
        "--metrics-certificate",
        &folder.to_string_lossy(),
    ])?;
    let reader = Reader::new(made.cert.der().clone(), metrics)?;

    // Nobody, a liar, somebody without the right, and somebody with it.
    reader
        .is_answered(None, 401, "no token: send the header")
        .await?;
    let junk = Some("eyJhbGciOiJub25lIn0.e30.");
    reader.is_answered(junk, 401, "does not accept").await?;
    let user = format!(
        "system:serviceaccount:{}:stranger is not allowed to get /metrics",
        scene.name
    );
    reader.is_answered(Some(stranger_token), 403, &user).await?;
    let number = r#"evenkeel_build_info{program="evenkeel-operator""#;
    reader.is_answered(Some(reader_token), 200, number).await?;
    // What it may is one path, and that is asked for by its name.
    let other = reader.get("/other", Some(reader_token)).await?;
    assert!(other.starts_with("HTTP/1.1 403 "), "{other}");
    // Not beside it, without a token.
    let beside = plain(health, "/metrics").await?;
    assert!(beside.starts_with("HTTP/1.1 404 "), "{beside}");
    assert!(beside.contains("--metrics-listen"), "{beside}");

    until_async("the operator to be ready", SOON, async || {
        let seen = plain(health, "/readyz").await?;
        Ok(if seen.starts_with("HTTP/1.1 200 ") {
            Look::Found(())
        } else {
            Look::NotYet(seen)
        })
    })
    .await?;
    // Five times as many as there are slots, at both doors, and none says a word.
    let crowd = (silent(health, 320).await?, silent(metrics, 320).await?);
    let is_soon = |took: &Duration| *took < Duration::from_secs(1);
    for (what, path) in [("liveness", "/healthz"), ("readiness", "/readyz")] {
        let took = kept_async(what, is_soon, async || {
            let begin = std::time::Instant::now();
            let answer = plain(health, path).await?;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
            Ok(begin.elapsed())
        })
        .await?;
        println!("proof: {path} in a flood after {took:?}");
    }
    kept_async("metrics", is_soon, async || {
        let begin = std::time::Instant::now();
        let answer = reader.get("/metrics", Some(reader_token)).await?;
        assert!(answer.contains(number), "{answer}");
        Ok(begin.elapsed())
    })
    .await?;
    drop(crowd);
    Ok(())
}
