//! Keys below `HKEY_LOCAL_MACHINE`: read, written, removed, made durable.

use std::io;

use windows_sys::Win32::Foundation::{
    ERROR_FILE_NOT_FOUND, ERROR_KEY_DELETED, ERROR_MORE_DATA, ERROR_NO_MORE_ITEMS,
};
use windows_sys::Win32::System::Registry::{
    HKEY, HKEY_LOCAL_MACHINE, KEY_NOTIFY, KEY_READ, KEY_SET_VALUE, REG_DWORD, REG_EXPAND_SZ,
    REG_MULTI_SZ, REG_OPTION_VOLATILE, REG_SZ, REG_VALUE_TYPE, RegCloseKey, RegCreateKeyExW,
    RegDeleteTreeW, RegDeleteValueW, RegEnumKeyExW, RegFlushKey, RegOpenKeyExW, RegQueryInfoKeyW,
    RegQueryValueExW, RegSetValueExW,
};

use super::text::{narrow, narrow_list, wide};
use crate::{Error, Result};

/// The longest name of a key, with its zero.
const LONGEST_KEY: usize = 256;

/// An open key; closed when dropped.
#[derive(Debug)]
pub(super) struct Key {
    handle: HKEY,
    path: String,
}

/// A value, of the kinds that matter here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// A text.
    Text(String),
    /// A text in which names between percent signs stand for variables.
    Expands(String),
    /// Several texts.
    List(Vec<String>),
    /// A number.
    Number(u32),
    /// Something else.
    Other,
}

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: the handle was opened by us and is closed once.
        unsafe {
            RegCloseKey(self.handle);
        }
    }
}

// SAFETY: the handle of a key belongs to the process; every thread may use it.
unsafe impl Send for Key {}

impl Key {
    /// Opens a key to read it; `None` if there is none.
    pub(super) fn read(path: &str) -> Result<Option<Self>> {
        Self::open(path, KEY_READ)
    }

    /// Opens a key to read and write its values.
    pub(super) fn write(path: &str) -> Result<Self> {
        let found = Self::open(path, KEY_READ | KEY_SET_VALUE)?;
        found.ok_or_else(|| failed("open", path, ERROR_FILE_NOT_FOUND))
    }

    /// Opens a key to be told when it changes; `None` if there is none.
    pub(super) fn notify(path: &str) -> Result<Option<Self>> {
        Self::open(path, KEY_READ | KEY_NOTIFY)
    }

    fn open(path: &str, access: u32) -> Result<Option<Self>> {
        let mut handle = std::ptr::null_mut();
        let name = wide(path);
        // SAFETY: `name` ends with a zero; `handle` is only used if the call says that it is set.
        let code = unsafe {
            RegOpenKeyExW(
                HKEY_LOCAL_MACHINE,
                name.as_ptr(),
                0,
                access,
                &raw mut handle,
            )
        };
        match code {
            0 => Ok(Some(Self {
                handle,
                path: path.to_owned(),
            })),
            ERROR_FILE_NOT_FOUND => Ok(None),
            code => Err(failed("open", path, code)),
        }
    }

