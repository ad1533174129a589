//! `evenkeel check`: validates any file that Evenkeel reads, and names every problem.

use std::fmt::Write;

use anyhow::Result;
use evenkeel_api::payload::Opened;
use evenkeel_api::trust_bundle::TrustBundle;
use serde_json::json;

use crate::arguments::{CheckArguments, Format};
use crate::output::{self, Paint};
use crate::{Ending, input, payload};

pub(crate) fn run(arguments: &CheckArguments) -> Result<Ending> {
    let format = arguments.output.format;
    let paint = Paint::for_stdout();
    let mut text = String::new();
    let mut files = Vec::new();
    let mut valid = true;
    for source in input::sources(&arguments.files)? {
        if let Some(bundle) = bundle(&source) {
            let (problems, warnings) = (bundle.problems, bundle.warnings);
            output::warn(&warnings);
            let is_valid = problems.is_empty();
            valid &= is_valid;
            for problem in &problems {
                let _ = writeln!(text, "{} {problem}", paint.red("!"));
            }
            if is_valid {
                let (name, count) = (&source.name, bundle.certificates.len());
                let word = paint.green("valid");
                let _ = writeln!(text, "{name}: {word} (trust bundle, {count} certificates)");
            }
            files.push(json!({"file": source.name, "valid": is_valid, "kinds": ["trust bundle"], "problems": problems, "warnings": warnings}));
            continue;
        }
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
    if let Some(folder) = &arguments.payload {
        let shown = folder.display();
        match payload::open(folder)? {
            Ok(opened) => {
                output::warn(&opened.warnings);
                let Opened {
                    manifest, warnings, ..
                } = opened;
                let (version, count) = (&manifest.version, manifest.files.len());
                let _ = writeln!(
                    text,
                    "{shown}: {} (payload {version}, {count} files)",
                    paint.green("valid")
                );
                files.push(json!({"file": shown.to_string(), "valid": true, "kinds": ["payload"], "problems": [], "warnings": warnings}));
            }
            Err(problems) => {
                valid = false;
                for problem in &problems {
                    let _ = writeln!(text, "{} {shown}/{problem}", paint.red("!"));
                }
                let placed = problems.iter().map(|problem| {
                    let (file, message) = problem.split_once(": ").unwrap_or(("", problem));
                    json!({"place": {"file": format!("{shown}/{file}")}, "message": message})
                });
                let problems: Vec<_> = placed.collect();
                files.push(json!({"file": shown.to_string(), "valid": false, "kinds": ["payload"], "problems": problems, "warnings": []}));
            }
        }
    }
    if format != Format::Text {
        text = output::document(&json!({"valid": valid, "files": files}), format)?;
    }
    output::print(text.as_bytes())?;
    Ok(if valid { Ending::Well } else { Ending::Differs })
}

/// The bundle of certificates that a file is, with all that is wrong with it.
fn bundle(source: &input::Source) -> Option<TrustBundle> {
    let text = std::str::from_utf8(&source.bytes).ok()?;
    if !TrustBundle::is_one(text) {
        return None;
    }
    let now = jiff::Timestamp::now().as_second();
    let mut bundle = TrustBundle::read(&source.name, text, now);
    let unfit = bundle.unfit(&source.name, text);
    bundle.problems.splice(..0, unfit);
    Some(bundle)
}
