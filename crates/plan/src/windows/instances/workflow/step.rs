//! What is done on a machine at a time, and what that says. A step leaves nothing to choose.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_api::names::windows;
use evenkeel_api::notice::Notice;
use jiff::Timestamp;
use serde::Deserialize;

use super::super::{Fact, Found, InstanceFailure};
use crate::windows::take_over::WmcoMachine;

/// One step. Its answer is [`Answer::Done`], where it says no other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkflowStep {
    /// Says what is being done.
    Say(&'static str),
    /// Warns in the log.
    Warn(String),
    /// People hear this.
    Tell(Notice),
    /// Remembers this of the machine.
    Remember(Fact),
    /// Writes down what is remembered; if that fails, it is called so.
    Save(&'static str),
    /// Learns who the kubelets of new machines are, which the certificates controller wants to know.
    LearnKubelets,
    /// Logs in. [`Answer::Is`]: it answered with the host key that is pinned, and not the first time.
    Connect,
    /// Looks at what OpenShift's operator left on the machine, with programs of Windows alone. [`Answer::Survey`].
    Survey,
    /// Reads the Node of this name, also if OpenShift's operator made it. [`Answer::Node`].
    ReadWmcoNode(String),
    /// Closes the payload's folder to others, as OpenShift's operator left it.
    TakeFolder,
    /// Looks at the payload's folder, and removes one that is empty. [`Answer::Folder`].
    InspectFolder,
    /// Gives the payload's folder this name.
    PutAside(String),
    /// Makes the payload's folder, and closes it to others. [`Answer::Is`]: it is empty.
    MakeFolder,
    /// [`Answer::Is`]: there is an agent.
    LookForAgent,
    /// Copies the agent, unless it is there.
    BringAgent,
    /// Has the agent close its folder, and say what the machine is. [`Answer::Machine`].
    Prepare,
    /// As [`WorkflowStep::Prepare`], and brings all that the machine lacks. [`Answer::Machine`].
    Supply,
    /// Brings files of the payload that went missing. [`Answer::Count`].
    RestoreFiles,
    /// Reads the Node of this name. [`Answer::Node`].
    ReadNode(String),
    /// Has the agent do something. [`Answer::Said`].
    ///
    /// The command, how long it may take, and the login that is brought for it.
    Ask(String, Duration, Option<AgentLogin>),
    /// Annotates a Node. If it is not as it was seen any more nothing is written, and the answer is [`Answer::Node`].
    WriteNode {
        /// As it was seen.
        seen: Found,
        /// What is written.
        annotations: BTreeMap<&'static str, String>,
        /// What is said if that fails.
        failing: &'static str,
    },
    /// Deletes a Node. If it is not as it was seen any more nothing is deleted, and the answer is [`Answer::Node`].
    DeleteNode(Found),
    /// Waits.
    Pause(Duration),
    /// Brings the new agent beside the one that is there, unless that is the same, and asks it from now on.
    /// [`Answer::Is`]: it lies beside.
    BringNewAgent,
    /// Brings all files of the payload but the agent. [`Answer::Count`].
    CopyNewFiles,
    /// Removes those of these files that are of the payload no more.
    RemoveObsolete(Vec<String>),
    /// Puts the new agent in the place of the old one.
    PlaceNewAgent,
    /// Removes the login that an agent was brought, if that is possible.
    RemoveLogin,
    /// Removes what only an upgrade needs, if that is possible.
    RemoveUpgrade,
    /// [`Answer::Is`]: the machine is to be taken out.
    AskWhetherLeaving,
    /// Removes all files of ours.
    RemoveFiles,
    /// Says good-bye.
    Disconnect,
    /// Forgets the machine, and who answered there.
    Forget,
}

/// A login for an agent, good for ten minutes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentLogin {
    /// The Node that the machine may be: whoever asks for a certificate for that with the login is heard until the
    /// command has ended.
    pub node: Option<String>,
    /// Whether the machine becomes a node by the command.
    pub joins: bool,
}

/// What the last step says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done,
    /// Whether it is so.
    Is(bool),
    /// How many.
    Count(usize),
    /// What lies where the payload goes.
    Folder(PayloadFolder),
    /// What the machine is.
    Machine(MachineFacts),
    /// The Node of a name, if there is one, or why the machine is not that Node.
    Node(Result<Option<Found>, InstanceFailure>),
    /// What OpenShift's operator left on the machine.
    Survey(WmcoMachine),
    /// What the agent says.
    Said(CommandReport),
}

/// What lies where the payload goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadFolder {
    /// Nothing.
    Missing,
    /// A link.
    Link,
    /// A folder with an agent that Windows runs as our service.
    Own,
    /// A folder with the agent of OpenShift's operator, which Windows runs as a service.
    Wmcos,
    /// Something else.
    Foreign,
}

/// What an agent says of its machine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineFacts {
    /// Its computer name.
    pub host_name: String,
    /// What its Node is to be called, as the script says that also its kubelet gets it from; nothing without one.
    pub node_name: Option<String>,
    /// Why that script says nothing.
    pub node_name_problem: Option<String>,
    /// The Node that it is.
    pub node: Option<String>,
    /// Services of ours on it.
    pub services: Vec<String>,
}

/// What an agent says of what it did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct CommandReport {
    /// The Node that its machine is.
    pub node: Option<String>,
    /// When its login ends.
    pub ends: Option<Timestamp>,
    /// Payload files of the version that it took away.
    pub files: Vec<String>,
}

/// Files of the payload before this one that this one does not have. Only what lies where payloads do is ever removed.
pub fn obsolete<'a>(before: &[String], now: impl Iterator<Item = &'a str>) -> Vec<String> {
    let plain = |path: &str| path.replace('/', r"\").to_lowercase();
    let now: Vec<String> = now.map(plain).collect();
    let paths = before.iter().map(|path| path.replace('/', r"\"));
    let gone = paths.filter(|path| !now.contains(&plain(path)));
    gone.filter(|path| is_below(path, windows::PAYLOAD) && !path.contains(r"\..\"))
        .filter(|path| !is_below(path, windows::OWN_STATE) && !is_below(path, windows::STORE))
        .collect()
}

/// Whether a path leads below a folder of Windows.
pub fn is_below(path: &str, folder: &str) -> bool {
    let start = path.get(..folder.len());
    path.len() > folder.len() && start.is_some_and(|it| it.eq_ignore_ascii_case(folder))
}
