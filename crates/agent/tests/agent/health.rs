//! What an agent answers to those who watch it: whether it is stuck, and its numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Error, Result};

use super::scene::{SOON, Scene, spec};

const POLICY: &str = "/etc/containers/policy.json";
const PAGE: &str = include_str!("../../../../docs/reference/metrics.md");
/// A runtime that reads its configuration again for as long as `/run/hold` is there.
const RUNTIME: &str = "[Service]
ExecStart=/bin/sleep infinity
ExecReload=/bin/sh -c 'while [ -e /run/hold ]; do sleep 0.1; done'
TimeoutStartSec=infinity
";

async fn until_healthz(scene: &Scene, status: &str, words: &str) -> Result<()> {
    let what = format!("/healthz to answer {status} with {words:?}");
    until_async(&what, Duration::from_mins(1), async || {
        let answer = scene.get("/healthz")?;
        let first = answer.lines().next().unwrap_or_default();
        Ok(if first.contains(status) && answer.contains(words) {
            Look::Found(())
        } else {
            Look::NotYet(answer)
        })
    })
    .await
}

#[tokio::test]
async fn an_agent_that_is_stuck_says_so_until_it_goes_on() -> Result<()> {
    let Some(scene) = Scene::start("stuck").await? else {
        return Ok(());
    };
    scene
        .node
        .write("/etc/systemd/system/crio.service", RUNTIME)?;
    scene.node.run(&["systemctl", "daemon-reload"])?;
    scene.node.run(&["systemctl", "start", "crio.service"])?;
    scene.start_with(&["--stuck-after", "10s"])?;
    scene.at_rest(spec(&[(POLICY, "one\n")], &[])).await?;
    // Longer than a heartbeat of a worker without work.
    tokio::time::sleep(Duration::from_secs(11)).await;
    until_healthz(&scene, "200", "[+] worker").await?;

    scene.node.write("/run/hold", "")?;
    let new = scene.config("new", spec(&[(POLICY, "two\n")], &[])).await?;
    scene.desire(&new).await?;
    until_healthz(&scene, "503", "[-] worker: last heartbeat").await?;

    scene.node.run(&["rm", "/run/hold"])?;
    scene.until_done(&new, SOON).await?;
    until_healthz(&scene, "200", "[+] worker").await
}

/// Kind and labels, as far as they are known, by the name that Prometheus sees.
type Numbers = BTreeMap<String, (String, Option<BTreeSet<String>>)>;

fn served(text: &str) -> Numbers {
    let mut numbers = Numbers::new();
    for line in text.lines() {
        if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        {
            let name = match kind {
                "counter" => format!("{name}_total"),
                "info" => format!("{name}_info"),
                _ => name.to_owned(),
            };
            numbers.insert(name, (kind.to_owned(), None));
        } else if let Some((_, known)) = line
            .split(['{', ' '])
            .next()
            .and_then(|name| numbers.get_mut(name))
        {
            let labels = line
                .split_once('{')
                .and_then(|(_, rest)| rest.split_once('}'));
            let labels = labels.map_or("", |(labels, _)| labels).split("\",");
            let names = labels.filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
            *known = Some(names.collect());
        }
    }
    numbers
}

/// The tables of these chapters of the page.
fn documented(chapters: &[&str]) -> Numbers {
    let wanted = PAGE
        .split("\n## ")
        .filter(|chapter| chapters.iter().any(|title| chapter.starts_with(title)));
    let words = |cell: &str| -> BTreeSet<String> {
        let quoted = cell.split('`').skip(1).step_by(2);
        quoted.map(str::to_owned).collect()
    };
    wanted
        .flat_map(str::lines)
        .filter(|line| line.starts_with("| `evenkeel_"))
        .filter_map(|line| {
            let mut cells = line.split('|').skip(1).map(str::trim);
            let name = cells.next()?.trim_matches('`').to_owned();
            let kind = cells.next()?.to_owned();
            Some((name, (kind, Some(words(cells.next()?)))))
        })
        .collect()
}

#[tokio::test]
async fn the_page_about_metrics_says_exactly_what_is_served() -> Result<()> {
    let Some(scene) = Scene::start("page").await? else {
        return Ok(());
    };
    scene.at_rest(spec(&[(POLICY, "one\n")], &[])).await?;
    let metrics = scene.metrics()?;
    let (served, mut page) = (
        served(&metrics),
        documented(&["Every program", "An agent on a Linux node"]),
    );
    // What has never happened has no number yet.
    let when_it_happens = [
        "evenkeel_api_errors_total",
        "evenkeel_events_dropped_total",
        "evenkeel_leader",
        "evenkeel_panics_total",
    ];
    let missing = page
        .keys()
        .find(|name| !served.contains_key(*name) && !when_it_happens.contains(&name.as_str()));
    assert_eq!(missing, None, "{metrics}");
    for (name, (kind, labels)) in &served {
        let (on_page, labels_on_page) = page
            .remove(name)
            .ok_or_else(|| Error::failed(format!("{name} is not on the page")))?;
        assert_eq!(*kind, on_page, "{name}");
        if labels.is_some() {
            assert_eq!(*labels, labels_on_page, "{name}");
        }
    }
    for sure in [
        "evenkeel_node_state",
        "evenkeel_node_drifted_paths",
        "evenkeel_node_update_seconds",
        "evenkeel_api_requests_total",
    ] {
        let known = served.get(sure).and_then(|(_, labels)| labels.as_ref());
        assert!(known.is_some(), "{sure} has no value in {metrics}");
    }
    Ok(())
}
