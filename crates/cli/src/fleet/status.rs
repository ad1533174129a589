//! `evenkeel status`: every pool with its progress, every node with what it waits for, and every readiness
//! rule.

use std::fmt::Write;

use anyhow::Result;
use evenkeel_api::fleet::machine_config_pool::{PoolStatus, condition};
use evenkeel_plan::fleet::coexistence::{Coexistence, CoexistenceReports, Half};
use evenkeel_plan::fleet::node::Node;
use evenkeel_plan::fleet::overview::{self, NodeProgress, PoolView};
use evenkeel_plan::fleet::pool::Assignment;
use serde_json::{Value, json};

use crate::Ending;
use crate::arguments::{Format, StatusArguments};
use crate::cluster::{self, Fleet};
use crate::fleet::leader;
use crate::output::{self, Paint};
use crate::readiness::rules::Rules;
use crate::table::{bar, lines, table};
use crate::windows::upgrade::WindowsNodes;

pub(crate) fn run(arguments: &StatusArguments) -> Result<Ending> {
    let seen = cluster::with(&arguments.cluster, async |cluster| {
        let fleet = cluster.fleet().await?;
        let rules = Rules::of(&cluster, &fleet.facts).await?;
        let reports = cluster.coexistence(&arguments.namespace).await?;
        let windows = WindowsNodes::of(&cluster).await?;
        let leaderless = leader::missing(&cluster).await;
        Ok((fleet, rules, windows, reports, leaderless))
    })?;
    let (fleet, rules, windows, reports, leaderless) = seen;
    let assignment = Assignment::of(&fleet.pools, &fleet.nodes);
    let mut views = overview::view(&fleet.pools, &assignment);
    let is_idle = is_idle(&reports);
    if is_idle {
        overview::idle(&mut views);
    }
    let text = match arguments.output.format {
        Format::Text => {
            let paint = Paint::for_stdout();
            let shown = windows
                .as_ref()
                .map(|it| it.text(&assignment.windows, paint));
            let leaderless = leaderless
                .as_ref()
                .map(|it| format!("{} {it}\n", paint.red("!")));
            leaderless.unwrap_or_default()
                + &told(&reports, paint)
                + &text(&fleet, &views, &assignment, is_idle, paint)
                + &shown.unwrap_or_default()
                + &rules.text(paint)
        }
        format => {
            let mut document = document(&fleet, &views, &assignment, is_idle);
            document["coexistence"] = json!(reports);
            document["leaderless"] = json!(leaderless);
            document["readiness"] = rules.document();
            document["windows"] =
                json!(windows.as_ref().map(|it| it.document(&assignment.windows)));
            output::document(&document, format)?
        }
    };
    output::print(text.as_bytes())?;
    let is_well = views.iter().zip(&fleet.statuses).all(|(view, status)| {
        view.nodes
            .iter()
            .all(|node| node.state == NodeProgress::Done)
            && problems(view, status).is_empty()
    });
    let windows = windows.is_none_or(|it| it.are_well(&assignment.windows));
    Ok(Ending::well_if(
        is_well && windows && rules.are_well() && leaderless.is_none(),
    ))
}

/// Whether pools and Linux nodes are left to OpenShift's operator.
pub(crate) fn is_idle(reports: &CoexistenceReports) -> bool {
    let half = Half::MachineConfig.word();
    reports.get(half).is_some_and(|it| it.idle)
}

/// What is wrong with a pool, for people.
pub(crate) fn problems(view: &PoolView<'_>, status: &PoolStatus) -> Vec<String> {
    let mut problems: Vec<String> = view.pool.problems.iter().map(ToString::to_string).collect();
    problems.extend(view.rollout.stopped.clone());
    for (node, others) in &view.torn {
        problems.push(format!(
            "node {node} also belongs to pool {}",
            others.join(" and ")
        ));
    }
    let told = status.condition(condition::RENDER_DEGRADED);
    let told = told.filter(|it| it.status == "True");
    problems.extend(told.map(|it| it.message.clone()));
    problems
}

