//! A machine trusts whom the cluster's bundle names, beside those whom it trusted before, whatever happens to
//! the bundle or to the store.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::windows_instance::WindowsInstance;
use evenkeel_testbed::{Doing, Error, Result, need};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::scene::{AGENT, SOON, Scene};
use crate::scene::let_agents_in;

const BUNDLE: &str = "trusted-ca";
/// A bundle of this size is normal.
const MANY: usize = 300;
/// How long a busy machine that plays Windows may take; two seconds are promised.
const BUSY: Duration = Duration::from_secs(20);

/// A certificate of an authority.
struct Root {
    pem: String,
    der: Vec<u8>,
}

impl Root {
    fn new(name: &str) -> Result<Self> {
        let key = KeyPair::generate().doing(|| "no key")?;
        let mut parameters = CertificateParams::new(Vec::new()).doing(|| "no name")?;
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let signed = parameters.self_signed(&key).doing(|| "no certificate")?;
        Ok(Self {
            pem: signed.pem(),
            der: signed.der().to_vec(),
        })
    }

    fn fingerprint(&self) -> String {
        format!("{:x}", Sha256::digest(&self.der))
    }
}

/// A control plane of its own: everybody else's agents would follow the bundle too.
fn cluster() -> Result<&'static ControlPlane> {
    static OWN: OnceLock<Result<ControlPlane>> = OnceLock::new();
    let cluster = OWN.get_or_init(|| {
        let cluster = ControlPlane::start()?;
        let_agents_in(&cluster)?;
        Ok(cluster)
    });
    cluster.as_ref().map_err(Clone::clone)
}

/// Makes the bundle be this; nothing if it is not filled in.
fn publish(scene: &Scene, text: Option<&str>) -> Result<()> {
    let mut object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": BUNDLE, "namespace": "evenkeel"},
    });
    if let Some(text) = text {
        object["data"] = json!({ "ca-bundle.crt": text });
    }
    let file = scene.instance.folder().join("bundle.json");
    std::fs::write(&file, object.to_string()).doing(|| "cannot write the bundle")?;
    let file = file.display().to_string();
    // Too large for the annotation that `apply` leaves.
    let made = scene.kubectl(&["replace", "-f", &file]);
    if made.is_err() {
        scene.kubectl(&["create", "-f", &file])?;
    }
    Ok(())
}

/// The fingerprints of what is trusted: all of it, and what of it is ours.
fn trusted(scene: &Scene) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let text = scene.instance.ask(&[AGENT, "trust", "list"])?;
    let list: Value = serde_json::from_str(&text).doing(|| text.clone())?;
    let (mut all, mut ours) = (BTreeSet::new(), BTreeSet::new());
    for root in list.as_array().into_iter().flatten() {
        let fingerprint = root["sha256"].as_str().unwrap_or_default().to_owned();
        if root["ours"] == true {
            ours.insert(fingerprint.clone());
        }
        all.insert(fingerprint);
    }
    Ok((all, ours))
}

/// Waits until exactly these are ours; says how long that took.
fn until_ours(scene: &Scene, wanted: &[&Root]) -> Result<Duration> {
    let start = Instant::now();
    let wanted: BTreeSet<String> = wanted.iter().map(|it| it.fingerprint()).collect();
    let found = until("exactly those to be ours", SOON, || {
        let (_, ours) = trusted(scene)?;
        Ok(if ours == wanted {
            Look::Found(())
        } else {
            let missing = wanted.difference(&ours).count();
            let extra = ours.difference(&wanted).count();
            Look::NotYet(format!(
                "{missing} are missing, {extra} should not be there"
            ))
        })
    });
    found.map_err(|error| Error::failed(format!("{error}\n{}", scene.log())))?;
    Ok(start.elapsed())
}

