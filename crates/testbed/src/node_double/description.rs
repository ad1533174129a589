//! What a node says about itself, as large as a real one says it: labels, addresses, images, the
//! machine and its software. What changes while it lives is in [`super::kubelet`].

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::Ipv4Addr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::kubeconfig::Kubeconfig;

/// As many as a kubelet reports, however many there are.
const IMAGES: usize = 50;

/// The operating system a node claims to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Os {
    /// `linux`
    Linux,
    /// `windows`
    Windows,
}

/// A node to be: [`NodeDescription::start`] makes a [`super::NodeDouble`] of it.
#[derive(Debug, Clone)]
pub struct NodeDescription {
    name: String,
    os: Os,
    labels: BTreeMap<String, String>,
    taints: Vec<Value>,
    addresses: Vec<(String, String)>,
    is_clouds: bool,
    pub(super) boot_id: String,
    pub(super) lease_interval: Duration,
    pub(super) certificate_from: Option<Kubeconfig>,
    pub(super) approved_by: Option<Kubeconfig>,
}

impl NodeDescription {
    pub(super) fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            os: Os::Linux,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            addresses: Vec::new(),
            is_clouds: false,
            boot_id: uuid(),
            lease_interval: Duration::from_secs(10),
            certificate_from: None,
            approved_by: None,
        }
    }

    /// Its operating system; Linux unless said.
    #[must_use]
    pub fn os(mut self, os: Os) -> Self {
        self.os = os;
        self
    }

    /// A label in addition to those that every node has.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Its failure zone.
    #[must_use]
    pub fn zone(self, zone: &str) -> Self {
        self.label("topology.kubernetes.io/zone", zone)
    }

    /// A taint it registers with; `effect` is `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    #[must_use]
    pub fn taint(mut self, key: &str, value: &str, effect: &str) -> Self {
        self.taints
            .push(json!({ "key": key, "value": value, "effect": effect }));
        self
    }

    /// An address; `kind` is `InternalIP`, `ExternalIP`, `InternalDNS` and so on. Unless an
    /// `InternalIP` is given, one is derived from the name.
    #[must_use]
    pub fn address(mut self, kind: &str, address: &str) -> Self {
        self.addresses.push((kind.to_owned(), address.to_owned()));
        self
    }

    /// It has no address: its cloud gives it one.
    #[must_use]
    pub fn without_addresses(mut self) -> Self {
        self.is_clouds = true;
        self
    }

    /// Its first boot id; a random one unless said.
    #[must_use]
    pub fn boot_id(mut self, boot_id: &str) -> Self {
        boot_id.clone_into(&mut self.boot_id);
        self
    }

    /// How often its Lease is renewed; every 10 seconds, like a kubelet, unless said.
    #[must_use]
    pub fn lease_interval(mut self, interval: Duration) -> Self {
        self.lease_interval = interval;
        self
    }

    /// It logs in with a certificate of its own, for which it asks with `bootstrap`.
    #[must_use]
    pub fn with_certificate_from(mut self, bootstrap: &Kubeconfig) -> Self {
        self.certificate_from = Some(bootstrap.clone());
        self
    }

    /// Its request for a certificate is approved with `login`. Unless said, the request waits for
    /// whoever approves in that cluster.
    #[must_use]
    pub fn approved_by(mut self, login: &Kubeconfig) -> Self {
        self.approved_by = Some(login.clone());
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address under which the cluster reaches it.
    pub(crate) fn internal_ip(&self) -> String {
        let given = self.addresses.iter().find(|(kind, _)| kind == "InternalIP");
        given.map_or_else(
            || {
                let [a, b, c, ..] = fingerprint(&self.name).to_be_bytes();
                Ipv4Addr::new(10, 128 | a, b, c).to_string()
            },
            |(_, address)| address.clone(),
        )
    }

    /// Metadata and spec, as it registers.
    pub(super) fn registration(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.name,
                "labels": self.all_labels(),
                "annotations": { "volumes.kubernetes.io/controller-managed-attach-detach": "true" },
            },
            "spec": { "taints": self.taints },
        })
    }

    pub(super) fn all_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.labels.clone();
        for (key, value) in [
            ("kubernetes.io/hostname", self.name.as_str()),
            ("kubernetes.io/os", self.os.name()),
            ("kubernetes.io/arch", "amd64"),
            ("beta.kubernetes.io/os", self.os.name()),
            ("beta.kubernetes.io/arch", "amd64"),
        ] {
            labels.insert(key.to_owned(), value.to_owned());
        }
        if self.os == Os::Windows {
            labels.insert(
                "node.kubernetes.io/windows-build".to_owned(),
                "10.0.20348".to_owned(),
            );
        }
        labels
    }

    /// Its status but for the conditions: what does not change while the machine is up.
    pub(super) fn status(&self, boot_id: &str) -> Value {
        json!({
            "addresses": self.all_addresses(),
            "allocatable": self.resources("3920m", "94386480047", "15258592Ki"),
            "capacity": self.resources("4", "104779756Ki", "16384992Ki"),
            "daemonEndpoints": { "kubeletEndpoint": { "Port": 10250 } },
            "images": self.images(),
            "nodeInfo": self.node_info(boot_id),
        })
    }

    fn all_addresses(&self) -> Vec<Value> {
        if self.is_clouds {
            return Vec::new();
        }
        let mut addresses = self.addresses.clone();
        for (kind, address) in [
            ("InternalIP", self.internal_ip()),
            ("Hostname", self.name.clone()),
        ] {
            if !addresses.iter().any(|(given, _)| given == kind) {
                addresses.push((kind.to_owned(), address));
            }
        }
        addresses
            .iter()
            .map(|(kind, address)| json!({ "type": kind, "address": address }))
            .collect()
    }

    fn resources(&self, cpu: &str, disk: &str, memory: &str) -> Value {
        let mut resources = json!({
            "cpu": cpu,
            "ephemeral-storage": disk,
            "memory": memory,
            "pods": "110",
        });
        if self.os == Os::Linux {
            resources["hugepages-1Gi"] = json!("0");
            resources["hugepages-2Mi"] = json!("0");
        }
        resources
    }

    fn images(&self) -> Vec<Value> {
        let registry = match self.os {
            Os::Linux => "quay.io/openshift-release-dev/ocp-v4.0-art-dev",
            Os::Windows => "mcr.microsoft.com/windows/servercore/applications",
        };
        (0..IMAGES)
            .map(|number| {
                let part = |part: u8| fingerprint(&(registry, number, part));
                let digest = format!(
                    "{:016x}{:016x}{:016x}{:016x}",
                    part(0),
                    part(1),
                    part(2),
                    part(3)
                );
                json!({
                    "names": [
                        format!("{registry}@sha256:{digest}"),
                        format!("{registry}:component-{number:02}"),
                    ],
                    "sizeBytes": 1_200_000_000 - 20_000_000 * number,
                })
            })
            .collect()
    }

    fn node_info(&self, boot_id: &str) -> Value {
        let (image, kernel, runtime) = match self.os {
            Os::Linux => (
                "Red Hat Enterprise Linux CoreOS 9.6.20260801-0 (Plow)",
                "5.14.0-570.42.1.el9_6.x86_64",
                "cri-o://1.37.0-2.el9",
            ),
            Os::Windows => (
                "Windows Server 2022 Datacenter",
                "10.0.20348.4052",
                "containerd://2.2.0",
            ),
        };
        let machine = format!("{:016x}{:016x}", fingerprint(&self.name), fingerprint(&1));
        json!({
            "architecture": "amd64",
            "bootID": boot_id,
            "containerRuntimeVersion": runtime,
            "kernelVersion": kernel,
            "kubeProxyVersion": "",
            "kubeletVersion": "v1.37.0",
            "machineID": machine,
            "operatingSystem": self.os.name(),
            "osImage": image,
            "systemUUID": as_uuid(fingerprint(&self.name), fingerprint(&2)),
        })
    }
}

