//! What people say that a change needs around it: the `nodeDisruptionPolicy` of OpenShift's `MachineConfiguration`, which
//! is a table for files, units and SSH keys. Where an entry makes no sense, a reboot is the careful reading of it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// The endings that the name of a unit can have.
const UNIT_ENDINGS: [&str; 12] = [
    "service",
    "socket",
    "device",
    "mount",
    "automount",
    "swap",
    "target",
    "path",
    "timer",
    "snapshot",
    "slice",
    "scope",
];
/// How long the name of a unit may be.
const LONGEST_UNIT: usize = 255;
/// How many entries a list may have.
const MOST_ENTRIES: usize = 50;
const MOST_ACTIONS: usize = 10;

/// The table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DisruptionPolicy {
    /// By the path of a file, or of a folder above it.
    pub files: BTreeMap<String, Vec<PolicyAction>>,
    /// By the name of a unit.
    pub units: BTreeMap<String, Vec<PolicyAction>>,
    /// For all SSH keys.
    pub ssh_keys: Option<Vec<PolicyAction>>,
}

/// Something that happens around a change. No action at all is written `None`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyAction {
    /// Pods leave the node before it.
    Drain,
    /// systemd reads its units again.
    DaemonReload,
    /// A unit reads its configuration again.
    Reload(String),
    /// A unit is stopped and started.
    Restart(String),
    /// The machine boots anew.
    Reboot,
}

/// An entry that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyProblem {
    /// Which: `files[/etc/chrony.conf].actions[0]`.
    pub entry: String,
    /// What is wrong with it, and what would be right.
    pub message: String,
}

impl std::fmt::Display for PolicyProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.entry, self.message)
    }
}

impl DisruptionPolicy {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads `files`, `units` and `sshkey`. What makes no sense reboots, and is told.
    pub fn read(value: &Value) -> (Self, Vec<PolicyProblem>) {
        let mut reading = PolicyReader::default();
        let policy = reading.policy(value);
        (policy, reading.problems)
    }

    /// Reads it as JSON or YAML. Of a text that is neither, the careful reading is that every change reboots.
    pub fn parse(text: &str) -> (Self, Vec<PolicyProblem>) {
        match serde_saphyr::from_str(text) {
            Ok(value) => Self::read(&value),
            Err(error) => {
                let careful = Self {
                    files: BTreeMap::from([("/".to_owned(), vec![PolicyAction::Reboot])]),
                    units: BTreeMap::new(),
                    ssh_keys: Some(vec![PolicyAction::Reboot]),
                };
                let problem = PolicyProblem {
                    entry: "nodeDisruptionPolicy".to_owned(),
                    message: format!("is not YAML: {error}"),
                };
                (careful, vec![problem])
            }
        }
    }

    /// The entry for a file, with its path: the file's own, or that of the nearest folder above it.
    pub fn for_file(&self, path: &str) -> Option<(&str, &[PolicyAction])> {
        let mut place = path;
        loop {
            if let Some((entry, actions)) = self.files.get_key_value(place) {
                return Some((entry, actions));
            }
            place = match place.rsplit_once('/') {
                Some(("", name)) if !name.is_empty() => "/",
                Some((folder, _)) if !folder.is_empty() => folder,
                _ => return None,
            };
        }
    }

    /// The same as it is written.
    pub fn to_json(&self) -> Value {
        let list = |key: &str, entries: &BTreeMap<String, Vec<PolicyAction>>| -> Value {
            let entries = entries.iter();
            entries
                .map(|(name, actions)| json!({ key: name, "actions": written(actions) }))
                .collect()
        };
        let mut all = Map::new();
        if !self.files.is_empty() {
            all.insert("files".to_owned(), list("path", &self.files));
        }
        if !self.units.is_empty() {
            all.insert("units".to_owned(), list("name", &self.units));
        }
        if let Some(actions) = &self.ssh_keys {
            all.insert("sshkey".to_owned(), json!({ "actions": written(actions) }));
        }
        Value::Object(all)
    }

