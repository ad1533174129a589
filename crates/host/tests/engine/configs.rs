//! Configurations for tests, and a machine that somebody lived on before we came.

use evenkeel_api::machine::machine_config::{File, MachineConfig, Owner, Unit};
use evenkeel_plan::machine::entry::Ids;

use crate::machine::Machine;

/// A configuration that is written as a sentence.
#[derive(Debug, Clone, Default)]
pub(crate) struct Config(pub(crate) MachineConfig);

impl Config {
    pub(crate) fn file(self, path: &str, contents: &str, mode: u32) -> Self {
        self.file_of(path, contents, mode, Ids::default())
    }

    pub(crate) fn file_of(mut self, path: &str, contents: &str, mode: u32, owner: Ids) -> Self {
        let file = File {
            contents: contents.as_bytes().to_vec(),
            mode,
            user: Owner::Id(owner.user),
            group: Owner::Id(owner.group),
        };
        self.0.files.insert(path.to_owned(), file);
        self
    }

    pub(crate) fn unit(mut self, name: &str, unit: Unit) -> Self {
        self.0.units.insert(name.to_owned(), unit);
        self
    }

    /// Boots this image with these arguments; empty for none.
    pub(crate) fn boots(mut self, image: &str, arguments: &[&str]) -> Self {
        image.clone_into(&mut self.0.os_image_url);
        self.0.kernel_arguments = arguments.iter().map(|&it| it.to_owned()).collect();
        self
    }

    pub(crate) fn keys(mut self, keys: &[&str]) -> Self {
        self.0.ssh_keys = keys.iter().map(|&key| key.to_owned()).collect();
        self
    }
}

/// A unit that the configuration brings.
pub(crate) fn our_unit(text: &str) -> Unit {
    Unit {
        contents: Some(format!("[Service]\nExecStart={text}\n{WANTED}")),
        enabled: Some(true),
        ..Unit::default()
    }
}

pub(crate) fn enabled(enabled: bool) -> Unit {
    Unit {
        enabled: Some(enabled),
        ..Unit::default()
    }
}

pub(crate) fn masked() -> Unit {
    Unit {
        masked: true,
        ..Unit::default()
    }
}

pub(crate) fn drop_in(name: &str, text: &str) -> Unit {
    Unit {
        drop_ins: [(name.to_owned(), text.to_owned())].into(),
        ..Unit::default()
    }
}

pub(crate) const WANTED: &str = "[Install]\nWantedBy=multi-user.target\n";
pub(crate) const UNITS: &str = "/etc/systemd/system";
pub(crate) const WANTS: &str = "/etc/systemd/system/multi-user.target.wants";
pub(crate) const POLICY: &str = "/etc/containers/policy.json";

/// Puts what an operating system and an administrator leave onto a machine: files with modes of
/// their own, links in parents, units that are there, enabled, or only the administrator's.
pub(crate) fn live_on(machine: &Machine) {
    let theirs = if machine.gives_files_away() {
        Ids { user: 7, group: 8 }
    } else {
        Ids::default()
    };
    machine.folder(WANTS);
    machine.folder("/var/lib");
    machine.folder("/var/real");
    machine.file_of("/etc/theirs.conf", "theirs\n", 0o640, theirs);
    machine.link("/etc/alias.conf", "theirs.conf");
    machine.link("/var/link", "/var/real");
    machine.file("/usr/lib/systemd/system/vendor.service", WANTED, 0o644);
    machine.file("/usr/lib/systemd/system/started.service", WANTED, 0o644);
    machine.link(
        &format!("{WANTS}/started.service"),
        "/usr/lib/systemd/system/started.service",
    );
    machine.file(&format!("{UNITS}/admin.service"), WANTED, 0o600);
    machine.file(
        "/usr/lib/systemd/system-preset/90-default.preset",
        "disable quiet.service\n",
        0o644,
    );
}
