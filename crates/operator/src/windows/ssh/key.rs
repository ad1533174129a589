//! The key with which the operator logs in to instances.

use std::sync::Arc;

use evenkeel_api::names::object::{CLOUD_PRIVATE_KEY, CLOUD_PRIVATE_KEY_FILE};
use russh::keys::ssh_key::HashAlg;
use russh::keys::{PrivateKey, decode_secret_key};

use super::{Error, Result};

/// A private key: RSA, ECDSA or Ed25519. Clones are the same.
#[derive(Clone, PartialEq)]
pub(crate) struct Key(pub(super) Arc<PrivateKey>);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.public())
    }
}

impl Key {
    /// Reads what the Secret holds.
    pub(crate) fn read(text: Option<&[u8]>) -> Result<Self> {
        let place = format!("Secret {CLOUD_PRIVATE_KEY}, key {CLOUD_PRIVATE_KEY_FILE}");
        let cure = "put an RSA, ECDSA or Ed25519 private key without a passphrase there (`ssh-keygen -t ed25519 -N ''`)";
        let wrong = |what: &str| Error::Key(format!("{place} {what}: {cure}"));
        let text = text.ok_or_else(|| wrong("is missing"))?;
        let text = String::from_utf8_lossy(text);
        if text.trim().is_empty() {
            return Err(wrong("is empty"));
        }
        if text.contains("ENCRYPTED") {
            return Err(wrong("has a passphrase"));
        }
        match decode_secret_key(text.trim(), None) {
            Ok(key) => Ok(Self(Arc::new(key))),
            Err(russh::keys::Error::KeyIsEncrypted) => Err(wrong("has a passphrase")),
            Err(error) => Err(wrong(&format!("is not a private key ({error})"))),
        }
    }

    /// Its public half, as a fingerprint.
    pub(crate) fn public(&self) -> String {
        let public = self.0.public_key();
        format!(
            "{} {}",
            public.algorithm(),
            public.fingerprint(HashAlg::Sha256)
        )
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use evenkeel_plan::windows::instances::FailureKind;

    use super::*;

    fn made(arguments: &[&str]) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let done = Command::new("ssh-keygen")
            .args(["-q", "-f"])
            .arg(&path)
            .args(arguments)
            .status();
        assert!(done.unwrap().success());
        std::fs::read(path).unwrap()
    }

    #[test]
    fn every_kind_of_key_is_read_in_every_form() {
        for (arguments, kind) in [
            (&["-t", "ed25519", "-N", ""][..], "ssh-ed25519"),
            (&["-t", "ecdsa", "-N", ""], "ecdsa-sha2-nistp256"),
            (
                &["-t", "ecdsa", "-b", "521", "-N", ""],
                "ecdsa-sha2-nistp521",
            ),
            (&["-t", "rsa", "-b", "2048", "-N", ""], "ssh-rsa"),
            (
                &["-t", "rsa", "-b", "2048", "-N", "", "-m", "PEM"],
                "ssh-rsa",
            ),
            (
                &["-t", "rsa", "-b", "2048", "-N", "", "-m", "PKCS8"],
                "ssh-rsa",
            ),
            (
                &["-t", "ecdsa", "-N", "", "-m", "PEM"],
                "ecdsa-sha2-nistp256",
            ),
        ] {
            let key = Key::read(Some(&made(arguments)));
            let key = key.unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
            assert!(key.public().starts_with(kind), "{arguments:?}: {key:?}");
        }
    }

    #[test]
    fn a_key_that_cannot_be_used_is_refused_with_the_cure() {
        let locked = made(&["-t", "ed25519", "-N", "secret"]);
        let old = made(&["-t", "rsa", "-b", "2048", "-N", "secret", "-m", "PEM"]);
        let broken =
            b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n";
        for (text, words) in [
            (None, "is missing"),
            (Some(&b" \n"[..]), "is empty"),
            (Some(b"ssh-ed25519 AAAA"), "is not a private key"),
            (Some(broken), "is not a private key"),
            (Some(&locked), "has a passphrase"),
            (Some(&old), "has a passphrase"),
        ] {
            let error = Key::read(text).unwrap_err();
            assert_eq!(error.category(), FailureKind::InvalidSshKey);
            let error = error.to_string();
            assert!(
                error.contains(words) && error.contains("ssh-keygen"),
                "{error}"
            );
            assert!(error.contains("cloud-private-key"), "{error}");
        }
    }
}
