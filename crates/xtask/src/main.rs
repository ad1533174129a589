//! What is done with the whole project, outside of it: `cargo xtask release`.

#![forbid(unsafe_code)]

mod chart;
mod dependencies;
mod krew;
mod programs;
mod release;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::release::Release;

/// Work on the whole project.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Make a release folder: programs, images, Helm chart, OLM bundle, krew manifest, bill of materials and licences.
    ///
    /// What is packed depends on the commit alone. Nothing is signed or pushed:
    /// docs/release.md says how that is done.
    Release {
        /// Write the release into this folder. It must be empty or not exist.
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
        /// Build programs with this cargo profile. Others than `release` are for trying things out.
        #[arg(long, value_name = "PROFILE", default_value = "release")]
        profile: String,
        /// Build only for these targets. By default: all that a release has.
        #[arg(long, value_name = "TARGET", value_delimiter = ',')]
        target: Vec<String>,
        /// Make it although there are uncommitted changes, for trying things out. Its commit is then not what it is made of.
        #[arg(long)]
        allow_changes: bool,
        /// Where people download the release, for the krew manifest.
        #[arg(
            long,
            value_name = "URL",
            default_value = "https://evenkeel.dev/releases"
        )]
        download: String,
    },
}

fn main() -> ExitCode {
    let Task::Release {
        out,
        profile,
        target,
        allow_changes,
        download,
    } = Arguments::parse().task;
    match Release::new(out, &profile, &target, allow_changes, download).and_then(|it| it.make()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