/// The state of a pool, in few words, where all of them may be left to OpenShift's operator.
fn state(view: &PoolView<'_>, status: &PoolStatus, is_idle: bool) -> &'static str {
    if is_idle { "idle" } else { word(view, status) }
}

/// The state of a pool, in few words.
pub(crate) fn word(view: &PoolView<'_>, status: &PoolStatus) -> &'static str {
    let counts = view.counts;
    let is_closed = view.pool.budget.closed.is_some();
    if view.pool.budget.paused && counts.updated < counts.total {
        "paused"
    } else if !problems(view, status).is_empty() || counts.degraded > 0 {
        "degraded"
    } else if view.pool.target.is_none() {
        "no configuration"
    } else if counts.updated < counts.total && counts.moving == 0 && is_closed {
        "waiting for a window"
    } else if counts.updated < counts.total {
        "rolling out"
    } else {
        "updated"
    }
}

/// The coexistence with OpenShift's own operators, where they are.
fn told(reports: &CoexistenceReports, paint: Paint) -> String {
    let present = reports
        .values()
        .filter(|it| it.coexistence() != Some(Coexistence::Absent));
    present.fold(String::new(), |mut text, report| {
        let mark = if report.idle {
            paint.red("! ")
        } else {
            String::new()
        };
        let _ = writeln!(text, "{mark}{}", report.message);
        text
    })
}

fn text(
    fleet: &Fleet,
    views: &[PoolView<'_>],
    assignment: &Assignment<'_>,
    is_idle: bool,
    paint: Paint,
) -> String {
    let mut pools = table(
        &[
            "POOL",
            "STATE",
            "UPDATED",
            "PROGRESS",
            "UNAVAILABLE",
            "CONFIGURATION",
        ],
        paint,
    );
    for (view, status) in views.iter().zip(&fleet.statuses) {
        let counts = view.counts;
        pools.add_row([
            view.pool.name.clone(),
            state(view, status, is_idle).to_owned(),
            format!("{} of {}", counts.updated, counts.total),
            bar(counts.updated, counts.total),
            format!("{} (at most {})", counts.unavailable, view.rollout.limit),
            view.pool.target.clone().unwrap_or_default(),
        ]);
    }
    let mut text = if views.is_empty() {
        "There are no pools.\n".to_owned()
    } else {
        lines(&pools)
    };
    for (view, status) in views.iter().zip(&fleet.statuses) {
        for problem in problems(view, status) {
            let _ = writeln!(
                text,
                "{} pool {}: {problem}",
                paint.red("!"),
                view.pool.name
            );
        }
    }
    let all: usize = views.iter().map(|it| it.nodes.len()).sum();
    let mut nodes = table(&["NODE", "POOL", "STATE", "WAITS FOR"], paint);
    let mut done = 0;
    for view in views {
        for node in &view.nodes {
            if node.state == NodeProgress::Done && node.waits_for.is_empty() {
                done += 1;
                continue;
            }
            nodes.add_row([
                node.node.name.clone(),
                view.pool.name.clone(),
                node.state.to_string(),
                node.waits_for.clone(),
            ]);
        }
    }
    if done < all {
        text.push('\n');
        text.push_str(&lines(&nodes));
    }
    let _ = writeln!(text, "\n{done} of {all} nodes in pools are up to date.");
    for (nodes, what) in [
        (&assignment.others, "in no pool"),
        (&assignment.windows, "that run Windows"),
    ] {
        if !nodes.is_empty() {
            let _ = writeln!(text, "Nodes {what}: {}.", nodes.len());
        }
    }
    text
}

fn names(nodes: &[&Node]) -> Vec<String> {
    nodes.iter().map(|node| node.name.clone()).collect()
}

fn document(
    fleet: &Fleet,
    views: &[PoolView<'_>],
    assignment: &Assignment<'_>,
    is_idle: bool,
) -> Value {
    let pools = views.iter().zip(&fleet.statuses);
    let pools: Vec<Value> = pools
        .map(|(view, status)| {
            let mut pool = pool_document(view, status);
            pool["state"] = json!(state(view, status, is_idle));
            pool
        })
        .collect();
    json!({
        "pools": pools,
        "nodesWithoutPool": names(&assignment.others),
        "windowsNodes": names(&assignment.windows),
    })
}

/// One pool as programs read it.
pub(crate) fn pool_document(view: &PoolView<'_>, status: &PoolStatus) -> Value {
    let counts = view.counts;
    let nodes = view.nodes.iter().map(|it| {
        json!({
            "node": it.node.name,
            "state": it.state.to_string(),
            "waitsFor": it.waits_for,
            "current": it.node.current_config,
            "desired": it.node.desired_config,
        })
    });
    json!({
        "pool": view.pool.name,
        "state": word(view, status),
        "paused": view.pool.budget.paused,
        "closed": view.pool.budget.closed.map(|it| it.to_string()),
        "override": view.pool.policy.notice(),
        "configuration": view.pool.target,
        "limit": view.rollout.limit,
        "total": counts.total,
        "updated": counts.updated,
        "unavailable": counts.unavailable,
        "degraded": counts.degraded,
        "problems": problems(view, status),
        "nodes": nodes.collect::<Vec<_>>(),
    })
}
