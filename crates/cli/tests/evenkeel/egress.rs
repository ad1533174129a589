//! How a Windows node reaches the world, as people see it; and bundles of certificates before they are published.

use evenkeel_api::windows::services::Services;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::{Doing, Result, need};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, date_time_ymd};
use serde_json::{Value, json};

use super::fleet::Fleet;
use super::scene::{Scene, evenkeel};

const PASSWORD: &str = "quux%40quux";

/// The data of services with a proxy, and their hash.
fn services(host: &str) -> Result<(Value, String)> {
    let kubelet = json!([{ "name": "k", "command": "k.exe", "bootstrap": true, "priority": 0 }]);
    let proxy = format!("http://me:{PASSWORD}@{host}:3128");
    let variables = json!([
        { "name": "HTTPS_PROXY", "value": proxy }, { "name": "NO_PROXY", "value": ".svc" },
    ]);
    let data = json!({
        "services": kubelet.to_string(), "files": "[]", "environmentVars": variables.to_string(),
    });
    let texts = serde_json::from_value(data.clone()).doing(|| "no texts")?;
    let (services, _) = Services::from_data("services", &texts).doing(|| "no services")?;
    Ok((data, services.hash()))
}

#[test]
fn explain_shows_the_proxy_of_a_windows_node_without_its_password_and_counts_whom_it_trusts()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let fleet = Fleet::start()?;
    fleet.node("win-1", "win", "none")?;
    fleet.kubectl(&[
        "label",
        "--overwrite",
        "node",
        "win-1",
        "kubernetes.io/os=windows",
    ])?;
    let (data, hash) = services("proxy.example")?;
    fleet.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": { "name": "services-1-2-4-abc1234", "namespace": "evenkeel" },
    }))?;
    let report = json!({ "certificates": { "ours": 143, "missing": 2, "foreign": 12 } });
    fleet.apply(&json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "name": "win-1.evenkeel-agent", "namespace": "node-extensions",
            "annotations": { "evenkeel.dev/report": report.to_string() },
        },
        "spec": { "holderIdentity": "win-1" },
    }))?;
    let version = ("windowsmachineconfig.openshift.io/version", "1.2.4-abc1234");
    let current = "evenkeel.dev/current-services";
    fleet.annotate("win-1", &[version, (current, &hash)])?;
    let explain = ["explain", "win-1", "--wait", "0s"];
    let shown = "HTTPS_PROXY=http://***@proxy.example:3128 NO_PROXY=.svc";
    let said = fleet.says("supporter", &explain)?;
    assert!(said.out.contains(&format!("proxy: {shown}\n")), "{said:?}");
    let counts = "trusted certificates: 143 managed, 2 missing, 12 foreign\n";
    assert!(said.out.contains(counts), "{said:?}");
    let as_json = fleet.says("supporter", &[&explain[..], &["-o", "json"]].concat())?;
    let egress = &as_json.json()["egress"];
    assert_eq!(egress["proxy"]["state"], "runs");
    let variables = &egress["proxy"]["variables"];
    assert_eq!(variables["HTTPS_PROXY"], "http://***@proxy.example:3128");
    assert_eq!(egress["certificates"]["foreign"], 12);
    // It runs other services as yet; and who may only look at nodes is told why he does not see it.
    fleet.annotate("win-1", &[(current, "other")])?;
    let waits = fleet.says("supporter", &explain)?;
    let words = format!("proxy: {shown} (pending: the node does not run these services yet)\n");
    assert!(waits.out.contains(&words), "{waits:?}");
    let denied = fleet.says("viewer", &explain)?;
    assert!(
        denied.out.contains(
            "proxy: unknown: you are not allowed to read ConfigMaps in namespace evenkeel"
        ),
        "{denied:?}"
    );
    assert!(denied.out.contains(counts), "{denied:?}");
    let all = [said.out, as_json.out, waits.out].concat();
    assert!(!all.contains("quux"), "{all}");
    // Nobody else has a proxy of ours.
    fleet.node("web-1", "web", "none")?;
    let other = fleet.says("supporter", &["explain", "web-1", "--wait", "0s"])?;
    assert!(!other.out.contains("proxy:"), "{other:?}");
    fleet.kubectl(&[
        "delete",
        "configmap/services-1-2-4-abc1234",
        "-n",
        "evenkeel",
    ])?;
    fleet.kubectl(&[
        "delete",
        "lease/win-1.evenkeel-agent",
        "-n",
        "node-extensions",
    ])?;
    Ok(())
}

