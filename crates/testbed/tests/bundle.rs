//! The bundle for OLM is what the chart installs, in another form. `EVENKEEL_BLESS=1` writes it anew.

#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use evenkeel_testbed::bundle_lint;
use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::{Doing, Error, Result, need};
use serde_json::{Value, json};

const NAMESPACE: &str = "evenkeel";
const ACCOUNT: &str = "evenkeel-operator";
const HEAD: &str = "# Made from deploy/chart by `EVENKEEL_BLESS=1 cargo test -p evenkeel-testbed --test bundle`.\n";
/// The chart as it is where OLM is.
const ON_OPENSHIFT: [&str; 2] = ["--set=windows.enabled=true", "--set=openshift.enabled=true"];
/// What a bundle may hold beside the operator itself, as far as we have it.
const PLAIN: [&str; 6] = [
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "CustomResourceDefinition",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/bundle")
}

fn read(file: &str) -> Result<Value> {
    let path = folder().join(file);
    let text = std::fs::read_to_string(&path).doing(|| format!("no {}", path.display()))?;
    serde_saphyr::from_str(&text).doing(|| format!("{} is not YAML", path.display()))
}

fn yaml(value: &Value) -> Result<String> {
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    serde_saphyr::to_string_with_options(value, options).doing(|| "cannot write YAML")
}

fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn list<'v>(value: &'v Value, pointer: &str) -> &'v [Value] {
    let found = value.pointer(pointer).and_then(Value::as_array);
    found.map(Vec::as_slice).unwrap_or_default()
}

/// What Helm says of itself is nobody's business here.
fn without_helm(mut object: Value) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|key, _| !key.starts_with("helm.sh/"));
                fields.remove("app.kubernetes.io/managed-by");
                if fields.get("annotations").is_some_and(|it| *it == json!({})) {
                    fields.remove("annotations");
                }
                fields.values_mut().for_each(strip);
                if fields.get("annotations").is_some_and(|it| *it == json!({})) {
                    fields.remove("annotations");
                }
            }
            Value::Array(values) => values.iter_mut().for_each(strip),
            _ => {}
        }
    }
    strip(&mut object);
    object
}

/// The rules of the roles of this kind that the operator has, in this namespace or in none.
fn rules_of(chart: &[Value], kind: &str, namespace: &str) -> Vec<Value> {
    let bound = chart.iter().filter(|it| {
        let is_its =
            |subject: &Value| subject["kind"] == "ServiceAccount" && subject["name"] == ACCOUNT;
        it["kind"] == format!("{kind}Binding")
            && text(it, "/metadata/namespace") == namespace
            && list(it, "/subjects").iter().any(is_its)
    });
    let names: BTreeSet<&str> = bound.map(|it| text(it, "/roleRef/name")).collect();
    let roles = chart.iter().filter(|it| {
        it["kind"] == kind
            && text(it, "/metadata/namespace") == namespace
            && names.contains(text(it, "/metadata/name"))
    });
    roles
        .flat_map(|it| list(it, "/rules").iter().cloned())
        .collect()
}

/// Whether a right is among `rules`, without a name or with that very name.
fn is_covered(rule: &Value, rules: &[Value]) -> bool {
    let all = |it: &Value, field: &str| -> BTreeSet<String> {
        let words = list(it, &format!("/{field}")).iter();
        words
            .filter_map(|it| it.as_str().map(str::to_owned))
            .collect()
    };
    rules.iter().any(|other| {
        ["apiGroups", "resources", "verbs"]
            .iter()
            .all(|field| all(rule, field).is_subset(&all(other, field)))
            && (other["resourceNames"].is_null() || other["resourceNames"] == rule["resourceNames"])
    })
}

/// Everything that the chart installs, and where it belongs.
struct Bundle {
    csv: Value,
    /// By file.
    manifests: BTreeMap<String, Value>,
    beside: Vec<Value>,
    uninstall: Vec<Value>,
}

fn is_operators(object: &Value) -> bool {
    text(object, "/metadata/labels/app.kubernetes.io~1name") == ACCOUNT
}

