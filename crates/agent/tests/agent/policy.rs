//! An agent changes its own Node and no other, and there only what is an agent's.

use std::time::Duration;

use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::kubeconfig::Kubeconfig;
use evenkeel_testbed::process::output;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::scene::{ASKED, DESIRED, ON_DRIFT, STATE, cluster};

async fn patch(client: &Client, node: &str, patch: Value) -> kube::Result<Node> {
    let api: Api<Node> = Api::all(client.clone());
    api.patch(node, &PatchParams::default(), &Patch::Merge(patch))
        .await
}

fn annotation(name: &str) -> Value {
    json!({ "metadata": { "annotations": { name: "x" } } })
}

/// Nodes `names`, made by the administrator, and the login of the agent of the first.
async fn nodes(names: &[&str]) -> Result<(Client, Client)> {
    let admin = cluster()?.admin_kubeconfig().client().await?;
    for name in names {
        let node = json!({
            "metadata": { "name": name, "labels": { "zone": "a" }, "annotations": { "theirs": "x" } },
            "spec": { "taints": [{ "key": "theirs", "effect": "NoSchedule" }] },
        });
        let node: Node = serde_json::from_value(node).doing(|| "no such node")?;
        Api::all(admin.clone())
            .create(&PostParams::default(), &node)
            .await
            .doing(|| "cannot make a node")?;
    }
    let agent = cluster()?
        .kubeconfig_for_user(
            &format!("evenkeel:agent:{}", names[0]),
            &["evenkeel:agents"],
        )?
        .client()
        .await?;
    let what = "the policy to be in force";
    until_async(what, Duration::from_secs(30), async || {
        Ok(match patch(&agent, names[1], annotation(STATE)).await {
            Err(error) if error.to_string().contains("only change its own Node") => Look::Found(()),
            other => Look::NotYet(format!("{:?}", other.map(|_| "allowed"))),
        })
    })
    .await?;
    Ok((admin, agent))
}

#[tokio::test]
async fn an_agent_cannot_change_another_node_or_what_is_not_an_agents() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let (_, agent) = nodes(&["own-1", "other-1"]).await?;
    for allowed in [
        annotation(STATE),
        annotation(ASKED),
        annotation("evenkeel.dev/cordoned-by"),
        json!({ "spec": { "unschedulable": true } }),
        json!({ "spec": { "unschedulable": null } }),
    ] {
        patch(&agent, "own-1", allowed.clone())
            .await
            .doing(|| format!("an agent may {allowed}"))?;
    }
    let taints = |keys: &[&str]| {
        let taints: Vec<_> = keys
            .iter()
            .map(|key| json!({ "key": key, "effect": "NoSchedule" }))
            .collect();
        json!({ "spec": { "taints": taints } })
    };
    let api: Api<Node> = Api::all(agent.clone());
    let own = api.get("own-1").await.doing(|| "cannot read")?;
    let spec = own.spec.unwrap_or_default();
    let mut keys: Vec<_> = spec
        .taints
        .iter()
        .flatten()
        .map(|it| it.key.as_str())
        .collect();
    keys.push("kubernetes.io/MetaReadiness");
    let ours = taints(&keys);
    patch(&agent, "own-1", ours)
        .await
        .doing(|| "an agent may set our taint")?;

    for (denied, words) in [
        (annotation(DESIRED), "annotations that are an agent's"),
        (annotation(ON_DRIFT), "annotations that are an agent's"),
        (annotation("theirs-too"), "annotations that are an agent's"),
        (
            json!({ "metadata": { "annotations": { "theirs": null } } }),
            "annotations that are an agent's",
        ),
        (
            json!({ "metadata": { "labels": { "zone": "b" } } }),
            "labels",
        ),
        (
            json!({ "metadata": { "finalizers": ["a.b/c"] } }),
            "finalizers",
        ),
        (json!({ "spec": { "providerID": "x://y" } }), "spec"),
        (
            json!({ "spec": { "podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"] } }),
            "spec",
        ),
        (taints(&[]), "taints of ours"),
        (taints(&[&keys[..], &["more"]].concat()), "taints of ours"),
    ] {
        let answer = patch(&agent, "own-1", denied.clone()).await;
        let error = answer
            .map(|_| ())
            .expect_err(&format!("{denied} was allowed"));
        assert!(error.to_string().contains(words), "{denied}: {error}");
    }
    for denied in [
        annotation(STATE),
        json!({ "spec": { "unschedulable": true } }),
    ] {
        let answer = patch(&agent, "other-1", denied.clone()).await;
        let error = answer
            .map(|_| ())
            .expect_err(&format!("{denied} was allowed"));
        assert!(
            error.to_string().contains("only change its own Node"),
            "{error}"
        );
    }
    let delete = DeleteParams::default();
    assert!(api.delete("other-1", &delete).await.is_err());
    assert!(
        api.patch_status(
            "own-1",
            &PatchParams::default(),
            &Patch::Merge(json!({ "status": { "phase": "x" } }))
        )
        .await
        .is_err()
    );
    api.delete("own-1", &delete)
        .await
        .doing(|| "an agent may delete its own Node")?;
    Ok(())
}

