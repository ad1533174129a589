//! `evenkeel plan`: what would change, and what that disrupts. Touches nothing.

use anyhow::Result;
use evenkeel_plan::machine::{self, Seen};
use evenkeel_plan::problem::Refused;
use evenkeel_plan::record::Record;
use evenkeel_plan::targets::{Facts, targets};

use crate::Ending;
use crate::arguments::{Format, PlanArguments};
use crate::machine::{Compared, Machine, Wanted};
use crate::output::{self, Paint};

pub(crate) fn run(arguments: &PlanArguments) -> Result<Ending> {
    let new = Wanted::read(&arguments.configuration.files)?;
    let compared = if arguments.from.is_empty() {
        let machine = Machine::at(&arguments.place)?;
        machine.warn_if_unfinished()?;
        machine.compare(&new)?
    } else {
        between(&Wanted::read(&arguments.from)?, &new)?
    };
    print(&compared, &new, arguments.output.format)
}

/// Shows a plan in the asked format.
pub(crate) fn print(compared: &Compared, wanted: &Wanted, format: Format) -> Result<Ending> {
    let Compared { plan, seen } = compared;
    output::warn(&plan.warnings);
    let text = match format {
        Format::Text => {
            output::plan_text(plan, &seen.contents, &wanted.contents, Paint::for_stdout())
        }
        Format::Json | Format::Yaml => output::document(&output::PlanDocument::of(plan), format)?,
    };
    output::print(text.as_bytes())?;
    Ok(if plan.changes.is_empty() {
        Ending::Well
    } else {
        Ending::Differs
    })
}

/// What going from one configuration to another would do to some machine that is exactly at the
/// old one.
fn between(old: &Wanted, new: &Wanted) -> Result<Compared> {
    let facts = Facts::imagined(&[&old.desired, &new.desired]);
    let old_targets = targets(&old.desired, &facts).map_err(Refused)?;
    let new_targets = targets(&new.desired, &facts).map_err(Refused)?;
    let seen = Seen::imagined(&old_targets, &old.contents);
    let record = Record::imagined(&old.desired, &old_targets);
    let plan = machine::plan(&new.desired, &new_targets, &new.contents, &seen, &record)?;
    Ok(Compared { plan, seen })
}
