//! `evenkeel apply`: brings the machine to a configuration, and it ends there or where it was.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use evenkeel_host::execute::{Claim, Progress};
use evenkeel_plan::disruption::Action;
use evenkeel_plan::journal::Direction;
use evenkeel_plan::resource::Resource;
use indicatif::{ProgressBar, ProgressStyle};

use crate::arguments::{ApplyArguments, Format};
use crate::machine::{Machine, explain};
use crate::output::{self, Paint};
use crate::{Ending, input, plan};

/// An apply that takes longer than this shows how far it is.
const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) fn run(arguments: &ApplyArguments) -> Result<Ending> {
    let config = input::configuration(&arguments.configuration.files)?;
    let machine = Machine::at(&arguments.place)?;
    let format = arguments.output.format;
    if arguments.dry_run {
        machine.warn_if_unfinished()?;
        return plan::print(&machine.compare(config)?, format);
    }
    let claim = Claim::take(&machine.host, &machine.state).map_err(explain)?;
    match claim.resumed() {
        Some(Direction::Forward) => {
            output::warn(["an earlier apply was interrupted; it was finished first"]);
        }
        Some(Direction::Back) => {
            output::warn(["an earlier apply had failed and was interrupted; it was undone first"]);
        }
        None => {}
    }
    let compared = machine.compare(config)?;
    let wanted = &compared.plan;
    output::warn(&wanted.warnings);
    if let Some(change) = wanted
        .changes
        .iter()
        .find(|change| !can_be_written(&change.resource))
    {
        bail!(
            "{} {}, and this machine has no way to change it from here (rpm-ostree and bootc are used by the agent): \
             take it out of the configuration; nothing was touched",
            change.resource,
            change.why
        );
    }
    if format == Format::Text {
        let text = output::plan_text(
            wanted,
            &compared.seen.contents,
            &compared.contents,
            Paint::for_stdout(),
        );
        output::print(text.as_bytes())?;
    }
    let mut bar = Bar::new();
    let applied = claim.apply(wanted, &compared.contents, &mut |progress| {
        bar.show(progress);
    });
    bar.end();
    applied.map_err(explain)?;
    let reboot = wanted.actions.contains(&Action::Reboot) && arguments.place.root.is_none();
    match format {
        Format::Text if wanted.changes.is_empty() => {}
        Format::Text => {
            let done = format!("Applied {} changes.\n", wanted.changes.len());
            let asked = if reboot && !arguments.reboot {
                "Reboot this machine to finish (or use --reboot).\n"
            } else {
                ""
            };
            output::print(format!("{done}{asked}").as_bytes())?;
        }
        Format::Json | Format::Yaml => {
            let mut document = output::PlanDocument::of(wanted);
            document.reboot_needed = Some(reboot);
            output::print(output::document(&document, format)?.as_bytes())?;
        }
    }
    if reboot && arguments.reboot {
        machine.host.reboot().map_err(explain)?;
    }
    Ok(Ending::Well)
}

/// What an apply without a cluster can bring about by itself.
fn can_be_written(resource: &Resource) -> bool {
    !matches!(resource, Resource::OsImage | Resource::KernelArguments)
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

    fn show(&mut self, progress: Progress) {
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
