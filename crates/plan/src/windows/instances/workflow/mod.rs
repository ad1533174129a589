//! What is done on one machine, from a bare one to a node and back. The states of the work hold what was learned on the
//! way. Whoever carries it out does the steps in their order, tells the answer to the last one, and has no choice. A
//! step that fails ends the work: it begins anew later, and finds what was done before.

mod configure;
mod removal;
mod step;
mod take_over;
#[cfg(test)]
mod tests;
mod upgrade;

use std::fmt;
use std::time::Duration;

use evenkeel_api::names::windows;
use evenkeel_api::notice::Notice;
use evenkeel_api::windows::version::StatedVersion;
use jiff::Timestamp;

pub use self::step::{
    AgentLogin, Answer, CommandReport, MachineFacts, PayloadFolder, WorkflowStep, is_below,
    obsolete,
};
use super::{Fact, FailureKind, InstanceFailure, InstanceRecord, Work};
use crate::excerpt::excerpt;
use crate::windows::take_over::{Missing, WmcoMachine};
use crate::windows::windows_pool::Grant;

/// How long a question to the agent may take.
const QUESTION: Duration = Duration::from_mins(1);
/// How long a machine may take to be a node no more.
const CLEANUP: Duration = Duration::from_mins(10);

/// The work on a machine, and all that is known when it begins.
#[derive(Debug, Clone)]
pub struct Workflow {
    /// What is to be done.
    pub work: Work,
    /// How the machine is called among instances.
    pub instance: String,
    /// The namespace of the operator.
    pub namespace: String,
    /// What is remembered of the machine.
    pub record: InstanceRecord,
    /// Whether nodes of OpenShift's operator are taken over.
    pub takes_over: bool,
    /// What it is to run and how many files that takes, or why nobody gets anything now.
    pub supply: Result<(Grant, usize), InstanceFailure>,
    /// When it began.
    pub began: Timestamp,
}

/// How far the work is, and what was learned: each state waits for the answer to the last step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkflowState {
    /// Nothing was done.
    Begun,
    /// It is reached: may it be another machine than before?
    Reaching,
    /// What lies where the payload goes?
    Inspecting,
    /// What did OpenShift's operator leave on it?
    Surveying,
    /// That is there, and the Node that it is said to be: is it that one?
    Recognising(WmcoMachine),
    /// The folder of OpenShift's operator is closed to others.
    TakingFolder,
    /// Its folder is made: was nobody faster?
    Closing,
    /// Is there an agent on it, as there is none to bring?
    LookingForAgent,
    /// What is it?
    Asking,
    /// Is it the Node that it claims to be, and is an agent installed on it?
    Identifying(String, bool),
    /// Its files are brought again: how many?
    Restoring,
    /// Its agent gets a login: until when?
    LoggingIn(String),
    /// It is to become this Node: which one does it become?
    Bootstrapping(String),
    /// Is its agent the new one?
    BringingAgent(Upgrade),
    /// The services of its old version go: which files were theirs?
    Cleaning(Upgrade),
    /// New files come, and these are there: how many?
    Copying(Upgrade, Vec<String>),
    /// Its Node is written: as it was seen, or is it another by now?
    Writing(Upgrade),
    /// Its Node is looked at until then: is it told what to run?
    AwaitingVersion(Upgrade, Timestamp),
    /// Is it still to leave, and which Node with it?
    Confirming(Option<String>),
    /// This Node goes, which was this object first: as it was seen, or is it another by now?
    DeletingNode(String, Option<String>),
    /// All is done.
    Ended,
}

/// A Node on its way to the version that it is to run, for the first time or from another one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Upgrade {
    /// The Node.
    pub node: String,
    /// The version that it ran.
    pub from: Option<StatedVersion>,
    /// Whether OpenShift's operator made it.
    pub is_wmcos: bool,
    /// Whether the new agent lies beside its place.
    pub has_new_agent: bool,
    /// How many files were copied; none if all were there.
    pub copied: Option<usize>,
}

