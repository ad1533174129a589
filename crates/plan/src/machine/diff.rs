//! A step as people want to see it: the lines that come and go.

use std::fmt;

use similar::{ChangeTag, TextDiff};

use crate::machine::entry::Entry;
use crate::machine::step::Step;
use crate::secret::looks_secret;

/// More lines than this say how many there are instead.
const MOST_LINES: usize = 400;
const CONTEXT: usize = 3;

/// One line of a diff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A remark of ours.
    Note(String),
    /// Where the next lines stand.
    Place(String),
    /// The same on both sides.
    Same(String),
    /// Only in the old contents.
    Gone(String),
    /// Only in the new contents.
    Come(String),
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Note(text) => write!(f, "({text})"),
            Self::Place(text) => f.write_str(text),
            Self::Same(text) => write!(f, " {text}"),
            Self::Gone(text) => write!(f, "-{text}"),
            Self::Come(text) => write!(f, "+{text}"),
        }
    }
}

/// The difference that `step` makes. `old` and `new` are the contents of its two sides, where they
/// are files.
pub fn of(step: &Step, old: Option<&[u8]>, new: Option<&[u8]>) -> Vec<Line> {
    let mut lines: Vec<Line> = metadata(step).into_iter().map(Line::Note).collect();
    if step.before.hash() == step.after.hash() {
        return lines;
    }
    let sides = [(&step.before, old), (&step.after, new)];
    if sides
        .iter()
        .any(|(entry, bytes)| entry.hash().is_some() && bytes.is_none())
    {
        lines.push(Line::Note("contents are too large to show".to_owned()));
        return lines;
    }
    let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
    if looks_secret(&step.path, old) || looks_secret(&step.path, new) {
        lines.push(Line::Note(
            "contents look secret and are not shown".to_owned(),
        ));
        return lines;
    }
    match (text(old), text(new)) {
        (Some(old), Some(new)) => lines.extend(compare(old, new)),
        _ => lines.push(Line::Note(format!(
            "binary contents, {} bytes become {}",
            old.len(),
            new.len()
        ))),
    }
    lines
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes)
        .ok()
        .filter(|text| !text.contains('\0'))
}

fn compare(old: &str, new: &str) -> Vec<Line> {
    let diff = TextDiff::from_lines(old, new);
    let mut lines = Vec::new();
    for hunk in diff.grouped_ops(CONTEXT) {
        if let (Some(first), Some(last)) = (hunk.first(), hunk.last()) {
            let (old, new) = (
                first.old_range().start..last.old_range().end,
                first.new_range().start..last.new_range().end,
            );
            let place = |range: &std::ops::Range<usize>| {
                let start = if range.is_empty() {
                    range.start
                } else {
                    range.start + 1
                };
                format!("{start},{}", range.len())
            };
            lines.push(Line::Place(format!(
                "@@ -{} +{} @@",
                place(&old),
                place(&new)
            )));
        }
        for change in hunk.iter().flat_map(|op| diff.iter_changes(op)) {
            let text = change.value().trim_end_matches(['\n', '\r']).to_owned();
            lines.push(match change.tag() {
                ChangeTag::Equal => Line::Same(text),
                ChangeTag::Delete => Line::Gone(text),
                ChangeTag::Insert => Line::Come(text),
            });
            if change.missing_newline() {
                lines.push(Line::Note("no newline at the end".to_owned()));
            }
        }
    }
    if lines.len() > MOST_LINES {
        let more = lines.len() - MOST_LINES;
        lines.truncate(MOST_LINES);
        lines.push(Line::Note(format!("and {more} more lines")));
    }
    lines
}

fn metadata(step: &Step) -> Vec<String> {
    let link = |entry: &Entry| match entry {
        Entry::Link { target } => Some(format!("link to {target}")),
        _ => None,
    };
    match (&step.before, &step.after) {
        (
            Entry::File {
                mode: old,
                owner: was,
                ..
            },
            Entry::File { mode, owner, .. },
        ) => {
            let mode = (old != mode).then(|| format!("mode {old:04o} becomes {mode:04o}"));
            let owner = (was != owner).then(|| format!("owner {was} becomes {owner}"));
            mode.into_iter().chain(owner).collect()
        }
        (before, after) => {
            let old = link(before).map(|text| format!("{text} goes"));
            let new = link(after).map(|text| format!("{text} comes"));
            old.into_iter()
                .chain(new)
                .map(|text| format!("{}: {text}", step.path))
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::entry::{Hash, Ids};
    use crate::machine::resource::Resource;
    use crate::machine::targets::Part;

    fn step(path: &str, old: Option<&[u8]>, new: Option<&[u8]>) -> Step {
        let entry = |bytes: Option<&[u8]>| {
            bytes.map_or(Entry::Absent, |bytes| Entry::File {
                hash: Hash::of(bytes),
                mode: 0o644,
                owner: Ids::default(),
            })
        };
        Step {
            resource: Resource::File(path.to_owned()),
            part: Part::Whole,
            path: path.to_owned(),
            before: entry(old),
            after: entry(new),
        }
    }

    fn shown(path: &str, old: &[u8], new: &[u8]) -> Vec<Line> {
        of(&step(path, Some(old), Some(new)), Some(old), Some(new))
    }

    #[test]
    fn lines_that_come_and_go_are_shown_with_their_place() {
        assert_eq!(
            shown("/etc/x", b"a\nb\nc\n", b"a\nB\nc\n"),
            [
                Line::Place("@@ -1,3 +1,3 @@".into()),
                Line::Same("a".into()),
                Line::Gone("b".into()),
                Line::Come("B".into()),
                Line::Same("c".into()),
            ]
        );
    }

    #[test]
    fn secrets_and_binaries_are_named_and_not_shown() {
        let secret = shown("/etc/x", b"password=old", b"password=new");
        assert_eq!(
            secret,
            [Line::Note("contents look secret and are not shown".into())]
        );
        let binary = shown("/etc/x", b"\xff\x00", b"\xff");
        assert_eq!(
            binary,
            [Line::Note("binary contents, 2 bytes become 1".into())]
        );
    }

    #[test]
    fn a_new_file_is_all_lines_that_come() {
        let new: &[u8] = b"one\n";
        let lines = of(&step("/etc/x", None, Some(new)), None, Some(new));
        assert_eq!(
            lines,
            [
                Line::Place("@@ -0,0 +1,1 @@".into()),
                Line::Come("one".into())
            ]
        );
    }
}
