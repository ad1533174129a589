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
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::scene::{ASKED, DESIRED, ON_DRIFT, STATE, VOUCHER, cluster};

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

/// Covers S05.
#[tokio::test]
async fn an_agent_cannot_change_another_node_or_what_is_not_an_agents() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let (_, agent) = nodes(&["own-1", "other-1"]).await?;
    for allowed in [
        annotation(STATE),
        annotation(ASKED),
        json!({ "metadata": { "annotations": { "evenkeel.dev/cordoned-by": "agent" } } }),
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
    let what = "an agent to set our taint";
    let keys = until_async(what, Duration::from_secs(30), async || {
        let own = api.get("own-1").await.doing(|| "cannot read")?;
        let mut all = own.spec.and_then(|it| it.taints).unwrap_or_default();
        all.push(Taint {
            key: "kubernetes.io/MetaReadiness".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        });
        // Somebody else may have changed the others meanwhile, which would be put back by this.
        let set = patch(&agent, "own-1", json!({ "spec": { "taints": all } })).await;
        Ok(match set {
            Ok(_) => Look::Found(all.into_iter().map(|it| it.key).collect::<Vec<_>>()),
            Err(error) => Look::NotYet(error.to_string()),
        })
    })
    .await?;
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();

    for (denied, words) in [
        (annotation(DESIRED), "annotations that agents own"),
        (annotation(VOUCHER), "annotations that agents own"),
        (annotation(ON_DRIFT), "annotations that agents own"),
        (annotation("theirs-too"), "annotations that agents own"),
        (
            json!({ "metadata": { "annotations": { "theirs": null } } }),
            "annotations that agents own",
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
        (
            taints(&[]),
            "taints other than node.kubernetes.io/unschedulable",
        ),
        (
            taints(&[&keys[..], &["more"]].concat()),
            "taints other than node.kubernetes.io/unschedulable",
        ),
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
    // Its own neither: registered anew, it would be without what an administrator set.
    let error = api.delete("own-1", &delete).await.map(|_| ());
    let error = error.expect_err("an agent deleted its own Node");
    assert!(error.to_string().contains("orbidden"), "{error}");
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
    let make = async |name: &str| -> Result<kube::Result<Lease>> {
        let lease = serde_json::from_value(json!({ "metadata": { "name": name } }))
            .doing(|| "no such lease")?;
        Ok(leases.create(&PostParams::default(), &lease).await)
    };
    let mut tries = 0;
    let what = "the policy for Leases to be in force";
    until_async(what, Duration::from_secs(30), async || {
        tries += 1;
        Ok(match make(&format!("other-2.try-{tries}")).await? {
            Err(_) => Look::Found(()),
            Ok(_) => Look::NotYet("it was allowed".to_owned()),
        })
    })
    .await?;
    for (name, allowed) in [
        ("own-2.evenkeel-agent", true),
        ("other-2.evenkeel-agent", false),
    ] {
        let made = make(name).await?;
        assert_eq!(made.is_ok(), allowed, "{name}: {made:?}");
    }
    Ok(())
}

/// Covers S13.
#[tokio::test]
async fn no_agent_or_kubelet_writes_a_lease_of_a_node_whose_name_begins_like_its_own() -> Result<()>
{
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let (admin, _) = nodes(&["twin", "twin.b"]).await?;
    let agent = |node: &str| (format!("evenkeel:agent:{node}"), "evenkeel:agents");
    let kubelet = |node: &str| (format!("system:node:{node}"), "system:nodes");
    let lease = |name: &str, holder: &str| -> Result<Lease> {
        let lease = json!({ "metadata": { "name": name }, "spec": { "holderIdentity": holder } });
        serde_json::from_value(lease).doing(|| "no such lease")
    };
    let all = [
        "twin",
        "twin.b",
        "twin.x",
        "twin.b.x",
        "twin.evenkeel-agent",
        "twin.b.evenkeel-agent",
        "twin.b.c.evenkeel-agent",
    ];
    let theirs: Api<Lease> = Api::namespaced(admin, "node-extensions");
    for (who, own) in [
        (agent("twin"), Some("twin.evenkeel-agent")),
        (agent("twin.b"), Some("twin.b.evenkeel-agent")),
        (kubelet("twin"), None),
        (kubelet("twin.b"), None),
    ] {
        let (user, group) = &who;
        let client = cluster()?
            .kubeconfig_for_user(user, &[group])?
            .client()
            .await?;
        let leases: Api<Lease> = Api::namespaced(client.clone(), "node-extensions");
        let mut tries = 0;
        until_async(
            "the policy for Leases",
            Duration::from_secs(30),
            async || {
                tries += 1;
                let other = lease(&format!("other.try-{tries}"), "other")?;
                Ok(match leases.create(&PostParams::default(), &other).await {
                    Err(_) => Look::Found(()),
                    Ok(_) => Look::NotYet("it was allowed".to_owned()),
                })
            },
        )
        .await?;
        for name in all {
            let made = leases
                .create(&PostParams::default(), &lease(name, "twin.b")?)
                .await;
            assert_eq!(
                made.is_ok(),
                own == Some(name),
                "{user} makes {name}: {made:?}"
            );
            if own == Some(name) {
                theirs
                    .delete(name, &DeleteParams::default())
                    .await
                    .doing(|| "cannot delete")?;
            }
            // One that is there already is not theirs to renew either.
            let made = theirs
                .create(&PostParams::default(), &lease(name, "twin")?)
                .await;
            let mut there = made.doing(|| "the administrator may")?;
            there.spec.get_or_insert_default().holder_identity = Some("twin.b".to_owned());
            let renewed = leases.replace(name, &PostParams::default(), &there).await;
            assert_eq!(
                renewed.is_ok(),
                own == Some(name),
                "{user} renews {name}: {renewed:?}"
            );
            let gone = leases.delete(name, &DeleteParams::default()).await;
            assert!(gone.is_err(), "{user} deletes {name}");
            theirs
                .delete(name, &DeleteParams::default())
                .await
                .doing(|| "cannot delete")?;
        }
        if own.is_none() {
            // Where a kubelet's own Lease is, the other's is not its own either.
            let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
            for name in ["twin", "twin.b"] {
                let made = leases
                    .create(&PostParams::default(), &lease(name, name)?)
                    .await;
                let is_own = *user == format!("system:node:{name}");
                assert_eq!(made.is_ok(), is_own, "{user} makes {name}: {made:?}");
            }
        }
    }
    Ok(())
}

/// What keeps pods away from a node.
const DOWN: &str = r#"{"spec":{"unschedulable":true}}"#;
/// Where somebody approves a certificate.
const APPROVAL: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests/csr-1/approval";

/// Covers H13.
#[tokio::test]
async fn the_agent_of_a_windows_node_says_what_it_runs_and_may_do_nothing_else() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let (_, agent) = nodes(&["own-4", "other-4"]).await?;
    for said in [
        "windowsmachineconfig.openshift.io/version",
        "evenkeel.dev/current-services",
        "evenkeel.dev/missing-files",
    ] {
        let allowed = patch(&agent, "own-4", annotation(said)).await;
        allowed.doing(|| format!("an agent may say {said}"))?;
        let denied = patch(&agent, "other-4", annotation(said)).await;
        assert!(denied.is_err(), "{said} was said on another Node");
    }
    for told in [
        "windowsmachineconfig.openshift.io/desired-version",
        "evenkeel.dev/desired-services",
        "evenkeel.dev/instance",
        "machineconfiguration.openshift.io/lastAppliedDrain",
        "evenkeel.dev/drain-granted",
        "evenkeel.dev/autoscaler-annotations",
        "karpenter.sh/do-not-disrupt",
    ] {
        let denied = patch(&agent, "own-4", annotation(told)).await;
        let error = denied.map(|_| ()).expect_err(&format!("{told} was said"));
        assert!(
            error.to_string().contains("annotations that agents own"),
            "{error}"
        );
    }
    // Both logins that it ever has: its own, and the one of ten minutes for bootstrap and cleanup.
    let scratch = Scratch::new("tries")?;
    let own = cluster()?.kubeconfig_for_user("evenkeel:agent:own-4", &["evenkeel:agents"])?;
    let ask = ["create", "token", "evenkeel-agent", "--namespace=evenkeel"];
    let first = with_token(&cluster()?.kubectl(&ask)?)?;
    let request = scratch.path().join("lease.json");
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "own-4.evenkeel-agent", "namespace": "default" },
    });
    std::fs::write(&request, lease.to_string()).doing(|| "cannot write")?;
    let lease = request.display().to_string();
    for (who, login) in [("its own login", own), ("the first login", first)] {
        let path = scratch.path().join("kubeconfig");
        login.write(&path)?;
        let tries = |words: &[&str]| -> Result<(bool, String)> {
            let mut kubectl = std::process::Command::new(cluster()?.kubectl_program());
            kubectl.arg("--kubeconfig").arg(&path).args(words);
            let ended = output(&mut kubectl, &[])?;
            let said = String::from_utf8_lossy(&ended.stderr).into_owned();
            Ok((ended.status.success(), said))
        };
        for allowed in [
            &["get", "nodes"][..],
            &["get", "configmaps", "--namespace=evenkeel"],
        ] {
            let (done, said) = tries(allowed)?;
            assert!(done, "{who} may {allowed:?}: {said}");
        }
        for denied in [
            &["get", "secrets", "--namespace=evenkeel"][..],
            &["get", "configmaps", "--namespace=kube-system"],
            &[
                "create",
                "configmap",
                "services-9-9-9-abcdef0",
                "--namespace=evenkeel",
            ],
            &["delete", "configmap", "--all", "--namespace=evenkeel"],
            &["get", "pods", "--all-namespaces"],
            &["create", "namespace", "theirs"],
            &["create", "-f", &lease],
            &["get", "leases", "--namespace=kube-node-lease"],
            &["get", "csr"],
            &["replace", "--raw", APPROVAL, "-f", &lease],
            &[
                "create",
                "token",
                "evenkeel-operator",
                "--namespace=evenkeel",
            ],
            &[
                "create",
                "clusterrolebinding",
                "x",
                "--clusterrole=cluster-admin",
                "--user=x",
            ],
            &["get", "nodes", "--as=system:admin"],
            &["get", "--raw", "/api/v1/nodes/own-4/proxy/logs/"],
            &["delete", "node", "other-4"],
            &["delete", "node", "own-4"],
            &["patch", "node", "other-4", "-p", DOWN],
            &["label", "node", "own-4", "zone=b", "--overwrite"],
            &["taint", "node", "own-4", "theirs-"],
        ] {
            let (done, said) = tries(denied)?;
            assert!(!done, "{who}: {denied:?} was allowed");
            let words = ["orbidden", "denied request", "ValidatingAdmissionPolicy"];
            let is_refused = words.iter().any(|it| said.contains(it));
            assert!(is_refused, "{who}: {denied:?} failed otherwise: {said}");
        }
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
