//! A pool's MachineConfigs, from their texts to the one object that nodes are told: or why that
//! cannot be.

use evenkeel_api::Problems;
use evenkeel_api::document::{self, Document};
use evenkeel_api::machine::disruption_policy::DisruptionPolicy;
use evenkeel_api::machine::fragment::Fragment;
use evenkeel_api::machine::machine_config::MachineConfig;
use serde_json::Value;

use super::{Conflict, merge, name};

/// The largest rendered configuration: etcd takes 1.5 MiB, and the object has more than its contents.
pub const LIMIT: usize = 14 * 1024 * 1024 / 10;
/// How many files are named when it is larger.
const LARGEST: usize = 5;

/// A rendered configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Rendered {
    /// It, with its name.
    pub config: MachineConfig,
    /// The same as an object.
    pub document: Value,
    /// The names of those that it was made from, in order.
    pub sources: Vec<String>,
}

impl Rendered {
    /// The same, whose changes need what `policy` says around them.
    #[must_use]
    pub fn under(mut self, policy: DisruptionPolicy) -> Self {
        self.config.disruption_policy = policy;
        self.document = self.config.to_document();
        self
    }
}

/// Why a pool's configuration cannot be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderProblem {
    /// In one word.
    pub category: &'static str,
    /// For people.
    pub note: String,
}

impl RenderProblem {
    /// A category with its words.
    pub fn new(category: &'static str, note: impl Into<String>) -> Self {
        Self {
            category,
            note: note.into(),
        }
    }
}

/// Renders the configuration of `pool` from the names and texts of its MachineConfigs.
pub fn render(pool: &str, sources: &[(String, String)]) -> Result<Rendered, RenderProblem> {
    let configs = fragments(sources)?;
    if configs.is_empty() {
        return Err(RenderProblem::new(
            "NoMachineConfigs",
            "spec.machineConfigSelector selects no MachineConfig: a pool needs at least one",
        ));
    }
    let mut names: Vec<_> = sources.iter().map(|(name, _)| name.clone()).collect();
    names.sort();
    let conflict = |conflict: Conflict| RenderProblem::new("ImpossibleMerge", conflict.to_string());
    let mut config = merge(configs).map_err(conflict)?;
    config.name = Some(name(pool, &config));
    let document = config.to_document();
    let text = document.to_string();
    if text.len() > LIMIT {
        return Err(too_large(&document, text.len()));
    }
    // What one version of Ignition has words for, another may not have; and what is fine one by one may break a rule together.
    if reads_as(&text, &config) {
        return Ok(Rendered {
            config,
            document,
            sources: names,
        });
    }
    Err(conflict(at_odds(&fragments(sources)?, &text)))
}

/// The MachineConfigs with their sources, or everything that is wrong with them.
fn fragments(sources: &[(String, String)]) -> Result<Vec<(String, Fragment)>, RenderProblem> {
    let mut configs = Vec::new();
    let mut invalid = Vec::new();
    for (name, text) in sources {
        let place = format!("MachineConfig {name}");
        match document::fragments(&place, text.as_bytes()) {
            Ok(found) => configs.extend(found.into_iter().map(|it| (place.clone(), it))),
            Err(problems) => invalid.push(problems.to_string()),
        }
    }
    if invalid.is_empty() {
        Ok(configs)
    } else {
        Err(RenderProblem::new(Problems::CATEGORY, invalid.join("; ")))
    }
}

/// Whether `text` says what `config` does.
fn reads_as(text: &str, config: &MachineConfig) -> bool {
    document::read("", text.as_bytes()).is_ok_and(|(documents, _)| {
        matches!(documents.as_slice(), [Document::MachineConfig(again)] if again == config)
    })
}

