//! Whether the API server can be reached, and who is told: the log, `/readyz`, `/healthz` and a metric.
//!
//! Every request of the program is evidence. Until the first answer the program also asks by itself: one that can do
//! nothing must say so, and must not look as if it worked.

use std::error::Error as StdError;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::backoff::Backoff;
use kube::Client;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::{Check, Health};

/// The part of a program in `/readyz` and `/healthz` that connects.
pub(crate) const PART: &str = "api-server";
/// How long a connection may take, TLS included. Half of the time in which somebody must be told.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);
/// How long the answer to a question of our own may take.
const ANSWER: Duration = Duration::from_secs(8);
/// The pause between two questions until the first answer.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// How long the API server may be away before it is said. One lost connection is none.
const HICCUP: Duration = Duration::from_secs(3);
/// The pauses between two lines that say the same.
const SAY_AGAIN: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_mins(1));
/// How much is told of a cause, in characters.
const LONGEST_CAUSE: usize = 1024;

/// What became of the last request. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Reachability {
    outcome: Arc<watch::Sender<Outcome>>,
    gauge: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    /// There was none yet.
    Unknown,
    /// It was answered, in whatever words.
    Answered,
    /// It was not: who was asked, and why.
    Failed { server: String, cause: String },
}

impl Default for Reachability {
    fn default() -> Self {
        Self {
            outcome: Arc::new(watch::Sender::new(Outcome::Unknown)),
            gauge: Gauge::default(),
        }
    }
}

impl Reachability {
    /// 1 while the last request was answered, else 0.
    pub(crate) fn gauge(&self) -> Gauge {
        self.gauge.clone()
    }

    /// A request was answered.
    pub(crate) fn answered(&self) {
        self.set(Outcome::Answered);
    }

    /// A request to `server` was not answered.
    pub(crate) fn failed(&self, server: &str, error: &(dyn StdError + 'static)) {
        self.set(Outcome::Failed {
            server: server.to_owned(),
            cause: cause(error),
        });
    }

    fn set(&self, outcome: Outcome) {
        self.gauge.set(i64::from(outcome == Outcome::Answered));
        self.outcome.send_if_modified(|last| {
            let is_new = *last != outcome;
            *last = outcome;
            is_new
        });
    }

    /// Waits for an answer, for so long. Whether there was one.
    async fn is_answered_within(&self, limit: Duration) -> bool {
        let mut outcome = self.outcome.subscribe();
        let answered = outcome.wait_for(|it| *it == Outcome::Answered);
        timeout(limit, answered).await.is_ok()
    }

    /// Waits until a request fails.
    async fn fails(&self) {
        let mut outcome = self.outcome.subscribe();
        // It cannot be closed: its sender is in our hand.
        let _ = outcome
            .wait_for(|it| matches!(it, Outcome::Failed { .. }))
            .await;
    }

    /// What is wrong, in words.
    fn words(&self) -> String {
        match &*self.outcome.borrow() {
            Outcome::Failed { server, cause } => {
                format!("cannot reach the API server at {server}: {cause}")
            }
            Outcome::Unknown | Outcome::Answered => "has not connected yet".to_owned(),
        }
    }
}

/// Tells whether `server` can be reached, until the runtime ends.
pub(crate) struct Watch {
    pub(crate) client: Client,
    pub(crate) server: String,
    pub(crate) reachability: Reachability,
    pub(crate) health: Health,
    pub(crate) check: Check,
}

impl Watch {
    pub(crate) async fn go(self) {
        self.connect().await;
        loop {
            self.reachability.fails().await;
            if !self.reachability.is_answered_within(HICCUP).await {
                self.outage().await;
            }
        }
    }

    /// Until the first answer: not ready, and it says why.
    async fn connect(&self) {
        let (begin, mut lines) = (Instant::now(), Lines::new());
        loop {
            self.ask().await;
            if self.reachability.is_answered_within(Duration::ZERO).await {
                break;
            }
            let words = self.reachability.words();
            self.check.not_ready(words.clone());
            self.health.note(PART, Some(words.clone()));
            lines.say(&words, begin, Instant::now());
            if self.reachability.is_answered_within(ASK_AGAIN).await {
                break;
            }
        }
        self.check.ready();
        self.health.note(PART, None);
        tracing::info!(server = self.server, "connected to the API server");
    }

