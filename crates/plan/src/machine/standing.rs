//! What a configuration says and is not ours to do: it may stand, and it may not change on a running
//! machine. Which fields of it would change, and what people can do about it.

use std::collections::BTreeSet;

use evenkeel_api::machine::machine_config::Section;
use serde_json::Value;

use crate::machine::problem::MachineProblem;

/// Why a section may not go from what it `was` to what it `is`; nothing if it stays as it is.
pub(crate) fn refusal(
    section: &Section,
    was: Option<&Value>,
    is: Option<&Value>,
) -> Option<MachineProblem> {
    if was == is {
        return None;
    }
    let fields = Fields::of(section, was, is);
    let (what, cure) = match (was, is) {
        (None, _) => (fields.are("is new", "are new"), "remove it"),
        (_, None) => (fields.are("is gone", "are gone"), "put it back"),
        _ => (fields.are("changes", "change"), "revert the change"),
    };
    let message = format!(
        "{what}, and {}: {cure}{}, or reprovision the machine",
        limit(section),
        elsewhere(section)
    );
    Some(MachineProblem::new(
        &section.name,
        &section.identity,
        message,
    ))
}

/// What is to be said of a section that stands in a configuration which no machine runs yet.
pub fn caution(section: &Section, value: &Value) -> String {
    let fields = Fields::of(section, None, Some(value));
    format!(
        "{}, and {}: a machine that runs without it refuses this configuration{}",
        fields.are("is not supported", "are not supported"),
        limit(section),
        elsewhere(section)
    )
}

/// The user whose SSH keys are ours, and nothing else of it.
fn is_core(section: &Section) -> bool {
    section.name == "passwd.users" && section.identity == "core"
}

fn limit(section: &Section) -> &'static str {
    if is_core(section) {
        "only sshAuthorizedKeys of user core can change on a running machine"
    } else {
        "this section cannot change on a running machine"
    }
}

/// Where the same can be said, and is ours to do.
fn elsewhere(section: &Section) -> &'static str {
    match section.name.as_str() {
        "kernelArguments" => " (spec.kernelArguments of a MachineConfig can change)",
        _ => "",
    }
}

/// The fields of a section that differ.
struct Fields {
    /// Whether it is about the fields alone: the element itself stays, or is ours to do.
    alone: bool,
    names: Vec<String>,
}

impl Fields {
    fn of(section: &Section, was: Option<&Value>, is: Option<&Value>) -> Self {
        let mut names = Vec::new();
        match (was, is) {
            (None | Some(Value::Array(_)), None | Some(Value::Array(_))) => {
                let elements = |list: Option<&Value>| -> BTreeSet<String> {
                    let elements = list.and_then(Value::as_array).into_iter().flatten();
                    elements
                        .filter_map(Value::as_str)
                        .map(str::to_owned)
                        .collect()
                };
                let (was, is) = (elements(was), elements(is));
                names.extend(was.symmetric_difference(&is).cloned());
            }
            _ => differing("", was, is, &mut names),
        }
        // An element is not told by its own name.
        let own = |name: &str| {
            let value = is.or(was).and_then(|value| value.get(name));
            value.is_some_and(|value| *value == section.identity)
        };
        names.retain(|name| section.identity.is_empty() || !own(name));
        Self {
            alone: is_core(section) || was.is_some() && is.is_some(),
            names,
        }
    }

    /// A sentence with these verbs.
    fn are(&self, one: &str, several: &str) -> String {
        let names = match self.names.as_slice() {
            [] => return one.to_owned(),
            [only] => only.clone(),
            [all @ .., last] => format!("{} and {last}", all.join(", ")),
        };
        let verb = if self.names.len() == 1 { one } else { several };
        if self.alone {
            format!("{names} {verb}")
        } else {
            format!("{one} ({names})")
        }
    }
}

