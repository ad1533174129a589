//! What a panic costs. In work on one object it costs that object an error; in a part of the program it
//! costs that part a new start; anywhere else the program ends, and whoever started it starts it again.
//!
//! A half-dead program is worse than a dead one, so containing a panic is a choice, made where the work
//! leaves nothing half done: [`contain`], [`contain_work`], [`supervise`], [`contain_thread`].

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use evenkeel_api::backoff::Backoff;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

#[cfg(panic = "abort")]
compile_error!(
    "a program of ours contains panics: it must unwind, so no profile may say panic = \"abort\""
);

/// The longest pause before a part of the program starts again; one that ran for longer than this begins with the first
/// one again.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), LONGEST_PAUSE);
/// In a debug build, the part and the object whose work panics: `rollout/worker`, or `rollout/` for the part itself. So
/// tests see what it costs.
const REHEARSAL: &str = "EVENKEEL_PANIC";

thread_local! {
    /// Whether somebody on this thread catches a panic.
    static IS_CONTAINED: Cell<bool> = const { Cell::new(false) };
    /// The part whose tasks run on this thread, if they may end by a panic.
    static THREAD: Cell<Option<&'static str>> = const { Cell::new(None) };
    /// Where the last panic was, for who caught it.
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PartLabels {
    part: String,
}

/// Panics that were contained, by part.
pub(crate) static COUNTS: LazyLock<Family<PartLabels, Counter>> = LazyLock::new(Family::default);

/// From now on a panic that nobody contains ends the program. Called first in a program's `main`.
pub fn end_the_program() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if IS_CONTAINED.get() {
            let place = panic.location().map(ToString::to_string);
            PLACE.set(place.unwrap_or_default());
            return;
        }
        if let Some(part) = THREAD.get() {
            count(part).inc();
            tracing::error!(
                category = "Panic",
                "a task of {part} ended: {}",
                words_of_hook(panic)
            );
            return;
        }
        tracing::error!(
            category = "Panic",
            "the program ends: {}",
            words_of_hook(panic)
        );
        usual(panic);
        std::process::abort();
    }));
}

/// What `work` on `object` comes to, or nothing if it panics.
pub fn contain<R>(part: &str, object: &str, work: impl FnOnce() -> R) -> Option<R> {
    let guard = Contained::enter();
    let ended = catch_unwind(AssertUnwindSafe(|| {
        rehearse(part, object);
        work()
    }));
    drop(guard);
    ended
        .map_err(|panic| note(part, object, panic.as_ref()))
        .ok()
}

/// The same for work that waits.
pub async fn contain_work<R>(part: &str, object: &str, work: impl Future<Output = R>) -> Option<R> {
    let work = Guarded(Box::pin(async {
        rehearse(part, object);
        work.await
    }));
    work.await
        .map_err(|panic| note(part, object, panic.as_ref()))
        .ok()
}

/// Runs `work` until it ends; after a panic it begins anew.
pub async fn supervise(part: &str, work: impl AsyncFn()) {
    let mut pauses = PAUSES;
    loop {
        let begin = Instant::now();
        if contain_work(part, "", work()).await.is_some() {
            return;
        }
        let pause = pause_after(&mut pauses, begin.elapsed());
        tracing::error!("{part} restarts in {pause:?}");
        tokio::time::sleep(pause).await;
    }
}

/// The pause of a part that ran for so long.
fn pause_after(pauses: &mut Backoff, ran: Duration) -> Duration {
    if ran > LONGEST_PAUSE {
        pauses.reset();
    }
    pauses.next_pause()
}

/// A panic on this thread ends the task it is in, and nothing else: for threads whose tasks are waited for.
pub fn contain_thread(part: &'static str) {
    THREAD.set(Some(part));
}

struct Guarded<F>(Pin<Box<F>>);

impl<F: Future> Future for Guarded<F> {
    type Output = std::thread::Result<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let _guard = Contained::enter();
        let polled = catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context)));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

/// While it lives, somebody on this thread catches a panic.
struct Contained {
    before: bool,
}

impl Contained {
    fn enter() -> Self {
        let before = IS_CONTAINED.replace(true);
        Self { before }
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        IS_CONTAINED.set(self.before);
    }
}

fn count(part: &str) -> Counter {
    let part = part.to_owned();
    COUNTS.get_or_create_owned(&PartLabels { part })
}

fn note(part: &str, object: &str, panic: &(dyn Any + Send)) {
    count(part).inc();
    let (words, place) = (words(panic), PLACE.take());
    if object.is_empty() {
        tracing::error!(
            category = "Panic",
            "internal error in {part} (please report): panicked at {place}: {words}"
        );
    } else {
        tracing::error!(
            category = "Panic",
            object,
            "internal error in {part} (please report): work on {object} panicked at {place} and was abandoned: {words}"
        );
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    match panic.downcast_ref::<&'static str>() {
        Some(words) => words,
        None => panic
            .downcast_ref::<String>()
            .map_or("no message", String::as_str),
    }
}

fn words_of_hook(panic: &PanicHookInfo<'_>) -> String {
    let place = panic.location().map(ToString::to_string);
    let words = panic.payload_as_str().unwrap_or("no message");
    format!(
        "internal error (please report): panicked at {}: {words}",
        place.unwrap_or_default()
    )
}

fn rehearse(part: &str, object: &str) {
    let rehearsed = cfg!(debug_assertions)
        && std::env::var(REHEARSAL).is_ok_and(|it| it.split_once('/') == Some((part, object)));
    assert!(!rehearsed, "a rehearsal");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_the_work_on_one_object_is_counted_and_the_others_go_on() {
        let done: Vec<_> = ["a", "b", "c"]
            .into_iter()
            .filter_map(|it| {
                contain("test-objects", it, || {
                    assert!(it != "b", "b is bad");
                    it
                })
            })
            .collect();
        assert_eq!(done, ["a", "c"]);
        assert_eq!(count("test-objects").get(), 1);
        assert!(!IS_CONTAINED.get());
    }

    #[tokio::test]
    async fn a_panic_after_waiting_is_contained_and_what_runs_next_to_it_is_not() {
        let bad = contain_work("test-waits", "bad", async {
            tokio::task::yield_now().await;
            std::panic::panic_any("bad");
        });
        let good = async {
            for _ in 0..5 {
                assert!(!IS_CONTAINED.get(), "nobody catches this one");
                tokio::task::yield_now().await;
            }
            7
        };
        let (bad, good): (Option<()>, _) = tokio::join!(bad, good);
        assert_eq!((bad, good), (None, 7));
        assert_eq!(count("test-waits").get(), 1);
    }

    #[tokio::test]
    async fn a_part_that_panics_begins_anew_until_it_ends() {
        let begun = Cell::new(0);
        supervise("test-part", async || {
            begun.update(|it| it + 1);
            assert!(begun.get() > 1, "not yet");
        })
        .await;
        assert_eq!(begun.get(), 2);
        assert_eq!(count("test-part").get(), 1);
    }

    #[test]
    fn pauses_double_up_to_a_minute_and_begin_anew_after_a_good_while() {
        let mut pauses = PAUSES;
        let mut seconds_after = |ran| pause_after(&mut pauses, ran).as_secs();
        let short = Duration::from_secs(2);
        let seconds: Vec<u64> = (0..8).map(|_| seconds_after(short)).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(seconds_after(Duration::from_mins(2)), 1);
        assert_eq!(seconds_after(short), 2);
    }
}
