//! The part of a kubelet that serves its machine's logs: `GET /logs/…` over TLS, folders as Go's file server
//! lists them, files whole. The API server is the only one who asks, and is let in.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::{Doing, Result};

/// The port of kubelets.
pub const PORT: u16 = 10250;
/// A longer question is none.
const QUESTION: usize = 16 << 10;

/// It ends when it is dropped.
#[derive(Debug)]
pub struct LogServer(JoinHandle<()>);

impl Drop for LogServer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl LogServer {
    /// Serves `folder` at `address`.
    pub async fn start(address: SocketAddr, folder: &Path) -> Result<Self> {
        let acceptor = acceptor()?;
        let listener = TcpListener::bind(address).await;
        let listener = listener.doing(|| format!("cannot listen at {address}"))?;
        let folder: Arc<Path> = folder.into();
        Ok(Self(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, folder) = (acceptor.clone(), Arc::clone(&folder));
                tokio::spawn(async move {
                    // One who goes away in the middle has no answer.
                    let _ = answer(stream, &acceptor, &folder).await;
                });
            }
        })))
    }
}

/// A certificate that nobody knows: as long as a kubelet has no better one, the API server takes it.
fn acceptor() -> Result<TlsAcceptor> {
    let made = rcgen::generate_simple_self_signed(vec!["kubelet".to_owned()]);
    let made = made.doing(|| "cannot make a certificate")?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .doing(|| "no TLS")?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], PrivateKeyDer::from(key))
        .doing(|| "cannot use a certificate")?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn answer(stream: TcpStream, acceptor: &TlsAcceptor, folder: &Path) -> std::io::Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let mut question = Vec::new();
    while !question.ends_with(b"\r\n\r\n") && question.len() < QUESTION {
        question.push(stream.read_u8().await?);
    }
    let text = String::from_utf8_lossy(&question);
    let path = text.split_whitespace().nth(1).unwrap_or_default();
    let (status, kind, body) = match found(path, folder) {
        Some((kind, body)) => ("200 OK", kind, body),
        None => (
            "404 Not Found",
            "text/plain",
            b"404 page not found\n".to_vec(),
        ),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    stream.shutdown().await
}

fn found(path: &str, folder: &Path) -> Option<(&'static str, Vec<u8>)> {
    let path = path.split('?').next().unwrap_or_default();
    let inside = path.strip_prefix("/logs/")?;
    if inside.split('/').any(|part| part == "..") {
        return None;
    }
    let place: PathBuf = inside.split('/').fold(folder.to_owned(), |folder, part| {
        if part.is_empty() {
            folder
        } else {
            folder.join(part)
        }
    });
    if !place.is_dir() {
        return Some(("text/plain", std::fs::read(place).ok()?));
    }
    let mut names: Vec<String> = std::fs::read_dir(place)
        .ok()?
        .flatten()
        .map(|entry| {
            let end = if entry.path().is_dir() { "/" } else { "" };
            format!("{}{end}", entry.file_name().to_string_lossy())
        })
        .collect();
    names.sort();
    let mut page = String::from(
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n",
    );
    for name in names {
        let _ = writeln!(page, "<a href=\"{name}\">{name}</a>");
    }
    page.push_str("</pre>\n");
    Some(("text/html; charset=utf-8", page.into_bytes()))
}