#[tokio::test]
async fn an_agent_reads_and_makes_only_what_its_role_says() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let (_, agent) = nodes(&["own-2", "other-2"]).await?;
    let list = ListParams::default();
    assert!(Api::<Pod>::all(agent.clone()).list(&list).await.is_err());
    assert!(Api::<Node>::all(agent.clone()).list(&list).await.is_ok());
    let leases: Api<Lease> = Api::namespaced(agent, "node-extensions");
    for (name, allowed) in [
        ("own-2.evenkeel-agent", true),
        ("other-2.evenkeel-agent", false),
    ] {
        let lease = serde_json::from_value(json!({ "metadata": { "name": name } }))
            .doing(|| "no such lease")?;
        let made = leases.create(&PostParams::default(), &lease).await;
        assert_eq!(made.is_ok(), allowed, "{name}: {made:?}");
    }
    Ok(())
}

/// The same login with `token` in the place of its certificate.
fn with_token(token: &str) -> Result<Kubeconfig> {
    let scratch = Scratch::new("token")?;
    let path = scratch.path().join("kubeconfig");
    let admin = cluster()?.admin_kubeconfig().as_yaml()?;
    let mut config: Value = serde_json::from_str(&admin).doing(|| "no kubeconfig")?;
    config["users"][0]["user"] = json!({ "token": token.trim() });
    std::fs::write(&path, config.to_string()).doing(|| "cannot write a kubeconfig")?;
    Kubeconfig::read(&path)
}

#[tokio::test]
async fn an_agent_in_a_pod_is_the_agent_of_the_node_that_its_token_names() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let (admin, _) = nodes(&["own-3", "other-3"]).await?;
    let pod = json!({
        "metadata": { "name": "agent-on-own-3" },
        "spec": {
            "nodeName": "own-3",
            "serviceAccountName": "evenkeel-agent",
            "containers": [{ "name": "agent", "image": "agent" }],
        },
    });
    let pod: Pod = serde_json::from_value(pod).doing(|| "no such pod")?;
    Api::namespaced(admin, "evenkeel")
        .create(&PostParams::default(), &pod)
        .await
        .doing(|| "cannot make the agent's pod")?;
    let ask = ["create", "token", "evenkeel-agent", "--namespace=evenkeel"];
    let bound = [
        "--bound-object-kind=Pod",
        "--bound-object-name=agent-on-own-3",
    ];
    let bound = cluster()?.kubectl(&[&ask[..], &bound[..]].concat())?;
    let bound = with_token(&bound)?.client().await?;
    patch(&bound, "own-3", annotation(STATE))
        .await
        .doing(|| "an agent in a pod may change its own Node")?;
    let loose = with_token(&cluster()?.kubectl(&ask)?)?.client().await?;
    for (client, node) in [(&bound, "other-3"), (&loose, "own-3")] {
        let answer = patch(client, node, annotation(STATE)).await;
        let error = answer.map(|_| ()).expect_err("this was allowed");
        assert!(
            error.to_string().contains("only change its own Node"),
            "{error}"
        );
    }
    Ok(())
}

#[test]
fn the_agent_understands_what_the_chart_gives_it() -> Result<()> {
    if need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    let chart = Chart::render("evenkeel", &[])?;
    let pod = &chart.object("DaemonSet", "evenkeel-agent")?["spec"]["template"]["spec"];
    let arguments = pod["containers"][0]["args"].as_array();
    let arguments = arguments.into_iter().flatten().filter_map(Value::as_str);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_evenkeel-agent"));
    command
        .args(arguments)
        .args(["--kubeconfig", "/no/such/file"])
        .env("NODE_NAME", "n1");
    let ended = output(&mut command, &[])?;
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("/no/such/file"), "{said}");
    assert_eq!(ended.status.code(), Some(1), "{said}");
    Ok(())
}
