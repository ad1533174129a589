//! `evenkeel plan`: what would change, and what that disrupts. Touches nothing.

use anyhow::{Result, bail};
use evenkeel_api::machine::machine_config::MachineConfig;
use evenkeel_plan::machine::desired::Contents;
use evenkeel_plan::machine::problem::Refused;
use evenkeel_plan::machine::record::Record;
use evenkeel_plan::machine::targets::{Facts, Targets, targets};
use evenkeel_plan::machine::{self, MachineSnapshot};
use evenkeel_plan::windows::services;

use crate::arguments::{Format, PlanArguments};
use crate::input::Configuration;
use crate::machine::{Compared, Machine, Wanted};
use crate::output;
use crate::{Ending, input};

pub(crate) fn run(arguments: &PlanArguments) -> Result<Ending> {
    let format = arguments.output.format;
    let files = &arguments.configuration.files;
    if arguments.from.is_empty() {
        let new = Wanted::read(files)?;
        let machine = Machine::at(&arguments.tree)?;
        machine.warn_if_unfinished()?;
        return print(&machine.compare(&new)?, &new.contents, format);
    }
    match (
        input::configuration(&arguments.from)?,
        input::configuration(files)?,
    ) {
        (Configuration::Machine(old), Configuration::Machine(new)) => {
            let (old, new) = (Wanted::of(old), Wanted::of(new));
            print(&between(&old, &new)?, &new.contents, format)
        }
        (Configuration::Services(old), Configuration::Services(new)) => {
            let nothing = Wanted::of(MachineConfig::default());
            let compared = compare(
                (&nothing, &services::targets(&old)),
                (&nothing, &services::targets(&new)),
            )?;
            print(&compared, &nothing.contents, format)
        }
        _ => bail!(
            "cannot compare a machine configuration (Linux) with a services ConfigMap (Windows): give two of the same kind"
        ),
    }
}

/// Shows a plan in the asked format.
pub(crate) fn print(compared: &Compared, contents: &Contents, format: Format) -> Result<Ending> {
    let Compared { plan, seen } = compared;
    output::warn(&plan.warnings);
    output::warn(&plan.beyond);
    let text = |paint| output::plan_text(plan, &seen.contents, contents, paint);
    output::show(format, text, || output::PlanDocument::of(plan))?;
    Ok(Ending::well_if(plan.changes.is_empty()))
}

/// What going from one configuration to another would do to some machine that is exactly at the
/// old one.
pub(crate) fn between(old: &Wanted, new: &Wanted) -> Result<Compared> {
    let facts = Facts::imagined(&[&old.desired, &new.desired]);
    let targets = |wanted: &Wanted| targets(&wanted.desired, &facts).map_err(Refused);
    compare((old, &targets(old)?), (new, &targets(new)?))
}

fn compare(old: (&Wanted, &Targets), new: (&Wanted, &Targets)) -> Result<Compared> {
    let seen = MachineSnapshot::imagined(old.1, &old.0.contents);
    let record = Record::imagined(&old.0.desired, old.1);
    let plan = machine::plan(&new.0.desired, new.1, &new.0.contents, &seen, &record)?;
    Ok(Compared { plan, seen })
}
