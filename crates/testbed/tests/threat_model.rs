//! The threat model names a test for every row, and the test is there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use evenkeel_testbed::{Doing, Result};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The names of all functions that are tests, in the sources below `folder`.
fn tests(folder: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    let entries = std::fs::read_dir(folder).doing(|| format!("no {}", folder.display()))?;
    for entry in entries {
        let path = entry.doing(|| "no entry")?.path();
        if path.is_dir() {
            tests(&path, found)?;
        } else if path.extension().is_some_and(|it| it == "rs") {
            let text = std::fs::read_to_string(&path).doing(|| "no source")?;
            let mut is_test = false;
            for line in text.lines().map(str::trim) {
                let name = line
                    .strip_prefix("async fn ")
                    .or_else(|| line.strip_prefix("fn "))
                    .and_then(|it| it.split(['(', '<']).next());
                match name {
                    Some(name) if is_test => {
                        found.insert(name.to_owned());
                        is_test = false;
                    }
                    Some(_) => is_test = false,
                    None => {
                        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn every_row_of_the_threat_model_names_tests_that_are_there() -> Result<()> {
    let mut all = BTreeSet::new();
    tests(&root().join("crates"), &mut all)?;
    let page = std::fs::read_to_string(root().join("docs/threat-model.md")).doing(|| "no page")?;
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| S"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let ids: BTreeSet<&str> = rows.iter().map(|row| row[0]).collect();
    let expected: Vec<String> = (1..=14).map(|it| format!("S{it:02}")).collect();
    assert_eq!(ids.into_iter().collect::<Vec<_>>(), expected);
    for row in &rows {
        let [id, _, _, tests] = row.as_slice() else {
            panic!("a row has four cells: {row:?}");
        };
        let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(
            !named.is_empty() || *tests == "the same",
            "{id} names no test"
        );
        for name in named {
            assert!(all.contains(name), "{id}: there is no test {name}");
        }
    }
    Ok(())
}
