//! A machine trusts whom the cluster's bundle names, beside those whom it trusted before, whatever happens to
//! the bundle or to the store.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use evenkeel_api::readiness::{CertificateReport, Report};
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::process::Running;
use evenkeel_testbed::promise::kept;
use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::windows_instance::WindowsInstance;
use evenkeel_testbed::{Doing, Error, Result, need};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, date_time_ymd};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::reports::until_said;
use super::scene::{AGENT, SOON, Scene};
use crate::scene::let_agents_in;

const BUNDLE: &str = "trusted-ca";
/// A bundle of this size is normal.
const MANY: usize = 300;
/// How soon after a bundle is published the store of a machine follows it.
const PROMISED: Duration = Duration::from_secs(2);
/// How soon what somebody takes away by hand is back.
const HEALED: Duration = Duration::from_secs(1);

/// A certificate of an authority.
struct Root {
    pem: String,
    der: Vec<u8>,
}

impl Root {
    fn new(name: &str) -> Result<Self> {
        Self::odd(name, |_| {})
    }

    /// One that is not as others are.
    fn odd(name: &str, change: impl Fn(&mut CertificateParams)) -> Result<Self> {
        let key = KeyPair::generate().doing(|| "no key")?;
        let mut parameters = CertificateParams::new(Vec::new()).doing(|| "no name")?;
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut parameters);
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

/// Waits until exactly these are ours.
fn until_ours(scene: &Scene, wanted: &[&Root]) -> Result<()> {
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
    found.map_err(|error| Error::failed(format!("{error}\n{}", scene.log())))
}

/// How many certificates the agent has given its machine's store, and how many it has taken out, since it began.
fn written(scene: &Scene) -> Result<(u64, u64)> {
    let words = ["windows-probe", "get", "127.0.0.1:9180", "/metrics"];
    let shown = scene.instance.ask(&words)?;
    let count = |what: &str| {
        let name = format!("evenkeel_node_trust_writes_total{{what=\"{what}\"}} ");
        let mut lines = shown.lines();
        let value = lines.find_map(|line| line.trim().strip_prefix(&name));
        let value = value.and_then(|it| it.parse().ok());
        value.ok_or_else(|| Error::failed(format!("no {name} in {shown}")))
    };
    Ok((count("import")?, count("remove")?))
}

/// Replaces the bundle, and says how long after that request the machine's store has `root`.
fn followed(scene: &Scene, text: &str, root: &Root) -> Result<Duration> {
    let place = r"C:\k\awaited.der";
    std::fs::write(scene.instance.path(place)?, &root.der).doing(|| "cannot write")?;
    let log = scene.instance.folder().join("awaited.log");
    let words = ["windows-probe", "await-trust", place];
    let mut watcher = Running::start("the watcher", &mut scene.instance.command(&words)?, &log)?;
    let mut line = |number: usize| {
        let found = until("the watcher's next line", SOON, || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            if let Some(line) = text.lines().nth(number).filter(|_| text.ends_with('\n')) {
                return Ok(Look::Found(line.trim().to_owned()));
            }
            if watcher.ended()?.is_some_and(|it| !it.success()) {
                return Err(Error::failed(watcher.last_words()));
            }
            Ok(Look::NotYet(text))
        });
        found.map_err(|error| Error::failed(format!("{error}\n{}", scene.log())))
    };
    assert_eq!(line(0)?, "watching");
    let runtime = tokio::runtime::Runtime::new().doing(|| "no runtime")?;
    let asked = runtime.block_on(async {
        let client = cluster()?.admin_kubeconfig().client().await?;
        let maps: Api<ConfigMap> = Api::namespaced(client, "evenkeel");
        // The connection is made before the clock runs.
        maps.get(BUNDLE).await.doing(|| "there is no bundle")?;
        let patch = Patch::Merge(json!({ "data": { "ca-bundle.crt": text } }));
        let asked = SystemTime::now();
        let done = maps.patch(BUNDLE, &PatchParams::default(), &patch).await;
        done.doing(|| "cannot change the bundle")?;
        Ok::<_, Error>(asked)
    })?;
    let seen = line(1)?;
    let seen = seen.parse().doing(|| format!("no time: {seen}"))?;
    let seen = SystemTime::UNIX_EPOCH + Duration::from_micros(seen);
    let took = seen.duration_since(asked);
    took.doing(|| "it was there before it was published")
}

/// Waits until the agent reports so many certificates in its Lease.
fn until_counted(scene: &Scene, wanted: CertificateReport) -> Result<()> {
    let is_it = |report: &Report| report.certificates == Some(wanted);
    until_said(scene, &format!("a report of {wanted:?}"), is_it).map(|_| ())
}

