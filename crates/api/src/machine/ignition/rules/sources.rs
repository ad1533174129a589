//! What is read from elsewhere, and by way of whom.

use super::super::url;
use super::filled;
use crate::located::Node;
use crate::problem::{At, Findings};

pub(super) fn check(node: &Node<'_>, minor: u8, at: &At<'_>, findings: &mut Findings) {
    if let Some(ignition) = node.get("ignition") {
        let here = at.key("ignition", ignition.line);
        if let Some(config) = ignition.get("config") {
            let here = here.key("config", config.line);
            for (index, item) in config.list("merge").iter().enumerate() {
                let here = here.key("merge", config.line);
                resource(item, true, minor, &here.index(index, item.line), findings);
            }
            if let Some(replace) = config.get("replace") {
                resource(
                    replace,
                    false,
                    minor,
                    &here.key("replace", replace.line),
                    findings,
                );
            }
        }
        let tls = ignition.get("security").and_then(|it| it.get("tls"));
        for (index, item) in tls
            .map_or(&[][..], |it| it.list("certificateAuthorities"))
            .iter()
            .enumerate()
        {
            let here = here.key("security", item.line);
            let here = here.key("tls", item.line);
            let here = here.key("certificateAuthorities", item.line);
            resource(item, true, minor, &here.index(index, item.line), findings);
        }
        if let Some(proxy) = ignition.get("proxy") {
            let here = here.key("proxy", proxy.line);
            for key in ["httpProxy", "httpsProxy"] {
                if let Some(Err(message)) = proxy.text(key).map(url::judge_web) {
                    let line = proxy.get(key).map_or(proxy.line, |it| it.line);
                    findings.problem(&here.key(key, line), format!("{key} {message}"));
                }
            }
        }
    }
    let Some(storage) = node.get("storage") else {
        return;
    };
    let here = at.key("storage", storage.line);
    for (list, key) in [("files", "contents"), ("luks", "keyFile")] {
        let here = here.key(list, storage.line);
        for (index, item) in storage.list(list).iter().enumerate() {
            let identity = item.text("path").or(item.text("name")).unwrap_or_default();
            let here = here.index(index, item.line).called(identity);
            if let Some(found) = item.get(key) {
                let here = here.key(key, found.line);
                if key == "contents" {
                    extras(found, minor, &here, findings);
                } else {
                    resource(found, false, minor, &here, findings);
                }
            }
        }
    }
}

/// Something that Ignition reads itself.
fn resource(node: &Node<'_>, required: bool, minor: u8, at: &At<'_>, findings: &mut Findings) {
    match filled(node, "source") {
        Some(source) => {
            if let Err(message) = url::judge_source(source, minor) {
                findings.problem(&at.key("source", node.line), format!("source {message}"));
            }
        }
        None if required => {
            findings.problem(at, "source is missing: say where to read it from");
        }
        None => {}
    }
    if let Some(other) = filled(node, "compression").filter(|it| *it != "gzip") {
        let message = format!("compression {other:?} is not supported: use gzip or none");
        findings.problem(&at.key("compression", node.line), message);
    }
    extras(node, minor, at, findings);
}

/// What stands beside a source: a checksum and headers.
fn extras(node: &Node<'_>, minor: u8, at: &At<'_>, findings: &mut Findings) {
    let source = node.text("source");
    let hash = node.get("verification").and_then(|it| it.text("hash"));
    if let Some(hash) = hash {
        let here = at.key("verification", node.line);
        let here = here.key("hash", node.line);
        if let Err(message) = judge_hash(hash, minor) {
            findings.problem(&here, message);
        }
        if source.is_none() {
            findings.problem(
                &here,
                "a hash without a source verifies nothing: give the source, or leave the hash out",
            );
        }
    }
    let headers = node.list("httpHeaders");
    let here = at.key("httpHeaders", node.line);
    for (index, header) in headers.iter().enumerate() {
        let here = here.index(index, header.line);
        if filled(header, "name").is_none() {
            findings.problem(&here, "the header has no name: give it one");
        }
        if header.text("value") == Some("") {
            findings.problem(
                &here,
                "the header's value is empty: give one, or leave it out",
            );
        }
    }
    if !headers.is_empty() && url::judge_web(source.unwrap_or_default()).is_err() {
        findings.problem(
            &here,
            "headers are for sources that begin with http:// or https://: leave them out",
        );
    }
}

/// A checksum as `FUNCTION-HEX`.
fn judge_hash(hash: &str, minor: u8) -> Result<(), String> {
    let length = match hash.split_once('-') {
        Some(("sha512", sum)) => sum.len() == 128,
        Some(("sha256", _)) if minor == 0 => {
            return Err(
                "hash is a sha256, which needs Ignition 3.1 or later: write sha512-HEX, or raise ignition.version"
                    .to_owned(),
            );
        }
        Some(("sha256", sum)) => sum.len() == 64,
        _ => {
            return Err(format!(
                "hash {hash:?} is not a known kind of checksum: write sha256-HEX or sha512-HEX"
            ));
        }
    };
    if length {
        return Ok(());
    }
    Err(format!(
        "hash {hash:?} has not the length of its kind: write 64 digits for sha256, 128 for sha512"
    ))
}
