//! What the owner of the Windows pool wants, as far as it makes sense.

use evenkeel_api::windows::windows_pool::{PARALLEL_INSTANCES, Strategy};
use serde_json::Value;

use crate::fleet::budget::DisruptionBudget;
use crate::fleet::field_problem::FieldProblem;

/// What the pool's owner wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowsPool {
    /// How a node gets a new version.
    pub strategy: Strategy,
    /// How many nodes may be down at once.
    pub allowance: DisruptionBudget,
    /// How many instances are configured for the first time at once.
    pub parallel_instances: usize,
    /// What of it makes no sense.
    pub problems: Vec<FieldProblem>,
}

impl Default for WindowsPool {
    fn default() -> Self {
        Self {
            strategy: Strategy::default(),
            allowance: DisruptionBudget::default(),
            parallel_instances: usize::try_from(PARALLEL_INSTANCES).unwrap_or(1),
            problems: Vec::new(),
        }
    }
}

impl WindowsPool {
    /// Reads a pool's spec field by field: what makes no sense is a problem, and stops nothing else. A limit
    /// that nobody understands lets no node begin.
    pub fn read(spec: &Value) -> Self {
        let mut pool = Self::default();
        match &spec["strategy"] {
            Value::Null => {}
            strategy => match serde_json::from_value(strategy.clone()) {
                Ok(strategy) => pool.strategy = strategy,
                Err(_) => pool.problem(
                    "spec.strategy",
                    format!("unknown strategy {strategy}: write InPlace or Recreate"),
                ),
            },
        }
        let (allowance, problem) = DisruptionBudget::read(spec);
        pool.allowance = allowance;
        pool.problems.extend(problem);
        match &spec["parallelInstances"] {
            Value::Null => {}
            number => match number.as_u64().and_then(|it| usize::try_from(it).ok()) {
                Some(number) if number > 0 => pool.parallel_instances = number,
                _ => pool.problem(
                    "spec.parallelInstances",
                    format!(
                        "{number} is not a valid number of instances: write a number of at least 1"
                    ),
                ),
            },
        }
        pool
    }

    fn problem(&mut self, field: &str, message: String) {
        self.problems.push(FieldProblem {
            field: field.to_owned(),
            message,
        });
    }
}
