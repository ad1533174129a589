//! `evenkeel rollout watch|pause|resume|windows`: watches a rollout until the pool is updated, pauses or resumes it, and lists
//! its maintenance windows.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use evenkeel_plan::fleet::overview::{self, NodeProgress, PoolView};
use evenkeel_plan::fleet::pool::Assignment;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::Ending;
use crate::arguments::{Format, RolloutArguments, RolloutCommand};
use crate::cluster::{self, Cluster};
use crate::fleet::status::{pool_document, problems, word};
use crate::fleet::windows;
use crate::output;
use crate::table::bar;

/// The pause between two readings; a large fleet, which takes longer to read, is read less often.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_PER_LOOK: u32 = 10;
/// For how long the API server may be away before that is a failure.
const PATIENCE: Duration = Duration::from_mins(5);

pub(crate) fn run(arguments: &RolloutArguments) -> Result<Ending> {
    match &arguments.command {
        RolloutCommand::Watch {
            pool,
            cluster,
            output,
        } => cluster::with(cluster, async |cluster| {
            let interrupted = tokio::signal::ctrl_c();
            tokio::select! {
                ended = watch(&cluster, pool, output.format) => ended,
                heard = interrupted => {
                    heard.context("cannot listen for Ctrl-C")?;
                    output::warn(["stopped watching; the rollout continues"]);
                    Ok(Ending::Differs)
                }
            }
        }),
        RolloutCommand::Pause { pool, cluster } => hold(cluster, pool, true),
        RolloutCommand::Resume { pool, cluster } => hold(cluster, pool, false),
        RolloutCommand::Windows {
            pool,
            cluster,
            output,
        } => windows::run(cluster, pool, output.format),
    }
}

fn hold(
    arguments: &crate::arguments::ClusterArguments,
    name: &str,
    paused: bool,
) -> Result<Ending> {
    cluster::with(arguments, async |cluster| {
        let before = cluster.pool(name).await?.pool.budget.paused;
        let said = match (before, paused) {
            (true, true) => format!("Pool {name} is already paused.\n"),
            (false, false) => format!("Pool {name} is not paused.\n"),
            (_, paused) => {
                let patch = json!({ "spec": { "paused": paused } });
                let patched = cluster
                    .pools()
                    .patch(name, &PatchParams::default(), &Patch::Merge(patch))
                    .await;
                let what = if paused { "pause" } else { "resume" };
                patched.map_err(|error| cluster.explain(&format!("{what} pool {name}"), error))?;
                if paused {
                    format!(
                        "Paused pool {name}: no further node starts to update. Nodes that already started finish. Resume with `evenkeel rollout resume {name}`.\n"
                    )
                } else {
                    format!("Resumed pool {name}. Watch it with `evenkeel rollout watch {name}`.\n")
                }
            }
        };
        output::print(said.as_bytes())?;
        Ok(Ending::Well)
    })
}

/// Prints every change of the pool until all nodes are updated (0), or the rollout has stopped (2).
async fn watch(cluster: &Cluster, name: &str, format: Format) -> Result<Ending> {
    cluster.pool(name).await?;
    let mut last = String::new();
    let mut failing: Option<Instant> = None;
    loop {
        let start = Instant::now();
        match look(cluster, name, format).await {
            Ok(Some(look)) => {
                failing = None;
                if look.text != last {
                    output::print(look.text.as_bytes())?;
                    last = look.text;
                }
                if let Some(ending) = look.ending {
                    return Ok(ending);
                }
            }
            Ok(None) => anyhow::bail!("pool {name} was deleted"),
            Err(error) => {
                let since = *failing.get_or_insert_with(Instant::now);
                if since.elapsed() > PATIENCE {
                    return Err(error);
                }
                if since >= start {
                    output::warn([format!("{error:#}; retrying")]);
                }
            }
        }
        let pause = PAUSE.max(start.elapsed() * PAUSE_PER_LOOK);
        tokio::time::sleep(pause).await;
    }
}

struct Look {
    text: String,
    ending: Option<Ending>,
}

async fn look(cluster: &Cluster, name: &str, format: Format) -> Result<Option<Look>> {
    let fleet = cluster.fleet().await?;
    let assignment = Assignment::of(&fleet.pools, &fleet.nodes);
    let views = overview::view(&fleet.pools, &assignment);
    let found = views.iter().zip(&fleet.statuses);
    let Some((view, status)) = found.into_iter().find(|(view, _)| view.pool.name == name) else {
        return Ok(None);
    };
    let text = match format {
        Format::Text => line(view, word(view, status)),
        Format::Json => format!("{}\n", pool_document(view, status)),
        Format::Yaml => format!(
            "---\n{}",
            output::document(&pool_document(view, status), Format::Yaml)?
        ),
    };
    let counts = view.counts;
    let is_over = counts.updated == counts.total
        && view.pool.target.is_some()
        && view
            .nodes
            .iter()
            .all(|node| node.state == NodeProgress::Done);
    let is_stopped = view.rollout.stopped.is_some() || !view.pool.problems.is_empty();
    let ending = if is_over {
        Some(Ending::Well)
    } else if is_stopped && counts.moving == 0 {
        output::warn(problems(view, status));
        Some(Ending::Differs)
    } else {
        None
    };
    Ok(Some(Look { text, ending }))
}

/// One line: the progress, and which nodes are busy.
fn line(view: &PoolView<'_>, word: &str) -> String {
    let counts = view.counts;
    let busy: Vec<String> = view
        .nodes
        .iter()
        .filter(|it| {
            matches!(
                it.state,
                NodeProgress::Draining
                    | NodeProgress::Updating
                    | NodeProgress::Degraded
                    | NodeProgress::NotReady
            )
        })
        .map(|it| format!("{} {}", it.node.name, it.state))
        .collect();
    let mut text = format!(
        "{} {} of {} updated, {word}",
        bar(counts.updated, counts.total),
        counts.updated,
        counts.total
    );
    if !busy.is_empty() {
        text.push_str(": ");
        text.push_str(&busy.join(", "));
    }
    text.push('\n');
    text
}
