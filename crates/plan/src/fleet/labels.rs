//! The labels of an object in one piece of memory: a fleet has thousands of Nodes with twenty each,
//! and a map of them would be three times as large.

use std::fmt;
use std::sync::Arc;

/// Labels, by name.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Labels(Arc<str>);

impl Labels {
    /// The value of the label `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        // Neither names nor values have an equals sign or a line break in them.
        let mut lines = self.0.split_terminator('\n');
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.lines().filter_map(|line| line.split_once('='))
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: AsRef<str>, V: AsRef<str>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(labels: I) -> Self {
        let mut text = String::new();
        for (key, value) in labels {
            text.push_str(key.as_ref());
            text.push('=');
            text.push_str(value.as_ref());
            text.push('\n');
        }
        Self(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_in_is_found_and_nothing_else() {
        let labels: Labels = [("a", "1"), ("a.b/c", ""), ("ab", "2")]
            .into_iter()
            .collect();
        for (name, value) in [
            ("a", Some("1")),
            ("a.b/c", Some("")),
            ("ab", Some("2")),
            ("b", None),
            ("", None),
        ] {
            assert_eq!(labels.get(name), value, "{name}");
        }
        assert_eq!(labels.iter().count(), 3);
        assert_eq!(Labels::default().get("a"), None);
    }
}
