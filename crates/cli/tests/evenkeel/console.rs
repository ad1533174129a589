//! What people see of a fleet, and what they may do to it, on a real control plane with the roles that
//! the chart has for them.

use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::promise::kept;
use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::{Doing, Result, need};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::fleet::{CURRENT, DESIRED, Fleet, REASON, STATE, machine_config};
use super::scene::{Said, program};

const REGISTRIES: &str = "/etc/containers/registries.conf";

#[test]
fn status_tells_every_pool_and_what_each_node_waits_for() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let fleet = Fleet::start()?;
    let said = fleet.says("viewer", &["status"])?;
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{said:?}");
    assert!(said.out.starts_with("There are no pools.\n"), "{said:?}");

    fleet.pool("worker", "rendered-worker-2", |_| {})?;
    for name in ["a", "b", "c"] {
        fleet.node(name, "worker", "rendered-worker-1")?;
    }
    fleet.node("d", "other", "x")?;
    fleet.annotate(
        "a",
        &[
            (CURRENT, "rendered-worker-2"),
            (DESIRED, "rendered-worker-2"),
        ],
    )?;
    fleet.annotate(
        "b",
        &[
            (DESIRED, "rendered-worker-2"),
            (
                "machineconfiguration.openshift.io/desiredDrain",
                "drain-rendered-worker-2",
            ),
            ("evenkeel.dev/cordoned-by", "drain"),
            ("evenkeel.dev/drain-granted", "2026-01-01T00:00:00Z"),
        ],
    )?;
    let said = fleet.says("viewer", &["status"])?;
    assert_eq!((said.code, said.err.as_str()), (Some(2), ""), "{said:?}");
    for line in [
        "POOL    STATE        UPDATED  PROGRESS                UNAVAILABLE    CONFIGURATION\n",
        "worker  rolling out  1 of 3   [######--------------]  1 (at most 1)  rendered-worker-2\n",
        "b     worker  Draining  its pods to leave (since 2026-01-01T00:00:00Z)\n",
        "c     worker  Waiting   node b is unavailable and maxUnavailable is 1\n",
        "\n1 of 3 nodes in pools are up to date.\nNodes in no pool: 1.\n",
    ] {
        assert!(said.out.contains(line), "{line} is not in\n{}", said.out);
    }
    let said = fleet.says("viewer", &["explain", "c", "--wait", "0s"])?;
    let line = "  rollout of pool worker: Waiting, node b is unavailable and maxUnavailable is 1\n";
    assert!(said.out.contains(line), "{line} is not in\n{}", said.out);
    let explained = |node: &str| -> Result<Value> {
        let said = fleet.says("viewer", &["explain", node, "--wait", "0s", "-o", "json"])?;
        Ok(said.json()["rollout"].clone())
    };
    assert_eq!(
        explained("b")?,
        json!({
            "pool": "worker", "state": "Draining",
            "waitsFor": "its pods to leave (since 2026-01-01T00:00:00Z)",
        })
    );
    assert_eq!(explained("d")?, Value::Null);
    let json = fleet.says("viewer", &["status", "-o", "json"])?.json();
    assert_eq!(json["leaderless"], Value::Null);
    assert_eq!(json["pools"][0]["updated"], 1);
    assert_eq!(json["pools"][0]["nodes"][1]["state"], "Draining");
    assert_eq!(json["nodesWithoutPool"], json!(["d"]));
    assert!(
        fleet
            .says("viewer", &["status", "-o", "yaml"])?
            .out
            .contains("pool: worker\n")
    );

    fleet.annotate("b", &[(STATE, "Degraded"), (REASON, "disk full")])?;
    let said = fleet.says("viewer", &["status"])?;
    assert!(said.out.contains("worker  degraded"), "{}", said.out);
    assert!(
        said.out
            .contains("rollout stopped: nodes fail with rendered-worker-2"),
        "{}",
        said.out
    );
    assert!(
        said.out.contains("b     worker  Degraded  disk full\n"),
        "{}",
        said.out
    );

    // Without a login, without rights, and with another context.
    let said = fleet.says("nobody", &["status"])?;
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{said:?}");
    assert!(
        said.err.contains("you are not allowed to list "),
        "{}",
        said.err
    );
    assert!(
        said.err.contains("ClusterRole evenkeel-viewer"),
        "{}",
        said.err
    );
    assert!(
        said.err.contains("User \"nobody\" cannot list"),
        "{}",
        said.err
    );
    let said = fleet.says("viewer", &["status", "--context", "nowhere"])?;
    assert_eq!(said.code, Some(1));
    assert!(
        said.err.contains("context \"nowhere\" does not exist"),
        "{}",
        said.err
    );
    let said: Said = program()
        .args(["status", "--kubeconfig", "/no/such/file"])
        .output()
        .doing(|| "cannot run")?
        .into();
    assert!(
        said.err.contains("cannot use the kubeconfig /no/such/file"),
        "{}",
        said.err
    );

    // The same program as a plugin of kubectl.
    let plugin = fleet.path("kubectl-evenkeel");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_evenkeel"), &plugin).doing(|| "cannot link")?;
    let folder = plugin
        .parent()
        .map(std::path::Path::to_owned)
        .unwrap_or_default();
    let mut kubectl = std::process::Command::new(fleet.control_plane.kubectl_program());
    let typed = kubectl
        .args(["evenkeel", "status", "-o", "json"])
        .env("KUBECONFIG", fleet.login("viewer")?)
        .env("PATH", &folder)
        .output();
    let typed: Said = typed.doing(|| "cannot run kubectl")?.into();
    assert_eq!(typed.json()["pools"][0]["pool"], "worker");
    let help = std::process::Command::new(&plugin)
        .args(["rollout", "--help"])
        .output();
    let help: Said = help.doing(|| "cannot run")?.into();
    assert!(
        help.out.contains("Usage: kubectl evenkeel rollout"),
        "{}",
        help.out
    );
    Ok(())
}

