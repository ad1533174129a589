//! The machine, as the commands use it: every method may wait for a disk or for the service manager,
//! and is called from a thread that may.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evenkeel_api::names::windows::{LOGS, OWN_STATE, PAYLOAD, STORE};
use evenkeel_api::readiness::CertificateReport;
use evenkeel_api::windows::services::Services;
use evenkeel_api::windows::trust_bundle::TrustBundle;
use evenkeel_host::disk::{Disk, Host};
use evenkeel_host::execute::{Claim, Progress, State};
use evenkeel_host::windows::WindowsHost;
use evenkeel_host::windows::trust::{self as roots, Synced};
use evenkeel_host::{Result, observe};
use evenkeel_plan::machine::desired::{Contents, Desired};
use evenkeel_plan::machine::entry::{Entry, Hash};
use evenkeel_plan::machine::place;
use evenkeel_plan::machine::record::Owned;
use evenkeel_plan::machine::resource::Resource;
use evenkeel_plan::machine::targets::{Part, Targets};
use evenkeel_plan::machine::{self, MachineSnapshot, Plan};
use evenkeel_plan::windows::services::{ServiceFacts, targets_on};
use evenkeel_plan::windows::trust::{self, Published};
use serde::{Deserialize, Serialize};

/// A Windows machine.
pub(crate) type Machine = crate::machine::Machine<WindowsHost>;

/// What a machine shall be brought to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DesiredServices {
    pub(crate) services: Services,
    /// Commands with their variables in place, by place; those that are missing here stay as they are.
    pub(crate) commands: BTreeMap<String, String>,
    /// The hash to remember, if nothing is missing.
    pub(crate) hash: Option<String>,
}

/// What became of the trusted roots.
#[derive(Debug)]
pub(crate) struct Trusted {
    pub(crate) synced: Result<Synced>,
    pub(crate) bundle: TrustBundle,
    pub(crate) counts: CertificateReport,
}

/// What brings a machine to a desired, and what nobody here can bring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServicePlan {
    pub(crate) plan: Plan,
    /// Payload files whose right contents are neither in place nor in the store.
    pub(crate) missing: Vec<String>,
}

/// The services ConfigMap that was accepted last, as it is kept on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) version: String,
    pub(crate) hash: String,
    pub(crate) data: BTreeMap<String, String>,
}

const KEPT: &str = "services";
const NODE: &str = "node";
const LOGIN: &str = "kubeconfig";

/// How far `plan` is, for whoever reads the log after something went wrong in the middle.
fn log(plan: &Plan, progress: &Progress<'_>) {
    let Progress { done, steps, .. } = progress;
    if let Some(step) = done.checked_sub(1).and_then(|at| plan.steps.get(at)) {
        let (kind, resource) = (step.kind(), &step.resource);
        tracing::info!("step {done} of {steps} is done: {kind}: {resource}");
    }
}

fn with_slashes(path: &str) -> String {
    path.trim_end_matches('\\').replace('\\', "/")
}

impl Machine {
    /// The machine this program runs on.
    pub(crate) fn open() -> Self {
        Self {
            host: WindowsHost::live(),
            state: State::at(&with_slashes(OWN_STATE)).storing_at(&with_slashes(STORE)),
        }
    }

    /// Closes the payload's folder: logins and private keys are in it, and programs that run as the system. And that of the
    /// logs, which the system writes.
    pub(crate) fn close_folders(&self) -> Result<()> {
        self.host.close_folder(PAYLOAD.trim_end_matches('\\'))?;
        self.host.own_folder(LOGS.trim_end_matches('\\'))
    }

    /// What would bring this machine to `desired`.
    pub(crate) fn plan(&self, desired: &DesiredServices) -> Result<ServicePlan> {
        let record = self.state.record(&self.host)?;
        let mut before = BTreeMap::new();
        for name in &desired.services.watched {
            let place = place::variable(name);
            before.insert(place.clone(), self.host.disk().look(&place)?);
        }
        let facts = ServiceFacts {
            commands: desired.commands.clone(),
            before,
        };
        let mut targets = targets_on(&desired.services, &facts, &record);
        let nothing = Contents::default();
        let seen = observe::look(self.host.disk(), &targets, &record, &nothing)?;
        let missing = self.missing(&targets, &seen);
        targets.retain(|place, _| !missing.contains_key(place));
        // It is not there before its last file is.
        let name = desired.hash.clone().filter(|_| missing.is_empty());
        let desired = Desired {
            name: name.or_else(|| record.config.clone()),
            ..Desired::default()
        };
        let mut plan = machine::plan(&desired, &targets, &nothing, &seen, &record)?;
        if plan.record == record {
            // It was brought about. What is not so any more has drifted, and whoever watches it puts it
            // back at its own pace: a service that ends again and again would be a plan without end.
            plan = plan.with_nothing_to_do();
        }
        Ok(ServicePlan {
            plan: plan.carried_out_in(self.host.boot_id()?),
            missing: missing.into_values().collect(),
        })
    }