fn differing(path: &str, was: Option<&Value>, is: Option<&Value>, names: &mut Vec<String>) {
    let object = |value: Option<&Value>| value.is_none_or(Value::is_object);
    if was == is {
        return;
    }
    if !object(was) || !object(is) {
        if !path.is_empty() {
            names.push(path.to_owned());
        }
        return;
    }
    let keys = |value: Option<&Value>| -> Vec<String> {
        let entries = value.and_then(Value::as_object);
        entries.map_or_else(Vec::new, |it| it.keys().cloned().collect())
    };
    let all: BTreeSet<_> = keys(was).into_iter().chain(keys(is)).collect();
    for key in all {
        let of = |value: Option<&Value>| value.and_then(|value| value.get(&key)).cloned();
        let below = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        differing(&below, of(was).as_ref(), of(is).as_ref(), names);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn section(name: &str, identity: &str) -> Section {
        let (name, identity) = (name.to_owned(), identity.to_owned());
        Section { name, identity }
    }

    fn said(name: &str, identity: &str, was: &Value, is: &Value) -> String {
        let some = |value: &Value| (!value.is_null()).then(|| value.clone());
        let (was, is) = (some(was), some(is));
        let problem = refusal(&section(name, identity), was.as_ref(), is.as_ref());
        problem.map_or_else(String::new, |it| it.to_string())
    }

    /// Covers M04.
    #[test]
    fn a_refusal_names_section_identity_and_every_field_with_its_cure() {
        let nothing = Value::Null;
        let core = |mut fields: Value| {
            fields["name"] = json!("core");
            fields
        };
        let only = "only sshAuthorizedKeys of user core can change on a running machine";
        let never = "this section cannot change on a running machine";
        let anew = "or reprovision the machine";
        for (name, identity, was, is, words) in [
            (
                "passwd.users",
                "core",
                nothing.clone(),
                core(json!({ "homeDir": "/x" })),
                format!("passwd.users core: homeDir is new, and {only}: remove it, {anew}"),
            ),
            (
                "passwd.users",
                "core",
                core(json!({ "uid": 1, "shell": "/a" })),
                core(json!({ "uid": 1, "shell": "/b", "groups": ["wheel"] })),
                format!(
                    "passwd.users core: groups and shell change, and {only}: revert the change, {anew}"
                ),
            ),
            (
                "passwd.users",
                "core",
                core(json!({ "uid": 1, "shell": "/a", "system": true })),
                nothing.clone(),
                format!(
                    "passwd.users core: shell, system and uid are gone, and {only}: put it back, {anew}"
                ),
            ),
            (
                "passwd.groups",
                "wheel",
                nothing.clone(),
                json!({ "name": "wheel" }),
                format!("passwd.groups wheel: is new, and {never}: remove it, {anew}"),
            ),
            (
                "storage.links",
                "/l",
                nothing.clone(),
                json!({ "path": "/l", "target": "/t" }),
                format!("storage.links /l: is new (target), and {never}: remove it, {anew}"),
            ),
            (
                "storage.directories",
                "/d",
                json!({ "path": "/d", "mode": 448, "user": { "id": 1 } }),
                json!({ "path": "/d", "user": { "id": 2 } }),
                format!(
                    "storage.directories /d: mode and user.id change, and {never}: revert the change, {anew}"
                ),
            ),
            (
                "storage.disks",
                "/dev/sda",
                json!({ "device": "/dev/sda" }),
                nothing.clone(),
                format!("storage.disks /dev/sda: is gone, and {never}: put it back, {anew}"),
            ),
            (
                "spec.extensions",
                "",
                json!(["a", "b"]),
                json!(["a", "c"]),
                format!("spec.extensions: b and c change, and {never}: revert the change, {anew}"),
            ),
            (
                "spec.fips",
                "",
                nothing.clone(),
                json!(true),
                format!("spec.fips: is new, and {never}: remove it, {anew}"),
            ),
            (
                "kernelArguments",
                "",
                nothing,
                json!({ "shouldExist": ["quiet"] }),
                format!(
                    "kernelArguments: is new (shouldExist), and {never}: remove it \
                     (spec.kernelArguments of a MachineConfig can change), {anew}"
                ),
            ),
        ] {
            assert_eq!(said(name, identity, &was, &is), words);
            assert_eq!(said(name, identity, &is, &is), "");
        }
    }
}
