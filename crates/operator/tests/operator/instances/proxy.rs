//! A proxy reaches real machines: their registry, the environment of their services and their trust store, one machine
//! after the other, and nothing of it is left when it goes.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::OnceLock;

use evenkeel_api::windows::services::Services;
use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::egress_proxy::{EgressProxy, GREETING};
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::windows_instance::WindowsInstance;
use evenkeel_testbed::{Doing, Result, workspace};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::bed::{Bed, CURRENT, LONG, is_skipped};
use crate::cluster_proxy;
use crate::scene::{annotated, is_cordoned};

const ENVIRONMENT: &str = r"SYSTEM\CurrentControlSet\Control\Session Manager\Environment";
const OWN_PROXY: &str = "http://own.example:1";
const BUNDLE: &str = "trusted-ca";
/// Who asks what is what.
const PERSON: &str = "someone";

/// A control plane of its own: the Proxy of a cluster is everybody's.
fn cluster() -> Result<&'static ControlPlane> {
    static OWN: OnceLock<Result<ControlPlane>> = OnceLock::new();
    let own = OWN.get_or_init(ControlPlane::start);
    own.as_ref().map_err(Clone::clone)
}

/// A variable of a machine, as its registry has it.
pub(crate) fn variable(instance: &WindowsInstance, name: &str) -> Result<Option<String>> {
    let key = format!(r"HKLM\{ENVIRONMENT}");
    let output = instance.run(&["reg.exe", "query", &key, "/v", name])?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.trim().starts_with(name));
    let value = line.and_then(|line| line.split("REG_SZ").nth(1));
    Ok(value.map(|it| it.trim().to_owned()))
}

/// A variable as the kubelet had it when it was started.
pub(crate) fn seen_by_kubelet(instance: &WindowsInstance, name: &str) -> Result<Value> {
    let path = instance.path(r"C:\k\kubelet-double.json")?;
    let text = std::fs::read_to_string(path).doing(|| "the kubelet has not run")?;
    let record: Value = serde_json::from_str(&text).doing(|| "no JSON")?;
    Ok(record["environment"][name].clone())
}

/// The fingerprints of a machine's trust store: those that are ours, and all others.
fn trusted(instance: &WindowsInstance) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let text = instance.ask(&[r"C:\k\evenkeel-agent.exe", "trust", "list"])?;
    let list: Value = serde_json::from_str(&text).doing(|| text.clone())?;
    let all = list.as_array().cloned().unwrap_or_default();
    let (ours, others): (Vec<_>, Vec<_>) = all.iter().partition(|it| it["ours"] == true);
    let names = |all: Vec<&Value>| -> BTreeSet<String> {
        let names = all.into_iter().filter_map(|it| it["sha256"].as_str());
        names.map(str::to_owned).collect()
    };
    Ok((names(ours), names(others)))
}

/// The fingerprints of what is ours in a machine's trust store.
fn ours(instance: &WindowsInstance) -> Result<BTreeSet<String>> {
    trusted(instance).map(|(ours, _)| ours)
}

fn fingerprints(all: &[&EgressProxy]) -> BTreeSet<String> {
    let digest = |it: &&EgressProxy| format!("{:x}", Sha256::digest(it.authority_der()));
    all.iter().map(digest).collect()
}

pub(crate) async fn until_ours(instance: &WindowsInstance, wanted: &[&EgressProxy]) -> Result<()> {
    let wanted = fingerprints(wanted);
    until_async("exactly those to be ours", LONG, async || {
        let found = ours(instance)?;
        Ok(if found == wanted {
            Look::Found(())
        } else {
            Look::NotYet(format!("{found:?} instead of {wanted:?}"))
        })
    })
    .await
}

/// Fills the bundle in, as the network operator would.
pub(crate) async fn fill(maps: &Api<ConfigMap>, all: &[&EgressProxy]) -> Result<()> {
    let text: Vec<&str> = all.iter().map(|it| it.authority_pem()).collect();
    let patch = Patch::Merge(json!({ "data": { "ca-bundle.crt": text.join("# next\n") } }));
    let filled = maps.patch(BUNDLE, &PatchParams::default(), &patch).await;
    filled.map(|_| ()).doing(|| "cannot fill in the bundle")
}

