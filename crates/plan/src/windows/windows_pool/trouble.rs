//! Why nothing can be done for the Windows pool.

/// Why nothing can be done for the pool, by whatever is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolFailure {
    /// One word.
    pub category: &'static str,
    /// What is wrong, and the cure.
    pub note: String,
}

/// All words that a trouble can have.
pub const TROUBLES: [&str; 4] = [
    "InvalidPayload",
    "InvalidWorkerIgnition",
    "NoWorkerIgnition",
    "NewerVersionInstalled",
];
