//! Rules of node-readiness-controller, written anew as ours, with what differs.

use std::path::PathBuf;

use anyhow::{Result, bail};
use evenkeel_api::readiness::NrcRule;
use serde_json::json;

use crate::Ending;
use crate::arguments::{Format, Output};
use crate::{input, output};

pub(super) fn run(files: &[PathBuf], format: &Output) -> Result<Ending> {
    let mut rules = Vec::new();
    let mut notes = Vec::new();
    for source in input::sources(files)? {
        let found = match NrcRule::read_all(&source.name, &source.bytes) {
            Ok(found) => found,
            Err(problems) => bail!("{problems}"),
        };
        for rule in found {
            match rule.import() {
                Ok((ours, differences)) => {
                    notes.extend(
                        differences
                            .into_iter()
                            .map(|it| format!("rule {}: {it}", rule.name)),
                    );
                    rules.push(ours);
                }
                Err(problems) => bail!("rule {} cannot be one of ours: {problems}", rule.name),
            }
        }
    }
    let text = match (format.format, rules.as_slice()) {
        (Format::Json, [one]) => output::document(one, Format::Json)?,
        (Format::Json, all) => {
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": all });
            output::document(&list, Format::Json)?
        }
        (Format::Text | Format::Yaml, all) => {
            let documents = all.iter().map(|it| output::document(it, Format::Yaml));
            documents.collect::<Result<Vec<_>>>()?.join("---\n")
        }
    };
    output::warn(notes);
    output::print(text.as_bytes())?;
    Ok(Ending::well_if(true))
}