/// Covers P05, P06, P07.
#[test]
fn a_machine_trusts_whom_the_bundle_names_and_whom_it_trusted_before() -> Result<()> {
    if need::skip(&WindowsInstance::NEEDS)? || need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::start_in(cluster()?, "win-trust")?;
    let before = scene.instance.snapshot()?;
    let theirs = Root::new("theirs")?;
    let file = scene.instance.path(r"C:\k\theirs.der")?;
    std::fs::write(file, &theirs.der).doing(|| "cannot write")?;
    scene
        .instance
        .ask(&["windows-probe", "trust", r"C:\k\theirs.der"])?;
    let (strangers, _) = trusted(&scene)?;

    // In place before anything is started, with what can be read of it.
    let names = (0..MANY).map(|at| Root::new(&format!("root {at}")));
    let mut roots: Vec<Root> = names.collect::<Result<_>>()?;
    let bundle = |roots: &[Root]| -> String {
        let broken = "-----BEGIN CERTIFICATE-----\nbroken!\n-----END CERTIFICATE-----\n";
        let all = roots.iter().map(|it| it.pem.as_str());
        all.chain([broken, &theirs.pem]).collect()
    };
    publish(&scene, Some(&bundle(&roots)))?;
    let data = scene.data("", &json!([]))?;
    let hash = scene.publish(&data)?;
    let said = scene.bootstrap()?;
    assert!(said.contains("block 301: it is no base64"), "{said}");
    let ours: Vec<&Root> = roots.iter().collect();
    until_ours(&scene, &ours)?;
    scene.instance.ask(&[AGENT, "service", "install"])?;
    scene.tell(&hash)?;
    scene.until_annotation(super::CURRENT, &hash, SOON)?;
    scene.until_told("BundleBroken", "block 301")?;

    // Only what differs changes.
    roots[7] = Root::new("another")?;
    publish(&scene, Some(&bundle(&roots)))?;
    let ours: Vec<&Root> = roots.iter().collect();
    let took = until_ours(&scene, &ours)?;
    println!("proof: a bundle of {MANY} with one change was followed after {took:?}");
    assert!(took < BUSY, "{took:?}");
    scene.until_told("CertificatesUpdated", "1 came, 1 of ours went")?;

    // Somebody takes one away by hand.
    let file = scene.instance.path(r"C:\k\ours.der")?;
    std::fs::write(file, &roots[3].der).doing(|| "cannot write")?;
    scene
        .instance
        .ask(&["windows-probe", "untrust", r"C:\k\ours.der"])?;
    let took = until_ours(&scene, &ours)?;
    println!("proof: a certificate that was taken away was back after {took:?}");
    scene.until_told("DriftHealed", "certificate CN=root 3: missing")?;

    // Not filled in, or nothing in it that can be read: no reason to trust nobody.
    publish(&scene, None)?;
    publish(&scene, Some("rubbish -----BEGIN CERTIFICATE-----"))?;
    publish(&scene, Some("-----BEGIN CERTIFICATE-----\nrubbish\n"))?;
    scene.until_told("BundleBroken", "block 1: it has no end")?;
    assert_eq!(trusted(&scene)?.1.len(), MANY);

    // A shorter one is followed; one that is gone, without a proxy, leaves nothing of ours. What the
    // administrator brought himself stays, though the bundle had it.
    publish(&scene, Some(&bundle(&roots[..2])))?;
    until_ours(&scene, &[&roots[0], &roots[1]])?;
    scene.kubectl(&["delete", "configmap", BUNDLE, "-n", "evenkeel"])?;
    until_ours(&scene, &[])?;
    assert_eq!(trusted(&scene)?.0, strangers);

    // Cleanup takes ours away, whatever the bundle says.
    publish(&scene, Some(&roots[0].pem))?;
    until_ours(&scene, &[&roots[0]])?;
    scene.instance.ask(&[AGENT, "service", "remove"])?;
    scene.cleanup(&[])?;
    assert_eq!(trusted(&scene)?.0, strangers);
    scene
        .instance
        .ask(&["windows-probe", "untrust", r"C:\k\theirs.der"])?;
    let left = before.diff(&scene.instance.snapshot()?);
    let roots: Vec<&String> = left
        .iter()
        .filter(|line| line.contains("SystemCertificates"))
        .collect();
    assert!(roots.is_empty(), "{roots:?}");
    Ok(())
}
