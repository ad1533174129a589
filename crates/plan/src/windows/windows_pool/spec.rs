//! What the owner of the Windows pool wants, as far as it makes sense.

use std::collections::BTreeMap;

use evenkeel_api::field::Field;
use evenkeel_api::names::annotation;
use evenkeel_api::windows::windows_pool::{PARALLEL_INSTANCES, Strategy, WindowsPoolSpec};
use jiff::Timestamp;

use crate::fleet::budget::DisruptionBudget;
use crate::fleet::field_problem::FieldProblem;
use crate::fleet::maintenance::Closed;
use crate::fleet::policy::{PolicyLookup, PolicyReference};

/// Where the pool names its policy.
const POLICY_FIELD: &str = "spec.rolloutPolicy";

/// What the pool's owner wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowsPool {
    /// How a node gets a new version.
    pub strategy: Strategy,
    /// How many nodes may be down at once.
    pub budget: DisruptionBudget,
    /// The policy that it is rolled out by.
    pub policy: PolicyReference,
    /// How many instances are configured for the first time at once.
    pub parallel_instances: usize,
    /// What of it makes no sense.
    pub problems: Vec<FieldProblem>,
}

impl Default for WindowsPool {
    fn default() -> Self {
        Self {
            strategy: Strategy::default(),
            budget: DisruptionBudget::default(),
            policy: PolicyReference::to(POLICY_FIELD, None),
            parallel_instances: instances(PARALLEL_INSTANCES),
            problems: Vec::new(),
        }
    }
}

impl WindowsPool {
    /// Reads a pool's spec field by field: what makes no sense is a problem, and stops nothing else. A limit
    /// that nobody understands lets no node begin.
    pub fn read(spec: &WindowsPoolSpec) -> Self {
        let mut pool = Self::default();
        match &spec.strategy {
            Field::Absent => {}
            Field::Valid(strategy) => pool.strategy = *strategy,
            Field::Invalid { found, .. } => pool.problem(
                "spec.strategy",
                format!("unknown strategy {found}: write InPlace or Recreate"),
            ),
        }
        let (budget, problem) = DisruptionBudget::of(&spec.max_unavailable, &spec.paused);
        pool.budget = budget;
        pool.problems.extend(problem);
        if let Field::Invalid { found, .. } = &spec.rollout_policy {
            pool.problem(
                POLICY_FIELD,
                format!("{found} is not the name of a RolloutPolicy"),
            );
            pool.budget.closed = Some(Closed::Policy);
        }
        let policy = spec.rollout_policy.get().map(String::as_str);
        pool.policy = PolicyReference::to(POLICY_FIELD, policy);
        match &spec.parallel_instances {
            Field::Absent => {}
            Field::Valid(number) => pool.parallel_instances = instances(number.get()),
            Field::Invalid { found, .. } => pool.problem(
                "spec.parallelInstances",
                format!("{found} is not a valid number of instances: write a number of at least 1"),
            ),
        }
        pool
    }

    /// The same pool, with what its annotations say.
    #[must_use]
    pub fn with_annotations(mut self, annotations: &BTreeMap<String, String>) -> Self {
        let overridden = annotations.get(annotation::ROLLOUT_OVERRIDE);
        let problem = self.policy.override_by(overridden.map(String::as_str));
        self.problems.extend(problem);
        self
    }

    /// The same pool at `now`, with what the policy says that it names.
    #[must_use]
    pub fn held_to(mut self, policy: PolicyLookup<'_>, now: Timestamp) -> Self {
        let effect = self.policy.effect(policy, now);
        self.budget.closed = self.budget.closed.or(effect.closed);
        self.problems.extend(effect.problem);
        self
    }

    fn problem(&mut self, field: &str, message: String) {
        self.problems.push(FieldProblem {
            field: field.to_owned(),
            message,
        });
    }
}

fn instances(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