/// Covers P05, P06, P07, P09.
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
    roots[0] = Root::odd("old", |it| it.not_after = date_time_ymd(2021, 1, 1))?;
    roots[1] = Root::odd("young", |it| it.not_before = date_time_ymd(2090, 1, 1))?;
    roots[2] = Root::odd("leaf", |it| it.is_ca = IsCa::NoCa)?;
    let bundle = |roots: &[Root]| -> String {
        let broken = "-----BEGIN CERTIFICATE-----\nbroken!\n-----END CERTIFICATE-----\n";
        let all = roots.iter().map(|it| it.pem.as_str());
        all.chain([broken, &theirs.pem]).collect()
    };
    publish(&scene, Some(&bundle(&roots)))?;
    let data = scene.data("", &json!([]))?;
    let hash = scene.publish(&data)?;
    let said = scene.bootstrap()?;
    assert!(said.contains("block 301: not valid base64"), "{said}");
    let ours: Vec<&Root> = roots.iter().collect();
    until_ours(&scene, &ours)?;
    scene.instance.ask(&[AGENT, "service", "install"])?;
    scene.tell(&hash)?;
    scene.until_annotation(super::CURRENT, &hash, SOON)?;
    scene.until_told("BundleBroken", "block 301")?;
    let doubts = scene.until_told(
        "BundleDoubtful",
        "block 1 CN=old: the certificate has expired",
    )?;
    for words in [
        "block 2 CN=young: the certificate is not valid yet",
        "block 3 CN=leaf: not a CA certificate",
    ] {
        assert!(doubts.contains(words), "{doubts}");
    }
    let counts = |ours: usize| CertificateReport {
        ours,
        missing: 0,
        foreign: strangers.len(),
    };
    until_counted(&scene, counts(MANY))?;

    // Only what differs changes: one certificate comes and one goes, and the store is asked for nothing else.
    let followed = || {
        roots[7] = Root::new("another")?;
        let begun = written(&scene)?;
        let took = followed(&scene, &bundle(&roots), &roots[7])?;
        scene.until_told("CertificatesUpdated", "1 added, 1 removed")?;
        let ours: Vec<&Root> = roots.iter().collect();
        until_ours(&scene, &ours)?;
        let after = written(&scene)?;
        assert_eq!((after.0 - begun.0, after.1 - begun.1), (1, 1));
        Ok(took)
    };
    let promise = "the store follows the bundle within two seconds";
    let took = kept(promise, |took| *took < PROMISED, followed)?;
    println!(
        "proof: a bundle of {MANY} with one change was followed after {took:?}, by 1 import and 1 removal"
    );
    until_counted(&scene, counts(MANY))?;

    // Somebody takes one away by hand.
    let file = scene.instance.path(r"C:\k\ours.der")?;
    std::fs::write(file, &roots[3].der).doing(|| "cannot write")?;
    let ours: Vec<&Root> = roots.iter().collect();
    let promise = "a certificate that is taken away is back within a second";
    let took = kept(
        promise,
        |took| *took < HEALED,
        || {
            let before = written(&scene)?;
            let took = Duration::from_millis(scene.meddle("untrust", r"C:\k\ours.der")?);
            until_ours(&scene, &ours)?;
            scene.until_told("DriftHealed", "certificate CN=root 3: missing")?;
            let healed = written(&scene)?;
            assert_eq!((healed.0 - before.0, healed.1), (1, before.1));
            Ok(took)
        },
    )?;
    println!("proof: a certificate that was taken away was back after {took:?}");

    // Not filled in, or nothing in it that can be read: no reason to trust nobody.
    publish(&scene, None)?;
    publish(&scene, Some("rubbish -----BEGIN CERTIFICATE-----"))?;
    publish(&scene, Some("-----BEGIN CERTIFICATE-----\nrubbish\n"))?;
    scene.until_told("BundleBroken", "block 1: the block has no end")?;
    assert_eq!(trusted(&scene)?.1.len(), MANY);

    // A shorter one is followed; one that is gone, without a proxy, leaves nothing of ours. What the
    // administrator brought himself stays, though the bundle had it.
    publish(&scene, Some(&bundle(&roots[..2])))?;
    until_ours(&scene, &[&roots[0], &roots[1]])?;
    until_counted(&scene, counts(2))?;
    scene.kubectl(&["delete", "configmap", BUNDLE, "-n", "evenkeel"])?;
    until_ours(&scene, &[])?;
    until_counted(&scene, counts(0))?;
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
