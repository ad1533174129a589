//! What is remembered of a machine.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use evenkeel_api::notice::Notice;
use evenkeel_api::windows::version::{StatedVersion, Version};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::failure::{FailureKind, InstanceFailure};
use super::{PAUSES, Todo, Work};
use crate::excerpt::excerpt;

/// How far a machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum InstanceState {
    /// It waits for others before it.
    #[default]
    Waiting,
    /// It is being made a node.
    Configuring,
    /// Its agent runs, and brings it to what it is to run.
    Starting,
    /// It is a node, and runs what it is to run.
    Ready,
    /// Something went wrong; it is tried again.
    Failing,
    /// It is brought to another version.
    Upgrading,
    /// It is being taken out.
    Leaving,
}

impl fmt::Display for InstanceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What is remembered of a machine, as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is written down by its name"
)]
pub struct InstanceRecord {
    /// How far it is.
    pub state: InstanceState,
    /// Since when.
    pub since: Timestamp,
    /// What is being done, or what went wrong.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The reason of the Event that told what went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<FailureKind>,
    /// The user to log in as.
    pub user: String,
    /// Where it was reached last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The Node that it is, or is to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The version whose agent was started on it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<StatedVersion>,
    /// When the login of its agent ends, as far as anybody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login_ends: Option<Timestamp>,
    /// Whether anything was ever put on it.
    pub is_touched: bool,
    /// Whether the payload's folder on it is ours, and closed to others.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_secured: bool,
    /// Whether it is a node of OpenShift's operator, and has all that taking it over needs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_surveyed: bool,
    /// Whether it is a Machine, which others make and remove.
    pub is_machine: bool,
    /// How often it failed in a row.
    pub failures: u32,
    /// What it failed with last, in one word, also while it is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_with: Option<FailureKind>,
    /// When it is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// Since when it is on its way out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaving_since: Option<Timestamp>,
    /// Since when nobody hears of it on its way out: its Node is not ready, or nobody answers at its address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_since: Option<Timestamp>,
    /// Whether its agent was stopped to take it out: from there no way leads back but through the end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_going: bool,
}

/// What is learned of a machine while it is worked on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// Something is put on it.
    Touched,
    /// The payload's folder on it is ours, and closed to others.
    Secured,
    /// It is to be this Node.
    Node(String),
    /// It is a node of OpenShift's operator, and has all that taking it over needs.
    Surveyed,
    /// Its agent is stopped to take it out.
    Going,
    /// The agent of this version was started on it.
    Started(Version),
    /// Its agent has a login until then.
    LoginEnds(Timestamp),
    /// Its agent goes on, and why.
    Starting(&'static str),
    /// It answered at this address, of all that it has.
    Reached(Option<IpAddr>),
    /// It is listed so, or a Machine.
    Listed {
        /// The user to log in as.
        user: String,
        /// Whether it is a Machine.
        is_machine: bool,
    },
    /// What it failed with may be over.
    Cured,
}

impl InstanceRecord {
    /// Takes note of what is to be done, and says what people should hear of it.
    pub fn take(
        &mut self,
        instance: &str,
        todo: &Todo,
        leave_within: Duration,
        now: Timestamp,
    ) -> Option<Notice> {
        match todo {
            Todo::Note(state, problem) => {
                let before = self.category.take();
                let message = problem.as_ref().map(|it| it.message.as_str());
                self.enter(*state, message.unwrap_or_default(), now);
                self.category = problem.as_ref().map(|it| it.category.clone());
                let is_news =
                    self.category != before && self.category != Some(FailureKind::NotKnownYet);
                let problem = problem.as_ref().filter(|_| is_news)?;
                Some(problem.notice(&format!("instance {instance}: ")))
            }
            Todo::Begin(work) => {
                self.begin(*work, now);
                None
            }
            Todo::BeginUndrained { since } => {
                self.begin(Work::Deconfigure, now);
                let note = format!(
                    "instance {instance}: its Node is not ready since {since}, longer than {}s: it cannot be drained, and is removed without a drain",
                    leave_within.as_secs()
                );
                Some(Notice::warning("RemovedWithoutDrain", note))
            }
            Todo::Wait { why, is_ready } => {
                let is_new = self.leaving_since.is_none();
                self.wait(why, *is_ready, now);
                let note = format!(
                    "instance {instance} is not listed any more: it is removed after a drain; {why}"
                );
                is_new.then(|| Notice::normal("RemovalWaits", note))
            }
            Todo::Forget => None,
        }
    }

