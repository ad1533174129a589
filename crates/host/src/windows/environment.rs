//! Environment variables of the machine, which every program gets that starts after the next boot.

use evenkeel_plan::machine::entry::Entry;
use windows_sys::Win32::UI::WindowsAndMessaging::{
    HWND_BROADCAST, SMTO_ABORTIFHUNG, SendMessageTimeoutW, WM_SETTINGCHANGE,
};

use super::registry::{Key, Value};
use super::text::wide;
use crate::Result;

/// Where they are.
pub(super) const KEY: &str = r"SYSTEM\CurrentControlSet\Control\Session Manager\Environment";
/// How long one window may take to hear of a change, in milliseconds.
const PATIENCE: u32 = 100;

/// What the variable `name` is.
pub(super) fn look(name: &str) -> Result<Entry> {
    let value = match Key::read(KEY)? {
        Some(key) => key.value(name)?,
        None => None,
    };
    Ok(match value {
        None => Entry::Absent,
        Some(Value::Text(value)) => Entry::Variable {
            value,
            expands: false,
        },
        Some(Value::Expands(value)) => Entry::Variable {
            value,
            expands: true,
        },
        Some(Value::List(_) | Value::Number(_) | Value::Other) => Entry::Other,
    })
}

/// Sets or removes it, and tells whoever has a window.
pub(super) fn put(name: &str, entry: &Entry) -> Result<()> {
    let key = Key::write(KEY)?;
    match entry {
        Entry::Variable { value, expands } => key.set(name, value, *expands)?,
        _ => key.remove(name)?,
    }
    broadcast();
    Ok(())
}

/// Tells running programs that the environment has changed; the shell then gives it to what it starts.
fn broadcast() {
    let area = wide("Environment");
    // SAFETY: the text outlives the call, which returns when each window has answered or is given up;
    // the answer is not asked for.
    unsafe {
        SendMessageTimeoutW(
            HWND_BROADCAST,
            WM_SETTINGCHANGE,
            0,
            area.as_ptr() as isize,
            SMTO_ABORTIFHUNG,
            PATIENCE,
            std::ptr::null_mut(),
        );
    }
}
