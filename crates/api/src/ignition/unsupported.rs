//! What a configuration may say and we do not do: disks, directories, links, other users and so on.
//! It is kept in canonical form, so that saying it differently is no change and a change of it is
//! seen. SSH keys of user `core` are the exception: they are ours.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::paths::Taken;
use super::{Spec, keys, keys_2_2};
use crate::located::Node;
use crate::machine_config::{MachineConfig, Section};
use crate::problem::{At, Findings};
use crate::shape::{self, Shape};

/// The only user whose SSH keys we keep.
const CORE: &str = "core";

/// A section of which every element is kept, by its identity.
type Lists = &'static [(&'static str, &'static str, &'static Shape)];

const LISTS: Lists = &[
    ("passwd", "groups", &keys::GROUP),
    ("passwd", "users", &keys::USER),
    ("storage", "directories", &keys::DIRECTORY),
    ("storage", "disks", &keys::DISK),
    ("storage", "filesystems", &keys::FILESYSTEM),
    ("storage", "links", &keys::LINK),
    ("storage", "luks", &keys::LUKS),
    ("storage", "raid", &keys::RAID),
];

const LISTS_2_2: Lists = &[
    ("networkd", "units", &keys_2_2::NETWORKD_UNIT),
    ("passwd", "groups", &keys_2_2::GROUP),
    ("passwd", "users", &keys_2_2::USER),
    ("storage", "directories", &keys_2_2::DIRECTORY),
    ("storage", "disks", &keys_2_2::DISK),
    ("storage", "filesystems", &keys_2_2::FILESYSTEM),
    ("storage", "links", &keys_2_2::LINK),
    ("storage", "raid", &keys::RAID),
];

/// Sections that are kept whole.
type Wholes = &'static [(&'static str, &'static Shape)];

const WHOLES: Wholes = &[
    ("config", &keys::REFERENCES),
    ("proxy", &keys::PROXY),
    ("security", &keys::SECURITY),
    ("timeouts", &keys::TIMEOUTS),
];

const WHOLES_2_2: Wholes = &[
    ("config", &keys_2_2::REFERENCES),
    ("security", &keys_2_2::SECURITY),
    ("timeouts", &keys::TIMEOUTS),
];

pub(super) fn read(
    node: &Node<'_>,
    spec: Spec,
    at: &At<'_>,
    taken: &mut Taken,
    config: &mut MachineConfig,
    findings: &mut Findings,
) {
    let (lists, wholes) = match spec {
        Spec::TwoTwo => (LISTS_2_2, WHOLES_2_2),
        Spec::Three(_) => (LISTS, WHOLES),
    };
    for (section, key, element) in lists {
        if let Some(parent) = node.get(section) {
            let here = at.key(section, parent.line);
            let list = here.key(key, parent.line);
            let name = format!("{section}.{key}");
            read_list(
                parent.list(key),
                &name,
                element,
                &list,
                taken,
                config,
                findings,
            );
        }
    }
    let ignition = node.get("ignition");
    for (key, shape) in wholes {
        keep_whole(ignition, key, &format!("ignition.{key}"), shape, config);
    }
    let arguments = "kernelArguments";
    keep_whole(
        Some(node),
        arguments,
        arguments,
        &keys::KERNEL_ARGUMENTS,
        config,
    );
}

fn keep_whole(
    parent: Option<&Node<'_>>,
    key: &str,
    name: &str,
    shape: &Shape,
    config: &mut MachineConfig,
) {
    let Some(node) = parent.and_then(|parent| parent.get(key)) else {
        return;
    };
    let value = shape::canonical(node, shape);
    if value.as_object().is_some_and(|entries| !entries.is_empty()) {
        config.unsupported.insert(section(name, ""), value);
    }
}

fn section(name: &str, identity: &str) -> Section {
    Section {
        name: name.to_owned(),
        identity: identity.to_owned(),
    }
}

fn read_list(
    items: &[Node<'_>],
    name: &str,
    shape: &Shape,
    at: &At<'_>,
    taken: &mut Taken,
    config: &mut MachineConfig,
    findings: &mut Findings,
) {
    let mut seen = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        let identity = identity(item, shape).map_or_else(|| format!("[{index}]"), str::to_owned);
        let here = at.index(index, item.line).called(&identity);
        let claimed = match name {
            "storage.directories" => taken.claim(&identity, "storage.directories"),
            "storage.links" => taken.claim(&identity, "storage.links"),
            _ if seen.insert(identity.clone()) => Ok(()),
            _ => Err(format!("{identity} is there twice in {name}: keep one")),
        };
        if let Err(message) = claimed {
            findings.problem(&here, message);
        }
        let mut value = shape::canonical(item, shape);
        if name == "passwd.users" && identity == CORE {
            config.ssh_keys = ssh_keys(item);
            if !says_more_than_keys(&mut value) {
                continue;
            }
        }
        config.unsupported.insert(section(name, &identity), value);
    }
}

fn identity<'n>(item: &'n Node<'_>, shape: &Shape) -> Option<&'n str> {
    let Shape::Object(object) = shape else {
        return None;
    };
    let named = item.text(object.identity);
    // A filesystem of 2.2 may have no name.
    let mounted = || item.get("mount").and_then(|mount| mount.text("device"));
    named
        .or_else(|| item.text("path"))
        .or_else(mounted)
        .filter(|name| !name.is_empty())
}

fn ssh_keys(user: &Node<'_>) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    let mut seen = BTreeSet::new();
    for key in user
        .list("sshAuthorizedKeys")
        .iter()
        .filter_map(Node::as_text)
    {
        if !key.is_empty() && seen.insert(key) {
            keys.push(key.to_owned());
        }
    }
    keys
}

fn says_more_than_keys(user: &mut Json) -> bool {
    let Some(entries) = user.as_object_mut() else {
        return false;
    };
    entries.remove("sshAuthorizedKeys");
    entries.keys().any(|key| key != "name")
}
