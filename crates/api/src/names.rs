//! The names that other programs, people and both halves of Evenkeel rely on. They are written here
//! and nowhere else, so that a rename is one line and a typo is impossible.

/// Annotations on Nodes.
pub mod annotation {
    /// The version that a Windows node runs. Written by the agent.
    pub const WINDOWS_VERSION: &str = "windowsmachineconfig.openshift.io/version";
    /// The version that a Windows node was granted. Written by the operator.
    pub const WINDOWS_DESIRED_VERSION: &str = "windowsmachineconfig.openshift.io/desired-version";
    /// SHA-256 of the services ConfigMap that a node is to run. Written by the operator.
    pub const DESIRED_SERVICES: &str = "evenkeel.dev/desired-services";
    /// SHA-256 of the services ConfigMap that a node runs. Written by the agent.
    pub const CURRENT_SERVICES: &str = "evenkeel.dev/current-services";
    /// Payload files that the agent could not restore by itself.
    pub const MISSING_FILES: &str = "evenkeel.dev/missing-files";
    /// The instance that a Windows node was made of: `<user>@<address>`. Written by the operator.
    pub const INSTANCE: &str = "evenkeel.dev/instance";
    /// In the middle of an upgrade: `<version> <hash> <time>` of the services whose files were brought to
    /// the node's machine. Written by the operator.
    pub const SUPPLIED: &str = "evenkeel.dev/supplied";
    /// SHA-256 of the SSH key with which OpenShift's operator for Windows nodes logs in. That one writes it on every node that it
    /// made; our operator removes it when the node was taken over.
    pub const WMCO_KEY_HASH: &str = "windowsmachineconfig.openshift.io/pub-key-hash";
    /// That operator is to reboot the node.
    pub const WMCO_REBOOT: &str = "windowsmachineconfig.openshift.io/reboot-required";
    /// Name of the rendered configuration that a Linux node is to run. Written by the operator.
    pub const DESIRED_CONFIG: &str = "machineconfiguration.openshift.io/desiredConfig";
    /// The voucher: the same name, written by the operator in the same patch. A [`DESIRED_CONFIG`] without
    /// a voucher that equals it is foreign (OpenShift's machine-config operator's), and no agent obeys it.
    pub const VOUCHER: &str = "evenkeel.dev/desired-config";
    /// Name of the rendered configuration that a Linux node runs. Written by the agent.
    pub const CURRENT_CONFIG: &str = "machineconfiguration.openshift.io/currentConfig";
    /// `Done`, `Working` or `Degraded`. Written by the agent.
    pub const STATE: &str = "machineconfiguration.openshift.io/state";
    /// Why the state is what it is, for people. Written by the agent.
    pub const REASON: &str = "machineconfiguration.openshift.io/reason";
    /// `drain-<target>` or `uncordon-<target>`: what the agent asks for.
    pub const DESIRED_DRAIN: &str = "machineconfiguration.openshift.io/desiredDrain";
    /// The same value back from the operator: equality is the permission.
    pub const LAST_APPLIED_DRAIN: &str = "machineconfiguration.openshift.io/lastAppliedDrain";
    /// `accessed` once somebody logged in over SSH.
    pub const SSH: &str = "machineconfiguration.openshift.io/ssh";
    /// What changes need around them, as JSON. On rendered configurations; written by the operator.
    pub const DISRUPTION_POLICY: &str = "evenkeel.dev/disruption-policy";
    /// `degrade` or `heal`: what happens on drift. On pools, and from there on Nodes.
    pub const DRIFT: &str = "evenkeel.dev/drift";
    /// Who of us cordoned the node; a cordon without it is a person's.
    pub const CORDONED_BY: &str = "evenkeel.dev/cordoned-by";
    /// When the node was granted its disruption permit (RFC 3339). Written by the operator in the same patch
    /// as the cordon, removed with the answer to `uncordon-<target>`.
    pub const DRAIN_GRANTED: &str = "evenkeel.dev/drain-granted";
    /// The uids of the operator's own pods that go in this drain, with commas between them; empty if all of them
    /// stay. Written by the operator, removed with the answer to `uncordon-<target>`.
    pub const DRAIN_OWN_PODS: &str = "evenkeel.dev/drain-own-pods";
    /// Which of the annotations in [`super::autoscaler`] the operator has set with the disruption permit, with commas between
    /// them; what people set is not among them. Written and removed with [`DRAIN_GRANTED`].
    pub const AUTOSCALER_ANNOTATIONS: &str = "evenkeel.dev/autoscaler-annotations";
    /// What the operator has written into `reason`, because a drain takes too long: by this it is known whose words
    /// those are. Written by the operator, removed with the answer to the request.
    pub const DRAIN_OVERDUE: &str = "evenkeel.dev/drain-overdue";
    /// Extensions that this very node must have, as a JSON list.
    pub const SYSTEM_EXTENSIONS: &str = "evenkeel.dev/system-extensions";
    /// The readiness rules that hold the taint.
    pub const READINESS_OWNERS: &str = "evenkeel.dev/readiness-owners";
    /// What another operator has to know of the taint, as JSON: whether something fell silent, and conditions
    /// as they were before the restart. Written in the same patch as the taint, and goes with it.
    pub const READINESS_RECORD: &str = "evenkeel.dev/readiness-record";
    /// The taints of rules that have one of their own, as `key:effect` with commas between them: those that are ours to
    /// take off. Written in the same patch as the taints.
    pub const READINESS_TAINTS: &str = "evenkeel.dev/readiness-taints";
    /// The bootstrap rules that the node has done with, as `name=uid` with commas between them.
    pub const BOOTSTRAP_COMPLETED: &str = "evenkeel.dev/bootstrap-completed";
    /// Begins the name of node-readiness-controller's annotation for the same; the uid of the rule follows.
    pub const NRC_BOOTSTRAP_COMPLETED: &str = "readiness.k8s.io/bootstrap-completed-";
    /// On a pool: `never` keeps the pods of its nodes where they are.
    pub const DRAIN: &str = "evenkeel.dev/drain";
    /// On a pool: how long a drain may take before it is reported.
    pub const DRAIN_TIMEOUT: &str = "evenkeel.dev/drain-timeout";
    /// On a pool: `proceed` goes ahead when a drain has taken too long.
    pub const DRAIN_ON_TIMEOUT: &str = "evenkeel.dev/drain-on-timeout";
    /// On a pool: how long a drain waits for pods that are terminating on a node that is not ready.
    pub const DRAIN_SKIP_WAIT_FOR_DELETE: &str = "evenkeel.dev/drain-skip-wait-for-delete";
    /// On a pool: `true` keeps pods off its new nodes until their first configuration is done.
    pub const FIRST_CONFIG_FIRST: &str = "evenkeel.dev/first-config-first";
    /// On a `MachineConfigPool`: the name of the `RolloutPolicy` that it is rolled out by.
    pub const ROLLOUT_POLICY: &str = "evenkeel.dev/rollout-policy";
    /// On a pool: `<who>: <why>` lets its nodes begin outside the windows and in the freezes of its policy.
    pub const ROLLOUT_OVERRIDE: &str = "evenkeel.dev/rollout-override";
    /// On a `MachineSet`: how many of its nodes may be unavailable under Recreate.
    pub const MAX_UNHEALTHY: &str = "evenkeel.dev/max-unhealthy";
    /// On the operator's Lease: what it makes of OpenShift's own operators, as JSON.
    pub const COEXISTENCE: &str = "evenkeel.dev/coexistence";
    /// On an agent's Lease: boot id, kubelet start, state and probes as JSON.
    pub const REPORT: &str = "evenkeel.dev/report";

