//! Disks, their partitions, and what is put together from several of them.

use std::collections::BTreeSet;

use super::{Broken, filled, judge_path};
use crate::located::Node;

/// What the name of a partition may have: 36 units of UTF-16, which Ignition counts as bytes.
const MAX_LABEL: usize = 36;

pub(super) fn disk(disk: &Node<'_>) -> Vec<Broken> {
    let mut broken = Vec::new();
    if let Err(message) = judge_path("device", disk.text("device").unwrap_or_default()) {
        broken.push(("device", message));
    }
    let partitions = disk.list("partitions");
    let mut wrong = |message: String| broken.push(("partitions", message));
    for partition in partitions {
        for message in partition_alone(partition) {
            wrong(format!("{}: {message}", name(partition)));
        }
    }
    let mut numbers = BTreeSet::new();
    let mut labels = BTreeSet::new();
    for partition in partitions {
        if let Some(number) = number(partition)
            && !numbers.insert(number)
        {
            wrong(format!(
                "number {number} is used twice: give each partition its own"
            ));
        }
        if let Some(label) = partition.text("label")
            && !labels.insert(label)
        {
            wrong(format!(
                "label {label:?} is used twice: give each partition its own"
            ));
        }
    }
    if let Some((one, other)) = overlapping(partitions) {
        wrong(format!(
            "{} and {} overlap: give them other values of startMiB and sizeMiB",
            name(one),
            name(other)
        ));
    }
    let goes = |it: &Node<'_>| it.flag("shouldExist") == Some(false);
    if partitions.iter().any(goes) && partitions.iter().any(|it| number(it).is_none()) {
        wrong("a partition without a number stands beside one that should not exist: give each a number".to_owned());
    }
    broken
}

fn name(partition: &Node<'_>) -> String {
    match (number(partition), partition.text("label")) {
        (Some(number), _) => format!("partition {number}"),
        (None, Some(label)) => format!("partition {label:?}"),
        (None, None) => "a partition".to_owned(),
    }
}

/// Its number. 0 is any that is free.
fn number(partition: &Node<'_>) -> Option<i128> {
    partition.integer("number").filter(|number| *number != 0)
}

fn partition_alone(partition: &Node<'_>) -> Vec<String> {
    let mut broken = Vec::new();
    let label = partition.text("label");
    let says_more = label.is_some()
        || filled(partition, "typeGuid").is_some()
        || filled(partition, "guid").is_some()
        || partition.get("startMiB").is_some()
        || partition.get("sizeMiB").is_some();
    if partition.flag("shouldExist") == Some(false) && says_more {
        broken.push("shouldExist is false: give only its number".to_owned());
    }
    if number(partition).is_none() && label.is_none() {
        broken.push("it has neither a number nor a label: give it one".to_owned());
    }
    if let Some(label) = label {
        if label.len() > MAX_LABEL {
            broken.push(format!(
                "label {label:?} has {} bytes: the limit is {MAX_LABEL}",
                label.len()
            ));
        }
        if label.contains(':') {
            broken.push(format!("label {label:?} has a colon: leave it out"));
        }
    }
    for key in ["guid", "typeGuid"] {
        if let Some(guid) = filled(partition, key).filter(|guid| !is_guid(guid)) {
            broken.push(format!(
                "{key} {guid:?} is not a GUID: write it as 01234567-89ab-cdef-0123-456789abcdef"
            ));
        }
    }
    broken
}

fn is_guid(text: &str) -> bool {
    let groups: Vec<_> = text.split('-').collect();
    let lengths: Vec<_> = groups.iter().map(|group| group.len()).collect();
    let is_hex = |group: &&str| group.bytes().all(|it| it.is_ascii_hexdigit());
    lengths == [8, 4, 4, 4, 12] && groups.iter().all(is_hex)
}

/// Two of which is said where they are, and that is the same place.
fn overlapping<'n, 'a>(partitions: &'n [Node<'a>]) -> Option<(&'n Node<'a>, &'n Node<'a>)> {
    let placed: Vec<_> = partitions
        .iter()
        .filter_map(|it| {
            let start = it.integer("startMiB").filter(|start| *start != 0)?;
            let size = it.integer("sizeMiB")?;
            // What takes all that is left is known to take its first part.
            let end = if size == 0 { start } else { start + size - 1 };
            Some((it, start, end))
        })
        .collect();
    placed
        .iter()
        .enumerate()
        .find_map(|(index, (one, from, to))| {
            let mut others = placed.iter().skip(index + 1);
            let meets = others.find(|(_, start, end)| start <= to && from <= end);
            meets.map(|(other, _, _)| (*one, *other))
        })
}

pub(super) fn raid(raid: &Node<'_>) -> Vec<Broken> {
    let mut broken = Vec::new();
    let spares = raid.integer("spares").unwrap_or_default();
    match filled(raid, "level") {
        None => broken.push(("level", "level is missing: write raid1, for example".to_owned())),
        Some(level @ ("linear" | "raid0" | "0" | "stripe")) if spares != 0 => {
            broken.push(("spares", format!("level {level} has no spares: remove them")));
        }
        Some(
            "linear" | "raid0" | "0" | "stripe" | "raid1" | "1" | "mirror" | "raid4" | "4"
            | "raid5" | "5" | "raid6" | "6" | "raid10" | "10",
        ) => {}
        Some(level) => broken.push((
            "level",
            format!("level {level:?} is unknown: use linear, raid0, raid1, raid4, raid5, raid6 or raid10"),
        )),
    }
    if raid.list("devices").is_empty() {
        broken.push((
            "devices",
            "devices is empty: name those it is made of".to_owned(),
        ));
    }
    broken
}
