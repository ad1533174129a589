//! A node as OpenShift's Windows Machine Config Operator 10.x leaves it: what it lacks is said while it serves on, and when it
//! lacks nothing it is upgraded in place.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use evenkeel_api::names::openshift;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::network::GATEWAY;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::windows_instance::{WindowsInstance, windows_program};
use evenkeel_testbed::{Doing, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::bed::{Bed, CURRENT, DESIRED, FIRST, LONG, VERSION, is_skipped, is_up};
use super::fleet::{has_only, make_pool, pools, released, state};
use super::proxy::variable;
use super::release::Release;
use crate::scene::{annotated, is_cordoned};

/// The version of that operator: its release and its commit.
const THEIRS: &str = "10.20.1-4bd2d8b";
const KEY_HASH: &str = "windowsmachineconfig.openshift.io/pub-key-hash";
const USERNAME: &str = "windowsmachineconfig.openshift.io/username";
const UPGRADING: &str = "windowsmachineconfig.openshift.io/upgrading";
const DAEMON: &str = "windows-instance-config-daemon";
const ENVIRONMENT: &str = r"SYSTEM\CurrentControlSet\Control\Session Manager\Environment";

/// Its services in the order of their creation: what each is, its command, whom it depends on.
const SERVICES: [(&str, &str, &str, &str); 7] = [
    (
        "containerd",
        "containerd-double",
        r"C:\k\containerd\containerd.exe --config C:\k\containerd\containerd_conf.toml --log-file C:\var\log\containerd\containerd.log --run-service --log-level info",
        "",
    ),
    (
        "kubelet",
        "kubelet-double",
        r"C:\k\kube-log-runner.exe -log-file=C:\var\log\kubelet\kubelet.log C:\k\kubelet.exe --config=C:\k\kubelet.conf --bootstrap-kubeconfig=C:\k\bootstrap-kubeconfig --kubeconfig=C:\k\kubeconfig --cert-dir=c:\var\lib\kubelet\pki\ --windows-service --node-labels=node.openshift.io/os_id=Windows --windows-priorityclass=ABOVE_NORMAL_PRIORITY_CLASS --v=2",
        "containerd",
    ),
    (
        "windows_exporter",
        "service-double",
        r"C:\k\windows_exporter.exe --collectors.enabled cpu,net,os --web.config.file C:\k\tls\windows-exporter-webconfig.yaml",
        "",
    ),
    (
        "hybrid-overlay-node",
        "service-double",
        r"C:\k\hybrid-overlay-node.exe --node win --bootstrap-kubeconfig=C:\k\kubeconfig --cert-dir=C:\k\cni\config --windows-service",
        "kubelet",
    ),
    (
        "csi-proxy",
        "service-double",
        r"C:\k\csi-proxy.exe -log_file=C:\var\log\csi-proxy\csi-proxy.log -windows-service",
        "",
    ),
    (
        "kube-proxy",
        "service-double",
        r"C:\k\kube-log-runner.exe C:\k\kube-proxy.exe --config C:\k\kube-proxy.conf --windows-service",
        "hybrid-overlay-node",
    ),
    (
        DAEMON,
        "service-double",
        r"C:\k\windows-instance-config-daemon.exe controller --windows-service --log-dir C:\var\log\wicd --namespace openshift-windows-machine-config-operator --kubeconfig C:\k\wicd-kubeconfig --cert-dir C:\k\wicd-certs --cert-duration 1h --ca-bundle C:\k\ca-bundle.crt",
        "",
    ),
];

/// What else it has below its folder.
const FILES: [&str; 13] = [
    r"C:\k\kubelet.conf",
    r"C:\k\bootstrap-kubeconfig",
    r"C:\k\bootstrap-ca.crt",
    r"C:\k\kubelet-ca.crt",
    r"C:\k\ca-bundle.crt",
    r"C:\k\kube-proxy.conf",
    r"C:\k\wicd-kubeconfig",
    r"C:\k\wicd-certs\wicd-client-current.pem",
    r"C:\k\tls\windows-exporter-webconfig.yaml",
    r"C:\k\containerd\containerd_conf.toml",
    r"C:\k\containerd\registries\quay.io\hosts.toml",
    r"C:\k\cni\config\cni.conf",
    r"C:\k\cni\win-overlay.exe",
];

/// On the shared control plane everybody would see that operator's namespace, and fall idle.
fn control_plane() -> Result<&'static ControlPlane> {
    static OWN: OnceLock<Result<ControlPlane>> = OnceLock::new();
    let own = OWN.get_or_init(ControlPlane::start);
    own.as_ref().map_err(Clone::clone)
}

fn write(instance: &WindowsInstance, place: &str, text: &str) -> Result<()> {
    let path = instance.path(place)?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).doing(|| "cannot make a folder")?;
    }
    std::fs::write(&path, text).doing(|| format!("cannot write {place}"))
}