    /// Payload files that are not right and cannot be put right from here, by place.
    fn missing(&self, targets: &Targets, seen: &MachineSnapshot) -> BTreeMap<String, String> {
        let mut missing = BTreeMap::new();
        for (place, target) in targets {
            if let (Part::Payload(_), Resource::File(path), Some(hash)) =
                (&target.part, &target.resource, target.entry.hash())
                && seen.paths.get(place) != Some(&target.entry)
                && !self.state.has(&self.host, hash)
            {
                missing.insert(place.clone(), path.clone());
            }
        }
        missing
    }

    /// Brings the machine to `desired`; `false` if that takes more than `way` says, because the machine has
    /// changed. What is kept of the ConfigMap is kept before anything else is done.
    pub(crate) fn apply(
        &self,
        plan: &ServicePlan,
        desired: &DesiredServices,
        kept: &Kept,
        progress: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<bool> {
        let claim = Claim::take(&self.host, &self.state)?;
        let now = self.plan(desired)?;
        let agreed = |action| plan.plan.actions.contains(action);
        if !now.plan.actions.iter().all(agreed) || now.missing != plan.missing {
            return Ok(false);
        }
        self.carry_out(&claim, &now, kept, progress)?;
        Ok(true)
    }

    /// Brings the machine to `desired`, whatever that takes, and says what it took; if payload files are missing, only that.
    pub(crate) fn bring(&self, desired: &DesiredServices, kept: &Kept) -> Result<ServicePlan> {
        let claim = Claim::take(&self.host, &self.state)?;
        let plan = self.plan(desired)?;
        if plan.missing.is_empty() {
            for change in &plan.plan.changes {
                tracing::info!("{} {}: {}", change.action, change.resource, change.why);
            }
            self.carry_out(&claim, &plan, kept, &mut |_| {})?;
        }
        Ok(plan)
    }

    fn carry_out(
        &self,
        claim: &Claim<'_, WindowsHost>,
        plan: &ServicePlan,
        kept: &Kept,
        progress: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<()> {
        if self.kept()?.as_ref() != Some(kept) {
            let text = serde_json::to_vec(kept).unwrap_or_default();
            self.state.keep_note(&self.host, KEPT, &text)?;
        }
        let Kept { version, hash, .. } = kept;
        tracing::info!(version, hash, "applying services");
        claim.apply(&plan.plan, &Contents::default(), &mut |now| {
            log(&plan.plan, &now);
            progress(&now);
        })?;
        Ok(())
    }

    /// Removes what is managed: everything, or services alone. What is `listed`, by name and number, is
    /// ours too if we do not remember better, and so are `variables`, which were not there before.
    pub(crate) fn clear(
        &self,
        services_only: bool,
        listed: &[(String, u32)],
        variables: &[&str],
    ) -> Result<Plan> {
        let claim = Claim::take(&self.host, &self.state)?;
        let mut record = claim.record()?;
        for (name, order) in listed {
            let place = place::service(name);
            let entry = self.host.disk().look(&place)?;
            if let Entry::Service(_) = &entry {
                let owned = Owned {
                    resource: Resource::Service(name.clone()),
                    part: Part::Service(*order),
                    entry,
                    before: Entry::Absent,
                };
                record.owned.entry(place).or_insert(owned);
            }
        }
        for name in variables {
            let place = place::variable(name);
            let entry = self.host.disk().look(&place)?;
            if let Entry::Variable { .. } = &entry {
                let owned = Owned {
                    resource: Resource::Variable((*name).to_owned()),
                    part: Part::Whole,
                    entry,
                    before: Entry::Absent,
                };
                record.owned.entry(place).or_insert(owned);
            }
        }
        let mut targets = record.targets();
        targets
            .retain(|_, target| services_only && matches!(target.resource, Resource::Variable(_)));
        let nothing = Contents::default();
        let seen = observe::look(self.host.disk(), &targets, &record, &nothing)?;
        let plan = machine::plan(&Desired::default(), &targets, &nothing, &seen, &record)?;
        claim.apply(&plan, &nothing, &mut |now| log(&plan, &now))?;
        Ok(plan)
    }

    /// Makes what `published` says be ours among the trusted roots, and no others; `has_proxy` if that is not
    /// to be read off the services that were accepted last. Counts them, however that ends.
    pub(crate) fn trust(&self, published: &Published, has_proxy: Option<bool>) -> Result<Trusted> {
        let has_proxy = if let Some(has_proxy) = has_proxy {
            has_proxy
        } else {
            let services = self.kept()?.and_then(|kept| {
                let read = Services::from_data("the services that are kept", &kept.data);
                read.ok().map(|(services, _)| services)
            });
            services.as_ref().is_some_and(trust::has_proxy)
        };
        let now = jiff::Timestamp::now().as_second();
        let (wanted, bundle) = trust::wanted(published, has_proxy, now);
        let mut hashes = Vec::new();
        let synced = match wanted {
            trust::DesiredTrust::AsItIs => Ok(Synced::default()),
            trust::DesiredTrust::Exactly(certificates) => {
                let all: Vec<&[u8]> = certificates.iter().map(|it| it.der.as_slice()).collect();
                hashes = all.iter().map(|it| Hash::of(it)).collect();
                roots::sync(&all)
            }
        };
        Ok(Trusted {
            counts: trust::count(&hashes, &roots::roots()?),
            synced,
            bundle,
        })
    }

    /// Forgets which node this was, last of all: until then a cleanup can be taken up again.
    pub(crate) fn forget(&self) -> Result<()> {
        let _claim = Claim::take(&self.host, &self.state)?;
        for note in [KEPT, NODE, LOGIN] {
            self.state.forget_note(&self.host, note)?;
        }
        Ok(())
    }

    /// The services ConfigMap that was accepted last.
    pub(crate) fn kept(&self) -> Result<Option<Kept>> {
        let note = self.state.note(&self.host, KEPT)?;
        // A note that cannot be read is as good as none: the cluster has it.
        Ok(note.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    /// The payload files of the services that were accepted last.
    pub(crate) fn kept_files(&self) -> Result<Vec<String>> {
        let kept = self.kept()?.map(|kept| kept.data).unwrap_or_default();
        // Services that do not hold say nothing that can be relied on.
        let files = Services::from_data("the services that are kept", &kept)
            .map(|(services, _)| services.files)
            .unwrap_or_default();
        Ok(files.into_iter().map(|it| it.path).collect())
    }

    /// The name of this machine's Node, as it was found.
    pub(crate) fn node_name(&self) -> Result<Option<String>> {
        let note = self.state.note(&self.host, NODE)?;
        Ok(note.and_then(|text| String::from_utf8(text).ok()))
    }

    /// Remembers the name of this machine's Node.
    pub(crate) fn remember_node(&self, name: &str) -> Result<()> {
        let _claim = Claim::take(&self.host, &self.state)?;
        self.state.keep_note(&self.host, NODE, name.as_bytes())
    }

    /// Where the agent's own login is kept, for whoever reads such a file.
    pub(crate) fn login_file() -> PathBuf {
        Path::new(OWN_STATE).join(LOGIN)
    }

    /// The agent's own login.
    pub(crate) fn login(&self) -> Result<Option<Vec<u8>>> {
        self.state.note(&self.host, LOGIN)
    }

    /// Keeps the agent's own login, whatever else is under way on this machine: it replaces the old one in one
    /// instant, and an agent that had to wait for others would be locked out of its cluster. The folder is
    /// private, and so is what is in it.
    pub(crate) fn keep_login(&self, text: &[u8]) -> Result<()> {
        self.state.keep_note(&self.host, LOGIN, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers W15.
    #[test]
    fn a_login_is_kept_while_somebody_works_on_the_machine() {
        let machine = Machine::open();
        let claim = Claim::take(&machine.host, &machine.state).unwrap();
        let another = Machine::open();
        assert!(Claim::take(&another.host, &another.state).is_err());
        another.keep_login(b"new").unwrap();
        assert_eq!(machine.login().unwrap().as_deref(), Some(&b"new"[..]));
        drop(claim);
        machine.forget().unwrap();
    }
}
