//! The values of variables in commands: fields of the Node at once, scripts once for each services
//! ConfigMap, with a limit.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_api::services::Services;
use evenkeel_host::windows::script;
use evenkeel_plan::place;
use evenkeel_plan::variables::{NoValue, command};
use serde_json::Value;

/// Commands by the place of their service, and why some are missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Commands {
    pub(crate) found: BTreeMap<String, String>,
    pub(crate) missing: Vec<String>,
}

/// What scripts have printed, by path. A script that failed is run again when it is asked for next.
#[derive(Debug, Default)]
pub(crate) struct Scripts {
    printed: BTreeMap<String, String>,
}

impl Scripts {
    /// The commands of `services`. Waits for scripts that have not run yet, each at most for `limit`.
    pub(crate) fn commands(
        &mut self,
        services: &Services,
        node: Option<&Value>,
        limit: Duration,
    ) -> Commands {
        let mut commands = Commands::default();
        for service in services.creation_order() {
            let filled = command(service, node, |path| self.output(path, limit));
            match filled {
                Ok(text) => {
                    commands.found.insert(place::service(&service.name), text);
                }
                Err(missing) => {
                    let words = missing.iter().map(|it| it.words().to_owned());
                    commands.missing.extend(words);
                }
            }
        }
        commands
    }

    fn output(&mut self, path: &str, limit: Duration) -> Result<String, NoValue> {
        if let Some(printed) = self.printed.get(path) {
            return Ok(printed.clone());
        }
        let printed =
            script::output_of(path, limit).map_err(|error| NoValue::NotYet(error.with_causes()))?;
        self.printed.insert(path.to_owned(), printed.clone());
        Ok(printed)
    }
}