    /// Those on Nodes that OpenShift's own machine-config operator uses, too.
    pub const OF_MACHINE_CONFIGS: [&str; 7] = [
        DESIRED_CONFIG,
        CURRENT_CONFIG,
        STATE,
        REASON,
        DESIRED_DRAIN,
        LAST_APPLIED_DRAIN,
        SSH,
    ];
}

/// Annotations of Nodes by which others leave a node alone, with the value [`HELD`](autoscaler::HELD). They are not ours alone.
pub mod autoscaler {
    /// The Cluster Autoscaler does not remove the node.
    pub const SCALE_DOWN_DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
    /// Karpenter does not disrupt the node: no consolidation, no drift.
    pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
    /// Karpenter does not replace the node because it is unhealthy.
    pub const DO_NOT_REPAIR: &str = "karpenter.sh/do-not-repair";
    /// The value that each of them needs.
    pub const HELD: &str = "true";

    /// All of them.
    pub const ALL: [&str; 3] = [SCALE_DOWN_DISABLED, DO_NOT_DISRUPT, DO_NOT_REPAIR];
}

/// Taints that are ours.
pub mod taint {
    /// A node whose extensions are not all healthy.
    pub const META_READINESS: &str = "kubernetes.io/MetaReadiness";
    /// The same for the Cluster Autoscaler, by option.
    pub const AUTOSCALER_STARTUP: &str =
        "startup-taint.cluster-autoscaler.kubernetes.io/meta-readiness";
    /// A node that the operator's own pods leave: with the effect `PreferNoSchedule` their successors, which
    /// tolerate the cordon, go elsewhere if they can.
    pub const DRAINING: &str = "evenkeel.dev/draining";

