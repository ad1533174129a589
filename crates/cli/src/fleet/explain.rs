//! `evenkeel explain NODE`: the state of a node, its cause, and what happens next, on one screen.

use std::fmt::Write;

use anyhow::Result;
use evenkeel_api::machine::node_state::NodeState;
use evenkeel_api::names::{object, taint};
use evenkeel_api::readiness::RuleOrigin;
use evenkeel_plan::fleet::node::Node;
use evenkeel_plan::fleet::overview;
use evenkeel_plan::fleet::pool::Assignment;
use evenkeel_plan::readiness::{ReadinessView, Row};
use serde_json::{Value, json};

use crate::Ending;
use crate::arguments::ExplainArguments;
use crate::cluster::{self, Cluster};
use crate::fleet::status::is_idle;
use crate::output::{self, Paint};
use crate::readiness::evidence::{self, Evidence};
use crate::table::{lines, table};
use crate::windows::egress::Egress;
use crate::windows::instances;
use crate::windows::upgrade::WindowsNodes;

/// What was observed.
struct Explanation {
    node: Node,
    is_tainted: bool,
    /// The taints by which it is.
    taints: Vec<String>,
    owners: Vec<String>,
    has_permit: bool,
    view: ReadinessView,
    egress: Option<Egress>,
    /// The progress of its removal, or what that waits for.
    removal: Option<String>,
    /// What is decided for it as a member of a pool.
    rollout: Option<PoolMember>,
}

/// A node as the planners of rollouts, budgets, drains and upgrades see it.
struct PoolMember {
    pool: String,
    state: String,
    waits_for: String,
}

impl PoolMember {
    /// What is decided for `name`, if it is in a pool.
    async fn of(cluster: &Cluster, namespace: &str, name: &str) -> Result<Option<Self>> {
        let (fleet, windows) = (cluster.fleet().await?, WindowsNodes::of(cluster).await?);
        let assignment = Assignment::of(&fleet.pools, &fleet.nodes);
        let mut views = overview::view(&fleet.pools, &assignment);
        if is_idle(&cluster.coexistence(namespace).await?) {
            overview::idle(&mut views);
        }
        for view in views {
            if let Some(found) = view.nodes.iter().find(|it| it.node.name == name) {
                return Ok(Some(Self {
                    pool: view.pool.name.clone(),
                    state: found.state.to_string(),
                    waits_for: found.waits_for.clone(),
                }));
            }
        }
        let nodes = &assignment.windows;
        let views = windows.iter().flat_map(|it| it.views(nodes));
        let found = views.into_iter().find(|it| it.node == name);
        Ok(found.map(|it| Self {
            pool: object::WINDOWS_POOL.to_owned(),
            state: it.state.to_string(),
            waits_for: it.waits_for,
        }))
    }

    fn text(&self) -> String {
        let Self {
            pool,
            state,
            waits_for,
        } = self;
        let waits_for = match waits_for.as_str() {
            "" => String::new(),
            why => format!(", {why}"),
        };
        format!("rollout of pool {pool}: {state}{waits_for}")
    }
}

pub(crate) fn run(arguments: &ExplainArguments) -> Result<Ending> {
    let explanation = cluster::with(&arguments.cluster, async |cluster| {
        let facts = cluster.node(&arguments.node).await?;
        let (rules, problems) = evidence::rules(&cluster).await?;
        output::warn(problems);
        let (node, snapshot) = (facts.node.clone(), facts.snapshot());
        // Of the other kind's rules, nothing but the taints is written on the node.
        let theirs = rules.iter().filter(|it| it.origin == RuleOrigin::Nrc);
        let theirs: Vec<_> = theirs
            .filter(|it| it.node_selector.matches(|name| snapshot.labels.get(name)))
            .filter(|it| snapshot.has_of(it))
            .collect();
        let (is_tainted, has_permit) = (
            snapshot.is_tainted() || !theirs.is_empty(),
            snapshot.has_permit,
        );
        let mut taints = snapshot.readiness_taints();
        taints.extend(theirs.iter().map(|it| it.taint.to_string()));
        let owners = snapshot.owners.as_deref().unwrap_or_default().split(',');
        let owners = owners
            .filter(|it| !it.is_empty())
            .chain(theirs.iter().map(|it| it.name.as_str()))
            .map(str::to_owned)
            .collect();
        let name = snapshot.name.clone();
        let mut evidence = Evidence::of(&cluster, &rules, vec![snapshot]).await?;
        let is_clear =
            |it: &evenkeel_plan::readiness::Readiness| !is_tainted || !it.holders(&name).is_empty();
        evidence.look_on(arguments.wait, is_clear).await?;
        let mut view = evidence.readiness.node(&name, evidence.now());
        let real = |row: &mut Row| {
            row.dry_run = rules.iter().any(|it| it.name == row.rule && it.dry_run);
            row.blocks &= !row.dry_run;
        };
        if let Some(view) = &mut view {
            view.extensions.iter_mut().for_each(real);
        }
        Ok(Explanation {
            rollout: PoolMember::of(&cluster, &arguments.namespace, &name).await?,
            egress: Egress::of(&cluster, &arguments.namespace, &node).await?,
            removal: instances::removal(&cluster, &arguments.namespace, &node).await?,
            node,
            is_tainted,
            taints,
            owners,
            has_permit,
            view: view.ok_or_else(|| anyhow::anyhow!("node {name} does not exist"))?,
        })
    })?;
    let format = arguments.output.format;
    output::show(
        format,
        |paint| explanation.text(paint),
        || explanation.document(),
    )?;
    Ok(Ending::well_if(explanation.may_have_pods()))
}