    /// Both tables: an entry that both have needs what both say.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        let together = |mine: &mut BTreeMap<String, Vec<PolicyAction>>, theirs| {
            for (name, actions) in theirs {
                let mut actions: Vec<PolicyAction> = actions;
                let entry: &mut Vec<PolicyAction> = mine.entry(name).or_default();
                entry.append(&mut actions);
                *entry = sorted(std::mem::take(entry));
            }
        };
        together(&mut self.files, other.files);
        together(&mut self.units, other.units);
        self.ssh_keys = match (self.ssh_keys, other.ssh_keys) {
            (Some(one), Some(more)) => Some(sorted(one.into_iter().chain(more).collect())),
            (one, other) => one.or(other),
        };
        self
    }
}

/// Each action once; a reboot is all there is to say.
fn sorted(mut actions: Vec<PolicyAction>) -> Vec<PolicyAction> {
    actions.sort();
    actions.dedup();
    if actions.contains(&PolicyAction::Reboot) {
        actions = vec![PolicyAction::Reboot];
    }
    actions
}

fn written(actions: &[PolicyAction]) -> Value {
    if actions.is_empty() {
        return json!([{ "type": "None" }]);
    }
    let actions = actions.iter().map(|action| match action {
        PolicyAction::Drain => json!({ "type": "Drain" }),
        PolicyAction::DaemonReload => json!({ "type": "DaemonReload" }),
        PolicyAction::Reload(unit) => {
            json!({ "type": "Reload", "reload": { "serviceName": unit } })
        }
        PolicyAction::Restart(unit) => {
            json!({ "type": "Restart", "restart": { "serviceName": unit } })
        }
        PolicyAction::Reboot => json!({ "type": "Reboot" }),
    });
    actions.collect()
}

#[derive(Default)]
struct PolicyReader {
    problems: Vec<PolicyProblem>,
}

impl PolicyReader {
    fn problem(&mut self, entry: &str, message: impl Into<String>) {
        self.problems.push(PolicyProblem {
            entry: entry.to_owned(),
            message: message.into(),
        });
    }

    fn policy(&mut self, value: &Value) -> DisruptionPolicy {
        let mut policy = DisruptionPolicy::default();
        let Some(fields) = value.as_object() else {
            if !value.is_null() {
                self.problem(
                    "nodeDisruptionPolicy",
                    "must be an object with files, units and sshkey",
                );
            }
            return policy;
        };
        for (key, value) in fields {
            match key.as_str() {
                "files" => policy.files = self.list("files", "path", value, file_problem),
                "units" => policy.units = self.list("units", "name", value, unit_problem),
                "sshkey" if value.get("actions").is_some() => {
                    policy.ssh_keys = Some(self.actions("sshkey", value));
                }
                // An empty object is how nothing is written.
                "sshkey" if value.is_null() || *value == json!({}) => {}
                "sshkey" => {
                    self.problem("sshkey", "actions is missing: write a list of actions");
                    policy.ssh_keys = Some(vec![PolicyAction::Reboot]);
                }
                other => self.problem(other, "is not known: write files, units or sshkey"),
            }
        }
        policy
    }

    fn list(
        &mut self,
        list: &str,
        key: &str,
        value: &Value,
        problem: fn(&str) -> Option<String>,
    ) -> BTreeMap<String, Vec<PolicyAction>> {
        let mut entries = BTreeMap::new();
        let Some(values) = value.as_array() else {
            if !value.is_null() {
                self.problem(list, "must be a list");
            }
            return entries;
        };
        if values.len() > MOST_ENTRIES {
            let message = format!(
                "has {} entries, and at most {MOST_ENTRIES} are allowed",
                values.len()
            );
            self.problem(list, message);
        }
        for (index, value) in values.iter().enumerate() {
            let Some(name) = value.get(key).and_then(Value::as_str) else {
                self.problem(&format!("{list}[{index}]"), format!("{key} is missing"));
                continue;
            };
            let entry = format!("{list}[{name}]");
            let mut actions = self.actions(&entry, value);
            if let Some(message) = problem(name) {
                self.problem(&entry, message);
                actions = vec![PolicyAction::Reboot];
            }
            if entries.contains_key(name) {
                self.problem(&entry, "is there twice: keep one");
                actions = vec![PolicyAction::Reboot];
            }
            entries.insert(name.to_owned(), actions);
        }
        entries
    }

