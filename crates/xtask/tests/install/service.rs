//! The agent as a service of each machine, where no pod may be privileged: docs/agent.md says how.

use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_testbed::chance::is_soak;
use evenkeel_testbed::kubeconfig::Kubeconfig;
use evenkeel_testbed::network::GATEWAY;
use evenkeel_testbed::process::run;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, SystemdNode};
use serde_json::{Value, json};

use crate::installed::{Installed, PATIENCE, until_updated};
use crate::objects::{config, pool, web};
use crate::release::Release;
use crate::skip;

const NODES: [&str; 2] = ["first", "second"];
const UNIT: &str = "evenkeel-agent.service";
/// How soon a file that was changed is noticed.
const NOTICED: Duration = Duration::from_secs(1);

/// Covers K09.
#[tokio::test]
#[ignore = "takes long: runs in ./test --soak"]
async fn as_a_service_of_the_machine_an_agent_keeps_the_same_promises() -> Result<()> {
    if skip()? {
        return Ok(());
    }
    let release = Release::make()?;
    let (chart, images) = (release.chart(), release.images());
    let options = ["--set=agent.enabled=false"];
    let installed = Installed::with(&NODES, &release, &chart, &images[..1], &options).await?;
    installed.until_ready(2, 0).await?;
    let begun = Instant::now();
    for number in 0..NODES.len() {
        install(&installed, &release, installed.cluster.node(number))?;
    }
    for node in NODES {
        until_reported(&installed, node).await?;
    }
    installed.until_clean().await?;
    println!(
        "proof: {} agents reported {:.1} s after the first was installed",
        NODES.len(),
        begun.elapsed().as_secs_f64()
    );

    // A change that reboots.
    installed.apply(&web(2))?;
    installed.until_ready_in("default", 2).await?;
    let boots = (0..NODES.len()).map(|it| installed.cluster.node(it).boot_id());
    let boots = boots.collect::<Result<Vec<_>>>()?;
    installed.apply(&config("served"))?;
    installed.apply(&pool())?;
    for (number, boot) in boots.iter().enumerate() {
        until_updated(&installed, installed.cluster.node(number), boot, "served").await?;
    }
    installed.until_ready(2, 0).await?;
    installed.until_ready_in("default", 2).await?;
    installed.until_clean().await?;

    // Drift, and its end.
    let node = installed.cluster.node(0);
    let begun = Instant::now();
    node.write("/etc/keel.conf", "by hand")?;
    until_state(&installed, "Degraded").await?;
    let noticed = begun.elapsed();
    println!(
        "proof: a changed file was noticed after {:.2} s",
        noticed.as_secs_f64()
    );
    assert!(!is_soak() || noticed < NOTICED, "{noticed:?}");
    node.write("/etc/keel.conf", "served")?;
    until_state(&installed, "Done").await?;

    // Whatever happens to it, it comes back.
    let process = |node: &SystemdNode| node.run(&["systemctl", "show", "--property=MainPID", UNIT]);
    let before = process(node)?;
    node.run(&["systemctl", "kill", "--signal=KILL", UNIT])?;
    until_async("the agent to run again", PATIENCE, async || {
        let now = process(node)?;
        Ok(if now == before || now.trim() == "MainPID=0" {
            Look::NotYet(now)
        } else {
            Look::Found(())
        })
    })
    .await?;
    node.write("/etc/keel.conf", "by hand")?;
    until_state(&installed, "Degraded").await?;
    node.write("/etc/keel.conf", "served")?;
    until_state(&installed, "Done").await?;
    installed.until_clean().await
}

