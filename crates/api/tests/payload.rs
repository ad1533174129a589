//! The layout of a payload, its manifest, and what workers tell about kubelets.

use evenkeel_api::document::{self, Document};
use evenkeel_api::machine::machine_config::MachineConfig;
use evenkeel_api::windows::payload::{Manifest, PayloadFile, checksum, on_instance};
use evenkeel_api::windows::services::Template;
use evenkeel_api::windows::worker::Worker;
use serde_json::{Value, json};

fn file(path: &str, contents: &str) -> PayloadFile {
    PayloadFile {
        path: path.to_owned(),
        checksum: checksum(contents.as_bytes()),
    }
}

fn found() -> Vec<PayloadFile> {
    vec![
        file("services.yaml", "a"),
        file("kubelet.yaml", "b"),
        file("files/evenkeel-agent.exe", "c"),
        file("files/cni/win-overlay.exe", "d"),
    ]
}

fn sealed() -> Result<Manifest, Vec<String>> {
    let version = "1.2.3-abc1234".parse();
    Manifest::seal(version.map_err(|_| Vec::new())?, found())
}

/// Covers H08.
#[test]
fn a_payload_that_is_not_what_was_sealed_is_told_file_by_file_with_the_cure() {
    let manifest = Manifest::read("manifest.yaml", &sealed().unwrap().text()).unwrap();
    assert_eq!(manifest, sealed().unwrap(), "what is written reads back");
    assert_eq!(manifest.differences(&found()), Vec::<String>::new());
    let mut other = found();
    other[2] = file("files/evenkeel-agent.exe", "tampered");
    other.remove(3);
    other.push(file("files/extra.exe", "x"));
    let told = manifest.differences(&other);
    assert_eq!(told.len(), 3, "{told:?}");
    for (path, words) in [
        ("files/evenkeel-agent.exe", "differs from the sealed file"),
        ("files/cni/win-overlay.exe", "missing: restore it"),
        ("files/extra.exe", "not sealed: remove it"),
    ] {
        let line = told.iter().find(|it| it.starts_with(path)).unwrap();
        assert!(line.contains(words), "{line}");
        assert!(
            line.contains("evenkeel-operator payload seal"),
            "the cure: {line}"
        );
    }
}

#[test]
fn files_are_copied_to_where_they_stand_and_nothing_else_is() {
    assert_eq!(
        on_instance("files/cni/win-overlay.exe").as_deref(),
        Some(r"C:\k\cni\win-overlay.exe")
    );
    assert_eq!(on_instance("services.yaml"), None);
    let manifest = sealed().unwrap();
    let copied: Vec<_> = manifest.copied().map(|(path, _)| path).collect();
    assert_eq!(
        copied,
        [r"C:\k\cni\win-overlay.exe", r"C:\k\evenkeel-agent.exe"]
    );
}

#[test]
fn what_cannot_be_on_windows_or_is_ours_is_not_sealed() {
    for (path, words) in [
        ("files/state/journal", "the agent's state"),
        ("files/Store/x", "the store of copies"),
        ("files/kubelet.conf", "generates this file"),
        ("files/BOOTSTRAP-kubeconfig", "generates this file"),
        ("files/a:b", "does not allow the name"),
        ("files/nul.txt", "does not allow the name"),
        ("files/com1", "does not allow the name"),
        ("files/dot.", "does not allow the name"),
        ("files/CNI/win-overlay.exe", "the same file as"),
        ("kubelet.exe", "move it below files/"),
        ("notes/readme.md", "move it below files/"),
    ] {
        let mut files = found();
        files.push(file(path, "x"));
        let told = Manifest::seal("1.2.3-abc1234".parse().unwrap(), files).unwrap_err();
        assert_eq!(told.len(), 1, "{path}: {told:?}");
        assert!(told[0].contains(words), "{}", told[0]);
        assert!(
            told[0].to_lowercase().contains(&path.to_lowercase()),
            "{}",
            told[0]
        );
    }
    let mut with_note = found();
    with_note.push(file("README.md", "x"));
    assert!(Manifest::seal("1.2.3-abc1234".parse().unwrap(), with_note).is_ok());
    let told = Manifest::seal("1.2.3-abc1234".parse().unwrap(), Vec::new()).unwrap_err();
    assert_eq!(told.len(), 3, "template, kubelet and agent: {told:?}");
}

