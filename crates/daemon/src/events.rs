//! Kubernetes Events, without repeating ourselves and without waiting for anybody.
//!
//! Whoever publishes only puts an Event into a bounded queue. A task of our own sends it: the first
//! time as a new Event, again as a higher count of the same one. While the API server is away the
//! queue keeps what it can, and forgets the oldest first.

mod queue;

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_api::backoff::Backoff;
use evenkeel_api::notice::{Notice, Severity};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event as ApiEvent, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use self::queue::{Delivery, Queue, Sent};
use crate::Metrics;
use crate::program::Program;

/// The longest note, reason and action that the API server takes, in bytes.
const NOTE: usize = 1024;
const WORD: usize = 128;
/// Events of things without a namespace live here.
const DEFAULT_NAMESPACE: &str = "default";
/// The pauses while the API server takes none.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(15));
const REQUEST: Duration = Duration::from_secs(10);

/// What happened to an object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// What it happened to.
    pub object: ObjectReference,
    /// Whether somebody should look.
    pub severity: Severity,
    /// One word in `PascalCase` for what happened; the category of an error.
    pub reason: String,
    /// One word in `PascalCase` for what was being done; the same as the reason if it is empty.
    pub action: String,
    /// What happened, for people. What is longer than 1 kB is cut.
    pub note: String,
}

impl Eq for Event {}

impl Hash for Event {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.object.namespace.hash(state);
        self.object.name.hash(state);
        self.reason.hash(state);
        self.note.hash(state);
    }
}

/// How much is kept, and how often the same is said.
#[derive(Debug, Clone, Copy)]
pub struct EventsOptions {
    /// How long after the last time the same is still counted with it.
    pub window: Duration,
    /// The shortest time between two counts of the same.
    pub series_pause: Duration,
    /// How many different Events wait at most for the API server.
    pub capacity: usize,
}

impl Default for EventsOptions {
    fn default() -> Self {
        Self {
            window: Duration::from_mins(10),
            series_pause: Duration::from_secs(10),
            capacity: 256,
        }
    }
}

/// Publishes Events. Clones publish through the same queue.
#[derive(Clone)]
pub struct Events {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<Queue>,
    /// There is something to send.
    work: Notify,
    /// Somebody waits for the queue to be empty.
    hurry: Notify,
    /// Something was sent or dropped.
    progress: Notify,
    metrics: Metrics,
}