impl Upgrade {
    fn of(node: String) -> Self {
        Self {
            node,
            ..Self::default()
        }
    }
}

/// How far the work is then, and what is done for that.
type Transition = (WorkflowState, Vec<WorkflowStep>);
type NextState = Result<Transition, InstanceFailure>;

/// What the agent of an instance does with a login that it is brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AgentCommand {
    /// Makes the machine a node.
    Bootstrap,
    /// Gets a login of its own.
    LogIn,
    /// Removes what is ours.
    CleanUp,
}

impl AgentCommand {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Bootstrap => "bootstrap",
            Self::LogIn => "login",
            Self::CleanUp => "cleanup",
        }
    }
}

impl Workflow {
    /// What is next after an answer.
    pub fn next(&self, progress: WorkflowState, answer: Answer, now: Timestamp) -> NextState {
        use WorkflowState as P;
        Ok(match (progress, answer) {
            (P::Begun, Answer::Done) => self.begin()?,
            // Whoever has another key now, or was never seen, may be another machine.
            (P::Reaching, Answer::Is(true))
                if self.record.is_known_inside() && self.work != Work::Survey =>
            {
                self.enter()
            }
            (P::Reaching, Answer::Is(_)) => {
                let [touch, save] = remember(Fact::Touched);
                let say = WorkflowStep::Say("checking its folder");
                (
                    P::Inspecting,
                    vec![touch, save, say, WorkflowStep::InspectFolder],
                )
            }
            (P::Inspecting, Answer::Folder(found)) => self.inspected(found, now)?,
            (P::Surveying, Answer::Survey(machine)) => Self::surveyed(machine),
            (P::Recognising(machine), Answer::Node(found)) => self.recognised(&machine, found?)?,
            (P::TakingFolder, Answer::Done) | (P::Closing, Answer::Is(true)) => self.secured(),
            (P::Closing, Answer::Is(false)) => {
                let why = "was changed by somebody else while it was created: check who is logged in there";
                return Err(foreign(why));
            }
            (P::LookingForAgent, Answer::Is(is_there)) => {
                // Why there is none to bring.
                _ = is_there || self.grant().map(|_| true)?;
                (P::Asking, vec![WorkflowStep::Prepare])
            }
            (P::Asking, Answer::Machine(machine)) => self.asked(machine),
            (P::Identifying(node, has_agent), Answer::Node(found)) => match self.work {
                Work::Configure => self.configure(node, has_agent, found?.is_some())?,
                Work::Upgrade => self.upgrade(node, found?, now)?,
                Work::LogIn => found.map(|_| self.log_in(node))?,
                _ => Self::confirm(node, found),
            },
            (P::Restoring, Answer::Count(brought)) => self.restored(brought),
            (P::LoggingIn(node), Answer::Said(said)) => self.logged_in(&node, said.ends)?,
            (P::Bootstrapping(node), Answer::Said(said)) => {
                configure::bootstrapped(node, said.node)?
            }
            (P::BringingAgent(mut upgrade), Answer::Is(has_new_agent)) => {
                upgrade.has_new_agent = has_new_agent;
                self.clean(upgrade)
            }
            (P::Cleaning(upgrade), Answer::Said(said)) => {
                let say = WorkflowStep::Say("copying files that are new or changed");
                let steps = vec![say, WorkflowStep::CopyNewFiles];
                (P::Copying(upgrade, said.files), steps)
            }
            (P::Copying(upgrade, old), Answer::Count(count)) => Self::copied(upgrade, old, count),
            // Also if somebody else wrote to it in between: what it is now counts.
            (P::Writing(upgrade), Answer::Node(found)) => self.write(upgrade, found?, now)?,
            (P::Writing(upgrade), Answer::Done) if self.work == Work::Configure => {
                self.configured(&upgrade.node)?
            }
            (P::Writing(upgrade), Answer::Done) => Self::await_version(upgrade, now),
            (P::AwaitingVersion(upgrade, until), Answer::Node(found)) => {
                self.looked(upgrade, until, found?, now)?
            }
            (P::Confirming(node), Answer::Is(true)) => self.take_out(node),
            (P::Confirming(_), Answer::Is(false)) => {
                let stays = WorkflowStep::Say("listed again: it stays");
                (P::Ended, vec![stays, WorkflowStep::Disconnect])
            }
            (P::DeletingNode(node, uid), Answer::Node(found)) => self.delete(node, uid, found),
            (P::DeletingNode(..), Answer::Done) => self.let_go(None),
            (progress, answer) => return Err(unexpected(&(progress, answer))),
        })
    }

