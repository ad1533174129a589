//! `evenkeel check`: validates any file that Evenkeel reads, and names every problem.

use std::fmt::Write;

use anyhow::Result;
use serde_json::json;

use crate::arguments::{CheckArguments, Format};
use crate::output::{self, Paint};
use crate::{Ending, input};

pub(crate) fn run(arguments: &CheckArguments) -> Result<Ending> {
    let format = arguments.output.format;
    let paint = Paint::for_stdout();
    let mut text = String::new();
    let mut files = Vec::new();
    let mut valid = true;
    for source in input::sources(&arguments.files)? {
        match input::documents(&source) {
            Ok((documents, warnings)) => {
                output::warn(&warnings);
                let kinds: Vec<_> = documents
                    .iter()
                    .map(evenkeel_api::document::Document::kind)
                    .collect();
                let _ = writeln!(
                    text,
                    "{}: {} ({})",
                    source.name,
                    paint.green("valid"),
                    kinds.join(", ")
                );
                files.push(json!({"file": source.name, "valid": true, "kinds": kinds, "problems": [], "warnings": warnings}));
            }
            Err(problems) => {
                valid = false;
                for problem in &problems {
                    let _ = writeln!(text, "{} {problem}", paint.red("!"));
                }
                files.push(json!({"file": source.name, "valid": false, "kinds": [], "problems": problems, "warnings": []}));
            }
        }
    }
    if format != Format::Text {
        text = output::document(&json!({"valid": valid, "files": files}), format)?;
    }
    output::print(text.as_bytes())?;
    Ok(if valid { Ending::Well } else { Ending::Differs })
}
