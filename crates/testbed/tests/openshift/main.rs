//! The chart on a cluster that judges pods as OpenShift does: its constraints, restated as policies on a real API server.

#![cfg(target_os = "linux")]

use std::time::Duration;

use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::{Doing, Error, Result, need};
use serde_json::{Value, json};

/// What OpenShift writes on each namespace.
const RANGE: &str = "openshift.io/sa.scc.uid-range=1000680000/10000";
const SOON: Duration = Duration::from_mins(1);

/// A cluster like OpenShift with the chart on it, installed without a word about OpenShift.
struct Scene {
    control_plane: &'static ControlPlane,
    namespace: String,
    scratch: Scratch,
}

impl Scene {
    fn set() -> Result<Self> {
        let control_plane = ControlPlane::shared()?;
        let scratch = Scratch::new("openshift")?;
        let scene = Self {
            control_plane,
            namespace: control_plane.namespace("openshift")?,
            scratch,
        };
        scene.apply(include_str!("policies.yaml"))?;
        let namespace = &scene.namespace;
        control_plane.kubectl(&["annotate", "namespace", namespace, RANGE])?;
        let bare = scene.bare_pod();
        let is_judged = |refused: &str| refused.contains("may use no security context constraint");
        until("the policies to be in force", SOON, || {
            Ok(match scene.admitted(&bare) {
                Err(refused) if is_judged(&refused) => Look::Found(()),
                judged => Look::NotYet(format!("{judged:?}")),
            })
        })?;
        scene.install()?;
        Ok(scene)
    }

    fn bare_pod(&self) -> Value {
        let container = json!({ "name": "bare", "image": "registry.example.com/bare" });
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "bare", "namespace": self.namespace },
            "spec": { "containers": [container] },
        })
    }

    fn install(&self) -> Result<()> {
        let login = self.scratch.path().join("kubeconfig");
        self.control_plane.admin_kubeconfig().write(&login)?;
        let folder = Chart::folder().display().to_string();
        let installed = Chart::helm(&[
            "install",
            "evenkeel",
            &folder,
            &format!("--namespace={}", self.namespace),
            &format!("--kubeconfig={}", login.display()),
        ])?;
        if installed.status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&installed.stderr);
        Err(Error::failed(format!("helm install: {words}")))
    }

    fn apply(&self, text: &str) -> Result<()> {
        let file = self.scratch.path().join("objects.yaml");
        std::fs::write(&file, text).doing(|| "cannot write the objects")?;
        let file = file.display().to_string();
        self.control_plane
            .kubectl(&["apply", "-f", &file])
            .map(|_| ())
    }

    /// Whether a pod would be taken; if not, why.
    fn admitted(&self, pod: &Value) -> std::result::Result<(), String> {
        let file = self.scratch.path().join("pod.json");
        std::fs::write(&file, pod.to_string()).map_err(|error| error.to_string())?;
        let file = file.display().to_string();
        let create = ["create", "--dry-run=server", "-f", &file];
        let answer = self.control_plane.kubectl(&create);
        answer.map(|_| ()).map_err(|error| error.to_string())
    }

    /// What controllers made of the workloads that the chart has.
    fn pods(&self) -> Result<Vec<Value>> {
        let all = ["get", "pods", "-n", &self.namespace, "-o", "json"];
        let list: Value = serde_json::from_str(&self.control_plane.kubectl(&all)?)
            .doing(|| "kubectl printed no JSON")?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    fn delete(&self, kind: &str, name: &str) -> Result<()> {
        self.control_plane
            .kubectl(&["delete", kind, name, "-n", &self.namespace])
            .map(|_| ())
    }

    /// The pod as the workload `kind/name` would make it, with the service account that it names.
    fn template(&self, kind: &str, name: &str) -> Result<Value> {
        let words = ["get", kind, name, "-n", &self.namespace, "-o", "json"];
        let object: Value = serde_json::from_str(&self.control_plane.kubectl(&words)?)
            .doing(|| "kubectl printed no JSON")?;
        Ok(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "tried", "namespace": self.namespace },
            "spec": object["spec"]["template"]["spec"],
        }))
    }
}

/// How many of `pods` belong to this program.
fn of(pods: &[Value], component: &str) -> usize {
    let name = format!("evenkeel-{component}");
    let labels = pods
        .iter()
        .map(|it| &it["metadata"]["labels"]["app.kubernetes.io/name"]);
    labels.filter(|it| **it == name.as_str()).count()
}

