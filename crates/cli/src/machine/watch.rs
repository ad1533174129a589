//! `evenkeel watch`: reports drift as it happens, or repairs it.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use evenkeel_host::execute::Claim;
use evenkeel_host::linux::on_interrupt;
use evenkeel_host::verify;
use evenkeel_host::watch::{Event, Monitor};
use evenkeel_host::{memory, observe};
use serde_json::{Value, json};

use crate::Ending;
use crate::arguments::{Format, WatchArguments};
use crate::machine::{Machine, Wanted, explain};
use crate::output::{self, Paint};

pub(crate) fn run(arguments: &WatchArguments) -> Result<Ending> {
    let Wanted { desired, contents } = Wanted::read(&arguments.configuration.files)?;
    let machine = Machine::at(&arguments.tree)?;
    machine.warn_if_unfinished()?;
    let targets = observe::targets_of(&machine.host, &machine.state, &desired).map_err(explain)?;
    let mut monitor = if arguments.heal {
        let claim = Claim::take(&machine.host, &machine.state).map_err(explain)?;
        claim.keep_contents(&targets, &contents).map_err(explain)?;
        Monitor::healing(&machine.host, &machine.state, targets.clone())
    } else {
        Monitor::reporting(&machine.host, targets.clone())
    };
    let mut watcher = machine
        .host
        .watch(targets.keys().map(String::as_str))
        .map_err(explain)?;
    output::warn(watcher.blindness());
    let stopper = watcher.stopper();
    on_interrupt(move || stopper.stop()).map_err(explain)?;
    let paths = targets.len();
    // Contents are in the store by now; a large configuration need not stay in memory.
    drop((desired, contents, targets));
    memory::trim();
    let teller = Teller {
        machine: &machine,
        format: arguments.format,
        paint: Paint::for_stdout(),
    };
    teller.start(paths, arguments.heal)?;
    let mut failed = None;
    monitor
        .run(&mut watcher, &mut |event| {
            if let Err(error) = teller.tell(&event) {
                failed.get_or_insert(error);
            }
        })
        .map_err(explain)?;
    match failed {
        Some(error) => Err(error),
        None if monitor.drifted().next().is_some() => Ok(Ending::Differs),
        None => Ok(Ending::Well),
    }
}

/// Says what happens, to a person or to a program.
struct Teller<'a> {
    machine: &'a Machine,
    format: Format,
    paint: Paint,
}

impl Teller<'_> {
    fn start(&self, paths: usize, heal: bool) -> Result<()> {
        if self.format != Format::Text {
            return Ok(());
        }
        let what = if heal {
            "and repairing drift"
        } else {
            "and reporting drift"
        };
        output::print(format!("Watching {paths} paths {what}; press Ctrl-C to stop.\n").as_bytes())
    }

    fn tell(&self, event: &Event) -> Result<()> {
        let text = match self.format {
            Format::Text => self.text(event),
            Format::Json => format!("{}\n", document(event)),
            Format::Yaml => format!("---\n{}", output::document(&document(event), Format::Yaml)?),
        };
        output::print(text.as_bytes())
    }

    fn text(&self, event: &Event) -> String {
        let paint = self.paint;
        let (mark, finding, words) = match event {
            Event::Drifted { finding, after, .. } => {
                let words = format!("{} (found in {})", finding.why, shown(*after));
                (paint.red("!"), finding, words)
            }
            Event::Recovered { finding } => {
                (paint.green("="), finding, "is as declared again".to_owned())
            }
            Event::Healed { finding, took } => (
                paint.green("="),
                finding,
                format!("put back (in {})", shown(*took)),
            ),
            Event::HealFailed {
                finding,
                error,
                again_in,
            } => {
                let (again_in, error) = (shown(*again_in), error.with_causes());
                let words = format!("cannot be put back, retrying in {again_in}: {error}");
                (paint.red("!"), finding, words)
            }
            Event::Fought {
                finding,
                times,
                wait,
            } => {
                let wait = shown(*wait);
                let words =
                    format!("something keeps changing it ({times} times): next check in {wait}");
                (paint.red("!"), finding, words)
            }
        };
        let name = paint.bold(&finding.resource.to_string());
        let mut text = format!("{mark} {name}: {words}\n");
        if let Event::Drifted { .. } = event {
            let Machine { host, state } = self.machine;
            for line in verify::difference(host, state, finding) {
                let _ = writeln!(text, "    {}", output::painted(&line, paint));
            }
        }
        text
    }
}

fn document(event: &Event) -> Value {
    let (word, finding, rest) = match event {
        Event::Drifted { finding, after, .. } => (
            "drifted",
            finding,
            json!({"afterSeconds": after.as_secs_f64()}),
        ),
        Event::Recovered { finding } => ("recovered", finding, json!({})),
        Event::Healed { finding, took } => (
            "healed",
            finding,
            json!({"tookSeconds": took.as_secs_f64()}),
        ),
        Event::HealFailed {
            finding,
            error,
            again_in,
        } => (
            "healFailed",
            finding,
            json!({"error": error.with_causes(), "againInSeconds": again_in.as_secs_f64()}),
        ),
        Event::Fought {
            finding,
            times,
            wait,
        } => (
            "fought",
            finding,
            json!({"times": times, "waitSeconds": wait.as_secs_f64()}),
        ),
    };
    let mut document = json!({
        "event": word,
        "resource": finding.resource.to_string(),
        "path": finding.path,
        "why": finding.why,
    });
    if let (Value::Object(document), Value::Object(rest)) = (&mut document, rest) {
        document.extend(rest);
    }
    document
}

/// A time as people say it.
fn shown(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{:.1} ms", time.as_secs_f64() * 1000.0)
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}
