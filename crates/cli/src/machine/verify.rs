//! `evenkeel verify`: every difference between the machine and a configuration, not the first one.

use anyhow::Result;
use serde_json::json;

use crate::Ending;
use crate::arguments::{Format, VerifyArguments};
use crate::machine::{Machine, Wanted};
use crate::output::{self, Paint};

pub(crate) fn run(arguments: &VerifyArguments) -> Result<Ending> {
    let wanted = Wanted::read(&arguments.configuration.files)?;
    let machine = Machine::at(&arguments.place)?;
    machine.warn_if_unfinished()?;
    let plan = machine.compare(&wanted)?.plan;
    let paint = Paint::for_stdout();
    let text = match arguments.output.format {
        Format::Text if plan.changes.is_empty() => "Everything is as declared.\n".to_owned(),
        Format::Text => {
            let lines = plan.changes.iter().map(|change| {
                format!(
                    "{} {}: {}\n",
                    paint.red("!"),
                    paint.bold(&change.resource.to_string()),
                    change.why
                )
            });
            let count = plan.changes.len();
            format!(
                "{}\n{count} {}.\n",
                lines.collect::<String>(),
                if count == 1 {
                    "difference"
                } else {
                    "differences"
                }
            )
        }
        format => {
            let findings: Vec<_> = plan
                .changes
                .iter()
                .map(|change| json!({"resource": change.resource.to_string(), "why": change.why}))
                .collect();
            output::document(&json!({"findings": findings}), format)?
        }
    };
    output::print(text.as_bytes())?;
    Ok(if plan.changes.is_empty() {
        Ending::Well
    } else {
        Ending::Differs
    })
}
