//! `evenkeel`: the command line for people.
//!
//! It reads what people give it, asks `evenkeel-plan` and `evenkeel-host`, and prints. It decides
//! nothing and touches no machine by itself.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Keeps a machine in its declared state, and shows what a change would do before it is made.
#[derive(Parser)]
#[command(name = "evenkeel", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Shows all of it in one minute on a scratch tree.
    Demo,
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Demo => {
            eprintln!(
                "The demo will plan, apply, tamper with and heal a configuration on a scratch tree.\n\
                 It arrives with the engine; this build does not have it yet."
            );
            ExitCode::from(1)
        }
    }
}
