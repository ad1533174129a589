//! `evenkeel plan`: what would change, and what that disrupts. Touches nothing.

use anyhow::Result;
use evenkeel_plan::desired::Desired;
use evenkeel_plan::machine::{self, Seen};
use evenkeel_plan::problem::Refused;
use evenkeel_plan::record::Record;
use evenkeel_plan::targets::{Facts, targets};

use crate::arguments::{Format, PlanArguments};
use crate::machine::{Compared, Machine};
use crate::output::{self, Paint};
use crate::{Ending, input};

pub(crate) fn run(arguments: &PlanArguments) -> Result<Ending> {
    let new = input::configuration(&arguments.configuration.files)?;
    let compared = if arguments.from.is_empty() {
        let machine = Machine::at(&arguments.place)?;
        machine.warn_if_unfinished()?;
        machine.compare(new)?
    } else {
        between(
            Desired::of(input::configuration(&arguments.from)?),
            Desired::of(new),
        )?
    };
    print(&compared, arguments.output.format)
}

/// Shows a plan in the asked format.
pub(crate) fn print(compared: &Compared, format: Format) -> Result<Ending> {
    let Compared {
        plan,
        contents,
        seen,
    } = compared;
    output::warn(&plan.warnings);
    let text = match format {
        Format::Text => output::plan_text(plan, &seen.contents, contents, Paint::for_stdout()),
        Format::Json | Format::Yaml => output::document(&output::PlanDocument::of(plan), format)?,
    };
    output::print(text.as_bytes())?;
    Ok(if plan.changes.is_empty() {
        Ending::Well
    } else {
        Ending::Differs
    })
}

type WithContents = (Desired, evenkeel_plan::desired::Contents);

/// What going from one configuration to another would do to some machine that is exactly at the
/// old one.
fn between((old, old_contents): WithContents, (new, contents): WithContents) -> Result<Compared> {
    let facts = Facts::imagined(&[&old, &new]);
    let old_targets = targets(&old, &facts).map_err(Refused)?;
    let new_targets = targets(&new, &facts).map_err(Refused)?;
    let seen = Seen::imagined(&old_targets, &old_contents);
    let record = Record::imagined(&old, &old_targets);
    let plan = machine::plan(&new, &new_targets, &contents, &seen, &record)?;
    Ok(Compared {
        plan,
        contents,
        seen,
    })
}
