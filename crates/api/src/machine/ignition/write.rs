//! The normal form written down again: as a `MachineConfig`, or as bare Ignition where nothing else
//! is said. Reading it back gives an equal value.

use serde_json::{Map, Value as Json, json};

use super::{Spec, data_url};
use crate::located::Node;
use crate::machine::machine_config::{File, MachineConfig, Owner, Unit};
use crate::names::{annotation, group};
use crate::problem::{At, Findings};
use crate::shape;

/// The versions we write, in order of preference: 2.2 only for what 3.x has no words for.
const WRITTEN: [Spec; 3] = [Spec::Three(4), Spec::Three(5), Spec::TwoTwo];

impl MachineConfig {
    /// This configuration as an Ignition config: what it says about the machine itself.
    pub fn to_ignition(&self) -> Json {
        let fitting = WRITTEN.into_iter().find(|spec| self.fits(*spec));
        let spec = fitting.unwrap_or(WRITTEN[0]);
        let mut config = self.others(spec);
        let files = self.files.iter();
        let files = files.map(|(path, file)| file_entry(path, file, spec));
        put_list(&mut config, "storage", "files", files.collect());
        let units = self.units.iter();
        put_list(
            &mut config,
            "systemd",
            "units",
            units.map(unit_entry).collect(),
        );
        Json::Object(config)
    }

    /// This configuration as an object that `kubectl apply` takes; bare Ignition if it has no name
    /// and says nothing beyond.
    pub fn to_document(&self) -> Json {
        let ignition = self.to_ignition();
        let mut spec = self.spec_fields();
        if self.name.is_none() && spec.is_empty() && self.disruption_policy.is_empty() {
            return ignition;
        }
        spec.insert("config".to_owned(), ignition);
        let mut metadata = self
            .name
            .as_ref()
            .map_or(json!({}), |name| json!({"name": name}));
        if !self.disruption_policy.is_empty() {
            let policy = self.disruption_policy.to_json().to_string();
            metadata["annotations"] = json!({ annotation::DISRUPTION_POLICY: policy });
        }
        json!({
            "apiVersion": format!("{}/v1", group::MACHINE_CONFIGURATION),
            "kind": "MachineConfig",
            "metadata": metadata,
            "spec": spec,
        })
    }

    /// The same as YAML text.
    pub fn to_yaml(&self) -> String {
        let document = self.to_document();
        // JSON is YAML too: should a value have no YAML form, the text is still right.
        // One line stays one line: a data URL is copied and compared, not read.
        let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
        serde_saphyr::to_string_with_options(&document, options)
            .unwrap_or_else(|_| document.to_string())
    }

    fn spec_fields(&self) -> Map<String, Json> {
        let mut spec = Map::new();
        if !self.os_image_url.is_empty() {
            spec.insert("osImageURL".to_owned(), json!(self.os_image_url));
        }
        if !self.kernel_arguments.is_empty() {
            spec.insert("kernelArguments".to_owned(), json!(self.kernel_arguments));
        }
        for (section, value) in &self.unsupported {
            if let Some(field) = section.name.strip_prefix("spec.") {
                spec.insert(field.to_owned(), value.clone());
            }
        }
        spec
    }

    /// Whether what we do not do ourselves can be said in this version.
    fn fits(&self, spec: Spec) -> bool {
        let config = Json::Object(self.others(spec));
        let mut findings = Findings::of("");
        let node = Node::from_json(&config);
        shape::check(
            &node,
            spec.keys(),
            spec.minor(),
            &At::top(None),
            &mut findings,
        );
        findings.count() == 0
    }

    /// Everything but files and units.
    fn others(&self, spec: Spec) -> Map<String, Json> {
        let mut config = Map::new();
        config.insert("ignition".to_owned(), json!({"version": spec.to_string()}));
        let mut users = Vec::new();
        if !self.ssh_keys.is_empty() {
            users.push(json!({"name": "core", "sshAuthorizedKeys": self.ssh_keys}));
        }
        for (section, value) in &self.unsupported {
            let mut value = value.clone();
            match section.name.split_once('.') {
                Some(("spec", _)) => {}
                Some(("passwd", "users")) => match (section.identity.as_str(), users.first_mut()) {
                    ("core", Some(Json::Object(core))) if !self.ssh_keys.is_empty() => {
                        core.extend(value.as_object().cloned().unwrap_or_default());
                    }
                    _ => users.push(value),
                },
                Some(("ignition", key)) => {
                    if let Some(ignition) = config.get_mut("ignition").and_then(Json::as_object_mut)
                    {
                        ignition.insert(key.to_owned(), value);
                    }
                }
                Some((parent, key)) => {
                    let on_filesystem = matches!(key, "directories" | "links");
                    if let (Spec::TwoTwo, true, Some(entries)) =
                        (spec, on_filesystem, value.as_object_mut())
                    {
                        entries.entry("filesystem").or_insert_with(|| json!("root"));
                    }
                    put(&mut config, parent, key, value);
                }
                None => {
                    config.insert(section.name.clone(), value);
                }
            }
        }
        put_list(&mut config, "passwd", "users", users);
        config
    }
}

fn put(config: &mut Map<String, Json>, parent: &str, key: &str, value: Json) {
    let section = config.entry(parent).or_insert_with(|| json!({}));
    if let Some(section) = section.as_object_mut()
        && let Some(list) = section
            .entry(key)
            .or_insert_with(|| json!([]))
            .as_array_mut()
    {
        list.push(value);
    }
}

fn put_list(config: &mut Map<String, Json>, parent: &str, key: &str, values: Vec<Json>) {
    for value in values {
        put(config, parent, key, value);
    }
}

fn file_entry(path: &str, file: &File, spec: Spec) -> Json {
    let mut entry = Map::new();
    entry.insert("path".to_owned(), json!(path));
    entry.insert("mode".to_owned(), json!(file.mode));
    entry.insert("overwrite".to_owned(), json!(true));
    entry.insert(
        "contents".to_owned(),
        json!({"source": data_url::encode(&file.contents)}),
    );
    for (key, owner) in [("user", &file.user), ("group", &file.group)] {
        let owner = match owner {
            Owner::Id(0) => continue,
            Owner::Id(id) => json!({"id": id}),
            Owner::Name(name) => json!({"name": name}),
        };
        entry.insert(key.to_owned(), owner);
    }
    if spec == Spec::TwoTwo {
        entry.insert("filesystem".to_owned(), json!("root"));
    }
    Json::Object(entry)
}

fn unit_entry((name, unit): (&String, &Unit)) -> Json {
    let mut entry = Map::new();
    entry.insert("name".to_owned(), json!(name));
    if let Some(contents) = &unit.contents {
        entry.insert("contents".to_owned(), json!(contents));
    }
    if let Some(enabled) = unit.enabled {
        entry.insert("enabled".to_owned(), json!(enabled));
    }
    if unit.masked {
        entry.insert("mask".to_owned(), json!(true));
    }
    if !unit.drop_ins.is_empty() {
        let drop_ins = unit.drop_ins.iter();
        let drop_ins = drop_ins.map(|(name, contents)| json!({"name": name, "contents": contents}));
        entry.insert("dropins".to_owned(), drop_ins.collect());
    }
    Json::Object(entry)
}