#[test]
fn a_manifest_that_is_none_is_refused_with_its_line() {
    for (text, words) in [
        ("", "not a manifest"),
        ("version: 1.2.3\nfiles: []\n", "is not a version"),
        ("version: 1.2.3-abc1234\nfiles: [{path: a}]\n", "checksum"),
        ("version: 1.2.3-abc1234\n", "files"),
        (
            "version: 1.2.3-abc1234\nfiles: []\nfile: x\n",
            "unknown key",
        ),
    ] {
        let told = Manifest::read("manifest.yaml", text)
            .unwrap_err()
            .to_string();
        assert!(told.contains(words), "{text:?}: {told}");
        assert!(told.contains("manifest.yaml"), "{told}");
    }
}

#[test]
fn a_service_whose_program_nobody_brings_is_named() {
    let text = r"
services:
- {name: kubelet, command: 'C:\k\Kubelet.exe --config=C:\k\kubelet.conf --kubeconfig=C:\k\kubeconfig --log=C:\var\log\a.log', bootstrap: true, priority: 0}
- name: kube-proxy
  command: C:\k\evenkeel-agent.exe IP
  powershellVariablesinCommand: [{name: IP, path: C:\k\scripts\ip.ps1}]
  bootstrap: false
  priority: 1
";
    let (template, _) = Template::read("services.yaml", text).unwrap();
    let told = sealed().unwrap().lacks(&template);
    assert_eq!(
        told,
        [
            r"files/Kubelet.exe: missing, and service kubelet needs it as C:\k\Kubelet.exe: add it",
            r"files/scripts/ip.ps1: missing, and service kube-proxy needs it as C:\k\scripts\ip.ps1: add it",
        ]
    );
}

#[test]
fn a_template_is_judged_by_the_rules_of_the_services_config_map() {
    for (text, words) in [
        ("services: {}", "services"),
        ("environmentVars: []", "services"),
        ("services: []\nfiles: []\n", "unknown key"),
        (
            "services:\n- {name: a, command: a.exe, bootstrap: true, priority: 2}\n- {name: b, command: b.exe, bootstrap: false, priority: 1}\n",
            "bootstrap service a has priority 2",
        ),
        (
            "services:\n- {name: a, command: 'a.exe ${CLUSTER}', bootstrap: true, priority: 2}\n",
            "unknown placeholder ${CLUSTER}",
        ),
    ] {
        let told = Template::read("services.yaml", text)
            .unwrap_err()
            .to_string();
        assert!(told.contains(words), "{text:?}: {told}");
    }
}

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

fn kubeconfig() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "contexts": [{ "name": "x", "context": { "cluster": "b", "user": "u" } }],
        "clusters": [
            { "name": "a", "cluster": { "server": "https://wrong:1" } },
            { "name": "b", "cluster": { "server": "https://api.example.com:6443", "certificate-authority": "/etc/ca.crt" } },
        ],
        "users": [{ "name": "u", "user": { "token": "very-secret" } }],
    })
}

fn ignition(files: &[(&str, String)]) -> Option<MachineConfig> {
    let files: Vec<_> = files
        .iter()
        .map(|(path, contents)| {
            use std::fmt::Write as _;
            let data = contents.bytes().fold(String::new(), |mut text, byte| {
                let _ = write!(text, "%{byte:02x}");
                text
            });
            json!({ "path": path, "contents": { "source": format!("data:,{data}") } })
        })
        .collect();
    let unit = "[Service]\nExecStart=/usr/bin/kubelet --config=/etc/kubernetes/kubelet.conf \\\n --cloud-provider=external \\\n --node-ip=${IP} --v=${LEVEL}\n";
    let config = json!({
        "ignition": { "version": "3.2.0" },
        "storage": { "files": files },
        "systemd": { "units": [{ "name": "kubelet.service", "contents": unit }] },
    });
    let (documents, _) = document::read("worker.ign", config.to_string().as_bytes()).ok()?;
    match documents.into_iter().next()? {
        Document::MachineConfig(config) => Some(config),
        _ => None,
    }
}

