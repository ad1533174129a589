//! All that happens to objects of one kind, in its order: polling would miss what lasts only for a moment.

use std::path::PathBuf;
use std::process::Command;

use evenkeel_testbed::process::Running;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::{Doing, Error, Result};
use serde_json::{Deserializer, Value};

use crate::installed::Installed;

/// A `kubectl get --watch` that runs until this is dropped.
pub(crate) struct Watch {
    program: Running,
    log: PathBuf,
    _files: Scratch,
}

impl Watch {
    /// Watches what `kubectl get` with these arguments names.
    pub(crate) fn of(installed: &Installed, arguments: &[&str]) -> Result<Self> {
        let files = Scratch::new("watch")?;
        let log = files.path().join("events");
        let mut command = Command::new(installed.control_plane().kubectl_program());
        command
            .arg("--kubeconfig")
            .arg(installed.login())
            .arg("--cache-dir")
            .arg(files.path())
            .args(["get", "--watch", "--output-watch-events", "-o", "json"])
            .args(arguments);
        Ok(Self {
            program: Running::start(&format!("watch of {}", arguments[0]), &mut command, &log)?,
            log,
            _files: files,
        })
    }

    /// What happened so far: first all that was there, then each change. Objects that are gone are `null`.
    pub(crate) fn seen(&mut self) -> Result<Vec<(String, Value)>> {
        self.program.still_runs()?;
        let text = std::fs::read_to_string(&self.log).doing(|| "cannot read the watch")?;
        let mut seen = Vec::new();
        for event in Deserializer::from_str(&text).into_iter::<Value>() {
            let mut event = match event {
                Ok(event) => event,
                // It is being written.
                Err(error) if error.is_eof() => break,
                Err(error) => return Err(Error::failed(format!("no watch event: {error}"))),
            };
            let uid = event["object"]["metadata"]["uid"].as_str();
            let uid = uid.unwrap_or_default().to_owned();
            let is_gone = event["type"] == "DELETED";
            let object = event["object"].take();
            seen.push((uid, if is_gone { Value::Null } else { object }));
        }
        Ok(seen)
    }
}
