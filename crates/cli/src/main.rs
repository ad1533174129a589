//! `evenkeel`: the command line for people.
//!
//! It reads what people give it, asks `evenkeel-plan` and `evenkeel-host`, and prints. It decides
//! nothing and touches no machine by itself.

#![forbid(unsafe_code)]

mod arguments;
mod bundle;
mod check;
mod cluster;
mod fleet;
mod input;
mod machine;
mod output;
mod readiness;
mod table;
mod windows;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches};

use crate::arguments::{Arguments, Command, StatusOf};
use crate::fleet::{explain, pool_plan, rollout, status};
use crate::machine::{adopt, apply, demo, plan, render, verify, watch};
use crate::windows::{instances, upgrade};

/// How a command ended well.
enum Ending {
    /// There was nothing to do, or it was done.
    Well,
    /// There are changes, drift or findings.
    Differs,
}

impl Ending {
    /// Well, if this holds.
    fn well_if(holds: bool) -> Self {
        if holds { Self::Well } else { Self::Differs }
    }
}

fn main() -> ExitCode {
    let parsed = command_line()
        .try_get_matches()
        .and_then(|matches| Arguments::from_arg_matches(&matches));
    let ending = match parsed {
        Ok(arguments) => dispatch(arguments.command),
        // A typing error is a failure (1); clap's own 2 would say that there are changes.
        Err(usage) => {
            let _ = usage.print();
            return if usage.use_stderr() {
                ExitCode::from(1)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match ending {
        Ok(Ending::Well) => ExitCode::SUCCESS,
        Ok(Ending::Differs) => ExitCode::from(2),
        Err(error) => {
            // The whole chain: what failed, and beneath it why.
            let mut text = format!("error: {error}");
            for cause in error.chain().skip(1) {
                text.push_str("\n  because: ");
                text.push_str(&cause.to_string());
            }
            let _ = writeln!(std::io::stderr(), "{text}");
            ExitCode::from(1)
        }
    }
}

/// The command line, by the name under which it was called.
fn command_line() -> clap::Command {
    let called = std::env::args_os().next().map(std::path::PathBuf::from);
    let is_plugin = called
        .as_deref()
        .and_then(std::path::Path::file_stem)
        .is_some_and(|name| name == "kubectl-evenkeel");
    if is_plugin {
        Arguments::command().bin_name("kubectl evenkeel")
    } else {
        Arguments::command()
    }
}

/// Does what was typed.
fn dispatch(command: Command) -> Result<Ending> {
    match command {
        Command::Plan(arguments) => match &arguments.pool {
            Some(pool) => pool_plan::run(&arguments, pool),
            None => plan::run(&arguments),
        },
        Command::Apply(arguments) => apply::run(&arguments),
        Command::Adopt(arguments) => adopt::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Watch(arguments) => watch::run(&arguments),
        Command::Render(arguments) => render::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Status(arguments) => match arguments.of {
            Some(StatusOf::Instances) => instances::status(&arguments),
            None => status::run(&arguments),
        },
        Command::Instances(arguments) => instances::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Readiness(arguments) => readiness::run(&arguments),
        Command::Rollout(arguments) => rollout::run(&arguments),
        Command::Upgrade(arguments) => upgrade::run(&arguments),
        Command::SupportBundle(arguments) => bundle::run(&arguments),
        Command::Demo => demo::run(),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "evenkeel", &mut script);
            output::print(&script).map(|()| Ending::Well)
        }
    }
}
