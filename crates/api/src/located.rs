//! YAML or JSON text as a tree in which every value knows its line. Text is borrowed from the input
//! wherever it stands there as it is, so that megabytes of contents are not copied to be looked at.
//! Numbers read as `kubectl` reads them: `0644` is octal.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// The most that one file may hold.
pub const MAX_BYTES: usize = 64 * 1024 * 1024;

/// What aliases (`*name`) may unfold to; their text counts as if it stood in the file.
const MAX_ALIASED_VALUES: usize = 20_000;

/// A value and the line on which it (or its key) stands; line 0 is "not known".
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node<'a> {
    pub(crate) line: u32,
    pub(crate) value: Value<'a>,
}

/// What a node holds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value<'a> {
    Null,
    Flag(bool),
    Integer(i128),
    Fraction(f64),
    Text(Cow<'a, str>),
    List(Vec<Node<'a>>),
    Map(Vec<(Cow<'a, str>, Node<'a>)>),
}

/// Why a text is no YAML and no JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Malformed {
    pub(crate) line: Option<u32>,
    pub(crate) message: String,
}

/// The text of a file that somebody wrote.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, String> {
    if bytes.len() > MAX_BYTES {
        let mebibyte = 1024 * 1024;
        return Err(format!(
            "the file has {} MiB: the limit is {} MiB",
            bytes.len().div_ceil(mebibyte),
            MAX_BYTES / mebibyte
        ));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let line = bytes[..error.valid_up_to()]
            .split(|byte| *byte == b'\n')
            .count();
        format!("line {line} is not UTF-8: save the file as UTF-8 text")
    })
}