impl Explanation {
    fn may_have_pods(&self) -> bool {
        !self.is_tainted && !self.node.unschedulable && self.node.ready
    }

    /// The causes of its state, one sentence each.
    fn why(&self) -> Vec<String> {
        let node = &self.node;
        let mut why = Vec::new();
        if self.is_tainted {
            let by = if self.owners.is_empty() {
                "an unknown owner".to_owned()
            } else {
                self.owners.join(", ")
            };
            let is_shared = |it: &String| it.starts_with(taint::META_READINESS);
            why.push(match self.taints.as_slice() {
                all if all.iter().all(is_shared) => {
                    format!("the readiness taint keeps new pods away, held by {by}")
                }
                [one] => format!("the taint {one} keeps new pods away, held by {by}"),
                all => format!(
                    "the taints {} keep new pods away, held by {by}",
                    all.join(" and ")
                ),
            });
        }
        if node.taints.contains(taint::FIRST_CONFIG) {
            let taint = taint::FIRST_CONFIG;
            why.push(format!(
                "the taint {taint} keeps new pods away until its first configuration is Done"
            ));
        }
        if !node.ready {
            why.push("the kubelet does not report the node as Ready".to_owned());
        }
        if node.unschedulable {
            let by = node.cordoned_by.as_deref().unwrap_or("a person");
            why.push(format!("the node is cordoned by {by}"));
        }
        why.extend(node.desired().refusal().filter(|_| node.is_foreign()));
        if node.is_degraded() {
            let reason = node.reason.as_deref().unwrap_or_default();
            why.push(format!("the node is Degraded: {reason}"));
        }
        why
    }

    /// What happens next, as the operator would decide it.
    fn next(&self) -> String {
        self.view.next_for(self.is_tainted, self.has_permit)
    }

    fn text(&self, paint: Paint) -> String {
        let mut text = String::new();
        let word = if self.may_have_pods() {
            paint.green("ready for pods")
        } else {
            paint.red("not ready for pods")
        };
        let _ = writeln!(text, "{}: {word}", paint.bold(&self.node.name));
        for why in self.why() {
            let _ = writeln!(text, "  {why}");
        }
        if let Some(problem) = &self.view.problem {
            let _ = writeln!(text, "  {problem}");
        }
        let configuration = |it: &Option<String>| it.clone().unwrap_or_else(|| "none".to_owned());
        if self.node.desired_config.is_some() || self.node.state.is_some() {
            let state = self.node.state.as_ref().map_or("none", NodeState::as_str);
            let (current, desired) = (&self.node.current_config, &self.node.desired_config);
            let _ = writeln!(
                text,
                "  configuration: {state}, current {}, desired {}",
                configuration(current),
                configuration(desired)
            );
        }
        if let Some(rollout) = &self.rollout {
            let _ = writeln!(text, "  {}", rollout.text());
        }
        if let Some(removal) = &self.removal {
            let _ = writeln!(text, "  removal: {removal}");
        }
        for line in self.egress.iter().flat_map(Egress::lines) {
            let _ = writeln!(text, "  {line}");
        }
        if !self.view.extensions.is_empty() {
            let mut rows = table(
                &[
                    "EXTENSION",
                    "RULE",
                    "SOURCE",
                    "VERDICT",
                    "LAST HEARD",
                    "BLOCKS",
                ],
                paint,
            );
            for row in &self.view.extensions {
                let heard = row
                    .heard_seconds_ago
                    .map_or_else(String::new, |it| format!("{it}s ago"));
                rows.add_row([
                    row.extension.clone(),
                    row.rule.clone(),
                    row.source.clone(),
                    row.says.to_owned(),
                    heard,
                    blocks(row).to_owned(),
                ]);
            }
            let _ = write!(text, "\n{}", lines(&rows));
            for row in self
                .view
                .extensions
                .iter()
                .filter(|it| it.blocks && !it.why.is_empty())
            {
                let _ = writeln!(text, "{} {}: {}", paint.red("!"), row.extension, row.why);
            }
        }
        let _ = writeln!(text, "\nNext: {}", self.next());
        text
    }

    fn document(&self) -> Value {
        json!({
            "node": self.node.name,
            "readyForPods": self.may_have_pods(),
            "tainted": self.is_tainted,
            "taints": self.taints,
            "heldBy": self.owners,
            "why": self.why(),
            "state": self.node.state,
            "reason": self.node.reason,
            "currentConfig": self.node.current_config,
            "desiredConfig": self.node.desired_config,
            "foreign": self.node.is_foreign(),
            "rollout": self.rollout.as_ref().map(|it| {
                json!({ "pool": it.pool, "state": it.state, "waitsFor": it.waits_for })
            }),
            "removal": self.removal,
            "egress": self.egress.as_ref().map(Egress::document),
            "extensions": self.view.extensions,
            "problem": self.view.problem,
            "next": self.next(),
        })
    }
}

fn blocks(row: &Row) -> &'static str {
    match (row.blocks, row.affects_readiness, row.dry_run) {
        (_, _, true) => "no (dry run)",
        _ if row.completed => "no (bootstrap completed)",
        _ if row.suspended => "as it is (suspended)",
        (true, ..) => "yes",
        (false, true, _) => "no",
        (false, false, _) => "no (optional)",
    }
}