/// What docs/agent.md does on one machine.
fn install(installed: &Installed, release: &Release, node: &SystemdNode) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let packed = release.path(&format!(
        "programs/evenkeel-agent_{version}_linux_amd64.tar.gz"
    ));
    let files = installed.files().join(node.name());
    std::fs::create_dir_all(&files).doing(|| "cannot make a folder")?;
    run(Command::new("tar")
        .arg("-xzf")
        .arg(&packed)
        .arg("-C")
        .arg(&files))?;
    let login = login(installed, node.name())?;
    node.install(
        &files.join("evenkeel-agent"),
        "/usr/local/bin/evenkeel-agent",
    )?;
    let unit = std::fs::read(files.join(UNIT)).doing(|| "the release has no unit")?;
    node.write(&format!("/etc/systemd/system/{UNIT}"), unit)?;
    node.write("/etc/evenkeel/kubeconfig", login)?;
    node.run(&["chmod", "0600", "/etc/evenkeel/kubeconfig"])?;
    let names = format!("NODE_NAME={}\n", node.name());
    node.write("/etc/evenkeel/agent.env", names)?;
    node.run(&["systemctl", "daemon-reload"])?;
    node.run(&["systemctl", "enable", "--now", UNIT])
        .map(|_| ())
}

/// A login of the agent of `node`, signed by the cluster.
fn login(installed: &Installed, node: &str) -> Result<String> {
    let files = installed.files().join(node);
    let [key, request] = ["agent.key", "agent.csr"].map(|it| files.join(it));
    run(Command::new("openssl")
        .args(["req", "-new", "-nodes", "-newkey", "ec"])
        .args(["-pkeyopt", "ec_paramgen_curve:P-256"])
        .args([
            "-subj",
            &format!("/O=evenkeel:agents/CN=evenkeel:agent:{node}"),
        ])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&request))?;
    let encoded = run(Command::new("openssl")
        .args(["base64", "-A", "-in"])
        .arg(&request))?;
    let name = format!("evenkeel-agent-{node}");
    installed.apply(&json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": { "name": name },
        "spec": {
            "request": encoded.trim(),
            "signerName": "kubernetes.io/kube-apiserver-client",
            "usages": ["client auth"],
        },
    }))?;
    let kubectl = |words: &[&str]| installed.control_plane().kubectl(words);
    kubectl(&["certificate", "approve", &name])?;
    let wait = "--for=jsonpath={.status.certificate}";
    kubectl(&["wait", "csr", &name, wait, "--timeout=60s"])?;
    let signed = kubectl(&["get", "csr", &name, "-o", "jsonpath={.status.certificate}"])?;
    let path = files.join("agent.crt.base64");
    std::fs::write(&path, signed).doing(|| "cannot write the certificate")?;
    let certificate = run(Command::new("openssl")
        .args(["base64", "-d", "-A", "-in"])
        .arg(&path))?;
    let key = std::fs::read_to_string(&key).doing(|| "no key")?;
    let control_plane = installed.control_plane();
    let server = control_plane.admin_kubeconfig().at(&GATEWAY.to_string());
    Kubeconfig::with_certificate(
        server.server(),
        &control_plane.authority(),
        &certificate,
        &key,
    )?
    .as_yaml()
}

/// Waits until the agent of `node` has said in its Lease how its machine is.
async fn until_reported(installed: &Installed, node: &str) -> Result<()> {
    let what = format!("a report of node {node}");
    until_async(&what, PATIENCE, async || {
        let leases = installed.get(&["leases", "--namespace=node-extensions"])?;
        let leases = leases["items"].as_array().cloned().unwrap_or_default();
        let name = format!("{node}.evenkeel-agent");
        let has_it = |it: &Value| {
            it["metadata"]["name"] == name
                && it["metadata"]["annotations"]["evenkeel.dev/report"].is_string()
        };
        Ok(if leases.iter().any(has_it) {
            Look::Found(())
        } else {
            Look::NotYet(Value::from(leases).to_string())
        })
    })
    .await
}

async fn until_state(installed: &Installed, state: &str) -> Result<()> {
    let what = format!("the first node to be {state}");
    until_async(&what, PATIENCE, async || {
        let now = installed.annotation(NODES[0], "machineconfiguration.openshift.io/state")?;
        Ok(if now == state {
            Look::Found(())
        } else {
            Look::NotYet(now)
        })
    })
    .await
}
