//! The machine's event log, for what nobody else can be told any more.

use windows_sys::Win32::System::EventLog::{
    DeregisterEventSource, EVENTLOG_ERROR_TYPE, RegisterEventSourceW, ReportEventW,
};

use super::text::wide;

/// The number of our one kind of entry.
const FATAL: u32 = 1;

/// Writes an error of the program `source`. Says whether the system took it.
pub fn report_error(source: &str, text: &str) -> bool {
    let (source, text) = (wide(source), wide(text));
    let texts = [text.as_ptr()];
    // SAFETY: all texts end with a zero and outlive the calls; the handle is closed once.
    unsafe {
        let log = RegisterEventSourceW(std::ptr::null(), source.as_ptr());
        if log.is_null() {
            return false;
        }
        let done = ReportEventW(
            log,
            EVENTLOG_ERROR_TYPE,
            0,
            FATAL,
            std::ptr::null_mut(),
            1,
            0,
            texts.as_ptr(),
            std::ptr::null(),
        );
        DeregisterEventSource(log);
        done != 0
    }
}