    fn begin(&self) -> NextState {
        let mut steps = Vec::new();
        match self.work {
            Work::Deconfigure => {}
            Work::Abandon => return Ok(self.part(self.record.node.clone(), steps)),
            Work::Forget => return Ok(self.let_go(None)),
            // What brings something does not begin without it.
            _ => _ = self.grant()?,
        }
        if self.work == Work::Configure {
            steps.push(WorkflowStep::LearnKubelets);
        }
        if self.work == Work::Upgrade {
            if self.record.node.is_none() {
                return Err(upgrade::lost(&self.instance));
            }
            steps.extend(remember(Fact::Touched));
        }
        steps.extend([WorkflowStep::Say("connecting"), WorkflowStep::Connect]);
        Ok((WorkflowState::Reaching, steps))
    }

    /// Everybody who may log in to a Windows machine may make folders on C:, and own them: what was there before us is put
    /// aside unseen, and ours is closed before anything is in it.
    fn inspected(&self, found: PayloadFolder, now: Timestamp) -> NextState {
        let mut steps = Vec::new();
        match found {
            PayloadFolder::Wmcos => return self.found_wmco(),
            _ if self.work == Work::Survey || self.record.is_untaken() => {
                return Err(take_over::lacks(&[Missing::Daemon]));
            }
            PayloadFolder::Own => return Ok(self.secured()),
            PayloadFolder::Link => {
                return Err(foreign("is a link that Evenkeel did not create: remove it"));
            }
            PayloadFolder::Missing => {}
            PayloadFolder::Foreign => {
                let folder = windows::PAYLOAD.trim_end_matches('\\');
                let stamp = now.strftime("%Y%m%dT%H%M%SZ");
                let aside = format!("{folder}-before-evenkeel-{stamp}");
                let note = format!(
                    "instance {}: {folder} existed before Evenkeel and was moved to {aside}: nothing in it was run or kept",
                    self.instance
                );
                let notice = Notice::warning("FolderMovedAside", note);
                steps.extend([WorkflowStep::PutAside(aside), WorkflowStep::Tell(notice)]);
            }
        }
        steps.push(WorkflowStep::MakeFolder);
        Ok((WorkflowState::Closing, steps))
    }

    fn secured(&self) -> Transition {
        let (progress, steps) = self.enter();
        let secured = remember(Fact::Secured).into_iter();
        (progress, secured.chain(steps).collect())
    }

    /// Nobody else can have put anything into its folder.
    fn enter(&self) -> Transition {
        match self.work {
            Work::Configure => {
                let [touch, save] = remember(Fact::Touched);
                let say = WorkflowStep::Say("reading the state of the machine");
                let steps = vec![
                    touch,
                    save,
                    WorkflowStep::BringAgent,
                    say,
                    WorkflowStep::Supply,
                ];
                (WorkflowState::Asking, steps)
            }
            Work::Restore => (WorkflowState::Restoring, vec![WorkflowStep::RestoreFiles]),
            // Nothing is run of which nobody knows what it is, unless there is nothing else and the folder is ours.
            Work::Deconfigure if self.supply.is_err() => (
                WorkflowState::LookingForAgent,
                vec![WorkflowStep::LookForAgent],
            ),
            Work::Deconfigure => (
                WorkflowState::Asking,
                vec![WorkflowStep::BringAgent, WorkflowStep::Prepare],
            ),
            _ => identify(self.record.node.clone().unwrap_or_default(), false),
        }
    }

