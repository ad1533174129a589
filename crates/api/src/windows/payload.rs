//! A payload: the folder with everything that a Windows instance gets, and its manifest, which seals every
//! file in it by checksum. Here are its layout, the manifest's text, and what does not agree with it.
//! Whoever opens the folder is elsewhere.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::located::Node;
use crate::machine::ignition::data_url::to_hex;
use crate::names::windows;
use crate::problem::{At, Findings, Problems};
use crate::shape::Shape::{List, Text};
use crate::shape::{self, keys};
use crate::windows::services::Template;
use crate::windows::version::Version;

pub use crate::windows::services::PayloadFile;

/// The manifest, in the payload's folder.
pub const MANIFEST: &str = "manifest.yaml";
/// The template of the services `ConfigMap`, in the payload's folder.
pub const TEMPLATE: &str = "services.yaml";
/// What every kubelet's configuration is made from, in the payload's folder.
pub const KUBELET: &str = "kubelet.yaml";
/// The folder in it whose contents are copied to [`windows::PAYLOAD`].
pub const FILES: &str = "files";
/// How a payload is sealed, for a sentence.
pub const SEAL: &str = "evenkeel-operator payload seal";

/// What we make ourselves, by path on the instance: no payload may bring it.
pub const DERIVED: [&str; 3] = [
    windows::KUBELET_CONFIG,
    windows::BOOTSTRAP_KUBECONFIG,
    windows::CLIENT_CA,
];

keys! {
    SHAPE { version: Text.required(), files: List(FILE).required() }
    FILE by "path" { path: Text.required(), checksum: Text.required() }
}

/// What a payload is sealed with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The version that instances with this payload run.
    pub version: Version,
    /// Every file of the folder but the manifest itself, by its path there, with `/`.
    pub files: Vec<PayloadFile>,
}

/// The SHA-256 of `contents`, as manifests and services ConfigMaps have it.
pub fn checksum(contents: &[u8]) -> String {
    to_hex(&Sha256::digest(contents))
}

/// The text of a finished digest, as [`checksum`] writes it.
pub fn written(digest: Sha256) -> String {
    to_hex(&digest.finalize())
}

