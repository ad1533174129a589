//! Changes of a key under `HKEY_LOCAL_MACHINE`, and how soon they are noticed.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_testbed::{Error, Result};
use windows_sys::Win32::Foundation::{CloseHandle, WAIT_OBJECT_0};
use windows_sys::Win32::System::Registry::{
    HKEY, HKEY_LOCAL_MACHINE, KEY_NOTIFY, KEY_SET_VALUE, REG_NOTIFY_CHANGE_LAST_SET, REG_SZ,
    RRF_NOEXPAND, RRF_RT_ANY, RegCloseKey, RegCreateKeyExW, RegDeleteValueW, RegGetValueW,
    RegNotifyChangeKeyValue, RegSetValueExW,
};
use windows_sys::Win32::System::Threading::{CreateEventW, WaitForSingleObject};

const PATIENCE_MS: u32 = 30_000;

/// An open key; closed when dropped.
struct Key(HKEY);

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: the handle was opened by us and is closed once.
        unsafe {
            RegCloseKey(self.0);
        }
    }
}

pub(crate) fn watch(path: &str) -> Result<String> {
    let key = open(path, KEY_NOTIFY)?;
    // SAFETY: no security attributes and no name; the handle is closed below.
    let event = unsafe { CreateEventW(std::ptr::null(), 0, 0, std::ptr::null()) };
    // SAFETY: both handles are open.
    let armed = unsafe { RegNotifyChangeKeyValue(key.0, 0, REG_NOTIFY_CHANGE_LAST_SET, event, 1) };
    check("cannot watch", path, armed)?;
    println!("watching");
    std::io::stdout().flush().ok();
    // SAFETY: the event is open; it is closed once, after the wait.
    let woken = unsafe {
        let woken = WaitForSingleObject(event, PATIENCE_MS);
        CloseHandle(event);
        woken
    };
    if woken == WAIT_OBJECT_0 {
        return Ok(now());
    }
    Err(Error::failed(format!(
        "{path} did not change within {PATIENCE_MS} ms"
    )))
}

pub(crate) fn set(path: &str, name: &str, value: &str) -> Result<String> {
    let key = open(path, KEY_SET_VALUE)?;
    let (name, data) = (wide(name), wide(value));
    let length = u32::try_from(data.len() * 2).unwrap_or(u32::MAX);
    let before = now();
    // SAFETY: `name` and `data` end with a zero, and `length` is that of `data` in bytes.
    let done = unsafe {
        RegSetValueExW(
            key.0,
            name.as_ptr(),
            0,
            REG_SZ,
            data.as_ptr().cast(),
            length,
        )
    };
    check("cannot write", path, done)?;
    Ok(before)
}

/// The bytes of a value; nothing if there is no such key or value.
pub(crate) fn value(path: &str, name: &str) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 4096];
    let mut length = u32::try_from(bytes.len()).unwrap_or_default();
    let (path, name) = (wide(path), wide(name));
    // SAFETY: both texts end with a zero, and there is room for `length` bytes.
    let done = unsafe {
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            path.as_ptr(),
            name.as_ptr(),
            RRF_RT_ANY | RRF_NOEXPAND,
            std::ptr::null_mut(),
            bytes.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    bytes.truncate(length as usize);
    (done == 0).then_some(bytes)
}

/// Removes a value.
pub(crate) fn unset(path: &str, name: &str) -> Result<()> {
    let key = open(path, KEY_SET_VALUE)?;
    let name = wide(name);
    // SAFETY: the key is open and the name ends with a zero.
    let done = unsafe { RegDeleteValueW(key.0, name.as_ptr()) };
    check("cannot remove a value of", path, done)
}

fn open(path: &str, access: u32) -> Result<Key> {
    let mut key = std::ptr::null_mut();
    let name = wide(path);
    // SAFETY: `name` ends with a zero; `key` is written before it is used.
    let opened = unsafe {
        RegCreateKeyExW(
            HKEY_LOCAL_MACHINE,
            name.as_ptr(),
            0,
            std::ptr::null(),
            0,
            access,
            std::ptr::null(),
            &raw mut key,
            std::ptr::null_mut(),
        )
    };
    check("cannot open", path, opened)?;
    Ok(Key(key))
}

fn check(what: &str, path: &str, code: u32) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    Err(Error::failed(format!(r"{what} HKLM\{path}: error {code}")))
}

fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().chain([0]).collect()
}

/// Microseconds of the clock, the same for all processes.
/// In microseconds since 1970.
pub(crate) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_micros().to_string()
}