/// Covers X02.
#[test]
fn a_plan_for_a_pool_shows_the_difference_who_it_disrupts_how_and_in_which_order() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let fleet = Fleet::start()?;
    let config = |search: &str| {
        let text = format!("unqualified-search-registries = [{search}]\n");
        machine_config("50-registries", "worker", &[(REGISTRIES, &text)])
    };
    let base = machine_config("00-base", "worker", &[("/etc/base", "base\n")]);
    fleet.apply(&base)?;
    fleet.apply(&config("\"quay.io\""))?;
    // What the pool has now, rendered by the same program, and what one node still runs.
    let sources = [base.clone(), config("\"quay.io\"")];
    let files: Vec<String> = sources
        .iter()
        .enumerate()
        .map(|(at, source)| fleet.give(&format!("source-{at}.json"), source))
        .collect::<Result<_>>()?;
    let words = [
        "render", "--pool", "worker", "-o", "json", "-f", &files[0], "-f", &files[1],
    ];
    let said: Said = program()
        .args(words)
        .output()
        .doing(|| "cannot run")?
        .into();
    let mut rendered = said.json();
    let now = rendered["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    rendered["metadata"]["labels"] = json!({ "evenkeel.dev/rendered": "true" });
    fleet.apply(&rendered)?;
    let old = machine_config(
        "rendered-worker-old",
        "nobody",
        &[(REGISTRIES, "x = 1\n"), ("/etc/base", "older\n")],
    );
    fleet.apply(&old)?;
    fleet.pool("worker", &now, |pool| {
        pool["spec"]["maxUnavailable"] = json!(2);
    })?;
    for name in ["n1", "n2", "n3"] {
        fleet.node(name, "worker", &now)?;
    }
    fleet.node("n4", "worker", "rendered-worker-old")?;

    let new = config("\"quay.io\", \"docker.io\"");
    let path = fleet.give("new.json", &new)?;
    let before = fleet.kubectl(&[
        "get",
        "mc,mcp",
        "-o=jsonpath={.items[*].metadata.resourceVersion}",
    ])?;
    let plan = ["plan", "--pool", "worker", "-f", &path];
    let said = fleet.says("viewer", &plan)?;
    assert_eq!((said.code, said.err.as_str()), (Some(2), ""), "{said:?}");
    for part in [
        "~ file /etc/containers/registries.conf: contents differ [reload]\n",
        "    +unqualified-search-registries = [\"quay.io\", \"docker.io\"]\n",
        "\nPool worker would roll out rendered-worker-",
        ": 4 nodes, at most 2 at once.\n",
        "reload (reload crio.service)\n",
        "reboot (drain, then reboot)\n",
    ] {
        assert!(said.out.contains(part), "{part} is not in\n{}", said.out);
    }
    let json = fleet
        .says("viewer", &[&plan[..], &["-o", "json"]].concat())?
        .json();
    for key in ["changes", "actions", "disruption"] {
        assert!(!json[key].is_null(), "{key}: {json}");
    }
    let rows = json["nodes"].as_array().cloned().unwrap_or_default();
    let seen: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {} {}", row["wave"], row["node"], row["disruption"]))
        .collect();
    assert_eq!(
        seen,
        [
            "1 \"n1\" \"reload\"",
            "1 \"n2\" \"reload\"",
            "2 \"n3\" \"reload\"",
            "2 \"n4\" \"reboot\"",
        ]
    );
    assert_eq!(json["actions"], json!(["reload crio.service"]));
    assert_eq!(json["outage"], Value::Null, "n4 goes elsewhere");

    // The same as a comment on a pull request, and what holds the request up: the example does both.
    let workflow = include_str!("../../../../examples/ci/pull-request.yaml");
    let example = workflow
        .lines()
        .find_map(|line| line.trim().strip_prefix("evenkeel "));
    let example = example.unwrap_or_default().replace("new.yaml", &path);
    let example = example.split_once(" > ").map_or("", |(words, _)| words);
    let words: Vec<&str> = example.split(' ').collect();
    let said = fleet.says("viewer", &words)?;
    assert_eq!(said.code, Some(1), "{said:?}");
    for part in [
        "### Pool worker: reload\n\n4 nodes, at most 2 at once, to `rendered-worker-",
        "| update | file /etc/containers/registries.conf | contents differ | reload |\n",
        "\n```diff\n",
        "| wave | node | current | disruption |\n",
        "| 2 | n4 | rendered-worker-old | reboot (drain, then reboot) |\n",
    ] {
        assert!(said.out.contains(part), "{part} is not in\n{}", said.out);
    }
    assert!(
        said.err
            .contains("--max-disruption allows drain, and node n4 needs reboot"),
        "{said:?}"
    );
    let words = [&plan[..], &["--max-disruption", "reboot"]].concat();
    assert_eq!(fleet.says("viewer", &words)?.code, Some(2));

    // Nothing changes: nothing to do, but for the node that is not there yet.
    let same = fleet.give("same.json", &config("\"quay.io\""))?;
    let said = fleet.says(
        "viewer",
        &["plan", "--pool", "worker", "-f", &same, "-o", "json"],
    )?;
    let json = said.json();
    assert_eq!((said.code, &json["configuration"]), (Some(2), &json!(now)));
    assert_eq!(json["changes"], json!([]));
    assert_eq!(json["nodes"].as_array().map(Vec::len), Some(1), "{json}");

    // A paused pool, one that there is not, and a configuration that a node may not go to.
    fleet.pool("worker", &now, |pool| pool["spec"]["paused"] = json!(true))?;
    let said = fleet.says("viewer", &plan)?;
    assert!(
        said.out
            .contains("The pool is paused: the rollout starts after"),
        "{}",
        said.out
    );
    let said = fleet.says("viewer", &["plan", "--pool", "gpu", "-f", &path])?;
    assert_eq!(said.code, Some(1));
    assert!(
        said.err
            .contains("pool gpu does not exist: the pools of this cluster are worker"),
        "{}",
        said.err
    );
    let mut refused = new.clone();
    refused["spec"]["fips"] = json!(true);
    let refused = fleet.give("refused.json", &refused)?;
    let said = fleet.says("viewer", &["plan", "--pool", "worker", "-f", &refused])?;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("fips"), "{}", said.err);
    let mut unnamed = new;
    unnamed["metadata"] = json!({});
    let unnamed = fleet.give("unnamed.json", &unnamed)?;
    let said = fleet.says("viewer", &["plan", "--pool", "worker", "-f", &unnamed])?;
    assert!(
        said.code == Some(1) && said.err.contains("name"),
        "{said:?}"
    );

    // It touched nothing (the pool was changed above, by us; Nodes change by themselves).
    let after = fleet.kubectl(&[
        "get",
        "mc",
        "-o=jsonpath={.items[*].metadata.resourceVersion}",
    ])?;
    assert!(before.starts_with(&after), "{before} and {after}");
    Ok(())
}

