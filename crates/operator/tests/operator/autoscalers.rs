//! What autoscalers see of a node that is down by our doing.

use evenkeel_api::names::{annotation, autoscaler};
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result, need};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use serde_json::{Value, json};

use crate::scene::{SOON, Scene, annotated};

/// What stands on a Node for autoscalers, and which of it is ours.
fn marks(node: &Node) -> (Vec<Option<&str>>, Option<&str>) {
    let all = autoscaler::ALL.iter().map(|it| annotated(node, it));
    (
        all.collect(),
        annotated(node, annotation::AUTOSCALER_ANNOTATIONS),
    )
}

fn has_permit(node: &Node) -> bool {
    annotated(node, annotation::DRAIN_GRANTED).is_some()
}

impl Scene {
    async fn annotate(&self, node: &str, annotations: Value) -> Result<()> {
        let patch = json!({ "metadata": { "annotations": annotations } });
        self.patch(node, &patch).await
    }

    async fn until_marks(&self, node: &str, wanted: &[Option<&str>; 3]) -> Result<Node> {
        let what = format!("node {node} to have {wanted:?} for autoscalers");
        until_async(&what, SOON, async || {
            let seen = self.node(node).await?;
            Ok(if marks(&seen).0 == wanted {
                Look::Found(seen)
            } else {
                Look::NotYet(format!("{:?}", seen.annotations()))
            })
        })
        .await
    }
}

/// Covers N11.
#[tokio::test]
async fn autoscalers_leave_a_node_alone_from_its_permit_to_its_return_and_a_persons_word_stays()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("scalers").await?;
    let _operator = scene.operator(&[])?;
    let node = scene.start(scene.describe("n1")).await?;
    let name = node.name();
    // A person wants no repair for reasons of their own, and says something that is no "true" of scale-downs.
    let theirs =
        json!({ autoscaler::DO_NOT_REPAIR: "true", autoscaler::SCALE_DOWN_DISABLED: "false" });
    scene.annotate(name, theirs).await?;

    // Every version of the Node is looked at: with the permit come the annotations, and with it they go.
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let watched = watcher(scene.nodes(), only)
        .default_backoff()
        .applied_objects();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let watching = tokio::spawn(watched.for_each(move |version| {
        _ = tell.send(version);
        std::future::ready(())
    }));
    let mut next_version = async || -> Result<Node> {
        let next = told
            .recv()
            .await
            .ok_or_else(|| Error::failed("the watch ended"))?;
        next.doing(|| "the watch failed")
    };
    assert!(!has_permit(&next_version().await?));
    let ours = autoscaler::DO_NOT_DISRUPT;
    let during = [Some("false"), Some("true"), Some("true")];
    let after = [Some("false"), None, Some("true")];
    scene.ask(name, "drain-rendered-1").await?;
    let drained = scene.answered(name, "drain-rendered-1").await?;
    assert!(has_permit(&drained));
    assert_eq!(marks(&drained), (during.to_vec(), Some(ours)));

    // Somebody takes ours off, when the agent is at work: they come back.
    scene.annotate(name, json!({ ours: null })).await?;
    let back = scene.until_marks(name, &during).await?;
    assert_eq!(marks(&back).1, Some(ours));

    scene.ask(name, "uncordon-rendered-1").await?;
    let seen = scene.answered(name, "uncordon-rendered-1").await?;
    assert_eq!(marks(&seen), (after.to_vec(), None));
    let mut with_permit = 0;
    loop {
        let next = next_version().await?;
        let (_, listed) = marks(&next);
        assert_eq!(
            has_permit(&next),
            listed.is_some(),
            "{:?}",
            next.annotations()
        );
        with_permit += usize::from(has_permit(&next));
        if annotated(&next, annotation::LAST_APPLIED_DRAIN) == Some("uncordon-rendered-1") {
            break;
        }
    }
    assert!(
        with_permit >= 2,
        "the watch saw {with_permit} versions with the permit"
    );
    watching.abort();

    // Whoever takes the permit off the Node by hand takes them along.
    scene.ask(name, "drain-rendered-2").await?;
    scene.answered(name, "drain-rendered-2").await?;
    let gone = json!({
        annotation::DRAIN_GRANTED: null, annotation::DESIRED_DRAIN: null,
        annotation::LAST_APPLIED_DRAIN: null,
    });
    scene.annotate(name, gone).await?;
    scene.until_marks(name, &after).await?;
    Ok(())
}
