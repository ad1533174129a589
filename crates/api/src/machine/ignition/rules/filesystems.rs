//! File systems that Ignition makes.

use super::{Broken, filled, is_set, judge_path};
use crate::located::Node;

/// Formats, the minor version that brought each, and how long a label each may have.
const FORMATS: [(&str, u8, usize); 6] = [
    ("ext4", 0, 16),
    ("btrfs", 0, 256),
    ("xfs", 0, 12),
    ("swap", 0, 15),
    ("vfat", 0, 11),
    ("none", 3, usize::MAX),
];

pub(super) fn filesystem(node: &Node<'_>, minor: u8) -> Vec<Broken> {
    let mut broken = Vec::new();
    if let Err(message) = judge_path("device", node.text("device").unwrap_or_default()) {
        broken.push(("device", message));
    }
    if let Some(Err(message)) = filled(node, "path").map(|path| judge_path("path", path)) {
        broken.push(("path", message));
    }
    let Some(format) = filled(node, "format") else {
        let texts = ["path", "label", "uuid"].map(|key| filled(node, key).is_some());
        let lists = ["mountOptions", "options"].map(|key| !node.list(key).is_empty());
        if texts.contains(&true) || lists.contains(&true) || is_set(node, "wipeFilesystem") {
            broken.push((
                "format",
                "format is missing, and what is said beside it needs one: write ext4, for example"
                    .to_owned(),
            ));
        }
        return broken;
    };
    match FORMATS.iter().find(|(name, _, _)| *name == format) {
        Some((_, since, _)) if *since > minor => broken.push((
            "format",
            format!("format {format} needs Ignition 3.{since} or later: raise ignition.version"),
        )),
        Some((_, _, longest)) => {
            if let Some(label) = filled(node, "label").filter(|label| label.len() > *longest) {
                broken.push((
                    "label",
                    format!(
                        "label {label:?} has {} bytes: {format} takes at most {longest}",
                        label.len()
                    ),
                ));
            }
        }
        None => {
            let known = FORMATS.map(|(name, _, _)| name).join(", ");
            broken.push((
                "format",
                format!("format {format:?} is unknown: use one of {known}"),
            ));
        }
    }
    broken
}
