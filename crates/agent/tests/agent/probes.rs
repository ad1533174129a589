//! Probes of what runs on a real machine: with TLS, on IPv6, at the node's own address, and programs.

use evenkeel_api::readiness::Report;
use evenkeel_testbed::network::GATEWAY;
use evenkeel_testbed::{Doing, Result};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::readiness::{Reports, rules};
use super::scene::{Scene, cluster};

/// Where the agent serves its own metrics: a real server with TLS on the machine, on both kinds of IP.
const PORT: u16 = 9182;
const CHECK: &str = "/usr/local/bin/check";

/// A CA, and a certificate and a key of a server that it has signed for these names, in PEM.
fn certificate(names: &[&str]) -> Result<(String, String, String)> {
    let failed = |error: rcgen::Error| evenkeel_testbed::Error::because("no certificate", error);
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut parameters = rcgen::CertificateParams::new(Vec::new()).map_err(failed)?;
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().map_err(failed)?;
    let ca = rcgen::CertifiedIssuer::self_signed(parameters, key).map_err(failed)?;
    let key = rcgen::KeyPair::generate().map_err(failed)?;
    let own = rcgen::CertificateParams::new(names).map_err(failed)?;
    let own = own.signed_by(&key, &ca).map_err(failed)?;
    Ok((ca.pem(), own.pem(), key.serialize_pem()))
}

/// What each probe is expected to say: nothing if it is healthy.
fn is_as(report: &Report, expected: &[(&str, Option<&str>)]) -> bool {
    expected.iter().all(|(name, why)| {
        report.probes.get(*name).is_some_and(|it| match why {
            None => it.healthy,
            Some(why) => !it.healthy && it.message.contains(why) && it.message.len() <= 256,
        })
    })
}

/// Covers N04.
#[tokio::test]
async fn probes_ask_the_machine_itself_with_tls_on_either_ip_and_run_what_its_owner_allows()
-> Result<()> {
    let Some(scene) = Scene::start("prober").await? else {
        return Ok(());
    };
    let address = scene.node.address();
    let own = address.to_string();
    let (ca, own_certificate, key) = certificate(&["localhost", "::1", &own])?;
    let (other_ca, ..) = certificate(&["localhost"])?;
    scene.node.write("/etc/serving/tls.crt", own_certificate)?;
    scene.node.write("/etc/serving/tls.key", key)?;
    let script = "#!/bin/sh\n[ \"$1\" = fine ] && exit 0\nyes 'the disk is on fire' | head -n 100000 >&2\nexit 7\n";
    scene.node.write(CHECK, script)?;
    scene.node.run(&["chmod", "755", CHECK])?;
    let serve = format!("--metrics-listen=[::]:{PORT}");
    let allow = format!("--allow-exec-probe={CHECK}");
    let options = [&*serve, "--metrics-certificate=/etc/serving", &*allow];
    scene.start_with(&options)?;

    let nodes: Api<Node> = Api::all(scene.client.clone());
    let addresses = json!([{ "type": "Hostname", "address": "prober" }, { "type": "InternalIP", "address": own }]);
    let status = Patch::Merge(json!({ "status": { "addresses": addresses } }));
    let parameters = PatchParams::default();
    let written = nodes.patch_status(&scene.name, &parameters, &status).await;
    written.doing(|| "cannot write the addresses of the Node")?;
    let get = |more: Value| {
        let mut get = json!({ "port": PORT, "path": "/metrics", "scheme": "HTTPS" });
        for (key, value) in more.as_object().into_iter().flatten() {
            get[key] = value.clone();
        }
        json!({ "httpGet": get })
    };
    let api_server = cluster()?.address().port();
    let wanted = [
        ("ca", get(json!({ "ca": ca })), None),
        ("v6", get(json!({ "ca": ca, "host": "::1" })), None),
        ("node", get(json!({ "ca": ca, "host": "{nodeIP}" })), None),
        (
            "own",
            get(json!({ "insecureSkipVerify": true, "host": own })),
            None,
        ),
        (
            "headers",
            get(json!({ "ca": ca, "httpHeaders": [{ "name": "Accept", "value": "text/plain" }] })),
            None,
        ),
        (
            "other-ca",
            get(json!({ "ca": other_ca })),
            Some("certificate"),
        ),
        (
            "other-name",
            get(json!({ "ca": ca, "serverName": "other.example.com" })),
            Some("certificate"),
        ),
        // It would answer, and is another machine.
        (
            "elsewhere",
            json!({ "tcpSocket": { "port": api_server, "host": GATEWAY.to_string() } }),
            Some("is not an address of this node"),
        ),
        (
            "tcp-node",
            json!({ "tcpSocket": { "port": PORT, "host": "{nodeIP}" } }),
            None,
        ),
        (
            "fine",
            json!({ "exec": { "command": [CHECK, "fine"] } }),
            None,
        ),
        (
            "fire",
            json!({ "exec": { "command": [CHECK, "else"] } }),
            Some("ended with exit status: 7: the disk is on fire"),
        ),
        (
            "foreign",
            json!({ "exec": { "command": ["/bin/true"] } }),
            Some("/bin/true is not run: the agent does not allow it"),
        ),
    ];
    let extensions = wanted.iter().map(|(name, probe, _)| {
        let mut probe = probe.clone();
        for (key, value) in [
            ("period", json!("2s")),
            ("timeout", json!("2s")),
            ("failureThreshold", json!(1)),
        ] {
            probe[key] = value;
        }
        json!({ "name": name, "probe": probe })
    });
    let rule = json!({
        "apiVersion": "evenkeel.dev/v1alpha1", "kind": "NodeReadinessRule", "metadata": { "name": "prober" },
        "spec": {
            "nodeSelector": { "matchLabels": { "probes": "yes" } },
            "extensions": extensions.collect::<Vec<_>>(),
        },
    });
    let rule = serde_json::from_value(rule).doing(|| "no rule")?;
    let rules = rules(&scene);
    let made = rules.create(&PostParams::default(), &rule).await;
    made.doing(|| "cannot make the rule")?;
    let label = Patch::Merge(json!({ "metadata": { "labels": { "probes": "yes" } } }));
    let labelled = nodes.patch(&scene.name, &parameters, &label).await;
    labelled.doing(|| "cannot label the node")?;
    let expected: Vec<_> = wanted.iter().map(|(name, _, why)| (*name, *why)).collect();
    let reports = Reports::of(&scene);
    let what = "every probe to be answered as it should";
    reports.until(what, |it| is_as(it, &expected)).await?;

    // The same for an agent in a pod: programs are those of the machine that is mounted. Without the option none is run.
    scene.mount_the_root()?;
    scene.start_with(&[&["--root=/host"], &options[..]].concat())?;
    scene
        .node
        .run(&["sh", "-euc", &format!("echo '#!/bin/sh\nexit 9' > {CHECK}")])?;
    let mounted = |it: &Report| {
        is_as(
            it,
            &[("fine", Some("ended with exit status: 9")), ("node", None)],
        )
    };
    reports
        .until("the machine's own program to be run", mounted)
        .await?;
    scene.start_with(&["--root=/host"])?;
    let refused = |it: &Report| is_as(it, &[("fine", Some("the agent does not allow it"))]);
    reports.until("no program to be run", refused).await?;
    let deleted = rules.delete("prober", &DeleteParams::default()).await;
    deleted.map(|_| ()).doing(|| "cannot delete the rule")
}
