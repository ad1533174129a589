//! What a page shows in blocks: commands with what they print, and files to save. Lines that begin with `$` are typed on
//! a person's own machine, lines that begin with `#` as root on every node.

use evenkeel_testbed::{Error, Result};

/// Stands directly above a block that no test can run, and says why.
const NOT_RUN: &str = "<!-- not run: ";
/// Any text, in what a page shows.
const ANYTHING: &str = "…";

/// Who types a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Person,
    RootOfEachNode,
}

/// What a reader of the page does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Saves a file of this name: it stands in the first line of the block.
    Save { name: String, text: String },
    /// Types a command, and sees these lines.
    Type {
        who: Who,
        command: String,
        shown: Vec<String>,
    },
}

/// A page, from top to bottom.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) steps: Vec<Step>,
    /// Why blocks are left out, one by one.
    pub(crate) left_out: Vec<String>,
}

impl Page {
    /// Reads a page.
    pub(crate) fn read(text: &str) -> Result<Self> {
        let mut page = Self::default();
        let mut lines = text.lines();
        let mut above = "";
        while let Some(line) = lines.next() {
            let Some(language) = line.trim_start().strip_prefix("```") else {
                above = line.trim();
                continue;
            };
            let indent = line.len() - line.trim_start().len();
            let block: Vec<&str> = lines
                .by_ref()
                .take_while(|it| it.trim() != "```")
                .map(|it| it.get(indent..).unwrap_or_default())
                .collect();
            let why = above
                .strip_prefix(NOT_RUN)
                .and_then(|it| it.strip_suffix(" -->"));
            match (language, why) {
                (_, Some(why)) => page.left_out.push(why.to_owned()),
                ("console", None) => page.steps.extend(commands(&block)?),
                ("yaml", None) => page.steps.extend(file(&block)),
                _ => {}
            }
            above = "";
        }
        Ok(page)
    }
}

fn commands(block: &[&str]) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    for line in block {
        let typed = [("$ ", Who::Person), ("# ", Who::RootOfEachNode)];
        let typed = typed
            .into_iter()
            .find_map(|(prompt, who)| Some((who, line.strip_prefix(prompt)?)));
        match (typed, steps.last_mut()) {
            (Some((_, command)), _) if command.ends_with('\\') => {
                return Err(Error::failed(format!(
                    "`{command}` goes on in the next line, which this test does not understand: write it in one"
                )));
            }
            (Some((who, command)), _) => steps.push(Step::Type {
                who,
                command: command.to_owned(),
                shown: Vec::new(),
            }),
            (None, Some(Step::Type { shown, .. })) => shown.push((*line).to_owned()),
            (None, _) => {
                return Err(Error::failed(format!("no command prints \"{line}\"")));
            }
        }
    }
    Ok(steps)
}

fn file(block: &[&str]) -> Option<Step> {
    let name = block.first()?.strip_prefix("# ")?;
    Some(Step::Save {
        name: name.to_owned(),
        text: block.join("\n") + "\n",
    })
}

/// The first of the lines `shown` that is not among what was `printed`, in this order. Others may stand between them, and
/// columns may be as wide as they like.
pub(crate) fn missing<'a>(shown: &'a [String], printed: &str) -> Option<&'a str> {
    let mut lines = printed.lines().map(words);
    shown
        .iter()
        .filter(|it| !["", ANYTHING].contains(&it.trim()))
        .find(|it| !lines.any(|line| is_like(&words(it), &line)))
        .map(String::as_str)
}

fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether `line` is `pattern`, where each `…` stands for any text.
fn is_like(pattern: &str, line: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once(ANYTHING) else {
        return pattern == line;
    };
    let Some(mut left) = line.strip_prefix(begin) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split(ANYTHING).collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        let Some((_, after)) = left.split_once(part) else {
            return false;
        };
        left = after;
    }
    left.ends_with(end)
}

#[test]
fn a_page_is_its_commands_and_files_from_top_to_bottom() -> Result<()> {
    let page = "# A page\n```console\n$ one 1\nsaid\n\n$ two\n# three\n```\n1. Save:\n   ```yaml\n   # a.yaml\n   a:\n     b\n   ```\n\n<!-- not run: nobody can -->\n```console\n$ for it in a; do\n    x\n  done\n```\n```yaml\nc: d\n```\n";
    let typed = |who, command: &str, shown: &[&str]| Step::Type {
        who,
        command: command.to_owned(),
        shown: shown.iter().map(|it| (*it).to_owned()).collect(),
    };
    let expected = Page {
        steps: vec![
            typed(Who::Person, "one 1", &["said", ""]),
            typed(Who::Person, "two", &[]),
            typed(Who::RootOfEachNode, "three", &[]),
            Step::Save {
                name: "a.yaml".to_owned(),
                text: "# a.yaml\na:\n  b\n".to_owned(),
            },
        ],
        left_out: vec!["nobody can".to_owned()],
    };
    assert_eq!(Page::read(page)?, expected);
    for (wrong, said) in [
        ("```console\nwho\n```\n", "no command prints \"who\""),
        ("```console\n$ one \\\n  two\n```\n", "write it in one"),
    ] {
        let error = Page::read(wrong).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    Ok(())
}

#[test]
fn what_a_page_shows_must_be_printed_in_its_order() {
    let shown = |lines: &[&str]| lines.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
    let printed =
        "Waiting\nNAME   AGE\nnode/one labeled\nnode/two labeled\nrendered-worker-4f: 2 nodes\n";
    for lines in [
        &["NAME AGE"][..],
        &["…", "node/… labeled", "…", "rendered-…: … nodes"],
        &["node/two labeled", "", "…"],
        &["node/… labeled", "node/… labeled"],
    ] {
        assert_eq!(missing(&shown(lines), printed), None, "{lines:?}");
    }
    for (lines, is_missing) in [
        (
            &["node/two labeled", "node/one labeled"][..],
            "node/one labeled",
        ),
        (&["node/…"; 3][..], "node/…"),
        (&["node/… labelled"][..], "node/… labelled"),
        (&["rendered-…: … at most"][..], "rendered-…: … at most"),
    ] {
        assert_eq!(missing(&shown(lines), printed), Some(is_missing));
    }
}
