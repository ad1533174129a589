//! The values of variables in commands: fields of the Node at once, scripts concurrently,
//! once for each services ConfigMap, with a limit.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenkeel_api::windows::services::Services;
use evenkeel_host::windows::script;
use evenkeel_plan::machine::place;
use evenkeel_plan::windows::variables::{NoValue, command};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;

use super::trigger::{Change, Trigger};
use crate::reconcile::blocking;

/// A script that is quick is waited for, so that its service comes with the others.
const QUICK: Duration = Duration::from_secs(10);

/// Commands by the place of their service, and why some are missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Commands {
    pub(crate) found: BTreeMap<String, String>,
    /// What has no value, in words; a script that still runs is not among them.
    pub(crate) missing: Vec<String>,
    /// A script still runs.
    pub(crate) waits: bool,
}

/// What a script came to.
#[derive(Debug)]
enum Outcome {
    Runs(Instant),
    Printed(String),
    Failed(String),
    /// It failed with these words, and runs once more.
    RunsAgain(String),
}

/// Scripts of the services with one hash, by their path.
pub(crate) struct Scripts {
    hash: String,
    outcomes: BTreeMap<String, Outcome>,
    limit: Duration,
    triggers: UnboundedSender<Trigger>,
}

impl Scripts {
    /// Scripts that may take `limit` each.
    pub(crate) fn new(limit: Duration, triggers: UnboundedSender<Trigger>) -> Self {
        Self {
            hash: String::new(),
            outcomes: BTreeMap::new(),
            limit,
            triggers,
        }
    }

    /// The commands of `services` with this hash. Scripts that have not run yet are started.
    pub(crate) fn commands(&mut self, services: &Services, node: &Value, hash: &str) -> Commands {
        if self.hash != hash {
            hash.clone_into(&mut self.hash);
            self.outcomes.clear();
        }
        filled(services, Some(node), |path| self.value(path))
    }

    /// The script at `path` of the services with this hash has ended. Says whether that is a change: one that
    /// fails as before is none.
    pub(crate) fn observe(
        &mut self,
        hash: &str,
        path: String,
        printed: Result<String, String>,
    ) -> bool {
        if self.hash != hash {
            return false;
        }
        let failed = printed.as_ref().err().cloned();
        let outcome = printed.map_or_else(Outcome::Failed, Outcome::Printed);
        match self.outcomes.insert(path, outcome) {
            Some(Outcome::RunsAgain(before)) => failed != Some(before),
            _ => true,
        }
    }

    /// Runs scripts that failed once more. Until they end they have failed as they did.
    pub(crate) fn try_again(&mut self) {
        for (path, outcome) in &mut self.outcomes {
            if let Outcome::Failed(words) = outcome {
                *outcome = Outcome::RunsAgain(std::mem::take(words));
                run(path, &self.hash, self.limit, &self.triggers);
            }
        }
    }

    /// The scripts that run, in words.
    pub(crate) fn running(&self) -> String {
        let running = |(path, outcome): (&String, &Outcome)| {
            matches!(outcome, Outcome::Runs(_)).then(|| path.clone())
        };
        let paths: Vec<String> = self.outcomes.iter().filter_map(running).collect();
        format!("script {} to end", paths.join(", "))
    }

    /// How long the scripts that run may still be called quick.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let since = self.outcomes.values().filter_map(|outcome| match outcome {
            Outcome::Runs(since) => Some(since.elapsed()),
            _ => None,
        });
        since
            .min()
            .and_then(|latest| QUICK.checked_sub(latest))
            .filter(|left| !left.is_zero())
    }

    /// What the script printed; `None` while it runs.
    fn value(&mut self, path: &str) -> Option<Result<String, NoValue>> {
        match self.outcomes.get(path) {
            Some(Outcome::Printed(printed)) => Some(Ok(printed.clone())),
            Some(Outcome::Failed(words) | Outcome::RunsAgain(words)) => {
                Some(Err(NoValue::NotYet(words.clone())))
            }
            Some(Outcome::Runs(_)) => None,
            None => {
                let begun = Outcome::Runs(Instant::now());
                self.outcomes.insert(path.to_owned(), begun);
                run(path, &self.hash, self.limit, &self.triggers);
                None
            }
        }
    }
}

/// Runs the script at `path` for the services with this hash, and puts what it came to into the queue.
fn run(path: &str, hash: &str, limit: Duration, triggers: &UnboundedSender<Trigger>) {
    let (path, hash, triggers) = (path.to_owned(), hash.to_owned(), triggers.clone());
    tokio::spawn(async move {
        let of = path.clone();
        let ran = blocking(move || script::output_of(&of, limit)).await;
        let printed = match ran {
            Ok(printed) => printed.map_err(|error| error.with_causes()),
            Err(reason) => Err(reason.text),
        };
        // Without a worker nobody wants to know.
        _ = triggers.send(Trigger::System(Change::Script {
            hash,
            path,
            printed,
        }));
    });
}

/// The commands of `services`, for whoever can wait: each script is run at most for `limit`.
pub(crate) fn commands_now(services: &Services, limit: Duration) -> Commands {
    filled(services, None, |path| {
        let printed = script::output_of(path, limit);
        Some(printed.map_err(|error| NoValue::NotYet(error.with_causes())))
    })
}

fn filled(
    services: &Services,
    node: Option<&Value>,
    mut script: impl FnMut(&str) -> Option<Result<String, NoValue>>,
) -> Commands {
    let mut commands = Commands::default();
    for service in services.creation_order() {
        let mut waits = false;
        let text = command(service, node, |path| {
            script(path).unwrap_or_else(|| {
                waits = true;
                Err(NoValue::NotYet(format!("script {path} is still running")))
            })
        });
        match text {
            Ok(text) => {
                commands.found.insert(place::service(&service.name), text);
            }
            Err(_) if waits => commands.waits = true,
            Err(missing) => {
                let words = missing.iter().map(|it| it.words().to_owned());
                commands.missing.extend(words);
            }
        }
    }
    commands
}