/// Where a file of the payload's folder is on an instance; nowhere if it is not copied.
pub fn on_instance(path: &str) -> Option<String> {
    let below = path.strip_prefix(FILES)?.strip_prefix('/')?;
    Some(format!("{}{}", windows::PAYLOAD, below.replace('/', r"\")))
}

/// Reads the kubelet's settings that a payload brings, or says what is wrong with them.
fn judge_kubelet(text: &str) -> Result<serde_json::Map<String, serde_json::Value>, String> {
    let cure = "write a KubeletConfiguration";
    let settings: serde_json::Value =
        serde_saphyr::from_str(text).map_err(|error| format!("{KUBELET}: {error}: {cure}"))?;
    match settings {
        serde_json::Value::Object(settings)
            if settings.get("kind").and_then(|it| it.as_str()) == Some("KubeletConfiguration") =>
        {
            Ok(settings)
        }
        _ => Err(format!(
            "{KUBELET}: kind is not KubeletConfiguration: {cure}"
        )),
    }
}

/// A payload that is what was sealed, and that can be used.
#[derive(Debug, Clone, PartialEq)]
pub struct Opened {
    /// What it was sealed with.
    pub manifest: Manifest,
    /// The template of the services.
    pub template: Template,
    /// The kubelet's settings that it brings.
    pub kubelet: serde_json::Map<String, serde_json::Value>,
    /// What is most likely a mistake.
    pub warnings: Vec<String>,
}

/// Every file of a payload's folder but the manifest, by its path there. `list` says what is in a folder and what
/// of that is a folder (the top has no name), `sum` the checksum of a file. What begins with two dots is left
/// out: that is how a cluster mounts ConfigMaps.
pub fn gather<E>(
    list: impl Fn(&str) -> Result<Vec<(String, bool)>, E>,
    sum: impl Fn(&str) -> Result<String, E>,
) -> Result<Vec<PayloadFile>, E> {
    let mut files = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for (name, is_folder) in list(&folder)? {
            let path = format!("{folder}{name}");
            if name.starts_with("..") || path == MANIFEST {
                continue;
            }
            if is_folder {
                folders.push(format!("{path}/"));
            } else {
                let checksum = sum(&path)?;
                files.push(PayloadFile { path, checksum });
            }
        }
    }
    Ok(files)
}

/// Judges a payload by its manifest and the files `found` in its folder; `text` reads one of them. Says
/// everything that is wrong with it, each with its file.
pub fn open(
    found: &[PayloadFile],
    text: impl Fn(&str) -> Result<String, String>,
) -> Result<Opened, Vec<String>> {
    let all = |problems: Problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>();
    let read = |name: &str| text(name).map_err(|error| vec![format!("{name}: {error}")]);
    let manifest = Manifest::read(MANIFEST, &read(MANIFEST)?).map_err(all)?;
    let differences = manifest.differences(found);
    if !differences.is_empty() {
        return Err(differences);
    }
    let (template, kubelet, warnings) = templates(read)?;
    let lacks = manifest.lacks(&template);
    if !lacks.is_empty() {
        return Err(lacks);
    }
    Ok(Opened {
        manifest,
        template,
        kubelet,
        warnings,
    })
}

/// The manifest of a folder with the files `found`, if it can be used; `text` reads one of them. Else
/// everything for which it may not be sealed.
pub fn seal(
    version: Version,
    found: Vec<PayloadFile>,
    text: impl Fn(&str) -> Result<String, String>,
) -> Result<Manifest, Vec<String>> {
    let manifest = Manifest::seal(version, found)?;
    let read = |name: &str| text(name).map_err(|error| vec![format!("{name}: {error}")]);
    let (template, ..) = templates(read)?;
    let lacks = manifest.lacks(&template);
    if lacks.is_empty() {
        Ok(manifest)
    } else {
        Err(lacks)
    }
}

type Templates = (
    Template,
    serde_json::Map<String, serde_json::Value>,
    Vec<String>,
);

fn templates(read: impl Fn(&str) -> Result<String, Vec<String>>) -> Result<Templates, Vec<String>> {
    let (template, warnings) = Template::read(TEMPLATE, &read(TEMPLATE)?)
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    let kubelet = judge_kubelet(&read(KUBELET)?).map_err(|problem| vec![problem])?;
    let warnings = warnings.iter().map(ToString::to_string).collect();
    Ok((template, kubelet, warnings))
}

impl Manifest {
    /// Reads a manifest. `source` is what problems call it.
    pub fn read(source: &str, text: &str) -> Result<Self, Problems> {
        let mut findings = Findings::of(source);
        let top = At::top(None);
        let nodes = match Node::parse_all(text) {
            Ok(nodes) => nodes,
            Err(malformed) => {
                findings.problem(&At::top(malformed.line), malformed.message);
                return Err(findings.refused());
            }
        };
        let [node] = nodes.as_slice() else {
            findings.problem(&top, format!("not a manifest: run `{SEAL}`"));
            return Err(findings.refused());
        };
        match read_manifest(node, &mut findings) {
            Some(manifest) => findings.finish(manifest).map(|(manifest, _)| manifest),
            None => Err(findings.refused()),
        }
    }

    /// The manifest of a folder with the files `found`, or everything for which it may not be sealed.
    pub fn seal(version: Version, mut found: Vec<PayloadFile>) -> Result<Self, Vec<String>> {
        found.sort_by(|one, other| one.path.cmp(&other.path));
        let mut problems = Vec::new();
        let mut taken: BTreeMap<String, &str> = BTreeMap::new();
        for file in &found {
            let path = file.path.as_str();
            if let Some(problem) = judge(path) {
                problems.push(format!("{path}: {problem}"));
            }
            if let Some(other) = taken.insert(path.to_lowercase(), path) {
                problems.push(format!(
                    "{path}: on Windows this is the same file as {other}: keep one"
                ));
            }
        }
        let agent = format!("{FILES}/evenkeel-agent.exe");
        for (path, what) in [
            (TEMPLATE, "the template of the services"),
            (KUBELET, "the kubelet's configuration"),
            (agent.as_str(), "the agent for Windows"),
        ] {
            if !found.iter().any(|file| file.path == path) {
                problems.push(format!("{path}: {what} is missing: add it"));
            }
        }
        if problems.is_empty() {
            let files = found;
            Ok(Self { version, files })
        } else {
            Err(problems)
        }
    }

    /// Its text.
    pub fn text(&self) -> String {
        let mut text = format!(
            "# Seals every file of this folder. Made by `{SEAL}`: after a change, run it again.\n\
             version: {}\nfiles:\n",
            self.version
        );
        for file in &self.files {
            let path = serde_json::Value::from(file.path.as_str());
            let _ = writeln!(text, "- path: {path}\n  checksum: {}", file.checksum);
        }
        text
    }

    /// Everything in which a folder with the files `found` is not what was sealed.
    pub fn differences(&self, found: &[PayloadFile]) -> Vec<String> {
        let again = format!("or seal the payload again with `{SEAL}`");
        let sums = |files: &[PayloadFile]| -> BTreeMap<String, String> {
            let pairs = files
                .iter()
                .map(|it| (it.path.clone(), it.checksum.clone()));
            pairs.collect()
        };
        let (sealed, found) = (sums(&self.files), sums(found));
        let mut differences = Vec::new();
        for (path, checksum) in &sealed {
            match found.get(path) {
                Some(other) if other == checksum => {}
                Some(_) => differences.push(format!(
                    "{path}: differs from the sealed file: restore it, {again}"
                )),
                None => differences.push(format!("{path}: missing: restore it, {again}")),
            }
        }
        for path in found.keys().filter(|path| !sealed.contains_key(*path)) {
            differences.push(format!("{path}: not sealed: remove it, {again}"));
        }
        differences
    }

    /// The files that are copied, by path on the instance, with their paths here.
    pub fn copied(&self) -> impl Iterator<Item = (String, &PayloadFile)> {
        let copied = |file: &PayloadFile| on_instance(&file.path);
        self.files
            .iter()
            .filter_map(move |file| Some((copied(file)?, file)))
    }

    /// Files that the services of `template` need and that neither this payload nor we ourselves bring.
    pub fn lacks(&self, template: &Template) -> Vec<String> {
        let brought: Vec<String> = self
            .copied()
            .map(|(path, _)| path)
            .chain(DERIVED.map(str::to_owned))
            .map(|path| path.to_lowercase())
            .collect();
        let needs = template.needs(windows::PAYLOAD).into_iter();
        let mut lacks: Vec<String> = needs
            .filter(|(_, path)| !brought.contains(&path.to_lowercase()))
            .map(|(service, path)| {
                let below = path.get(windows::PAYLOAD.len()..).unwrap_or_default();
                let here = format!("{FILES}/{}", below.replace('\\', "/"));
                format!("{here}: missing, and service {service} needs it as {path}: add it")
            })
            .collect();
        lacks.sort();
        lacks.dedup();
        lacks
    }
}

fn read_manifest(node: &Node<'_>, findings: &mut Findings) -> Option<Manifest> {
    let at = At::top(Some(node.line));
    shape::check(node, &SHAPE, 0, &at, findings);
    let line = node.get("version").map_or(node.line, |it| it.line);
    let version = node
        .text("version")?
        .parse::<Version>()
        .map_err(|error| findings.problem(&at.key("version", line), error.to_string()))
        .ok()?;
    let files = node.list("files").iter().map(|item| PayloadFile {
        path: item.text("path").unwrap_or_default().to_owned(),
        checksum: item.text("checksum").unwrap_or_default().to_owned(),
    });
    Some(Manifest {
        version,
        files: files.collect(),
    })
}

/// What is wrong with a file of this path in a payload.
fn judge(path: &str) -> Option<String> {
    let Some(target) = on_instance(path) else {
        let known = [TEMPLATE, KUBELET].contains(&path) || is_note(path);
        return (!known).then(|| {
            format!(
                "no program reads this file: move it below {FILES}/ so that it is copied, or remove it"
            )
        });
    };
    let lower = target.to_lowercase();
    if DERIVED.iter().any(|it| it.to_lowercase() == lower) {
        return Some("Evenkeel generates this file: remove it".to_owned());
    }
    for (own, what) in [
        (windows::STORE, "the store of copies"),
        (windows::OWN_STATE, "the agent's state"),
    ] {
        if lower.starts_with(&own.to_lowercase()) {
            return Some(format!("{own} is {what}: choose another directory"));
        }
    }
    path.split('/').find_map(judge_name)
}

/// A text for people next to the rest.
fn is_note(path: &str) -> bool {
    path.rsplit_once('.')
        .is_some_and(|(name, ending)| ending == "md" && !name.contains('/'))
}

fn judge_name(name: &str) -> Option<String> {
    let stem = name.split('.').next().unwrap_or_default();
    let stem = stem.to_ascii_uppercase();
    let numbered = |prefix: &str| {
        stem.strip_prefix(prefix)
            .is_some_and(|rest| matches!(rest.as_bytes(), [b'1'..=b'9']))
    };
    let device =
        ["CON", "PRN", "AUX", "NUL"].contains(&stem.as_str()) || numbered("COM") || numbered("LPT");
    let odd = name.contains(['<', '>', ':', '"', '\\', '|', '?', '*'])
        || name.chars().any(char::is_control)
        || name.ends_with(['.', ' ']);
    (device || odd).then(|| format!("Windows does not allow the name {name:?}: choose another"))
}
