//! What a benchmark measured, each against its limit.

use std::fmt::Display;
use std::process::ExitCode;

/// Prints rows as they come, and knows at the end whether all were within their limits.
pub struct Table {
    all_within: bool,
}

impl Default for Table {
    fn default() -> Self {
        println!("{:<48} {:>12} {:>12}", "", "measured", "limit");
        Self { all_within: true }
    }
}

impl Table {
    /// A number that has no limit of its own.
    pub fn note(what: &str, measured: f64, unit: &str) {
        let measured = format!("{measured:.3} {unit}");
        println!("{what:<48} {measured:>12}");
    }

    /// A number that must not be larger than `limit`.
    pub fn row(&mut self, what: &str, measured: f64, limit: f64, unit: &str) {
        let within = measured <= limit;
        self.all_within &= within;
        let verdict = if within { "" } else { "  missed" };
        let measured = format!("{measured:.3} {unit}");
        let limit = format!("{limit} {unit}");
        println!("{what:<48} {measured:>12} {limit:>12}{verdict}");
    }

    /// How the program ends that measured this.
    pub fn verdict<E: Display>(measured: Result<Self, E>) -> ExitCode {
        match measured {
            Ok(table) if table.all_within => ExitCode::SUCCESS,
            Ok(_) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("the benchmark failed: {error}");
                ExitCode::FAILURE
            }
        }
    }
}
