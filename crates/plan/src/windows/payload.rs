//! From a sealed payload and the configuration of workers to what an instance gets: the services
//! `ConfigMap`, and the files that are made from that configuration.

use evenkeel_api::names::windows;
use evenkeel_api::windows::payload::{Manifest, PayloadFile, checksum};
use evenkeel_api::windows::services::{Services, Template};
use evenkeel_api::windows::version::Version;
use evenkeel_api::windows::worker::Worker;
use serde_json::{Map, Value, json};

use crate::windows::proxy::ProxySettings;

/// A file that is made, and not shipped. Some hold a login: there is no `Debug` for that reason.
#[derive(Clone, PartialEq, Eq)]
pub struct Derived {
    /// Where it is on an instance.
    pub path: &'static str,
    /// What is in it.
    pub contents: Vec<u8>,
    /// SHA-256 of that.
    pub checksum: String,
}

/// What every instance gets.
#[derive(Clone, PartialEq, Eq)]
pub struct Composed {
    /// The version that it runs then.
    pub version: Version,
    /// What the services `ConfigMap` says.
    pub services: Services,
    /// SHA-256 of that, as nodes are told it.
    pub hash: String,
    /// Files that were made for it.
    pub derived: Vec<Derived>,
}

/// Puts together what instances get; `kubelet` are the settings that the payload brings, `proxy` is what they reach
/// the world through.
pub fn compose(
    manifest: &Manifest,
    template: &Template,
    kubelet: &Map<String, Value>,
    worker: &Worker,
    proxy: &ProxySettings,
) -> Composed {
    let derived = vec![
        made(windows::KUBELET_CONFIG, settings(kubelet, worker)),
        made(
            windows::BOOTSTRAP_KUBECONFIG,
            worker.bootstrap_kubeconfig.clone(),
        ),
        made(windows::CLIENT_CA, worker.client_ca.clone()),
    ];
    let shipped = manifest.copied().map(|(path, file)| PayloadFile {
        path,
        checksum: file.checksum.clone(),
    });
    let own = derived.iter().map(|file| PayloadFile {
        path: file.path.to_owned(),
        checksum: file.checksum.clone(),
    });
    let files = shipped.chain(own).collect();
    let services = template.filled(&worker.arguments, files, proxy.variables());
    Composed {
        version: manifest.version.clone(),
        hash: services.hash(),
        services,
        derived,
    }
}

fn made(path: &'static str, contents: Vec<u8>) -> Derived {
    Derived {
        path,
        checksum: checksum(&contents),
        contents,
    }
}