#[test]
fn a_rollout_is_watched_to_its_end_and_paused_by_who_may() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let fleet = Fleet::start()?;
    fleet.pool("worker", "rendered-worker-2", |_| {})?;
    fleet.node("a", "worker", "rendered-worker-1")?;
    fleet.node("b", "worker", "rendered-worker-1")?;
    let paused =
        |fleet: &Fleet| fleet.kubectl(&["get", "mcp", "worker", "-o=jsonpath={.spec.paused}"]);

    let said = fleet.says("viewer", &["rollout", "pause", "worker"])?;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(
        said.err
            .contains("you are not allowed to pause pool worker"),
        "{}",
        said.err
    );
    assert_ne!(paused(&fleet)?, "true");
    for (word, expected, now) in [
        (
            "pause",
            "Paused pool worker: no further node starts to update",
            "true",
        ),
        ("pause", "Pool worker is already paused", "true"),
        ("resume", "Resumed pool worker", "false"),
        ("resume", "Pool worker is not paused", "false"),
    ] {
        let said = fleet.says("editor", &["rollout", word, "worker"])?;
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(said.out.starts_with(expected), "{said:?}");
        assert_eq!(paused(&fleet)?, now);
    }

    // It says each step once, and ends by itself when the last node has arrived.
    let mut command = fleet.typed("viewer", &["rollout", "watch", "worker"])?;
    let log = fleet.path("watch.log");
    let out = std::fs::File::create(&log).doing(|| "cannot make a file")?;
    let mut watch = command.stdout(out).spawn().doing(|| "cannot start")?;
    let says = |line: &str| {
        until(line, Duration::from_mins(1), || {
            let text = std::fs::read_to_string(&log).doing(|| "no log")?;
            Ok(if text.contains(line) {
                Look::Found(())
            } else {
                Look::NotYet(text)
            })
        })
    };
    says("[--------------------] 0 of 2 updated, rolling out\n")?;
    fleet.annotate("a", &[(DESIRED, "rendered-worker-2"), (STATE, "Working")])?;
    says("0 of 2 updated, rolling out: a Updating\n")?;
    fleet.annotate("a", &[(CURRENT, "rendered-worker-2"), (STATE, "Done")])?;
    says("[##########----------] 1 of 2 updated, rolling out\n")?;
    fleet.annotate(
        "b",
        &[
            (DESIRED, "rendered-worker-2"),
            (CURRENT, "rendered-worker-2"),
        ],
    )?;
    let ended = until("the watch to end", Duration::from_mins(1), || {
        let ended = watch.try_wait().doing(|| "cannot wait")?;
        Ok(ended.map_or_else(|| Look::NotYet("it runs".to_owned()), Look::Found))
    })?;
    assert_eq!(ended.code(), Some(0));
    says("[####################] 2 of 2 updated, updated\n")?;

    // Stopped by a node that fails: 2, and why. By Ctrl-C: at once, with one sentence.
    fleet.pool("worker", "rendered-worker-3", |_| {})?;
    let is_at_once = |took: &Duration| *took < Duration::from_secs(5);
    kept("Ctrl-C ends a watch at once", is_at_once, || {
        let mut command = fleet.typed("viewer", &["rollout", "watch", "worker"])?;
        let mut watch = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .doing(|| "cannot start")?;
        let mut first = [0; 10];
        let out = watch.stdout.as_mut();
        out.map(|out| out.read_exact(&mut first))
            .transpose()
            .doing(|| "it says nothing")?;
        let start = Instant::now();
        let pid = watch.id().to_string();
        let kill = std::process::Command::new("kill")
            .args(["-INT", &pid])
            .status();
        assert!(kill.doing(|| "no kill")?.success());
        let said: Said = watch.wait_with_output().doing(|| "cannot wait")?.into();
        let took = start.elapsed();
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(
            said.err.contains("stopped watching; the rollout continues"),
            "{said:?}"
        );
        Ok(took)
    })?;
    fleet.annotate(
        "a",
        &[
            (DESIRED, "rendered-worker-3"),
            (STATE, "Degraded"),
            (REASON, "no space"),
        ],
    )?;
    let said = fleet.says("viewer", &["rollout", "watch", "worker"])?;
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("a (no space)"), "{said:?}");
    Ok(())
}