fn files() -> Vec<(&'static str, String)> {
    vec![
        ("/etc/kubernetes/kubeconfig", kubeconfig().to_string()),
        ("/etc/ca.crt", CERTIFICATE.to_owned()),
        ("/etc/kubernetes/kubelet-ca.crt", CERTIFICATE.to_owned()),
        (
            "/etc/kubernetes/kubelet.conf",
            "kind: KubeletConfiguration\nclusterDNS: [172.30.0.10]\ncgroupDriver: systemd\nauthentication: {x509: {clientCAFile: /etc/kubernetes/kubelet-ca.crt}}\n".to_owned(),
        ),
    ]
}

/// Covers H09.
#[test]
fn login_client_ca_and_arguments_come_out_of_the_worker_ignition() {
    let worker = Worker::of(&ignition(&files()).unwrap()).ok().unwrap();
    assert_eq!(worker.server, "https://api.example.com:6443");
    assert_eq!(worker.server_ca.as_deref(), Some(CERTIFICATE.as_bytes()));
    assert_eq!(worker.client_ca, CERTIFICATE.as_bytes());
    assert_eq!(
        worker.bootstrap_kubeconfig,
        kubeconfig().to_string().into_bytes()
    );
    assert_eq!(
        worker.arguments,
        ["--cloud-provider=external"],
        "what only that machine knows stays there"
    );
    assert_eq!(
        Value::Object(worker.settings),
        json!({ "clusterDNS": ["172.30.0.10"] }),
        "what only Linux has stays there"
    );
}

#[test]
fn a_worker_ignition_that_does_not_do_is_refused_with_the_cure_and_without_its_secrets() {
    let with = |path: &str, contents: Option<&str>| {
        let mut files = files();
        files.retain(|(known, _)| *known != path);
        let mut config = ignition(&files).unwrap();
        if let Some(contents) = contents {
            let one = ignition(&[("/x", contents.to_owned())]).unwrap();
            let file = one.files.into_values().next().unwrap();
            config.files.insert(path.to_owned(), file);
        }
        Worker::of(&config).err().unwrap().to_string()
    };
    let bootstrap = "/etc/kubernetes/kubeconfig";
    for (path, contents, words) in [
        (bootstrap, None, "Secret worker-ignition, key worker.ign"),
        (bootstrap, Some("{ very-secret"), "neither YAML nor JSON"),
        (bootstrap, Some("[very-secret]"), "is not a kubeconfig"),
        (bootstrap, Some("{}"), "has no cluster"),
        (
            bootstrap,
            Some("clusters: [{name: a, cluster: {server: 'http://x'}}]"),
            "is not an https address",
        ),
        (
            bootstrap,
            Some(
                "clusters: [{name: a, cluster: {server: 'https://x', certificate-authority-data: '?'}}]",
            ),
            "is not base64",
        ),
        ("/etc/ca.crt", None, "the API server's CA (/etc/ca.crt)"),
        (
            "/etc/kubernetes/kubelet-ca.crt",
            Some("rubbish"),
            "no certificate in PEM",
        ),
        (
            "/etc/kubernetes/kubelet-ca.crt",
            None,
            "the client CA of kubelets",
        ),
        (
            "/etc/kubernetes/kubelet.conf",
            Some("kind: Other"),
            "is not a KubeletConfiguration",
        ),
    ] {
        let told = with(path, contents);
        assert!(told.contains(words), "{path}: {told}");
        assert!(!told.contains("very-secret"), "{told}");
    }
}
