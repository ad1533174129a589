//! What a node's agent does next, on either system, from everything it knows: one phase, which carries
//! all that its carrying out needs. What the Node then says about it is in `linux_node` and
//! `windows_node`.

use std::fmt;

use evenkeel_api::field::Field;
use evenkeel_api::names::linux::FORCE_FILE;
use serde::Deserialize;
use serde_json::Value;

use crate::listing::listed;
use crate::machine::Plan;
use crate::machine::disruption::UnitAction;

/// Differences and changes that are named one by one; the rest is counted.
const NAMED: usize = 3;
/// Tries that may fail before pods come back to a node that they left for it.
const TRIES: u32 = 3;

/// What is known of a node.
#[derive(Debug, Clone)]
pub struct AgentSnapshot<'a> {
    /// The configuration that the machine was brought to.
    pub current: Option<&'a str>,
    /// Whether it is known where the machine stands: what an earlier run left is finished or undone.
    pub settled: bool,
    /// It is written, and counts only after a boot that has not happened yet.
    pub awaits_boot: bool,
    /// What it shall be.
    pub wanted: Wanted<'a>,
    /// What is not as the current configuration says, in words, and is not being healed.
    pub drift: &'a [String],
    /// What is not as it says and cannot be put back while the machine runs: what it booted, and what
    /// systemd makes of a unit.
    pub lasting: &'a [String],
    /// What is done about drift before an update.
    pub on_drift: OnDrift,
    /// A person wants everything written again, drift or not.
    pub forced: bool,
    /// Why the last try did not succeed, until it is time for the next one.
    pub failed: Option<Failed<'a>>,
    /// What was asked of the operator, and what it answered.
    pub drain: Drain<'a>,
}

/// A try that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed<'a> {
    /// Why.
    pub reason: &'a Reason,
    /// How many did not, one after the other.
    pub tries: u32,
}

impl AgentSnapshot<'_> {
    /// Whether a node that is degraded returns the permit to be down that it asked for, so that the
    /// others of its pool need not wait for somebody to look after it.
    ///
    /// It does not while it may still need the boot for which its pods left, nor while it tries again
    /// within seconds.
    pub fn returns_permit(&self) -> bool {
        let waits_for_somebody = self.failed.is_none_or(|failed| failed.tries > TRIES);
        self.settled && !self.awaits_boot && waits_for_somebody
    }
}

/// What a node shall be.
#[derive(Debug, Clone)]
pub enum Wanted<'a> {
    /// Nobody has said anything, or that it stays as it is.
    AsItIs,
    /// This configuration, and this leads there.
    Planned {
        /// Its name.
        name: &'a str,
        /// The way.
        plan: &'a Plan,
    },
    /// A configuration that it cannot go to.
    Unfit(Reason),
}

/// What happens when a path is not as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDrift {
    /// It is reported, and nothing is touched.
    #[default]
    Degrade,
    /// It is put back.
    Heal,
}

impl OnDrift {
    /// What the Node's annotation says; what is not understood touches nothing.
    pub fn of(annotation: Option<&str>) -> Self {
        let said = Field::from(Value::from(annotation));
        said.valid().unwrap_or_default()
    }

    /// The word in the annotation.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Degrade => "degrade",
            Self::Heal => "heal",
        }
    }
}

/// How a request begins.
const REQUEST: &str = "drain-";
/// How a request of the operator's own begins, for an upgrade; and how pods are let in after it.
const UPGRADE: &str = "drain-upgrade-";
const UPGRADED: &str = "uncordon-upgrade-";

/// The two annotations by which pods leave and come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drain<'a> {
    /// What the agent asked for last.
    pub asked: Option<&'a str>,
    /// What the operator did last.
    pub applied: Option<&'a str>,
}

impl Drain<'_> {
    /// How pods are asked to leave for `target`.
    pub fn request(target: &str) -> String {
        format!("{REQUEST}{target}")
    }

    /// Whether pods are asked to leave by `text`.
    pub fn is_request(text: &str) -> bool {
        text.starts_with(REQUEST)
    }

    /// How they are let in again.
    pub fn release(target: &str) -> String {
        format!("uncordon-{target}")
    }

    /// How the operator asks pods to leave for an upgrade to `version`. No agent asks for anything else until
    /// the operator lets them in again.
    pub fn for_upgrade(version: impl fmt::Display) -> String {
        format!("{UPGRADE}{version}")
    }

    /// Whether the operator asks pods to leave by `text`, for an upgrade.
    pub fn is_for_upgrade(text: &str) -> bool {
        text.starts_with(UPGRADE)
    }

    /// How pods are let in again that left by `text` for an upgrade.
    pub fn release_of_upgrade(text: &str) -> Option<String> {
        let version = text.strip_prefix(UPGRADE)?;
        Some(format!("{UPGRADED}{version}"))
    }

    /// How the operator asks pods to leave a node that is removed.
    pub const FOR_REMOVAL: &'static str = "drain-removal";
    /// How they are let in again where it is not removed after all.
    pub const REMOVAL_CANCELLED: &'static str = "uncordon-removal";

    /// Whether the operator itself asks pods to leave by `text`, and takes that back itself: no agent does.
    pub fn is_by_operator(text: &str) -> bool {
        Self::is_for_upgrade(text) || text == Self::FOR_REMOVAL
    }

    /// Whether pods have left for `target`, or for an upgrade on the way to it: asked for, and answered with
    /// the same words.
    fn is_granted(&self, target: &str) -> bool {
        let is_request =
            |asked: &str| asked == Self::request(target) || Self::is_for_upgrade(asked);
        self.asked == self.applied && self.asked.is_some_and(is_request)
    }

    /// What pods were asked to leave for, if nobody let them in since.
    pub(crate) fn held_for(&self) -> Option<&str> {
        self.asked?.strip_prefix(REQUEST)
    }
}

