//! `evenkeel-operator uninstall`, run as the chart's hook runs it: with its arguments and its rights.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use evenkeel_api::names::{annotation, taint};
use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::node_double::NodeDouble;
use evenkeel_testbed::process::output;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::{Doing, Result, need};
use serde_json::{Value, json};

struct Cluster {
    control_plane: ControlPlane,
    chart: Chart,
    scratch: Scratch,
}

fn words(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

fn argument(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// What the chart's workload runs the program with.
fn arguments(chart: &Chart, kind: &str, name: &str) -> Result<Vec<String>> {
    let pod = &chart.object(kind, name)?["spec"]["template"]["spec"];
    let arguments = pod["containers"][0]["args"].as_array();
    Ok(arguments
        .map(|it| it.iter().map(argument).collect())
        .unwrap_or_default())
}

impl Cluster {
    /// A cluster of its own, because an uninstall is about all nodes, with the chart on it.
    fn start() -> Result<Self> {
        let control_plane = ControlPlane::start()?;
        let chart = Chart::render("evenkeel", &[])?;
        chart.without(&["Job"]).apply(&control_plane)?;
        let scratch = Scratch::new("uninstall")?;
        let login = control_plane.kubeconfig_for_service_account("evenkeel", "evenkeel-uninstall");
        login?.write(&scratch.path().join("kubeconfig"))?;
        Ok(Self {
            control_plane,
            chart,
            scratch,
        })
    }

    /// Runs the hook's command; later options win over its own.
    fn uninstall(&self, options: &[&str]) -> Result<Output> {
        let mut given = arguments(&self.chart, "Job", "evenkeel-uninstall")?;
        if options.iter().any(|it| it.starts_with("--timeout")) {
            given.retain(|it| !it.starts_with("--timeout"));
        }
        let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_evenkeel-operator")));
        command
            .args(given)
            .args(options)
            .arg("--kubeconfig")
            .arg(self.scratch.path().join("kubeconfig"))
            .env("POD_NAMESPACE", "evenkeel");
        output(&mut command, &[])
    }

    fn kubectl(&self, words: &[&str]) -> Result<String> {
        self.control_plane.kubectl(words)
    }

    /// What decides about a node's pods, and every annotation but those of Kubernetes itself.
    fn node(&self, name: &str) -> Result<Value> {
        let text = self.kubectl(&["get", "node", name, "-o=json"])?;
        let node: Value = serde_json::from_str(&text).doing(|| "no node")?;
        let mut annotations = node["metadata"]["annotations"].clone();
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.retain(|name, _| !name.contains("kubernetes.io"));
        }
        let taints = node["spec"]["taints"].as_array().cloned();
        let mut taints: Vec<_> = taints
            .unwrap_or_default()
            .iter()
            .map(|it| argument(&it["key"]))
            .filter(|key| !key.starts_with("node.kubernetes.io/"))
            .collect();
        taints.sort();
        let cordoned = node["spec"]["unschedulable"] == true;
        Ok(json!({ "annotations": annotations, "taints": taints, "cordoned": cordoned }))
    }

    fn patch(&self, node: &str, patch: &Value) -> Result<()> {
        let patch = patch.to_string();
        let words = ["patch", "node", node, "--type=merge", "-p", &patch];
        self.kubectl(&words).map(|_| ())
    }

    fn exists(&self, what: &[&str]) -> bool {
        self.kubectl(&[&["get"], what].concat()).is_ok()
    }
}

fn marked(annotations: &[&str], taints: &[&str], cordoned: bool) -> Value {
    let annotations: serde_json::Map<_, _> = annotations
        .iter()
        .map(|name| ((*name).to_owned(), json!("x")))
        .collect();
    let taints: Vec<_> = taints
        .iter()
        .map(|key| json!({ "key": key, "effect": "NoSchedule" }))
        .collect();
    json!({
        "metadata": { "annotations": annotations },
        "spec": { "taints": taints, "unschedulable": cordoned },
    })
}

fn bare(annotations: &[&str], taints: &[&str], cordoned: bool) -> Value {
    let marked = marked(annotations, taints, cordoned);
    json!({ "annotations": marked["metadata"]["annotations"], "taints": taints, "cordoned": cordoned })
}

const WORKLOADS: [&[&str]; 3] = [
    &["deployment/evenkeel-operator", "--namespace=evenkeel"],
    &["daemonset/evenkeel-agent", "--namespace=evenkeel"],
    &["lease/evenkeel-operator", "--namespace=evenkeel"],
];
const RIGHTS: [&[&str]; 16] = [
    &["rolebinding/evenkeel-agent", "--namespace=node-extensions"],
    &["lease/ours.evenkeel-agent", "--namespace=node-extensions"],
    &["clusterrolebinding/evenkeel-operator"],
    &["clusterrolebinding/evenkeel-agent"],
    &["validatingadmissionpolicy/evenkeel-agent-own-node"],
    &["validatingadmissionpolicy/evenkeel-agent-own-leases"],
    &["validatingadmissionpolicy/evenkeel-kubelet-no-grants"],
    &["validatingadmissionpolicy/evenkeel-node-bounds"],
    &["validatingadmissionpolicy/evenkeel-lease-bounds"],
    &["validatingadmissionpolicy/evenkeel-request-bounds"],
    &["validatingadmissionpolicybinding/evenkeel-node-bounds"],
    &["validatingadmissionpolicybinding/evenkeel-lease-bounds"],
    &["validatingadmissionpolicybinding/evenkeel-request-bounds"],
    &["validatingadmissionpolicybinding/evenkeel-agent-own-node"],
    &["validatingadmissionpolicybinding/evenkeel-agent-own-leases"],
    &["validatingadmissionpolicybinding/evenkeel-kubelet-no-grants"],
];

#[tokio::test(flavor = "multi_thread")]
async fn an_uninstall_takes_what_is_ours_and_leaves_the_nodes_and_what_is_anybody_elses()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let cluster = Cluster::start()?;
    let admin = cluster.control_plane.admin_kubeconfig();
    let mut doubles = Vec::new();
    for name in ["ours", "theirs", "mixed"] {
        doubles.push(NodeDouble::named(name).start(&admin).await?);
    }
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "evenkeel-operator", "namespace": "evenkeel" },
    });
    let file = cluster.scratch.path().join("lease.json");
    std::fs::write(&file, lease.to_string()).doing(|| "cannot write")?;
    cluster.kubectl(&["apply", "-f", &file.display().to_string()])?;
    // What an agent and another extension renew, beside each other.
    for name in ["ours.evenkeel-agent", "ours.cni"] {
        let mut renewed = lease.clone();
        renewed["metadata"] = json!({ "name": name, "namespace": "node-extensions" });
        std::fs::write(&file, renewed.to_string()).doing(|| "cannot write")?;
        cluster.kubectl(&["apply", "-f", &file.display().to_string()])?;
    }
    until("agents on all nodes", Duration::from_mins(1), || {
        let pods = cluster.kubectl(&[
            "get",
            "pods",
            "--namespace=evenkeel",
            "--field-selector=status.phase=Running",
            "-o=name",
        ])?;
        Ok(if pods.matches("evenkeel-agent").count() == 3 {
            Look::Found(())
        } else {
            Look::NotYet(pods)
        })
    })?;
    // A person's cordon has nobody's name on it; neither has ours on `mixed` any more.
    let ours = marked(
        &[
            annotation::CORDONED_BY,
            annotation::STATE,
            annotation::DESIRED_CONFIG,
            annotation::DRIFT,
            "theirs",
        ],
        &["theirs", taint::META_READINESS],
        true,
    );
    cluster.patch("ours", &ours)?;
    let theirs = marked(&["theirs"], &["theirs"], true);
    cluster.patch("theirs", &theirs)?;
    let mixed = marked(&[annotation::SSH], &taint::ALL, true);
    cluster.patch("mixed", &mixed)?;
    let before: Vec<_> = ["ours", "theirs", "mixed"]
        .iter()
        .map(|name| cluster.node(name))
        .collect::<Result<_>>()?;

    let tried = cluster.uninstall(&["--dry-run"])?;
    let said = words(&tried);
    assert!(tried.status.success(), "{said}");
    for line in [
        "Deployment evenkeel-operator: remove",
        "Lease ours.evenkeel-agent: remove",
        "node ours: uncordon; remove the taints kubernetes.io/MetaReadiness; remove the annotations",
        "2 nodes would change (dry run)",
    ] {
        assert!(said.contains(line), "{line} is not in {said}");
    }
    assert!(!said.contains("node theirs"), "{said}");
    for (name, before) in ["ours", "theirs", "mixed"].iter().zip(&before) {
        assert_eq!(&cluster.node(name)?, before);
    }
    for what in WORKLOADS.iter().chain(&RIGHTS) {
        assert!(cluster.exists(what), "{what:?} is gone after a dry run");
    }

    // Something holds the operator: it ends in time, says so, and may be run again.
    let hold = [
        "patch",
        "deployment/evenkeel-operator",
        "--namespace=evenkeel",
        "--type=merge",
    ];
    let finalizers = |list: &str| format!("-p={{\"metadata\":{{\"finalizers\":{list}}}}}");
    cluster.kubectl(&[&hold[..], &[&finalizers("[\"example.com/hold\"]")]].concat())?;
    let start = Instant::now();
    let held = cluster.uninstall(&["--timeout=4s"])?;
    let said = words(&held);
    assert_eq!(held.status.code(), Some(1), "{said}");
    assert!(
        said.contains("Deployment evenkeel-operator: waiting until its pods are gone"),
        "{said}"
    );
    assert!(said.contains("did not finish within 4s"), "{said}");
    assert!(start.elapsed() < Duration::from_secs(15), "{said}");
    assert_eq!(cluster.node("ours")?, before[0]);
    cluster.kubectl(&[&hold[..], &[&finalizers("null")]].concat())?;

    let done = cluster.uninstall(&[])?;
    let said = words(&done);
    assert!(done.status.success(), "{said}");
    assert!(said.contains("2 nodes changed"), "{said}");
    assert_eq!(cluster.node("ours")?, bare(&["theirs"], &["theirs"], false));
    assert_eq!(cluster.node("theirs")?, before[1]);
    assert_eq!(cluster.node("mixed")?, bare(&[], &[], true));
    for what in WORKLOADS.iter().chain(&RIGHTS) {
        assert!(!cluster.exists(what), "{what:?} is still there");
    }
    assert!(cluster.exists(&["lease/ours.cni", "--namespace=node-extensions"]));
    let pods = cluster.kubectl(&["get", "pods", "--namespace=evenkeel", "-o=name"])?;
    assert!(pods.trim().is_empty(), "{pods}");
    let ready = "-o=jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status}";
    let nodes = cluster.kubectl(&["get", "nodes", ready])?;
    assert_eq!(nodes.split_whitespace().collect::<Vec<_>>(), ["True"; 3]);

    let again = cluster.uninstall(&[])?;
    assert!(again.status.success(), "{}", words(&again));
    assert!(words(&again).contains("0 nodes changed"));

    // Beside OpenShift's own operator, what both of us use is that one's.
    cluster.kubectl(&["create", "namespace", "openshift-machine-config-operator"])?;
    let mut lease = lease;
    lease["metadata"]["name"] = json!("machine-config-controller");
    lease["metadata"]["namespace"] = json!("openshift-machine-config-operator");
    std::fs::write(&file, lease.to_string()).doing(|| "cannot write")?;
    cluster.kubectl(&["apply", "-f", &file.display().to_string()])?;
    cluster.patch(
        "ours",
        &marked(&[annotation::STATE, annotation::DRIFT], &[], false),
    )?;
    let beside = cluster.uninstall(&[])?;
    assert!(beside.status.success(), "{}", words(&beside));
    let left = bare(&["theirs", annotation::STATE], &[], false);
    assert_eq!(cluster.node("ours")?, left);
    Ok(())
}

