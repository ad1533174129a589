//! What a machine keeps of what it was provisioned from. Read only; which of it counts is decided in `plan`.

use evenkeel_plan::machine::provision::{Provision, ProvisionFile, files};
use evenkeel_plan::machine::record::Record;

use crate::Result;
use crate::disk::{Disk, Host};
use crate::execute::State;

/// What the machine's own files say.
pub fn found<D: Disk>(disk: &D) -> Provision {
    let kept = files().filter_map(|(path, extent)| {
        let text = match disk.read(path) {
            Ok(text) => Ok(text?),
            Err(error) => Err(error.with_causes()),
        };
        Some(ProvisionFile { path, extent, text })
    });
    Provision::of_files(&kept.collect::<Vec<_>>())
}

/// What is remembered of the machine, and with what its first configuration is compared if that is still to come.
pub fn record<H: Host>(host: &H, state: &State) -> Result<Record> {
    let record = state.record(host)?;
    if record.is_new() {
        return Ok(record.adopting(&found(host.disk()))?);
    }
    Ok(record)
}
