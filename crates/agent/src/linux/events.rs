//! The Events on a Linux node's Node, which are also lines of the log.

use evenkeel_host::linux::{Blindness, Login};
use evenkeel_host::verify::Finding;
use evenkeel_plan::machine::phase::{Phase, Reason};

use crate::node_event::{NodeEvent, shown};

impl NodeEvent {
    /// The node has come to `phase`; nothing where other Events say it better.
    pub(crate) fn of(phase: &Phase, current: Option<&str>) -> Option<Self> {
        match phase {
            // Each path has an Event of its own, with the difference.
            Phase::Degraded(reason) if reason.category == Reason::DRIFT => None,
            Phase::Heal { target } => Some(Self::normal(
                "PreflightHealing",
                "Preflight",
                format!("healing drift before the update to MachineConfig {target}"),
            )),
            Phase::Reboot => {
                let note = match current {
                    Some(config) => format!("rebooting for MachineConfig {config}"),
                    None => "rebooting for the configuration".to_owned(),
                };
                Some(Self::normal("Rebooting", "Reboot", note))
            }
            phase => Self::of_phase(phase, ("ConfigDone", "ConfigApplying"), "MachineConfig"),
        }
    }

    /// Before its first configuration, what the machine was provisioned from.
    pub(crate) fn adopted(words: &str) -> Self {
        let note = format!("adopting this machine, which was provisioned from {words}");
        Self::normal("MachineAdopted", "Adopt", note)
    }

    /// The paths of `config` are watched from now on.
    pub(crate) fn watching(config: &str, paths: usize) -> Self {
        let note = format!("watching {paths} paths of MachineConfig {config} for drift");
        Self::normal("DriftMonitorStarted", "Watch", note)
    }

    /// Some of them cannot be watched, and are looked at instead.
    pub(crate) fn blind(blindness: &Blindness) -> Self {
        Self::warning(blindness.first.category(), "Watch", blindness.to_string())
    }

    /// They are not watched while the machine goes to `target`.
    pub(crate) fn not_watching(config: &str, target: &str) -> Self {
        let note = format!(
            "not watching for drift during the update from MachineConfig {config} to {target}"
        );
        Self::normal("DriftMonitorStopped", "Watch", note)
    }

    /// A path has drifted.
    pub(crate) fn drifted(finding: &Finding, difference: &str) -> Self {
        let note = format!("{}{difference}", shown(finding));
        Self::warning(Reason::DRIFT, "Watch", note)
    }

    /// What runs is not as declared, and cannot be healed while it runs.
    pub(crate) fn not_as_declared(words: &str) -> Self {
        Self::warning(Reason::DRIFT, "Verify", words.to_owned())
    }

    /// A path was healed.
    pub(crate) fn healed(finding: &Finding, difference: &str) -> Self {
        let note = format!("healed drift of {}{difference}", shown(finding));
        Self::normal("ConfigDriftHealed", "Heal", note)
    }

    /// A path could not be healed.
    pub(crate) fn not_healed(finding: &Finding, error: &str) -> Self {
        let note = format!("cannot heal drift of {}: {error}", shown(finding));
        Self::warning("ConfigDriftHealFailed", "Heal", note)
    }

    /// Somebody changes a path over and over.
    pub(crate) fn fought(finding: &Finding, times: u32) -> Self {
        let note = format!(
            "drift keeps coming back ({times} times in a row): {}",
            shown(finding)
        );
        Self::warning("ConfigDriftFought", "Watch", note)
    }

    /// Somebody logged in over SSH.
    pub(crate) fn logged_in(login: &Login) -> Self {
        let from = match login.from.as_str() {
            "" => String::new(),
            from => format!(" from {from}"),
        };
        let note = format!(
            "user {} logged in over SSH{from}; manual changes are reported as drift or undone",
            login.user
        );
        Self::warning("SshAccess", "Login", note)
    }
}
