//! The agent's logs in one bundle, for whoever has to find out what happened. No value of a variable,
//! no login and no contents of a file is ever logged, so there is nothing to take out.

use std::io::Write;

use evenkeel_api::names::windows::LOGS;
use evenkeel_daemon::{Error, Result};
use evenkeel_host::disk::{Disk, Host};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::machine::Machine;
use super::{HostResult, questions};

/// Writes a compressed archive: every log file, and `inspect.json`.
pub(crate) fn bundle(out: &mut impl Write) -> Result<()> {
    let machine = Machine::open();
    let disk = machine.host.disk();
    let folder = LOGS.trim_end_matches('\\');
    let failed =
        |error: std::io::Error| Error::work(format!("cannot write the log bundle: {error}"));
    let mut archive = tar::Builder::new(GzEncoder::new(out, Compression::default()));
    let mut add = |name: &str, contents: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(contents.len() as u64);
        header.set_mode(0o644);
        archive
            .append_data(&mut header, format!("evenkeel-agent/{name}"), contents)
            .map_err(failed)
    };
    let about = questions::this_machine()?.to_string();
    add("inspect.json", about.as_bytes())?;
    for name in disk.list(folder).or_fail()? {
        let contents = disk.read(&format!(r"{folder}\{name}"));
        // One that was rotated away meanwhile is in the next one.
        if let Some(contents) = contents.or_fail()? {
            add(&name, &contents)?;
        }
    }
    let compressed = archive.into_inner().map_err(failed)?;
    let out = compressed.finish().map_err(failed)?;
    out.flush().map_err(failed)
}