impl Os {
    fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Windows => "windows",
        }
    }
}

/// A random UUID.
pub(super) fn uuid() -> String {
    // Every `RandomState` hashes with keys of its own, which is all the randomness needed here.
    let random = || std::hash::RandomState::new().hash_one(0);
    as_uuid(random(), random())
}

fn as_uuid(high: u64, low: u64) -> String {
    let digits = format!("{high:016x}{low:016x}");
    let part = |range| digits.get(range).unwrap_or_default();
    format!(
        "{}-{}-4{}-a{}-{}",
        part(0..8),
        part(8..12),
        part(13..16),
        part(17..20),
        part(20..32)
    )
}

/// The same number for the same thing, in every process.
fn fingerprint(thing: &impl Hash) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    thing.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_ids_are_uuids_and_never_the_same() {
        let (one, two) = (uuid(), uuid());
        assert_ne!(one, two);
        assert_eq!(one.len(), 36);
        assert_eq!(
            one.split('-').map(str::len).collect::<Vec<_>>(),
            [8, 4, 4, 4, 12]
        );
    }

    #[test]
    fn a_given_internal_address_is_the_only_one() {
        let node = NodeDescription::named("n").address("InternalIP", "192.0.2.7");
        assert_eq!(node.internal_ip(), "192.0.2.7");
        let kinds: Vec<_> = node.all_addresses();
        assert_eq!(kinds.len(), 2, "{kinds:?}");
        let derived = NodeDescription::named("n").internal_ip();
        assert!(derived.starts_with("10."), "{derived}");
        assert_eq!(NodeDescription::named("n").internal_ip(), derived);
    }
}