    /// A new node of a pool with [`FIRST_CONFIG_FIRST`](super::annotation::FIRST_CONFIG_FIRST), until its first configuration
    /// is done. The effect is `NoSchedule`.
    pub const FIRST_CONFIG: &str = "evenkeel.dev/first-config";

    /// What one of them does to pods that do not tolerate it.
    pub fn effect(key: &str) -> &'static str {
        match key {
            DRAINING => "PreferNoSchedule",
            _ => "NoSchedule",
        }
    }

    /// All of them.
    pub const ALL: [&str; 4] = [META_READINESS, AUTOSCALER_STARTUP, DRAINING, FIRST_CONFIG];
}

/// Labels.
pub mod label {
    /// The program that a pod runs, for example [`super::program::AGENT`]. Kubernetes' own.
    pub const APP_NAME: &str = "app.kubernetes.io/name";
    /// The operating system of a node: `linux` or `windows`. Kubernetes' own.
    pub const OS: &str = "kubernetes.io/os";
    /// The zone of a node. Kubernetes' own.
    pub const ZONE: &str = "topology.kubernetes.io/zone";
    /// On a `MachineConfig`: the pool that it is for, by the pool's own selector.
    pub const ROLE: &str = "machineconfiguration.openshift.io/role";
    /// Marks the `MachineConfigs` that were rendered by us; their owner is the pool.
    pub const RENDERED: &str = "evenkeel.dev/rendered";
    /// Marks the services ConfigMaps of ours.
    pub const SERVICES: &str = "evenkeel.dev/services";
    /// Marks the ConfigMaps with the record of each instance.
    pub const INSTANCE_STATUS: &str = "evenkeel.dev/instance-status";
    /// On a Windows node that OpenShift's operator is upgrading.
    pub const WMCO_UPGRADING: &str = "windowsmachineconfig.openshift.io/upgrading";
    /// Marks Machines that run Windows.
    pub const MACHINE_OS_ID: &str = "machine.openshift.io/os-id";
    /// Marks the ConfigMap with the trust bundle as one that we made.
    pub const TRUSTED_CA: &str = "evenkeel.dev/trusted-ca";
    /// Asks the cluster to fill a ConfigMap with its trust bundle.
    pub const INJECT_TRUSTED_CA: &str = "config.openshift.io/inject-trusted-cabundle";
}

/// Programs of ours: also the names of their service accounts, their Leases, and in the label
/// [`label::APP_NAME`] of their pods.
pub mod program {
    /// The agent.
    pub const AGENT: &str = "evenkeel-agent";
    /// The operator.
    pub const OPERATOR: &str = "evenkeel-operator";
}

/// Who of us cordons: values of [`annotation::CORDONED_BY`].
pub mod cordon {
    /// The operator, for a drain.
    pub const DRAIN: &str = "drain";
    /// The agent of a Windows node, until all its services run.
    pub const AGENT: &str = "agent";
}

/// What Kubernetes itself says about a pod that a drain must know.
pub mod pod {
    /// Annotation of a mirror pod: the copy of a static pod that the API server has.
    pub const MIRROR: &str = "kubernetes.io/config.mirror";
    /// Annotation that says where a pod comes from: `api`, or for a static pod `file` or `http`.
    pub const SOURCE: &str = "kubernetes.io/config.source";
    /// Annotation of a pod that must not be evicted.
    pub const CRITICAL: &str = "scheduler.alpha.kubernetes.io/critical-pod";
    /// Priority class of pods without which a node is none.
    pub const NODE_CRITICAL: &str = "system-node-critical";
}