/// All of `helm uninstall`, on a cluster whose only node is cordoned and tainted by us. The pod of the
/// hook is scheduled for real; what its container would run, runs here, with the rights that Helm gave.
#[tokio::test(flavor = "multi_thread")]
async fn helm_uninstall_waits_for_the_hook_and_leaves_nothing_of_ours() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let control_plane = ControlPlane::start()?;
    let admin = control_plane.admin_kubeconfig();
    let _node = NodeDouble::named("only").start(&admin).await?;
    let cluster = Cluster {
        control_plane,
        chart: Chart::render("evenkeel", &[])?,
        scratch: Scratch::new("helm-uninstall")?,
    };
    let login = cluster.scratch.path().join("admin");
    admin.write(&login)?;
    let login = format!("--kubeconfig={}", login.display());
    let folder = Chart::folder().display().to_string();
    let fixed = ["--namespace=evenkeel", &login];
    let install = [
        "install",
        "evenkeel",
        &folder,
        "--create-namespace",
        "--set=operator.replicas=0,agent.enabled=false",
    ];
    let installed = Chart::helm(&[&install[..], &fixed].concat())?;
    assert!(installed.status.success(), "{}", words(&installed));
    let ours = marked(&[annotation::CORDONED_BY], &[taint::META_READINESS], true);
    cluster.patch("only", &ours)?;

    let helm = std::thread::scope(|scope| -> Result<Output> {
        let helm = scope.spawn(|| {
            let uninstall = ["uninstall", "evenkeel", "--timeout=3m"];
            Chart::helm(&[&uninstall[..], &fixed].concat())
        });
        let ran = cluster.run_the_hook();
        let helm = helm.join().unwrap_or_else(|_| panic!("helm panicked"));
        ran?;
        helm
    })?;
    assert!(helm.status.success(), "{}", words(&helm));
    assert_eq!(cluster.node("only")?, bare(&[], &[], false));
    for what in [
        &["clusterrole/evenkeel-uninstall"][..],
        &["clusterrole/evenkeel-operator"],
        &["clusterrole/evenkeel-agent"],
        &["job/evenkeel-uninstall", "--namespace=evenkeel"],
        &["serviceaccount/evenkeel-operator", "--namespace=evenkeel"],
    ]
    .iter()
    .chain(&WORKLOADS)
    .chain(&RIGHTS)
    {
        assert!(!cluster.exists(what), "{what:?} is still there");
    }
    assert!(cluster.exists(&["crd/machineconfigs.machineconfiguration.openshift.io"]));
    Ok(())
}