impl<'a> Node<'a> {
    /// Every document of a YAML stream, or one JSON document. Empty documents are left out.
    pub(crate) fn parse_all(text: &'a str) -> Result<Vec<Node<'a>>, Malformed> {
        let options = serde_saphyr::options! {
            legacy_octal_numbers: true,
            with_snippet: false,
            budget: serde_saphyr::budget! {
                max_events: 8_000_000,
                max_nodes: 4_000_000,
                max_total_scalar_bytes: MAX_BYTES,
            },
            alias_limits: serde_saphyr::alias_limits! {
                max_total_replayed_events: MAX_ALIASED_VALUES,
            },
        };
        serde_saphyr::from_multiple_with_options::<Spanned<Node<'a>>>(text, options)
            .map(|documents| documents.into_iter().map(located).collect())
            .map_err(|error| Malformed::from_yaml(text, &error))
    }

    /// One JSON value that stands inside a larger text. `line` tells where each of its lines is.
    pub(crate) fn parse_json(
        text: &'a str,
        line: impl Fn(u32) -> u32 + Copy,
    ) -> Result<Self, Malformed> {
        if let Some(malformed) = Malformed::from_json(text) {
            return Err(Malformed {
                line: malformed.line.map(line),
                ..malformed
            });
        }
        let mut nodes = Self::parse_all(text).map_err(|malformed| Malformed {
            line: malformed.line.map(line),
            ..malformed
        })?;
        let mut node = nodes.pop().unwrap_or(Node {
            line: 1,
            value: Value::Null,
        });
        node.move_lines(line);
        Ok(node)
    }

    fn move_lines(&mut self, line: impl Fn(u32) -> u32 + Copy) {
        self.line = line(self.line);
        match &mut self.value {
            Value::List(items) => items.iter_mut().for_each(|item| item.move_lines(line)),
            Value::Map(entries) => {
                for (_, value) in entries {
                    value.move_lines(line);
                }
            }
            _ => {}
        }
    }

    /// The value of a key; null is as good as absent.
    pub(crate) fn get(&self, key: &str) -> Option<&Node<'a>> {
        self.entries()
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value)
            .filter(|node| node.value != Value::Null)
    }

    /// The text under a key.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Node::as_text)
    }

    /// The elements under a key; nothing if it is absent.
    pub(crate) fn list(&self, key: &str) -> &[Node<'a>] {
        match self.get(key) {
            Some(node) => node.items(),
            None => &[],
        }
    }

    /// Whether the flag under a key is set.
    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)?.value {
            Value::Flag(flag) => Some(flag),
            _ => None,
        }
    }

    /// The whole number under a key.
    pub(crate) fn integer(&self, key: &str) -> Option<i128> {
        match self.get(key)?.value {
            Value::Integer(number) => Some(number),
            _ => None,
        }
    }

    pub(crate) fn as_text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn items(&self) -> &[Node<'a>] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    pub(crate) fn entries(&self) -> &[(Cow<'a, str>, Node<'a>)] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// What it is, for a sentence: `found a list`.
    pub(crate) fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Flag(_) => "a boolean",
            Value::Integer(_) => "a whole number",
            Value::Fraction(_) => "a fraction",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "an object",
        }
    }

    /// The same tree from a JSON value; its lines are not known.
    pub(crate) fn from_json(value: &'a serde_json::Value) -> Self {
        use serde_json::Value as Json;
        let value = match value {
            Json::Null => Value::Null,
            Json::Bool(flag) => Value::Flag(*flag),
            Json::Number(number) => match number.as_i128() {
                Some(whole) => Value::Integer(whole),
                None => Value::Fraction(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Value::Text(Cow::Borrowed(text)),
            Json::Array(items) => Value::List(items.iter().map(Node::from_json).collect()),
            Json::Object(entries) => Value::Map(
                entries
                    .iter()
                    .map(|(key, value)| (Cow::Borrowed(key.as_str()), Node::from_json(value)))
                    .collect(),
            ),
        };
        Node { line: 0, value }
    }
}

impl Malformed {
    fn from_yaml(text: &str, error: &serde_saphyr::Error) -> Self {
        // A text that opens like JSON is meant as JSON: its own reader explains it better.
        if text.trim_start().starts_with(['{', '['])
            && let Some(malformed) = Self::from_json(text)
        {
            return malformed;
        }
        let location = error.location();
        let mut message = match error.without_snippet() {
            serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
                format!("the key {key:?} is set twice: keep one")
            }
            other => format!("invalid YAML: {other}"),
        };
        if message.contains("budget breached") || message.contains("alias replay limit") {
            message = String::from(
                "the document is too deep or has too many values, once its aliases are \
                       expanded: make it smaller",
            );
        }
        if let Some(at) = &location {
            let tail = format!(" at line {}, column {}", at.line(), at.column());
            if let Some(short) = message.strip_suffix(&tail) {
                message.truncate(short.len());
            }
            message = format!("column {}: {message}", at.column());
        }
        Self {
            line: location.and_then(|at| u32::try_from(at.line()).ok()),
            message,
        }
    }

    fn from_json(text: &str) -> Option<Self> {
        let error = serde_json::from_str::<serde::de::IgnoredAny>(text).err()?;
        let tail = format!(" at line {} column {}", error.line(), error.column());
        let words = error.to_string();
        let words = words.strip_suffix(&tail).unwrap_or(&words);
        Some(Self {
            line: u32::try_from(error.line()).ok(),
            message: format!("column {}: invalid JSON: {words}", error.column()),
        })
    }
}

fn located(spanned: Spanned<Node<'_>>) -> Node<'_> {
    let mut node = spanned.value;
    node.line = u32::try_from(spanned.referenced.line()).unwrap_or(0);
    node
}

impl<'de> Deserialize<'de> for Node<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = deserializer.deserialize_any(Reading)?;
        Ok(Node { line: 0, value })
    }
}

struct Reading;

impl<'de> Visitor<'de> for Reading {
    type Value = Value<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Self::Value, E> {
        Ok(Value::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Value::Integer(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Value::Integer(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Value::Fraction(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Value::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
        Ok(Value::Text(Cow::Owned(text)))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Value::Text(Cow::Borrowed(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element::<Spanned<Node<'de>>>()? {
            items.push(located(item));
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<Key<'de>>>()? {
            let mut value = map.next_value::<Node<'de>>()?;
            value.line = u32::try_from(key.referenced.line()).unwrap_or(0);
            entries.push((key.value.0, value));
        }
        Ok(Value::Map(entries))
    }
}

/// A key is text, whatever it looks like: `1` and `on` are names here.
struct Key<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key that is text")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Borrowed(text)))
            }

            fn visit_unit<E: serde::de::Error>(self) -> Result<Self::Value, E> {
                Err(E::custom("a key is empty: give it a name"))
            }
        }
        deserializer
            .deserialize_str(Reading)
            .map_err(|error| D::Error::custom(error.to_string()))
    }
}
