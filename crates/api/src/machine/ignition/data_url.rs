//! Contents as Ignition carries them: one data URL (RFC 2397), percent-encoded or base64, plain or
//! gzip, with an optional checksum. The checksum is that of the decompressed contents, as the
//! Ignition specification says.

use std::borrow::Cow;
use std::io::Read;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use sha2::{Digest, Sha256, Sha512};

/// What all contents of a configuration may come to, decompressed.
pub const MAX_CONTENTS: usize = 64 * 1024 * 1024;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

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
        decode(source)?
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
    base64::engine::general_purpose::STANDARD.encode_string(contents, &mut url);
    url
}

fn decode(source: &str) -> Result<Vec<u8>, String> {
    let Some(rest) = strip_scheme(source) else {
        let scheme = source.split_once(':').map_or("", |(scheme, _)| scheme);
        return Err(
            if scheme.is_empty() || scheme.len() > 16 || scheme.contains('/') {
                "contents.source is not a URL: write data:,TEXT or data:;base64,TEXT".to_owned()
            } else {
                format!(
                    "contents.source has scheme {scheme:?}, which is not fetched: write the contents as a data URL"
                )
            },
        );
    };
    let Some((kind, data)) = rest.split_once(',') else {
        return Err(
            "contents.source is a data URL without a comma before its data: write data:,TEXT or data:;base64,TEXT"
                .to_owned(),
        );
    };
    let mut parameters = kind.split(';').skip(1).peekable();
    let mut is_base64 = false;
    while let Some(parameter) = parameters.next() {
        if parameter == "base64" && parameters.peek().is_none() {
            is_base64 = true;
        } else if !parameter.contains('=') {
            return Err(format!(
                "contents.source is a malformed data URL: {parameter:?} is neither name=value nor a final base64"
            ));
        }
    }
    let data = unescape(data)?;
    if is_base64 {
        BASE64.decode(data.as_ref()).map_err(|error| {
            format!("contents.source has malformed or truncated base64 ({error}): encode the contents again")
        })
    } else {
        Ok(data.into_owned())
    }
}

fn strip_scheme(source: &str) -> Option<&str> {
    let scheme = source.get(..5)?;
    scheme.eq_ignore_ascii_case("data:").then(|| &source[5..])
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
                "contents.source has a malformed escape %{}: write %25 for a percent sign",
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
    use std::fmt::Write as _;
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
            ("DATA:,hello%0A", ""),
            ("data:text/plain,hello%0A", ""),
            ("data:text/plain;charset=utf-8,hello%0A", ""),
            ("data:;base64,aGVsbG8K", ""),
            ("data:text/plain;charset=utf-8;base64,aGVsbG8K", ""),
            ("data:;base64,aGVsb%47%38K", ""),
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
            ("data:;base64,aA", b"h"),
            ("data:,a,b;c", b"a,b;c"),
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
            ("data:;BASE64,aGVsbG8K", "", "malformed data URL"),
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