    fn begin(&mut self, work: Work, now: Timestamp) {
        let state = match work {
            // Nobody goes there any more.
            Work::Abandon | Work::Forget => return,
            Work::Deconfigure => InstanceState::Leaving,
            // One that failed counts as failing until it has come further than ever: whoever is woken for it is not sent
            // back to sleep by every new try.
            _ if self.failures > 0 => InstanceState::Failing,
            Work::LogIn => InstanceState::Starting,
            Work::Upgrade => InstanceState::Upgrading,
            Work::Configure | Work::Restore | Work::Survey => InstanceState::Configuring,
        };
        self.enter(state, "connecting", now);
        if work == Work::Deconfigure {
            self.leaving_since.get_or_insert(now);
        }
    }

    /// Takes note of what was learned.
    pub fn learn(&mut self, fact: Fact, now: Timestamp) {
        match fact {
            Fact::Touched => self.is_touched = true,
            Fact::Secured => self.is_secured = true,
            Fact::Node(node) => self.node = Some(node),
            Fact::Surveyed => {
                self.is_surveyed = true;
                // Whatever it was before, its folder is that operator's now.
                self.is_secured = false;
                self.started = None;
                self.failures = 0;
                self.failed_with = None;
                self.retry_at = None;
            }
            Fact::Going => self.is_going = true,
            Fact::Started(version) => self.started = Some(version.into()),
            Fact::LoginEnds(ends) => self.login_ends = Some(ends),
            Fact::Starting(message) => self.enter(InstanceState::Starting, message, now),
            Fact::Reached(address) => self.address = address,
            Fact::Listed { user, is_machine } => {
                self.user = user;
                self.is_machine = is_machine;
            }
            Fact::Cured => self.retry_at = None,
        }
    }

    /// Whether nobody else can have put anything into the payload's folder. Operators before this one wrote down only that
    /// they came to the end once.
    pub fn is_known_inside(&self) -> bool {
        self.is_secured || self.started.is_some()
    }

    /// Whether nothing of ours is on it, because it is a node of OpenShift's operator whose turn has not come.
    pub fn is_untaken(&self) -> bool {
        self.is_surveyed && !self.is_known_inside()
    }

    /// Goes to `state`, with what is said of it.
    pub fn enter(&mut self, state: InstanceState, message: &str, now: Timestamp) {
        if self.state != state {
            self.state = state;
            self.since = now;
        }
        self.say(message);
        if state != InstanceState::Failing && state != InstanceState::Leaving {
            self.category = None;
        }
        if matches!(state, InstanceState::Starting | InstanceState::Ready) {
            self.failures = 0;
            self.failed_with = None;
            self.retry_at = None;
        }
        if state != InstanceState::Leaving && state != InstanceState::Failing {
            self.leaving_since = None;
            self.lost_since = None;
        }
    }

    /// Takes note of what is being done. Machines write parts of it, and many of them share what it is written into.
    pub fn say(&mut self, message: &str) {
        self.message = excerpt(message);
    }

    /// Takes note that its removal waits, and for what. Whether its Node is ready tells whether anybody hears of it.
    pub fn wait(&mut self, why: &str, is_ready: bool, now: Timestamp) {
        self.enter(InstanceState::Leaving, why, now);
        self.category = None;
        self.leaving_since.get_or_insert(now);
        if is_ready {
            self.lost_since = None;
        } else {
            self.lost_since.get_or_insert(now);
        }
    }

    /// Takes note of a failure, and of when it is tried again. Pauses grow while the same fails: where something
    /// else does, somebody may have mended the first.
    pub fn fail(&mut self, problem: &InstanceFailure, now: Timestamp) {
        let state = if self.leaving_since.is_some() {
            InstanceState::Leaving
        } else {
            InstanceState::Failing
        };
        self.enter(state, &problem.message, now);
        self.category = Some(problem.category.clone());
        if self.leaving_since.is_some() && problem.category.loses_the_machine() {
            self.lost_since.get_or_insert(now);
        }
        if self.failed_with != self.category {
            self.failed_with.clone_from(&self.category);
            self.failures = self.failures.min(1);
        }
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(now + PAUSES.after(self.failures));
    }
}