/// Makes the machine what that operator makes of it: files, variables, services with its tag.
fn configure(bed: &Bed, instance: &WindowsInstance) -> Result<()> {
    let name = instance.computer_name().to_lowercase();
    for place in FILES {
        write(instance, place, place)?;
    }
    for folder in ["kubelet", "kube-proxy", "wicd", "containerd", "csi-proxy"] {
        write(instance, &format!(r"C:\var\log\{folder}\x.log"), "")?;
    }
    let login = bed.scene.control_plane.kubeconfig_for_node(&name)?;
    let login = login.at(&GATEWAY.to_string()).as_yaml()?;
    write(instance, r"C:\k\kubeconfig", &login)?;
    let probe = |words: &[&str]| instance.ask(&[&["windows-probe"], words].concat());
    probe(&["registry", "set", ENVIRONMENT, "NO_PROXY", ".cluster.local"])?;
    for (service, double, command, dependency) in SERVICES {
        let program = windows_program("evenkeel-testbed", double)?;
        let words: Vec<&str> = command.split(' ').collect();
        for place in words.iter().filter(|it| it.strip_suffix(".exe").is_some()) {
            instance.install(&program, place)?;
        }
        probe(&[&["service", "create", service, "auto"][..], &words[..]].concat())?;
        let tag = format!("OpenShift managed {service}");
        instance.ask(&["sc.exe", "description", service, &tag])?;
        if !dependency.is_empty() {
            let key = format!(r"HKLM\SYSTEM\CurrentControlSet\Services\{service}");
            let value = ["/v", "DependOnService", "/t", "REG_MULTI_SZ", "/f", "/d"];
            let words = [&["reg.exe", "add", &key][..], &value[..], &[dependency]].concat();
            instance.ask(&words)?;
        }
        probe(&["service", "start", service])?;
    }
    Ok(())
}

/// Writes what that operator writes on the Node at its end, and what stands in its namespace.
async fn describe(bed: &Bed, name: &str) -> Result<()> {
    let node = json!({
        "metadata": {
            "annotations": {
                VERSION: THEIRS,
                "windowsmachineconfig.openshift.io/desired-version": THEIRS,
                KEY_HASH: "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
                USERNAME: r#"{"Type":"PGP MESSAGE","Header":{},"Body":"wy4ECQMI"}"#,
            },
            "labels": {
                "windowsmachineconfig.openshift.io/byoh": "true",
                "node-role.kubernetes.io/worker": "",
                "place": bed.scene.name,
            },
        },
    });
    bed.scene.patch(name, &node).await?;
    let services: Vec<Value> = SERVICES[..6]
        .iter()
        .map(|(name, _, command, dependency)| {
            let is_first = matches!(*name, "containerd" | "kubelet");
            json!({
                "name": name, "path": command, "bootstrap": is_first,
                "priority": if *name == "containerd" { 0 } else if is_first { 1 } else { 2 },
                "dependencies": if dependency.is_empty() { vec![] } else { vec![dependency] },
                "powershellPreScripts": [{ "path": r"C:\Temp\network-conf.ps1", "NodeArgs": null }],
            })
        })
        .collect();
    let map = json!({
        "metadata": { "name": format!("windows-services-{THEIRS}") },
        "immutable": true,
        "data": {
            "services": Value::from(services).to_string(),
            "files": "[]",
            "environmentVars": r#"{"NO_PROXY":".cluster.local"}"#,
            "watchedEnvironmentVars": r#"["HTTP_PROXY","HTTPS_PROXY","NO_PROXY"]"#,
        },
    });
    for maps in their_maps(bed) {
        let map = serde_json::from_value(map.clone()).doing(|| "no ConfigMap")?;
        let made = maps.create(&PostParams::default(), &map).await;
        made.doing(|| "cannot write their services")?;
    }
    Ok(())
}

/// In their namespace, and in ours, in case somebody installs us there.
fn their_maps(bed: &Bed) -> [Api<ConfigMap>; 2] {
    [openshift::WINDOWS_NAMESPACE, bed.scene.name.as_str()]
        .map(|namespace| Api::namespaced(bed.scene.client.clone(), namespace))
}

/// Waits until the kubelet that they left says that it is ready.
async fn until_ready(bed: &Bed, name: &str) -> Result<Node> {
    until_async("their kubelet to be ready", LONG, async || {
        let node = bed.scene.nodes().get_opt(name).await;
        Ok(match node.doing(|| "no answer")? {
            Some(node) if is_up(&node) => Look::Found(node),
            node => Look::NotYet(format!("{:?}", node.map(|it| it.status))),
        })
    })
    .await
}

/// Of the Node, what an operator could have changed.
fn marks(node: &Node) -> (BTreeMap<String, String>, bool) {
    let mut annotations = node.annotations().clone();
    annotations.retain(|name, _| !name.starts_with("node.alpha.kubernetes.io/"));
    (annotations, is_cordoned(node))
}

