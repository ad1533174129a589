//! The payload: the sealed folder of everything that a Windows instance gets. It is opened here, held to
//! its manifest, and listed; what is made from the configuration of workers is added in memory.

mod folder;
mod seal;

use std::path::{Path, PathBuf};
use std::rc::Rc;

use evenkeel_api::windows::payload::{self, MANIFEST, Manifest, Opened, SEAL};
use evenkeel_api::windows::services::Template;
use evenkeel_api::windows::version::Version;
use evenkeel_api::windows::worker::Worker;
use evenkeel_plan::windows::payload::{Composed, compose};
use evenkeel_plan::windows::proxy::ProxySettings;
use serde_json::{Map, Value};

pub(crate) use seal::seal;

/// Why a payload is not used.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum PayloadError {
    #[error("cannot read {path}: {reason}")]
    Unreadable { path: String, reason: String },
    #[error("payload {folder} has no {MANIFEST}: run `{SEAL} {folder}`")]
    NotSealed { folder: String },
    #[error("payload {folder} is refused: {}", problems.join("; "))]
    Refused {
        folder: String,
        problems: Vec<String>,
    },
}

impl PayloadError {
    /// The word for it in Events, metrics and logs.
    pub(crate) const CATEGORY: &str = "InvalidPayload";

    fn reading(path: &Path, error: &std::io::Error) -> Self {
        Self::Unreadable {
            path: path.display().to_string(),
            reason: error.to_string(),
        }
    }
}

/// A payload that is what was sealed.
#[derive(Debug)]
pub(crate) struct Payload {
    folder: PathBuf,
    manifest: Manifest,
    template: Template,
    kubelet: Map<String, Value>,
}

/// A file that an instance gets.
#[derive(Clone)]
pub(crate) struct Brought {
    /// Where it is on the instance.
    pub(crate) path: String,
    /// SHA-256 of its contents.
    pub(crate) checksum: String,
    pub(crate) source: FileSource,
}

/// Where the contents of a file are.
#[derive(Clone)]
pub(crate) enum FileSource {
    /// In the payload.
    Local(PathBuf),
    /// In memory: they were made from the configuration of workers, and may be a login.
    Made(Rc<[u8]>),
}

impl Payload {
    /// Opens the payload in `folder`, and refuses it if any file is not the one that was sealed. Reads all
    /// of it: not for a thread that others wait for.
    pub(crate) fn open(folder: &Path) -> Result<Self, PayloadError> {
        let shown = folder.display().to_string();
        let found = folder::files(folder)?;
        if !folder.join(MANIFEST).is_file() {
            return Err(PayloadError::NotSealed { folder: shown });
        }
        let opened = payload::open(&found, |name| folder::text(folder, name));
        let Opened {
            manifest,
            template,
            kubelet,
            warnings,
        } = opened.map_err(|problems| PayloadError::Refused {
            folder: shown,
            problems,
        })?;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        Ok(Self {
            folder: folder.to_owned(),
            manifest,
            template,
            kubelet,
        })
    }

    /// The version that instances with this payload run.
    pub(crate) fn version(&self) -> &Version {
        &self.manifest.version
    }

    /// How many files were sealed.
    pub(crate) fn count(&self) -> usize {
        self.manifest.files.len()
    }

    /// Folders that an instance must have before its services start.
    pub(crate) fn folders(&self) -> &[String] {
        &self.template.folders
    }

    /// What instances get, where workers are configured so and this is the proxy.
    pub(crate) fn compose(&self, worker: &Worker, proxy: &ProxySettings) -> Composed {
        compose(&self.manifest, &self.template, &self.kubelet, worker, proxy)
    }

    /// All files that an instance gets, shipped and made.
    pub(crate) fn files(&self, composed: &Composed) -> Vec<Brought> {
        let shipped = self.manifest.copied().map(|(path, file)| Brought {
            path,
            checksum: file.checksum.clone(),
            source: FileSource::Local(self.folder.join(&file.path)),
        });
        let made = composed.derived.iter().map(|file| Brought {
            path: file.path.to_owned(),
            checksum: file.checksum.clone(),
            source: FileSource::Made(file.contents.as_slice().into()),
        });
        shipped.chain(made).collect()
    }
}
