//! Helm replaces the release while nodes are on their way to a configuration.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::installed::{Installed, NAMESPACE, PATIENCE, done, is_ready, until_updated};
use crate::objects::{config, pool};
use crate::previous::{Previous, TAG};
use crate::release::Release;
use crate::skip;
use crate::watch::Watch;

const NODES: [&str; 3] = ["one", "two", "three"];
/// The tag of the release that is tested.
const TODAY: &str = env!("CARGO_PKG_VERSION");

/// A rollout of the release before this one goes on under this one, and one of this one under the one before: each takes over
/// the permits of the other's operator, and the records and journals of the other's agents. Each node boots once for each
/// configuration and is cordoned once.
///
/// Covers K05.
#[tokio::test]
#[ignore = "takes long: runs in ./test --soak"]
async fn an_upgrade_and_a_rollback_in_a_rollout_disturb_each_node_once() -> Result<()> {
    if skip()? {
        return Ok(());
    }
    let (today, previous) = (Release::make()?, Previous::make()?);
    let images = [today.images(), previous.images()].concat();
    let tag = format!("--set=image.tag={TAG}");
    let installed = Installed::with(&NODES, &today, &previous.chart()?, &images, &[&tag]).await?;
    installed.until_ready(2, NODES.len()).await?;
    installed.apply(&pool())?;

    let mut rollout = Rollout::begin(&installed, "one").await?;
    replace_kinds(&installed, &today)?;
    installed.helm(&["upgrade", &today.chart()], &[])?;
    rollout.ends_once(TODAY).await?;
    let upgraded = rollout.mixes()?;

    let mut rollout = Rollout::begin(&installed, "two").await?;
    installed.helm(&["rollback", "1"], &[])?;
    rollout.ends_once(TAG).await?;
    let rolled_back = rollout.mixes()?;

    println!("agents and operators at once: {upgraded:?}, then {rolled_back:?}");
    let mixes: BTreeSet<_> = upgraded.union(&rolled_back).cloned().collect();
    for mix in [(TAG, TODAY), (TODAY, TAG)] {
        let (agent, operator) = (mix.0.to_owned(), mix.1.to_owned());
        assert!(mixes.contains(&(agent, operator)), "{mix:?}: {mixes:?}");
    }
    Ok(())
}

/// As docs/install.md says: Helm installs kinds and never changes them.
fn replace_kinds(installed: &Installed, release: &Release) -> Result<()> {
    let kinds = Chart::helm(&["show", "crds", &release.chart()])?;
    done("helm show crds", &kinds)?;
    let file = installed.files().join("kinds.yaml");
    std::fs::write(&file, &kinds.stdout).doing(|| "cannot write the kinds")?;
    let file = file.display().to_string();
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", &file];
    installed.control_plane().kubectl(&apply).map(|_| ())
}

/// A configuration on its way to all nodes.
struct Rollout<'i> {
    installed: &'i Installed,
    contents: &'static str,
    /// The boot of each node before it.
    boots: Vec<String>,
    nodes: Watch,
    pods: Watch,
    leases: Watch,
}

impl<'i> Rollout<'i> {
    /// Gives the pool a configuration, and waits until the first node is cordoned for it.
    async fn begin(installed: &'i Installed, contents: &'static str) -> Result<Self> {
        let boots = (0..NODES.len()).map(|it| installed.cluster.node(it).boot_id());
        let lease = ["leases", "evenkeel-operator", "--namespace", NAMESPACE];
        let mut rollout = Self {
            installed,
            contents,
            boots: boots.collect::<Result<_>>()?,
            nodes: Watch::of(installed, &["nodes"])?,
            pods: Watch::of(installed, &["pods", "--namespace", NAMESPACE])?,
            leases: Watch::of(installed, &lease)?,
        };
        installed.apply(&config(contents))?;
        until_async("a node to be cordoned", PATIENCE, async || {
            let nodes = rollout.nodes.seen()?;
            let cordoned = nodes.iter().filter(|(_, it)| is_cordoned(it)).count();
            Ok(if cordoned == 0 {
                Look::NotYet(format!("{} changes of nodes", nodes.len()))
            } else {
                Look::Found(())
            })
        })
        .await?;
        Ok(rollout)
    }

    /// Waits until all nodes have it, and all pods are of the release with this tag: no node was disturbed twice, and none was
    /// left out.
    async fn ends_once(&mut self, tag: &str) -> Result<()> {
        for (number, boot) in self.boots.iter().enumerate() {
            let node = self.installed.cluster.node(number);
            until_updated(self.installed, node, boot, self.contents).await?;
        }
        self.until_all_are_of(tag).await?;
        self.installed.until_ready(2, NODES.len()).await?;
        self.installed.until_clean().await?;
        let disturbed = disturbed(&self.nodes.seen()?);
        for name in NODES {
            let (boots, cordons) = disturbed.get(name).cloned().unwrap_or_default();
            assert_eq!(boots.len(), 2, "node {name} ran in boots {boots:?}");
            assert_eq!(cordons, 1, "node {name} was cordoned so often");
        }
        println!(
            "proof: with a change of release in its middle, a rollout to {} nodes disturbed each once",
            disturbed.len()
        );
        for number in 0..NODES.len() {
            let node = self.installed.cluster.node(number);
            let files = node.run(&["ls", "/etc/machine-config-daemon/state"])?;
            assert!(files.lines().any(|it| it == "record"), "{files}");
            assert!(!files.lines().any(|it| it == "journal"), "{files}");
        }
        Ok(())
    }

