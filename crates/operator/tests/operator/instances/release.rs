//! Payloads of several versions, and what is on an instance that has one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_testbed::process::run;
use evenkeel_testbed::windows_instance::WindowsInstance;
use evenkeel_testbed::{Doing, Result};
use serde_json::{Value, json};

use super::bed::{Bed, seal, template};

/// What is below `C:\k` beside the payload: what the agent remembers, and what services write.
const NOT_PAYLOAD: [&str; 7] = [
    "state/",
    "store/",
    "kubeconfig",
    "bootstrap-kubeconfig",
    "kubelet-ca.crt",
    "kubelet.conf",
    "kubelet-double.json",
];

/// A payload of some version.
pub(crate) struct Release {
    pub(crate) version: &'static str,
    pub(crate) payload: PathBuf,
}

impl Release {
    /// A payload like the bed's own, with `texts` beside the programs, an agent of its own (as every build is another
    /// one) and `change` made to its services.
    pub(crate) fn new(
        bed: &Bed,
        version: &'static str,
        texts: &[(&str, &str)],
        change: impl FnOnce(&mut Value),
    ) -> Result<Self> {
        let payload = bed.scene.scratch.path().join(version);
        let files = payload.join("files");
        let copy = format!("cp -r {} {}", bed.payload.display(), payload.display());
        run(Command::new("sh").args(["-c", &copy]))?;
        // What follows the last section of a program is nobody's.
        let agent = files.join("evenkeel-agent.exe");
        let mut program = std::fs::read(&agent).doing(|| "there is no agent")?;
        program.extend(version.as_bytes());
        std::fs::write(&agent, program).doing(|| "cannot write the agent")?;
        for (name, text) in texts {
            let place = files.join(name);
            let folder = place.parent().unwrap_or(&files);
            std::fs::create_dir_all(folder).doing(|| "cannot make a folder")?;
            std::fs::write(&place, text).doing(|| format!("cannot write {name}"))?;
        }
        let mut services = template(&bed.scene.name, "kubelet-double");
        change(&mut services);
        let place = payload.join("services.yaml");
        std::fs::write(place, services.to_string()).doing(|| "cannot write services")?;
        seal(&payload, version)?;
        Ok(Self { version, payload })
    }

    /// The files of the payload with their checksums.
    pub(crate) fn files(&self) -> Result<BTreeMap<String, String>> {
        sums(&self.payload.join("files"))
    }
}

/// A service more, beside those of the template.
pub(crate) fn with_service(services: &mut Value, name: &str, arguments: &str) {
    let service = json!({
        "name": name, "bootstrap": false, "priority": 3, "dependencies": ["kubelet"],
        "command": format!(r"C:\k\service-double.exe {arguments}"),
    });
    if let Some(all) = services["services"].as_array_mut() {
        all.push(service);
    }
}

/// SHA-256 of every file below `folder`, by its path with slashes.
fn sums(folder: &Path) -> Result<BTreeMap<String, String>> {
    let line = "find . -type f -print0 | xargs -0 sha256sum";
    let said = run(Command::new("sh").args(["-c", line]).current_dir(folder))?;
    let files = said.lines().filter_map(|line| {
        let (sum, path) = line.split_once("  ./")?;
        Some((path.to_owned(), sum.to_owned()))
    });
    Ok(files.collect())
}

/// The payload files that an instance has.
pub(crate) fn payload_on(instance: &WindowsInstance) -> Result<BTreeMap<String, String>> {
    let mut all = sums(&instance.path(r"C:\k")?)?;
    all.retain(|path, _| !NOT_PAYLOAD.iter().any(|it| path.starts_with(it)));
    Ok(all)
}

/// The checksums that the agent's store on an instance has a copy of.
pub(crate) fn stored_on(instance: &WindowsInstance) -> Result<BTreeSet<String>> {
    let all = sums(&instance.path(r"C:\k\store")?)?;
    Ok(all.into_values().collect())
}
