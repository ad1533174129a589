//! `evenkeel-agent`: one node, kept in its declared state.
//!
//! Connects the cluster's wishes to the host. It decides nothing (that is `evenkeel-plan`) and
//! touches nothing (that is `evenkeel-host`).

use clap::Parser;

/// Keeps one node, Linux or Windows, in its declared state.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {}

fn main() {
    Arguments::parse();
}
