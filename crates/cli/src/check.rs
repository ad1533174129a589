//! `evenkeel check`: validates any file that Evenkeel reads, and names every problem.

use std::fmt::Write;

use anyhow::Result;
use evenkeel_api::document::Document;
use evenkeel_api::field::Field;
use evenkeel_api::fleet::rollout_policy::RolloutPolicySpec;
use evenkeel_api::machine::machine_config::MachineConfig;
use evenkeel_api::windows::payload::Opened;
use evenkeel_api::windows::trust_bundle::TrustBundle;
use evenkeel_api::{Place, Problem, Warning};
use evenkeel_plan::fleet::policy::RolloutPolicy;
use evenkeel_plan::machine::standing;
use serde_json::json;

use crate::arguments::{CheckArguments, Format};
use crate::output::{self, Paint};
use crate::windows::payload;
use crate::{Ending, input};

pub(crate) fn run(arguments: &CheckArguments) -> Result<Ending> {
    let format = arguments.output.format;
    let paint = Paint::for_stdout();
    let mut text = String::new();
    let mut files = Vec::new();
    let mut valid = true;
    for source in input::sources(&arguments.files)? {
        let Verdict {
            kinds,
            shown,
            problems,
            warnings,
        } = Verdict::of(&source);
        let name = &source.name;
        output::warn(&warnings);
        for problem in &problems {
            let _ = writeln!(text, "{} {problem}", paint.red("!"));
        }
        let is_valid = problems.is_empty();
        valid &= is_valid;
        if is_valid {
            let (word, shown) = (paint.green("valid"), shown.join(", "));
            let _ = writeln!(text, "{name}: {word} ({shown})");
        }
        files.push(json!({"file": name, "valid": is_valid, "kinds": kinds, "problems": problems, "warnings": warnings}));
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
    Ok(Ending::well_if(valid))
}

/// What a configuration says that a running machine cannot change, and that is no mistake by itself.
fn cautions(file: &str, config: &MachineConfig) -> impl Iterator<Item = Warning> {
    config
        .unsupported
        .iter()
        .map(move |(section, value)| Warning {
            place: Place {
                file: file.to_owned(),
                line: None,
                path: section.name.clone(),
                element: section.name.clone(),
                identity: section.identity.clone(),
            },
            message: standing::caution(section, value),
        })
}

/// What is wrong with the times of a policy, each by its field.
fn problems_of(file: &str, spec: &RolloutPolicySpec) -> impl Iterator<Item = Problem> {
    let policy = RolloutPolicy::read(&Field::Valid(spec.clone()));
    policy.problems.into_iter().map(move |it| Problem {
        place: Place {
            file: file.to_owned(),
            line: None,
            path: it.field.clone(),
            element: it.field,
            identity: String::new(),
        },
        message: it.message,
    })
}

/// What is to be said of a file.
#[derive(Default)]
struct Verdict {
    /// What stands in it.
    kinds: Vec<&'static str>,
    /// The same, with what people want to know of it.
    shown: Vec<String>,
    problems: Vec<Problem>,
    warnings: Vec<Warning>,
}

impl Verdict {
    fn of(source: &input::Source) -> Self {
        let now = jiff::Timestamp::now().as_second();
        let mut verdict = Self::default();
        let text = std::str::from_utf8(&source.bytes).ok();
        if let Some(text) = text.filter(|text| TrustBundle::is_one(text)) {
            verdict.take(
                "trust bundle",
                TrustBundle::read_file(&source.name, text, now),
            );
            return verdict;
        }
        match input::documents(source) {
            Ok((documents, warnings)) => {
                verdict.warnings = warnings;
                for document in documents {
                    let kind = document.kind();
                    if let Document::TrustBundle(map) = document {
                        verdict.take(kind, map.read(&source.name, now));
                    } else {
                        if let Document::RolloutPolicy(spec) = &document {
                            let problems = problems_of(&source.name, spec);
                            verdict.problems.extend(problems);
                        }
                        if let Document::MachineConfig(config) = &document {
                            verdict.warnings.extend(cautions(&source.name, config));
                        }
                        verdict.kinds.push(kind);
                        verdict.shown.push(kind.to_owned());
                    }
                }
            }
            Err(problems) => verdict.problems = problems.into_iter().collect(),
        }
        verdict
    }

    /// Takes note of a bundle of certificates, with all that is wrong with it.
    fn take(&mut self, kind: &'static str, bundle: TrustBundle) {
        let count = bundle.certificates.len();
        self.kinds.push(kind);
        self.shown.push(format!("{kind}, {count} certificates"));
        self.problems.extend(bundle.problems);
        self.warnings.extend(bundle.warnings);
    }
}