struct Stage {
    bed: Bed,
    evenkeel: PathBuf,
    maps: Api<ConfigMap>,
}

impl Stage {
    /// Waits until there is a bundle that asks to be filled in, and is not the one before.
    async fn asked(&self, before: Option<&str>) -> Result<String> {
        until_async("a bundle that asks", LONG, async || {
            let found = self.maps.get_opt(BUNDLE).await;
            let found = found.doing(|| "cannot read the bundle")?;
            let asks = found.as_ref().filter(|it| {
                let label = "config.openshift.io/inject-trusted-cabundle";
                it.labels().get(label).is_some_and(|it| it == "true")
            });
            let uid = asks
                .and_then(ResourceExt::uid)
                .filter(|it| Some(it.as_str()) != before);
            Ok(match uid {
                Some(uid) => Look::Found(uid),
                None => Look::NotYet(format!("{found:?}\n{}", self.bed.last_words(5))),
            })
        })
        .await
    }

    /// Fills it in, as the network operator would.
    async fn fill(&self, all: &[&EgressProxy]) -> Result<()> {
        fill(&self.maps, all).await
    }

    /// Waits until the services have another hash than `before`.
    async fn hash_after(&self, before: &str) -> Result<String> {
        until_async("new services", LONG, async || {
            let found = self.maps.get_opt("services-1-2-3-abc1234").await;
            let data = found.doing(|| "no services")?.and_then(|it| it.data);
            let services = Services::from_data("services", &data.unwrap_or_default());
            let hash = services.ok().map(|(services, _)| services.hash());
            Ok(match hash.filter(|it| it != before) {
                Some(hash) => Look::Found(hash),
                None => Look::NotYet(self.bed.last_words(5)),
            })
        })
        .await
    }

    /// Lets somebody look, with the roles that the chart has for people.
    fn let_people_in(&self) -> Result<()> {
        let scene = &self.bed.scene;
        let chart = Chart::render(&scene.name, &["--set=windows.enabled=true"])?;
        chart.component("people").apply(scene.control_plane)?;
        let kubectl = |words: &[&str]| scene.control_plane.kubectl(words).map(|_| ());
        let viewer = ["create", "clusterrolebinding", PERSON];
        kubectl(
            &[
                &viewer[..],
                &["--clusterrole=evenkeel-viewer", "--user", PERSON],
            ]
            .concat(),
        )?;
        let place = format!("--namespace={}", scene.name);
        let support = ["create", "rolebinding", PERSON, &place];
        kubectl(
            &[
                &support[..],
                &["--clusterrole=evenkeel-support", "--user", PERSON],
            ]
            .concat(),
        )?;
        let login = scene.control_plane.kubeconfig_for_user(PERSON, &[])?;
        login.write(&scene.scratch.path().join(PERSON))
    }

    /// What `evenkeel explain` says to somebody of a node whose agent has reported these certificates.
    async fn explained(&self, instance: &WindowsInstance, proxy: &str) -> Result<()> {
        let name = instance.computer_name().to_lowercase();
        let (ours, others) = trusted(instance)?;
        let wanted = format!(
            "  proxy: {proxy}\n  trusted certificates: {} managed, 0 missing, {} foreign\n",
            ours.len(),
            others.len()
        );
        let scene = &self.bed.scene;
        let login = scene.scratch.path().join(PERSON);
        until_async(&format!("{wanted:?} of {name}"), LONG, async || {
            let mut explain = std::process::Command::new(&self.evenkeel);
            explain.args(["explain", &name, "--wait", "0s", "--namespace", &scene.name]);
            let said = explain.arg("--kubeconfig").arg(&login).output();
            let said = said.doing(|| "cannot run evenkeel")?;
            let text = String::from_utf8_lossy(&said.stdout).into_owned();
            assert!(!text.contains("p%40ss"), "a password is shown");
            Ok(if text.contains(&wanted) {
                Look::Found(())
            } else {
                let errors = String::from_utf8_lossy(&said.stderr).into_owned();
                Look::NotYet(text + &errors)
            })
        })
        .await
    }

