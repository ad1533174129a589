//! `storage.files`: contents, mode and owner of every regular file, with defaults filled in.

use std::collections::BTreeMap;

use super::Spec;
use super::data_url::{self, Allowance};
use super::paths::{self, Taken};
use crate::located::Node;
use crate::machine::machine_config::{File, Owner};
use crate::problem::{At, Findings};

const HIGHEST_MODE: u32 = 0o7777;

/// Modes that people write in octal; as decimal numbers they are never meant.
const OCTAL_LOOKALIKES: [i128; 16] = [
    400, 440, 444, 500, 555, 600, 640, 644, 660, 664, 666, 700, 750, 755, 775, 777,
];

pub(super) fn read(
    node: &Node<'_>,
    spec: Spec,
    at: &At<'_>,
    taken: &mut Taken,
    findings: &mut Findings,
) -> BTreeMap<String, File> {
    let mut files = BTreeMap::new();
    let Some(storage) = node.get("storage") else {
        return files;
    };
    let mut allowance = Allowance::default();
    let section = at.key("storage", storage.line);
    let list = section.key("files", storage.line);
    for (index, item) in storage.list("files").iter().enumerate() {
        let Some(path) = item.text("path") else {
            continue;
        };
        let here = list.index(index, item.line).called(path);
        let field = |key: &'static str| {
            let line = item.get(key).map_or(item.line, |value| value.line);
            here.key(key, line)
        };
        let mut refuse =
            |key: &'static str, message: String| findings.problem(&field(key), message);
        if let Err(message) = paths::judge(path).and_then(|()| taken.claim(path, "storage.files")) {
            refuse("path", message);
        }
        if spec == Spec::TwoTwo
            && let Some(filesystem) = item.text("filesystem")
            && filesystem != "root"
        {
            refuse(
                "filesystem",
                format!("filesystem {filesystem:?} is not supported: use root"),
            );
        }
        if !item.list("append").is_empty() || item.flag("append") == Some(true) {
            refuse(
                "append",
                "append is not supported: give the whole contents".to_owned(),
            );
        }
        let mode = mode(item).unwrap_or_else(|message| {
            refuse("mode", message);
            File::DEFAULT_MODE
        });
        let mut owner = |key: &'static str| {
            owner(item, key).unwrap_or_else(|message| {
                refuse(key, message);
                Owner::default()
            })
        };
        let (user, group) = (owner("user"), owner("group"));
        let contents = contents(item, &mut allowance).unwrap_or_else(|message| {
            refuse("contents", message);
            Vec::new()
        });
        if let Some(mode) = item
            .integer("mode")
            .filter(|mode| OCTAL_LOOKALIKES.contains(mode))
        {
            let message = format!(
                "mode {mode} is decimal, which is {mode:#o}: did you mean 0{mode}, in JSON {}?",
                i128::from_str_radix(&mode.to_string(), 8).unwrap_or_default()
            );
            findings.warning(&field("mode"), message);
        }
        files.insert(
            path.to_owned(),
            File {
                contents,
                mode,
                user,
                group,
            },
        );
    }
    files
}

fn mode(item: &Node<'_>) -> Result<u32, String> {
    let Some(mode) = item.integer("mode") else {
        return Ok(File::DEFAULT_MODE);
    };
    let cure = "give permission bits only";
    if mode < 0 {
        return Err(format!("mode {mode} is negative: {cure}"));
    }
    match u32::try_from(mode) {
        Ok(bits) if bits <= HIGHEST_MODE => Ok(bits),
        _ => Err(format!("mode {mode:#o} is above 07777: {cure}")),
    }
}

/// Root is number 0 everywhere, so its name is no difference.
fn owner(item: &Node<'_>, key: &str) -> Result<Owner, String> {
    let Some(owner) = item.get(key) else {
        return Ok(Owner::default());
    };
    let name = owner.text("name").filter(|name| !name.is_empty());
    match (owner.integer("id"), name) {
        (Some(_), Some(name)) => Err(format!(
            "{key} has both id and name {name:?}: give one of them"
        )),
        (Some(id), None) => match u32::try_from(id) {
            Ok(id) if id < u32::MAX => Ok(Owner::Id(id)),
            _ => Err(format!(
                "{key}.id {id} is not a valid {key} ID: use 0 to {}",
                u32::MAX - 1
            )),
        },
        (None, None | Some("root")) => Ok(Owner::default()),
        (None, Some(name)) => Ok(Owner::Name(name.to_owned())),
    }
}

fn contents(item: &Node<'_>, allowance: &mut Allowance) -> Result<Vec<u8>, String> {
    let contents = item.get("contents");
    let text = |key: &str| {
        contents
            .and_then(|contents| contents.text(key))
            .unwrap_or_default()
    };
    let verification = contents.and_then(|contents| contents.get("verification"));
    let hash = verification.and_then(|verification| verification.text("hash"));
    data_url::contents(
        text("source"),
        text("compression"),
        hash.unwrap_or_default(),
        allowance,
    )
}