fn certificate(name: &str, change: impl Fn(&mut CertificateParams)) -> String {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    change(&mut parameters);
    let key = KeyPair::generate().unwrap();
    parameters.self_signed(&key).unwrap().pem()
}

/// Covers P09.
#[test]
fn a_trust_bundle_is_checked_block_by_block_and_one_that_no_config_map_holds_is_named() {
    let scene = Scene::new();
    let good = certificate("good", |_| {});
    let odd = [
        certificate("old", |it| it.not_after = date_time_ymd(2021, 1, 1)),
        certificate("young", |it| it.not_before = date_time_ymd(2090, 1, 1)),
        certificate("leaf", |it| it.is_ca = IsCa::NoCa),
    ]
    .concat();
    let fine = scene.give("fine.pem", format!("# comment\n{good}{odd}"));
    let said = evenkeel(&["check", &fine]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.out.contains("valid (trust bundle, 4 certificates)"),
        "{said:?}"
    );
    for words in [
        "block 2",
        "the certificate has expired",
        "the certificate is not valid yet",
        "not a CA certificate",
    ] {
        assert!(said.err.contains(words), "{words}: {said:?}");
    }
    let broken = "-----BEGIN CERTIFICATE-----\nbroken!\n-----END CERTIFICATE-----\n";
    let spoiled = scene.give("spoiled.pem", format!("{good}{broken}{good}"));
    let said = evenkeel(&["check", &spoiled, "-o", "json"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    let file = &said.json()["files"][0];
    assert_eq!(file["problems"].as_array().map(Vec::len), Some(1), "{file}");
    assert!(
        file["problems"][0].to_string().contains("block 2"),
        "{file}"
    );
    let nothing = scene.give("nothing.pem", broken);
    let said = evenkeel(&["check", &nothing]);
    assert!(
        said.out.contains("the bundle has no readable certificate"),
        "{said:?}"
    );
    // Five megabytes are read, and named.
    let count = (5 << 20) / good.len() + 1;
    let large = scene.give("large.pem", good.repeat(count));
    let said = evenkeel(&["check", &large]);
    assert_eq!(said.code, Some(2), "{said:?}");
    let words = "KiB, and a ConfigMap holds 1024 KiB: remove certificates";
    assert!(
        said.out.contains(words) && said.out.lines().count() == 1,
        "{said:?}"
    );
}

/// A ConfigMap with this text under the bundle's key, as YAML: the text stands below its key.
fn bundle_map(text: &str) -> String {
    let below: Vec<String> = text.lines().map(|line| format!("    {line}\n")).collect();
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: trusted-ca\ndata:\n  ca-bundle.crt: |\n{}",
        below.concat()
    )
}

/// Covers P09.
#[test]
fn a_trusted_ca_config_map_is_checked_in_the_words_of_the_agent() {
    let scene = Scene::new();
    let good = certificate("good", |_| {});
    let broken = "-----BEGIN CERTIFICATE-----\nbroken!\n-----END CERTIFICATE-----\n";
    let text = [
        "# comment\n",
        &good,
        broken,
        &certificate("old", |it| it.not_after = date_time_ymd(2021, 1, 1)),
        &certificate("young", |it| it.not_before = date_time_ymd(2090, 1, 1)),
        &certificate("leaf", |it| it.is_ca = IsCa::NoCa),
        "-----BEGIN CERTIFICATE-----\nAAEC\n",
    ]
    .concat();
    // What an agent makes of the same bundle.
    let now = 1_800_000_000;
    let seen =
        evenkeel_api::windows::trust_bundle::TrustBundle::read("the trust bundle", &text, now);
    assert_eq!((seen.problems.len(), seen.warnings.len()), (2, 3));
    let words = |it: &Value| {
        let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
        let place = &it["place"];
        [&place["element"], &place["identity"], &it["message"]].map(text)
    };
    let own = |it: Vec<Value>| it.iter().map(words).collect::<Vec<_>>();
    let of_agent = |it: Value| own(it.as_array().cloned().unwrap_or_default());
    let yaml = bundle_map(&text);
    let as_json = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "trusted-ca" },
        "data": { "ca-bundle.crt": text },
    });
    for (name, map) in [
        ("map.yaml", yaml.clone()),
        ("map.json", as_json.to_string()),
    ] {
        let said = evenkeel(&["check", &scene.give(name, map), "-o", "json"]);
        assert_eq!(said.code, Some(2), "{said:?}");
        let file = &said.json()["files"][0];
        assert_eq!(file["kinds"], json!(["trusted-ca ConfigMap"]));
        assert_eq!(
            of_agent(file["problems"].clone()),
            of_agent(json!(seen.problems))
        );
        assert_eq!(
            of_agent(file["warnings"].clone()),
            of_agent(json!(seen.warnings))
        );
    }
    // The line is that of the file.
    let said = evenkeel(&["check", &scene.give("map.yaml", yaml.clone())]);
    let at = yaml.lines().position(|line| line.trim() == "broken!");
    let line = format!("line {}: block 2: not valid base64", at.unwrap_or_default());
    assert!(said.out.contains(&line), "{line}: {said:?}");

    // One that is right, one that nobody has filled in, and one that no agent looks for.
    let right = scene.give("right.yaml", bundle_map(&good.repeat(2)));
    let said = evenkeel(&["check", &right]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let words = "valid (trusted-ca ConfigMap, 1 certificates)";
    assert!(said.out.contains(words) && said.err.is_empty(), "{said:?}");
    let empty = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: trusted-ca}\n";
    let said = evenkeel(&["check", &scene.give("empty.yaml", empty)]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let words = "ca-bundle.crt is empty: nodes keep the certificates that they trust";
    assert!(said.err.contains(words), "{said:?}");
    let other = bundle_map(&good).replace("trusted-ca", "our-ca") + "  other.crt: x\n";
    let said = evenkeel(&["check", &scene.give("other.yaml", other)]);
    assert_eq!(said.code, Some(0), "{said:?}");
    for words in [
        "agents do not read a trust bundle from ConfigMap our-ca: name it trusted-ca",
        "other.crt: agents do not read this key: put the bundle in ca-bundle.crt",
    ] {
        assert!(said.err.contains(words), "{words}: {said:?}");
    }
    let rubbish = scene.give("rubbish.yaml", bundle_map("rubbish"));
    let said = evenkeel(&["check", &rubbish]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.out.contains("the bundle has no readable certificate"),
        "{said:?}"
    );

    // Five megabytes are read, and named, with all keys together; as much as a ConfigMap holds is right.
    let large = bundle_map(&good.repeat((5 << 20) / good.len() + 1));
    let said = evenkeel(&["check", &scene.give("large.yaml", large)]);
    assert_eq!(said.code, Some(2), "{said:?}");
    let words = "KiB, and a ConfigMap holds 1024 KiB: remove certificates";
    assert!(
        said.out.contains(words) && said.out.lines().count() == 1,
        "{said:?}"
    );
    let most = good.repeat((1 << 20) / good.len());
    let said = evenkeel(&["check", &scene.give("most.yaml", bundle_map(&most))]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let more = bundle_map(&most) + "  more: " + &"x".repeat(good.len()) + "\n";
    let said = evenkeel(&["check", &scene.give("more.yaml", more)]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.out.contains("and a ConfigMap holds 1024 KiB"),
        "{said:?}"
    );
}
