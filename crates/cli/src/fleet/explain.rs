//! `evenkeel explain NODE`: the state of a node, its cause, and what happens next, on one screen.

use std::fmt::Write;

use anyhow::Result;
use evenkeel_plan::fleet::node::Node;
use evenkeel_plan::readiness::{NodeSnapshot, ReadinessView, Row};
use serde_json::{Value, json};

use crate::Ending;
use crate::arguments::{ExplainArguments, Format};
use crate::cluster::{self, narrow};
use crate::output::{self, Paint};
use crate::readiness::evidence::{self, Evidence};
use crate::table::{lines, table};
use crate::windows::egress::Egress;
use crate::windows::instances;

/// What was observed.
struct Explanation {
    node: Node,
    is_tainted: bool,
    owners: Vec<String>,
    has_permit: bool,
    view: ReadinessView,
    egress: Option<Egress>,
    /// The progress of its removal, or what that waits for.
    removal: Option<String>,
}

pub(crate) fn run(arguments: &ExplainArguments) -> Result<Ending> {
    let explanation = cluster::with(&arguments.cluster, async |cluster| {
        let object = evidence::node(&cluster, &arguments.node).await?;
        let (rules, problems) = evidence::rules(&cluster).await?;
        output::warn(problems);
        let snapshot = NodeSnapshot::read(&json!({
            "metadata": object.metadata, "spec": object.data["spec"], "status": object.data["status"],
        }));
        let (is_tainted, has_permit) = (snapshot.is_tainted(), snapshot.has_permit);
        let owners = snapshot.owners.as_deref().unwrap_or_default().split(',');
        let owners = owners
            .filter(|it| !it.is_empty())
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
        let node = narrow(object);
        Ok(Explanation {
            egress: Egress::of(&cluster, &arguments.namespace, &node).await?,
            removal: instances::removal(&cluster, &arguments.namespace, &node).await?,
            node,
            is_tainted,
            owners,
            has_permit,
            view: view.ok_or_else(|| anyhow::anyhow!("node {name} does not exist"))?,
        })
    })?;
    let text = match arguments.output.format {
        Format::Text => explanation.text(Paint::for_stdout()),
        format => output::document(&explanation.document(), format)?,
    };
    output::print(text.as_bytes())?;
    Ok(if explanation.may_have_pods() {
        Ending::Well
    } else {
        Ending::Differs
    })
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
            why.push(format!(
                "the readiness taint keeps new pods away, held by {by}"
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
        let blocking: Vec<_> = self.blocking().map(|it| it.extension.as_str()).collect();
        let governed = !self.view.extensions.is_empty();
        match (self.is_tainted, blocking.is_empty()) {
            _ if self.has_permit => "the node has a disruption permit: the operator removes the taint when the node is back and every required extension is healthy".to_owned(),
            (true, false) => format!("waiting for {} to be healthy; then the operator removes the taint", blocking.join(" and ")),
            (true, true) if governed => "nothing blocks the node: the operator removes the taint when every required extension was heard from since the restart".to_owned(),
            (true, true) => "no readiness rule selects this node any more: the operator removes the taint if the operator added it".to_owned(),
            (false, false) => format!("the operator taints the node because of {}, unless its limits hold the taint back", blocking.join(" and ")),
            (false, true) if governed => "nothing, as long as every required extension is healthy".to_owned(),
            (false, true) => "nothing: no readiness rule selects this node".to_owned(),
        }
    }

    fn blocking(&self) -> impl Iterator<Item = &Row> {
        self.view.extensions.iter().filter(|it| it.blocks)
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
            let (state, current, desired) = (
                &self.node.state,
                &self.node.current_config,
                &self.node.desired_config,
            );
            let _ = writeln!(
                text,
                "  configuration: {}, current {}, desired {}",
                configuration(state),
                configuration(current),
                configuration(desired)
            );
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
            "heldBy": self.owners,
            "why": self.why(),
            "state": self.node.state,
            "reason": self.node.reason,
            "currentConfig": self.node.current_config,
            "desiredConfig": self.node.desired_config,
            "foreign": self.node.is_foreign(),
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
        (true, ..) => "yes",
        (false, true, _) => "no",
        (false, false, _) => "no (optional)",
    }
}
