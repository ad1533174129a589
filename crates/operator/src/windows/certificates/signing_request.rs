//! What a request for a certificate says, read from its bytes. Whether that is right is decided in
//! `evenkeel_plan::windows::certificates`.

use std::net::IpAddr;

use evenkeel_api::names::certificate;
use evenkeel_api::names::identity::AGENT_USER_PREFIX;
use evenkeel_plan::windows::certificates::{SigningRequest, Subject};
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME};
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer;

/// Where the API server says which of all logins of a user it is.
const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// The request, as decisions need it.
pub(crate) fn read(object: &CertificateSigningRequest) -> SigningRequest {
    let spec = &object.spec;
    let credentials = spec.extra.as_ref().and_then(|it| it.get(CREDENTIAL));
    SigningRequest {
        signer: spec.signer_name.clone(),
        user: spec.username.clone().unwrap_or_default(),
        groups: spec.groups.iter().flatten().cloned().collect(),
        credential: credentials.and_then(|it| it.first()).cloned(),
        usages: spec.usages.iter().flatten().cloned().collect(),
        subject: subject(&spec.request.0),
    }
}

/// Whose agent was given a login by this request, and until when it holds.
pub(crate) fn agent_login(object: &CertificateSigningRequest) -> Option<(String, Timestamp)> {
    if object.spec.signer_name != certificate::CLIENT {
        return None;
    }
    let signed = &object.status.as_ref()?.certificate.as_ref()?.0;
    let (_, pem) = parse_x509_pem(signed).ok()?;
    let certificate = pem.parse_x509().ok()?;
    let name = certificate.subject().iter_common_name().next()?;
    let node = name.as_str().ok()?.strip_prefix(AGENT_USER_PREFIX)?;
    let ends = certificate.validity().not_after.timestamp();
    Some((node.to_owned(), Timestamp::from_second(ends).ok()?))
}

fn subject(pem: &[u8]) -> Result<Subject, String> {
    let (rest, pem) = parse_x509_pem(pem).map_err(|error| format!("it is not PEM: {error}"))?;
    if !rest.trim_ascii().is_empty() {
        return Err("it has more than one PEM block".to_owned());
    }
    let (rest, request) = X509CertificationRequest::from_der(&pem.contents)
        .map_err(|error| format!("it is not a certificate request: {error}"))?;
    if !rest.is_empty() {
        return Err("it has data after the certificate request".to_owned());
    }
    request
        .verify_signature()
        .map_err(|error| format!("its signature does not match its key: {error}"))?;
    let mut subject = Subject::default();
    let info = &request.certification_request_info;
    for attribute in info.subject.iter_attributes() {
        let kind = attribute.attr_type();
        let text = attribute.as_str();
        let text = text.map_err(|error| format!("a name in it cannot be read: {error}"))?;
        if *kind == OID_X509_COMMON_NAME {
            subject.common_names.push(text.to_owned());
        } else if *kind == OID_X509_ORGANIZATION_NAME {
            subject.organisations.push(text.to_owned());
        } else {
            subject.others.push(format!("the name {kind} {text:?}"));
        }
    }
    for attribute in info.iter_attributes() {
        let ParsedCriAttribute::ExtensionRequest(requested) = attribute.parsed_attribute() else {
            subject.others.push(format!("attribute {}", attribute.oid));
            continue;
        };
        for extension in &requested.extensions {
            match extension.parsed_extension() {
                ParsedExtension::SubjectAlternativeName(names) => {
                    for name in &names.general_names {
                        alternative(name, &mut subject);
                    }
                }
                _ => subject.others.push(format!("extension {}", extension.oid)),
            }
        }
    }
    Ok(subject)
}

fn alternative(name: &GeneralName<'_>, subject: &mut Subject) {
    let address = |bytes: &[u8]| match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    };
    match name {
        GeneralName::DNSName(name) => subject.dns.push((*name).to_owned()),
        GeneralName::IPAddress(bytes) if address(bytes).is_some() => {
            subject.addresses.extend(address(bytes));
        }
        other => subject.others.push(format!("the name {other}")),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn pem(change: impl FnOnce(&mut CertificateParams)) -> String {
        let mut parameters = CertificateParams::default();
        let name = &mut parameters.distinguished_name;
        name.push(DnType::OrganizationName, "system:nodes");
        name.push(DnType::CommonName, "system:node:win-1");
        change(&mut parameters);
        let key = KeyPair::generate().unwrap();
        parameters.serialize_request(&key).unwrap().pem().unwrap()
    }

    fn said(pem: &str) -> Result<Subject, String> {
        let spec = CertificateSigningRequestSpec {
            request: ByteString(pem.as_bytes().to_vec()),
            ..CertificateSigningRequestSpec::default()
        };
        let object = CertificateSigningRequest {
            spec,
            ..CertificateSigningRequest::default()
        };
        read(&object).subject
    }

    #[test]
    fn every_word_of_a_request_is_read() {
        let plain = Subject {
            common_names: vec!["system:node:win-1".to_owned()],
            organisations: vec!["system:nodes".to_owned()],
            ..Subject::default()
        };
        assert_eq!(said(&pem(|_| {})), Ok(plain.clone()));
        let full = said(&pem(|it| {
            let name = &mut it.distinguished_name;
            name.push(DnType::OrganizationalUnitName, "more");
            it.subject_alt_names = vec![
                SanType::DnsName("win-1".try_into().unwrap()),
                SanType::IpAddress("10.0.0.1".parse().unwrap()),
                SanType::IpAddress("2001:db8::1".parse().unwrap()),
                SanType::Rfc822Name("a@b".try_into().unwrap()),
                SanType::URI("spiffe://a/b".try_into().unwrap()),
            ];
        }))
        .unwrap();
        assert_eq!(full.dns, ["win-1"]);
        let addresses: [IpAddr; 2] = ["10.0.0.1", "2001:db8::1"].map(|it| it.parse().unwrap());
        assert_eq!(full.addresses, addresses);
        assert_eq!(full.others.len(), 3, "{:?}", full.others);
        assert_eq!(full.common_names, plain.common_names);
    }

    #[test]
    fn what_is_no_request_is_no_subject() {
        let good = pem(|_| {});
        let lines: Vec<_> = good.lines().collect();
        // The signature is at the end.
        let mut forged: Vec<String> = lines.iter().map(|&it| it.to_owned()).collect();
        let last = forged.len() - 2;
        let line = &mut forged[last];
        let changed = if line.starts_with('A') { "B" } else { "A" };
        line.replace_range(..1, changed);
        for (text, words) in [
            (String::new(), "not PEM"),
            (good.repeat(2), "more than one"),
            (forged.join("\n"), "signature"),
        ] {
            let error = said(&text).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
