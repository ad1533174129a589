//! What holds for every set of MachineConfigs: held against a model that knows nothing of how we merge.
//! It asks for each field who is the highest that says it.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::machine::machine_config::{File, MachineConfig, Owner, Unit};
use evenkeel_plan::fleet::render;
use evenkeel_plan::machine::entry::Hash;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

/// Sources with their compression, and what they stand for.
const SOURCES: &[(&str, Option<&str>, &str)] = &[
    ("data:,one", None, "one"),
    ("data:,two", Some(""), "two"),
    ("data:;base64,aGVsbG8=", None, "hello"),
    (
        "data:;base64,H4sIAAAAAAAAA8tIzcnJBwCGphA2BQAAAA==",
        Some("gzip"),
        "hello",
    ),
    ("", None, ""),
];

#[derive(Debug, Clone, Default)]
struct FileFields {
    source: Option<usize>,
    is_checked: bool,
    mode: Option<u32>,
    user_id: Option<u32>,
    user_name: Option<&'static str>,
    group_id: Option<u32>,
}

#[derive(Debug, Clone, Default)]
struct UnitFields {
    contents: Option<&'static str>,
    enabled: Option<bool>,
    mask: Option<bool>,
    drop_ins: BTreeMap<&'static str, Option<&'static str>>,
}

/// What one MachineConfig says.
#[derive(Debug, Clone, Default)]
struct Layer {
    files: BTreeMap<&'static str, FileFields>,
    units: BTreeMap<&'static str, UnitFields>,
    keys: Option<BTreeSet<&'static str>>,
    arguments: BTreeSet<&'static str>,
    image: Option<&'static str>,
}

fn any_file() -> impl Strategy<Value = FileFields> {
    (
        option::of(0..SOURCES.len()),
        prop::bool::weighted(0.1),
        option::of(select(vec![0o600, 0o644, 0o4755_u32])),
        option::of(0..2_u32),
        prop::option::weighted(0.1, select(vec!["app", "root"])),
        option::of(0..2_u32),
    )
        .prop_map(
            |(source, is_checked, mode, user_id, user_name, group_id)| FileFields {
                source,
                is_checked,
                mode,
                user_id: user_id.filter(|_| user_name.is_none()),
                user_name,
                group_id,
            },
        )
}

fn any_unit() -> impl Strategy<Value = UnitFields> {
    let text = || option::of(select(vec!["", "[Unit]", "[Service]"]));
    (
        text(),
        any::<Option<bool>>(),
        any::<Option<bool>>(),
        btree_map(select(vec!["10.conf", "20.conf"]), text(), 0..3),
    )
        .prop_map(|(contents, enabled, mask, drop_ins)| UnitFields {
            contents,
            enabled,
            mask,
            drop_ins,
        })
}

fn any_layer() -> impl Strategy<Value = Layer> {
    (
        btree_map(select(vec!["/etc/a", "/etc/b", "/c"]), any_file(), 0..4),
        btree_map(select(vec!["a.service", "b.mount"]), any_unit(), 0..3),
        option::of(prop::collection::btree_set(
            select(vec!["k1", "k2", "k3"]),
            0..3,
        )),
        prop::collection::btree_set(select(vec!["quiet", "debug", "nosmt"]), 0..3),
        option::of(select(vec!["", "os:1", "os:2"])),
    )
        .prop_map(|(files, units, keys, arguments, image)| Layer {
            files,
            units,
            keys,
            arguments,
            image,
        })
}

/// `{}` with what is said.
fn object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let said = fields.into_iter();
    said.filter_map(|(key, value)| Some((key.to_owned(), value?)))
        .collect()
}

impl FileFields {
    fn hash(&self) -> Option<String> {
        let (_, _, contents) = SOURCES[self.source.filter(|_| self.is_checked)?];
        Some(format!("sha256-{}", Hash::of(contents.as_bytes())))
    }

    fn written(&self, path: &str) -> Value {
        let source = self.source.map(|at| SOURCES[at]);
        let contents = source.map(|(url, compression, _)| {
            object([
                ("source", Some(json!(url))),
                ("compression", compression.map(Value::from)),
                (
                    "verification",
                    self.hash().map(|hash| json!({ "hash": hash })),
                ),
            ])
        });
        let user = (self.user_id.is_some() || self.user_name.is_some()).then(|| {
            object([
                ("id", self.user_id.map(Value::from)),
                ("name", self.user_name.map(Value::from)),
            ])
        });
        object([
            ("path", Some(json!(path))),
            ("contents", contents),
            ("mode", self.mode.map(Value::from)),
            ("user", user),
            ("group", self.group_id.map(|id| json!({ "id": id }))),
        ])
    }
}

impl Layer {
    fn written(&self, name: &str) -> String {
        let files: Vec<_> = self
            .files
            .iter()
            .map(|(path, file)| file.written(path))
            .collect();
        let units: Vec<_> = self
            .units
            .iter()
            .map(|(name, unit)| {
                let drop_ins = unit.drop_ins.iter().map(|(name, contents)| {
                    object([
                        ("name", Some(json!(name))),
                        ("contents", contents.map(Value::from)),
                    ])
                });
                object([
                    ("name", Some(json!(name))),
                    ("contents", unit.contents.map(Value::from)),
                    ("enabled", unit.enabled.map(Value::from)),
                    ("mask", unit.mask.map(Value::from)),
                    ("dropins", Some(drop_ins.collect())),
                ])
            })
            .collect();
        let users = self
            .keys
            .as_ref()
            .map(|keys| json!([{ "name": "core", "sshAuthorizedKeys": keys }]));
        let spec = object([
            (
                "config",
                Some(object([
                    ("ignition", Some(json!({ "version": "3.2.0" }))),
                    ("storage", Some(json!({ "files": files }))),
                    ("systemd", Some(json!({ "units": units }))),
                    ("passwd", users.map(|users| json!({ "users": users }))),
                ])),
            ),
            ("kernelArguments", Some(json!(self.arguments))),
            ("osImageURL", self.image.map(Value::from)),
        ]);
        let object = json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
            "metadata": { "name": name }, "spec": spec,
        });
        object.to_string()
    }
}

