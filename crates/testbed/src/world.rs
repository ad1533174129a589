//! The world outside as a program sees it that uses a proxy: over TLS, with whom it trusts and the login that is in
//! the proxy's URL.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use rustls::StreamOwned;

use crate::{Doing, Result};

/// Who is outside.
pub const WORLD: &str = "world.example:443";
const PATIENCE: Duration = Duration::from_secs(20);

/// Asks a proxy for [`WORLD`] and returns what is said there; `roots` are trusted, encoded, and nobody else.
pub fn ask_world(proxy: &str, roots: Vec<Vec<u8>>) -> Result<String> {
    let rest = proxy.strip_prefix("https://").unwrap_or(proxy);
    let (login, authority) = rest.rsplit_once('@').unwrap_or(("", rest));
    let host = authority.split(':').next().unwrap_or_default().to_owned();
    let mut store = rustls::RootCertStore::empty();
    store.add_parsable_certificates(roots.into_iter().map(Into::into));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .doing(|| "no usable TLS version")?
        .with_root_certificates(store)
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from(host).doing(|| "the proxy has no name")?;
    let session = rustls::ClientConnection::new(Arc::new(config), name);
    let session = session.doing(|| "cannot speak TLS")?;
    let failed = || format!("the proxy at {authority} refuses the connection");
    let socket = TcpStream::connect(authority).doing(failed)?;
    socket.set_read_timeout(Some(PATIENCE)).doing(failed)?;
    let mut stream = StreamOwned::new(session, socket);
    let login = ByteString(decoded(login));
    let login = serde_json::to_value(login).doing(failed)?;
    let login = login.as_str().unwrap_or_default();
    let ask = format!(
        "CONNECT {WORLD} HTTP/1.1\r\nHost: {WORLD}\r\nProxy-Authorization: Basic {login}\r\n\r\n"
    );
    stream.write_all(ask.as_bytes()).doing(failed)?;
    let mut lines = BufReader::new(stream).lines();
    let mut next = || match lines.next() {
        Some(line) => line.doing(failed),
        None => Ok(String::new()),
    };
    let answer = next()?;
    if !answer.contains(" 200 ") {
        return Err(crate::Error::failed(answer));
    }
    while !next()?.is_empty() {}
    next()
}

/// What a login in a URL stands for.
fn decoded(login: &str) -> Vec<u8> {
    let mut parts = login.split('%');
    let first = parts.next().unwrap_or_default();
    parts.fold(first.as_bytes().to_vec(), |mut bytes, part| {
        let (digits, rest) = part.split_at_checked(2).unwrap_or((part, ""));
        bytes.push(u8::from_str_radix(digits, 16).unwrap_or(b'?'));
        bytes.extend(rest.as_bytes());
        bytes
    })
}
