//! Which keys an object may have and what they hold, as tables. One walk over a document reports
//! every unknown key, wrong kind of value and missing key; another gives the canonical JSON of a
//! section, without what only repeats a default. What the values mean is for the readers.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};

use crate::located::{Node, Value};
use crate::problem::{At, Findings};

/// The shape of a value.
#[derive(Debug)]
pub(crate) enum Shape {
    Text,
    Flag,
    Integer,
    /// Not ours to judge.
    Anything,
    /// Names of the author's choice, with text.
    Texts,
    List(&'static Shape),
    /// One element, or a list of them.
    OneOrMany(&'static Shape),
    Object(Object),
}

/// The keys of an object.
#[derive(Debug)]
pub(crate) struct Object {
    /// The key that tells one element of a list from another; empty if there is none.
    pub(crate) identity: &'static str,
    pub(crate) fields: &'static [FieldShape],
}

/// One key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FieldShape {
    pub(crate) name: &'static str,
    pub(crate) shape: &'static Shape,
    /// The minor version that brought it.
    pub(crate) since: u8,
    pub(crate) required: bool,
    default: Default,
    /// The field that it is said together with: who gives only that one anew gives this one up.
    pub(crate) goes_with: Option<&'static str>,
    /// Lists of one family share their keys: what a higher one has in another of them is not in this one.
    pub(crate) family: Option<&'static str>,
    /// A list of which every element counts, said before or not.
    pub(crate) appended: bool,
    /// An element without it only takes the lower one's away.
    pub(crate) takes_away: bool,
}

/// What is as good as absent, besides null, `false`, and empty text, lists and objects.
#[derive(Debug, Clone, Copy)]
enum Default {
    Empty,
    True,
    Number(i128),
    Text(&'static str),
    Root,
    Always,
}

pub(crate) const TEXTS: Shape = Shape::List(&Shape::Text);

/// An object whose elements are told apart by `identity`.
pub(crate) const fn object(identity: &'static str, fields: &'static [FieldShape]) -> Shape {
    Shape::Object(Object { identity, fields })
}

/// A key that may be absent.
pub(crate) const fn optional(name: &'static str, shape: &'static Shape) -> FieldShape {
    FieldShape {
        name,
        shape,
        since: 0,
        required: false,
        default: Default::Empty,
        goes_with: None,
        family: None,
        appended: false,
        takes_away: false,
    }
}

/// Tables of keys, each with what it holds: `NAME by "identity" { key: Text.required(), list: List(OTHER) }`.
macro_rules! keys {
    ($(
        $(#[$doc:meta])*
        $visible:vis $table:ident $(by $identity:literal)? {
            $($key:ident: $shape:ident $(($element:ident))? $(.$fact:ident($($value:expr)?))*),* $(,)?
        }
    )*) => {$(
        $(#[$doc])*
        $visible const $table: crate::shape::Shape = crate::shape::object(
            concat!($($identity)?),
            &[$(
                crate::shape::optional(stringify!($key), &$shape $((&$element))?) $(.$fact($($value)?))*
            ),*],
        );
    )*};
}

pub(crate) use keys;

impl FieldShape {
    /// A key that must be there.
    pub(crate) const fn required(self) -> Self {
        Self {
            required: true,
            ..self
        }
    }

    pub(crate) const fn since(self, since: u8) -> Self {
        Self { since, ..self }
    }

    pub(crate) const fn true_by_default(self) -> Self {
        Self {
            default: Default::True,
            ..self
        }
    }

    pub(crate) const fn number_by_default(self, number: i128) -> Self {
        Self {
            default: Default::Number(number),
            ..self
        }
    }

    pub(crate) const fn text_by_default(self, text: &'static str) -> Self {
        Self {
            default: Default::Text(text),
            ..self
        }
    }

    /// A key that makes no difference, or that its reader keeps elsewhere.
    pub(crate) const fn not_kept(self) -> Self {
        Self {
            default: Default::Always,
            ..self
        }
    }

    /// A key that is merged together with another.
    pub(crate) const fn goes_with(self, other: &'static str) -> Self {
        Self {
            goes_with: Some(other),
            ..self
        }
    }

    /// A list that shares its keys with others.
    pub(crate) const fn of_family(self, family: &'static str) -> Self {
        Self {
            family: Some(family),
            ..self
        }
    }

    /// A list that is merged by appending.
    pub(crate) const fn appended(self) -> Self {
        Self {
            appended: true,
            ..self
        }
    }

    /// A key by whose absence an element takes the lower one's away.
    pub(crate) const fn takes_away(self) -> Self {
        Self {
            takes_away: true,
            ..self
        }
    }

    /// An owner, who is root unless told otherwise.
    pub(crate) const fn root_by_default(self) -> Self {
        Self {
            default: Default::Root,
            ..self
        }
    }

    fn is_default(&self, value: &Json) -> bool {
        match (self.default, value) {
            (_, Json::Null) | (Default::Always, _) => true,
            (Default::True, value) => *value == Json::Bool(true),
            (Default::Number(number), value) => value.as_i64().map(i128::from) == Some(number),
            (Default::Text(text), Json::String(value)) => value.is_empty() || value == text,
            (Default::Root, Json::Object(owner)) => {
                owner.is_empty()
                    || (owner.len() == 1
                        && (owner.get("id") == Some(&Json::from(0))
                            || owner.get("name") == Some(&Json::from("root"))))
            }
            (_, Json::Bool(flag)) => !flag,
            (_, Json::String(text)) => text.is_empty(),
            (_, Json::Array(items)) => items.is_empty(),
            (_, Json::Object(entries)) => entries.is_empty(),
            (_, Json::Number(_)) => false,
        }
    }
}

/// Reports everything in `node` that does not fit. `minor` is the version it claims to be.
pub(crate) fn check(
    node: &Node<'_>,
    shape: &Shape,
    minor: u8,
    at: &At<'_>,
    findings: &mut Findings,
) {
    match (shape, &node.value) {
        (Shape::Anything, _)
        | (_, Value::Null)
        | (Shape::Text, Value::Text(_))
        | (Shape::Flag, Value::Flag(_))
        | (Shape::Integer, Value::Integer(_)) => {}
        (Shape::List(element) | Shape::OneOrMany(element), Value::List(items)) => {
            for (index, item) in items.iter().enumerate() {
                let here = at.index(index, item.line);
                if item.value == Value::Null {
                    findings.problem(&here, "the element is empty: remove it or fill it in");
                } else {
                    check(item, element, minor, &here, findings);
                }
            }
        }
        (Shape::OneOrMany(element), _) => check(node, element, minor, at, findings),
        (Shape::Texts, Value::Map(entries)) => {
            for (key, value) in entries {
                check(
                    value,
                    &Shape::Text,
                    minor,
                    &at.key(key, value.line),
                    findings,
                );
            }
        }
        (Shape::Object(object), Value::Map(_)) => {
            let identity = node.text(object.identity).unwrap_or_default();
            let here = if identity.is_empty() {
                *at
            } else {
                at.called(identity)
            };
            check_object(node, object, minor, &here, findings);
        }
        (wanted, _) => findings.problem(
            at,
            format!(
                "{} must be {}, found {}{}",
                at.field(),
                wanted.kind(),
                node.kind(),
                cure(wanted, node)
            ),
        ),
    }
}

fn check_object(node: &Node<'_>, object: &Object, minor: u8, at: &At<'_>, findings: &mut Findings) {
    for (key, value) in node.entries() {
        let here = at.key(key, value.line);
        match object.fields.iter().find(|field| field.name == key) {
            Some(field) if field.since > minor => findings.problem(
                &here,
                format!(
                    "{key} needs Ignition 3.{} or later, and this configuration is 3.{minor}: raise ignition.version",
                    field.since
                ),
            ),
            Some(field) => check(value, field.shape, minor, &here, findings),
            None => {
                let known = object.fields.iter().map(|field| field.name);
                findings.problem(&here, unknown_key(key, known));
            }
        }
    }
    for field in object.fields.iter().filter(|field| field.required) {
        if node.get(field.name).is_none() {
            findings.problem(at, format!("{} is missing", field.name));
        }
    }
}

impl Shape {
    fn kind(&self) -> &'static str {
        match self {
            Shape::Text => "text",
            Shape::Flag => "true or false",
            Shape::Integer => "a whole number",
            Shape::Anything => "anything",
            Shape::Texts | Shape::Object(_) => "an object",
            Shape::List(_) => "a list",
            Shape::OneOrMany(_) => "an object or a list",
        }
    }
}

fn cure(wanted: &Shape, found: &Node<'_>) -> &'static str {
    match (wanted, &found.value) {
        (Shape::Text, Value::Flag(_) | Value::Integer(_) | Value::Fraction(_)) => ": quote it",
        (Shape::Flag | Shape::Integer, Value::Text(_)) => ": write it without quotes",
        (Shape::List(_), Value::Text(_) | Value::Map(_)) => ": put it into a list",
        _ => "",
    }
}

/// The sentence for a key that nobody knows, with the nearest one that somebody does.
pub(crate) fn unknown_key(key: &str, known: impl Iterator<Item = &'static str>) -> String {
    let near = known
        .map(|name| (distance(key, name), name))
        .filter(|(distance, name)| *distance <= 2 && *distance < name.len().div_ceil(2))
        .min();
    match near {
        Some((_, name)) => format!("unknown key {key:?} (did you mean {name:?}?)"),
        None => format!("unknown key {key:?}: remove it"),
    }
}

/// How many letters differ, without regard to case; far apart in length is far apart.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().map(|c| c.to_ascii_lowercase()).collect();
    let right: Vec<char> = right.chars().map(|c| c.to_ascii_lowercase()).collect();
    if left.len().abs_diff(right.len()) > 2 {
        return usize::MAX;
    }
    let mut previous: Vec<usize> = (0..=right.len()).collect();
    for (row, letter) in left.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, other) in right.iter().enumerate() {
            let replaced = previous[column] + usize::from(letter != other);
            let skipped = previous[column + 1].min(current[column]) + 1;
            current.push(replaced.min(skipped));
        }
        previous = current;
    }
    previous.last().copied().unwrap_or(usize::MAX)
}

/// Gives keys that differ from a known one only in case its spelling.
pub(crate) fn restore_case(
    node: &mut Node<'_>,
    shape: &Shape,
    at: &At<'_>,
    findings: &mut Findings,
) {
    match (shape, &mut node.value) {
        (Shape::List(element) | Shape::OneOrMany(element), Value::List(items)) => {
            for (index, item) in items.iter_mut().enumerate() {
                let line = item.line;
                restore_case(item, element, &at.index(index, line), findings);
            }
        }
        (Shape::OneOrMany(element), Value::Map(_)) => restore_case(node, element, at, findings),
        (Shape::Object(object), Value::Map(entries)) => {
            let mut seen = Vec::new();
            for (key, value) in entries.iter_mut() {
                let known = object
                    .fields
                    .iter()
                    .find(|field| field.name.eq_ignore_ascii_case(key));
                if let Some(field) = known {
                    if seen.contains(&field.name) {
                        let message = format!("{key} is set twice: keep one");
                        findings.problem(&at.key(key, value.line), message);
                    }
                    seen.push(field.name);
                    *key = Cow::Borrowed(field.name);
                    let line = value.line;
                    restore_case(value, field.shape, &at.key(field.name, line), findings);
                }
            }
        }
        _ => {}
    }
}

/// The JSON of a checked value without nulls, defaults and emptiness. Where versions were merged, it may
/// have the keys of several shapes.
pub(crate) fn canonical(node: &Node<'_>, shapes: &[&Shape]) -> Json {
    match &node.value {
        Value::List(items) => {
            let elements: Vec<_> = shapes
                .iter()
                .filter_map(|shape| match shape {
                    Shape::List(element) | Shape::OneOrMany(element) => Some(*element),
                    _ => None,
                })
                .collect();
            let items = items.iter().map(|item| canonical(item, &elements));
            Json::Array(items.collect())
        }
        Value::Map(_) => {
            let objects: Vec<_> = shapes
                .iter()
                .filter_map(|shape| match shape {
                    Shape::Object(object) => Some(object),
                    _ => None,
                })
                .collect();
            if objects.is_empty() {
                return without_nulls(node);
            }
            canonical_object(node, &objects)
        }
        _ => without_nulls(node),
    }
}

/// The JSON of a value as it stands; null is as good as absent.
pub(crate) fn without_nulls(node: &Node<'_>) -> Json {
    match &node.value {
        Value::Null => Json::Null,
        Value::Flag(flag) => Json::Bool(*flag),
        Value::Integer(number) => whole(*number),
        Value::Fraction(number) => Json::from(*number),
        Value::Text(text) => Json::String(text.to_string()),
        Value::List(items) => items.iter().map(without_nulls).collect(),
        Value::Map(entries) => entries
            .iter()
            .filter(|(_, value)| value.value != Value::Null)
            .map(|(key, value)| (key.to_string(), without_nulls(value)))
            .collect(),
    }
}

fn whole(number: i128) -> Json {
    match (i64::try_from(number), u64::try_from(number)) {
        (Ok(number), _) => Json::from(number),
        (_, Ok(number)) => Json::from(number),
        _ => Json::String(number.to_string()),
    }
}

fn canonical_object(node: &Node<'_>, objects: &[&Object]) -> Json {
    let mut entries = Map::new();
    let fields = || objects.iter().flat_map(|object| object.fields);
    let kept = |field: &&FieldShape| !matches!(field.default, Default::Always);
    for field in fields().filter(kept) {
        let Some(value) = node.get(field.name) else {
            continue;
        };
        if entries.contains_key(field.name) {
            continue;
        }
        let same = fields().filter(|other| other.name == field.name);
        let shapes: Vec<_> = same.map(|field| field.shape).collect();
        let value = canonical(value, &shapes);
        if !field.is_default(&value) {
            entries.insert(field.name.to_owned(), value);
        }
    }
    Json::Object(entries)
}