/// Objects and keys in the operator's namespace.
pub mod object {
    /// ConfigMap: what changes of a machine need around them.
    pub const DISRUPTION_POLICY: &str = "evenkeel-disruption-policy";
    /// Key in that ConfigMap, with `files`, `units` and `sshkey`.
    pub const DISRUPTION_POLICY_KEY: &str = "nodeDisruptionPolicy";
    /// Beginning of the name of every services ConfigMap.
    pub const SERVICES_PREFIX: &str = "services-";
    /// ConfigMap: address → `username=<user>`, or `username=<user>,nodeAddress=<address of its Node>`.
    pub const WINDOWS_INSTANCES: &str = "windows-instances";
    /// Secret with the SSH key of the instances.
    pub const CLOUD_PRIVATE_KEY: &str = "cloud-private-key";
    /// Key in that Secret.
    pub const CLOUD_PRIVATE_KEY_FILE: &str = "private-key.pem";
    /// ConfigMap: how far each instance is, as operators before this one wrote it: address → JSON. It is read once more, and
    /// then goes.
    pub const INSTANCES_STATUS: &str = "windows-instances-status";
    /// ConfigMap: disruption permits of nodes that no pool's status can record. Written by the operator.
    pub const PERMITS: &str = "evenkeel-permits";
    /// Key in that ConfigMap.
    pub const PERMITS_KEY: &str = "permits";
    /// Beginning of the name of the ConfigMap that says how far one instance is, with [`super::label::INSTANCE_STATUS`].
    /// Written by the operator.
    pub const INSTANCE_STATUS_PREFIX: &str = "windows-instance-";
    /// Key in that ConfigMap: the instance.
    pub const INSTANCE_STATUS_NAME: &str = "instance";
    /// Key in that ConfigMap: how far it is, as JSON.
    pub const INSTANCE_STATUS_RECORD: &str = "status";
    /// Secret with the host key that each instance had the first time. Written by the operator.
    pub const HOST_KEYS: &str = "evenkeel-host-keys";
    /// ConfigMap with the trust bundle.
    pub const TRUSTED_CA: &str = "trusted-ca";
    /// Key in that ConfigMap.
    pub const TRUSTED_CA_FILE: &str = "ca-bundle.crt";
    /// The only object of kind `WindowsPool`.
    pub const WINDOWS_POOL: &str = "windows";
    /// Secret with the Ignition config of workers, where no pool of that name has one.
    pub const WORKER_IGNITION: &str = "worker-ignition";
    /// Key in that Secret.
    pub const WORKER_IGNITION_FILE: &str = "worker.ign";
    /// Namespace of the Leases of extensions and agents.
    pub const EXTENSIONS_NAMESPACE: &str = "node-extensions";
    /// The admission policies that keep an agent to its own node, a kubelet from what the operator writes, and both within bounds;
    /// and their bindings.
    pub const AGENT_POLICIES: [&str; 6] = [
        "evenkeel-agent-own-node",
        "evenkeel-agent-own-leases",
        "evenkeel-kubelet-no-grants",
        "evenkeel-node-bounds",
        "evenkeel-lease-bounds",
        "evenkeel-request-bounds",
    ];
    /// The admission policy that taints new nodes, and its binding.
    pub const READINESS_POLICY: &str = "evenkeel-new-nodes";
}

/// Pools of Linux nodes whose names mean something.
pub mod pool {
    /// The control plane, which wins over every other pool.
    pub const CONTROL_PLANE: [&str; 2] = ["master", "control-plane"];
    /// Everybody who is in no other pool.
    pub const WORKER: &str = "worker";
    /// Beginning of the name of every rendered `MachineConfig`; the pool and a hash follow.
    pub const RENDERED_PREFIX: &str = "rendered-";
}

/// OpenShift's own operators: where one is installed, that half of ours stays idle.
pub mod openshift {
    /// The namespace of its machine-config operator.
    pub const NAMESPACE: &str = "openshift-machine-config-operator";
    /// The Leases of that one's leaders.
    pub const LEASES: [&str; 2] = ["machine-config", "machine-config-controller"];
    /// The namespace of its operator for Windows nodes.
    pub const WINDOWS_NAMESPACE: &str = "openshift-windows-machine-config-operator";
    /// The Lease of that one's leader. Older releases have a ConfigMap of this name instead, which goes
    /// when the leader's pod goes: then only the namespace tells that they are installed.
    pub const WINDOWS_LEASE: &str = "windows-machine-config-operator-lock";
}

/// API groups.
pub mod group {
    /// Our own objects.
    pub const EVENKEEL: &str = "evenkeel.dev";
    /// `MachineConfig` and `MachineConfigPool`.
    pub const MACHINE_CONFIGURATION: &str = "machineconfiguration.openshift.io";
    /// What OLM reads of an operator.
    pub const OPERATORS: &str = "operators.coreos.com";
    /// Machines and `MachineSets`.
    pub const MACHINE: &str = "machine.openshift.io";
    /// OpenShift's settings of its own operators: `MachineConfiguration`.
    pub const OPENSHIFT_OPERATOR: &str = "operator.openshift.io";
    /// What holds for a whole cluster: its Proxy.
    pub const CONFIG: &str = "config.openshift.io";
}

/// The egress proxy.
pub mod proxy {
    /// The variable with the proxy for http.
    pub const HTTP: &str = "HTTP_PROXY";
    /// The variable with the proxy for https.
    pub const HTTPS: &str = "HTTPS_PROXY";
    /// The variable with those who are reached without it.
    pub const NO: &str = "NO_PROXY";
    /// All of them.
    pub const ALL: [&str; 3] = [HTTP, HTTPS, NO];
    /// The only object of kind `Proxy` that counts.
    pub const OBJECT: &str = "cluster";
}

