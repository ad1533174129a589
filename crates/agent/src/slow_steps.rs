//! The steps of an update that is under way on the machine: one that takes long is named on the Node.

use std::time::Duration;

use evenkeel_host::execute::Progress;
use evenkeel_plan::machine::waiting::Waiting;
use jiff::Timestamp;
use tokio::sync::watch;

/// The step that an update is at. Clones show the same.
#[derive(Debug, Clone)]
pub(crate) struct Steps(watch::Sender<String>);

impl Steps {
    /// Before the first step, while `what` is waited for.
    pub(crate) fn after(what: &str) -> Self {
        Self(watch::Sender::new(what.to_owned()))
    }

    /// Takes note of the step that begins.
    pub(crate) fn show(&self, progress: &Progress<'_>) {
        let Progress { done, steps, doing } = progress;
        let at = if done < steps {
            format!("step {} of {steps} ({doing})", done + 1)
        } else {
            format!("the last work after all {steps} steps ({doing})")
        };
        self.0.send_replace(at);
    }

    /// Does `work`, and `tell`s of each of its steps that takes long.
    pub(crate) async fn told_during<T>(
        &self,
        work: impl Future<Output = T>,
        tell: impl AsyncFn(String),
    ) -> T {
        tokio::select! {
            done = work => done,
            () = self.tell(tell) => std::future::pending().await,
        }
    }

    async fn tell(&self, tell: impl AsyncFn(String)) {
        let mut steps = self.0.subscribe();
        let mut waiting = Waiting::default();
        loop {
            let step = steps.borrow_and_update().clone();
            let next = match waiting.on(&step, Timestamp::now()) {
                Ok(text) => {
                    tell(text).await;
                    Duration::MAX
                }
                Err(left) => left,
            };
            // Either way it is looked at again; without a sender there is nobody who would go on.
            _ = tokio::time::timeout(next, steps.changed()).await;
        }
    }
}
