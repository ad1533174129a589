//! A plan as a comment on a pull request. Whatever comes from a configuration or a cluster is text there: it makes no link, mentions
//! nobody and ends no table.

use std::fmt::Write;

use evenkeel_plan::machine::Plan;
use evenkeel_plan::machine::desired::Contents;

use crate::output::{diff_of, summary};

/// How much a comment holds, less what stands after the diffs. (GitHub takes 65,536 characters.)
const ROOM: usize = 40_000;
/// How many rows a table has at most.
const ROWS: usize = 200;

/// The plan of one machine: what changes, and each difference to unfold.
pub(crate) fn plan(plan: &Plan, old: &Contents, new: &Contents) -> String {
    let mut text = String::new();
    if !plan.changes.is_empty() {
        let rows = plan.changes.iter().map(|change| {
            let policy = change.policy.as_ref();
            let policy = policy.map_or_else(String::new, |it| format!(", by the policy's {it}"));
            [
                change.action.to_string(),
                change.resource.to_string(),
                change.why.clone(),
                format!("{}{policy}", change.disruption),
            ]
        });
        text.push_str(&table(&["", "what", "why", "disruption"], rows));
    }
    let _ = writeln!(text, "\n{}", summary(plan).trim());
    let mut left_out = 0;
    for change in &plan.changes {
        let lines = diff_of(plan, &change.resource, old, new);
        if lines.is_empty() {
            continue;
        }
        let mut diff = String::new();
        for line in &lines {
            let _ = writeln!(diff, "{line}");
        }
        let fence = "`".repeat(longest_run(&diff).max(2) + 1);
        let name = escaped(&change.resource.to_string());
        let block = format!(
            "\n<details><summary>{name}</summary>\n\n{fence}diff\n{diff}{fence}\n\n</details>\n"
        );
        if text.len() + block.len() > ROOM {
            left_out += 1;
        } else {
            text.push_str(&block);
        }
    }
    if left_out > 0 {
        let _ = writeln!(
            text,
            "\nDifferences left out for want of room: {left_out}. Run `evenkeel plan` to see them."
        );
    }
    text
}

/// A table, cut where it would be too long for a comment.
pub(crate) fn table<const N: usize>(
    head: &[&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), " --- |".repeat(N));
    let mut more = 0;
    for (at, row) in rows.enumerate() {
        if at < ROWS {
            let cells = row.map(|cell| escaped(&cell));
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        } else {
            more += 1;
        }
    }
    if more > 0 {
        let _ = writeln!(text, "\nand {more} more");
    }
    text
}

/// Text that Markdown and HTML make nothing of.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' | '<' | '>' | '|' | '`' | '*' | '[' | ']' | '~' | '@' | '#' | '!' | '\\' | '$' => {
                let _ = write!(safe, "&#{};", u32::from(letter));
            }
            // An address is a link without any mark around it.
            ':' => safe.push_str("&#58;"),
            control if control.is_control() => safe.push(' '),
            other => safe.push(other),
        }
    }
    safe
}

fn longest_run(text: &str) -> usize {
    let runs = text.split(|it| it != '`').map(str::len);
    runs.max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_stays_text() {
        let hostile = "a|b <img src=x> @all [x](http://y)\n# `c`";
        let safe = escaped(hostile);
        for mark in ["|", "<", ">", "@", "[", "`", "\n", "://"] {
            assert!(!safe.contains(mark), "{mark}: {safe}");
        }
        assert_eq!(
            escaped("file /etc/containers/registries.conf"),
            "file /etc/containers/registries.conf"
        );
        assert_eq!(longest_run("a ``` b `````"), 5);
    }

    #[test]
    fn a_long_table_is_cut() {
        let rows = (0..ROWS + 3).map(|number| [number.to_string()]);
        let text = table(&["node"], rows);
        assert!(text.ends_with("\nand 3 more\n"), "{text}");
    }
}
