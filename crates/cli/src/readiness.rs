//! `evenkeel readiness dry-run`: which nodes a rule would taint now, and why. `evenkeel readiness import`: rules of
//! node-readiness-controller as ours.

pub(crate) mod evidence;
mod import;
pub(crate) mod rules;
mod theirs;

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use evenkeel_api::document::Document;
use evenkeel_api::readiness::{ReadinessRule, Source};
use evenkeel_plan::fleet::node_facts::NodeFacts;
use serde_json::json;

use crate::Ending;
use crate::arguments::{ClusterArguments, Output, ReadinessArguments, ReadinessCommand};
use crate::output::{self, Paint};
use crate::readiness::evidence::Evidence;
use crate::table::{lines, table};
use crate::{cluster, input};

pub(crate) fn run(arguments: &ReadinessArguments) -> Result<Ending> {
    match &arguments.command {
        ReadinessCommand::DryRun {
            files,
            wait,
            cluster,
            output,
        } => dry_run(files, *wait, cluster, output),
        ReadinessCommand::Import { files, output } => import::run(files, output),
    }
}

fn dry_run(
    files: &[PathBuf],
    wait: Option<Duration>,
    which: &ClusterArguments,
    format: &Output,
) -> Result<Ending> {
    let rules = read(files)?;
    let mut tainted = Vec::new();
    let mut counts = Vec::new();
    cluster::with(which, async |cluster| {
        let nodes = cluster.nodes().await?;
        let nodes: Vec<_> = nodes.iter().map(NodeFacts::snapshot).collect();
        let names: Vec<_> = nodes.iter().map(|it| it.name.clone()).collect();
        let mut evidence = Evidence::of(&cluster, &rules, nodes).await?;
        evidence.look_on(wait, |_| false).await?;
        for name in names {
            for (rule, why) in evidence.readiness.holders(&name) {
                tainted.push((rule, name.clone(), why));
            }
        }
        for rule in &rules {
            counts.push((
                rule.name.clone(),
                evidence.readiness.rule(&rule.name).nodes.total,
            ));
        }
        Ok(())
    })?;
    tainted.sort();
    let untried = untried(&rules);
    let text = |paint| text(&counts, &tainted, &untried, paint);
    output::show(format.format, text, || {
        json!({
            "rules": counts.iter().map(|(rule, nodes)| json!({ "rule": rule, "nodes": nodes })).collect::<Vec<_>>(),
            "tainted": tainted.iter().map(|(rule, node, why)| json!({ "rule": rule, "node": node, "why": why })).collect::<Vec<_>>(),
            "notTried": untried,
        })
    })?;
    Ok(Ending::well_if(tainted.is_empty()))
}

/// The rules in the files; anything else there is a mistake.
fn read(files: &[PathBuf]) -> Result<Vec<ReadinessRule>> {
    let mut rules = Vec::new();
    for source in input::sources(files)? {
        let (documents, warnings) = match input::documents(&source) {
            Ok(read) => read,
            Err(problems) => bail!("{problems}"),
        };
        output::warn(&warnings);
        for document in documents {
            match document {
                Document::ReadinessRule(rule) => rules.push(rule),
                other => bail!(
                    "{}: found a {}: give a NodeReadinessRule",
                    source.name,
                    other.kind()
                ),
            }
        }
    }
    Ok(rules)
}

/// The extensions that agents probe only when the rule is there.
fn untried(rules: &[ReadinessRule]) -> Vec<String> {
    let all = rules
        .iter()
        .flat_map(|rule| rule.extensions.iter().map(move |it| (rule, it)));
    let probed = all.filter(|(_, it)| matches!(it.source, Source::Probe { .. }));
    probed
        .map(|(rule, it)| format!("{} of {}", it.name, rule.name))
        .collect()
}

fn text(
    counts: &[(String, u32)],
    tainted: &[(String, String, String)],
    untried: &[String],
    paint: Paint,
) -> String {
    let mut text = String::new();
    for (rule, nodes) in counts {
        let held: std::collections::BTreeSet<_> = tainted
            .iter()
            .filter(|(it, ..)| it == rule)
            .map(|(_, node, _)| node)
            .collect();
        let _ = writeln!(
            text,
            "rule {}: {} of {nodes} nodes would be tainted now",
            paint.bold(rule),
            held.len()
        );
    }
    if !tainted.is_empty() {
        let mut rows = table(&["NODE", "RULE", "WHY"], paint);
        for (rule, node, why) in tainted {
            rows.add_row([node, rule, why]);
        }
        let _ = write!(text, "\n{}", lines(&rows));
    }
    if !untried.is_empty() {
        let _ = writeln!(
            text,
            "\nNot tried (agents run probes only for rules that exist in the cluster): {}",
            untried.join(", ")
        );
    }
    text
}
