//! Policies of rollouts: what a `RolloutPolicy` says, as far as it makes sense, and what that means at one moment for a
//! pool that names it.

use std::fmt;
use std::time::Duration;

use evenkeel_api::field::Field;
use evenkeel_api::fleet::rollout_policy::RolloutPolicySpec;
use evenkeel_api::names::annotation;
use jiff::Timestamp;

use crate::excerpt::excerpt;
use crate::fleet::drain::duration_text;
use crate::fleet::field_problem::FieldProblem;
use crate::fleet::maintenance::{Closed, MaintenanceCalendar};
use crate::listing::listed;

/// How pools are rolled out that name this policy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RolloutPolicy {
    /// When their nodes may begin.
    pub calendar: MaintenanceCalendar,
    /// What of it makes no sense: then nobody begins.
    pub problems: Vec<FieldProblem>,
}

impl RolloutPolicy {
    /// Reads a policy field by field.
    pub fn read(spec: &Field<RolloutPolicySpec>) -> Self {
        let mut policy = Self::default();
        match spec {
            Field::Absent => {
                policy.problem("it is missing: write windows or freezes, or {}".to_owned());
            }
            Field::Invalid { found, .. } => {
                policy.problem(format!("{found} is not an object with fields"));
            }
            Field::Valid(spec) => {
                policy.calendar = MaintenanceCalendar::read(spec, &mut policy.problems);
            }
        }
        policy
    }

    fn problem(&mut self, message: String) {
        self.problems.push(FieldProblem {
            field: "spec".to_owned(),
            message,
        });
    }

    /// What is to be said of windows in which one node hardly gets to its end, where its drain may take so long. How long
    /// nodes take is not measured: a drain's timeout is what their owner reckons with.
    pub fn short_windows(&self, drain_timeout: Duration) -> Option<String> {
        let short = self
            .calendar
            .windows
            .iter()
            .filter(|it| it.duration < drain_timeout);
        let named = listed(
            short.map(|it| format!("{:?} for {}", it.schedule, it.lasts)),
            NAMES,
            ", ",
        );
        (!named.is_empty()).then(|| format!(
            "windows are shorter than the drain timeout of {}, so a node that starts in one may still be disrupted after it: {named}",
            duration_text(drain_timeout)
        ))
    }
}

/// How many windows a sentence names.
const NAMES: usize = 3;

/// A policy, as far as anybody knows.
#[derive(Debug, Clone, Copy)]
pub enum PolicyLookup<'p> {
    /// Nobody has read the policies yet.
    Unread,
    /// There is none of that name.
    Missing,
    /// It is this one.
    Found(&'p RolloutPolicy),
}

/// Which policy a pool names, and whether its windows count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PolicyReference {
    /// The name of the policy, if the pool names one.
    pub name: Option<String>,
    /// Who lets its nodes begin at any time, and why.
    pub overridden: Option<WindowOverride>,
    /// The field that names it.
    field: &'static str,
}

/// Somebody lets nodes begin although no window is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowOverride {
    /// Who says so.
    pub who: String,
    /// Why.
    pub why: String,
}

impl WindowOverride {
    /// The override as a pool's annotation has it.
    fn read(text: &str) -> Result<Self, String> {
        let said = text
            .split_once(':')
            .map(|(who, why)| (who.trim(), why.trim()));
        match said {
            Some((who, why)) if !who.is_empty() && !why.is_empty() => Ok(Self {
                who: excerpt(who),
                why: excerpt(why),
            }),
            _ => Err(format!(
                "{text:?} overrides nothing, because it must say who and why: write for example \"jane: CVE-2026-1234\""
            )),
        }
    }
}

impl fmt::Display for WindowOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} overrides the maintenance windows and freezes: {}",
            self.who, self.why
        )
    }
}

/// What a policy means for a pool at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PolicyEffect {
    /// Why none of its nodes may begin, if so.
    pub closed: Option<Closed>,
    /// What is wrong with its policy.
    pub problem: Option<FieldProblem>,
}

impl PolicyReference {
    /// The policy of that `name`, which a pool names in `field`. An empty name is none.
    pub fn to(field: &'static str, name: Option<&str>) -> Self {
        let name = name.filter(|it| !it.is_empty()).map(str::to_owned);
        Self {
            name,
            overridden: None,
            field,
        }
    }

    /// Takes note of what a pool's annotation says about windows; what of that makes no sense.
    pub fn override_by(&mut self, annotation: Option<&str>) -> Option<FieldProblem> {
        match annotation.map(WindowOverride::read).transpose() {
            Ok(overridden) => {
                self.overridden = overridden;
                None
            }
            Err(message) => {
                let field = format!("metadata.annotations {}", annotation::ROLLOUT_OVERRIDE);
                Some(FieldProblem { field, message })
            }
        }
    }

    /// What its policy means at `now`. An override lifts windows and freezes, and nothing that nobody understands.
    pub fn effect(&self, policy: PolicyLookup<'_>, now: Timestamp) -> PolicyEffect {
        let Some(name) = &self.name else {
            return PolicyEffect::default();
        };
        let unusable = |message: String| PolicyEffect {
            closed: Some(Closed::Policy),
            problem: Some(FieldProblem {
                field: self.field.to_owned(),
                message,
            }),
        };
        match policy {
            PolicyLookup::Unread => PolicyEffect {
                closed: Some(Closed::Unread),
                problem: None,
            },
            PolicyLookup::Missing => unusable(format!(
                "RolloutPolicy {name} does not exist, so no node may start: create it, or name another one"
            )),
            PolicyLookup::Found(policy) => match FieldProblem::listed(&policy.problems) {
                Some(problems) => unusable(format!(
                    "RolloutPolicy {name} is not valid, so no node may start: {problems}"
                )),
                None if self.overridden.is_some() => PolicyEffect::default(),
                None => PolicyEffect {
                    closed: policy.calendar.closed(now),
                    problem: None,
                },
            },
        }
    }

    /// What people should hear of an override that is in force.
    pub fn notice(&self) -> Option<String> {
        let name = self.name.as_ref()?;
        self.overridden
            .as_ref()
            .map(|it| format!("{it} (RolloutPolicy {name})"))
    }
}
