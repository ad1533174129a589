//! What people see of a cluster at work, with no more rights than they need.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use evenkeel_testbed::process::{output, run};
use evenkeel_testbed::{Doing, Error, Result};
use serde_json::{Value, json};

use crate::installed::{Installed, NAMESPACE, done, until_updated};
use crate::objects::{config, pool};
use crate::release::Release;
use crate::skip;

const NODE: &str = "only";
const FORBIDDEN: i32 = 1;
/// What a command ends with that could not have all it was asked for.
const INCOMPLETE: i32 = 2;

/// Covers K08.
#[tokio::test]
#[ignore = "takes long: runs in ./test --soak"]
async fn a_viewer_sees_all_of_a_rollout_and_changes_nothing() -> Result<()> {
    if skip()? {
        return Ok(());
    }
    let release = Release::make()?;
    let installed = Installed::on(&[NODE], &release).await?;
    installed.until_ready(2, 1).await?;
    let viewer = Person::named(&installed, "viewer")?;
    let nobody = viewer.evenkeel(&["status"])?;
    let said = words(&nobody);
    assert_eq!(nobody.status.code(), Some(FORBIDDEN), "{said}");
    assert!(said.contains("you are not allowed to list"), "{said}");
    assert!(said.contains("ClusterRole evenkeel-viewer"), "{said}");
    viewer.may("evenkeel-viewer", &[])?;

    let before = installed.cluster.node(0).boot_id()?;
    installed.apply(&config("seen"))?;
    installed.apply(&pool())?;
    // Until the operator has rendered it there is no rollout to watch.
    installed.control_plane().kubectl(&[
        "wait",
        "machineconfigpool/worker",
        "--for=jsonpath={.spec.configuration.name}",
        "--timeout=60s",
    ])?;
    let watched = viewer.evenkeel(&["rollout", "watch", "worker"])?;
    done("rollout watch", &watched)?;
    let said = words(&watched);
    for line in [
        &format!("rolling out: {NODE} "),
        "1 of 1 updated, updated\n",
    ] {
        assert!(said.contains(line), "{said}");
    }
    until_updated(&installed, installed.cluster.node(0), &before, "seen").await?;
    installed.until_ready(2, 1).await?;
    installed.until_clean().await?;

    for is_plugin in [false, true] {
        let ask = |words: &[&str]| {
            if is_plugin {
                viewer.kubectl_evenkeel(words)
            } else {
                viewer.evenkeel(words)
            }
        };
        let status = ask(&["status"])?;
        done("status", &status)?;
        assert!(words(&status).contains("worker"), "{}", words(&status));
        let why = ask(&["explain", NODE])?;
        done("explain", &why)?;
        assert!(words(&why).contains("rendered-worker-"), "{}", words(&why));
        let document = ask(&["status", "-o", "json"])?;
        done("status -o json", &document)?;
        let document: Value =
            serde_json::from_slice(&document.stdout).doing(|| "status is not JSON")?;
        assert_eq!(document["pools"][0]["pool"], "worker", "{document}");

        let refused = ask(&["rollout", "pause", "worker"])?;
        let said = words(&refused);
        assert_eq!(refused.status.code(), Some(FORBIDDEN), "{said}");
        assert!(said.contains("not allowed to pause pool worker"), "{said}");
        assert!(said.contains("evenkeel-editor"), "{said}");
    }
    let paused = installed.get(&["machineconfigpool", "worker"])?;
    assert_ne!(paused["spec"]["paused"], true, "{paused}");
    Ok(())
}

/// Covers K08.
#[tokio::test]
#[ignore = "takes long: runs in ./test --soak"]
async fn a_support_bundle_has_the_logs_of_real_pods_and_names_what_it_may_not_read() -> Result<()> {
    if skip()? {
        return Ok(());
    }
    let release = Release::make()?;
    let installed = Installed::on(&[NODE], &release).await?;
    installed.until_ready(2, 1).await?;
    installed.until_clean().await?;
    let helper = Person::named(&installed, "helper")?;
    helper.may("evenkeel-viewer", &[])?;

    let poor = helper.bundle("poor")?;
    let said = words(&poor.said);
    assert_eq!(poor.said.status.code(), Some(INCOMPLETE), "{said}");
    assert!(
        said.contains("ClusterRole") && said.contains("evenkeel-support"),
        "{said}"
    );
    let missing = poor.about()?;
    let missing = missing["missing"].as_array().cloned().unwrap_or_default();
    assert!(
        missing
            .iter()
            .any(|it| it.to_string().contains("log of pod")),
        "{missing:?}"
    );

    helper.may(
        "evenkeel-support",
        &[NAMESPACE, "node-extensions", "default"],
    )?;
    let bundle = helper.bundle("bundle")?;
    done("support-bundle", &bundle.said)?;
    assert_eq!(bundle.about()?["missing"], json!([]));
    let mut logs = 0;
    let pods = installed.get(&["pods", "--namespace", NAMESPACE])?;
    for pod in pods["items"].as_array().into_iter().flatten() {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let container = pod["spec"]["containers"][0]["name"]
            .as_str()
            .unwrap_or_default();
        let log = bundle.read(&format!("logs/{name}/{container}.log"))?;
        assert!(log.contains("\"level\""), "{name}: {log}");
        logs += 1;
    }
    assert_eq!(logs, 3, "two operators and an agent");
    let nodes = bundle.read("objects/nodes.json")?;
    assert!(nodes.contains(NODE), "{nodes}");
    Ok(())
}