    async fn node(&self, instance: &WindowsInstance) -> Result<Node> {
        let name = instance.computer_name().to_lowercase();
        self.bed.scene.node(&name).await
    }

    /// Waits until all run `hash` and serve again; never is more than one of them without pods. Each was booted anew
    /// since it had one of these boots.
    async fn rolled(
        &self,
        instances: &[&WindowsInstance],
        boots: &[String],
        hash: &str,
    ) -> Result<()> {
        until_async("all nodes to be there", LONG * 2, async || {
            let (mut down, mut there, mut words) = (0, 0, Vec::new());
            for instance in instances {
                let node = self.node(instance).await?;
                let is_there = annotated(&node, CURRENT) == Some(hash);
                down += usize::from(is_cordoned(&node));
                there += usize::from(is_there && !is_cordoned(&node));
                words.push(format!("{:?}", node.annotations()));
            }
            assert!(down <= 1, "{down} at once: {words:#?}");
            Ok(if there == instances.len() {
                Look::Found(())
            } else {
                Look::NotYet(format!("{words:#?}\n{}", self.bed.last_words(10)))
            })
        })
        .await?;
        for instance in instances {
            let boot = instance.boot_id()?;
            assert!(!boots.contains(&boot), "{}", instance.computer_name());
        }
        Ok(())
    }
}

pub(crate) fn boots(instances: &[&WindowsInstance]) -> Result<Vec<String>> {
    instances.iter().map(|it| it.boot_id()).collect()
}

