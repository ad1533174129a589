//! Contents as Ignition carries them: one data URL (RFC 2397), percent-encoded or base64, plain or
//! gzip, with an optional checksum. The checksum is that of the decompressed contents, as the
//! Ignition specification says.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Read;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256, Sha512};

/// What all contents of a configuration may come to, decompressed.
pub const MAX_CONTENTS: usize = 64 * 1024 * 1024;

/// What is left of [`MAX_CONTENTS`].
#[derive(Debug)]
pub(crate) struct Allowance(usize);

impl Default for Allowance {
    fn default() -> Self {
        Self(MAX_CONTENTS)
    }
}

impl Allowance {
    fn take(&mut self, bytes: usize) -> Result<(), String> {
        self.0 = self.0.checked_sub(bytes).ok_or_else(|| {
            format!(
                "contents have more than {} MiB in total after decompression: make them smaller",
                MAX_CONTENTS / 1024 / 1024
            )
        })?;
        Ok(())
    }
}

/// The bytes that a source stands for.
pub(crate) fn contents(
    source: &str,
    compression: &str,
    hash: &str,
    allowance: &mut Allowance,
) -> Result<Vec<u8>, String> {
    let raw = if source.is_empty() {
        Vec::new()
    } else {
        decode(source).map_err(|why| format!("contents.source {why}"))?
    };
    let contents = match compression {
        "" => {
            allowance.take(raw.len())?;
            raw
        }
        "gzip" if source.is_empty() => raw,
        "gzip" => gunzip(&raw, allowance)?,
        other => {
            return Err(format!(
                "contents.compression {other:?} is not supported: use gzip or none"
            ));
        }
    };
    verify(&contents, hash)?;
    Ok(contents)
}

/// The data URL of some bytes, as we write it.
pub(crate) fn encode(contents: &[u8]) -> String {
    let mut url = String::from("data:;base64,");
    STANDARD.encode_string(contents, &mut url);
    url
}

/// The bytes of a data URL, read as strictly as Ignition reads it; or a sentence about it that lacks its subject.
pub(super) fn decode(source: &str) -> Result<Vec<u8>, String> {
    let Some(rest) = source.strip_prefix("data:") else {
        let scheme = source.split_once(':').map_or("", |(scheme, _)| scheme);
        return Err(
            if scheme.is_empty() || scheme.len() > 16 || scheme.contains('/') {
                "is not a URL: write data:,TEXT or data:;base64,TEXT".to_owned()
            } else if scheme.eq_ignore_ascii_case("data") {
                format!("begins with {scheme}:, which Ignition does not know: write data:")
            } else {
                format!(
                    "has scheme {scheme:?}, which is not fetched: write the contents as a data URL"
                )
            },
        );
    };
    let Some((head, data)) = rest.split_once(',') else {
        return Err(
            "is a data URL without a comma before its data: write data:,TEXT or data:;base64,TEXT"
                .to_owned(),
        );
    };
    let is_base64 = read_head(head).map_err(|odd| format!("is a malformed data URL: {odd}"))?;
    if is_base64 {
        return STANDARD.decode(data).map_err(|error| {
            format!("has malformed or truncated base64 ({error}): encode the contents again")
        });
    }
    if let Some(odd) = data.chars().find(|it| !may_stand_in_data(*it)) {
        let escapes: String = odd
            .to_string()
            .bytes()
            .fold(String::new(), |mut text, byte| {
                let _ = write!(text, "%{byte:02X}");
                text
            });
        return Err(format!(
            "has the character {odd:?}, which may not stand in a URL: write {escapes}, or use base64"
        ));
    }
    unescape(data).map(Cow::into_owned)
}

/// Reads `TYPE/SUBTYPE;NAME=VALUE;base64`, of which all may be missing: whether base64 follows.
fn read_head(head: &str) -> Result<bool, String> {
    let mut parts = head.split(';');
    let kind = parts.next().unwrap_or_default();
    if !kind.is_empty() && !is_media_type(kind) {
        return Err(format!("{kind:?} is no media type"));
    }
    let mut parameters = parts.peekable();
    while let Some(parameter) = parameters.next() {
        if parameter == "base64" && parameters.peek().is_none() {
            return Ok(true);
        }
        if !is_parameter(parameter) {
            return Err(format!(
                "{parameter:?} is neither name=value nor a final base64"
            ));
        }
    }
    Ok(false)
}