/// The highest of them that says it.
fn highest<'l, L, T>(layers: &'l [L], said: impl Fn(&'l L) -> Option<T>) -> Option<T> {
    layers.iter().rev().find_map(said)
}

/// All of them that say something, each once, in the order in which they came up.
fn in_order<'l>(said: impl Iterator<Item = &'l &'static str>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for one in said {
        if !all.iter().any(|it| it == one) {
            all.push((*one).to_owned());
        }
    }
    all
}

/// The file of these layers; none if it would be no valid one.
fn modelled_file(layers: &[&FileFields]) -> Option<File> {
    let source = highest(layers, |it| it.source);
    let contents = source.map_or("", |at| SOURCES[at].2);
    let hash = highest(layers, |it| it.hash());
    if hash.is_some_and(|hash| hash != format!("sha256-{}", Hash::of(contents.as_bytes()))) {
        return None;
    }
    let id = highest(layers, |it| it.user_id);
    let name = highest(layers, |it| it.user_name);
    let user = match (id, name) {
        (Some(_), Some(_)) => return None,
        (None, Some("app")) => Owner::Name("app".to_owned()),
        (id, _) => Owner::Id(id.unwrap_or(0)),
    };
    Some(File {
        contents: contents.as_bytes().to_vec(),
        mode: highest(layers, |it| it.mode).unwrap_or(0o644),
        user,
        group: Owner::Id(highest(layers, |it| it.group_id).unwrap_or(0)),
    })
}

fn modelled_unit(layers: &[&UnitFields]) -> Unit {
    let names: BTreeSet<_> = layers.iter().flat_map(|it| it.drop_ins.keys()).collect();
    let drop_ins = names.into_iter().filter_map(|name| {
        let text = highest(layers, |it| it.drop_ins.get(name).copied().flatten())?;
        (!text.is_empty()).then(|| ((*name).to_owned(), text.to_owned()))
    });
    let contents = highest(layers, |it| it.contents).filter(|text| !text.is_empty());
    Unit {
        contents: contents.map(str::to_owned),
        enabled: highest(layers, |it| it.enabled),
        masked: highest(layers, |it| it.mask).unwrap_or(false),
        drop_ins: drop_ins.collect(),
    }
}

fn modelled(layers: &[Layer]) -> Option<MachineConfig> {
    let mut config = MachineConfig::default();
    let paths: BTreeSet<_> = layers.iter().flat_map(|it| it.files.keys()).collect();
    for path in paths {
        let files: Vec<_> = layers.iter().filter_map(|it| it.files.get(path)).collect();
        config
            .files
            .insert((*path).to_owned(), modelled_file(&files)?);
    }
    let names: BTreeSet<_> = layers.iter().flat_map(|it| it.units.keys()).collect();
    for name in names {
        let units: Vec<_> = layers.iter().filter_map(|it| it.units.get(name)).collect();
        config
            .units
            .insert((*name).to_owned(), modelled_unit(&units));
    }
    config.ssh_keys = in_order(layers.iter().flat_map(|it| it.keys.iter().flatten()));
    config.kernel_arguments = in_order(layers.iter().flat_map(|it| &it.arguments));
    let image = highest(layers, |it| it.image.filter(|image| !image.is_empty()));
    config.os_image_url = image.unwrap_or_default().to_owned();
    Some(config)
}

fn sources(layers: &[Layer]) -> Vec<(String, String)> {
    let numbered = layers.iter().enumerate();
    numbered
        .map(|(at, layer)| (format!("{at:02}"), layer.written(&format!("{at:02}"))))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Covers M02.
    #[test]
    fn a_field_is_what_the_highest_says_who_says_anything(layers in vec(any_layer(), 1..5)) {
        match (render::render("worker", &sources(&layers)), modelled(&layers)) {
            (Ok(rendered), Some(model)) => {
                let is = MachineConfig { name: None, ..rendered.config };
                prop_assert_eq!(is, model);
            }
            (Err(problem), None) => prop_assert_eq!(problem.category, "ImpossibleMerge"),
            (rendered, model) => prop_assert!(false, "{rendered:?} but {model:?}"),
        }
    }

    /// Covers M02.
    #[test]
    fn neither_the_order_of_reading_nor_saying_it_twice_is_a_difference(
        layers in vec(any_layer(), 1..4),
        twice in any::<prop::sample::Index>(),
    ) {
        let rendered = |sources: &[(String, String)]| render::render("worker", sources).map(|it| it.config);
        let given = sources(&layers);
        let mut turned = given.clone();
        turned.reverse();
        prop_assert_eq!(rendered(&given).ok(), rendered(&turned).ok());
        // Right above itself, a MachineConfig changes nothing.
        let at = twice.index(layers.len());
        let mut doubled = layers.clone();
        doubled.insert(at, layers[at].clone());
        prop_assert_eq!(rendered(&given).ok(), rendered(&sources(&doubled)).ok());
    }
}