/// Waits until the pool says this of the condition Upgradeable, and what it says then.
async fn refused(bed: &Bed, reason: &str) -> Result<String> {
    until_async(&format!("the pool to say {reason}"), LONG, async || {
        let pool = pools(bed).get(&bed.scene.own("windows")).await;
        let pool = pool.doing(|| "cannot read the WindowsPool")?;
        let status = &pool.data["status"];
        let conditions = status["conditions"].as_array().cloned();
        let mut conditions = conditions.unwrap_or_default().into_iter();
        let found = conditions.find(|it| it["reason"] == reason && it["status"] == "False");
        Ok(match found {
            Some(found) => Look::Found(found["message"].as_str().unwrap_or_default().to_owned()),
            None => Look::NotYet(format!("{status}\n{}", bed.last_words(5))),
        })
    })
    .await
}

/// Covers O08.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_openshifts_operator_is_upgraded_in_place_or_refused_while_it_serves()
-> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let bed = Bed::on(control_plane()?, "wmco", "kubelet-double").await?;
    let namespace = openshift::WINDOWS_NAMESPACE;
    let control_plane = bed.scene.control_plane;
    control_plane.kubectl(&["create", "namespace", namespace])?;
    make_pool(&bed).await?;
    let instance = bed.instance("op-wmco")?;
    let name = instance.computer_name().to_lowercase();
    configure(&bed, &instance)?;
    let node = until_ready(&bed, &name).await?;
    describe(&bed, &name).await?;
    let address = instance.address().to_string();
    let stranger = r"C:\stranger\service-double.exe";
    let program = windows_program("evenkeel-testbed", "service-double")?;
    instance.install(&program, stranger)?;
    for words in [
        &["create", "stranger", "auto", stranger][..],
        &["start", "stranger"],
    ] {
        instance.ask(&[&["windows-probe", "service"], words].concat())?;
    }

    // Two things are not as they must be: one on the machine, one on the Node.
    let login = instance.path(r"C:\k\kubeconfig")?;
    let identity = std::fs::read(&login).doing(|| "the kubelet has no login")?;
    let aside = login.with_extension("aside");
    std::fs::rename(&login, &aside).doing(|| "cannot hide the login")?;
    let label = |value: Value| json!({ "metadata": { "labels": { UPGRADING: value } } });
    bed.scene.patch(&name, &label(json!("true"))).await?;
    let before = (marks(&bed.scene.node(&name).await?), instance.snapshot()?);
    let operator = bed.operator(&["--take-over", "windows"])?;
    bed.led().await?;
    bed.list_these(&[&instance]).await?;
    let said = bed
        .told(
            "TakeOverRefused",
            &[&address, r"file C:\k\kubeconfig is missing"],
        )
        .await?;
    assert!(said.contains(UPGRADING), "both are named at once: {said}");
    assert!(said.contains("start OpenShift's operator again"), "{said}");
    println!("proof: {said}");
    let said = refused(&bed, "NodeNotListed").await?;
    assert!(said.contains(THEIRS), "{said}");
    println!("proof: {said}");
    let now = (marks(&bed.scene.node(&name).await?), instance.snapshot()?);
    assert_eq!(now.0, before.0, "nothing is written on its Node");
    let changed = before.1.diff(&now.1);
    assert_eq!(
        changed,
        Vec::<String>::new(),
        "nothing is written on its machine"
    );

    // Mended, it goes on by itself.
    std::fs::rename(&aside, &login).doing(|| "cannot put the login back")?;
    bed.scene.patch(&name, &label(Value::Null)).await?;
    let booted = instance.boot_id()?;
    bed.told("TakeOverPrepared", &[&address, &name, THEIRS])
        .await?;
    let served = bed.serves(&instance).await?;
    assert_eq!(served.uid(), node.uid(), "it is the same Node");
    bed.scene.event(&name, "UpgradeBegins").await?;
    let words = [address.as_str(), &format!("{THEIRS} to {FIRST}")];
    println!("proof: {}", bed.told("InstanceUpgraded", &words).await?);
    released(&bed, &name).await?;
    bed.settled(&address).await?;
    let release = Release {
        version: FIRST,
        payload: bed.payload.clone(),
    };
    has_only(&instance, &release, &[]).await?;
    for (service, ..) in SERVICES {
        if !["containerd", "kubelet"].contains(&service) {
            assert!(
                state(&instance, service).is_err(),
                "{service} is still there"
            );
        }
    }
    assert_eq!(state(&instance, "stranger")?, "Running");
    let kept = std::fs::read(&login).doing(|| "its login is gone")?;
    assert_eq!(kept, identity, "its kubelet is who it was");
    assert_eq!(
        variable(&instance, "NO_PROXY")?,
        None,
        "as before they came"
    );
    assert_ne!(instance.boot_id()?, booted, "its services see that");
    let node = bed.scene.node(&name).await?;
    assert_eq!(annotated(&node, KEY_HASH), None, "it is theirs no more");
    assert!(annotated(&node, USERNAME).is_some(), "the rest is not ours");
    assert_eq!(annotated(&node, CURRENT), annotated(&node, DESIRED));
    for maps in their_maps(&bed) {
        let map = maps.get(&format!("windows-services-{THEIRS}")).await;
        map.doing(|| "their services are gone")?;
    }
    drop(operator);
    Ok(())
}
