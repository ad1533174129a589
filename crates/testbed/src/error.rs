//! One sentence that says what failed, on what, and what to do.

/// What went wrong on the test bed, as one sentence for the person who runs the tests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Something must be installed or permitted first; the sentence says how.
    #[error("{0}")]
    Missing(String),
    /// It was tried and did not work.
    #[error("{0}")]
    Failed(String),
}

/// What most of the test bed returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A failure, with its sentence.
    pub fn failed(sentence: impl Into<String>) -> Self {
        Self::Failed(sentence.into())
    }

    /// Puts a sentence in front of whatever `source` says.
    pub fn because(sentence: impl std::fmt::Display, source: impl std::fmt::Display) -> Self {
        Self::Failed(format!("{sentence}: {source}"))
    }
}

/// Adds what was being done to an error of another kind.
pub trait Doing<T> {
    /// `file.read().doing(|| format!("cannot read {path}"))`
    fn doing<S: std::fmt::Display>(self, what: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: std::fmt::Display> Doing<T> for std::result::Result<T, E> {
    fn doing<S: std::fmt::Display>(self, what: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|source| Error::because(what(), source))
    }
}
