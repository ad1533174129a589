//! Knows what Windows instances get: opens the payload, reads the configuration of workers, and puts both
//! together with the proxy. The worker Ignition is the Secret `worker-ignition` if there is one, else what the pool `worker` is
//! to run; without either nothing is configured, and the pool says so.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use evenkeel_api::document::{self, Document};
use evenkeel_api::names::{object, pool as pool_name};
use evenkeel_api::windows::worker::{NotAWorker, Worker};
use evenkeel_daemon::panics::contain;
use evenkeel_plan::windows::windows_pool::PoolFailure;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};

use crate::shared::Shared;
use crate::triggers;
use crate::windows::payload::{Payload, PayloadError};
use crate::windows::pool::{Offer, Ready};
use crate::windows::proxy::store::Proxy;

/// How long after a payload was refused it is opened again: somebody may have mended it.
const AGAIN: Duration = Duration::from_mins(1);
/// How long after the API server failed it is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// Knows it until the program is asked to stop.
pub(crate) async fn run(shared: &Shared, folder: &Path, namespace: &str, proxy: &Proxy) {
    let Some(payload) = open(shared, folder).await else {
        return;
    };
    let payload = Rc::new(payload);
    tracing::info!(version = %payload.version(), files = payload.count(), "the payload matches its manifest");
    let secrets: Api<Secret> = Api::namespaced(shared.client.clone(), namespace);
    let only =
        watcher::Config::default().fields(&format!("metadata.name={}", object::WORKER_IGNITION));
    let changes = watcher(secrets, only).default_backoff();
    let mut changes = std::pin::pin!(changes);
    let mut pools = shared.pools.store().changes();
    let mut proxies = proxy.decisions();
    let mut secret = SecretState::Unknown;
    // What the pool was to run when it was read last, and what that said.
    let mut read: Option<(String, Result<Worker, PoolFailure>)> = None;
    let mut is_listed = false;
    let mut retry = false;
    loop {
        tokio::select! {
            () = shared.stop.stopped() => return,
            change = changes.next() => match change {
                None => return,
                Some(Ok(watcher::Event::Init)) => is_listed = false,
                Some(Ok(watcher::Event::InitApply(object) | watcher::Event::Apply(object))) => {
                    is_listed = true;
                    secret = SecretState::There(from_secret(&object));
                }
                Some(Ok(watcher::Event::InitDone)) => if !is_listed {
                    secret = SecretState::Absent;
                },
                Some(Ok(watcher::Event::Delete(_))) => secret = SecretState::Absent,
                Some(Err(error)) => {
                    let name = object::WORKER_IGNITION;
                    tracing::warn!("cannot watch Secret {name}, will retry: {error}");
                }
            },
            Ok(()) = pools.changed() => {}
            Ok(()) = proxies.changed() => {}
            () = triggers::after(retry.then_some(PAUSE)) => {}
        }
        retry = false;
        // Without knowing it, nodes would lose the proxy that they have.
        let Some(settings) = proxy.settings() else {
            continue;
        };
        let worker = match &secret {
            SecretState::Unknown => continue,
            SecretState::There(worker) => worker.clone(),
            SecretState::Absent if !shared.pools.store().is_listed() => continue,
            SecretState::Absent => match from_pool(shared, &mut read).await {
                Ok(worker) => worker,
                Err(error) => {
                    tracing::warn!("cannot read the configuration of workers, will retry: {error}");
                    retry = true;
                    continue;
                }
            },
        };
        shared.windows.offers(match worker {
            Err(trouble) => Offer::Nothing(trouble),
            Ok(worker) => Offer::Ready(Rc::new(Ready {
                payload: Rc::clone(&payload),
                composed: payload.compose(&worker, &settings),
                worker,
            })),
        });
    }
}

/// What is known of the Secret.
enum SecretState {
    Unknown,
    Absent,
    There(Result<Worker, PoolFailure>),
}

/// Opens the payload, and again later if it is refused.
async fn open(shared: &Shared, folder: &Path) -> Option<Payload> {
    loop {
        let folder: PathBuf = folder.to_owned();
        let opened = tokio::task::spawn_blocking(move || {
            let place = folder.display().to_string();
            contain("payload", &place, || Payload::open(&folder))
        });
        let refused = match opened.await {
            Ok(Some(Ok(payload))) => return Some(payload),
            Ok(Some(Err(refused))) => refused.to_string(),
            Ok(None) | Err(_) => {
                "internal error in payload (please report): see the operator's log".to_owned()
            }
        };
        tracing::warn!("{refused}");
        shared.windows.offers(Offer::Nothing(PoolFailure {
            category: PayloadError::CATEGORY,
            note: refused,
        }));
        tokio::select! {
            () = shared.stop.stopped() => return None,
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}

fn from_secret(secret: &Secret) -> Result<Worker, PoolFailure> {
    let (name, key) = (object::WORKER_IGNITION, object::WORKER_IGNITION_FILE);
    let place = format!("Secret {name}, key {key}");
    let data = secret.data.as_ref().and_then(|data| data.get(key));
    match data {
        Some(text) => read_worker(&place, &text.0),
        None => Err(invalid(format!(
            "{place} is missing: put the Ignition config of workers there"
        ))),
    }
}

/// What the pool `worker` is to run, read again only if that is another thing than before.
async fn from_pool(
    shared: &Shared,
    read: &mut Option<(String, Result<Worker, PoolFailure>)>,
) -> kube::Result<Result<Worker, PoolFailure>> {
    let target = shared.pools.store().look(|all| {
        let pool = all.get(pool_name::WORKER)?;
        pool.pool.target.clone()
    });
    let Some(name) = target else {
        *read = None;
        return Ok(Err(PoolFailure {
            category: "NoWorkerIgnition",
            note: format!(
                "there is neither a Secret {} nor a rendered configuration of pool {}: create the Secret with the Ignition config of workers under the key {}; until then no instance is configured",
                object::WORKER_IGNITION,
                pool_name::WORKER,
                object::WORKER_IGNITION_FILE
            ),
        }));
    };
    if let Some((known, worker)) = read
        && *known == name
    {
        return Ok(worker.clone());
    }
    let Some(config) = shared.configs.read(&name).await? else {
        // It is made anew by whoever renders, and the pool changes then.
        return Ok(Err(invalid(format!(
            "MachineConfig {name} of pool {} is missing",
            pool_name::WORKER
        ))));
    };
    let text = serde_json::to_vec(&config).map_err(kube::Error::SerdeError)?;
    drop(config);
    let worker = read_worker(&format!("MachineConfig {name}"), &text);
    *read = Some((name, worker.clone()));
    Ok(worker)
}

/// Reads an Ignition config, or a MachineConfig with one.
fn read_worker(place: &str, bytes: &[u8]) -> Result<Worker, PoolFailure> {
    let (documents, _) = document::read(place, bytes).map_err(|problems| {
        // All of them may be many: the first says where to begin.
        let first = problems.iter().next().map(ToString::to_string);
        invalid(first.unwrap_or_default())
    })?;
    match documents.as_slice() {
        [Document::MachineConfig(config)] => {
            Worker::of(config).map_err(|error| invalid(format!("{place}: {error}")))
        }
        _ => Err(invalid(format!(
            "{place}: not an Ignition config: put one there"
        ))),
    }
}

fn invalid(note: String) -> PoolFailure {
    PoolFailure {
        category: NotAWorker::CATEGORY,
        note,
    }
}
