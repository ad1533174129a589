//! `evenkeel apply`: brings the machine to a configuration, or leaves it as it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use evenkeel_host::disk::Host;
use evenkeel_host::execute::{Claim, Progress};
use evenkeel_host::linux::on_interrupt;
use evenkeel_plan::machine::Plan;
use evenkeel_plan::machine::journal::Direction;
use indicatif::{ProgressBar, ProgressStyle};

use crate::arguments::{ApplyArguments, Format};
use crate::machine::{Compared, Machine, Wanted, explain};
use crate::output::{self, Paint};
use crate::{Ending, plan};

/// An apply that takes longer than this shows how far it is.
const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) fn run(arguments: &ApplyArguments) -> Result<Ending> {
    let wanted = Wanted::read(&arguments.configuration.files)?;
    let machine = Machine::at(&arguments.tree)?;
    let format = arguments.output.format;
    if arguments.dry_run {
        machine.warn_if_unfinished()?;
        return plan::print(&machine.compare(&wanted)?, &wanted.contents, format);
    }
    if !machine.is_unfinished()? {
        // What is refused is refused before the machine is even claimed.
        can_be_applied(&machine.compare(&wanted)?.plan)?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    on_interrupt(move || asked.store(true, Ordering::Relaxed)).map_err(explain)?;
    let claim = Claim::take(&machine.host, &machine.state).map_err(explain)?;
    let claim = claim.stopping_on(&stop);
    match claim.resumed() {
        Some(Direction::Forward) => {
            output::warn(["an earlier apply was interrupted; it was finished first"]);
        }
        Some(Direction::Back) => {
            output::warn(["an earlier apply had failed and was interrupted; it was undone first"]);
        }
        None => {}
    }
    let boot = machine.host.boot_id().map_err(explain)?;
    let runs_here = arguments.tree.root.is_none();
    if runs_here {
        claim.take_note_of_boot().map_err(explain)?;
    }
    let Compared { plan, seen } = machine.compare(&wanted)?;
    can_be_applied(&plan)?;
    let plan = if runs_here {
        plan.carried_out_in(boot.clone())
    } else {
        plan
    };
    output::warn(&plan.warnings);
    if format == Format::Text {
        let text = output::plan_text(&plan, &seen.contents, &wanted.contents, Paint::for_stdout());
        output::print(text.as_bytes())?;
    }
    let mut bar = Bar::new();
    let applied = claim.apply(&plan, &wanted.contents, &mut |progress| {
        bar.show(progress);
    });
    bar.end();
    applied.map_err(explain)?;
    // Also for what an earlier apply changed.
    let reboot = plan.record.awaits_boot(&boot);
    match format {
        Format::Text => {
            let done = if plan.steps.is_empty() {
                String::new()
            } else {
                format!("Applied {} changes.\n", plan.changes.len())
            };
            let asked = if reboot && !arguments.reboot {
                "Reboot this machine to finish (or use --reboot).\n"
            } else {
                ""
            };
            output::print(format!("{done}{asked}").as_bytes())?;
        }
        Format::Json | Format::Yaml => {
            let mut document = output::PlanDocument::of(&plan);
            document.reboot_needed = Some(reboot);
            output::print(output::document(&document, format)?.as_bytes())?;
        }
    }
    if reboot && arguments.reboot {
        machine.host.reboot().map_err(explain)?;
        claim.is_told_to_boot().map_err(explain)?;
    }
    Ok(Ending::Well)
}

/// What cannot be brought about here is refused.
fn can_be_applied(plan: &Plan) -> Result<()> {
    plan.refusal().map_or(Ok(()), |refused| {
        Err(anyhow::Error::new(refused).context("the plan is refused; nothing was changed"))
    })
}

/// A bar that appears once it is worth looking at.
struct Bar {
    start: Instant,
    bar: Option<ProgressBar>,
}

impl Bar {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            bar: None,
        }
    }

    fn show(&mut self, progress: Progress<'_>) {
        if self.bar.is_none() && self.start.elapsed() > PATIENCE {
            let bar = ProgressBar::new(progress.steps as u64);
            if let Ok(style) =
                ProgressStyle::with_template("{bar:40} {pos}/{len} steps, {eta} left")
            {
                bar.set_style(style);
            }
            self.bar = Some(bar);
        }
        if let Some(bar) = &self.bar {
            bar.set_position(progress.done as u64);
        }
    }

    fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
