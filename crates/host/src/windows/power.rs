//! Which boot this is, and the next one.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_plan::machine::record::BootId;

use super::registry::{Key, Value};
use crate::{Error, Result};

/// A key that no boot outlives: whoever looks first after one gives it its name.
const KEY: &str = r"SOFTWARE\Evenkeel\Boot";
const NAME: &str = "Id";
const WHY: &str = "Evenkeel: a configuration change needs a reboot";

/// Which boot this is.
pub(super) fn boot_id() -> Result<BootId> {
    let key = Key::volatile(KEY)?;
    if let Some(Value::Text(id)) = key.value(NAME)? {
        return Ok(BootId(id));
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let id = format!(
        "{}-{}",
        since.unwrap_or_default().as_nanos(),
        std::process::id()
    );
    key.set(NAME, &id, false)?;
    Ok(BootId(id))
}

/// Boots the machine anew, in good order.
pub(super) fn reboot() -> Result<()> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| Error::Services {
        doing: "reboot".to_owned(),
        source,
    };
    let said = Command::new(system("shutdown.exe"))
        .args(["/r", "/f", "/t", "0", "/d", "p:2:4", "/c", WHY])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.into()))?;
    if said.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&said.stderr);
    Err(failed(
        format!("shutdown.exe ended with {}: {}", said.status, words.trim()).into(),
    ))
}

/// A program of Windows itself, wherever that is.
pub(super) fn system(program: &str) -> PathBuf {
    let windows =
        std::env::var_os("SystemRoot").map_or_else(|| r"C:\Windows".into(), PathBuf::from);
    windows.join("System32").join(program)
}
