//! The name next to a path under which its next contents are made ready.

use evenkeel_plan::machine::entry::Hash;

/// The name under which a path is made ready. It is the same each time, so that leftovers are found.
pub(crate) fn temporary(path: &str) -> String {
    let hash = Hash::of(path.as_bytes()).to_string();
    format!(
        "{}/.evenkeel-{}",
        folder_of(path).trim_end_matches('/'),
        &hash[..16]
    )
}

/// The folder that holds `path`.
pub(crate) fn folder_of(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(end) => &path[..end],
    }
}
