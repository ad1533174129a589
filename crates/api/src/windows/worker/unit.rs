//! The command line of a systemd unit, as far as it has `--name=value` in it.

use crate::machine::machine_config::Unit;

/// Names and values of all arguments of what a unit starts, in order; a flag without a value is `true`.
pub(super) fn arguments(unit: &Unit) -> Vec<(String, String)> {
    let mut command = String::new();
    let parts = unit.contents.iter().chain(unit.drop_ins.values());
    for text in parts {
        for line in joined(text) {
            // An empty one takes back what was said before.
            if let Some(said) = line.trim().strip_prefix("ExecStart=") {
                said.trim().clone_into(&mut command);
            }
        }
    }
    let words = words(&command);
    let mut arguments = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let Some(name) = word.strip_prefix("--") else {
            continue;
        };
        let (name, value) = match name.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => match words.get(at + 1).filter(|next| !next.starts_with('-')) {
                Some(value) => (name, value.clone()),
                None => (name, "true".to_owned()),
            },
        };
        arguments.push((name.to_owned(), value));
    }
    arguments
}

/// Lines, with those that end in a backslash joined to the next.
fn joined(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut open = String::new();
    for line in text.lines() {
        let is_comment = line.trim_start().starts_with(['#', ';']);
        if is_comment {
            continue;
        }
        if let Some(begun) = line.strip_suffix('\\') {
            open.push_str(begun);
            open.push(' ');
        } else {
            open.push_str(line);
            lines.push(std::mem::take(&mut open));
        }
    }
    lines.push(open);
    lines
}

fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    for letter in command.chars() {
        match (quote, letter) {
            (None, '"' | '\'') => quote = Some(letter),
            (Some(open), letter) if open == letter => quote = None,
            (None, letter) if letter.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            (_, letter) => word.push(letter),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn arguments_are_read_over_several_lines_and_a_drop_in_has_the_last_word() {
        let unit = Unit {
            contents: Some(
                "[Service]\nExecStart=/usr/bin/kubelet \\\n  # a word\n  --config=/etc/kubelet \\\n  --v 2 --flag --node-labels='a=b'\n"
                    .to_owned(),
            ),
            ..Unit::default()
        };
        let pairs = |unit: &Unit| -> Vec<(String, String)> { arguments(unit) };
        let found = pairs(&unit);
        let said = |name: &str| {
            found
                .iter()
                .find(|(it, _)| it == name)
                .map(|(_, v)| v.as_str())
        };
        assert_eq!(said("config"), Some("/etc/kubelet"));
        assert_eq!(said("v"), Some("2"));
        assert_eq!(said("flag"), Some("true"));
        assert_eq!(said("node-labels"), Some("a=b"));
        let drop_in = "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --v=4\n".to_owned();
        let unit = Unit {
            drop_ins: BTreeMap::from([("10-x.conf".to_owned(), drop_in)]),
            ..unit
        };
        assert_eq!(pairs(&unit), [("v".to_owned(), "4".to_owned())]);
    }
}