/// The kubelet's configuration: what the payload says, over it what workers have in common with us, and
/// whom it trusts.
fn settings(kubelet: &Map<String, Value>, worker: &Worker) -> Vec<u8> {
    let mut settings = Value::Object(kubelet.clone());
    for (name, value) in &worker.settings {
        settings[name] = value.clone();
    }
    settings["apiVersion"] = json!("kubelet.config.k8s.io/v1beta1");
    settings["kind"] = json!("KubeletConfiguration");
    if !settings["authentication"].is_object() {
        settings["authentication"] = json!({});
    }
    if !settings["authentication"]["x509"].is_object() {
        settings["authentication"]["x509"] = json!({});
    }
    settings["authentication"]["x509"]["clientCAFile"] = json!(windows::CLIENT_CA);
    // JSON is YAML, too. Keys are sorted: the same input gives the same bytes.
    format!("{settings:#}\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::windows::proxy::Variable;

    fn worker() -> Worker {
        let Value::Object(settings) = json!({ "clusterDNS": ["172.30.0.10"], "maxPods": 100 })
        else {
            unreachable!("it is an object");
        };
        Worker {
            bootstrap_kubeconfig: b"login".to_vec(),
            server: "https://api:6443".to_owned(),
            server_ca: None,
            client_ca: b"ca".to_vec(),
            settings,
            arguments: vec!["--cloud-provider=external".to_owned(), "--v=2".to_owned()],
        }
    }

    /// Covers H09.
    #[test]
    fn workers_give_arguments_and_files_and_the_payload_the_rest() {
        let text = r"
services:
- name: kubelet
  command: C:\k\kubelet.exe --config=C:\k\kubelet.conf ${KUBELET_ARGUMENTS} --x
  bootstrap: true
  priority: 1
";
        let (template, _) = Template::read("services.yaml", text).unwrap();
        let manifest = Manifest {
            version: "1.2.3-abc1234".parse().unwrap(),
            files: vec![PayloadFile {
                path: "files/kubelet.exe".to_owned(),
                checksum: checksum(b"kubelet"),
            }],
        };
        let Value::Object(kubelet) = json!({ "cgroupsPerQOS": false, "maxPods": 250, "authentication": { "anonymous": { "enabled": false } } })
        else {
            unreachable!("it is an object");
        };
        let none = ProxySettings::default();
        let composed = compose(&manifest, &template, &kubelet, &worker(), &none);
        assert_eq!(
            composed.services.services[0].command,
            r"C:\k\kubelet.exe --config=C:\k\kubelet.conf --cloud-provider=external --v=2 --x"
        );
        let files: Vec<_> = composed
            .services
            .files
            .iter()
            .map(|it| it.path.as_str())
            .collect();
        assert_eq!(
            files,
            [
                r"C:\k\bootstrap-kubeconfig",
                r"C:\k\kubelet-ca.crt",
                r"C:\k\kubelet.conf",
                r"C:\k\kubelet.exe",
            ]
        );
        let config: Value = serde_json::from_slice(&composed.derived[0].contents).unwrap();
        assert_eq!(config["maxPods"], 100, "workers have the last word");
        assert_eq!(config["cgroupsPerQOS"], false);
        assert_eq!(config["authentication"]["anonymous"]["enabled"], false);
        assert_eq!(
            config["authentication"]["x509"]["clientCAFile"],
            r"C:\k\kubelet-ca.crt"
        );
        assert_eq!(composed.hash, composed.services.hash());
        let mut other = worker();
        other.client_ca = b"another".to_vec();
        let other = compose(&manifest, &template, &kubelet, &other, &none);
        assert_ne!(
            other.hash, composed.hash,
            "what is derived is part of the hash"
        );
    }

    /// Covers P01, P02.
    #[test]
    fn a_proxy_is_declared_as_it_is_and_its_variables_are_watched_without_one() {
        let text = "services:\n- {name: k, command: k.exe, bootstrap: true, priority: 0}\nenvironmentVars:\n- {name: OWN, value: x}\n";
        let (template, _) = Template::read("services.yaml", text).unwrap();
        let manifest = Manifest {
            version: "1.2.3-abc1234".parse().unwrap(),
            files: Vec::new(),
        };
        let made =
            |proxy: &ProxySettings| compose(&manifest, &template, &Map::new(), &worker(), proxy);
        let without = made(&ProxySettings::default());
        let names = |services: &Services| -> Vec<String> {
            let all = services.environment.iter();
            all.map(|it| format!("{}={}", it.name, it.value)).collect()
        };
        assert_eq!(names(&without.services), ["OWN=x"]);
        let watched = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "OWN"];
        assert_eq!(without.services.watched, watched);
        let proxy: ProxySettings = [
            (Variable::HttpProxy, "http://u:p%40@proxy:3128"),
            (Variable::NoProxy, "a, b\n"),
        ]
        .into_iter()
        .collect();
        let with = made(&proxy);
        let declared = [
            "HTTP_PROXY=http://u:p%40@proxy:3128",
            "NO_PROXY=a, b\n",
            "OWN=x",
        ];
        assert_eq!(names(&with.services), declared);
        assert_eq!(with.services.watched, watched);
        assert_ne!(with.hash, without.hash);
        assert_eq!(ProxySettings::declared_in(&with.services), proxy);
    }

    #[test]
    fn a_template_that_declares_a_proxy_of_its_own_is_refused_by_name() {
        let text = "services:\n- {name: k, command: k.exe, bootstrap: true, priority: 0}\nenvironmentVars:\n- {name: Https_Proxy, value: x}\n";
        let refused = Template::read("services.yaml", text).unwrap_err();
        let said = refused.to_string();
        assert!(
            said.contains("Https_Proxy") && said.contains("remove it"),
            "{said}"
        );
    }

    #[test]
    fn without_arguments_the_space_before_them_goes() {
        let text = "services:\n- {name: k, command: 'k.exe ${KUBELET_ARGUMENTS}', bootstrap: true, priority: 0}\n";
        let (template, _) = Template::read("services.yaml", text).unwrap();
        let services = template.filled(&[], Vec::new(), Vec::new());
        assert_eq!(services.services[0].command, "k.exe");
    }
}
