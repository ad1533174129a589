//! Several configurations become one: merged in the order of their names, and named by what they
//! say, so that the same input is the same rendered configuration on every run and machine.

mod claims;
mod in_use;
mod whole;

use std::fmt;

use evenkeel_api::machine::disruption_policy::DisruptionPolicy;
use evenkeel_api::machine::fragment::{self, Fragment};
use evenkeel_api::machine::machine_config::MachineConfig;

use crate::machine::entry::Hash;

use self::claims::PathClaims;
pub use self::in_use::{ConfigSnapshot, ConfigUsers};
pub use self::whole::{LIMIT, RenderProblem, Rendered, render};

/// Two configurations that cannot both hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// What they disagree about.
    pub what: String,
    /// Where both come from.
    pub sources: [String; 2],
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, other] = &self.sources;
        write!(f, "{one} and {other} cannot be merged: {}", self.what)
    }
}

impl std::error::Error for Conflict {}

/// Merges configurations, each with the name by which people know its source.
///
/// They are taken in the order of their own names, those without one first and as given, each over
/// those before it. What a higher one does not say is what the lower one said, field by field, as
/// Ignition merges.
pub fn merge(mut configs: Vec<(String, Fragment)>) -> Result<MachineConfig, Conflict> {
    configs.sort_by(|(_, one), (_, other)| one.name.cmp(&other.name));
    let mut claims = PathClaims::default();
    let mut fragments = Vec::new();
    for (source, fragment) in configs {
        claims.note(&source, &fragment);
        fragments.push(fragment);
    }
    let merged = fragment::merged(fragments).map_err(|problems| claims.blame(&problems))?;
    claims.check(&merged)?;
    Ok(merged)
}

/// The name of a rendered configuration of `pool`: it follows from what the configuration says.
pub fn name(pool: &str, config: &MachineConfig) -> String {
    let unnamed = MachineConfig {
        name: None,
        disruption_policy: DisruptionPolicy::default(),
        ..config.clone()
    };
    let hash = Hash::of(unnamed.to_document().to_string().as_bytes()).to_string();
    format!("rendered-{pool}-{}", &hash[..32])
}

#[cfg(test)]
mod tests {
    use evenkeel_api::document;
    use serde_json::{Value, json};

    use super::*;

    fn with(name: &str, mut sections: Value) -> (String, Fragment) {
        sections["ignition"] = json!({ "version": "3.2.0" });
        let object = json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
            "metadata": { "name": name }, "spec": { "config": sections },
        });
        let read = document::fragments(name, object.to_string().as_bytes());
        let fragment = read.ok().and_then(|mut all| all.pop()).unwrap();
        (format!("{name}.yaml"), fragment)
    }

    fn config(name: &str, files: &[(&str, &str)]) -> (String, Fragment) {
        let files = files.iter().map(|(path, text)| {
            json!({ "path": path, "contents": { "source": format!("data:,{text}") } })
        });
        with(
            name,
            json!({ "storage": { "files": files.collect::<Vec<_>>() } }),
        )
    }

    #[test]
    fn later_names_win_whatever_the_order_they_are_given_in() {
        let (a, b) = (
            config("00-a", &[("/x", "a"), ("/a", "a")]),
            config("99-b", &[("/x", "b")]),
        );
        let one = merge(vec![a.clone(), b.clone()]).unwrap();
        let other = merge(vec![b, a]).unwrap();
        assert_eq!(one, other);
        assert_eq!(one.files["/x"].contents, b"b");
        assert_eq!(one.files["/a"].contents, b"a");
        assert_eq!(name("worker", &one), name("worker", &other));
    }

    #[test]
    fn an_impossible_merge_names_both_sources() {
        let error = merge(vec![
            config("a", &[("/etc/x", "")]),
            config("b", &[("/etc/x/y", "")]),
        ])
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "a.yaml and b.yaml cannot be merged: storage.files /etc/x/y is below storage.files /etc/x"
        );
        // A unit is a file, too.
        let unit = |name: &str, fields: Value| {
            let mut unit = fields;
            unit["name"] = json!("x.service");
            with(name, json!({ "systemd": { "units": [unit] } }))
        };
        let file = || config("a", &[("/etc/systemd/system/x.service", "")]);
        let clash = "cannot be merged: /etc/systemd/system/x.service is in storage.files and in systemd.units";
        for taken in [json!({ "contents": "[Unit]" }), json!({ "mask": true })] {
            let error = merge(vec![file(), unit("b", taken)]).unwrap_err();
            assert_eq!(error.to_string(), format!("a.yaml and b.yaml {clash}"));
        }
        // Who only switches it on does not put it there.
        let error = merge(vec![
            file(),
            unit("b", json!({ "contents": "[Unit]" })),
            unit("c", json!({ "enabled": true })),
        ]);
        let error = error.unwrap_err();
        assert_eq!(error.to_string(), format!("a.yaml and b.yaml {clash}"));
        // And what a higher one takes away again is in nobody's way.
        let unmasked = [
            file(),
            unit("b", json!({ "mask": true })),
            unit("c", json!({ "mask": false })),
        ];
        assert!(merge(unmasked.into()).is_ok());
    }

    #[test]
    fn a_name_follows_from_the_content_alone() {
        let config = |name: &str, contents: &str| merge(vec![config(name, &[("/x", contents)])]);
        let one = config("a", "1").unwrap();
        let same = config("b", "1").unwrap();
        let other = config("a", "2").unwrap();
        assert_eq!(name("worker", &one), name("worker", &same));
        assert_ne!(name("worker", &one), name("worker", &other));
        assert!(name("worker", &one).starts_with("rendered-worker-"));
        assert_eq!(name("worker", &one).len(), "rendered-worker-".len() + 32);
    }
}
