//! Addresses in a configuration, as strict as Ignition reads them: what it would refuse on a machine is refused here.

use std::net::Ipv6Addr;

use super::data_url;

/// The minor version that brought each scheme from which Ignition reads. A data URL carries what it stands for.
const SCHEMES: [(&str, u8); 7] = [
    ("http", 0),
    ("https", 0),
    ("tftp", 0),
    ("s3", 0),
    ("gs", 2),
    ("data", 0),
    ("arn", 4),
];

/// Whether Ignition 3.`minor` would read from there.
pub(super) fn judge_source(source: &str, minor: u8) -> Result<(), String> {
    let (scheme, rest) = split(source)?;
    let since = SCHEMES.iter().find(|(name, _)| *name == scheme);
    match since {
        None => {
            let known: Vec<_> = SCHEMES.iter().map(|(name, _)| *name).collect();
            return Err(format!(
                "{source:?} has scheme {scheme:?}, from which Ignition does not read: use one of {}",
                known.join(", ")
            ));
        }
        Some((_, since)) if *since > minor => {
            return Err(format!(
                "{source:?} has scheme {scheme:?}, which needs Ignition 3.{since} or later: raise ignition.version"
            ));
        }
        Some(_) => {}
    }
    match scheme.as_str() {
        "data" => data_url::decode(source).map(|_| ()),
        "arn" => judge_arn(rest),
        "s3" => judge_version_id(rest),
        _ => Ok(()),
    }
}

/// Whether it is the address of something that speaks HTTP.
pub(super) fn judge_web(address: &str) -> Result<(), String> {
    let (scheme, _) = split(address)?;
    match scheme.as_str() {
        "http" | "https" => Ok(()),
        _ => Err(format!(
            "{address:?} is not an address for HTTP: begin it with http:// or https://"
        )),
    }
}

/// The scheme, in small letters, and what follows its colon.
fn split(address: &str) -> Result<(String, &str), String> {
    let malformed = |why: &str| Err(format!("{address:?} is not a URL: {why}"));
    if address.chars().any(char::is_control) {
        return malformed("remove its control characters and line breaks");
    }
    let Some((scheme, rest)) = address.split_once(':') else {
        return malformed("begin it with a scheme such as https://");
    };
    let begins = scheme.starts_with(|it: char| it.is_ascii_alphabetic());
    let allowed = |it: char| it.is_ascii_alphanumeric() || "+-.".contains(it);
    if !begins || !scheme.chars().all(allowed) {
        return malformed("begin it with a scheme such as https://");
    }
    let scheme = scheme.to_ascii_lowercase();
    if scheme == "data" {
        return Ok((scheme, rest));
    }
    if !are_escapes_whole(rest) {
        return malformed("write %25 for a percent sign");
    }
    if let Some(authority) = rest.strip_prefix("//") {
        let end = authority.find(['/', '?', '#']).unwrap_or(authority.len());
        if !is_authority(&authority[..end]) {
            return malformed("write its host as NAME, NAME:PORT or [IPv6]:PORT");
        }
    }
    Ok((scheme, rest))
}