    fn actions(&mut self, entry: &str, value: &Value) -> Vec<PolicyAction> {
        let careful = vec![PolicyAction::Reboot];
        let Some(values) = value.get("actions").and_then(Value::as_array) else {
            self.problem(entry, "actions is missing: write a list of actions");
            return careful;
        };
        if values.is_empty() || values.len() > MOST_ACTIONS {
            let message = format!(
                "actions must have 1 to {MOST_ACTIONS} entries; where nothing is to happen, write None"
            );
            self.problem(entry, message);
            return careful;
        }
        let before = self.problems.len();
        let mut actions = Vec::new();
        let mut alone = None;
        for (index, value) in values.iter().enumerate() {
            let place = format!("{entry}.actions[{index}]");
            let kind = value
                .get("type")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let service = |field: &str| {
                let name = value.get(field)?.get("serviceName")?;
                name.as_str().map(str::to_owned)
            };
            for (field, name) in [("reload", "Reload"), ("restart", "Restart")] {
                if value.get(field).is_some_and(|it| !it.is_null()) && kind != name {
                    self.problem(
                        &place,
                        format!("{field} belongs to type {name} alone: remove it"),
                    );
                }
            }
            let action = match (kind, service("reload"), service("restart")) {
                ("None" | "Reboot", _, _) if values.len() > 1 => {
                    alone = Some(kind.to_owned());
                    continue;
                }
                ("None", _, _) => continue,
                ("Reboot", _, _) => PolicyAction::Reboot,
                ("Drain", _, _) => PolicyAction::Drain,
                ("DaemonReload", _, _) => PolicyAction::DaemonReload,
                ("Reload", Some(unit), _) => PolicyAction::Reload(unit),
                ("Restart", _, Some(unit)) => PolicyAction::Restart(unit),
                ("Reload" | "Restart", _, _) => {
                    let field = kind.to_lowercase();
                    self.problem(
                        &place,
                        format!("{field}.serviceName is missing: write the name of a unit"),
                    );
                    continue;
                }
                (other, _, _) => {
                    let message = format!(
                        "type {other:?} is not known: write None, Drain, Reload, Restart, DaemonReload or Reboot"
                    );
                    self.problem(&place, message);
                    continue;
                }
            };
            if let PolicyAction::Reload(unit) | PolicyAction::Restart(unit) = &action
                && let Some(message) = unit_problem(unit)
            {
                self.problem(&place, format!("{unit:?}: {message}"));
            }
            actions.push(action);
        }
        if let Some(kind) = alone {
            self.problem(
                entry,
                format!("{kind} must be the only action: remove the others"),
            );
        }
        if self.problems.len() > before {
            return careful;
        }
        sorted(actions)
    }
}

fn file_problem(path: &str) -> Option<String> {
    let is_plain = path.starts_with('/')
        && !path.contains("//")
        && !path.split('/').any(|name| name == "." || name == "..");
    (!is_plain).then(|| "path must be absolute, without `.`, `..` and `//`".to_owned())
}

