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
use crate::machine::{Compared, Machine, Wanted, markdown};
use crate::output;
use crate::{Ending, input};

pub(crate) fn run(arguments: &PlanArguments) -> Result<Ending> {
    let files = &arguments.configuration.files;
    if arguments.from.is_empty() {
        let new = Wanted::read(files)?;
        let machine = Machine::at(&arguments.tree)?;
        machine.warn_if_unfinished()?;
        return shown(arguments, &machine.compare(&new)?, &new.contents);
    }
    match (
        input::configuration(&arguments.from)?,
        input::configuration(files)?,
    ) {
        (Configuration::Machine(old), Configuration::Machine(new)) => {
            let (old, new) = (Wanted::of(old), Wanted::of(new));
            shown(arguments, &between(&old, &new)?, &new.contents)
        }
        (Configuration::Services(old), Configuration::Services(new)) => {
            let nothing = Wanted::of(MachineConfig::default());
            let compared = compare(
                (&nothing, &services::targets(&old)),
                (&nothing, &services::targets(&new)),
            )?;
            shown(arguments, &compared, &nothing.contents)
        }
        _ => bail!(
            "cannot compare a machine configuration (Linux) with a services ConfigMap (Windows): give two of the same kind"
        ),
    }
}

/// Shows a plan as the arguments ask for it, and holds it against what it may disrupt.
fn shown(arguments: &PlanArguments, compared: &Compared, contents: &Contents) -> Result<Ending> {
    let Compared { plan, seen } = compared;
    let ending = if let Some(format) = arguments.format.plain() {
        print(compared, contents, format)?
    } else {
        output::warn(&plan.warnings);
        output::warn(&plan.beyond);
        output::print(markdown::plan(plan, &seen.contents, contents).as_bytes())?;
        Ending::well_if(plan.changes.is_empty())
    };
    if let Some(most) = arguments.max_disruption
        && plan.disruption() > most
    {
        bail!(
            "this change needs {}, and --max-disruption allows {most}",
            plan.disruption()
        );
    }
    Ok(ending)
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
