//! Rules that cannot be meant so, or cannot be followed: who made them is told, and nobody else.

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::{Doing, Result, need};
use serde_json::{Value, json};

use crate::scene::Scene;

fn valid(status: &Value) -> Value {
    let conditions = status["conditions"].as_array();
    let found = conditions.and_then(|all| all.iter().find(|it| it["type"] == "Valid"));
    found.cloned().unwrap_or_default()
}

/// Covers R01.
#[tokio::test]
async fn a_doubtful_rule_is_warned_of_and_what_cannot_be_watched_is_told_to_whom_it_concerns()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("doubt").await?;
    scene.prepare_readiness()?;
    let node = scene.start(scene.describe("n1")).await?;
    // Whoever wants a taint of somebody else is told at once which ones a rule may have.
    let other = json!({
        "apiVersion": "evenkeel.dev/v1alpha1", "kind": "NodeReadinessRule", "metadata": { "name": "other" },
        "spec": { "taint": { "key": "node.kubernetes.io/not-ready" }, "extensions": [{ "name": "a", "lease": {} }] },
    });
    let file = scene.scratch.path().join("other.json");
    std::fs::write(&file, other.to_string()).doing(|| "cannot write")?;
    let refused = scene
        .control_plane
        .kubectl(&["create", "-f", &file.display().to_string()]);
    let error = refused.expect_err("another taint").to_string();
    assert!(
        error.contains("spec.taint.key in body should match"),
        "{error}"
    );

    let lease = json!([{ "name": "dp", "lease": {} }]);
    let good = json!({ "extensions": lease, "dryRun": true });
    let every = json!({ "extensions": lease, "dryRun": true, "nodeSelector": {} });
    let missing = json!({ "apiVersion": "nowhere.example.com/v1", "kind": "Missing", "namespace": "node-extensions", "name": "{node}", "lease": ".lease" });
    let missing = json!({ "extensions": [{ "name": "m", "status": missing }], "dryRun": true });
    for (name, spec) in [("good", good), ("every", every), ("missing", missing)] {
        scene.rule(name, spec).await?;
    }
    let _operator = scene.operator(&["--rule-selector", &format!("place={}", scene.name)])?;
    let cannot = scene
        .rule_status("missing", |it| valid(it)["reason"] == "CannotWatch")
        .await?;
    let message = valid(&cannot)["message"].clone();
    assert_eq!(
        message,
        "cannot watch Missing in node-extensions: the cluster does not serve kind Missing of nowhere.example.com/v1"
    );
    let every = scene
        .rule_status("every", |it| valid(it)["reason"] == "Followed")
        .await?;
    let message = valid(&every)["message"].to_string();
    assert!(
        message.contains("spec: nodeSelector selects every node"),
        "{message}"
    );
    let note = scene.event(&scene.called("every"), "DoubtfulRule").await?;
    assert!(note.contains("nodeSelector selects every node"), "{note}");
    let good = scene
        .rule_status("good", |it| it["observedGeneration"] == 1)
        .await?;
    assert_eq!(valid(&good)["reason"], "Followed");
    assert_eq!(valid(&good)["message"], "");

    // What a node lists for itself is told on the node.
    let list = r#"[{"name": "m", "status": {"apiVersion": "elsewhere.example.com/v1", "kind": "Gone", "namespace": "node-extensions", "name": "{node}", "lease": ".lease"}, "affectsReadiness": false}]"#;
    let annotation =
        json!({ "metadata": { "annotations": { "evenkeel.dev/system-extensions": list } } });
    scene.patch(node.name(), &annotation).await?;
    let note = scene.event(node.name(), "CannotWatch").await?;
    assert!(
        note.contains("does not serve kind Gone of elsewhere.example.com/v1"),
        "{note}"
    );
    let good = scene.rule_status("good", |_| true).await?;
    assert_eq!(valid(&good)["reason"], "Followed");
    Ok(())
}

