//! TLS with what serves on this machine: its certificate is verified with the CA of the probe, or with nothing where the
//! probe says so.

use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_api::readiness::{HttpGet, ProbeHost, ProbeTls};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
    StreamOwned,
};

use super::connection::Connection;

/// The connection with TLS on it. The first write brings the server's certificate, and fails if that is not good.
pub(super) fn secured(
    stream: Connection,
    trust: &ProbeTls,
    get: &HttpGet,
) -> Result<StreamOwned<ClientConnection, Connection>, String> {
    let port = get.port;
    let peer = stream.peer().map_err(|error| error.to_string())?;
    let name = server_name(trust, get.host, peer)?;
    let session = ClientConnection::new(Arc::new(config(trust)?), name);
    let session = session.map_err(|error| format!("no TLS with port {port}: {error}"))?;
    Ok(StreamOwned::new(session, stream))
}

/// Whose certificate it must be.
fn server_name(
    trust: &ProbeTls,
    host: ProbeHost,
    peer: IpAddr,
) -> Result<ServerName<'static>, String> {
    let name = match trust {
        ProbeTls::Ca { server_name, .. } if !server_name.is_empty() => server_name.clone(),
        _ if host == ProbeHost::Loopback => "localhost".to_owned(),
        _ => return Ok(ServerName::from(peer)),
    };
    ServerName::try_from(name.clone())
        .map_err(|_| format!("serverName {name:?} is no name that a certificate may have"))
}

fn config(trust: &ProbeTls) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("no TLS: {error}"))?;
    Ok(match trust {
        ProbeTls::Ca { pem, .. } => builder
            .with_root_certificates(roots(pem)?)
            .with_no_client_auth(),
        ProbeTls::Unverified => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
            .with_no_client_auth(),
    })
}

fn roots(pem: &str) -> Result<RootCertStore, String> {
    let unreadable = |why: String| format!("the ca of the probe cannot be read: {why}");
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
        let added = roots.add(certificate);
        added.map_err(|error| unreadable(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(unreadable("it has no certificates".to_owned()));
    }
    Ok(roots)
}

/// Takes any certificate; whoever shows it must still have its key.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
