//! How long it takes to decide for a large fleet, each against its limit: `cargo bench -p evenkeel-plan`.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use evenkeel_api::machine::node_state::NodeState;
use evenkeel_api::names::label;
use evenkeel_api::windows::windows_pool::{UpdatePhase, UpdatingNode};
use evenkeel_plan::fleet::budget::{DisruptionBudget, MaxUnavailable, answer};
use evenkeel_plan::fleet::node::{Node, WindowsFacts};
use evenkeel_plan::fleet::pool::{Assignment, Pool};
use evenkeel_plan::fleet::{render, rollout};
use evenkeel_plan::windows::upgrade::{Backing, UpgradeContext};
use evenkeel_plan::windows::windows_pool::{self, Grant, WindowsPool};
use jiff::Timestamp;
use serde_json::json;

const NODES: usize = 5_000;
const WINDOWS_NODES: usize = 1_000;
const CONFIGS: usize = 200;
const FILES: usize = 2_000;
const ROUNDS: usize = 20;

fn main() -> ExitCode {
    let deciding = deciding();
    let rendering = rendering();
    let upgrading = upgrading();
    let fast = [
        within(
            "deciding who goes next, 5,000 nodes in one pool",
            deciding,
            Duration::from_millis(10),
        ),
        within(
            "rendering 200 MachineConfigs with 2,000 files",
            rendering,
            Duration::from_millis(200),
        ),
        within(
            "deciding who is upgraded next, 1,000 Windows nodes",
            upgrading,
            Duration::from_millis(5),
        ),
    ];
    if fast.iter().all(|fast| *fast) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn within(what: &str, took: Duration, limit: Duration) -> bool {
    let fast = took < limit;
    let verdict = if fast { "within" } else { "NOT within" };
    println!("{what}: {took:?}, {verdict} {limit:?}");
    fast
}

/// The median of many rounds.
fn median(mut round: impl FnMut()) -> Duration {
    let mut times: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            round();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[ROUNDS / 2]
}

/// All that one change of a Node makes the operator decide: whose each node is, who is told, what the
/// status says, and who of those that ask has leave.
fn deciding() -> Duration {
    let text = |text: String| Some(text);
    let nodes: Vec<Node> = (0..NODES)
        .map(|number| {
            let labels =
                (0..18).map(|it| (format!("feature.example.com/cpu-{it}"), format!("v{it}")));
            let own = [
                (label::ZONE.to_owned(), format!("z{}", number % 3)),
                ("node-role.kubernetes.io/worker".to_owned(), String::new()),
            ];
            let is_new = number % 4 == 0;
            let config = |is_new| format!("rendered-worker-{:032x}", usize::from(is_new));
            Node {
                name: format!("node-{:05}", number * 7919 % NODES),
                created: Timestamp::from_second(
                    i64::try_from(number * 31 % 1000).unwrap_or_default(),
                )
                .unwrap_or_default(),
                labels: labels.chain(own).collect(),
                ready: true,
                current_config: text(config(is_new)),
                desired_config: text(config(is_new || number % 40 == 1)),
                voucher: text(config(is_new || number % 40 == 1)),
                desired_drain: (number % 40 == 1).then(|| "drain-new".to_owned()),
                state: Some(NodeState::Done),
                ..Node::default()
            }
        })
        .collect();
    let spec = json!({
        "nodeSelector": { "matchLabels": { "node-role.kubernetes.io/worker": "" } },
        "maxUnavailable": "10%",
        "configuration": { "name": format!("rendered-worker-{:032x}", 1) },
    });
    let pools = [Pool::read(
        "worker",
        &BTreeMap::new(),
        &serde_json::from_value(spec).unwrap_or_default(),
    )];
    let budget = DisruptionBudget {
        max_unavailable: MaxUnavailable::Percent(10),
        ..DisruptionBudget::default()
    };
    median(|| {
        let all = Assignment::of(&pools, &nodes);
        let rollout = rollout::plan(&pools[0], &all.members[0]);
        assert!(!rollout.writes.is_empty(), "nobody is told");
        black_box(rollout::status(&pools[0], &rollout, &[], None));
        black_box(answer(budget, &all.members[0]));
    })
}

/// All that one change of a Node makes the operator decide in the middle of an upgrade, where a tenth may be down.
fn upgrading() -> Duration {
    let grant = |number: usize| Grant {
        version: format!("1.{number}.0-abc1234")
            .parse()
            .unwrap_or_else(|_| unreachable!("it is a version")),
        hash: format!("{number:064x}"),
    };
    let (old, new) = (grant(1), grant(2));
    let nodes: Vec<Node> = (0..WINDOWS_NODES)
        .map(|number| {
            let runs = if number % 2 == 0 { &old } else { &new };
            Node {
                name: format!("win-{:05}", number * 7919 % WINDOWS_NODES),
                ready: true,
                windows: Some(Box::new(WindowsFacts {
                    version: Some(runs.version.clone().into()),
                    current_services: Some(runs.hash.clone()),
                    desired_version: Some(runs.version.clone().into()),
                    desired_services: Some(runs.hash.clone()),
                    ..WindowsFacts::default()
                })),
                ..Node::default()
            }
        })
        .collect();
    let granted: Vec<UpdatingNode> = nodes
        .iter()
        .step_by(20)
        .map(|node| UpdatingNode {
            node: node.name.clone(),
            to: new.version.clone().into(),
            phase: UpdatePhase::Granted,
            ..UpdatingNode::default()
        })
        .collect();
    let backing = nodes.iter().map(|it| (it.name.clone(), Backing::Listed));
    let around = UpgradeContext {
        backing: backing.collect(),
        ..UpgradeContext::default()
    };
    let mut pool = WindowsPool::default();
    pool.budget.max_unavailable = MaxUnavailable::Percent(10);
    let all: Vec<&Node> = nodes.iter().collect();
    median(|| {
        let round = windows_pool::plan(&pool, Some(&new), &granted, &all, &around);
        assert_eq!(round.updating.len(), WINDOWS_NODES / 10, "not all begin");
        black_box(windows_pool::status(&pool, Some(&new), &round, None));
    })
}

fn rendering() -> Duration {
    let sources: Vec<(String, String)> = (0..CONFIGS)
        .map(|number| {
            let files: Vec<_> = (0..FILES / CONFIGS)
                .map(|file| {
                    let contents = format!("{number}-{file}-").repeat(40);
                    json!({
                        "path": format!("/etc/app-{number}/file-{file}.conf"), "mode": 420, "overwrite": true,
                        "contents": { "source": format!("data:,{contents}") },
                    })
                })
                .collect();
            let name = format!("{number:03}-config");
            let config = json!({
                "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
                "metadata": { "name": name },
                "spec": { "config": { "ignition": { "version": "3.2.0" }, "storage": { "files": files } } },
            });
            (name, config.to_string())
        })
        .collect();
    median(|| match render::render("worker", &sources) {
        Ok(rendered) => assert_eq!(rendered.config.files.len(), FILES),
        Err(problem) => unreachable!("{problem:?}"),
    })
}
