//! A proxy to the world outside, as companies have one: it speaks TLS, with a certificate of an authority that nobody
//! trusts by himself, wants a login, and passes on what is asked of it with CONNECT. The world outside is one name,
//! [`WORLD`], which says [`GREETING`] to whoever comes; nobody reaches it another way.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::ByteString;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::network::GATEWAY;
use crate::world::WORLD;
use crate::{Doing, Result};

/// What is said outside.
pub const GREETING: &str = "hello from outside";
/// Who may pass, with which password.
const USER: &str = "node";
const PASSWORD: &str = "p@ss/word";
/// Nobody may keep a thread longer than this.
const PATIENCE: Duration = Duration::from_secs(20);

/// The proxy. It takes no more connections when it is dropped.
#[derive(Debug)]
pub struct EgressProxy {
    port: u16,
    authority: (String, Vec<u8>),
    passed: Arc<AtomicUsize>,
}

impl EgressProxy {
    /// A proxy that test hosts reach at this machine.
    pub fn start() -> Result<Self> {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = &mut parameters.distinguished_name;
        name.push(DnType::CommonName, "the company's authority");
        let key = || KeyPair::generate().doing(|| "cannot make a key");
        let authority = CertifiedIssuer::self_signed(parameters, key()?);
        let authority = authority.doing(|| "cannot make an authority")?;
        let mut parameters = CertificateParams::default();
        parameters.subject_alt_names = vec![SanType::IpAddress(IpAddr::V4(GATEWAY))];
        let own = key()?;
        let certificate = parameters.signed_by(&own, &authority);
        let certificate = certificate.doing(|| "cannot sign a certificate")?;
        let secret = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .doing(|| "no usable TLS version")?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], secret)
            .doing(|| "cannot use the certificate")?;
        let config = Arc::new(config);
        let listener = TcpListener::bind(("0.0.0.0", 0)).doing(|| "no port is free for a proxy")?;
        let port = listener
            .local_addr()
            .doing(|| "no port is free for a proxy")?
            .port();
        let passed = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&passed);
        std::thread::spawn(move || {
            for connection in listener.incoming().map_while(std::result::Result::ok) {
                // Nobody but the owner and this thread counts any more: the owner is gone.
                if Arc::strong_count(&count) == 1 {
                    return;
                }
                let (config, count) = (Arc::clone(&config), Arc::clone(&count));
                std::thread::spawn(move || {
                    if serve(connection, config).is_ok_and(|it| it) {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        Ok(Self {
            port,
            authority: (authority.pem(), authority.der().to_vec()),
            passed,
        })
    }

    /// How it is called in an environment, with the login that it wants.
    pub fn url(&self) -> String {
        let password = PASSWORD.replace('@', "%40").replace('/', "%2F");
        format!("https://{USER}:{password}@{GATEWAY}:{}", self.port)
    }

    /// The certificate of its authority: as PEM.
    pub fn authority_pem(&self) -> &str {
        &self.authority.0
    }

    /// The same, encoded.
    pub fn authority_der(&self) -> &[u8] {
        &self.authority.1
    }

    /// How many have passed.
    pub fn passed(&self) -> usize {
        self.passed.load(Ordering::Relaxed)
    }
}

/// Serves one connection; whether somebody has passed.
fn serve(connection: TcpStream, config: Arc<ServerConfig>) -> Result<bool> {
    let failed = || "a connection to the proxy has ended";
    connection.set_read_timeout(Some(PATIENCE)).doing(failed)?;
    let session = ServerConnection::new(config).doing(failed)?;
    let mut stream = StreamOwned::new(session, connection);
    let mut asked = Vec::new();
    let mut byte = [0];
    while !asked.ends_with(b"\r\n\r\n") && asked.len() < 4096 {
        stream.read_exact(&mut byte).doing(failed)?;
        asked.push(byte[0]);
    }
    let asked = String::from_utf8_lossy(&asked).into_owned();
    let login = ByteString(format!("{USER}:{PASSWORD}").into_bytes());
    let login = serde_json::to_value(login).doing(failed)?;
    let login = format!("Basic {}", login.as_str().unwrap_or_default());
    let may_pass = asked.lines().any(|line| {
        let field = line.split_once(": ");
        field.is_some_and(|(name, value)| {
            name.eq_ignore_ascii_case("proxy-authorization") && value == login
        })
    });
    let (answer, passes) = if !may_pass {
        ("407 Proxy Authentication Required", false)
    } else if asked.starts_with(&format!("CONNECT {WORLD} ")) {
        ("200 Connection Established", true)
    } else {
        ("502 Bad Gateway", false)
    };
    let mut answer = format!("HTTP/1.1 {answer}\r\n\r\n");
    if passes {
        answer = format!("{answer}{GREETING}\n");
    }
    stream.write_all(answer.as_bytes()).doing(failed)?;
    stream.conn.send_close_notify();
    stream.flush().doing(failed)?;
    Ok(passes)
}