fn is_media_type(kind: &str) -> bool {
    let known = [
        "text",
        "image",
        "audio",
        "video",
        "application",
        "message",
        "multipart",
        "x-",
        "X-",
    ];
    kind.split_once('/').is_some_and(|(kind, subtype)| {
        known.iter().any(|it| kind.starts_with(it)) && is_token(kind) && is_token(subtype)
    })
}

fn is_parameter(parameter: &str) -> bool {
    parameter.split_once('=').is_some_and(|(name, value)| {
        let quoted = value
            .strip_prefix('"')
            .and_then(|value| value.strip_suffix('"'));
        is_token(name) && is_token(quoted.unwrap_or(value)) && unescape(value).is_ok()
    })
}

/// A word of a head, as RFC 2045 has it.
fn is_token(text: &str) -> bool {
    let is_of_token = |it: char| it.is_ascii_graphic() && !r#"()<>@,;:\"/[]?="#.contains(it);
    !text.is_empty() && text.chars().all(is_of_token)
}

fn may_stand_in_data(it: char) -> bool {
    it.is_ascii_graphic() && !"<>#\"{}|\\^[]`".contains(it)
}

fn unescape(data: &str) -> Result<Cow<'_, [u8]>, String> {
    if !data.contains('%') {
        return Ok(Cow::Borrowed(data.as_bytes()));
    }
    let mut bytes = Vec::with_capacity(data.len());
    let mut rest = data.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        if *first != b'%' {
            bytes.push(*first);
            rest = tail;
            continue;
        }
        let digits = tail.get(..2).unwrap_or(tail);
        let value = match digits {
            [high, low] => hex(*high).zip(hex(*low)).map(|(high, low)| high * 16 + low),
            _ => None,
        };
        let Some(value) = value else {
            return Err(format!(
                "has a malformed escape %{}: write %25 for a percent sign",
                String::from_utf8_lossy(digits)
            ));
        };
        bytes.push(value);
        rest = &tail[2..];
    }
    Ok(Cow::Owned(bytes))
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

fn gunzip(raw: &[u8], allowance: &mut Allowance) -> Result<Vec<u8>, String> {
    let limit = u64::try_from(allowance.0)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    let mut contents = Vec::new();
    flate2::read::MultiGzDecoder::new(raw)
        .take(limit)
        .read_to_end(&mut contents)
        .map_err(|error| {
            format!("contents.source is malformed or truncated gzip ({error}): compress the contents again, or drop contents.compression")
        })?;
    allowance.take(contents.len())?;
    Ok(contents)
}

fn verify(contents: &[u8], hash: &str) -> Result<(), String> {
    let (wanted, actual) = match hash.split_once('-') {
        None if hash.is_empty() => return Ok(()),
        Some(("sha256", wanted)) => (wanted, to_hex(&Sha256::digest(contents))),
        Some(("sha512", wanted)) => (wanted, to_hex(&Sha512::digest(contents))),
        _ => {
            return Err(format!(
                "contents.verification.hash {hash:?} is not a known kind of checksum: write sha256-HEX or sha512-HEX"
            ));
        }
    };
    if wanted.eq_ignore_ascii_case(&actual) {
        return Ok(());
    }
    Err(format!(
        "contents do not match contents.verification.hash: their checksum is {actual}: correct the hash, or give the hash together with the contents"
    ))
}

