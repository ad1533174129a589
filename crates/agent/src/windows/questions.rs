//! What the operator asks of a machine, answered as JSON on standard output.

use std::collections::BTreeMap;

use evenkeel_api::names::windows::{AGENT_SERVICE, LOGS};
use evenkeel_api::windows::trust_bundle::TrustBundle;
use evenkeel_daemon::{Error, Result};
use evenkeel_host::disk::{Disk, Host};
use evenkeel_host::windows::{about, trust};
use evenkeel_plan::machine::entry::{Activity, Entry, ServiceEntry, Start};
use evenkeel_plan::machine::place;
use evenkeel_plan::windows::services;
use serde_json::json;

use super::arguments::{ServiceCommand, TrustCommand};
use super::machine::Machine;
use super::{HostResult, answer, naming, service};

pub(crate) fn inspect() -> Result<()> {
    answer(&this_machine()?)
}

/// What this machine is, and what of it is ours.
pub(crate) fn this_machine() -> Result<serde_json::Value> {
    let look = || -> evenkeel_host::Result<serde_json::Value> {
        let machine = Machine::open();
        let (product, build) = about::windows_version()?;
        let kept = machine.kept()?;
        let services = machine.host.tagged_services()?;
        let unreadable = services.unreadable.iter().map(|(name, _)| name);
        Ok(json!({
            "hostName": about::computer_name()?,
            "addresses": about::addresses()?,
            "windows": { "product": product, "build": build },
            "agent": env!("CARGO_PKG_VERSION"),
            "node": machine.node_name()?,
            "services": services.names,
            "unreadableServices": unreadable.collect::<Vec<_>>(),
            "version": kept.as_ref().map(|it| &it.version),
            "hash": kept.as_ref().map(|it| &it.hash),
        }))
    };
    look().or_fail()
}

/// Logins are put into the folder after this, and nobody else may read them.
pub(crate) fn prepare(node_name_script: Option<&str>, paths: &[String]) -> Result<()> {
    let machine = Machine::open();
    machine.close_folders().or_fail()?;
    let mut facts = this_machine()?;
    if let Some(script) = node_name_script {
        match naming::by_script(script) {
            Ok(name) => facts["nodeName"] = json!(name),
            Err(why) => facts["nodeNameProblem"] = json!(why),
        }
    }
    answer(&json!({ "machine": facts, "checksums": sums(&machine, paths)? }))
}

pub(crate) fn checksums(paths: &[String]) -> Result<()> {
    answer(&json!(sums(&Machine::open(), paths)?))
}

fn sums<'p>(
    machine: &Machine,
    paths: &'p [String],
) -> Result<BTreeMap<&'p String, Option<String>>> {
    let mut sums = BTreeMap::new();
    for path in paths {
        let sum = machine.host.checksum(path).or_fail()?;
        sums.insert(path, sum.map(|hash| hash.to_string()));
    }
    Ok(sums)
}

pub(crate) fn trust(command: &TrustCommand) -> Result<()> {
    match command {
        TrustCommand::List => {
            let roots = trust::roots().or_fail()?;
            let roots: Vec<_> = roots
                .iter()
                .map(|root| json!({ "sha256": root.fingerprint.to_string(), "ours": root.is_our_root }))
                .collect();
            answer(&json!(roots))
        }
        TrustCommand::Sync { file } => {
            let path = file.display().to_string();
            let text = Machine::open().host.disk().read(&path).or_fail()?;
            let text = text.ok_or_else(|| Error::work(format!("file {path} does not exist")))?;
            let now = jiff::Timestamp::now().as_second();
            let bundle = TrustBundle::read(&path, &String::from_utf8_lossy(&text), now);
            for warning in &bundle.warnings {
                tracing::warn!("{warning}");
            }
            let certificates = certificates(&path, &bundle)?;
            let synced = trust::sync(&certificates).or_fail()?;
            let words = |hashes: &[evenkeel_plan::machine::entry::Hash]| -> Vec<String> {
                hashes.iter().map(ToString::to_string).collect()
            };
            answer(&json!({ "added": words(&synced.added), "removed": words(&synced.removed) }))?;
            synced.whole().or_fail().map(|_| ())
        }
    }
}

/// The certificates of a bundle. One without any is refused, because it would take all of ours away, and so
/// is one of which only a part can be read: whoever runs this can mend it.
fn certificates<'b>(path: &str, bundle: &'b TrustBundle) -> Result<Vec<&'b [u8]>> {
    let problems: Vec<String> = bundle.problems.iter().map(ToString::to_string).collect();
    if !problems.is_empty() {
        return Err(Error::work(problems.join("\n")));
    }
    if bundle.certificates.is_empty() {
        return Err(Error::work(format!(
            "{path}: no certificate found: use a PEM file with at least one"
        )));
    }
    Ok(bundle
        .certificates
        .iter()
        .map(|it| it.der.as_slice())
        .collect())
}

pub(crate) fn service(command: &ServiceCommand) -> Result<()> {
    let machine = Machine::open();
    let entry = match command {
        ServiceCommand::Remove => Entry::Absent,
        ServiceCommand::Install(place) => {
            let program = std::env::current_exe().map_err(|error| {
                Error::work(format!("cannot find the path of this program: {error}"))
            })?;
            Entry::Service(ServiceEntry {
                command: format!(
                    r#""{}" controller --windows-service --namespace {} --script-timeout {} --kubeconfig "{}" --log-file "{LOGS}agent.log""#,
                    program.display(),
                    place.namespace,
                    place.script_timeout.as_secs(),
                    Machine::login_file().display(),
                ),
                start: Start::Automatic,
                description: services::description(AGENT_SERVICE),
                account: services::ACCOUNT.to_owned(),
                activity: Activity::Running,
                ..ServiceEntry::default()
            })
        }
    };
    let place = place::service(AGENT_SERVICE);
    let disk = machine.host.disk();
    disk.put(&place, &entry).or_fail()?;
    if matches!(command, ServiceCommand::Install(_)) {
        let wait = machine.host.set_preshutdown(AGENT_SERVICE, service::STOP);
        wait.or_fail()?;
    }
    let seen = disk.look(&place).or_fail()?;
    match seen.differs_from(&entry) {
        None => answer(&json!({ "service": AGENT_SERVICE })),
        Some(why) => Err(Error::work(format!("service {AGENT_SERVICE}: {why}"))),
    }
}
