//! What is wrong with something that was written, and where: the file, the line, the path in the
//! document and the element by its own name. Problems are collected, all of them, and never thrown
//! at the first; warnings are data and refuse nothing.

use std::fmt;

use serde::Serialize;

/// A place in what was read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Place {
    /// The file's name, as the caller gave it.
    pub file: String,
    /// The line, counted from one, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The full path in the document: `spec.config.storage.files[3].mode`.
    pub path: String,
    /// The element that this is about: `storage.files[3]`.
    pub element: String,
    /// What the element is called: a path, a unit, a user, a service, a key. Empty if nothing.
    pub identity: String,
}

impl Place {
    /// The element's section, without positions in lists: `storage.files`.
    pub fn section(&self) -> String {
        let mut inside = false;
        let outside = |character: &char| {
            let keep = !inside && *character != '[';
            inside = (inside || *character == '[') && *character != ']';
            keep
        };
        self.element.chars().filter(outside).collect()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ": line {line}")?;
        }
        match (self.element.as_str(), self.identity.as_str()) {
            ("", "") => Ok(()),
            (element, "") => write!(f, ": {element}"),
            ("", identity) => write!(f, ": {identity}"),
            (element, identity) => write!(f, ": {element} {identity}"),
        }
    }
}

/// A reason to refuse what was read, with its cure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Where it stands.
    pub place: Place,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// Something that is most likely not what its author meant, and refuses nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// Where it stands.
    pub place: Place,
    /// What looks wrong.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// Every problem of one reading; never empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// The word for it in Events, metrics and logs.
    pub const CATEGORY: &str = "InvalidConfig";

    /// The word for it in Events, metrics and logs.
    pub fn category(&self) -> &'static str {
        Self::CATEGORY
    }

    /// The problems, in the order of the text.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.0.iter()
    }
}

impl IntoIterator for Problems {
    type Item = Problem;
    type IntoIter = std::vec::IntoIter<Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// Where a reader stands, as a chain back to the top. It costs nothing until something is wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At<'p> {
    parent: Option<&'p At<'p>>,
    step: Step<'p>,
    line: Option<u32>,
    identity: Option<&'p str>,
    base: bool,
}

#[derive(Debug, Clone, Copy)]
enum Step<'p> {
    Top,
    Key(&'p str),
    Index(usize),
}

impl<'p> At<'p> {
    /// The top of a document.
    pub(crate) fn top(line: Option<u32>) -> Self {
        Self {
            parent: None,
            step: Step::Top,
            line,
            identity: None,
            base: true,
        }
    }

    /// The value of a key.
    pub(crate) fn key(&'p self, key: &'p str, line: u32) -> Self {
        self.step(Step::Key(key), Some(line).filter(|line| *line > 0))
    }

    /// An element of a list.
    pub(crate) fn index(&'p self, index: usize, line: u32) -> Self {
        self.step(Step::Index(index), Some(line).filter(|line| *line > 0))
    }

    fn step(&'p self, step: Step<'p>, line: Option<u32>) -> Self {
        Self {
            parent: Some(self),
            step,
            line: line.or(self.line),
            identity: None,
            base: false,
        }
    }

    /// The same place, called by its name.
    pub(crate) fn called(mut self, identity: &'p str) -> Self {
        self.identity = Some(identity).filter(|name| !name.is_empty());
        self
    }

    /// The same place, known to be on another line.
    pub(crate) fn on_line(mut self, line: u32) -> Self {
        self.line = Some(line).filter(|line| *line > 0).or(self.line);
        self
    }

    /// The same place, from where on people count: what is before it is not shown.
    pub(crate) fn as_base(mut self) -> Self {
        self.base = true;
        self
    }

    /// The way from the named element to here, for a sentence: `contents.source`.
    pub(crate) fn field(&self) -> String {
        let mut steps = Vec::new();
        let mut here = Some(self);
        let named = self.chain().any(|at| at.identity.is_some());
        while let Some(at) = here {
            if at.identity.is_some() || at.base {
                break;
            }
            steps.push(at.step);
            if !named && matches!(at.step, Step::Key(_)) {
                break;
            }
            here = at.parent;
        }
        written(steps.into_iter().rev())
    }

