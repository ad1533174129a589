//! `evenkeel-operator`: the fleet.
//!
//! Connects the cluster's objects to decisions of `evenkeel-plan` and carries them out through the
//! API server. It decides nothing itself, and never touches the machine it runs on.

use clap::Parser;

/// Decides which node may change when, and cares for instances.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {}

fn main() {
    Arguments::parse();
}