/// Who an agent is.
pub mod identity {
    /// Beginning of an agent's user name; its node's name follows.
    pub const AGENT_USER_PREFIX: &str = "evenkeel:agent:";
    /// The group of all agents.
    pub const AGENT_GROUP: &str = "evenkeel:agents";
}

/// Who signs certificates. Kubernetes' own.
pub mod certificate {
    /// Logins of whomever.
    pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
    /// Logins of kubelets.
    pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
    /// Kubelets as servers.
    pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
}

/// Places on a Linux node.
pub mod linux {
    /// Folder of our state.
    pub const STATE: &str = "/etc/machine-config-daemon";
    /// What we remember ourselves: the journal and what files replaced. No configuration may write here.
    pub const OWN_STATE: &str = "/etc/machine-config-daemon/state";
    /// Where units of a configuration go.
    pub const UNITS: &str = "/etc/systemd/system";
    /// A file that makes the agent re-apply everything.
    pub const FORCE_FILE: &str = "/run/machine-config-daemon-force";
    /// The MachineConfig that OpenShift's machine-config daemon brought the machine to last.
    pub const THEIR_CURRENT_CONFIG: &str = "/etc/machine-config-daemon/currentconfig";
    /// The MachineConfig that OpenShift's machine-config server gave the machine for its first boot.
    pub const THEIR_SERVED_CONFIG: &str = "/etc/mcs-machine-config-content.json";
    /// The same one without its Ignition config; after the first boot, the second file.
    pub const THEIR_ENCAPSULATED_CONFIG: [&str; 2] = [
        "/etc/ignition-machine-config-encapsulated.json",
        "/etc/ignition-machine-config-encapsulated.json.bak",
    ];
    /// The first annotations of the Node, which name it; once the daemon has set them, the second file.
    pub const THEIR_FIRST_ANNOTATIONS: [&str; 2] = [
        "/etc/machine-config-daemon/node-annotations.json",
        "/etc/machine-config-daemon/node-annotation.json.bak",
    ];
}

/// Places and tags on a Windows node.
pub mod windows {
    /// The payload.
    pub const PAYLOAD: &str = r"C:\k\";
    /// Second copies of the payload, by checksum.
    pub const STORE: &str = r"C:\k\store\";
    /// Logs, where the kubelet serves them.
    pub const LOGS: &str = r"C:\var\log\evenkeel\";
    /// What we remember ourselves: the journal, the record and the last services ConfigMap.
    pub const OWN_STATE: &str = r"C:\k\state\";
    /// The container runtime's service.
    pub const CONTAINERD_SERVICE: &str = "containerd";
    /// Where it serves, unless a command names another pipe.
    pub const CONTAINERD_PIPE: &str = r"\\.\pipe\containerd-containerd";
    /// The agent's program.
    pub const AGENT: &str = r"C:\k\evenkeel-agent.exe";
    /// Where the agent of another version is put while this one is still in its place.
    pub const UPGRADE: &str = r"C:\k\upgrade\";
    /// That agent.
    pub const NEW_AGENT: &str = r"C:\k\upgrade\evenkeel-agent.exe";
    /// The kubelet's configuration, made from that of Linux workers.
    pub const KUBELET_CONFIG: &str = r"C:\k\kubelet.conf";
    /// The login with which a kubelet asks for its own.
    pub const BOOTSTRAP_KUBECONFIG: &str = r"C:\k\bootstrap-kubeconfig";
    /// Whose certificates the kubelet's own server takes.
    pub const CLIENT_CA: &str = r"C:\k\kubelet-ca.crt";
    /// The login with which the agent on a new instance asks for its own.
    pub const LOGIN: &str = r"C:\k\login";
    /// The login of the kubelet, which is the identity of its Node.
    pub const KUBECONFIG: &str = r"C:\k\kubeconfig";
    /// The kubelet's service.
    pub const KUBELET_SERVICE: &str = "kubelet";
    /// The service of the agent of OpenShift's operator for Windows nodes.
    pub const WMCO_SERVICE: &str = "windows-instance-config-daemon";
    /// The program of that agent.
    pub const WMCO_AGENT: &str = r"C:\k\windows-instance-config-daemon.exe";
    /// The agent's service.
    pub const AGENT_SERVICE: &str = "evenkeel-agent";
    /// Tag of what is ours: a service's description, a certificate's friendly name.
    pub const MANAGED_TAG: &str = "OpenShift managed";
}
