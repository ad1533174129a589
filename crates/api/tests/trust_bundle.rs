//! A bundle of certificates is read block by block.

use evenkeel_api::windows::trust_bundle::TrustBundle;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};

const NOW: i64 = 1_800_000_000;

fn root(name: &str) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.not_before = date_time_ymd(2020, 1, 1);
    parameters.not_after = date_time_ymd(2040, 1, 1);
    parameters
}

fn pem(parameters: &CertificateParams) -> Result<String, rcgen::Error> {
    Ok(parameters.self_signed(&KeyPair::generate()?)?.pem())
}

/// Covers P09.
#[test]
fn every_block_that_parses_is_taken_and_the_others_are_named() {
    let (one, two) = (pem(&root("one")).unwrap(), pem(&root("two")).unwrap());
    let mut leaf = root("leaf");
    leaf.is_ca = IsCa::NoCa;
    let mut old = root("old");
    old.not_after = date_time_ymd(2021, 1, 1);
    let mut young = root("young");
    young.not_before = date_time_ymd(2039, 1, 1);
    let text = [
        "# a comment\n",
        &one,
        "-----BEGIN CERTIFICATE-----\nnot base64!\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nAAEC\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nAAEC\n",
        &two,
        "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n",
        &pem(&leaf).unwrap(),
        &pem(&old).unwrap(),
        &pem(&young).unwrap(),
        &one.replace('\n', "\r\n"),
    ]
    .concat();
    let bundle = TrustBundle::read("trusted-ca", &text, NOW);
    let subjects: Vec<&str> = bundle
        .certificates
        .iter()
        .map(|it| it.subject.as_str())
        .collect();
    let names = ["one", "two", "leaf", "old", "young"].map(|name| format!("CN={name}"));
    assert_eq!(subjects, names);
    let problems: Vec<String> = bundle.problems.iter().map(ToString::to_string).collect();
    for (at, words) in [
        "block 2: not valid base64",
        "block 3: not an X.509 certificate",
        "block 4: the block has no end",
        "block 6: found a PRIVATE KEY",
    ]
    .iter()
    .enumerate()
    {
        assert!(problems[at].contains(words), "{problems:?}");
        assert!(
            problems[at].starts_with("trusted-ca: line "),
            "{problems:?}"
        );
    }
    assert_eq!(problems.len(), 4);
    assert!(!problems.concat().contains("c2VjcmV0"), "{problems:?}");
    let warnings: Vec<String> = bundle.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 3);
    for (warning, words) in warnings.iter().zip([
        "block 7 CN=leaf: not a CA certificate",
        "block 8 CN=old: the certificate has expired",
        "block 9 CN=young: the certificate is not valid yet",
    ]) {
        assert!(warning.contains(words), "{warning}");
    }
}

#[test]
fn a_text_without_a_block_is_an_empty_bundle() {
    for text in [
        "",
        " \n",
        "no certificates here\n",
        "-----END CERTIFICATE-----\n",
    ] {
        assert_eq!(TrustBundle::read("x", text, NOW), TrustBundle::default());
    }
}

/// A bundle as the largest that may be in a ConfigMap, and larger.
#[test]
fn a_bundle_of_five_megabytes_is_read_at_once() {
    let one = pem(&root("one")).unwrap();
    let text = one.repeat(5_000_000 / one.len() + 1);
    let start = std::time::Instant::now();
    let bundle = TrustBundle::read("x", &text, NOW);
    assert_eq!(bundle.certificates.len(), 1);
    assert!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
}
