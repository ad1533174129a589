//! Extended attributes of what stood at a path: access lists, capabilities, and whatever else its owner
//! hung on it. The security label is apart, for what replaces a file takes it over.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Attributes by their full name: `system.posix_acl_access`, `user.origin`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes(pub BTreeMap<String, AttributeValue>);

/// The bytes of one, in hexadecimal digits where they are written down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttributeValue(pub Vec<u8>);

impl Serialize for AttributeValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use std::fmt::Write;
        let mut text = String::with_capacity(2 * self.0.len());
        for byte in &self.0 {
            // Writing to a text never fails.
            _ = write!(text, "{byte:02x}");
        }
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for AttributeValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        let digits = |pair: &[u8]| {
            let pair = std::str::from_utf8(pair).ok().filter(|it| it.len() == 2)?;
            u8::from_str_radix(pair, 16).ok()
        };
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(digits).collect();
        bytes
            .map(Self)
            .ok_or_else(|| serde::de::Error::custom("an attribute is written in pairs of digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_down_is_read_as_it_was() {
        let value = |bytes: &[u8]| AttributeValue(bytes.to_vec());
        let attributes = Attributes(BTreeMap::from([
            ("user.none".to_owned(), value(b"")),
            ("user.bytes".to_owned(), value(&[0, 1, 0xfe, 0xff])),
        ]));
        let text = serde_json::to_string(&attributes).unwrap();
        assert_eq!(text, r#"{"user.bytes":"0001feff","user.none":""}"#);
        assert_eq!(serde_json::from_str(&text).ok(), Some(attributes));
        for broken in [r#"{"a":"0"}"#, r#"{"a":"zz"}"#, r#"{"a":"é"}"#] {
            assert!(serde_json::from_str::<Attributes>(broken).is_err());
        }
    }
}
