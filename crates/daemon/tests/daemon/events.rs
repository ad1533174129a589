//! Events arrive once, with a count, also after the API server was away, and hold nobody up.

use std::time::{Duration, Instant};

use evenkeel_api::notice::Severity;
use evenkeel_daemon::{Event, Events, EventsOptions};
use evenkeel_testbed::api_proxy::ApiProxy;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as ApiEvent;
use kube::Api;
use kube::api::ListParams;

use crate::{Bench, PATIENCE, PROGRAM};

fn event(namespace: Option<&str>, name: &str, note: &str) -> Event {
    let kind = if namespace.is_some() {
        "ConfigMap"
    } else {
        "Node"
    };
    Event {
        object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some(kind.to_owned()),
            namespace: namespace.map(str::to_owned),
            name: Some(name.to_owned()),
            ..ObjectReference::default()
        },
        severity: Severity::Warning,
        reason: "Drifted".to_owned(),
        action: "Verify".to_owned(),
        note: note.to_owned(),
    }
}

/// The Events about `name`: their notes and counts, by note.
async fn seen(bench: &Bench, namespace: &str, name: &str) -> Result<Vec<(String, i32)>> {
    let client = bench.control_plane.admin_kubeconfig().client().await?;
    let api: Api<ApiEvent> = Api::namespaced(client, namespace);
    let all = api
        .list(&ListParams::default())
        .await
        .doing(|| "no events")?;
    let about =
        |event: &ApiEvent| event.regarding.as_ref().and_then(|it| it.name.as_deref()) == Some(name);
    let mut notes: Vec<_> = all
        .items
        .into_iter()
        .filter(about)
        .map(|event| {
            let count = event.series.map_or(1, |series| series.count);
            (event.note.unwrap_or_default(), count)
        })
        .collect();
    notes.sort();
    Ok(notes)
}

#[tokio::test]
async fn the_same_ten_times_is_one_event_with_its_count() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bench = Bench::new("same")?;
    let (client, metrics) = bench.client("login", &bench.login).await?;
    let events = Events::start(client, PROGRAM, metrics.clone(), EventsOptions::default());
    let of = Some(bench.namespace.as_str());
    events.publish(event(of, "config", "a file changed"));
    until_async("the first one, at once", PATIENCE, async || {
        let seen = seen(&bench, &bench.namespace, "config").await?;
        Ok(match seen.as_slice() {
            [(_, 1)] => Look::Found(()),
            _ => Look::NotYet(format!("{seen:?}")),
        })
    })
    .await?;
    for _ in 0..9 {
        events.publish(event(of, "config", "a file changed"));
    }
    events.publish(event(of, "config", "another file changed"));
    assert!(events.flush(PATIENCE).await, "not everything was sent");
    assert_eq!(
        seen(&bench, &bench.namespace, "config").await?,
        [
            ("a file changed".to_owned(), 10),
            ("another file changed".to_owned(), 1)
        ]
    );
    assert_eq!(metrics.api_requests("create", "events"), 2);
    assert_eq!(metrics.api_requests("patch", "events"), 1);
    assert_eq!(metrics.events_dropped("refused"), 0);
    Ok(())
}

#[tokio::test]
async fn an_event_about_a_node_is_seen_where_kubectl_looks() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bench = Bench::new("node")?;
    let (client, metrics) = bench.client("login", &bench.login).await?;
    let events = Events::start(client, PROGRAM, metrics, EventsOptions::default());
    let node = format!("{}-n1", bench.namespace);
    events.publish(Event {
        action: String::new(),
        ..event(None, &node, &"long ".repeat(1000))
    });
    assert!(events.flush(PATIENCE).await, "it was not sent");
    let selector = format!("--field-selector=involvedObject.name={node}");
    let listed = bench.control_plane.kubectl(&["get", "events", &selector])?;
    assert!(listed.contains("Drifted"), "{listed}");
    assert!(listed.contains("long l…"), "{listed}");
    assert!(listed.contains("Warning"), "{listed}");
    Ok(())
}

#[tokio::test]
async fn what_happens_while_the_api_server_is_away_is_told_when_it_is_back() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bench = Bench::new("away")?;
    let proxy = ApiProxy::before(bench.control_plane)?;
    let login = bench.login.through(&proxy);
    let of = Some(bench.namespace.as_str());
    let mut all = Vec::new();
    let is_at_once = |took: &Duration| *took < Duration::from_millis(100);
    kept_async("nobody is held up", is_at_once, async || {
        proxy.accept();
        let (client, metrics) = bench.client("login", &login).await?;
        let options = EventsOptions {
            capacity: 3,
            ..EventsOptions::default()
        };
        let events = Events::start(client, PROGRAM, metrics.clone(), options);
        proxy.refuse();
        proxy.cut();
        let object = format!("config-{}", all.len());
        let begin = Instant::now();
        for note in ["a", "b", "c", "c", "d"] {
            events.publish(event(of, &object, note));
        }
        let took = begin.elapsed();
        all.push((events, metrics, object));
        Ok(took)
    })
    .await?;
    let Some((events, metrics, object)) = all.pop() else {
        unreachable!("it was measured");
    };
    assert!(
        !events.flush(Duration::from_secs(2)).await,
        "it was sent nowhere"
    );
    assert!(metrics.api_errors("connection") > 0);
    let attempts = metrics.api_requests("create", "events");
    assert!(
        (1..=5).contains(&attempts),
        "{attempts} attempts in two seconds"
    );
    proxy.accept();
    assert!(events.flush(PATIENCE).await, "not everything was sent");
    let one = |note: &str| (note.to_owned(), 1);
    assert_eq!(
        seen(&bench, &bench.namespace, &object).await?,
        [one("b"), ("c".to_owned(), 2), one("d")]
    );
    assert_eq!(metrics.events_dropped("queue_full"), 1);
    Ok(())
}

#[tokio::test]
async fn an_event_that_may_not_be_written_is_counted_and_blocks_no_other() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bench = Bench::new("refused")?;
    let (client, metrics) = bench.client("login", &bench.login).await?;
    let events = Events::start(client, PROGRAM, metrics.clone(), EventsOptions::default());
    events.publish(event(Some("no-such-namespace"), "config", "lost"));
    events.publish(event(Some(&bench.namespace), "config", "kept"));
    assert!(events.flush(PATIENCE).await, "one blocks the other");
    let kept = seen(&bench, &bench.namespace, "config").await?;
    assert_eq!(kept, [("kept".to_owned(), 1)]);
    assert_eq!(metrics.events_dropped("refused"), 1);
    assert_eq!(metrics.api_errors("404"), 1);
    Ok(())
}