fn unit_problem(unit: &str) -> Option<String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
    let is_name = unit
        .rsplit_once('.')
        .is_some_and(|(name, ending)| !name.is_empty() && UNIT_ENDINGS.contains(&ending));
    let is_unit = is_name && unit.len() <= LONGEST_UNIT && unit.bytes().all(allowed);
    (!is_unit)
        .then(|| "is no name of a unit: write it with its suffix, as in crio.service".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &Value) -> (DisruptionPolicy, Vec<String>) {
        let (policy, problems) = DisruptionPolicy::read(value);
        (policy, problems.iter().map(ToString::to_string).collect())
    }

    fn actions(of: &Value) -> (Vec<PolicyAction>, Vec<String>) {
        let (policy, problems) = read(&json!({ "files": [{ "path": "/a", "actions": of }] }));
        (policy.files["/a"].clone(), problems)
    }

    /// Covers O09.
    #[test]
    fn a_policy_is_read_as_openshift_writes_it_and_written_back() {
        let written = json!({
            "files": [
                { "path": "/etc/a", "actions": [{ "type": "None" }] },
                { "path": "/etc/b", "actions": [
                    { "type": "Drain" },
                    { "type": "DaemonReload" },
                    { "type": "Reload", "reload": { "serviceName": "crio.service" } },
                ] },
            ],
            "units": [{ "name": "a@b.timer", "actions": [
                { "type": "Restart", "restart": { "serviceName": "chronyd.service" } },
            ] }],
            "sshkey": { "actions": [{ "type": "Reboot" }] },
        });
        let (policy, problems) = read(&written);
        assert_eq!(problems, [""; 0]);
        assert_eq!(policy.to_json(), written);
        assert_eq!(policy.files["/etc/a"], []);
        assert_eq!(policy.ssh_keys, Some(vec![PolicyAction::Reboot]));
        for nothing in [
            json!(null),
            json!({}),
            json!({ "files": [], "units": null, "sshkey": {} }),
        ] {
            let (policy, problems) = read(&nothing);
            assert!(policy.is_empty() && problems.is_empty(), "{problems:?}");
        }
    }

    /// Covers O09.
    #[test]
    fn an_entry_that_makes_no_sense_is_named_and_reboots() {
        for (of, words) in [
            (json!([]), "files[/a]: actions must have 1 to 10 entries"),
            (json!("Reboot"), "files[/a]: actions is missing"),
            (
                json!([{ "type": "Special" }]),
                "files[/a].actions[0]: type \"Special\" is not known",
            ),
            (
                json!([{ "type": "None" }, { "type": "Drain" }]),
                "files[/a]: None must be the only action",
            ),
            (
                json!([{ "type": "Drain" }, { "type": "Reboot" }]),
                "files[/a]: Reboot must be the only action",
            ),
            (
                json!([{ "type": "Reload" }]),
                "files[/a].actions[0]: reload.serviceName is missing",
            ),
            (
                json!([{ "type": "None", "reload": { "serviceName": "a.service" } }]),
                "files[/a].actions[0]: reload belongs to type Reload alone",
            ),
            (
                json!([{ "type": "Restart", "restart": { "serviceName": "crio" } }]),
                "files[/a].actions[0]: \"crio\": is no name of a unit",
            ),
        ] {
            let (actions, problems) = actions(&of);
            assert_eq!(actions, [PolicyAction::Reboot], "{words}");
            assert!(
                problems.iter().any(|it| it.starts_with(words)),
                "{problems:?}"
            );
        }
        let none = json!([{ "type": "None" }]);
        for (policy, words) in [
            (
                json!({ "files": [{ "path": "etc", "actions": none }] }),
                "files[etc]: path must be absolute",
            ),
            (
                json!({ "files": [{ "actions": none }] }),
                "files[0]: path is missing",
            ),
            (
                json!({ "units": [{ "name": "crio", "actions": none }] }),
                "units[crio]: is no name of a unit",
            ),
            (
                json!({ "sshkey": { "action": none } }),
                "sshkey: actions is missing",
            ),
            (json!({ "file": [] }), "file: is not known"),
            (json!([]), "nodeDisruptionPolicy: must be an object"),
            (
                json!({ "files": [{ "path": "/a", "actions": none }, { "path": "/a", "actions": none }] }),
                "files[/a]: is there twice",
            ),
        ] {
            let (read, problems) = read(&policy);
            assert!(
                problems.iter().any(|it| it.starts_with(words)),
                "{problems:?}"
            );
            let all = read
                .files
                .values()
                .chain(read.units.values())
                .chain(&read.ssh_keys);
            for actions in all {
                assert_eq!(actions[..], [PolicyAction::Reboot], "{words}");
            }
        }
    }

    /// Covers O09.
    #[test]
    fn two_policies_together_need_what_both_say() {
        let policy = |of: Value| read(&json!({ "files": [{ "path": "/a", "actions": of }] })).0;
        let (none, drain) = (json!([{ "type": "None" }]), json!([{ "type": "Drain" }]));
        let reboot = json!([{ "type": "Reboot" }]);
        assert_eq!(
            policy(none.clone()).and(policy(drain.clone())),
            policy(drain.clone())
        );
        assert_eq!(policy(drain).and(policy(reboot.clone())), policy(reboot));
        assert_eq!(
            policy(none.clone()).and(DisruptionPolicy::default()),
            policy(none)
        );
    }
}