/// Covers P01, P03, P04, P05, P06, P07, P08.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_reaches_every_machine_one_after_the_other_and_leaves_nothing_behind() -> Result<()>
{
    if is_skipped()? {
        return Ok(());
    }
    let bed = Bed::on(cluster()?, "win-egress", "kubelet-double").await?;
    let stage = Stage {
        evenkeel: workspace::program("evenkeel", "evenkeel")?,
        maps: Api::namespaced(bed.scene.client.clone(), &bed.scene.name),
        bed,
    };
    let bed = &stage.bed;
    let client = &bed.scene.client;
    stage.let_people_in()?;
    let (proxy, theirs) = (EgressProxy::start()?, EgressProxy::start()?);
    let (one, two) = (bed.instance("op-egress-1")?, bed.instance("op-egress-2")?);
    // The first has a proxy of its own, and trusts somebody.
    let file = one.path(r"C:\theirs.der")?;
    std::fs::write(file, theirs.authority_der()).doing(|| "cannot write")?;
    one.ask(&["windows-probe", "trust", r"C:\theirs.der"])?;
    let own = ["registry", "set", ENVIRONMENT, "HTTP_PROXY", OWN_PROXY];
    one.ask(&[&["windows-probe"], &own[..]].concat())?;
    let before = one.snapshot()?;

    // Without a proxy nothing is there, and what was there stays.
    let _operator = bed.operator(&[])?;
    bed.list_these(&[&one, &two]).await?;
    for instance in [&one, &two] {
        bed.serves(instance).await?;
    }
    let without = stage.hash_after("").await?;
    assert_eq!(variable(&one, "HTTP_PROXY")?.as_deref(), Some(OWN_PROXY));
    assert_eq!(variable(&two, "HTTP_PROXY")?, None);
    assert!(ours(&two)?.is_empty());
    assert!(two.ask(&["windows-probe", "world"]).is_err());
    stage.explained(&two, "none").await?;

    // It comes: every node has it, and can use it.
    cluster_proxy::install(bed.scene.control_plane)?;
    let url = proxy.url();
    let status = json!({ "httpProxy": url, "httpsProxy": url, "noProxy": "198.18.0.1,.svc" });
    let first = boots(&[&one, &two])?;
    cluster_proxy::say(client, json!({}), status).await?;
    let bundle = stage.asked(None).await?;
    stage.fill(&[&proxy, &theirs]).await?;
    let with = stage.hash_after(&without).await?;
    stage.rolled(&[&one, &two], &first, &with).await?;
    let has_it = |instance: &WindowsInstance, url: &str, except: &str| -> Result<()> {
        for (name, value) in [
            ("HTTP_PROXY", url),
            ("HTTPS_PROXY", url),
            ("NO_PROXY", except),
        ] {
            assert_eq!(variable(instance, name)?.as_deref(), Some(value));
            assert_eq!(seen_by_kubelet(instance, name)?, value);
        }
        assert_eq!(instance.ask(&["windows-probe", "world"])?, GREETING);
        Ok(())
    };
    until_ours(&one, &[&proxy]).await?;
    until_ours(&two, &[&proxy, &theirs]).await?;
    has_it(&one, &url, "198.18.0.1,.svc")?;
    has_it(&two, &url, "198.18.0.1,.svc")?;
    let shown = |url: &str, except: &str| {
        let url = format!("https://***@{}", url.rsplit('@').next().unwrap_or_default());
        format!("HTTP_PROXY={url} HTTPS_PROXY={url} NO_PROXY={except}")
    };
    let words = shown(&url, "198.18.0.1,.svc");
    stage.explained(&one, &words).await?;
    stage.explained(&two, &words).await?;
    assert_eq!((proxy.passed(), theirs.passed()), (2, 0));

    // It changes: every node has the other one, and uses it.
    let url = theirs.url();
    let status = json!({ "httpProxy": url, "httpsProxy": url, "noProxy": "198.18.0.1" });
    let changed = boots(&[&one, &two])?;
    cluster_proxy::say(client, json!({}), status).await?;
    let with = stage.hash_after(&with).await?;
    stage.rolled(&[&one, &two], &changed, &with).await?;
    has_it(&one, &url, "198.18.0.1")?;
    has_it(&two, &url, "198.18.0.1")?;
    stage.explained(&two, &shown(&url, "198.18.0.1")).await?;

    // One that comes later has all of it when it serves.
    let three = bed.instance("op-egress-3")?;
    assert!(three.ask(&["windows-probe", "world"]).is_err());
    bed.list_these(&[&one, &two, &three]).await?;
    bed.serves(&three).await?;
    assert_eq!(ours(&three)?, fingerprints(&[&proxy, &theirs]));
    has_it(&three, &url, "198.18.0.1")?;
    assert_eq!((proxy.passed(), theirs.passed()), (2, 3));

    // Deleted, it is there again and nobody trusts less; a shorter one is followed.
    let deleted = stage.maps.delete(BUNDLE, &DeleteParams::default()).await;
    deleted.doing(|| "cannot delete the bundle")?;
    stage.asked(Some(&bundle)).await?;
    assert_eq!(ours(&two)?, fingerprints(&[&proxy, &theirs]));
    stage.fill(&[&proxy]).await?;
    until_ours(&two, &[&proxy]).await?;
    until_ours(&one, &[&proxy]).await?;

    // It goes, and everything with it.
    let all = [&one, &two, &three];
    let second = boots(&all)?;
    cluster_proxy::say(client, json!({}), json!({})).await?;
    assert_eq!(stage.hash_after(&with).await?, without);
    stage.rolled(&all, &second, &without).await?;
    let gone = stage.maps.get_opt(BUNDLE).await;
    assert_eq!(gone.doing(|| "cannot read the bundle")?, None);
    for instance in all {
        until_ours(instance, &[]).await?;
        assert_eq!(variable(instance, "HTTPS_PROXY")?, None);
        assert_eq!(seen_by_kubelet(instance, "HTTPS_PROXY")?, Value::Null);
    }
    assert_eq!(variable(&one, "HTTP_PROXY")?.as_deref(), Some(OWN_PROXY));

    // One leaves: it is as before we came, with its own proxy and whom it trusted.
    bed.list_these(&[&two, &three]).await?;
    bed.forgotten(&one.address().to_string()).await?;
    let after = one.snapshot()?;
    assert_eq!(before.diff(&after), Vec::<String>::new());
    let log = bed.scene.log();
    assert!(!log.contains("p%40ss"), "a password is in the log");
    Ok(())
}