/// Somebody with a login.
struct Person<'i> {
    installed: &'i Installed,
    name: &'static str,
    login: PathBuf,
}

impl<'i> Person<'i> {
    fn named(installed: &'i Installed, name: &'static str) -> Result<Self> {
        let login = installed.files().join(name);
        let kubeconfig = installed.control_plane().kubeconfig_for_user(name, &[])?;
        kubeconfig.write(&login)?;
        let plugin = installed.files().join("kubectl-evenkeel");
        if !plugin.exists() {
            std::fs::copy(installed.cli(), &plugin).doing(|| "cannot install the plugin")?;
        }
        Ok(Self {
            installed,
            name,
            login,
        })
    }

    /// Binds a role, in these namespaces or in all of the cluster.
    fn may(&self, role: &str, namespaces: &[&str]) -> Result<()> {
        let name = format!("{}-{role}", self.name);
        let role = format!("--clusterrole={role}");
        let user = format!("--user={}", self.name);
        let kubectl = |words: &[&str]| self.installed.control_plane().kubectl(words);
        if namespaces.is_empty() {
            kubectl(&["create", "clusterrolebinding", &name, &role, &user])?;
        }
        for namespace in namespaces {
            let place = format!("--namespace={namespace}");
            kubectl(&["create", "rolebinding", &name, &role, &user, &place])?;
        }
        Ok(())
    }

    fn evenkeel(&self, arguments: &[&str]) -> Result<Output> {
        self.ask(self.installed.cli(), arguments)
    }

    /// The same, as a plugin that kubectl finds by its name.
    fn kubectl_evenkeel(&self, arguments: &[&str]) -> Result<Output> {
        let kubectl = self.installed.control_plane().kubectl_program();
        self.ask(&kubectl, &[&["evenkeel"], arguments].concat())
    }

    /// Nothing that is asked here takes longer than a rollout.
    fn ask(&self, program: &Path, arguments: &[&str]) -> Result<Output> {
        output(
            Command::new("timeout")
                .arg("600")
                .arg(program)
                .args(arguments)
                .env("KUBECONFIG", &self.login)
                .env("HOME", self.installed.files())
                .env(
                    "PATH",
                    format!("{}:/usr/bin:/bin", self.installed.files().display()),
                ),
            &[],
        )
    }

    fn bundle(&self, name: &str) -> Result<Bundle> {
        let folder = self.installed.files().join(format!("{name}-open"));
        let machine = self.installed.files().join(format!("{name}-machine"));
        for folder in [&folder, &machine] {
            std::fs::create_dir(folder).doing(|| "cannot make a folder")?;
        }
        let file = folder.join("bundle.tar.gz");
        let said = self.evenkeel(&[
            "support-bundle",
            "--to",
            &file.display().to_string(),
            "--root",
            &machine.display().to_string(),
        ])?;
        run(Command::new("tar")
            .arg("-xzf")
            .arg(&file)
            .arg("-C")
            .arg(&folder))?;
        Ok(Bundle { said, folder })
    }
}

/// A bundle that is unpacked.
struct Bundle {
    said: Output,
    folder: PathBuf,
}

impl Bundle {
    fn read(&self, path: &str) -> Result<String> {
        let path = self.folder.join("evenkeel-support").join(path);
        std::fs::read_to_string(&path).doing(|| format!("the bundle has no {}", path.display()))
    }

    fn about(&self) -> Result<Value> {
        let about = self.read("about.json")?;
        serde_json::from_str(&about).map_err(|error| Error::failed(format!("about.json: {error}")))
    }
}

fn words(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}