/// Why a node is degraded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The Event reason and metric label.
    pub category: &'static str,
    /// For a person, with what would help.
    pub text: String,
}

impl Reason {
    /// The category of paths that are not as they should be.
    pub const DRIFT: &str = "ConfigDrift";

    /// A category with its words.
    pub fn new(category: &'static str, text: impl Into<String>) -> Self {
        Self {
            category,
            text: text.into(),
        }
    }

    /// Paths that are not as `config` says.
    fn drifted(config: Option<&str>, drift: &[&String]) -> Self {
        let config = config.unwrap_or("the configuration");
        Self::new(
            Self::DRIFT,
            format!(
                "not as {config} declares: {}: put it back, or create {FORCE_FILE} to have \
                 everything written again with a drain and a reboot (`evenkeel verify` shows all)",
                listed(drift, NAMED, "; ")
            ),
        )
    }
}

/// What happens next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Nobody has ever said what this node shall be.
    Unmanaged,
    /// It is as it shall be.
    Done {
        /// The configuration.
        config: String,
    },
    /// It stays as it is, because of this.
    Degraded(Reason),
    /// What drifted is put back; then comes the rest.
    Heal {
        /// The configuration that waits for it.
        target: String,
    },
    /// Pods are asked to leave; nothing is written before they have.
    AwaitDrain {
        /// The configuration that waits for it.
        target: String,
        /// What it changes, in words.
        changes: String,
    },
    /// The plan is carried out.
    Apply {
        /// The configuration.
        target: String,
        /// What it changes, in words.
        changes: String,
    },
    /// It is written, and the machine boots anew.
    Reboot,
}

impl Phase {
    /// Decides.
    pub fn next(snapshot: &AgentSnapshot<'_>) -> Self {
        if let Some(failed) = snapshot.failed {
            return Self::Degraded(failed.reason.clone());
        }
        if snapshot.awaits_boot {
            return Self::Reboot;
        }
        if let Wanted::Planned { plan, .. } = &snapshot.wanted
            && let Some(reason) = beyond(plan)
        {
            return Self::Degraded(reason);
        }
        let drift: Vec<&String> = snapshot.lasting.iter().chain(snapshot.drift).collect();
        let on_drift = if snapshot.lasting.is_empty() {
            snapshot.on_drift
        } else {
            OnDrift::Degrade
        };
        let drift = (!drift.is_empty() && !snapshot.forced)
            .then(|| Reason::drifted(snapshot.current, &drift));
        match (&snapshot.wanted, drift) {
            (Wanted::Unfit(reason), _) => Self::Degraded(reason.clone()),
            (Wanted::AsItIs, Some(reason)) => Self::Degraded(reason),
            (Wanted::AsItIs, None) => match snapshot.current {
                Some(config) => Self::Done {
                    config: config.to_owned(),
                },
                None => Self::Unmanaged,
            },
            (Wanted::Planned { name, .. }, Some(reason)) => match on_drift {
                OnDrift::Degrade => Self::Degraded(reason),
                OnDrift::Heal => Self::Heal {
                    target: (*name).to_owned(),
                },
            },
            (Wanted::Planned { name, plan }, None) => {
                let (target, changes) = ((*name).to_owned(), words(plan));
                if plan.actions.contains(&UnitAction::Drain) && !snapshot.drain.is_granted(name) {
                    Self::AwaitDrain { target, changes }
                } else {
                    Self::Apply { target, changes }
                }
            }
        }
    }
}

/// What cannot be brought about on this machine, if the plan has any of it.
fn beyond(plan: &Plan) -> Option<Reason> {
    let refused = plan.refusal()?;
    let text = format!("{refused}; nothing was changed");
    Some(Reason::new("OsChangeUnsupported", text))
}

/// What a plan does, in one line.
fn words(plan: &Plan) -> String {
    let changes = plan
        .changes
        .iter()
        .map(|change| format!("{} {} ({})", change.action, change.resource, change.why));
    let mut text = listed(changes, NAMED, "; ");
    if text.is_empty() {
        "nothing changes on disk".clone_into(&mut text);
    }
    if plan.actions.is_empty() {
        return text;
    }
    let actions: Vec<_> = plan.actions.iter().map(UnitAction::to_string).collect();
    format!("{text}; needs: {}", actions.join(", "))
}
