//! Whether a program works, in the words of its parts: named checks for `/readyz`, heartbeats for
//! `/healthz`.
//!
//! A check says whether a part does its work. A heartbeat says that a part is not stuck; one that is
//! too old means that only a restart helps.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What all parts of a program have said about themselves. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<Mutex<HealthState>>);

#[derive(Debug, Default)]
struct HealthState {
    /// By name; a reason if it is not ready.
    checks: BTreeMap<String, Option<String>>,
    heartbeats: BTreeMap<String, Beat>,
    /// By name: what is wrong, and makes nobody restart the program or take it for unready.
    notes: BTreeMap<String, String>,
    stopping: bool,
}

#[derive(Debug)]
struct Beat {
    last: Instant,
    limit: Duration,
}

/// One part of a program that can be ready or not. Not ready until it says so; stays as last said when
/// dropped, because a part that is gone does not work.
#[derive(Debug, Clone)]
pub struct Check {
    name: String,
    health: Health,
}

/// One part of a program that says regularly that it is not stuck.
#[derive(Debug)]
pub struct Heartbeat {
    name: String,
    health: Health,
}

/// What a page of ours says: good or bad, and in words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) good: bool,
    pub(crate) words: String,
}

impl Health {
    /// A new part by the name `name`, which is not ready yet.
    pub fn check(&self, name: impl Into<String>) -> Check {
        let check = Check {
            name: name.into(),
            health: self.clone(),
        };
        check.not_ready("has not started yet");
        check
    }

    /// A part by the name `name` that will beat at least once in every `limit`, from now on.
    pub fn heartbeat(&self, name: impl Into<String>, limit: Duration) -> Heartbeat {
        let name = name.into();
        let last = Instant::now();
        self.state()
            .heartbeats
            .insert(name.clone(), Beat { last, limit });
        Heartbeat {
            name,
            health: self.clone(),
        }
    }

    /// What is to be known about the part `name`, whatever its check says; or that there is nothing.
    pub(crate) fn note(&self, name: &str, words: Option<String>) {
        let mut state = self.state();
        match words {
            Some(words) => state.notes.insert(name.to_owned(), words),
            None => state.notes.remove(name),
        };
    }

    /// From now on the program is not ready, because it ends.
    pub(crate) fn stopping(&self) {
        self.state().stopping = true;
    }

    pub(crate) fn readiness(&self) -> Verdict {
        let state = self.state();
        let mut verdict = Verdict {
            good: true,
            words: String::new(),
        };
        if state.stopping {
            verdict.add("program", Some("is being stopped"));
        }
        for (name, reason) in &state.checks {
            verdict.add(name, reason.as_deref());
        }
        // Who is not ready has said why.
        let is_said = |name: &String| state.checks.get(name).is_some_and(Option::is_some);
        for (name, words) in state.notes.iter().filter(|(name, _)| !is_said(name)) {
            verdict.remark(name, words);
        }
        verdict
    }

    pub(crate) fn liveness(&self, now: Instant) -> Verdict {
        let mut verdict = Verdict {
            good: true,
            words: String::new(),
        };
        let state = self.state();
        for (name, words) in &state.notes {
            verdict.remark(name, words);
        }
        for (name, beat) in &state.heartbeats {
            let age = now.saturating_duration_since(beat.last);
            let late = (age > beat.limit).then(|| {
                format!(
                    "last heartbeat {:.1} s ago, the limit is {:.1} s",
                    age.as_secs_f64(),
                    beat.limit.as_secs_f64()
                )
            });
            verdict.add(name, late.as_deref());
        }
        verdict
    }

    fn state(&self) -> MutexGuard<'_, HealthState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Check {
    /// It does its work.
    pub fn ready(&self) {
        self.set(None);
    }

    /// It does not do its work, because of `reason`.
    pub fn not_ready(&self, reason: impl Into<String>) {
        self.set(Some(reason.into()));
    }

    fn set(&self, reason: Option<String>) {
        self.health.state().checks.insert(self.name.clone(), reason);
    }
}

impl Heartbeat {
    /// It is not stuck.
    pub fn beat(&self) {
        if let Some(beat) = self.health.state().heartbeats.get_mut(&self.name) {
            beat.last = Instant::now();
        }
    }

    /// It has ended as it should; nobody waits for its next beat. (Dropping it does not say that: a
    /// part that broke drops it too.)
    pub fn end(self) {
        self.health.state().heartbeats.remove(&self.name);
    }
}

impl Verdict {
    /// Something to know that is neither good nor bad.
    fn remark(&mut self, name: &str, words: &str) {
        let line = format!("[!] {name}: {words}\n");
        self.words.push_str(&line);
    }

    fn add(&mut self, name: &str, reason: Option<&str>) {
        let line = match reason {
            None => format!("[+] {name}\n"),
            Some(reason) => format!("[-] {name}: {reason}\n"),
        };
        self.good &= reason.is_none();
        self.words.push_str(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_ready_when_every_part_is_and_the_others_are_named_with_their_reasons() {
        let health = Health::default();
        assert!(health.readiness().good);
        let (node, config) = (health.check("node"), health.check("config"));
        node.ready();
        let seen = health.readiness();
        assert!(!seen.good);
        assert_eq!(seen.words, "[-] config: has not started yet\n[+] node\n");
        config.ready();
        assert!(health.readiness().good);
        node.not_ready("the API server is away");
        drop(node);
        assert_eq!(
            health.readiness().words,
            "[+] config\n[-] node: the API server is away\n"
        );
    }

    #[test]
    fn a_note_is_on_both_pages_and_makes_neither_bad() {
        let health = Health::default();
        let check = health.check("api-server");
        check.not_ready("no route");
        health.note("api-server", Some("no route".to_owned()));
        let line = "[!] api-server: no route\n";
        assert_eq!(health.liveness(Instant::now()).words, line);
        assert!(health.liveness(Instant::now()).good);
        assert_eq!(health.readiness().words, "[-] api-server: no route\n");
        check.ready();
        assert!(health.readiness().good);
        assert_eq!(health.readiness().words, format!("[+] api-server\n{line}"));
        health.note("api-server", None);
        assert_eq!(health.liveness(Instant::now()).words, "");
    }

    #[test]
    fn a_program_that_stops_is_not_ready() {
        let health = Health::default();
        health.stopping();
        assert_eq!(health.readiness().words, "[-] program: is being stopped\n");
    }

    #[test]
    fn a_heartbeat_older_than_its_limit_is_bad_until_the_next_one() {
        let health = Health::default();
        let worker = health.heartbeat("worker", Duration::from_secs(5));
        let now = Instant::now();
        assert!(health.liveness(now).good);
        let late = health.liveness(now + Duration::from_mins(1));
        assert!(!late.good);
        assert!(
            late.words
                .starts_with("[-] worker: last heartbeat 60.0 s ago"),
            "{}",
            late.words
        );
        worker.beat();
        assert!(health.liveness(Instant::now()).good);
        worker.end();
        assert!(health.liveness(now + Duration::from_mins(1)).good);
    }

    #[test]
    fn a_part_that_broke_without_ending_is_noticed() {
        let health = Health::default();
        drop(health.heartbeat("worker", Duration::from_secs(5)));
        assert!(
            !health
                .liveness(Instant::now() + Duration::from_secs(6))
                .good
        );
    }
}
