//! Somebody who takes the services ConfigMap away, edits it and puts another in its place, again and again,
//! while machines are being configured; and what the agents' own logs say that they applied.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_api::names::label;
use evenkeel_api::windows::services::Services;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::windows_instance::WindowsInstance;
use evenkeel_testbed::{Doing, Error, Result};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::bed::{Bed, SERVICES_MAP};

/// Between one deed and the next.
const BREATH: Duration = Duration::from_millis(400);
/// What is wrong is put right in this time.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Longer than this nobody waits for it to be put right.
const PATIENCE: Duration = Duration::from_secs(20);
/// Another build of the same version.
const IMPOSTOR: &str = "services-1-2-3-0000000";

/// What was done, and how long it took to be put right.
type Deeds = Vec<(&'static str, Duration)>;

/// Ends the meddling when it goes, also if a test fails.
struct Ends(Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(super) struct Meddler {
    ends: Ends,
    task: JoinHandle<Result<Deeds>>,
}

impl Meddler {
    /// Begins; `hash` is that of the right contents.
    pub(super) fn begin(bed: &Bed, hash: &str) -> Self {
        let maps = Api::namespaced(bed.scene.client.clone(), &bed.scene.name);
        let ends = Arc::<AtomicBool>::default();
        let (asked, hash) = (Arc::clone(&ends), hash.to_owned());
        let runtime = Handle::current();
        let task =
            tokio::task::spawn_blocking(move || runtime.block_on(meddle(&maps, &hash, &asked)));
        let ends = Ends(ends);
        Self { ends, task }
    }

    /// Ends; what was done.
    pub(super) async fn end(self) -> Result<Deeds> {
        drop(self.ends);
        self.task.await.doing(|| "the meddler has panicked")?
    }
}

async fn meddle(maps: &Api<ConfigMap>, hash: &str, ends: &AtomicBool) -> Result<Deeds> {
    let mut deeds = Vec::new();
    for what in ["delete", "replace", "edit", "add"].into_iter().cycle() {
        if ends.load(Ordering::Relaxed) {
            break;
        }
        let promise = format!("after {what} it is put right within a second");
        let is_at_once = |took: &Duration| *took < AT_ONCE;
        let took = kept_async(&promise, is_at_once, async || {
            deed(maps, what).await?;
            let began = Instant::now();
            while !is_right(maps, hash).await? {
                if began.elapsed() > PATIENCE {
                    return Err(Error::failed(format!("{what}: it was not put right")));
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok(began.elapsed())
        })
        .await?;
        deeds.push((what, took));
        tokio::time::sleep(BREATH).await;
    }
    Ok(deeds)
}

/// Does it once. Whoever comes too late finds it right again, and that is right, too.
async fn deed(maps: &Api<ConfigMap>, what: &str) -> Result<()> {
    match what {
        "delete" => _ = maps.delete(SERVICES_MAP, &DeleteParams::default()).await,
        "replace" => {
            _ = maps.delete(SERVICES_MAP, &DeleteParams::default()).await;
            _ = maps
                .create(&PostParams::default(), &wrong(SERVICES_MAP)?)
                .await;
        }
        "edit" => {
            let patch = json!({ "metadata": { "labels": { label::SERVICES: null } } });
            let parameters = PatchParams::default();
            _ = maps
                .patch(SERVICES_MAP, &parameters, &Patch::Merge(patch))
                .await;
        }
        _ => _ = maps.create(&PostParams::default(), &wrong(IMPOSTOR)?).await,
    }
    Ok(())
}

/// A ConfigMap that holds, and that nobody of us would write.
fn wrong(name: &str) -> Result<ConfigMap> {
    let services =
        json!([{ "name": "evil", "command": "evil.exe", "bootstrap": true, "priority": 0 }]);
    let map = json!({
        "metadata": { "name": name, "labels": { label::SERVICES: "true" } },
        "immutable": true,
        "data": { "services": services.to_string(), "files": "[]" },
    });
    serde_json::from_value(map).doing(|| "no ConfigMap")
}

/// Whether the one with the right contents is there as it should be, and no other.
async fn is_right(maps: &Api<ConfigMap>, hash: &str) -> Result<bool> {
    let all = maps.list(&ListParams::default()).await;
    let all = all.doing(|| "cannot list ConfigMaps")?.items;
    let name = |it: &ConfigMap| it.metadata.name.clone().unwrap_or_default();
    let mut services = all.iter().filter(|it| name(it).starts_with("services-"));
    let (Some(only), None) = (services.next(), services.next()) else {
        return Ok(false);
    };
    let labels = only.metadata.labels.as_ref();
    let data: BTreeMap<String, String> = only.data.clone().unwrap_or_default();
    let read = Services::from_data("services", &data);
    Ok(name(only) == SERVICES_MAP
        && only.immutable == Some(true)
        && only.metadata.deletion_timestamp.is_none()
        && labels.is_some_and(|it| it.contains_key(label::SERVICES))
        && read.is_ok_and(|(services, _)| services.hash() == hash))
}

/// The hashes of services that the agent of an instance says it applied, in all its logs, and how often.
pub(super) fn applied(instance: &WindowsInstance) -> Result<(BTreeSet<String>, usize)> {
    let folder = instance.path(r"C:\var\log\evenkeel")?;
    let mut hashes = BTreeSet::new();
    let mut count = 0;
    for file in std::fs::read_dir(folder).doing(|| "there are no logs")? {
        let path = file.doing(|| "there are no logs")?.path();
        let text = std::fs::read_to_string(&path).doing(|| "cannot read a log")?;
        for line in text.lines().filter(|it| it.contains("applying services")) {
            let hash = line
                .split_whitespace()
                .find_map(|it| it.strip_prefix("hash="));
            let hash = hash.ok_or_else(|| Error::failed(format!("no hash: {line}")))?;
            hashes.insert(hash.trim_matches('"').to_owned());
            count += 1;
        }
    }
    Ok((hashes, count))
}
