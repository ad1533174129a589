//! The certificate of the metrics: from a directory, read again when it changed, or made at every start.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::{Error, Result};

/// The names that a Secret of type `kubernetes.io/tls` has, mounted as a folder.
const CHAIN: &str = "tls.crt";
const KEY: &str = "tls.key";
/// How often a folder is looked at: a renewed certificate is served after that.
const LOOK: Duration = Duration::from_secs(10);

/// What the next connection is met with.
pub(super) struct Certificate {
    folder: Option<PathBuf>,
    state: Mutex<CertificateState>,
}

struct CertificateState {
    config: Arc<ServerConfig>,
    looked: Instant,
    changed: Option<SystemTime>,
}

impl Certificate {
    /// That of `folder`, or a new one that only says that the connection is encrypted.
    pub(super) fn open(folder: Option<&Path>) -> Result<Self> {
        let (config, changed) = match folder {
            Some(folder) => (read(folder)?, changed(folder)),
            None => (made()?, None),
        };
        let state = CertificateState {
            config: Arc::new(config),
            looked: Instant::now(),
            changed,
        };
        Ok(Self {
            folder: folder.map(Path::to_owned),
            state: Mutex::new(state),
        })
    }

    pub(super) fn now(&self) -> Arc<ServerConfig> {
        self.at(Instant::now())
    }

    fn at(&self, now: Instant) -> Arc<ServerConfig> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = &self.folder
            && now.saturating_duration_since(state.looked) >= LOOK
        {
            state.looked = now;
            let changed = changed(folder);
            if changed != state.changed {
                // The one that was good is served until there is another good one.
                match read(folder) {
                    Ok(config) => {
                        state.config = Arc::new(config);
                        state.changed = changed;
                    }
                    Err(error) => tracing::warn!(category = error.category(), "{error}"),
                }
            }
        }
        Arc::clone(&state.config)
    }
}

fn changed(folder: &Path) -> Option<SystemTime> {
    let of = |name| folder.join(name).metadata().and_then(|it| it.modified());
    of(CHAIN).ok().max(of(KEY).ok())
}

fn read(folder: &Path) -> Result<ServerConfig> {
    let failed = |source| Error::Certificate {
        place: folder.display().to_string(),
        source,
    };
    let chain = CertificateDer::pem_file_iter(folder.join(CHAIN))
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
        .map_err(|error| failed(error.into()))?;
    let key =
        PrivateKeyDer::from_pem_file(folder.join(KEY)).map_err(|error| failed(error.into()))?;
    config(chain, key).map_err(|error| failed(error.into()))
}

fn made() -> Result<ServerConfig> {
    let failed = |source| Error::Certificate {
        place: "made at start".to_owned(),
        source,
    };
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])
        .map_err(|error| failed(error.into()))?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())
        .map_err(|error| failed(error.into()))?;
    config(vec![made.cert.into()], key).map_err(|error| failed(error.into()))
}

fn config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> std::result::Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, write};

    use evenkeel_testbed::scratch::Scratch;

    use super::*;

    /// Puts another certificate there, as the kubelet does for a Secret, or rubbish in its place.
    fn put(folder: &Path, is_good: bool, at: SystemTime) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let chain = if is_good {
            made.cert.pem()
        } else {
            "rubbish".to_owned()
        };
        for (name, text) in [(CHAIN, chain), (KEY, made.signing_key.serialize_pem())] {
            write(folder.join(name), text).unwrap();
            let file = File::options().write(true).open(folder.join(name));
            file.unwrap().set_modified(at).unwrap();
        }
    }

    /// Covers S10.
    #[test]
    fn a_renewed_certificate_is_served_and_a_spoiled_one_is_not() {
        let folder = Scratch::new("certificate").unwrap();
        let folder = folder.path();
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        put(folder, true, old);
        let certificate = Certificate::open(Some(folder)).unwrap();
        let begin = Instant::now();
        let first = certificate.at(begin + LOOK);
        put(folder, true, old + LOOK);
        let same = certificate.at(begin + LOOK + LOOK / 2);
        assert!(Arc::ptr_eq(&first, &same), "nobody has looked");
        let second = certificate.at(begin + LOOK * 2);
        assert!(!Arc::ptr_eq(&first, &second));
        put(folder, false, old + LOOK * 2);
        let kept = certificate.at(begin + LOOK * 3);
        assert!(Arc::ptr_eq(&second, &kept), "the last good one is served");
        put(folder, true, old + LOOK * 3);
        let third = certificate.at(begin + LOOK * 4);
        assert!(!Arc::ptr_eq(&second, &third));
    }

    #[test]
    fn a_folder_without_a_certificate_is_named() {
        let folder = Scratch::new("certificate").unwrap();
        let error = Certificate::open(Some(folder.path())).err().unwrap();
        let text = error.to_string();
        assert!(
            text.contains(&folder.path().display().to_string()),
            "{text}"
        );
    }
}