impl Cluster {
    /// Waits for the pod of the hook, does what it is to do, and says that it has.
    fn run_the_hook(&self) -> Result<()> {
        let of_hook = "--selector=app.kubernetes.io/name=evenkeel-uninstall";
        let namespace = "--namespace=evenkeel";
        let name = until("the hook's pod to run", Duration::from_mins(2), || {
            let running = "--field-selector=status.phase=Running";
            let pods = self.kubectl(&["get", "pods", namespace, of_hook, running, "-o=name"])?;
            Ok(match pods.lines().next() {
                Some(name) => Look::Found(name.to_owned()),
                None => Look::NotYet(self.kubectl(&["get", "pods,jobs", namespace])?),
            })
        })?;
        let login = self
            .control_plane
            .kubeconfig_for_service_account("evenkeel", "evenkeel-uninstall");
        login?.write(&self.scratch.path().join("kubeconfig"))?;
        let done = self.uninstall(&[])?;
        assert!(done.status.success(), "{}", words(&done));
        let ended = "-p={\"status\":{\"phase\":\"Succeeded\"}}";
        let patch = ["patch", &name, namespace, "--subresource=status"];
        self.kubectl(&[&patch[..], &["--type=merge", ended]].concat())
            .map(|_| ())
    }
}

#[test]
fn the_uninstall_may_do_its_work_and_nothing_else() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let control_plane = ControlPlane::shared()?;
    let namespace = control_plane.namespace("uninstall-rights")?;
    let chart = Chart::render(&namespace, &[])?;
    chart.kinds(&["Namespace"]).apply(control_plane)?;
    chart.component("uninstall").rights().apply(control_plane)?;
    let account = format!("--as=system:serviceaccount:{namespace}:evenkeel-uninstall");
    let own = format!("--namespace={namespace}");
    for (question, answer) in [
        (&["patch", "nodes"][..], "yes"),
        (&["delete", "nodes"], "no"),
        (&["delete", "clusterrolebinding/evenkeel-agent"], "yes"),
        (&["delete", "clusterrolebinding/cluster-admin"], "no"),
        (&["delete", "deployment/evenkeel-operator", &own], "yes"),
        (&["delete", "deployment/another", &own], "no"),
        (
            &[
                "delete",
                "deployment/evenkeel-operator",
                "--namespace=default",
            ],
            "no",
        ),
        (&["delete", "leases", "--namespace=node-extensions"], "yes"),
        (&["delete", "leases", "--namespace=kube-node-lease"], "no"),
        (&["delete", "leases", &own], "no"),
        (
            &[
                "delete",
                "rolebinding/another",
                "--namespace=node-extensions",
            ],
            "no",
        ),
        (&["list", "pods", "--all-namespaces"], "no"),
        (&["get", "secrets", &own], "no"),
    ] {
        let asked = [&["auth", "can-i"], question, &[&account]].concat();
        // It ends with 1 when the answer is no.
        let said = match control_plane.kubectl(&asked) {
            Ok(said) => said,
            Err(error) => error.to_string(),
        };
        let said = if said.trim() == "yes" { "yes" } else { "no" };
        assert_eq!(said, answer, "{question:?}");
    }
    Ok(())
}

#[test]
fn the_operator_understands_what_the_chart_gives_it() -> Result<()> {
    if need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    let chart = Chart::render("evenkeel", &["--set=operator.nodeSelectorForWork=a=b"])?;
    for (kind, name) in [
        ("Deployment", "evenkeel-operator"),
        ("Job", "evenkeel-uninstall"),
    ] {
        let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_evenkeel-operator")));
        command
            .args(arguments(&chart, kind, name)?)
            .args(["--kubeconfig", "/no/such/file"]);
        let said = words(&output(&mut command, &[])?);
        assert!(
            said.contains("cannot use the kubeconfig /no/such/file"),
            "{kind}: {said}"
        );
    }
    Ok(())
}
