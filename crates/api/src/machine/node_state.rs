//! What a node's agent makes of its configuration: one word, on the Node and in the agent's report.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum NodeState {
    /// The node is as it shall be.
    Done,
    /// It is on its way.
    Working,
    /// It cannot go on.
    Degraded,
    /// Nothing yet, or the word of another operator's agent.
    Other(Box<str>),
}

impl NodeState {
    /// The states that our agents know.
    pub const ALL: [Self; 3] = [Self::Done, Self::Working, Self::Degraded];

    /// The word.
    pub const fn as_str(&self) -> &str {
        match self {
            Self::Done => "Done",
            Self::Working => "Working",
            Self::Degraded => "Degraded",
            Self::Other(word) => word,
        }
    }
}

impl Default for NodeState {
    fn default() -> Self {
        Self::Other(Box::default())
    }
}

impl From<String> for NodeState {
    fn from(word: String) -> Self {
        let known = Self::ALL.into_iter().find(|it| it.as_str() == word);
        known.unwrap_or_else(|| Self::Other(word.into()))
    }
}

impl From<NodeState> for String {
    fn from(state: NodeState) -> Self {
        state.as_str().to_owned()
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_written_back_as_it_was_read() {
        for (word, state) in [
            ("Done", NodeState::Done),
            ("Working", NodeState::Working),
            ("Degraded", NodeState::Degraded),
            ("Unreconcilable", NodeState::Other("Unreconcilable".into())),
            ("", NodeState::default()),
        ] {
            assert_eq!(NodeState::from(word.to_owned()), state);
            assert_eq!(String::from(state), word);
        }
    }
}
