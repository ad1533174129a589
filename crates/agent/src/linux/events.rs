//! What people are told of a node's life, as Events on its Node and in the log.

use evenkeel_host::linux::Login;
use evenkeel_host::verify::Finding;
use evenkeel_plan::phase::{Phase, Reason};

use crate::node_event::{NodeEvent, shown};

impl NodeEvent {
    /// The node has come to `phase`; nothing where other tidings say it better.
    pub(crate) fn of(phase: &Phase, current: Option<&str>) -> Option<Self> {
        match phase {
            Phase::Unmanaged => None,
            Phase::Done { config } => Some(Self::good(
                "ConfigDone",
                "Update",
                format!("this node is as {config} declares"),
            )),
            // Each path was told by itself, with the difference.
            Phase::Degraded(reason) if reason.category == Reason::DRIFT => None,
            Phase::Degraded(reason) => {
                Some(Self::bad(reason.category, "Update", reason.text.clone()))
            }
            Phase::Heal { target } => Some(Self::good(
                "PreflightHealing",
                "Preflight",
                format!("putting back what drifted, before going to {target}"),
            )),
            Phase::AwaitDrain { target, changes } => Some(Self::good(
                "DrainRequested",
                "Drain",
                format!("pods are asked to leave, to go to {target}: {changes}"),
            )),
            Phase::Apply { target, changes } => Some(Self::good(
                "ConfigApplying",
                "Update",
                format!("going to {target}: {changes}"),
            )),
            Phase::Reboot => {
                let config = current.unwrap_or("the configuration");
                let note = format!("{config} is written, the machine boots");
                Some(Self::good("Rebooting", "Reboot", note))
            }
        }
    }

    /// The paths of `config` are watched from now on.
    pub(crate) fn watching(config: &str, paths: usize) -> Self {
        let note = format!("watching the {paths} paths of {config} for drift");
        Self::good("DriftMonitorStarted", "Watch", note)
    }

    /// They are not watched while the machine goes to `target`.
    pub(crate) fn not_watching(config: &str, target: &str) -> Self {
        let note = format!("not watching the paths of {config} while going to {target}");
        Self::good("DriftMonitorStopped", "Watch", note)
    }

    /// A path is not as it should be.
    pub(crate) fn drifted(finding: &Finding, difference: &str) -> Self {
        let note = format!("{}{difference}", shown(finding));
        Self::bad(Reason::DRIFT, "Watch", note)
    }

    /// What runs is not as declared, and cannot be put back while it runs.
    pub(crate) fn not_as_declared(words: &str) -> Self {
        Self::bad(Reason::DRIFT, "Verify", words.to_owned())
    }

    /// A path was put back.
    pub(crate) fn healed(finding: &Finding, difference: &str) -> Self {
        let note = format!("put back: {}{difference}", shown(finding));
        Self::good("ConfigDriftHealed", "Heal", note)
    }

    /// A path could not be put back.
    pub(crate) fn not_healed(finding: &Finding, error: &str) -> Self {
        let note = format!("cannot be put back: {}: {error}", shown(finding));
        Self::bad("ConfigDriftHealFailed", "Heal", note)
    }

    /// Somebody changes a path over and over.
    pub(crate) fn fought(finding: &Finding, times: u32) -> Self {
        let note = format!(
            "somebody changes it over and over ({times} times): {}",
            shown(finding)
        );
        Self::bad("ConfigDriftFought", "Watch", note)
    }

    /// Somebody logged in over SSH.
    pub(crate) fn logged_in(login: &Login) -> Self {
        let from = match login.from.as_str() {
            "" => String::new(),
            from => format!(" from {from}"),
        };
        let note = format!(
            "{} logged in over SSH{from}: this node is managed",
            login.user
        );
        Self::bad("SshAccess", "Login", note)
    }
}
