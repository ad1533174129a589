//! Pending Events: those that could not be sent before the machine went down. They are kept on its disk, and sent when it
//! is up again.

use evenkeel_daemon::{Event, Events};
use evenkeel_host::disk::Host;
use evenkeel_host::execute::State;

/// The name of the note, next to the journal.
const NOTE: &str = "events";

/// Keeps the Events that the API server has not got. What cannot be written is lost: no boot waits for it.
pub(crate) fn keep<H: Host>(host: &H, state: &State, events: &Events) {
    if let Err(error) = state.keep_note(host, NOTE, &text(&events.pending())) {
        tracing::warn!("{}", error.with_causes());
    }
}

/// Sends the Events that were kept, once.
pub(crate) fn tell<H: Host>(host: &H, state: &State, events: &Events) {
    for event in take(host, state) {
        tracing::info!(reason = event.reason, "{}", event.note);
        events.publish(event);
    }
}

fn text(pending: &[Event]) -> Vec<u8> {
    serde_json::to_vec(pending).unwrap_or_default()
}

fn take<H: Host>(host: &H, state: &State) -> Vec<Event> {
    let kept = state.note(host, NOTE).and_then(|kept| {
        if kept.is_some() {
            state.forget_note(host, NOTE)?;
        }
        Ok(kept)
    });
    match kept {
        Ok(kept) => serde_json::from_slice(&kept.unwrap_or_default()).unwrap_or_default(),
        Err(error) => {
            tracing::warn!("{}", error.with_causes());
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_api::notice::Severity;
    use evenkeel_host::execute::Claim;
    use evenkeel_host::simulated::SimulatedHost;
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;

    /// A machine that an agent has been on.
    fn claimed() -> (SimulatedHost, State) {
        let (host, state) = (SimulatedHost::new(), State::at("/state"));
        drop(Claim::take(&host, &state).unwrap());
        (host, state)
    }

    #[test]
    fn what_was_kept_is_there_after_a_boot_and_only_once() {
        let (host, state) = claimed();
        assert!(take(&host, &state).is_empty());
        let pending = ["DrainRequested", "Rebooting"].map(|reason| Event {
            object: ObjectReference::default(),
            severity: Severity::Normal,
            reason: reason.to_owned(),
            action: "Update".to_owned(),
            note: "new".to_owned(),
        });
        state.keep_note(&host, NOTE, &text(&pending)).unwrap();
        let host = host.cut(&mut |_| 0);
        assert_eq!(take(&host, &state), pending);
        let host = host.cut(&mut |_| 0);
        assert!(take(&host, &state).is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_thrown_away() {
        let (host, state) = claimed();
        state.keep_note(&host, NOTE, b"[{]").unwrap();
        assert!(take(&host, &state).is_empty());
        assert_eq!(state.note(&host, NOTE).unwrap(), None);
    }
}
