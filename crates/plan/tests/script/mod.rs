//! How a golden scenario is read: a line for each thing that happens; what follows a `#` is for people.

use std::path::Path;
use std::str::FromStr;

pub(crate) type Result<T> = std::result::Result<T, String>;

/// The lines of a script that say something.
pub(crate) fn lines(path: &Path) -> Vec<String> {
    let script = std::fs::read_to_string(path).unwrap_or_default();
    let lines = script.lines();
    let lines = lines.map(|it| it.split('#').next().unwrap_or_default().trim());
    let lines = lines.filter(|it| !it.is_empty()).map(str::to_owned);
    lines.collect()
}

/// A number in a script.
pub(crate) fn number<T: FromStr>(text: &str) -> Result<T> {
    let number = text.parse();
    number.map_err(|_| format!("{text:?} is not a number"))
}
