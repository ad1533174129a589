//! `docs/requirements.md` and the tests agree: every promised row is claimed by a test, and every claim has its row.
//!
//! A test claims rows with a doc comment directly above it. What is compared is texts; whether a test proves what its
//! row says is for its reader to judge.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use evenkeel_testbed::{Doing, Result};

const PAGE: &str = "docs/requirements.md";
const NOT_YET: &str = "## Not yet promised";
const CLAIM: &str = "/// Covers ";

/// A source file: its path and its text.
type Source = (String, String);

fn is_id(text: &str) -> bool {
    let mut letters = text.chars();
    letters.next().is_some_and(|it| it.is_ascii_uppercase())
        && text.len() == 3
        && letters.all(|it| it.is_ascii_digit())
}

/// The rows of the page in their order, each with whether it is promised.
fn rows(page: &str) -> Vec<(&str, bool)> {
    let mut is_promised = true;
    let mut rows = Vec::new();
    for line in page.lines() {
        is_promised &= line != NOT_YET;
        let id = line
            .strip_prefix("| ")
            .and_then(|it| it.split_once(" | "))
            .map(|(id, _)| id);
        rows.extend(id.filter(|it| is_id(it)).map(|id| (id, is_promised)));
    }
    rows
}

/// Whether `below`, the lines after a doc comment, begin with the rest of it, attributes and a test.
fn is_above_a_test<'a>(below: impl Iterator<Item = &'a str>) -> bool {
    below
        .map(str::trim)
        .take_while(|line| line.starts_with("///") || line.starts_with("#["))
        .any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
}

/// Who claims which row, and what is wrong with claims themselves.
fn claims(sources: &[Source]) -> (BTreeMap<&str, String>, Vec<String>) {
    let mut claims = BTreeMap::new();
    let mut problems = Vec::new();
    for (path, text) in sources {
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let Some(ids) = line.trim().strip_prefix(CLAIM) else {
                continue;
            };
            let place = format!("{path}:{}", number + 1);
            if !is_above_a_test(lines[number + 1..].iter().copied()) {
                problems.push(format!(
                    "{place} claims {ids} above something that is no test: put it directly above one"
                ));
            }
            for id in ids.trim_end_matches('.').split(", ") {
                if is_id(id) {
                    claims.entry(id).or_insert_with(|| place.clone());
                } else {
                    problems.push(format!(
                        "{place} claims {id}, which is no id: list ids only, as in `{CLAIM}M02, H11.`"
                    ));
                }
            }
        }
    }
    (claims, problems)
}

/// Everything that does not agree, each with its row and its cure.
fn problems(page: &str, sources: &[Source]) -> Vec<String> {
    let (claims, mut problems) = claims(sources);
    let mut seen = BTreeSet::new();
    for (id, is_promised) in rows(page) {
        if !seen.insert(id) {
            problems.push(format!("{PAGE} has row {id} twice: keep one"));
        }
        match claims.get(id) {
            None if is_promised => problems.push(format!(
                "{PAGE} promises {id} and no test claims it: write `{CLAIM}{id}.` above the test that proves it, \
                 or move the row below \"Not yet promised\""
            )),
            Some(place) if !is_promised => problems.push(format!(
                "{place} claims {id}, which is not yet promised: move its row in {PAGE} up to its group"
            )),
            _ => {}
        }
    }
    for (id, place) in claims {
        if !seen.contains(id) {
            problems.push(format!(
                "{place} claims {id}, and {PAGE} has no such row: add one, or correct the id"
            ));
        }
    }
    problems
}

/// All sources below `folder`, by their paths from `root`.
fn sources(root: &Path, folder: &Path, found: &mut Vec<Source>) -> Result<()> {
    let entries = std::fs::read_dir(folder).doing(|| format!("no {}", folder.display()))?;
    for entry in entries {
        let path = entry.doing(|| "no entry")?.path();
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "target") {
                sources(root, &path, found)?;
            }
        } else if path.extension().is_some_and(|it| it == "rs") {
            let text = std::fs::read_to_string(&path)
                .doing(|| format!("cannot read {}", path.display()))?;
            let name = path.strip_prefix(root).unwrap_or(&path);
            found.push((name.display().to_string(), text));
        }
    }
    Ok(())
}

#[test]
fn every_promised_row_has_a_test_and_every_claim_has_a_row() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join(PAGE)).doing(|| format!("no {PAGE}"))?;
    let mut all = Vec::new();
    sources(&root, &root.join("crates"), &mut all)?;
    let problems = problems(&page, &all);
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
    assert!(rows(&page).len() > 100, "{PAGE} has hardly any rows");
    Ok(())
}

const GOOD_PAGE: &str = "\
## M: Linux

| id | promise |
| --- | --- |
| M01 | it is so |
| M02 | it is so, too |

## Not yet promised

| id | promise |
| --- | --- |
| T01 | some day |
";

const GOOD_TEST: &str = "mod tests {\n    /// Covers M01, M02.\n    /// For a reason.\n    #[tokio::test]\n    async fn it_is_so() {}\n}\n";

#[test]
fn what_does_not_agree_is_told_with_its_row_and_its_cure() {
    // What is replaced in the page, what in the test, and what is said.
    let cases = [
        (("", ""), ("", ""), ""),
        (
            ("", ""),
            ("M01, M02", "M01"),
            "docs/requirements.md promises M02 and no test claims it: write `/// Covers M02.` above the test that \
             proves it, or move the row below \"Not yet promised\"",
        ),
        (
            ("| M02 | it is so, too |\n", ""),
            ("", ""),
            "a.rs:2 claims M02, and docs/requirements.md has no such row: add one, or correct the id",
        ),
        (
            ("| M02 |", "| M01 | it is so |\n| M02 |"),
            ("", ""),
            "docs/requirements.md has row M01 twice: keep one",
        ),
        (
            ("some day |", "some day |\n| M02 | later |"),
            ("", ""),
            "docs/requirements.md has row M02 twice: keep one\n\
             a.rs:2 claims M02, which is not yet promised: move its row in docs/requirements.md up to its group",
        ),
        (
            ("", ""),
            ("M02.", "M02, T01."),
            "a.rs:2 claims T01, which is not yet promised: move its row in docs/requirements.md up to its group",
        ),
        (
            ("", ""),
            ("M02.", "M02, and more."),
            "a.rs:2 claims and more, which is no id: list ids only, as in `/// Covers M02, H11.`",
        ),
        (
            ("", ""),
            ("#[tokio::test]", "#[cfg(windows)]"),
            "a.rs:2 claims M01, M02. above something that is no test: put it directly above one",
        ),
    ];
    for ((old_row, new_row), (old_line, new_line), expected) in cases {
        let page = GOOD_PAGE.replacen(old_row, new_row, 1);
        let text = GOOD_TEST.replacen(old_line, new_line, 1);
        let said = problems(&page, &[("a.rs".to_owned(), text)]);
        assert_eq!(said.join("\n"), expected);
    }
}
