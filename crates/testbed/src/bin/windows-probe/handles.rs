//! How many handles a process has open, as the system counts them.

use evenkeel_testbed::{Doing, Error, Result};
use windows_service::service::ServiceAccess;
use windows_service::service_manager::{ServiceManager, ServiceManagerAccess};
use windows_sys::Wdk::System::SystemInformation::{
    NtQuerySystemInformation, SystemProcessInformation,
};
use windows_sys::Win32::Foundation::STATUS_INFO_LENGTH_MISMATCH;
use windows_sys::Win32::System::WindowsProgramming::SYSTEM_PROCESS_INFORMATION;

pub(crate) fn of(service: &str) -> Result<String> {
    let manager = ServiceManager::local_computer(None::<&str>, ServiceManagerAccess::CONNECT)
        .doing(|| "cannot reach the service manager")?;
    let status = manager
        .open_service(service, ServiceAccess::QUERY_STATUS)
        .and_then(|service| service.query_status())
        .doing(|| format!("cannot inspect service {service}"))?;
    let process = status.process_id.unwrap_or_default();
    count(process).map(|count| count.to_string())
}

fn count(process: u32) -> Result<u32> {
    let mut length = 64 * 1024_u32;
    let list = loop {
        let mut list = vec![0_u64; length as usize / 8];
        let mut needed = 0;
        // SAFETY: the list has room for `length` bytes, and is aligned for what is written to it.
        let done = unsafe {
            NtQuerySystemInformation(
                SystemProcessInformation,
                list.as_mut_ptr().cast(),
                length,
                &raw mut needed,
            )
        };
        match done {
            0 => break list,
            STATUS_INFO_LENGTH_MISMATCH => length *= 2,
            other => return Err(Error::failed(format!("no list of processes: {other:#x}"))),
        }
    };
    let bytes: *const u8 = list.as_ptr().cast();
    let mut at = 0;
    loop {
        // SAFETY: each entry begins in the list where the one before it says (under Wine at any byte)
        // and lies in it as a whole; the last one says 0.
        let entry: SYSTEM_PROCESS_INFORMATION = unsafe {
            bytes
                .add(at)
                .cast::<SYSTEM_PROCESS_INFORMATION>()
                .read_unaligned()
        };
        if entry.UniqueProcessId as usize == process as usize {
            return Ok(entry.HandleCount);
        }
        if entry.NextEntryOffset == 0 {
            return Err(Error::failed(format!("there is no process {process}")));
        }
        at += entry.NextEntryOffset as usize;
    }
}
