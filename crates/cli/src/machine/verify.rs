//! `evenkeel verify`: every difference between the machine and a configuration, not the first one.

use anyhow::Result;
use serde_json::json;

use crate::Ending;
use crate::arguments::VerifyArguments;
use crate::machine::{Machine, Wanted};
use crate::output::{self, Paint};

pub(crate) fn run(arguments: &VerifyArguments) -> Result<Ending> {
    let wanted = Wanted::read(&arguments.configuration.files)?;
    let machine = Machine::at(&arguments.tree)?;
    machine.warn_if_unfinished()?;
    let plan = machine.compare(&wanted)?.plan;
    let text = |paint: Paint| {
        let lines = plan.changes.iter().map(|change| {
            let name = paint.bold(&change.resource.to_string());
            format!("{} {name}: {}\n", paint.red("!"), change.why)
        });
        match plan.changes.len() {
            0 => "Everything is as declared.\n".to_owned(),
            1 => format!("{}\n1 difference.\n", lines.collect::<String>()),
            count => format!("{}\n{count} differences.\n", lines.collect::<String>()),
        }
    };
    output::show(arguments.output.format, text, || {
        let findings = plan
            .changes
            .iter()
            .map(|change| json!({"resource": change.resource.to_string(), "why": change.why}));
        json!({"findings": findings.collect::<Vec<_>>()})
    })?;
    Ok(Ending::well_if(plan.changes.is_empty()))
}
