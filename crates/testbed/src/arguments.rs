//! The command line of a double, read as tolerantly as a double should: what it does not know it
//! leaves alone, because tests start it with the arguments of the real program.

use std::path::Path;

use crate::{Doing, Result};

/// The arguments a double was started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arguments(Vec<String>);

impl Arguments {
    /// Those of this process, without its own name.
    pub fn of_this_process() -> Self {
        let arguments = std::env::args_os().skip(1);
        Self(
            arguments
                .map(|it| it.to_string_lossy().into_owned())
                .collect(),
        )
    }

    /// The value of `--flag value` or `--flag=value`; of several the last, as the real programs do.
    pub fn value(&self, flag: &str) -> Option<&str> {
        let joined =
            |argument: &'_ str| argument.strip_prefix(flag)?.strip_prefix('=').map(str::len);
        self.0.iter().enumerate().rev().find_map(|(at, argument)| {
            if argument == flag {
                return self.0.get(at + 1).map(String::as_str);
            }
            joined(argument).map(|length| &argument[argument.len() - length..])
        })
    }

    /// The value of `flag`, if it is a number.
    pub fn number(&self, flag: &str) -> Option<u64> {
        self.value(flag)?.parse().ok()
    }

    /// Writes the arguments and the environment of this process to `file`, as JSON
    /// (`{"arguments": […], "environment": {…}}`), whole or not at all.
    pub fn record(&self, file: &Path) -> Result<()> {
        let environment: std::collections::BTreeMap<_, _> = std::env::vars_os()
            .map(|(name, value)| {
                let text = |it: std::ffi::OsString| it.to_string_lossy().into_owned();
                (text(name), text(value))
            })
            .collect();
        let record = serde_json::json!({ "arguments": self.0, "environment": environment });
        let partial = file.with_extension("partial");
        std::fs::write(&partial, record.to_string())
            .and_then(|()| std::fs::rename(&partial, file))
            .doing(|| format!("cannot write {}", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_give_a_value_are_read_and_the_last_wins() {
        let arguments = Arguments(
            [
                "--node-ip=10.0.0.1",
                "--v",
                "4",
                "--node-ip",
                "10.0.0.2",
                "--node-ips=x",
                "--die",
            ]
            .map(str::to_owned)
            .to_vec(),
        );
        assert_eq!(arguments.value("--node-ip"), Some("10.0.0.2"));
        assert_eq!(arguments.number("--v"), Some(4));
        assert_eq!(arguments.value("--die"), None);
        assert_eq!(arguments.value("--kubeconfig"), None);
    }
}