fn bundle() -> Result<Bundle> {
    let chart = Chart::render(NAMESPACE, &ON_OPENSHIFT)?;
    let all: Vec<Value> = chart.objects().iter().cloned().map(without_helm).collect();
    let uninstall = chart.component("uninstall");
    let uninstall: Vec<Value> = uninstall
        .objects()
        .iter()
        .cloned()
        .map(without_helm)
        .collect();
    let deployment = chart.object("Deployment", ACCOUNT)?;
    let definitions: Vec<&Value> = all
        .iter()
        .filter(|it| it["kind"] == "CustomResourceDefinition")
        .filter(|it| it["spec"]["group"] == "evenkeel.dev")
        .collect();
    let owned = definitions.iter().map(|it| {
        let kind = &it["spec"]["names"]["kind"];
        let about = it.pointer("/spec/versions/0/schema/openAPIV3Schema/description");
        json!({
            "name": it["metadata"]["name"], "kind": kind, "displayName": kind,
            "version": it["spec"]["versions"][0]["name"],
            "description": about.cloned().unwrap_or(kind.clone()),
        })
    });
    let mut csv = read("csv.yaml")?;
    let version = env!("CARGO_PKG_VERSION");
    csv["apiVersion"] = json!("operators.coreos.com/v1alpha1");
    csv["kind"] = json!("ClusterServiceVersion");
    csv["metadata"]["name"] = json!(format!("evenkeel.v{version}"));
    let example = without_helm(chart.object("WindowsPool", "windows")?.clone());
    let rule = read("../../examples/readiness-rule.yaml")?;
    csv["metadata"]["annotations"]["alm-examples"] = json!(json!([example, rule]).to_string());
    csv["metadata"]["annotations"]["containerImage"] =
        deployment["spec"]["template"]["spec"]["containers"][0]["image"].clone();
    csv["spec"]["version"] = json!(version);
    csv["spec"]["minKubeVersion"] = json!("1.33.0");
    csv["spec"]["customresourcedefinitions"] = json!({ "owned": owned.collect::<Vec<_>>() });
    csv["spec"]["install"] = json!({
        "strategy": "deployment",
        "spec": {
            "clusterPermissions": [{
                "serviceAccountName": ACCOUNT, "rules": rules_of(&all, "ClusterRole", ""),
            }],
            "permissions": [{
                "serviceAccountName": ACCOUNT, "rules": rules_of(&all, "Role", NAMESPACE),
            }],
            "deployments": [{
                "name": ACCOUNT,
                "label": without_helm(deployment["metadata"]["labels"].clone()),
                "spec": without_helm(deployment["spec"].clone()),
            }],
        },
    });
    let (mut manifests, mut beside) = (BTreeMap::new(), Vec::new());
    for object in &all {
        let (kind, name) = (text(object, "/kind"), text(object, "/metadata/name"));
        let is_hook = uninstall.contains(object);
        // OLM makes the operator's own from the ClusterServiceVersion, but for a role that others add to.
        let is_csv = is_operators(object)
            && name != "evenkeel-operator-evidence"
            && (kind == "Deployment" || PLAIN.contains(&kind));
        let is_theirs =
            kind == "CustomResourceDefinition" && object["spec"]["group"] != "evenkeel.dev";
        if is_hook || is_csv || is_theirs {
            continue;
        }
        let namespace = text(object, "/metadata/namespace");
        let fits = PLAIN.contains(&kind) && (namespace.is_empty() || namespace == NAMESPACE);
        if fits {
            let mut object = object.clone();
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.remove("namespace");
            }
            let file = format!("{name}.{}.yaml", kind.to_lowercase());
            manifests.insert(file, object);
        } else if !kind.starts_with("MutatingAdmissionPolicy") && kind != "WindowsPool" {
            beside.push(object.clone());
        }
    }
    manifests.insert(
        "evenkeel.clusterserviceversion.yaml".to_owned(),
        csv.clone(),
    );
    Ok(Bundle {
        csv,
        manifests,
        beside,
        uninstall,
    })
}