    /// From the first failure after an answer to the next answer. Readiness is what the parts make of it.
    async fn outage(&self) {
        let (begin, mut lines) = (Instant::now(), Lines::new());
        loop {
            let words = self.reachability.words();
            self.health.note(PART, Some(words.clone()));
            let pause = lines.say(&words, begin, Instant::now());
            if self.reachability.is_answered_within(pause).await {
                break;
            }
            self.ask().await;
        }
        self.health.note(PART, None);
        let away = begin.elapsed() + HICCUP;
        tracing::info!(
            server = self.server,
            "the API server answers again, after {} s",
            away.as_secs()
        );
    }

    /// A question that everybody may ask. What became of it is noticed where all requests are.
    async fn ask(&self) {
        let asked = timeout(ANSWER, self.client.apiserver_version()).await;
        if asked.is_err() {
            let seconds = ANSWER.as_secs();
            let late = std::io::Error::other(format!("no answer within {seconds} s"));
            self.reachability.failed(&self.server, &late);
        }
    }
}

/// Says the same at growing intervals, and something else at once.
#[derive(Debug)]
struct Lines {
    /// What was said last, and when it may be said again.
    last: Option<(String, Instant)>,
    pauses: Backoff,
}

impl Lines {
    const fn new() -> Self {
        Self {
            last: None,
            pauses: SAY_AGAIN,
        }
    }

    /// Logs `words` if it is time to, `now`; and how long until the next time.
    fn say(&mut self, words: &str, begin: Instant, now: Instant) -> Duration {
        match &self.last {
            Some((said, due)) if said == words && now < *due => return due.duration_since(now),
            Some((said, _)) if said == words => {}
            _ => self.pauses.reset(),
        }
        match now.duration_since(begin).as_secs() {
            0 => tracing::warn!("{words}"),
            seconds => tracing::warn!("{words} (for {seconds} s)"),
        }
        let pause = self.pauses.next_pause();
        self.last = Some((words.to_owned(), now + pause));
        pause
    }
}

/// Why there is no answer, with what to look at.
fn cause(error: &(dyn StdError + 'static)) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut kinds = Vec::new();
    let mut next = Some(error);
    while let Some(cause) = next {
        let io = cause.downcast_ref::<std::io::Error>();
        kinds.extend(io.map(std::io::Error::kind));
        let text = cause.to_string();
        // Many repeat what is below them.
        if !words.iter().any(|it| it.contains(&text)) {
            words.push(text);
        }
        next = cause.source();
    }
    // A certificate can say as much as it likes.
    let text: String = words.join(": ").chars().take(LONGEST_CAUSE).collect();
    let text = text
        .strip_prefix("client error (Connect): ")
        .unwrap_or(&text);
    if kinds.contains(&ErrorKind::TimedOut) {
        let seconds = CONNECT.as_secs();
        format!(
            "no connection within {seconds} s: check routes, firewalls and network policies ({text})"
        )
    } else if kinds.contains(&ErrorKind::ConnectionRefused) {
        format!("nothing listens there: check the address, and that the API server runs ({text})")
    } else if text.contains("certificate") {
        format!(
            "TLS fails: check the certificate authority of the kubeconfig or service account, and the name of the server ({text})"
        )
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_named_once_with_what_to_look_at() {
        let io = |kind| std::io::Error::new(kind, "os says so");
        for (error, said) in [
            (
                io(ErrorKind::TimedOut),
                "no connection within 5 s: check routes",
            ),
            (
                io(ErrorKind::ConnectionRefused),
                "nothing listens there: check the address",
            ),
            (
                std::io::Error::other("invalid peer certificate: UnknownIssuer"),
                "TLS fails: check the certificate authority",
            ),
            (std::io::Error::other("dns error"), "dns error"),
        ] {
            let words = cause(&error);
            assert!(words.starts_with(said), "{words}");
        }
        assert_eq!(cause(&io(ErrorKind::Other)), "os says so");
    }

    #[test]
    fn the_same_is_said_again_after_10_20_40_and_60_seconds_and_something_else_at_once() {
        let (mut lines, begin) = (Lines::new(), Instant::now());
        let (mut now, second) = (begin, Duration::from_secs(1));
        for seconds in [10, 20, 40, 60, 60] {
            let pause = lines.say("away", begin, now);
            assert_eq!(pause, seconds * second);
            let left = lines.say("away", begin, now + second);
            assert_eq!(left + second, pause);
            now += pause;
        }
        lines.say("away", begin, now);
        assert_eq!(lines.say("refused", begin, now), 10 * second);
    }
}
