//! Two Ignition configurations become one, as Ignition itself merges them: an object field by field, a
//! list by the key of its elements, and everything else is what the higher one says. What this asks
//! of a field stands in the tables of keys.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use super::{Spec, keys, keys_2_2};
use crate::shape::{FieldShape, Shape};

/// In a merged configuration the words of all versions may stand next to each other.
const CONFIGS: [&Shape; 2] = [&keys::CONFIG, &keys_2_2::CONFIG];

/// `lower` with what `higher` says over it. Both are valid, and have no null in them.
pub(crate) fn merge(lower: Json, higher: Json) -> Json {
    together(lower, higher, &CONFIGS)
}

fn together(lower: Json, higher: Json, shapes: &[&'static Shape]) -> Json {
    match (lower, higher) {
        (Json::Object(lower), Json::Object(higher)) => Json::Object(objects(lower, higher, shapes)),
        (_, higher) => higher,
    }
}

fn objects(
    lower: Map<String, Json>,
    higher: Map<String, Json>,
    shapes: &[&'static Shape],
) -> Map<String, Json> {
    let mut merged = lower;
    for field in fields(shapes) {
        let is_replaced = |with| higher.contains_key(with) && !higher.contains_key(field.name);
        if field.goes_with.is_some_and(is_replaced) {
            merged.remove(field.name);
        }
        if let Some(family) = field.family {
            leave_to_others(&mut merged, &higher, family, field, shapes);
        }
    }
    for (name, value) in higher {
        let known: Vec<_> = fields(shapes).filter(|field| field.name == name).collect();
        let value = match (merged.remove(&name), value) {
            (Some(Json::Array(lower)), Json::Array(higher)) => {
                Json::Array(lists(lower, higher, &known))
            }
            (Some(lower), higher) => together(lower, higher, &shapes_of(&known)),
            (None, higher) => higher,
        };
        merged.insert(name, value);
    }
    merged
}

/// Removes from the list `field` what a list of the same family has in the higher configuration: there
/// is one thing at a path.
fn leave_to_others(
    merged: &mut Map<String, Json>,
    higher: &Map<String, Json>,
    family: &str,
    field: &'static FieldShape,
    shapes: &[&'static Shape],
) {
    let Some(Json::Array(list)) = merged.get_mut(field.name) else {
        return;
    };
    let others = fields(shapes).filter(|it| it.family == Some(family) && it.name != field.name);
    for other in others {
        let Some(Json::Array(taken)) = higher.get(other.name) else {
            continue;
        };
        let theirs = elements(&[other]);
        let taken: Vec<_> = taken.iter().map(|it| key(it, &theirs)).collect();
        let ours = elements(&[field]);
        list.retain(|element| !taken.contains(&key(element, &ours)));
    }
}

fn lists(lower: Vec<Json>, higher: Vec<Json>, known: &[&'static FieldShape]) -> Vec<Json> {
    let mut merged = lower;
    if known.iter().any(|field| field.appended) {
        merged.extend(higher);
        return merged;
    }
    let shapes = elements(known);
    // The lower list is all that was merged before, and may be long: only the higher one is sorted.
    let mut over: BTreeMap<String, (usize, Json)> = BTreeMap::new();
    for (at, element) in higher.into_iter().enumerate() {
        over.insert(key(&element, &shapes).into_owned(), (at, element));
    }
    let mut merged: Vec<_> = merged
        .into_iter()
        .filter_map(|element| match over.remove(&*key(&element, &shapes)) {
            Some((_, higher)) if takes_away(&higher, &shapes) => None,
            Some((_, higher)) => Some(together(element, higher, &shapes)),
            None => Some(element),
        })
        .collect();
    let mut new: Vec<_> = over.into_values().collect();
    new.sort_by_key(|(at, _)| *at);
    merged.extend(new.into_iter().map(|(_, element)| element));
    merged
}

/// Whether an element only says that the lower one's is not wanted: an HTTP header without a value.
fn takes_away(element: &Json, shapes: &[&'static Shape]) -> bool {
    fields(shapes).any(|field| field.takes_away && element.get(field.name).is_none())
}

/// What tells an element of a list from another. A partition is known by its number, if it has one,
/// and something elsewhere by its URL.
fn key<'e>(element: &'e Json, shapes: &[&'static Shape]) -> Cow<'e, str> {
    if let Some(text) = element.as_str() {
        return text.into();
    }
    if let Some(number) = element["number"].as_i64().filter(|number| *number != 0) {
        return format!("number {number}").into();
    }
    let identities = shapes.iter().filter_map(|shape| match shape {
        Shape::Object(object) => Some(object.identity),
        _ => None,
    });
    let named = identities
        .chain(["source", "path"])
        .find_map(|name| element[name].as_str());
    let mounted = || element["mount"]["device"].as_str();
    named.or_else(mounted).unwrap_or_default().into()
}

fn fields(shapes: &[&'static Shape]) -> impl Iterator<Item = &'static FieldShape> {
    shapes.iter().flat_map(|shape| match shape {
        Shape::Object(object) => object.fields,
        _ => &[],
    })
}

fn shapes_of(known: &[&'static FieldShape]) -> Vec<&'static Shape> {
    known.iter().map(|field| field.shape).collect()
}

/// The shapes of the elements of these lists.
fn elements(known: &[&'static FieldShape]) -> Vec<&'static Shape> {
    let lists = known.iter().filter_map(|field| match field.shape {
        Shape::List(element) => Some(*element),
        _ => None,
    });
    lists.collect()
}

/// What a configuration of 2.2 says in the words of 3.x, where there are some: there `false` and empty
/// text are as good as absent, and a file always has contents.
pub(crate) fn translated(mut config: Json) -> Json {
    if config["ignition"]["version"] != Spec::TwoTwo.to_string() {
        return config;
    }
    drop_empty(&mut config);
    for file in each(&mut config, "storage", "files") {
        file.remove("filesystem");
        let contents = file.entry("contents").or_insert_with(|| Map::new().into());
        if let Some(contents) = contents.as_object_mut() {
            contents.entry("source").or_insert_with(|| "".into());
        }
    }
    for unit in each(&mut config, "systemd", "units") {
        if let Some(enable) = unit.remove("enable") {
            unit.entry("enabled").or_insert(enable);
        }
    }
    config
}

fn each<'c>(
    config: &'c mut Json,
    section: &str,
    list: &str,
) -> impl Iterator<Item = &'c mut Map<String, Json>> {
    let list = config.get_mut(section).and_then(|it| it.get_mut(list));
    let elements = list.and_then(Json::as_array_mut);
    elements
        .into_iter()
        .flatten()
        .filter_map(Json::as_object_mut)
}

fn drop_empty(value: &mut Json) {
    match value {
        Json::Array(elements) => elements.iter_mut().for_each(drop_empty),
        Json::Object(entries) => {
            entries.retain(|name, value| match value {
                Json::Bool(flag) => *flag || name == "enabled",
                Json::String(text) => !text.is_empty(),
                _ => true,
            });
            entries.values_mut().for_each(drop_empty);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::{select, subsequence};
    use serde_json::json;

    use super::*;

    /// A header without a value takes the lower one's away.
    #[test]
    fn a_header_without_a_value_is_taken_away() {
        let headers = |headers: Json| json!({ "ignition": { "config": { "replace": { "httpHeaders": headers } } } });
        let lower = headers(json!([{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }]));
        let higher = headers(json!([{ "name": "A" }, { "name": "C", "value": "3" }]));
        assert_eq!(
            merge(lower, higher),
            headers(json!([{ "name": "B", "value": "2" }, { "name": "C", "value": "3" }]))
        );
    }

    /// Some of the fields of an object, each with one of some values.
    fn some(fields: Vec<(&'static str, Vec<Json>)>) -> BoxedStrategy<Json> {
        let count = fields.len();
        subsequence(fields, 0..=count)
            .prop_flat_map(|fields| {
                let said = fields
                    .into_iter()
                    .map(|(name, values)| select(values).prop_map(move |it| (name, it)));
                said.collect::<Vec<_>>()
            })
            .prop_map(|said| {
                let said = said.into_iter();
                said.map(|(name, value)| (name.to_owned(), value)).collect()
            })
            .boxed()
    }

    fn named(
        key: &'static str,
        names: &'static [&'static str],
        fields: Vec<(&'static str, Vec<Json>)>,
    ) -> BoxedStrategy<Json> {
        prop::collection::btree_map(select(names), some(fields), 0..3)
            .prop_map(move |elements| {
                let elements = elements.into_iter().map(|(name, mut element)| {
                    element[key] = name.into();
                    element
                });
                elements.collect()
            })
            .boxed()
    }

    fn any_config() -> impl Strategy<Value = Json> {
        let file = vec![
            ("mode", vec![json!(0o600), json!(0o644)]),
            (
                "user",
                vec![json!({ "id": 1 }), json!({ "name": "a" }), json!({})],
            ),
            (
                "contents",
                vec![
                    json!({ "source": "data:,a", "compression": "gzip" }),
                    json!({ "source": "data:,b" }),
                    json!({ "verification": { "hash": "x" } }),
                    json!({ "compression": "" }),
                    json!({}),
                ],
            ),
        ];
        let unit = vec![
            ("contents", vec![json!(""), json!("x")]),
            ("mask", vec![json!(true), json!(false)]),
            (
                "dropins",
                vec![
                    json!([{ "name": "a.conf", "contents": "1" }]),
                    json!([{ "name": "b.conf" }, { "name": "a.conf" }]),
                    json!([]),
                ],
            ),
        ];
        let user = vec![
            (
                "sshAuthorizedKeys",
                vec![json!(["a", "b"]), json!(["c", "a"])],
            ),
            ("homeDir", vec![json!("/a"), json!("/b")]),
        ];
        (
            named("path", &["/a", "/b"], file),
            named("name", &["a.service", "b.service"], unit),
            named("name", &["core", "bob"], user),
        )
            .prop_map(|(files, units, users)| {
                json!({
                    "storage": { "files": files },
                    "systemd": { "units": units },
                    "passwd": { "users": users },
                })
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Covers M02.
        #[test]
        fn it_makes_no_difference_which_two_of_three_are_merged_first(
            low in any_config(), middle in any_config(), high in any_config(),
        ) {
            let from_below = merge(merge(low.clone(), middle.clone()), high.clone());
            let from_above = merge(low, merge(middle, high));
            prop_assert_eq!(from_below, from_above);
        }

        /// Covers M02.
        #[test]
        fn nothing_and_the_same_again_change_nothing(config in any_config()) {
            prop_assert_eq!(merge(config.clone(), config.clone()), config.clone());
            prop_assert_eq!(merge(config.clone(), json!({})), config.clone());
            prop_assert_eq!(merge(json!({}), config.clone()), config);
        }
    }
}
