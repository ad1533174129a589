//! Extensions that publish a status object: with a Lease inside, or with a Lease of the same name.

use std::time::{Duration, Instant};

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use jiff::{SignedDuration, Timestamp};
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use super::bed::{EXTENSIONS, Extension, is_tainted, until_counted};
use crate::scene::{SOON, Scene, free_port};

/// What the Lease inside says that it lasts.
const LASTS: Duration = Duration::from_secs(4);

/// A kind of somebody else, and what lets the operator read it.
fn theirs() -> [Value; 2] {
    let names = json!({ "kind": "DevicePluginExtension", "plural": "devicepluginextensions" });
    let any = json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
    [
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": "devicepluginextensions.example.com" },
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": names,
                "versions": [{ "name": "v1", "served": true, "storage": true, "schema": any }],
            },
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": "read-device-plugins", "labels": { "evenkeel.dev/aggregate-to-readiness": "true" } },
            "rules": [{ "apiGroups": ["example.com"], "resources": ["devicepluginextensions"], "verbs": ["get", "list", "watch"] }],
        }),
    ]
}

struct Objects(Api<DynamicObject>);

impl Objects {
    /// Writes the object of `name`, with a Lease inside that is renewed by this.
    async fn renew(&self, name: &str, holder: &str) -> Result<()> {
        let lease = json!({
            "holderIdentity": holder, "leaseDurationSeconds": LASTS.as_secs(),
            "renewTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
        });
        self.write(name, json!({ "devices": 4, "lease": lease }))
            .await
    }

    async fn write(&self, name: &str, mut object: Value) -> Result<()> {
        object["apiVersion"] = json!("example.com/v1");
        object["kind"] = json!("DevicePluginExtension");
        object["metadata"] = json!({ "name": name });
        let parameters = PatchParams::apply("device-plugin").force();
        let written = self.0.patch(name, &parameters, &Patch::Apply(object)).await;
        written.map(|_| ()).doing(|| format!("cannot write {name}"))
    }
}

/// Covers R05.
#[tokio::test]
async fn a_status_object_is_healthy_while_the_lease_inside_it_or_next_to_it_is_renewed()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("status").await?;
    scene.prepare_readiness()?;
    for (number, object) in theirs().iter().enumerate() {
        let file = scene.scratch.path().join(format!("theirs-{number}.json"));
        std::fs::write(&file, object.to_string()).doing(|| "cannot write")?;
        scene
            .control_plane
            .kubectl(&["apply", "-f", &file.display().to_string()])?;
    }
    scene.control_plane.kubectl(&[
        "wait",
        "--for=condition=Established",
        "crd/devicepluginextensions.example.com",
    ])?;
    let kind = GroupVersionKind::gvk("example.com", "v1", "DevicePluginExtension");
    let kind = ApiResource::from_gvk_with_plural(&kind, "devicepluginextensions");
    let objects = Objects(Api::namespaced_with(
        scene.client.clone(),
        EXTENSIONS,
        &kind,
    ));
    let node = scene.start(scene.describe("n1")).await?;
    let name = node.name().to_owned();
    // One has its Lease inside, the other one beside it.
    let of = |name: &str| json!({ "apiVersion": "example.com/v1", "kind": "DevicePluginExtension", "namespace": EXTENSIONS, "name": name });
    let (mut inside, beside) = (of("{node}"), of("{node}.cni"));
    inside["lease"] = json!(".lease");
    objects
        .write(&format!("{name}.cni"), json!({ "routes": 3 }))
        .await?;
    scene
        .rule(
            "status",
            json!({
                "extensions": [{ "name": "dp", "status": inside }, { "name": "cni", "status": beside }],
                "evictAfter": "0s",
            }),
        )
        .await?;
    let port = free_port()?;
    let place = format!("place={}", scene.name);
    let listen = format!("127.0.0.1:{port}");
    let _operator = scene.operator(&["--rule-selector", &place, "--listen", &listen])?;
    // Nothing was ever renewed.
    scene.tainted(&name, true).await?;

    let cni = Extension::start(
        &scene,
        &name,
        "cni",
        Duration::from_secs(1),
        SignedDuration::ZERO,
    );
    objects.renew(&name, &format!("{name}/dp")).await?;
    scene.tainted(&name, false).await?;
    let second = Duration::from_secs(1);
    let promise =
        "tainted within a second of its end, released within a second of the next renewal";
    let is_kept = |(silent, released): &(_, _)| *silent < LASTS + second && *released < second;
    let (silent, released) = kept_async(promise, is_kept, async || {
        let last = Instant::now();
        objects.renew(&name, &name).await?;
        if is_tainted(&scene.node(&name).await?) {
            scene.tainted(&name, false).await?;
        }
        scene.tainted(&name, true).await?;
        let silent = last.elapsed();
        assert!(silent >= LASTS, "{silent:?}");
        counted(port, &scene.called("status"), "dp", "silent").await?;
        // Somebody else's renewal is no evidence.
        objects.renew(&name, "another").await?;
        scene.event(&name, "ForeignLease").await?;
        assert!(is_tainted(&scene.node(&name).await?));
        let begun = Instant::now();
        objects.renew(&name, &name).await?;
        scene.tainted(&name, false).await?;
        Ok((silent, begun.elapsed()))
    })
    .await?;
    println!(
        "proof: a Lease of {LASTS:?} inside a status object: tainted {silent:?} after its last renewal, released {released:?} after the next"
    );

    // The one beside it is not renewed any more, the one inside is.
    let stopped = cni.stop().await?;
    until_async(
        "the Lease of the same name to be missed",
        SOON,
        async || {
            objects.renew(&name, &name).await?;
            let seen = scene.node(&name).await?;
            Ok(if is_tainted(&seen) {
                Look::Found(())
            } else {
                Look::NotYet(scene.log())
            })
        },
    )
    .await?;
    let silent = stopped.elapsed();
    assert!(
        silent >= Duration::from_secs(10),
        "as the Lease says: {silent:?}"
    );
    counted(port, &scene.called("status"), "cni", "silent").await?;
    scene.renew(&name, "cni", SignedDuration::ZERO).await?;
    objects.renew(&name, &name).await?;
    scene.tainted(&name, false).await.map(|_| ())
}

/// Waits until the operator's numbers count one node whose extension says so.
async fn counted(port: u16, rule: &str, extension: &str, says: &str) -> Result<()> {
    let wanted = format!(
        r#"evenkeel_readiness_extensions{{rule="{rule}",extension="{extension}",source="status",says="{says}"}} 1"#
    );
    until_counted(port, &wanted).await
}