/// Covers K03.
#[test]
fn a_plan_for_the_only_node_that_takes_pods_says_that_every_workload_is_down() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let fleet = Fleet::start()?;
    let old = machine_config("00-base", "worker", &[("/etc/base", "old\n")]);
    fleet.apply(&old)?;
    let source = fleet.give("source.json", &old)?;
    let words = ["render", "--pool", "worker", "-o", "json", "-f", &source];
    let said: Said = program()
        .args(words)
        .output()
        .doing(|| "cannot run")?
        .into();
    let mut rendered = said.json();
    rendered["metadata"]["labels"] = json!({ "evenkeel.dev/rendered": "true" });
    fleet.apply(&rendered)?;
    let now = rendered["metadata"]["name"].as_str().unwrap_or_default();
    fleet.node("n1", "worker", now)?;
    fleet.node("cordoned", "other", now)?;
    fleet.node("control", "other", now)?;
    fleet.kubectl(&["cordon", "cordoned"])?;
    let taint = "node-role.kubernetes.io/control-plane=:NoSchedule";
    fleet.kubectl(&["taint", "node", "control", taint])?;
    fleet.pool("worker", now, |_| {})?;
    let new = machine_config("00-base", "worker", &[("/etc/base", "new\n")]);
    let new = fleet.give("new.json", &new)?;
    let plan = ["plan", "--pool", "worker", "-f", &new];
    let said = fleet.says("viewer", &plan)?;
    let outage = "node n1 is the only node that takes pods: while it is drained, every workload of the cluster is down";
    assert!(said.out.contains(outage), "{}", said.out);
    let json = fleet.says("viewer", &[&plan[..], &["-o", "json"]].concat())?;
    let told = json.json()["outage"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(told.starts_with(outage), "{told}");
    // Another node that takes pods, and nothing that needs a drain.
    fleet.kubectl(&["uncordon", "cordoned"])?;
    let said = fleet.says("viewer", &plan)?;
    assert!(!said.out.contains("every workload"), "{}", said.out);
    fleet.kubectl(&["cordon", "cordoned"])?;
    let said = fleet.says("viewer", &["plan", "--pool", "worker", "-f", &source])?;
    assert!(!said.out.contains("every workload"), "{}", said.out);
    Ok(())
}

