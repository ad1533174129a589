//! What people and programs see: plans as text with diffs, or as one JSON or YAML document.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};

use anyhow::{Context, Result};
use evenkeel_plan::machine::desired::Contents;
use evenkeel_plan::machine::diff::{self, Line};
use evenkeel_plan::machine::resource::Resource;
use evenkeel_plan::machine::targets::Part;
use evenkeel_plan::machine::{ChangeAction, Plan};
use serde::Serialize;

use crate::arguments::Format;

/// Writes to standard output; a reader that went away is no failure.
pub(crate) fn print(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}

/// Warnings go to standard error and never change the exit code.
pub(crate) fn warn(warnings: impl IntoIterator<Item = impl std::fmt::Display>) {
    let mut out = std::io::stderr().lock();
    for warning in warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
}

/// One document in a format for programs.
pub(crate) fn document(value: &impl Serialize, format: Format) -> Result<String> {
    let mut text = match format {
        Format::Yaml => serde_saphyr::to_string(value).context("cannot write YAML")?,
        Format::Json | Format::Text => {
            serde_json::to_string_pretty(value).context("cannot write JSON")?
        }
    };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// Prints what people read, or what programs do, as is asked for.
pub(crate) fn show<D: Serialize>(
    format: Format,
    text: impl FnOnce(Paint) -> String,
    value: impl FnOnce() -> D,
) -> Result<()> {
    let text = match format {
        Format::Text => text(Paint::for_stdout()),
        format => document(&value(), format)?,
    };
    print(text.as_bytes())
}

/// The plan as programs read it, with its keys in the order in which people read them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PlanDocument {
    changes: Vec<ChangeDocument>,
    pub(crate) actions: Vec<String>,
    pub(crate) disruption: String,
    /// Only after an apply: whether the machine must still be rebooted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reboot_needed: Option<bool>,
}

#[derive(Debug, Serialize)]
struct ChangeDocument {
    resource: String,
    action: String,
    why: String,
    disruption: String,
    /// The entry of the disruption policy that decided, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
}

impl PlanDocument {
    pub(crate) fn of(plan: &Plan) -> Self {
        let changes = plan.changes.iter().map(|change| ChangeDocument {
            resource: change.resource.to_string(),
            action: change.action.to_string(),
            why: change.why.clone(),
            disruption: change.disruption.to_string(),
            policy: change.policy.clone(),
        });
        Self {
            changes: changes.collect(),
            actions: plan.actions.iter().map(ToString::to_string).collect(),
            disruption: plan.disruption().to_string(),
            reboot_needed: None,
        }
    }
}

/// Colours, on a terminal that wants them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint(bool);

impl Paint {
    /// For standard output.
    pub(crate) fn for_stdout() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self(wanted && std::io::stdout().is_terminal())
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.with("31", text)
    }

    pub(crate) fn cyan(self, text: &str) -> String {
        self.with("36", text)
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// The plan as people read it. `old` and `new` have the contents of its two sides.
pub(crate) fn plan_text(plan: &Plan, old: &Contents, new: &Contents, paint: Paint) -> String {
    let mut text = String::new();
    for change in &plan.changes {
        let sign = match change.action {
            ChangeAction::Create => paint.green("+"),
            ChangeAction::Update => paint.cyan("~"),
            ChangeAction::Delete => paint.red("-"),
        };
        let name = paint.bold(&change.resource.to_string());
        let policy = change.policy.as_ref();
        let policy = policy.map_or_else(String::new, |entry| format!(", by the policy's {entry}"));
        let _ = writeln!(
            text,
            "{sign} {name}: {} [{}{policy}]",
            change.why, change.disruption
        );
        for line in diff_of(plan, &change.resource, old, new) {
            let _ = writeln!(text, "    {}", painted(&line, paint));
        }
    }
    text.push_str(&summary(plan));
    text
}

/// How many changes, and what happens around them, in two lines.
pub(crate) fn summary(plan: &Plan) -> String {
    if plan.changes.is_empty() {
        return "Nothing to do.\n".to_owned();
    }
    let count = |action: ChangeAction| {
        plan.changes
            .iter()
            .filter(|change| change.action == action)
            .count()
    };
    let (create, update, delete) = (
        count(ChangeAction::Create),
        count(ChangeAction::Update),
        count(ChangeAction::Delete),
    );
    let actions: Vec<String> = plan.actions.iter().map(ToString::to_string).collect();
    let actions = if actions.is_empty() {
        "no action needed".to_owned()
    } else {
        actions.join(", then ")
    };
    format!(
        "\n{create} to create, {update} to update, {delete} to delete.\nDisruption: {} ({actions}).\n",
        plan.disruption()
    )
}

/// The difference that a plan makes in one resource.
pub(crate) fn diff_of(
    plan: &Plan,
    resource: &Resource,
    old: &Contents,
    new: &Contents,
) -> Vec<Line> {
    let bytes = |hash| old.get(hash).or_else(|| new.get(hash));
    plan.steps
        .iter()
        .filter(|step| step.resource == *resource && has_diff(&step.part))
        .flat_map(|step| {
            let before = step.before.hash().and_then(bytes);
            let after = step.after.hash().and_then(bytes);
            diff::of(step, before, after)
        })
        .collect()
}

/// A link that enables or masks a unit is described in words already.
fn has_diff(part: &Part) -> bool {
    matches!(part, Part::Whole | Part::DropIn(_))
}

/// One line of a diff.
pub(crate) fn painted(line: &Line, paint: Paint) -> String {
    let text = line.to_string();
    match line {
        Line::Note(_) => paint.dim(&text),
        Line::Place(_) => paint.cyan(&text),
        Line::Same(_) => text,
        Line::Gone(_) => paint.red(&text),
        Line::Come(_) => paint.green(&text),
    }
}
