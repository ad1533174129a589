//! What the manager itself tells of a service: that it stops, or that it goes. Some systems tell nothing;
//! then the end of its process and the registry are what there is.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use windows_sys::Win32::Foundation::ERROR_CALL_NOT_IMPLEMENTED;
use windows_sys::Win32::System::Services::{
    NotifyServiceStatusChangeW, SERVICE_NOTIFY_2W, SERVICE_NOTIFY_DELETE_PENDING,
    SERVICE_NOTIFY_STATUS_CHANGE, SERVICE_NOTIFY_STOP_PENDING, SERVICE_NOTIFY_STOPPED,
    SERVICE_QUERY_STATUS,
};

use super::{Handle, count, locked, open};

/// A service that is in such a state already is told of at once: only ask for one that runs.
const WHAT: u32 =
    SERVICE_NOTIFY_STOPPED | SERVICE_NOTIFY_STOP_PENDING | SERVICE_NOTIFY_DELETE_PENDING;

/// Services whose end the manager was asked to tell.
#[derive(Debug, Default)]
pub(in crate::windows) struct Notices {
    asked: Mutex<BTreeMap<String, Notice>>,
    /// This system has no such call.
    is_absent: AtomicBool,
}

/// One question to the manager. While it is open, a service that is deleted stays: close it before you
/// wait for that.
struct Notice {
    told: *mut NoticeBuffer,
    _service: Handle,
}

/// What the manager writes to, and whether it has.
struct NoticeBuffer {
    buffer: SERVICE_NOTIFY_2W,
    is_there: AtomicBool,
}

// SAFETY: what it points to belongs to it alone, but for the manager, which writes it once, and the flag
// that says so, which any thread may read.
unsafe impl Send for Notice {}

impl Notices {
    /// Asks the manager to tell of `name`. It tells the thread that asks, while that waits.
    pub(in crate::windows) fn ask(&self, name: &str) {
        if self.is_absent.load(Ordering::Relaxed) || locked(&self.asked).contains_key(name) {
            return;
        }
        // One that cannot be opened is found by other means, as all were where there is no such call.
        let Ok(Some(service)) = open(name, SERVICE_QUERY_STATUS) else {
            return;
        };
        let told = NoticeBuffer::new();
        count();
        // SAFETY: the service is open to query; the buffer stays until the manager has written it, or
        // for good.
        match unsafe { NotifyServiceStatusChangeW(service.0, WHAT, &raw const (*told).buffer) } {
            0 => {
                let notice = Notice {
                    told,
                    _service: service,
                };
                locked(&self.asked).insert(name.to_owned(), notice);
            }
            code => {
                // SAFETY: it was made above, and nobody was told of it.
                drop(unsafe { Box::from_raw(told) });
                if code == ERROR_CALL_NOT_IMPLEMENTED {
                    self.is_absent.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    /// The services that the manager has told of since. It has to be asked again for more.
    pub(in crate::windows) fn heard(&self) -> Vec<String> {
        let mut asked = locked(&self.asked);
        let heard = asked.extract_if(.., |_, notice| notice.is_there());
        heard.map(|(name, _)| name).collect()
    }

    /// Asks no more about `name`.
    pub(super) fn forget(&self, name: &str) {
        locked(&self.asked).remove(name);
    }
}

impl std::fmt::Debug for Notice {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_tuple("Notice").field(&self.is_there()).finish()
    }
}

impl Notice {
    fn is_there(&self) -> bool {
        // SAFETY: it stays at least as long as this.
        unsafe { (*self.told).is_there.load(Ordering::Acquire) }
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        // What the manager has not written yet it may still write, after the handle is closed too: those
        // hundred bytes stay for good.
        if self.is_there() {
            // SAFETY: it was boxed, the manager is done with it, and nobody else has it.
            drop(unsafe { Box::from_raw(self.told) });
        }
    }
}

impl NoticeBuffer {
    fn new() -> *mut Self {
        let told = Box::into_raw(Box::new(Self {
            buffer: SERVICE_NOTIFY_2W::default(),
            is_there: AtomicBool::new(false),
        }));
        // SAFETY: it was just made, and nobody else has it yet.
        unsafe {
            (*told).buffer.dwVersion = SERVICE_NOTIFY_STATUS_CHANGE;
            (*told).buffer.pfnNotifyCallback = Some(observe);
            (*told).buffer.pContext = told.cast();
        }
        told
    }
}

/// Called by the manager, in the thread that asked, while it waits.
unsafe extern "system" fn observe(buffer: *const c_void) {
    let buffer = buffer.cast::<SERVICE_NOTIFY_2W>();
    // SAFETY: the manager gives back the buffer it was given, which is part of what its context points to.
    unsafe {
        let told = (*buffer).pContext.cast::<NoticeBuffer>();
        (*told).is_there.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use windows_sys::Win32::System::Threading::{GetCurrentThread, QueueUserAPC, SleepEx};

    use super::*;

    /// As the manager calls it.
    unsafe extern "system" fn told(told: usize) {
        let told = told as *const NoticeBuffer;
        // SAFETY: the test keeps it.
        unsafe { observe((&raw const (*told).buffer).cast()) };
    }

    #[test]
    fn what_the_manager_tells_is_heard_once_by_the_thread_that_waits() {
        let notices = Notices::default();
        let service = open("Eventlog", SERVICE_QUERY_STATUS).unwrap();
        let at = NoticeBuffer::new();
        let notice = Notice {
            told: at,
            _service: service.expect("every Windows has it"),
        };
        locked(&notices.asked).insert("Eventlog".to_owned(), notice);
        // SAFETY: the thread is this one; what it is given stays until the test has heard it.
        let queued = unsafe { QueueUserAPC(Some(told), GetCurrentThread(), at as usize) };
        assert_ne!(queued, 0);
        assert!(notices.heard().is_empty(), "nobody waited yet");
        // SAFETY: it takes numbers only.
        unsafe { SleepEx(0, 1) };
        assert_eq!(notices.heard(), ["Eventlog"]);
        assert!(notices.heard().is_empty());
    }

    #[test]
    fn a_system_that_tells_nothing_is_asked_once() {
        let notices = Notices::default();
        notices.ask("Eventlog");
        let asked = !locked(&notices.asked).is_empty();
        assert_ne!(asked, notices.is_absent.load(Ordering::Relaxed));
        println!("proof: the manager tells of services: {asked}");
        notices.ask("no such service");
        assert!(!locked(&notices.asked).contains_key("no such service"));
        notices.forget("Eventlog");
        assert!(locked(&notices.asked).is_empty());
    }
}