/// Bytes as lower-case hex digits.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn read(source: &str, compression: &str, hash: &str) -> Result<Vec<u8>, String> {
        contents(source, compression, hash, &mut Allowance::default())
    }

    fn gzip(contents: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(contents).unwrap();
        encoder.finish().unwrap()
    }

    /// Covers M07.
    #[test]
    fn every_way_to_write_contents_gives_the_same_bytes() {
        let zipped = encode(&gzip(b"hello\n"));
        for (source, compression) in [
            ("data:,hello%0A", ""),
            ("data:,hello%0a", ""),
            ("data:text/plain,hello%0A", ""),
            ("data:text/plain;charset=utf-8,hello%0A", ""),
            ("data:;base64,aGVsbG8K", ""),
            ("data:text/plain;charset=utf-8;base64,aGVsbG8K", ""),
            ("data:text/plain;charset=\"utf-8\",hello%0A", ""),
            (zipped.as_str(), "gzip"),
        ] {
            assert_eq!(
                read(source, compression, "").unwrap(),
                b"hello\n",
                "{source}"
            );
        }
        for (source, bytes) in [
            ("", &b""[..]),
            ("data:,", b""),
            ("data:;base64,", b""),
            ("data:;base64,aA==", b"h"),
            ("data:,a,b;c", b"a,b;c"),
            ("data:,a'b*(c)=d?", b"a'b*(c)=d?"),
            ("data:,a+b", b"a+b"),
            ("data:,%ff%00", b"\xff\0"),
        ] {
            assert_eq!(read(source, "", "").unwrap(), bytes, "{source}");
        }
    }

    /// Covers M07.
    #[test]
    fn what_cannot_be_decoded_is_refused_with_the_reason() {
        let truncated = encode(&gzip(&[7; 4096])[..20]);
        for (source, compression, words) in [
            ("data:hello", "", "without a comma"),
            (
                "data:;base64,aGVsbG8K!",
                "",
                "malformed or truncated base64",
            ),
            ("data:;base64,aGVsb", "", "malformed or truncated base64"),
            ("data:;base64,a_-_", "", "malformed or truncated base64"),
            ("data:;base64,aA", "", "malformed or truncated base64"),
            (
                "data:;base64,aGVsb%47%38K",
                "",
                "malformed or truncated base64",
            ),
            (
                "data:;base64,aGVs\nbG8K",
                "",
                "malformed or truncated base64",
            ),
            ("data:;BASE64,aGVsbG8K", "", "malformed data URL"),
            ("data:text,a", "", "\"text\" is no media type"),
            ("data:font/ttf,a", "", "no media type"),
            ("data:;=a,b", "", "malformed data URL"),
            ("data:;a=%z,b", "", "malformed data URL"),
            ("DATA:,hello", "", "begins with DATA:"),
            (
                "data:,hello world",
                "",
                "' ', which may not stand in a URL: write %20",
            ),
            ("data:,{}", "", "write %7B"),
            ("data:,\u{e9}", "", "write %C3%A9"),
            ("data:,50%", "", "malformed escape"),
            ("data:,%zz", "", "malformed escape"),
            ("http://example.com/x", "", "scheme \"http\""),
            ("s3://bucket/x", "", "scheme \"s3\""),
            ("tftp://host/x", "", "scheme \"tftp\""),
            ("hello", "", "is not a URL"),
            ("data:,x", "xz", "compression \"xz\" is not supported"),
            ("data:,x", "gzip", "malformed or truncated gzip"),
            (truncated.as_str(), "gzip", "malformed or truncated gzip"),
        ] {
            let message = read(source, compression, "").unwrap_err();
            assert!(message.contains(words), "{source}: {message}");
        }
    }

    /// Covers M07.
    #[test]
    fn a_checksum_is_that_of_the_decompressed_contents() {
        let zipped = encode(&gzip(b"abc"));
        let sha256 = "sha256-ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let sha512 = "sha512-ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                      2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f";
        for hash in [sha256, sha512] {
            assert_eq!(read(&zipped, "gzip", hash).unwrap(), b"abc");
            assert_eq!(read("data:,abc", "", hash).unwrap(), b"abc");
            let message = read("data:,abd", "", hash).unwrap_err();
            assert!(message.contains("do not match"), "{message}");
        }
        for hash in ["md5-900150983cd24fb0d6963f7d28e17f72", "sha512", "ba7816bf"] {
            let message = read("data:,abc", "", hash).unwrap_err();
            assert!(
                message.contains("not a known kind of checksum"),
                "{message}"
            );
        }
    }

    /// Covers M07.
    #[test]
    fn a_small_text_cannot_become_a_huge_file() {
        let bomb = encode(&gzip(&vec![0; MAX_CONTENTS + 1]));
        let message = read(&bomb, "gzip", "").unwrap_err();
        assert!(message.contains("more than 64 MiB"), "{message}");
        let mut allowance = Allowance(5);
        assert!(contents("data:,abc", "", "", &mut allowance).is_ok());
        assert!(contents("data:,abc", "", "", &mut allowance).is_err());
    }
}