/// The two that break a rule together, or whose sections no version of Ignition has words for; `text` is what was made of all.
fn at_odds(configs: &[(String, Fragment)], text: &str) -> Conflict {
    let together = |some: &[&(String, Fragment)]| merge(some.iter().copied().cloned().collect());
    let is_well = |pair: &[&(String, Fragment)]| {
        together(pair).is_ok_and(|merged| reads_as(&merged.to_document().to_string(), &merged))
    };
    // What is not ours is a part of it.
    let has_more = |it: &(String, Fragment)| {
        together(&[it]).is_ok_and(|config| !config.unsupported.is_empty())
    };
    let with_others: Vec<_> = configs.iter().filter(|it| has_more(it)).collect();
    let mut pairs = with_others
        .iter()
        .flat_map(|one| configs.iter().map(move |other| [*one, other]))
        .filter(|[one, other]| !std::ptr::eq(*one, *other));
    let sources = match pairs.find(|pair| !is_well(pair)) {
        Some([(one, _), (other, _)]) => {
            let mut both = [one.clone(), other.clone()];
            both.sort();
            both
        }
        None => [String::from("one MachineConfig"), String::from("another")],
    };
    let versions = configs.iter().map(|(_, config)| config.is_of_two());
    let is_mixed = versions.clone().any(|it| it) && !versions.clone().all(|it| it);
    let problems = document::read("", text.as_bytes()).err();
    let broken = problems.as_ref().and_then(|it| it.iter().next());
    let what = match broken.filter(|_| !is_mixed) {
        Some(rule) => {
            let place = &rule.place;
            format!("{} {}: {}", place.section(), place.identity, rule.message)
        }
        None => {
            "no version of Ignition supports the sections of both: write both for the same version"
                .to_owned()
        }
    };
    Conflict { what, sources }
}

fn too_large(document: &Value, size: usize) -> RenderProblem {
    let files = document["spec"]["config"]["storage"]["files"].as_array();
    let files = files.or(document["storage"]["files"].as_array());
    let mut sizes: Vec<_> = files
        .into_iter()
        .flatten()
        .map(|file| {
            let source = file["contents"]["source"].as_str().unwrap_or_default();
            (source.len(), file["path"].as_str().unwrap_or_default())
        })
        .collect();
    sizes.sort_by(|one, other| other.cmp(one));
    let named: Vec<_> = sizes
        .iter()
        .take(LARGEST)
        .map(|(size, path)| format!("{path} ({})", in_kib(*size)))
        .collect();
    let note = format!(
        "the rendered configuration has {}, more than the limit of {}: make files smaller, or deliver them another way; the largest are {}",
        in_kib(size),
        in_kib(LIMIT),
        named.join(", ")
    );
    RenderProblem::new("TooLarge", note)
}