fn agrees(path: &Path, wanted: &str) -> Result<()> {
    if std::env::var_os("EVENKEEL_BLESS").is_some() {
        std::fs::write(path, wanted).doing(|| format!("cannot write {}", path.display()))?;
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    if found == wanted {
        return Ok(());
    }
    Err(Error::failed(format!(
        "{} is not what the chart says: run EVENKEEL_BLESS=1 cargo test -p evenkeel-testbed --test bundle",
        path.display()
    )))
}

fn several(objects: &[Value]) -> Result<String> {
    let texts: Result<Vec<String>> = objects.iter().map(yaml).collect();
    Ok(format!("{HEAD}{}", texts?.join("---\n")))
}

#[test]
fn the_bundle_is_what_the_chart_installs() -> Result<()> {
    if need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    let bundle = bundle()?;
    let manifests = folder().join("manifests");
    for (file, object) in &bundle.manifests {
        agrees(&manifests.join(file), &format!("{HEAD}{}", yaml(object)?))?;
    }
    let there = std::fs::read_dir(&manifests).doing(|| "no manifests")?;
    let there: BTreeSet<String> = there
        .filter_map(|it| it.ok()?.file_name().into_string().ok())
        .collect();
    let wanted: BTreeSet<String> = bundle.manifests.keys().cloned().collect();
    assert_eq!(there, wanted);
    agrees(&folder().join("beside.yaml"), &several(&bundle.beside)?)?;
    agrees(
        &folder().join("uninstall.yaml"),
        &several(&bundle.uninstall)?,
    )
}

/// Nobody gets more by one way of installing than by the other, nor less.
#[test]
fn by_the_bundle_the_operator_may_do_what_it_may_by_the_chart() -> Result<()> {
    if need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    let chart = Chart::render(NAMESPACE, &ON_OPENSHIFT)?;
    let all: Vec<Value> = chart.objects().to_vec();
    // What is on disk counts, not what would be written.
    let csv = read("manifests/evenkeel.clusterserviceversion.yaml")?;
    let rules = |kind: &str| {
        let of = list(&csv, &format!("/spec/install/spec/{kind}"));
        assert!(of.iter().all(|it| it["serviceAccountName"] == ACCOUNT));
        of.iter()
            .flat_map(|it| list(it, "/rules").to_vec())
            .collect::<Vec<_>>()
    };
    let (wide, own) = (rules("clusterPermissions"), rules("permissions"));
    let sorted =
        |rules: &[Value]| -> BTreeSet<String> { rules.iter().map(Value::to_string).collect() };
    assert_eq!(sorted(&wide), sorted(&rules_of(&all, "ClusterRole", "")));
    assert_eq!(sorted(&own), sorted(&rules_of(&all, "Role", NAMESPACE)));
    assert!(
        wide.len() > 15 && own.len() > 5,
        "{} {}",
        wide.len(),
        own.len()
    );
    // OLM makes rights in no other namespace: what the chart gives there, the rest must give.
    let elsewhere = rules_of(&all, "Role", "default");
    assert!(!elsewhere.is_empty());
    for rule in &elsewhere {
        assert!(is_covered(rule, &wide), "{rule}");
    }
    // Every object of the chart is somewhere: in the bundle, beside it, or made by OLM.
    let bundle = bundle()?;
    let somewhere: BTreeSet<(String, String)> = bundle
        .manifests
        .values()
        .chain(&bundle.beside)
        .chain(&bundle.uninstall)
        .map(|it| {
            (
                text(it, "/kind").to_owned(),
                text(it, "/metadata/name").to_owned(),
            )
        })
        .collect();
    for object in &all {
        let (kind, name) = (text(object, "/kind"), text(object, "/metadata/name"));
        let is_made = is_operators(object) && name.starts_with(ACCOUNT);
        let is_theirs = object["spec"]["group"] == "machineconfiguration.openshift.io";
        // Only the newest clusters have the one kind; of the other there is an example in the catalog.
        let is_policy = kind.starts_with("MutatingAdmissionPolicy") || kind == "WindowsPool";
        let is_there = somewhere.contains(&(kind.to_owned(), name.to_owned()));
        assert!(
            is_there || is_made || is_theirs || is_policy,
            "{kind} {name}"
        );
    }
    Ok(())
}

#[test]
fn the_bundle_says_one_package_name_and_from_which_cluster_on() -> Result<()> {
    if need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    let bundle = bundle()?;
    let annotations = read("metadata/annotations.yaml")?;
    let annotations = &annotations["annotations"];
    assert_eq!(
        annotations["operators.operatorframework.io.bundle.package.v1"],
        "evenkeel"
    );
    assert_eq!(annotations["com.redhat.openshift.versions"], "v4.20");
    let name = text(&bundle.csv, "/metadata/name");
    assert_eq!(
        name,
        format!("evenkeel.v{}", text(&bundle.csv, "/spec/version"))
    );
    // The chart and the bundle refuse the same clusters.
    let chart = std::fs::read_to_string(Chart::folder().join("Chart.yaml")).doing(|| "no chart")?;
    let chart: Value = serde_saphyr::from_str(&chart).doing(|| "no YAML")?;
    let oldest = text(&bundle.csv, "/spec/minKubeVersion");
    assert_eq!(chart["kubeVersion"], format!(">={oldest}-0"));
    assert_eq!(chart["version"], bundle.csv["spec"]["version"]);
    // Rights of one namespace stay in it.
    for mode in list(&bundle.csv, "/spec/installModes") {
        assert_eq!(mode["supported"], mode["type"] == "OwnNamespace", "{mode}");
    }
    Ok(())
}

/// Covers O04.
#[test]
#[ignore = "takes long: runs in ./test --soak"]
fn the_bundle_passes_the_validator_of_the_operator_framework() -> Result<()> {
    if need::skip(bundle_lint::NEEDS)? {
        return Ok(());
    }
    let judged = bundle_lint::lint(&folder())?;
    let words = judged.words;
    assert!(judged.passed, "{words}");
    assert!(!words.contains("level=warning"), "{words}");
    // The validator is awake: it refuses a bundle whose kinds have no definitions.
    let broken = Scratch::new("bundle")?;
    let manifests = broken.path().join("manifests");
    std::fs::create_dir_all(&manifests).doing(|| "no folder")?;
    let there = std::fs::read_dir(folder().join("manifests")).doing(|| "no manifests")?;
    for file in there.filter_map(std::result::Result::ok) {
        if !file
            .file_name()
            .to_string_lossy()
            .contains("customresource")
        {
            let copy = manifests.join(file.file_name());
            std::fs::copy(file.path(), copy).doing(|| "cannot copy the bundle")?;
        }
    }
    let judged = bundle_lint::lint(broken.path())?;
    assert!(!judged.passed, "{}", judged.words);
    Ok(())
}