/// Covers K03.
#[test]
fn status_says_that_nobody_goes_on_while_no_operator_leads() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let fleet = Fleet::start()?;
    fleet.kubectl(&["create", "namespace", "leaderless"])?;
    let lease = |holder: &str, renewed: String| {
        fleet.apply(&json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": "evenkeel-operator", "namespace": "leaderless" },
            "spec": { "holderIdentity": holder, "renewTime": renewed },
        }))
    };
    let long_ago = || "2026-01-01T00:00:00.000000Z".to_owned();
    let now = || {
        Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%S.000000Z")
            .to_string()
    };
    let words = "! no operator has been the leader since 2026-01-01T00:00:00Z: rollouts, drains and readiness do not make progress. Check `kubectl get pods --namespace leaderless`\n";
    for (holder, renewed, is_said) in [
        ("gone", long_ago(), true),
        ("lives", now(), false),
        ("", now(), true),
    ] {
        lease(holder, renewed)?;
        let said = fleet.says("viewer", &["status"])?;
        let is_told = said
            .out
            .starts_with("! no operator has been the leader since ");
        assert_eq!(
            (is_told, said.code == Some(2)),
            (is_said, is_said),
            "{said:?}"
        );
        assert!(holder != "gone" || said.out.starts_with(words), "{said:?}");
    }
    fleet
        .kubectl(&["delete", "namespace", "leaderless"])
        .map(|_| ())
}
