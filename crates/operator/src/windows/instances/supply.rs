//! What a new node gets: its files, and where it finds the API server.

use evenkeel_api::names::windows;
use evenkeel_api::windows::version::Version;
use evenkeel_plan::windows::instances::{FailureKind, InstanceFailure};

use crate::windows::payload::FileSource;
use crate::windows::pool::Ready;
use crate::windows::ssh::{Contents, Error, Local, Result};

/// All that a new node gets.
pub(crate) struct Supply {
    /// The version that it runs then.
    pub(crate) version: Version,
    /// SHA-256 of its services.
    pub(crate) hash: String,
    pub(crate) files: Vec<Local>,
    /// Folders that must be there before its services start.
    pub(crate) folders: Vec<String>,
    /// The script on it that says what its Node is called.
    pub(crate) node_name_script: Option<String>,
    /// The API server, as instances reach it, and how they know it.
    pub(crate) server: String,
    pub(crate) authority: Option<Vec<u8>>,
    /// The login with which kubelets ask for their own.
    pub(crate) bootstrap: Vec<u8>,
}

impl Supply {
    /// The agent among its files.
    pub(crate) fn agent(&self) -> Result<&Local> {
        let agent = self.files.iter().find(|it| it.place == windows::AGENT);
        agent.ok_or_else(|| Error::Payload {
            path: windows::AGENT.to_owned(),
            why: "it is missing: add it".to_owned(),
        })
    }

    /// What a payload and the configuration of workers come to.
    pub(crate) fn of(ready: &Ready) -> Result<Self, InstanceFailure> {
        let Ready {
            payload,
            composed,
            worker,
        } = ready;
        let mut files = Vec::new();
        for file in payload.files(composed) {
            let (size, contents) = match &file.source {
                FileSource::Made(bytes) => {
                    let size = u64::try_from(bytes.len()).unwrap_or_default();
                    (size, Contents::Bytes(bytes[..].into()))
                }
                FileSource::Local(path) => {
                    let size = std::fs::metadata(path).map(|it| it.len());
                    let size = size.map_err(|error| InstanceFailure::new(FailureKind::PayloadIncomplete, format!(
                            "cannot read payload file {} ({error}): restore it and seal the payload again",
                            path.display()
                        )))?;
                    (size, Contents::File(path.clone()))
                }
            };
            files.push(Local {
                place: file.path,
                checksum: file.checksum,
                size,
                contents,
            });
        }
        Ok(Self {
            version: composed.version.clone(),
            hash: composed.hash.clone(),
            files,
            folders: payload.folders().to_vec(),
            node_name_script: composed.services.node_name_script().map(str::to_owned),
            server: worker.server.clone(),
            authority: worker.server_ca.clone(),
            bootstrap: worker.bootstrap_kubeconfig.clone(),
        })
    }
}