impl Events {
    /// Sends Events as `program`, in a task of its own.
    pub fn start(
        client: Client,
        program: Program,
        metrics: Metrics,
        options: EventsOptions,
    ) -> Self {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue::new(options)),
            work: Notify::new(),
            hurry: Notify::new(),
            progress: Notify::new(),
            metrics,
        });
        let sender = Sender {
            client,
            controller: format!("evenkeel.dev/{}", program.name),
            instance: crate::leadership::identity(),
            shared: shared.clone(),
        };
        tokio::spawn(sender.work());
        Self { shared }
    }

    /// Says `notice` of `object` in the log, and as an Event while `action` was being done.
    pub fn notify(&self, object: ObjectReference, action: &str, notice: Notice) {
        let Notice {
            severity,
            category,
            message,
        } = notice;
        let shown = format!(
            "{}/{}",
            object.kind.as_deref().unwrap_or_default(),
            object.name.as_deref().unwrap_or_default()
        );
        match severity {
            Severity::Normal => tracing::info!(object = shown, %category, "{message}"),
            Severity::Warning => tracing::warn!(object = shown, %category, "{message}"),
        }
        self.publish(Event {
            object,
            severity,
            reason: category.into_owned(),
            action: action.to_owned(),
            note: message,
        });
    }

    /// Puts `event` into the queue. Never waits, never fails.
    pub fn publish(&self, mut event: Event) {
        tracing::debug!(
            reason = event.reason,
            object = event.object.name,
            note = event.note,
            "event"
        );
        // The API server takes none without an action.
        if event.action.is_empty() {
            event.action.clone_from(&event.reason);
        }
        let event = Event {
            reason: cut(event.reason, WORD),
            action: cut(event.action, WORD),
            note: cut(event.note, NOTE),
            ..event
        };
        let dropped = self
            .shared
            .queue()
            .push(event, Instant::now(), Timestamp::now());
        if dropped > 0 {
            self.shared.metrics.drop_events("queue_full", dropped);
        }
        self.shared.work.notify_one();
    }

    /// Waits until everything was sent, also counts that are not due yet; not longer than
    /// `limit`. Says whether everything was.
    pub async fn flush(&self, limit: Duration) -> bool {
        self.shared.queue().hurry(true);
        self.shared.work.notify_one();
        self.shared.hurry.notify_waiters();
        let emptied = async {
            loop {
                let progress = self.shared.progress.notified();
                if self.shared.queue().is_empty() {
                    return;
                }
                progress.await;
            }
        };
        let in_time = tokio::time::timeout(limit, emptied).await.is_ok();
        self.shared.queue().hurry(false);
        in_time
    }

    /// Pending events: those that the API server does not have yet, oldest first.
    pub fn pending(&self) -> Vec<Event> {
        self.shared.queue().pending().cloned().collect()
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Events")
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Sender {
    client: Client,
    controller: String,
    instance: String,
    shared: Arc<Shared>,
}

/// What became of one delivery.
enum Fate {
    Arrived,
    /// The Event to count on is gone: there must be a new one.
    Gone,
    /// It will never be taken.
    Refused(kube::Error),
    /// The API server is away, or too busy, or has a problem with this one.
    Later {
        /// It said so itself; another Event may fare better.
        answered: bool,
        why: String,
    },
}

impl Sender {
    /// Sends what is due, one after the other, for ever.
    async fn work(self) {
        let mut pauses = PAUSES;
        loop {
            let next = self.shared.queue().next(Instant::now());
            let delivery = match next {
                Ok(delivery) => delivery,
                Err(due) => {
                    self.wait(due).await;
                    continue;
                }
            };
            let sent = match self.send(&delivery).await {
                Fate::Arrived => Sent::Arrived,
                Fate::Gone => Sent::Gone,
                Fate::Refused(error) => {
                    tracing::warn!(
                        reason = delivery.key.reason,
                        "the API server refused an Event: {error}"
                    );
                    self.shared.metrics.drop_events("refused", 1);
                    Sent::Refused
                }
                Fate::Later { answered, why } => {
                    tracing::debug!(
                        reason = delivery.key.reason,
                        "cannot send an Event yet, retrying: {why}"
                    );
                    if answered {
                        self.shared.queue().put_last(&delivery.key);
                    }
                    let hurry = self.shared.hurry.notified();
                    let _ = tokio::time::timeout(pauses.next_pause(), hurry).await;
                    continue;
                }
            };
            pauses.reset();
            self.shared.queue().sent(&delivery, &sent, Instant::now());
            self.shared.progress.notify_waiters();
        }
    }

    async fn wait(&self, due: Option<Instant>) {
        let work = self.shared.work.notified();
        match due {
            None => work.await,
            Some(due) => {
                let _ = tokio::time::timeout_at(due.into(), work).await;
            }
        }
    }

    async fn send(&self, delivery: &Delivery) -> Fate {
        let object = &delivery.key.object;
        let namespace = object.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
        let api: Api<ApiEvent> = Api::namespaced(self.client.clone(), namespace);
        let request = async {
            if delivery.is_new {
                let event = self.event(delivery, namespace);
                api.create(&PostParams::default(), &event).await
            } else {
                let patch = serde_json::json!({ "series": series(delivery) });
                api.patch(
                    &delivery.name,
                    &PatchParams::default(),
                    &Patch::Merge(&patch),
                )
                .await
            }
        };
        let error = match tokio::time::timeout(REQUEST, request).await {
            Ok(Ok(_)) => return Fate::Arrived,
            Ok(Err(error)) => error,
            Err(_) => {
                return Fate::Later {
                    answered: false,
                    why: format!("no answer within {REQUEST:?}"),
                };
            }
        };
        let later = |answered| Fate::Later {
            answered,
            why: error.to_string(),
        };
        match &error {
            kube::Error::Api(status) => match status.code {
                // An earlier attempt arrived, only its answer did not.
                409 if delivery.is_new => Fate::Arrived,
                404 if !delivery.is_new => Fate::Gone,
                401 | 408 | 409 | 429 | 500.. => later(true),
                _ => Fate::Refused(error),
            },
            _ => later(false),
        }
    }

    fn event(&self, delivery: &Delivery, namespace: &str) -> ApiEvent {
        let key = &delivery.key;
        let kind = match key.severity {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        };
        ApiEvent {
            metadata: ObjectMeta {
                name: Some(delivery.name.clone()),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            action: Some(key.action.clone()),
            event_time: Some(MicroTime(delivery.first)),
            note: Some(key.note.clone()),
            reason: Some(key.reason.clone()),
            regarding: Some(key.object.clone()),
            reporting_controller: Some(self.controller.clone()),
            reporting_instance: Some(cut(self.instance.clone(), WORD)),
            series: (delivery.count > 1).then(|| series(delivery)),
            type_: Some(kind.to_owned()),
            ..ApiEvent::default()
        }
    }
}

fn series(delivery: &Delivery) -> EventSeries {
    EventSeries {
        count: i32::try_from(delivery.count).unwrap_or(i32::MAX),
        last_observed_time: MicroTime(delivery.last),
    }
}

/// `text`, or as much of it as fits into `limit` bytes, and then an ellipsis.
fn cut(mut text: String, limit: usize) -> String {
    const MORE: &str = "…";
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit - MORE.len()));
        text.push_str(MORE);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_cut_between_characters() {
        assert_eq!(cut("short".to_owned(), 10), "short");
        assert_eq!(cut("0123456789a".to_owned(), 10), "0123456…");
        let cut = cut("ü".repeat(600), NOTE);
        assert!(cut.len() <= NOTE && cut.ends_with("ü…"), "{}", cut.len());
    }
}
