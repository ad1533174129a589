//! `evenkeel-operator payload seal`: writes the manifest of a payload.

use std::path::Path;

use evenkeel_api::windows::payload::{self, MANIFEST, Manifest};
use evenkeel_api::windows::version::Version;

use super::{PayloadError, folder};

/// Seals `folder` as `version`, and returns what was sealed. The manifest is replaced in one step, and
/// only if the payload can be used.
pub(crate) fn seal(folder: &Path, version: Version) -> Result<Manifest, PayloadError> {
    let found = folder::files(folder)?;
    let sealed = payload::seal(version, found, |name| folder::text(folder, name));
    let manifest = sealed.map_err(|problems| PayloadError::Refused {
        folder: folder.display().to_string(),
        problems,
    })?;
    let (path, new) = (
        folder.join(MANIFEST),
        folder.join(format!("..{MANIFEST}.new")),
    );
    std::fs::write(&new, manifest.text()).map_err(|error| PayloadError::reading(&new, &error))?;
    std::fs::rename(&new, &path).map_err(|error| PayloadError::reading(&path, &error))?;
    Ok(manifest)
}
