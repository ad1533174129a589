//! The daemon that the machine-config operator has on every node, as its controller meets it: annotations that answer
//! annotations, and a boot. There is no machine to configure, and every change is one that takes a drain and a boot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinSet;

use crate::kubeconfig::Kubeconfig;
use crate::node_double::NodeDouble;
use crate::process::tell;
use crate::{Doing, Error, Result};

const CURRENT: &str = "machineconfiguration.openshift.io/currentConfig";
const DESIRED: &str = "machineconfiguration.openshift.io/desiredConfig";
const STATE: &str = "machineconfiguration.openshift.io/state";
const REASON: &str = "machineconfiguration.openshift.io/reason";
const ASKED: &str = "machineconfiguration.openshift.io/desiredDrain";
const ANSWERED: &str = "machineconfiguration.openshift.io/lastAppliedDrain";

/// How long after a failure it is tried again.
const AGAIN: Duration = Duration::from_millis(200);

type Annotations = BTreeMap<String, String>;

/// The daemons of many nodes. They end when this is dropped.
#[derive(Debug)]
pub struct DaemonDouble {
    boots: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl DaemonDouble {
    /// Starts one on each of `nodes`, which are new machines: provisioned with what `pool` is to run once that is rendered.
    pub async fn start(
        login: &Kubeconfig,
        nodes: &Arc<Vec<NodeDouble>>,
        pool: &str,
    ) -> Result<Self> {
        let client = login.client().await?;
        let boots = Arc::<AtomicUsize>::default();
        let mut tasks = JoinSet::new();
        for at in 0..nodes.len() {
            let daemon = Daemon {
                client: client.clone(),
                nodes: Arc::clone(nodes),
                at,
                pool: pool.to_owned(),
                boots: Arc::clone(&boots),
            };
            tasks.spawn(async move {
                let mut machine = None;
                while let Err(error) = daemon.live(&mut machine).await {
                    tell(&format!(
                        "the daemon of {} starts anew: {error}",
                        daemon.name()
                    ));
                    tokio::time::sleep(AGAIN).await;
                }
            });
        }
        Ok(Self {
            boots,
            _tasks: tasks,
        })
    }

    /// How often machines booted.
    pub fn boots(&self) -> usize {
        self.boots.load(Ordering::SeqCst)
    }
}

/// What it does next.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// It waits for its controller.
    Wait,
    Write(Vec<(&'static str, String)>),
    /// The machine has the configuration, and boots into it.
    Boot(String),
}

/// Decides, from what its Node says and what the machine has.
fn next(seen: &Annotations, machine: &str) -> Step {
    let said = |name: &str| seen.get(name).map_or("", String::as_str);
    let desired = said(DESIRED);
    // A request is out, and nothing is done before it is answered.
    if said(ASKED) != said(ANSWERED) {
        return Step::Wait;
    }
    let (drain, uncordon) = (format!("drain-{desired}"), format!("uncordon-{desired}"));
    if desired != machine {
        return match said(STATE) {
            "Working" if said(ASKED) == drain => Step::Boot(desired.to_owned()),
            "Working" => Step::Write(vec![(ASKED, drain)]),
            _ => Step::Write(vec![(STATE, "Working".to_owned())]),
        };
    }
    if said(ASKED) != uncordon {
        return Step::Write(vec![(ASKED, uncordon)]);
    }
    if said(STATE) == "Done" && said(CURRENT) == desired && seen.contains_key(REASON) {
        return Step::Wait;
    }
    Step::Write(vec![
        (STATE, "Done".to_owned()),
        (CURRENT, desired.to_owned()),
        (REASON, String::new()),
    ])
}

struct Daemon {
    client: Client,
    nodes: Arc<Vec<NodeDouble>>,
    at: usize,
    pool: String,
    boots: Arc<AtomicUsize>,
}

impl Daemon {
    fn name(&self) -> &str {
        self.nodes[self.at].name()
    }

    /// Cares for a machine that has this configuration; for a new one, if it has none.
    async fn live(&self, machine: &mut Option<String>) -> Result<()> {
        let machine = match machine {
            Some(known) => known,
            None => machine.insert(self.provision().await?),
        };
        let mut changes = watcher::watch_object(self.node(), self.name())
            .default_backoff()
            .boxed();
        while let Some(change) = changes.next().await {
            let Ok(Some(node)) = change else { continue };
            match next(&node.metadata.annotations.unwrap_or_default(), machine) {
                Step::Wait => {}
                Step::Write(annotations) => self.write(&annotations).await?,
                Step::Boot(config) => {
                    *machine = config;
                    self.boots.fetch_add(1, Ordering::SeqCst);
                    // Its Node changes with that, and what comes next is seen on it.
                    self.nodes[self.at].restart_machine().await?;
                }
            }
        }
        Err(Error::failed("the watch of its node ended"))
    }

    /// Becomes a machine of its pool, as whoever installs machines makes it: with the configuration that is rendered.
    async fn provision(&self) -> Result<String> {
        let kind = GroupVersionKind::gvk(
            "machineconfiguration.openshift.io",
            "v1",
            "MachineConfigPool",
        );
        let kind = ApiResource::from_gvk_with_plural(&kind, "machineconfigpools");
        let pools: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind);
        let mut changes = watcher::watch_object(pools, &self.pool)
            .default_backoff()
            .boxed();
        while let Some(change) = changes.next().await {
            let Ok(Some(pool)) = change else { continue };
            let Some(config) = pool.data["spec"]["configuration"]["name"].as_str() else {
                continue;
            };
            let first = [(CURRENT, config), (DESIRED, config), (STATE, "Done")];
            let first = first.map(|(name, value)| (name, value.to_owned()));
            self.write(&first).await?;
            return Ok(config.to_owned());
        }
        Err(Error::failed("the watch of its pool ended"))
    }

    async fn write(&self, annotations: &[(&'static str, String)]) -> Result<()> {
        let annotations: BTreeMap<_, _> = annotations.iter().cloned().collect();
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        let parameters = PatchParams {
            field_manager: Some("machine-config-daemon".to_owned()),
            ..PatchParams::default()
        };
        let written = self.node().patch(self.name(), &parameters, &patch).await;
        written.map(|_| ()).doing(|| "cannot write on the node")
    }

    fn node(&self) -> Api<PartialObjectMeta<Node>> {
        Api::all(self.client.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_working_drained_booted_uncordoned_and_done() {
        let mut seen: Annotations = [
            (CURRENT, "a"),
            (DESIRED, "b"),
            (STATE, "Done"),
            (REASON, ""),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        let (mut machine, mut steps) = ("a".to_owned(), Vec::new());
        loop {
            match next(&seen, &machine) {
                Step::Wait if seen.get(ASKED) == seen.get(ANSWERED) => break,
                Step::Wait => {
                    // Its controller answers.
                    let asked = seen[ASKED].clone();
                    steps.push(format!("{asked} is answered"));
                    seen.insert(ANSWERED.to_owned(), asked);
                }
                Step::Write(values) => {
                    for (name, value) in values {
                        let (_, short) = name.split_once('/').unwrap_or_default();
                        steps.push(format!("{short}={value}"));
                        seen.insert(name.to_owned(), value);
                    }
                }
                Step::Boot(config) => {
                    steps.push(format!("boots into {config}"));
                    machine = config;
                }
            }
        }
        let expected = [
            "state=Working",
            "desiredDrain=drain-b",
            "drain-b is answered",
            "boots into b",
            "desiredDrain=uncordon-b",
            "uncordon-b is answered",
            "state=Done",
            "currentConfig=b",
            "reason=",
        ];
        assert_eq!(steps, expected);
    }
}