/// Covers O04.
#[test]
fn operator_and_agents_start_under_the_constraints_of_openshift_and_no_laxer_ones() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? || need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::set()?;
    scene.apply(
        &json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": "worker", "labels": { "kubernetes.io/os": "linux" } },
        })
        .to_string(),
    )?;
    // Made by the controllers of Kubernetes, as on any cluster.
    until("the pods of the chart", SOON, || {
        let pods = scene.pods()?;
        let (operators, agents) = (of(&pods, "operator"), of(&pods, "agent"));
        Ok(if (operators, agents) == (2, 1) {
            Look::Found(())
        } else {
            let asked = ["get", "events", "-n", &scene.namespace];
            let events = scene.control_plane.kubectl(&asked)?;
            Look::NotYet(format!("{operators} operators, {agents} agents\n{events}"))
        })
    })?;

    // The judge is awake: what was wrong before is refused, and so is what the operator never needs.
    let operator = scene.template("deployment", "evenkeel-operator")?;
    let agent = scene.template("daemonset", "evenkeel-agent")?;
    assert_eq!(scene.admitted(&operator), Ok(()));
    assert_eq!(scene.admitted(&agent), Ok(()));
    for (pointer, field, value, why) in [
        (
            "/spec/securityContext",
            "runAsUser",
            json!(65532),
            "runAsUser is outside the range",
        ),
        (
            "/spec/containers/0/securityContext",
            "runAsUser",
            json!(65532),
            "runAsUser is outside the range",
        ),
        (
            "/spec",
            "hostNetwork",
            json!(true),
            "name spaces of the host",
        ),
        (
            "/spec",
            "volumes",
            json!([{ "name": "host", "hostPath": { "path": "/" } }]),
            "a volume of this kind",
        ),
    ] {
        let mut pod = operator.clone();
        let place = pod.pointer_mut(pointer).and_then(Value::as_object_mut);
        let place = place.ok_or_else(|| Error::failed(format!("no {pointer}")))?;
        place.insert(field.to_owned(), value);
        let refused = scene.admitted(&pod);
        assert!(
            refused.as_ref().is_err_and(|it| it.contains(why)),
            "{field}: {refused:?}"
        );
    }
    let mut in_range = operator.clone();
    in_range["spec"]["securityContext"]["runAsUser"] = json!(1_000_680_000);
    assert_eq!(scene.admitted(&in_range), Ok(()));
    // The operator's account gets no more than it needs.
    let mut stolen = agent.clone();
    stolen["spec"]["serviceAccountName"] = operator["spec"]["serviceAccountName"].clone();
    assert!(scene.admitted(&stolen).is_err());

    // Without the bindings nothing starts.
    for (pod, component) in [(&operator, "operator"), (&agent, "agent")] {
        let binding = format!("evenkeel-{component}-security-context");
        scene.delete("rolebinding", &binding)?;
        let is_refused = |it: &str| it.contains("may use no security context constraint");
        until("the binding to count no more", SOON, || {
            Ok(match scene.admitted(pod) {
                Err(refused) if is_refused(&refused) => Look::Found(()),
                judged => Look::NotYet(format!("{component}: {judged:?}")),
            })
        })?;
    }
    Ok(())
}

/// Covers O04.
#[test]
fn the_chart_binds_constraints_only_where_there_are_any() -> Result<()> {
    if need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    let group = "--api-versions=security.openshift.io/v1";
    let all = [
        "evenkeel-operator-security-context",
        "evenkeel-agent-security-context",
        "evenkeel-uninstall-security-context",
    ];
    for (options, bound) in [
        (&[][..], &[][..]),
        (&[group], &all),
        (&["--set=openshift.enabled=true"], &all),
        (&["--set=openshift.enabled=false", group], &[]),
        // Values of before, as `--reuse-values` has them.
        (&["--set=openshift=null"], &[]),
        (&["--set=openshift=null", group], &all),
        (&["--set=agent.enabled=false", group], &[all[0], all[2]]),
    ] {
        let chart = Chart::render("evenkeel", options)?;
        for kind in ["Role", "RoleBinding"] {
            let objects = chart.kinds(&[kind]);
            let names = objects
                .objects()
                .iter()
                .filter_map(|it| it["metadata"]["name"].as_str());
            let mut names: Vec<&str> = names
                .filter(|it| it.ends_with("-security-context"))
                .collect();
            names.sort_unstable();
            let mut bound = bound.to_vec();
            bound.sort_unstable();
            assert_eq!(names, bound, "{kind} with {options:?}");
        }
    }
    let refused = Chart::render("evenkeel", &["--set=openshift.enabled=maybe"]);
    assert!(refused.is_err_and(|it| it.to_string().contains("openshift")));
    Ok(())
}