    /// Opens a key that is gone with the next boot, and makes it if need be.
    pub(super) fn volatile(path: &str) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        let name = wide(path);
        // SAFETY: as above; the pointers that are null are allowed to be.
        let code = unsafe {
            RegCreateKeyExW(
                HKEY_LOCAL_MACHINE,
                name.as_ptr(),
                0,
                std::ptr::null(),
                REG_OPTION_VOLATILE,
                KEY_READ | KEY_SET_VALUE,
                std::ptr::null(),
                &raw mut handle,
                std::ptr::null_mut(),
            )
        };
        if code == 0 {
            return Ok(Self {
                handle,
                path: path.to_owned(),
            });
        }
        Err(failed("make", path, code))
    }

    /// Whether somebody has deleted it since it was opened.
    pub(super) fn is_deleted(&self) -> bool {
        // SAFETY: the key is open; what is not asked for may be null.
        let code = unsafe {
            RegQueryInfoKeyW(
                self.handle,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        code == ERROR_KEY_DELETED
    }

    /// The handle, for calls that wait for changes.
    pub(super) const fn handle(&self) -> HKEY {
        self.handle
    }

    /// A value, if it is there.
    pub(super) fn value(&self, name: &str) -> Result<Option<Value>> {
        let wide_name = wide(name);
        let mut units: Vec<u16> = vec![0; 512];
        loop {
            let mut kind: REG_VALUE_TYPE = 0;
            let mut length = u32::try_from(units.len() * 2).unwrap_or(u32::MAX);
            // SAFETY: `units` has room for `length` bytes; the name ends with a zero.
            let code = unsafe {
                RegQueryValueExW(
                    self.handle,
                    wide_name.as_ptr(),
                    std::ptr::null(),
                    &raw mut kind,
                    units.as_mut_ptr().cast(),
                    &raw mut length,
                )
            };
            let enough = (length as usize).div_ceil(2);
            match code {
                0 => {
                    units.truncate(enough);
                    return Ok(Some(match kind {
                        REG_SZ => Value::Text(narrow(&units)),
                        REG_EXPAND_SZ => Value::Expands(narrow(&units)),
                        REG_MULTI_SZ => Value::List(narrow_list(&units)),
                        REG_DWORD => Value::Number(number(&units)),
                        _ => Value::Other,
                    }));
                }
                ERROR_MORE_DATA => units.resize(enough.max(units.len() * 2), 0),
                // A key that somebody deletes while it is read has no values any more.
                ERROR_FILE_NOT_FOUND | ERROR_KEY_DELETED => return Ok(None),
                code => return Err(failed("read", &self.at(name), code)),
            }
        }
    }

    /// Sets a text.
    pub(super) fn set(&self, name: &str, value: &str, expands: bool) -> Result<()> {
        let (wide_name, data) = (wide(name), wide(value));
        let kind = if expands { REG_EXPAND_SZ } else { REG_SZ };
        let length = u32::try_from(data.len() * 2).unwrap_or(u32::MAX);
        // SAFETY: `data` is `length` bytes long and ends with a zero, as the name does.
        let code = unsafe {
            RegSetValueExW(
                self.handle,
                wide_name.as_ptr(),
                0,
                kind,
                data.as_ptr().cast(),
                length,
            )
        };
        done("write", &self.at(name), code)
    }

    /// Removes a value; that it is not there is fine.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        let wide_name = wide(name);
        // SAFETY: the name ends with a zero.
        match unsafe { RegDeleteValueW(self.handle, wide_name.as_ptr()) } {
            ERROR_FILE_NOT_FOUND | ERROR_KEY_DELETED => Ok(()),
            code => done("remove", &self.at(name), code),
        }
    }

    /// Removes a key with all that is below it; that it is not there is fine.
    pub(super) fn delete(path: &str) -> Result<()> {
        let wide_path = wide(path);
        // SAFETY: the path ends with a zero.
        match unsafe { RegDeleteTreeW(HKEY_LOCAL_MACHINE, wide_path.as_ptr()) } {
            ERROR_FILE_NOT_FOUND | ERROR_KEY_DELETED => Ok(()),
            code => done("remove", path, code),
        }
    }

    /// The names of the keys below.
    pub(super) fn below(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for index in 0.. {
            let mut name = [0; LONGEST_KEY];
            let mut length = u32::try_from(LONGEST_KEY).unwrap_or_default();
            // SAFETY: `name` has room for `length` units; the pointers that are null may be.
            let code = unsafe {
                RegEnumKeyExW(
                    self.handle,
                    index,
                    name.as_mut_ptr(),
                    &raw mut length,
                    std::ptr::null(),
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                )
            };
            match code {
                ERROR_NO_MORE_ITEMS => break,
                code => done("list", &self.path, code)?,
            }
            names.push(narrow(&name));
        }
        Ok(names)
    }

    /// Makes what was written below this key durable.
    pub(super) fn flush(&self) -> Result<()> {
        // SAFETY: the key is open.
        done("sync to disk", &self.path, unsafe {
            RegFlushKey(self.handle)
        })
    }

    fn at(&self, name: &str) -> String {
        format!(r"{}\{name}", self.path)
    }
}

/// A number, as it is kept in units of text: the lower half first.
fn number(units: &[u16]) -> u32 {
    let half = |at: usize| u32::from(units.get(at).copied().unwrap_or_default());
    half(0) | half(1) << 16
}

fn done(doing: &'static str, path: &str, code: u32) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    Err(failed(doing, path, code))
}

/// The system's words for `code`, on `path`.
pub(super) fn failed(doing: &'static str, path: &str, code: u32) -> Error {
    let said = io::Error::from_raw_os_error(code.cast_signed());
    Error::path(doing, format!(r"HKLM\{path}"), said)
}
