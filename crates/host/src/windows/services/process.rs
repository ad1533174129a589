//! The process of a service: whether it lives, and how it ended.

use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle, RawHandle};

use windows_sys::Win32::Foundation::WAIT_TIMEOUT;
use windows_sys::Win32::System::Threading::{
    GetExitCodeProcess, OpenProcess, PROCESS_QUERY_LIMITED_INFORMATION, PROCESS_SYNCHRONIZE,
    PROCESS_TERMINATE, TerminateProcess, WaitForSingleObject,
};

/// The exit code of a process that we end because it does not end by itself.
const ENDED_BY_US: u32 = 1;

/// A process that lived when it was opened. While this is held, its number is not given to another.
#[derive(Debug)]
pub(in crate::windows) struct Process {
    handle: OwnedHandle,
    id: u32,
}

impl Process {
    /// The process with this number, if there is one.
    pub(in crate::windows) fn open(id: u32) -> Option<Self> {
        Self::with(id, PROCESS_SYNCHRONIZE | PROCESS_QUERY_LIMITED_INFORMATION)
    }

    fn with(id: u32, access: u32) -> Option<Self> {
        if id == 0 {
            return None;
        }
        // SAFETY: the call takes numbers only.
        let handle = unsafe { OpenProcess(access, 0, id) };
        if handle.is_null() {
            return None;
        }
        // SAFETY: the handle is open and nobody else's.
        let handle = unsafe { OwnedHandle::from_raw_handle(handle) };
        Some(Self { handle, id })
    }

    pub(in crate::windows) const fn id(&self) -> u32 {
        self.id
    }

    pub(in crate::windows) fn handle(&self) -> RawHandle {
        self.handle.as_raw_handle()
    }

    /// Whether it still lives.
    pub(in crate::windows) fn lives(&self) -> bool {
        // SAFETY: the handle is open and may be waited for.
        unsafe { WaitForSingleObject(self.handle(), 0) == WAIT_TIMEOUT }
    }

    /// How it ended.
    pub(in crate::windows) fn exit_code(&self) -> Option<u32> {
        let mut code = 0;
        // SAFETY: the handle is open to query; `code` is written before it is read.
        let done = unsafe { GetExitCodeProcess(self.handle(), &raw mut code) };
        (done != 0 && !self.lives()).then_some(code)
    }
}

/// Ends the process with this number, if it lives.
pub(super) fn terminate(id: u32) {
    if let Some(process) = Process::with(id, PROCESS_TERMINATE | PROCESS_SYNCHRONIZE) {
        // SAFETY: the handle is open to terminate.
        unsafe {
            TerminateProcess(process.handle(), ENDED_BY_US);
        }
    }
}
