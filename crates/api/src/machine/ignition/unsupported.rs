//! What a configuration may say and we do not do: disks, directories, links, other users and so on.
//! It is kept in canonical form, so that saying it differently is no change and a change of it is
//! seen. SSH keys of user `core` are the exception: they are ours.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::paths::Taken;
use super::{Spec, keys, keys_2_2};
use crate::located::Node;
use crate::machine::machine_config::{MachineConfig, Section};
use crate::problem::{At, Findings};
use crate::shape::{self, Shape};

/// The only user whose SSH keys we keep.
const CORE: &str = "core";

/// What a section's elements are in 3.x and in 2.2, if it is there at all.
type Shapes = [Option<&'static Shape>; 2];

/// Sections of which every element is kept, by its identity.
const LISTS: [(&str, &str, Shapes); 9] = [
    ("networkd", "units", [None, Some(&keys_2_2::NETWORKD_UNIT)]),
    (
        "passwd",
        "groups",
        [Some(&keys::GROUP), Some(&keys_2_2::GROUP)],
    ),
    (
        "passwd",
        "users",
        [Some(&keys::USER), Some(&keys_2_2::USER)],
    ),
    (
        "storage",
        "directories",
        [Some(&keys::DIRECTORY), Some(&keys_2_2::DIRECTORY)],
    ),
    (
        "storage",
        "disks",
        [Some(&keys::DISK), Some(&keys_2_2::DISK)],
    ),
    (
        "storage",
        "filesystems",
        [Some(&keys::FILESYSTEM), Some(&keys_2_2::FILESYSTEM)],
    ),
    (
        "storage",
        "links",
        [Some(&keys::LINK), Some(&keys_2_2::LINK)],
    ),
    ("storage", "luks", [Some(&keys::LUKS), None]),
    ("storage", "raid", [Some(&keys::RAID), Some(&keys::RAID)]),
];

/// Sections that are kept whole.
const WHOLES: [(&str, Shapes); 4] = [
    (
        "config",
        [Some(&keys::REFERENCES), Some(&keys_2_2::REFERENCES)],
    ),
    ("proxy", [Some(&keys::PROXY), None]),
    (
        "security",
        [Some(&keys::SECURITY), Some(&keys_2_2::SECURITY)],
    ),
    ("timeouts", [Some(&keys::TIMEOUTS), Some(&keys::TIMEOUTS)]),
];

/// Those of one version; where several were merged, those of all.
fn of(spec: Option<Spec>, [three, two]: Shapes) -> Vec<&'static Shape> {
    let shapes = match spec {
        Some(Spec::TwoTwo) => [None, two],
        Some(Spec::Three(_)) => [three, None],
        None => [three, two],
    };
    shapes.into_iter().flatten().collect()
}

pub(super) fn read(
    node: &Node<'_>,
    spec: Option<Spec>,
    at: &At<'_>,
    taken: &mut Taken,
    config: &mut MachineConfig,
    findings: &mut Findings,
) {
    for (section, key, shapes) in LISTS {
        let shapes = of(spec, shapes);
        if let Some(parent) = node.get(section).filter(|_| !shapes.is_empty()) {
            let here = at.key(section, parent.line);
            let list = here.key(key, parent.line);
            let name = format!("{section}.{key}");
            read_list(
                parent.list(key),
                &name,
                &shapes,
                &list,
                taken,
                config,
                findings,
            );
        }
    }
    let ignition = node.get("ignition");
    for (key, shapes) in WHOLES {
        let shapes = of(spec, shapes);
        keep_whole(ignition, key, &format!("ignition.{key}"), &shapes, config);
    }
    let arguments = "kernelArguments";
    keep_whole(
        Some(node),
        arguments,
        arguments,
        &[&keys::KERNEL_ARGUMENTS],
        config,
    );
}

fn keep_whole(
    parent: Option<&Node<'_>>,
    key: &str,
    name: &str,
    shapes: &[&Shape],
    config: &mut MachineConfig,
) {
    let Some(node) = parent.and_then(|parent| parent.get(key)) else {
        return;
    };
    let value = shape::canonical(node, shapes);
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
    shapes: &[&Shape],
    at: &At<'_>,
    taken: &mut Taken,
    config: &mut MachineConfig,
    findings: &mut Findings,
) {
    let mut seen = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        let identity = identity(item, shapes).map_or_else(|| format!("[{index}]"), str::to_owned);
        let here = at.index(index, item.line).called(&identity);
        let claimed = match name {
            "storage.directories" => taken.claim(&identity, "storage.directories"),
            "storage.links" => taken.claim(&identity, "storage.links"),
            _ if seen.insert(identity.clone()) => Ok(()),
            _ => Err(format!("{identity} is listed twice in {name}: keep one")),
        };
        if let Err(message) = claimed {
            findings.problem(&here, message);
        }
        let mut value = shape::canonical(item, shapes);
        if name == "passwd.users" && identity == CORE {
            config.ssh_keys = ssh_keys(item);
            if !says_more_than_keys(&mut value) {
                continue;
            }
        }
        config.unsupported.insert(section(name, &identity), value);
    }
}

fn identity<'n>(item: &'n Node<'_>, shapes: &[&Shape]) -> Option<&'n str> {
    let named = shapes.iter().find_map(|shape| match shape {
        Shape::Object(object) => item.text(object.identity),
        _ => None,
    });
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