    fn asked(&self, machine: MachineFacts) -> Transition {
        let mut services = machine.services.iter();
        let has_agent = services.any(|it| it.eq_ignore_ascii_case(windows::AGENT_SERVICE));
        // Of one that leaves, what we remember counts; what the machine says, only if nobody knows better.
        let known = self.record.node.clone();
        let known = known.filter(|_| self.work == Work::Deconfigure);
        let claimed = known.or(machine.node).or(machine.node_name);
        let claimed = claimed.unwrap_or_else(|| machine.host_name.to_lowercase());
        identify(claimed, has_agent)
    }

    fn grant(&self) -> Result<&Grant, InstanceFailure> {
        let supply = self.supply.as_ref();
        supply.map(|(grant, _)| grant).map_err(Clone::clone)
    }

    fn install_service(&self) -> WorkflowStep {
        let line = format!("service install --namespace {}", self.namespace);
        WorkflowStep::Ask(line, QUESTION, None)
    }

    /// Has the agent run `command` with a login that is brought for it.
    fn log_in_and(
        &self,
        command: AgentCommand,
        options: &str,
        node: Option<String>,
        within: Duration,
    ) -> WorkflowStep {
        let (login, logs, namespace) = (windows::LOGIN, windows::LOGS, &self.namespace);
        let name = command.as_str();
        let line = format!(
            "{name}{options} --kubeconfig {login} --namespace {namespace} --log-file {logs}{name}.log"
        );
        let joins = command == AgentCommand::Bootstrap;
        WorkflowStep::Ask(line, within, Some(AgentLogin { node, joins }))
    }

    /// Where OpenShift's operator made the `node`, the agent has no login yet.
    fn clean_up_for_upgrade(&self, node: &str, is_wmcos: bool) -> WorkflowStep {
        let options = if is_wmcos {
            format!(" --upgrade --take-over {node}")
        } else {
            " --upgrade".to_owned()
        };
        self.log_in_and(
            AgentCommand::CleanUp,
            &options,
            Some(node.to_owned()),
            CLEANUP,
        )
    }

    /// What is said of it at its end.
    fn done(&self, category: &'static str, note: &str) -> WorkflowStep {
        let note = format!("instance {}{note}", self.instance);
        WorkflowStep::Tell(Notice::normal(category, note))
    }
}

fn remove_service() -> WorkflowStep {
    WorkflowStep::Ask("service remove".to_owned(), QUESTION, None)
}

fn identify(node: String, has_agent: bool) -> Transition {
    let read = WorkflowStep::ReadNode(node.clone());
    (WorkflowState::Identifying(node, has_agent), vec![read])
}

/// An answer that says nothing to what was asked.
fn unexpected(answer: &impl fmt::Debug) -> InstanceFailure {
    let message = format!("unexpected answer: {answer:?}");
    InstanceFailure::new(FailureKind::AgentFailed, excerpt(&message))
}

/// Remembers a fact, also if the operator is killed before the next step.
fn remember(fact: Fact) -> [WorkflowStep; 2] {
    let failing = match fact {
        Fact::Node(_) => "cannot record which Node it is",
        _ => "cannot write the status of the instance",
    };
    [WorkflowStep::Remember(fact), WorkflowStep::Save(failing)]
}

/// What lies where the payload goes is not ours.
pub fn foreign(why: &str) -> InstanceFailure {
    let message = format!(r"folder C:\k on the instance {why}");
    InstanceFailure::new(FailureKind::ForeignFolder, message)
}

/// It took too long, though every step went on: others go first now.
pub fn slow(within: Duration, record: &InstanceRecord) -> InstanceFailure {
    let message = format!(
        "did not finish within {}s; the last step was: {}. Copied files stay, and the next attempt continues from there. Check its network and load, or raise --instance-timeout",
        within.as_secs(),
        record.message,
    );
    InstanceFailure::new(FailureKind::InstanceSlow, message)
}
