//! What the pages in `docs` name is there: files in the architecture, decisions in their index, and whatever a link leads
//! to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use evenkeel_testbed::{Doing, Result};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).doing(|| format!("cannot read {}", path.display()))
}

/// The names of what is in a folder.
fn names(folder: &Path) -> Result<BTreeSet<String>> {
    let entries = std::fs::read_dir(folder).doing(|| format!("no {}", folder.display()))?;
    entries
        .map(|it| {
            let name = it.doing(|| "no entry")?.file_name();
            Ok(name.to_string_lossy().into_owned())
        })
        .collect()
}

/// What stands in backticks and is a path of the repository. Blocks of code are left out.
fn paths(page: &str) -> Vec<&str> {
    let prose = page.split("```").step_by(2);
    prose
        .flat_map(|it| it.split('`').skip(1).step_by(2))
        .filter(|it| {
            ["crates/", "deploy/", "docs/"]
                .iter()
                .any(|top| it.starts_with(top))
        })
        .collect()
}

/// Where the links of a page lead within the repository: the file, empty for the page itself, and the heading.
fn links(page: &str) -> Vec<(&str, &str)> {
    let prose = page.split("```").step_by(2);
    prose
        .flat_map(|it| it.split("](").skip(1))
        .filter_map(|it| it.split_once(')').map(|(link, _)| link))
        .filter(|it| !it.contains("://"))
        .map(|it| it.split_once('#').unwrap_or((it, "")))
        .collect()
}

/// The headings of a page, as links name them.
fn headings(page: &str) -> BTreeSet<String> {
    let prose = page.split("```").step_by(2).flat_map(str::lines);
    prose
        .filter(|it| it.starts_with('#'))
        .map(|it| {
            let words = it.trim_start_matches('#').trim().to_lowercase();
            let letters = words.chars().map(|it| if it == ' ' { '-' } else { it });
            letters
                .filter(|it| it.is_alphanumeric() || matches!(it, '-' | '_'))
                .collect()
        })
        .collect()
}

/// What is wrong with the index of decisions, whose folder has these files.
fn decision_problems(index: &str, files: &BTreeSet<String>) -> Vec<String> {
    let rows: Vec<&str> = index.lines().filter(|it| it.starts_with("| [")).collect();
    let listed = |file: &str| format!("| [{}]({file}) | ", file.get(..4).unwrap_or_default());
    let mut problems = Vec::new();
    for file in files.iter().filter(|it| *it != "README.md") {
        let count = rows
            .iter()
            .filter(|it| it.starts_with(&listed(file)))
            .count();
        if count != 1 {
            problems.push(format!(
                "docs/decisions/README.md has {count} rows for {file}: it needs one that begins with `{}`",
                listed(file)
            ));
        }
    }
    if rows.len() + 1 != files.len() && problems.is_empty() {
        problems.push(format!(
            "docs/decisions/README.md has {} rows for {} decisions: remove the rows of files that are gone",
            rows.len(),
            files.len() - 1
        ));
    }
    problems
}

#[test]
fn every_path_that_the_architecture_names_is_there() -> Result<()> {
    let page = read(&root().join("docs/architecture.md"))?;
    let named = paths(&page);
    assert!(named.len() > 20, "it names hardly any: {named:?}");
    let gone: Vec<&str> = named
        .into_iter()
        .filter(|it| !root().join(it).exists())
        .collect();
    assert!(
        gone.is_empty(),
        "docs/architecture.md names what is not there, so correct it: {gone:?}"
    );
    Ok(())
}

#[test]
fn every_decision_is_in_the_index_by_its_own_title() -> Result<()> {
    let folder = root().join("docs/decisions");
    let index = read(&folder.join("README.md"))?;
    let files = names(&folder)?;
    let mut problems = decision_problems(&index, &files);
    for file in files.iter().filter(|it| *it != "README.md") {
        let text = read(&folder.join(file))?;
        let title = text
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches("# ");
        if !index.contains(&format!("({file}) | {title} | ")) {
            problems.push(format!(
                "docs/decisions/README.md calls {file} something else than \"{title}\""
            ));
        }
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
    Ok(())
}

#[test]
fn every_link_in_the_pages_leads_somewhere() -> Result<()> {
    let mut broken = Vec::new();
    for folder in [
        "",
        "docs",
        "docs/decisions",
        "docs/reference",
        "docs/runbooks",
    ] {
        let folder = root().join(folder);
        for name in names(&folder)?
            .iter()
            .filter(|it| Path::new(it).extension() == Some("md".as_ref()))
        {
            let page = read(&folder.join(name))?;
            for (file, heading) in links(&page) {
                let target = folder.join(if file.is_empty() { name } else { file });
                let is_there = target.exists()
                    && (heading.is_empty() || headings(&read(&target)?).contains(heading));
                if !is_there {
                    broken.push(format!("{name}: {file}#{heading}"));
                }
            }
        }
    }
    let broken = broken.join("\n");
    assert!(broken.is_empty(), "these links lead nowhere:\n{broken}");
    Ok(())
}

#[test]
fn what_a_page_names_is_found_in_its_prose_and_not_in_its_code() {
    let page = "# A page\nSee `crates/a`, `kubectl` and [b](docs/b.md#c), [d](https://d.example).\n```\n# `crates/e` [f](g)\n```\n`deploy/h` [i](#a-page)\n## `evenkeel plan -f X`, now\n";
    assert_eq!(paths(page), ["crates/a", "deploy/h"]);
    assert_eq!(links(page), [("docs/b.md", "c"), ("", "a-page")]);
    let expected = ["a-page", "evenkeel-plan--f-x-now"].map(str::to_owned);
    assert_eq!(headings(page), BTreeSet::from(expected));
}

#[test]
fn a_decision_that_is_not_in_the_index_is_told_and_so_is_a_row_too_many() {
    let files = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect();
    let index = "| number | decision |\n| [0001](0001-a.md) | A | \n| [0002](0002-b.md) | B | \n";
    let said = |names| decision_problems(index, &files(names));
    assert!(said(&["README.md", "0001-a.md", "0002-b.md"]).is_empty());
    assert_eq!(
        said(&["README.md", "0001-a.md", "0002-b.md", "0003-c.md"]),
        [
            "docs/decisions/README.md has 0 rows for 0003-c.md: it needs one that begins with `| [0003](0003-c.md) | `"
        ]
    );
    assert_eq!(
        said(&["README.md", "0001-a.md"]),
        [
            "docs/decisions/README.md has 2 rows for 1 decisions: remove the rows of files that are gone"
        ]
    );
}