/// Covers S09.
#[tokio::test]
async fn a_probe_that_would_be_more_than_one_question_is_refused_by_the_api_server() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("lines").await?;
    scene.prepare_readiness()?;
    let rule =
        |probe: Value| json!({ "extensions": [{ "name": "a", "probe": probe }], "dryRun": true });
    for (name, field, probe) in [
        (
            "crlf",
            "path",
            json!({ "httpGet": { "port": 1, "path": "/x\r\nHost: other" } }),
        ),
        (
            "lf",
            "path",
            json!({ "httpGet": { "port": 1, "path": "/x\nA: b" } }),
        ),
        (
            "blank",
            "path",
            json!({ "httpGet": { "port": 1, "path": "/x HTTP/1.0" } }),
        ),
        (
            "nul",
            "path",
            json!({ "unixSocket": { "path": "/run/a\0b" } }),
        ),
        (
            "grpc",
            "service",
            json!({ "grpc": { "port": 1, "service": "a\r\nb" } }),
        ),
        (
            "unit",
            "name",
            json!({ "service": { "name": "a\tb.service" } }),
        ),
        (
            "header-name",
            "name",
            json!({ "httpGet": { "port": 1, "httpHeaders": [{ "name": "a: b", "value": "c" }] } }),
        ),
        (
            "header-value",
            "value",
            json!({ "httpGet": { "port": 1, "httpHeaders": [{ "name": "a", "value": "b\r\nc: d" }] } }),
        ),
        (
            "host",
            "host",
            json!({ "tcpSocket": { "port": 1, "host": "other.example.com" } }),
        ),
        (
            "argument",
            "command[1]",
            json!({ "exec": { "command": ["/bin/a", "b\nc"] } }),
        ),
    ] {
        let refused = scene.rule(name, rule(probe)).await;
        let error = refused.expect_err(name).to_string();
        let place = format!("{field} in body should match");
        assert!(error.contains(&place), "{name}: {error}");
    }
    for (name, words, probe) in [
        (
            "own-header",
            "the agent itself writes this header",
            json!({ "httpGet": { "port": 1, "httpHeaders": [{ "name": "Transfer-Encoding", "value": "x" }] } }),
        ),
        (
            "no-trust",
            "scheme HTTPS needs either ca or insecureSkipVerify: true",
            json!({ "httpGet": { "port": 1, "scheme": "HTTPS" } }),
        ),
        (
            "no-tls",
            "and HTTP takes neither",
            json!({ "httpGet": { "port": 1, "insecureSkipVerify": true } }),
        ),
        (
            "nameless",
            "serverName needs ca",
            json!({ "httpGet": { "port": 1, "scheme": "HTTPS", "insecureSkipVerify": true, "serverName": "a" } }),
        ),
        (
            "relative",
            "the program must be a whole path",
            json!({ "exec": { "command": ["check"] } }),
        ),
        (
            "two",
            "give exactly one of",
            json!({ "exec": { "command": ["/bin/a"] }, "tcpSocket": { "port": 1 } }),
        ),
    ] {
        let refused = scene.rule(name, rule(probe)).await;
        let error = refused.expect_err(name).to_string();
        assert!(error.contains(words), "{name}: {error}");
    }
    for (name, fine) in [
        (
            "fine",
            json!({ "httpGet": { "port": 1, "path": "/healthz?a=b%20c", "host": "fd00::1" } }),
        ),
        (
            "fine-tls",
            json!({ "httpGet": { "port": 1, "scheme": "HTTPS", "insecureSkipVerify": true, "host": "{nodeIP}",
                "httpHeaders": [{ "name": "X-A", "value": "b c" }] } }),
        ),
        (
            "fine-exec",
            json!({ "exec": { "command": ["/usr/local/bin/check", "--a b"] } }),
        ),
    ] {
        scene.rule(name, rule(fine)).await?;
    }
    Ok(())
}
