//! Ignition's own validator beside our reader: what it refuses, we never accept.
#![cfg(target_os = "linux")]
#![allow(clippy::panic)] // In a test, a panic is the report.

mod fields;

use evenkeel_api::document;
use evenkeel_testbed::chance::{Chance, is_soak, seed};
use evenkeel_testbed::{Result, ignition, need};
use serde_json::{Value, json};

/// In one question to the validator.
const BATCH: usize = 2_000;

/// Covers A04.
#[test]
fn what_ignition_refuses_is_never_accepted() -> Result<()> {
    if need::skip(&[ignition::NEED])? {
        return Ok(());
    }
    let mut chance = Chance(seed());
    let mut counts = Counts::default();
    for _ in 0..if is_soak() { 500 } else { 2 } {
        let configs: Vec<_> = (0..BATCH).map(|_| fields::config(&mut chance)).collect();
        counts.compare(&configs, &ignition::refusals(&configs)?);
    }
    println!("proof: {counts:?} of random Ignition configurations");
    // A comparison of what nobody accepts, or nobody refuses, shows nothing.
    assert!(counts.both_accept > BATCH / 4, "{counts:?}");
    assert!(counts.both_refuse > BATCH / 4, "{counts:?}");
    Ok(())
}

/// What was accepted once and refused by Ignition, one by one: a random run may miss it.
///
/// Covers A04.
#[test]
fn what_was_accepted_once_is_refused() -> Result<()> {
    if need::skip(&[ignition::NEED])? {
        return Ok(());
    }
    let file = |file: Value| json!({ "storage": { "files": [file] } });
    let keys = json!(["ssh-ed25519 A", "ssh-ed25519 A"]);
    let authority = |source: &Value| json!({ "ignition": { "security": { "tls": { "certificateAuthorities": [{ "source": source }] } } } });
    let configs = [
        file(json!({ "path": "/a", "contents": { "source": "data:;base64,aGVsbG8" } })),
        file(json!({ "path": "/a", "contents": { "source": "data:;base64,aGVs bG8K" } })),
        file(json!({ "path": "/a", "contents": { "source": "data:,hello world" } })),
        file(json!({ "path": "/a", "overwrite": true })),
        json!({ "passwd": { "users": [{ "name": "core", "sshAuthorizedKeys": keys }] } }),
        json!({ "ignition": { "proxy": { "httpProxy": "proxy.example:3128" } } }),
        authority(&json!("ftp://example.com/ca")),
        authority(&Value::Null),
        json!({ "ignition": { "config": { "merge": [{}] } } }),
        json!({ "ignition": { "config": { "replace": {
            "source": "https://example.com", "verification": { "hash": "md5-0" } } } } }),
        json!({ "ignition": { "config": { "replace": {
            "source": "https://example.com", "verification": { "hash": "" } } } } }),
        json!({ "systemd": { "units": [{ "name": "a.service", "contents": "[Unit] A=b\n" }] } }),
        json!({ "storage": { "links": [{ "path": "/a" }] } }),
        json!({ "storage": { "disks": [{ "device": "/dev/sda", "partitions": [{}] }] } }),
        json!({ "storage": { "filesystems": [{ "device": "/dev/sda", "format": "ntfs" }] } }),
        json!({ "storage": { "luks": [{ "name": "a/b", "device": "/dev/sda" }] } }),
        json!({ "storage": { "raid": [{ "name": "a", "level": "raid7", "devices": ["/dev/sda"] }] } }),
    ]
    .map(|mut config| {
        config["ignition"]["version"] = "3.4.0".into();
        config
    });
    let refusals = ignition::refusals(&configs)?;
    for (config, refusals) in configs.iter().zip(refusals) {
        assert!(!refusals.is_empty(), "Ignition takes {config}");
        assert!(!accepts(config), "{config}: {refusals:?}");
    }
    Ok(())
}

fn accepts(config: &Value) -> bool {
    document::read("config.ign", config.to_string().as_bytes()).is_ok()
}

/// How often who accepted.
#[derive(Debug, Default)]
struct Counts {
    both_accept: usize,
    both_refuse: usize,
    only_we_refuse: usize,
}

impl Counts {
    fn compare(&mut self, configs: &[Value], refusals: &[Vec<String>]) {
        for (config, refusals) in configs.iter().zip(refusals) {
            match (accepts(config), refusals.is_empty()) {
                (true, true) => self.both_accept += 1,
                (false, false) => self.both_refuse += 1,
                (false, true) => self.only_we_refuse += 1,
                (true, false) => {
                    panic!("Ignition refuses what is accepted here: {refusals:?}\n{config}")
                }
            }
        }
    }
}