fn are_escapes_whole(text: &str) -> bool {
    text.split('%').skip(1).all(|after| {
        let digits = after.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

/// `USER:PASSWORD@HOST:PORT`, of which all but the host may be missing.
fn is_authority(authority: &str) -> bool {
    let (login, place) = authority.rsplit_once('@').unwrap_or(("", authority));
    let of_login = |it: char| it.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:%".contains(it);
    let of_host = |it: char| it.is_ascii_alphanumeric() || "-._~".contains(it);
    let (host, port) = if let Some(inner) = place.strip_prefix('[') {
        let Some((host, port)) = inner.split_once(']') else {
            return false;
        };
        if host.parse::<Ipv6Addr>().is_err() {
            return false;
        }
        ("", port)
    } else {
        let end = place.find(':').unwrap_or(place.len());
        place.split_at(end)
    };
    let is_port = |it: &str| it.bytes().all(|it| it.is_ascii_digit());
    login.chars().all(of_login)
        && host.chars().all(of_host)
        && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

/// An object or an access point of S3: `arn:PARTITION:s3:REGION:ACCOUNT:RESOURCE`.
fn judge_arn(rest: &str) -> Result<(), String> {
    let (name, _) = rest.split_once(['?', '#']).unwrap_or((rest, ""));
    let parts: Vec<_> = name.splitn(5, ':').collect();
    let [_, service, _, _, resource] = parts[..] else {
        return Err(format!(
            "\"arn:{rest}\" is not the name of an S3 object: write arn:aws:s3:::BUCKET/KEY"
        ));
    };
    let needed = if resource.starts_with("accesspoint/") {
        2
    } else {
        1
    };
    if service != "s3" || name.matches('/').count() < needed {
        return Err(format!(
            "\"arn:{rest}\" is not the name of an S3 object: write arn:aws:s3:::BUCKET/KEY"
        ));
    }
    judge_version_id(rest)
}

/// A version of an object in S3 is named, if it is spoken of.
fn judge_version_id(rest: &str) -> Result<(), String> {
    let (before, _) = rest.split_once('#').unwrap_or((rest, ""));
    let (_, query) = before.split_once('?').unwrap_or((before, ""));
    let mut pairs = query
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    // A key may be written with escapes: what could be this one counts as it.
    let first = pairs.find(|(key, _)| *key == "versionId" || key.contains('%'));
    match first {
        Some((_, "")) => Err("versionId is empty: give one, or leave it out".to_owned()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers A04.
    #[test]
    fn a_source_is_one_that_this_version_reads() {
        for (source, minor) in [
            ("https://example.com/a?b=c", 0),
            ("http://user:pass@example.com:8080/", 0),
            ("http://[2001:db8::1]:80/a", 0),
            ("tftp://host/x", 0),
            ("s3://bucket/key?versionId=1", 0),
            ("gs://bucket/key", 2),
            ("arn:aws:s3:::bucket/key", 4),
            ("arn:aws:s3:eu-west-1:123456789012:accesspoint/a/object", 4),
            ("data:,x", 0),
        ] {
            assert_eq!(judge_source(source, minor), Ok(()), "{source}");
        }
        for (source, minor, words) in [
            ("", 5, "is not a URL"),
            ("example.com/a", 5, "is not a URL"),
            ("ftp://example.com", 5, "scheme \"ftp\""),
            ("gs://bucket/key", 1, "needs Ignition 3.2"),
            ("arn:aws:s3:::bucket/key", 3, "needs Ignition 3.4"),
            ("arn:aws:ec2:::bucket/key", 5, "S3 object"),
            ("arn:aws:s3:::bucket", 5, "S3 object"),
            ("arn:aws:s3", 5, "S3 object"),
            ("arn:aws:s3:eu-west-1:1:accesspoint/a", 5, "S3 object"),
            ("s3://bucket/key?versionId=", 5, "versionId is empty"),
            ("https://exa mple.com/", 5, "host"),
            ("https://[::1/", 5, "host"),
            ("https://host:port/", 5, "host"),
            ("https://host/%zz", 5, "percent"),
            ("https://host/a\nb", 5, "line breaks"),
            ("data:,a b", 5, "character"),
        ] {
            let message = judge_source(source, minor).unwrap_err();
            assert!(message.contains(words), "{source}: {message}");
        }
    }

    /// Covers A04.
    #[test]
    fn a_proxy_and_a_tang_server_speak_http() {
        assert_eq!(judge_web("http://proxy.example:3128"), Ok(()));
        assert_eq!(judge_web("HTTPS://proxy.example"), Ok(()));
        for address in ["", "proxy.example:3128", "socks5://proxy", "http://a b"] {
            assert!(judge_web(address).is_err(), "{address}");
        }
    }
}