    async fn until_all_are_of(&self, tag: &str) -> Result<()> {
        let what = format!("all pods to be of {tag}");
        until_async(&what, PATIENCE, async || {
            let pods = self.installed.get(&["pods", "--namespace", NAMESPACE])?;
            let pods = pods["items"].as_array().cloned().unwrap_or_default();
            let tags: Vec<_> = pods.iter().map(tag_of).collect();
            Ok(if tags.iter().all(|it| it == tag) {
                Look::Found(())
            } else {
                Look::NotYet(format!("{tags:?}"))
            })
        })
        .await
    }

    /// Of which releases an agent and the operator that led were at the same time.
    fn mixes(&mut self) -> Result<BTreeSet<(String, String)>> {
        let pods = self.pods.seen()?;
        let agents = lives(&pods)?;
        let operators: BTreeMap<&str, String> = pods
            .iter()
            .filter_map(|(_, pod)| Some((pod["metadata"]["name"].as_str()?, tag_of(pod))))
            .collect();
        let mut mixes = BTreeSet::new();
        for (_, lease) in self.leases.seen()? {
            let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
            // Behind the name of the pod is a number of the process.
            let Some(leader) = operators.get(holder.split('_').next().unwrap_or_default()) else {
                continue;
            };
            let renewed = time(&lease["spec"]["renewTime"])?;
            let alive = agents
                .iter()
                .filter(|it| it.from <= renewed && it.until.is_none_or(|until| renewed < until));
            mixes.extend(alive.map(|it| (it.tag.clone(), leader.clone())));
        }
        Ok(mixes)
    }
}

/// From when to when a pod of an agent was ready.
struct Life {
    tag: String,
    from: Timestamp,
    until: Option<Timestamp>,
}

fn lives(pods: &[(String, Value)]) -> Result<Vec<Life>> {
    let mut lives: BTreeMap<&str, Life> = BTreeMap::new();
    for (uid, pod) in pods {
        let is_agent = pod["metadata"]["labels"]["app.kubernetes.io/name"] == "evenkeel-agent";
        let conditions = pod["status"]["conditions"].as_array();
        let ready = conditions.and_then(|it| it.iter().find(|it| it["type"] == "Ready"));
        let Some(ready) = ready.filter(|_| is_agent) else {
            continue;
        };
        let since = time(&ready["lastTransitionTime"])?;
        let told = &pod["metadata"]["deletionTimestamp"];
        let end = match pod["metadata"]["deletionGracePeriodSeconds"].as_i64() {
            Some(grace) if !told.is_null() => Some(time(told)? - SignedDuration::from_secs(grace)),
            _ if !is_ready(pod) => Some(since),
            _ => None,
        };
        match (lives.get_mut(uid.as_str()), end) {
            (None, None) => {
                let life = Life {
                    tag: tag_of(pod),
                    from: since,
                    until: None,
                };
                lives.insert(uid, life);
            }
            // The last moment at which it was surely there.
            (Some(life), Some(end)) => {
                life.until = Some(life.until.map_or(end, |it| it.min(end)));
            }
            _ => {}
        }
    }
    Ok(lives.into_values().collect())
}

fn time(value: &Value) -> Result<Timestamp> {
    let text = value.as_str().unwrap_or_default();
    text.parse().doing(|| format!("{text:?} is no time"))
}

fn tag_of(pod: &Value) -> String {
    let image = pod["spec"]["containers"][0]["image"].as_str();
    let tag = image.and_then(|it| it.rsplit_once(':'));
    tag.map(|(_, tag)| tag.to_owned()).unwrap_or_default()
}

fn is_cordoned(node: &Value) -> bool {
    node["spec"]["unschedulable"] == true
}

/// The boots in which each node was seen, and how often it was cordoned.
fn disturbed(nodes: &[(String, Value)]) -> BTreeMap<String, (BTreeSet<String>, usize)> {
    let mut disturbed: BTreeMap<String, (BTreeSet<String>, usize)> = BTreeMap::new();
    let mut cordoned: BTreeMap<String, bool> = BTreeMap::new();
    for (_, node) in nodes {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        let of = disturbed.entry(name.to_owned()).or_default();
        let boot = node["status"]["nodeInfo"]["bootID"].as_str();
        of.0.insert(boot.unwrap_or_default().to_owned());
        let was = cordoned.insert(name.to_owned(), is_cordoned(node));
        if is_cordoned(node) && was == Some(false) {
            of.1 += 1;
        }
    }
    disturbed
}
