//! Upgrades of Windows nodes: what `evenkeel status` shows of them, and `evenkeel upgrade pause|resume`.

use std::fmt::Write;

use anyhow::{Result, anyhow};
use evenkeel_api::field::Field;
use evenkeel_api::names::{group, object};
use evenkeel_api::windows::windows_pool::{KIND, PLURAL, VERSION, WindowsPoolStatus, condition};
use evenkeel_plan::fleet::node::Node;
use evenkeel_plan::windows::windows_pool::{WindowsNodeView, WindowsPool, view};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::Ending;
use crate::arguments::{ClusterArguments, UpgradeArguments, UpgradeCommand};
use crate::cluster::{self, Cluster, kind};
use crate::output::{self, Paint};
use crate::table::{bar, lines, table};

/// The pool of Windows nodes, as its object says.
pub(crate) struct WindowsNodes {
    pool: WindowsPool,
    status: WindowsPoolStatus,
}

/// The kind of that pool.
pub(crate) fn windows_pools_kind() -> ApiResource {
    kind(group::EVENKEEL, VERSION, KIND, PLURAL)
}

fn pools(cluster: &Cluster) -> Api<DynamicObject> {
    cluster.all(&windows_pools_kind())
}

impl WindowsNodes {
    /// Reads it; a cluster without that kind, or without the object, has none.
    pub(crate) async fn of(cluster: &Cluster) -> Result<Option<Self>> {
        let found = pools(cluster).get_opt(object::WINDOWS_POOL).await;
        let found = found.map_err(|error| cluster.explain("read the windowspool", error))?;
        Ok(found.map(|mut object| {
            let spec = Field::from(object.data["spec"].take());
            Self {
                pool: WindowsPool::read(&spec.valid().unwrap_or_default())
                    .with_annotations(object.annotations()),
                status: Field::from(object.data["status"].take()).recorded(),
            }
        }))
    }

    /// What its owner wants.
    pub(crate) fn into_pool(self) -> WindowsPool {
        self.pool
    }

    /// Its nodes, with what each waits for.
    pub(crate) fn views<'n>(&'n self, nodes: &[&'n Node]) -> Vec<WindowsNodeView<'n>> {
        view(&self.status, nodes)
    }

    /// Whether all of them are up to date and healthy.
    pub(crate) fn are_well(&self, nodes: &[&Node]) -> bool {
        self.problems().is_empty() && self.views(nodes).iter().all(WindowsNodeView::is_done)
    }

    fn problems(&self) -> Vec<String> {
        let told = [
            (condition::DEGRADED, "True"),
            (condition::UPGRADEABLE, "False"),
            (condition::IDLE, "True"),
        ];
        let found = told.iter().filter_map(|(kind, value)| {
            let found = self.status.condition(kind)?;
            (found.status == *value).then(|| found.message.clone())
        });
        let mut problems: Vec<String> = found.collect();
        problems.dedup();
        problems
    }

    /// Whether the operator says that no maintenance window is open.
    fn is_closed(&self) -> bool {
        let told = self.status.condition(condition::UPDATING);
        let reasons = ["OutsideWindow", "Frozen"];
        told.is_some_and(|it| it.status == "False" && reasons.contains(&it.reason.as_str()))
    }

    fn word(&self) -> &'static str {
        let counts = self.status.nodes;
        if self.pool.budget.paused && counts.updated < counts.total {
            "paused"
        } else if !self.problems().is_empty() {
            "degraded"
        } else if counts.updated < counts.total && self.is_closed() {
            "waiting for a window"
        } else if counts.updated < counts.total {
            "rolling out"
        } else {
            "updated"
        }
    }

    /// For people: nothing if there are no nodes.
    pub(crate) fn text(&self, nodes: &[&Node], paint: Paint) -> String {
        let views = self.views(nodes);
        if views.is_empty() && self.problems().is_empty() {
            return String::new();
        }
        let counts = self.status.nodes;
        let number = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
        let mut pools = table(
            &["WINDOWS", "STATE", "UPDATED", "PROGRESS", "VERSION"],
            paint,
        );
        pools.add_row([
            object::WINDOWS_POOL.to_owned(),
            self.word().to_owned(),
            format!("{} of {}", counts.updated, counts.total),
            bar(number(counts.updated), number(counts.total)),
            self.status.version.to_string(),
        ]);
        let mut text = format!("\n{}", lines(&pools));
        for problem in self.problems() {
            let _ = writeln!(text, "{} {problem}", paint.red("!"));
        }
        let mut rows = table(&["NODE", "VERSION", "STATE", "WAITS FOR"], paint);
        let busy: Vec<_> = views.iter().filter(|it| !it.is_done()).collect();
        for view in &busy {
            rows.add_row([
                view.node.to_owned(),
                versions(view),
                view.state.to_string(),
                view.waits_for.clone(),
            ]);
        }
        if !busy.is_empty() {
            text.push('\n');
            text.push_str(&lines(&rows));
        }
        text
    }

    /// For programs.
    pub(crate) fn document(&self, nodes: &[&Node]) -> Value {
        let views = self.views(nodes);
        let nodes = views.iter().map(|it| {
            json!({
                "node": it.node,
                "from": it.from,
                "to": it.to,
                "state": it.state.to_string(),
                "waitsFor": it.waits_for,
            })
        });
        json!({
            "pool": object::WINDOWS_POOL,
            "state": self.word(),
            "paused": self.pool.budget.paused,
            "version": self.status.version,
            "total": self.status.nodes.total,
            "updated": self.status.nodes.updated,
            "failing": self.status.nodes.failing,
            "problems": self.problems(),
            "nodes": nodes.collect::<Vec<_>>(),
        })
    }
}

/// `1.2.3-abc1234 → 1.3.0-def5678`
fn versions(view: &WindowsNodeView<'_>) -> String {
    let from = view
        .from
        .map_or_else(|| "none".to_owned(), ToString::to_string);
    match view.to {
        Some(to) => format!("{from} → {to}"),
        None => from,
    }
}

/// Pauses or resumes upgrades.
pub(crate) fn run(arguments: &UpgradeArguments) -> Result<Ending> {
    match &arguments.command {
        UpgradeCommand::Pause { cluster } => hold(cluster, true),
        UpgradeCommand::Resume { cluster } => hold(cluster, false),
    }
}

fn hold(arguments: &ClusterArguments, paused: bool) -> Result<Ending> {
    cluster::with(arguments, async |cluster| {
        let Some(before) = WindowsNodes::of(&cluster).await? else {
            return Err(anyhow!(
                "WindowsPool {} does not exist: install the chart with windows.enabled (docs/windows-pool.md)",
                object::WINDOWS_POOL
            ));
        };
        let said = match (before.pool.budget.paused, paused) {
            (true, true) => "Windows nodes are already paused.\n",
            (false, false) => "Windows nodes are not paused.\n",
            (_, paused) => {
                let patch = Patch::Merge(json!({ "spec": { "paused": paused } }));
                let pools = pools(&cluster);
                let parameters = PatchParams::default();
                let patched = pools.patch(object::WINDOWS_POOL, &parameters, &patch).await;
                let what = if paused {
                    "pause Windows nodes"
                } else {
                    "resume Windows nodes"
                };
                patched.map_err(|error| cluster.explain(what, error))?;
                if paused {
                    "Paused Windows nodes: no further node is upgraded or removed. Nodes that already started finish. Resume with `evenkeel upgrade resume`.\n"
                } else {
                    "Resumed Windows nodes. Watch them with `evenkeel status`.\n"
                }
            }
        };
        output::print(said.as_bytes())?;
        Ok(Ending::Well)
    })
}
