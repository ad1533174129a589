//! The chart that we ship, rendered by the real Helm: what tests give their programs is what people
//! install. The objects are handed out by component and kind.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::control_plane::ControlPlane;
use crate::helm::{self, HELM};
use crate::need::Need;
use crate::process::{output, words_of};
use crate::scratch::Scratch;
use crate::{Doing, Error, Result};

/// Who a program is, and what it may do.
const RIGHTS: [&str; 5] = [
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ClusterRole",
    "ClusterRoleBinding",
];

/// Objects of the chart.
#[derive(Debug, Clone)]
pub struct Chart {
    namespace: String,
    objects: Vec<Value>,
}

impl Chart {
    /// What a test that only renders it needs.
    pub const NEEDS: &[Need] = &[helm::NEED];

    /// Makes Helm ready, so that the first test does not have to.
    pub fn prepare() -> Result<()> {
        HELM.find().map(|_| ())
    }

    /// The folder of the chart.
    pub fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/chart")
    }

    /// The program `helm`, for a command of the test's own.
    pub fn helm_program() -> Result<PathBuf> {
        HELM.find()
    }

    /// Runs Helm, with settings of nobody, however it ends.
    pub fn helm(words: &[&str]) -> Result<Output> {
        let home = Scratch::new("helm")?;
        output(
            Command::new(HELM.find()?)
                .args(words)
                .env("HOME", home.path())
                .env("HELM_CACHE_HOME", home.path())
                .env("HELM_CONFIG_HOME", home.path())
                .env("HELM_DATA_HOME", home.path())
                .env_remove("KUBECONFIG"),
            &[],
        )
    }

    /// Everything that the chart installs into `namespace`, definitions and hooks included. `options`
    /// are Helm's own, for example `--set=agent.enabled=false`.
    pub fn render(namespace: &str, options: &[&str]) -> Result<Self> {
        let folder = Self::folder().display().to_string();
        let fixed = [
            "template",
            "evenkeel",
            &folder,
            "--include-crds",
            "--namespace",
            namespace,
        ];
        let rendered = Self::helm(&[&fixed[..], options].concat())?;
        if !rendered.status.success() {
            let words = words_of(&rendered);
            return Err(Error::failed(format!(
                "the chart cannot be rendered: {words}"
            )));
        }
        let text = String::from_utf8_lossy(&rendered.stdout);
        let mut objects: Vec<Value> =
            serde_saphyr::from_multiple(&text).doing(|| "what Helm rendered is not YAML")?;
        objects.retain(|object| !object.is_null());
        Ok(Self {
            namespace: namespace.to_owned(),
            objects,
        })
    }

    /// All of its objects, in the order in which Helm makes them.
    pub fn objects(&self) -> &[Value] {
        &self.objects
    }

    /// The object of this kind and name. Where several namespaces have one, the first.
    pub fn object(&self, kind: &str, name: &str) -> Result<&Value> {
        let mut objects = self.objects.iter();
        objects
            .find(|it| it["kind"] == kind && it["metadata"]["name"] == name)
            .ok_or_else(|| Error::failed(format!("the chart has no {kind} {name}")))
    }

    /// What belongs to `component`: operator, agent or uninstall.
    #[must_use]
    pub fn component(&self, component: &str) -> Self {
        let name = format!("evenkeel-{component}");
        self.only(|it| it["metadata"]["labels"]["app.kubernetes.io/name"] == name.as_str())
    }

    /// What is of one of these kinds.
    #[must_use]
    pub fn kinds(&self, kinds: &[&str]) -> Self {
        self.only(|it| kinds.iter().any(|kind| it["kind"] == *kind))
    }

    /// What is of none of these kinds.
    #[must_use]
    pub fn without(&self, kinds: &[&str]) -> Self {
        self.only(|it| !kinds.iter().any(|kind| it["kind"] == *kind))
    }

    /// Service accounts, roles and their bindings. The bindings are named after the namespace, so that
    /// those of another test are left alone.
    #[must_use]
    pub fn rights(&self) -> Self {
        let mut rights = self.kinds(&RIGHTS);
        for object in &mut rights.objects {
            let is_binding = object["kind"]
                .as_str()
                .is_some_and(|it| it.ends_with("Binding"));
            if let (true, Some(name)) = (is_binding, object["metadata"]["name"].as_str()) {
                object["metadata"]["name"] = json!(format!("{name}-{}", self.namespace));
            }
        }
        rights
    }

    fn only(&self, which: impl Fn(&Value) -> bool) -> Self {
        Self {
            namespace: self.namespace.clone(),
            objects: self
                .objects
                .iter()
                .filter(|it| which(it))
                .cloned()
                .collect(),
        }
    }

    /// Makes the objects as administrator, in their namespace, and waits until the API server knows the
    /// kinds among them.
    pub fn apply(&self, control_plane: &ControlPlane) -> Result<()> {
        /// Roles are the same for all tests: two who make one at the same time disturb each other.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": self.namespace },
        });
        let items: Vec<&Value> = std::iter::once(&namespace).chain(&self.objects).collect();
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        let scratch = Scratch::new("chart")?;
        let file = scratch.path().join("objects.json");
        std::fs::write(&file, list.to_string()).doing(|| "cannot write the objects")?;
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        control_plane.kubectl(&["apply", "-f", &file.display().to_string()])?;
        drop(alone);
        for definition in self.kinds(&["CustomResourceDefinition"]).objects {
            let name = definition["metadata"]["name"].as_str().unwrap_or_default();
            control_plane.kubectl(&[
                "wait",
                "--for=condition=Established",
                "--timeout=30s",
                &format!("crd/{name}"),
            ])?;
        }
        Ok(())
    }
}