    fn chain(&self) -> impl Iterator<Item = &At<'p>> {
        std::iter::successors(Some(self), |at| at.parent)
    }

    fn place(&self, file: &str) -> Place {
        let mut chain: Vec<_> = self.chain().collect();
        chain.reverse();
        let shown = chain.iter().rposition(|at| at.base).map_or(0, |at| at + 1);
        let element = match chain.iter().rposition(|at| at.identity.is_some()) {
            Some(named) if named >= shown => &chain[shown..=named],
            _ => &chain[shown..],
        };
        let names: Vec<_> = chain.iter().filter_map(|at| at.identity).collect();
        Place {
            file: file.to_owned(),
            line: self.line,
            path: written(chain.iter().map(|at| at.step)),
            element: written(element.iter().map(|at| at.step)),
            identity: names.join(" "),
        }
    }
}

fn written<'s>(steps: impl Iterator<Item = Step<'s>>) -> String {
    let mut path = String::new();
    for step in steps {
        match step {
            Step::Top => {}
            Step::Index(index) => {
                path.push('[');
                path.push_str(&index.to_string());
                path.push(']');
            }
            Step::Key(key) if path.is_empty() => path.push_str(key),
            Step::Key(key) => {
                path.push('.');
                path.push_str(key);
            }
        }
    }
    path
}

/// What a reading found so far.
#[derive(Debug)]
pub(crate) struct Findings {
    file: String,
    problems: Vec<Problem>,
    warnings: Vec<Warning>,
}

impl Findings {
    pub(crate) fn of(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            problems: Vec::new(),
            warnings: Vec::new(),
        }
    }

    pub(crate) fn problem(&mut self, at: &At<'_>, message: impl Into<String>) {
        self.problems.push(Problem {
            place: at.place(&self.file),
            message: message.into(),
        });
    }

    pub(crate) fn warning(&mut self, at: &At<'_>, message: impl Into<String>) {
        self.warnings.push(Warning {
            place: at.place(&self.file),
            message: message.into(),
        });
    }

    /// How many problems there are: a reader compares before and after.
    pub(crate) fn count(&self) -> usize {
        self.problems.len()
    }

    /// Everything that is wrong, where there is no value for that reason.
    pub(crate) fn refused(mut self) -> Problems {
        self.problems.sort_by_key(|problem| problem.place.line);
        Problems(self.problems)
    }

    /// The value, if nothing is wrong.
    pub(crate) fn finish<T>(self, value: T) -> Result<(T, Vec<Warning>), Problems> {
        if self.problems.is_empty() {
            Ok((value, self.warnings))
        } else {
            Err(self.refused())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_one_line_with_file_line_section_and_identity() {
        let top = At::top(Some(1));
        let spec = top.key("spec", 3);
        let config = spec.key("config", 4).as_base();
        let storage = config.key("storage", 5);
        let files = storage.key("files", 6);
        let file = files.index(3, 11).called("/etc/x");
        let mode = file.key("mode", 12);
        let mut findings = Findings::of("worker.yaml");
        findings.problem(&mode, "mode is wrong");
        assert_eq!(mode.field(), "mode");
        let Err(problems) = findings.finish(()) else {
            unreachable!("there is a problem")
        };
        let problem = problems.iter().next().cloned().unwrap();
        assert_eq!(
            problem.to_string(),
            "worker.yaml: line 12: storage.files[3] /etc/x: mode is wrong"
        );
        assert_eq!(problem.place.path, "spec.config.storage.files[3].mode");
        assert_eq!(problem.place.section(), "storage.files");
        assert_eq!(problems.category(), "InvalidConfig");
    }

    #[test]
    fn an_element_without_a_name_is_known_by_its_position() {
        let top = At::top(None);
        let list = top.key("files", 0);
        let element = list.index(0, 0);
        let mut findings = Findings::of("-");
        findings.problem(&element, "path is missing");
        let Err(problems) = findings.finish(()) else {
            unreachable!("there is a problem")
        };
        assert_eq!(problems.to_string(), "-: files[0]: path is missing");
    }
}
