//! `evenkeel adopt`: says what a machine was provisioned from, before its first configuration.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Result, bail};
use evenkeel_host::disk::Host;
use evenkeel_host::execute::Claim;
use evenkeel_host::provision;
use evenkeel_plan::machine::provision::Provision;
use serde_json::json;

use crate::Ending;
use crate::arguments::AdoptArguments;
use crate::input;
use crate::machine::{Machine, explain};
use crate::output;

pub(crate) fn run(arguments: &AdoptArguments) -> Result<Ending> {
    let machine = Machine::at(&arguments.tree)?;
    if machine.is_unfinished()? {
        bail!(
            "an earlier apply was interrupted: this machine is not adopted before `evenkeel apply` has finished or undone it"
        );
    }
    let provision = match &arguments.file {
        Some(file) => given(file)?,
        None => kept(&machine)?,
    };
    let before = machine.state.record(&machine.host).map_err(explain)?;
    let adopted = before.clone().adopting(&provision);
    let changes = adopted.map_err(|managed| explain(managed.into()))? != before;
    if changes && !arguments.dry_run {
        let claim = Claim::take(&machine.host, &machine.state).map_err(explain)?;
        claim.adopt(&provision).map_err(explain)?;
    }
    let text = |_| text(&provision, changes, arguments.dry_run);
    output::show(arguments.output.format, text, || {
        let sections = provision.sections.keys();
        let sections = sections.map(|it| json!({"section": it.name, "identity": it.identity}));
        json!({
            "provisionedFrom": provision.words(),
            "sections": sections.collect::<Vec<_>>(),
            "changed": changes && !arguments.dry_run,
        })
    })?;
    Ok(Ending::well_if(!(changes && arguments.dry_run)))
}

/// What a person says.
fn given(file: &Path) -> Result<Provision> {
    let source = match input::sources(&[file.to_owned()])?.as_slice() {
        [source] => Provision::read(&source.name, &source.bytes),
        several => bail!(
            "{} has {} files: give the one MachineConfig or Ignition config that the machine was provisioned from",
            file.display(),
            several.len()
        ),
    };
    Ok(source?)
}

/// What the machine itself says.
fn kept(machine: &Machine) -> Result<Provision> {
    let provision = provision::found(machine.host.disk());
    for unread in &provision.basis.unread {
        output::warn([format!("not counted: {unread}")]);
    }
    if let Some(name) = provision.named() {
        bail!(
            "this machine says only in part what it was provisioned from: give MachineConfig {name} with -f, for example with \
             `kubectl get machineconfig {name} -o yaml | evenkeel adopt -f -`"
        );
    }
    if provision.basis.source.is_none() {
        bail!(
            "this machine does not say what it was provisioned from: give its MachineConfig or Ignition config with -f"
        );
    }
    Ok(provision)
}

fn text(provision: &Provision, changes: bool, dry_run: bool) -> String {
    let source = provision.words();
    let mut text = match (changes, dry_run) {
        (false, _) => format!("This machine is adopted already, as provisioned from {source}.\n"),
        (true, true) => format!("Would adopt this machine, as provisioned from {source}.\n"),
        (true, false) => format!("Adopted this machine, as provisioned from {source}.\n"),
    };
    if provision.sections.is_empty() {
        text.push_str("No section of it is one that cannot change.\n");
        return text;
    }
    text.push_str("These sections may stand in its first configuration, and cannot change:\n");
    for section in provision.sections.keys() {
        let name = format!("{} {}", section.name, section.identity);
        let _ = writeln!(text, "  {}", name.trim_end());
    }
    text
}