fn in_kib(bytes: usize) -> String {
    format!("{} KiB", bytes.div_ceil(1024))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Covers O09.
    #[test]
    fn a_policy_travels_with_a_configuration_and_changes_neither_name_nor_content() {
        let object = json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
            "metadata": { "name": "a" },
            "spec": { "config": { "ignition": { "version": "3.2.0" } }, "osImageURL": "os:1" },
        });
        let source = [("a".to_owned(), object.to_string())];
        let plain = render("web", &source).unwrap();
        let policy = "{files: [{path: /etc/a, actions: [{type: Drain}]}], sshkey: {actions: [{type: Reboot}]}}";
        let (policy, problems) = DisruptionPolicy::parse(policy);
        assert_eq!(problems, []);
        let under = plain.clone().under(policy.clone());
        assert_eq!(under.config.name, plain.config.name);
        assert_eq!(name("web", &under.config), name("web", &plain.config));
        assert_eq!(under.document["spec"], plain.document["spec"]);
        assert!(reads_as(&under.document.to_string(), &under.config));
        assert!(!reads_as(&plain.document.to_string(), &under.config));
        let again = under.under(DisruptionPolicy::default());
        assert_eq!(again, plain);
    }

    fn source(name: &str, config: &Value) -> (String, String) {
        let object = json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
            "metadata": { "name": name }, "spec": { "config": config },
        });
        (name.to_owned(), object.to_string())
    }

    fn file(version: &str, path: &str, contents: &str) -> Value {
        let mut file =
            json!({ "path": path, "contents": { "source": format!("data:,{contents}") } });
        if version.starts_with('2') {
            file["filesystem"] = json!("root");
        }
        json!({ "ignition": { "version": version }, "storage": { "files": [file] } })
    }

    fn problem(sources: &[(String, String)]) -> String {
        let problem = render("worker", sources).unwrap_err();
        format!("{}: {}", problem.category, problem.note)
    }

    /// Covers M02.
    #[test]
    fn what_is_written_for_ignition_2_2_is_rendered_as_3_x() {
        let sources = [
            source("10-new", &file("3.2.0", "/b", "b")),
            source("00-old", &file("2.2.0", "/a", "a")),
        ];
        let rendered = render("worker", &sources).unwrap();
        assert_eq!(
            rendered.document["spec"]["config"]["ignition"]["version"],
            "3.4.0"
        );
        assert_eq!(rendered.sources, ["00-old", "10-new"]);
        assert_eq!(rendered.config.files.len(), 2);
        let name = rendered.config.name.clone().unwrap();
        assert!(name.starts_with("rendered-worker-"), "{name}");
        // In whatever order they come, and from whatever version they were translated.
        let same = [
            source("00-old", &file("3.0.0", "/a", "a")),
            source("10-new", &file("3.2.0", "/b", "b")),
        ];
        assert_eq!(render("worker", &same).unwrap().config.name, Some(name));
    }

    #[test]
    fn what_cannot_be_rendered_names_its_sources_and_the_place() {
        let broken = source(
            "99-broken",
            &json!({ "ignition": { "version": "3.2.0" }, "storage": { "fles": [] } }),
        );
        let fine = source("00-fine", &file("3.2.0", "/a", ""));
        let said = problem(&[fine.clone(), broken]);
        assert!(
            said.starts_with("InvalidConfig: MachineConfig 99-broken: "),
            "{said}"
        );
        assert!(
            said.contains("\"fles\" (did you mean \"files\"?)"),
            "{said}"
        );
        let below = source("50-below", &file("3.2.0", "/a/b", ""));
        assert_eq!(
            problem(&[below, fine]),
            "ImpossibleMerge: MachineConfig 00-fine and MachineConfig 50-below cannot be merged: \
             storage.files /a/b is below storage.files /a"
        );
        assert!(problem(&[]).starts_with("NoMachineConfigs: "));
        let link = json!({
            "ignition": { "version": "3.2.0" }, "storage": { "links": [{ "path": "/l", "target": "/y" }] },
        });
        let said = problem(&[
            source("00-fine", &file("3.2.0", "/l/b", "")),
            source("50-link", &link),
            source("c", &file("3.2.0", "/c", "")),
        ]);
        assert_eq!(
            said,
            "ImpossibleMerge: MachineConfig 00-fine and MachineConfig 50-link cannot be merged: \
             storage.files /l/b: path is below /l, which is a link: name where it leads to"
        );
        // A file system of 2.2 has no words in 3.x, a kernel argument section of 3.3 none in 2.2.
        let old = json!({
            "ignition": { "version": "2.2.0" },
            "storage": { "filesystems": [{ "name": "data", "mount": { "device": "/dev/sdb", "format": "ext4" } }] },
        });
        let new = json!({
            "ignition": { "version": "3.3.0" },
            "kernelArguments": { "shouldExist": ["quiet"] },
        });
        let said = problem(&[
            source("a-old", &old),
            source("b-new", &new),
            source("c", &file("3.2.0", "/c", "")),
        ]);
        assert!(
            said.starts_with(
                "ImpossibleMerge: MachineConfig a-old and MachineConfig b-new cannot be merged"
            ),
            "{said}"
        );
    }

    #[test]
    fn what_is_too_large_is_said_with_its_size_and_its_five_largest_files() {
        let files: Vec<_> = (0..8)
            .map(|number| {
                source(
                    &format!("{number}"),
                    &file(
                        "3.2.0",
                        &format!("/f{number}"),
                        &"x".repeat(1024 * (100 + 40 * number)),
                    ),
                )
            })
            .collect();
        let said = problem(&files);
        assert!(
            said.starts_with("TooLarge: the rendered configuration has 2561 KiB"),
            "{said}"
        );
        assert!(said.contains("more than the limit of 1434 KiB"), "{said}");
        assert!(
            said.ends_with(
                "/f7 (507 KiB), /f6 (454 KiB), /f5 (401 KiB), /f4 (347 KiB), /f3 (294 KiB)"
            ),
            "{said}"
        );
        assert!(render("worker", &files[..5]).is_ok());
    }
}
