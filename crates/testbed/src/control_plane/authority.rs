//! The certificates of a control plane: one authority, which signs the server's certificate and any
//! login a test asks for.

use std::net::IpAddr;
use std::ops::Range;
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};

use crate::{Doing, Error, Result};

/// A certificate and its key, as PEM.
pub(super) struct Pair {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// Whom everyone in the cluster trusts.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(super) fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        params
            .distinguished_name
            .push(DnType::CommonName, "testbed");
        CertifiedIssuer::self_signed(params, key()?)
            .map(Self)
            .doing(|| "cannot make a certificate authority")
    }

    pub(super) fn certificate(&self) -> String {
        self.0.pem()
    }

    pub(super) fn key(&self) -> String {
        self.0.key().serialize_pem()
    }

    /// A server's certificate, for these names and addresses.
    pub(super) fn server(&self, names: &[&str], addresses: &[IpAddr]) -> Result<Pair> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).doing(|| "cannot name the API server")?;
        params
            .subject_alt_names
            .extend(addresses.iter().copied().map(SanType::IpAddress));
        params
            .distinguished_name
            .push(DnType::CommonName, "kube-apiserver");
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A login as `user` in `groups`, which `holds` for some time or for as long as anybody cares.
    pub(super) fn client(
        &self,
        user: &str,
        groups: &[&str],
        holds: Option<Range<SystemTime>>,
    ) -> Result<Pair> {
        // The library keeps one value for each kind of name part. The same part by its number is
        // another kind to it, which makes two groups; nobody needed a third.
        let kinds = [
            DnType::OrganizationName,
            DnType::CustomDnType(vec![2, 5, 4, 10]),
        ];
        if groups.len() > kinds.len() {
            return Err(Error::failed(format!(
                "a certificate can name {} groups, and {user} needs {}",
                kinds.len(),
                groups.len()
            )));
        }
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        for (kind, &group) in kinds.into_iter().zip(groups) {
            params.distinguished_name.push(kind, group);
        }
        if let Some(holds) = holds {
            params.not_before = holds.start.into();
            params.not_after = holds.end.into();
        }
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Result<Pair> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let key = key()?;
        let certificate = params
            .signed_by(&key, &self.0)
            .doing(|| "cannot sign a certificate")?;
        Ok(Pair {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

/// A new key.
pub(super) fn key() -> Result<KeyPair> {
    KeyPair::generate().doing(|| "cannot make a key")
}
