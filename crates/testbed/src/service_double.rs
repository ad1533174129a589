//! A double that runs as a Windows service: under the Service Control Manager, or with `--console`
//! in the foreground.
//!
//! This is only the outside of a service: status, stop control, exit code, and the crash that a test
//! may ask for. What a double does while it runs is its program's.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use windows_service::define_windows_service;
use windows_service::service::{
    ServiceControl, ServiceControlAccept, ServiceExitCode, ServiceState, ServiceStatus, ServiceType,
};
use windows_service::service_control_handler::{
    self, ServiceControlHandlerResult, ServiceStatusHandle,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, TerminateProcess};

use crate::Result;
use crate::arguments::Arguments;

/// What a double does while its service runs, until it is told to stop.
pub type Work = fn(&Arguments, &Stop) -> Result<()>;

static WORK: OnceLock<Work> = OnceLock::new();

define_windows_service!(service_entry, service_main);

/// Whether the service was told to stop.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<(Mutex<bool>, Condvar)>);

impl Stop {
    /// Waits until it is told to stop, or until `limit` has passed; says whether it was told.
    pub fn within(&self, limit: Duration) -> bool {
        let (told, changed) = &*self.0;
        let told = told.lock().unwrap_or_else(PoisonError::into_inner);
        let (told, _) = changed
            .wait_timeout_while(told, limit, |told| !*told)
            .unwrap_or_else(PoisonError::into_inner);
        *told
    }

    /// Waits until it is told to stop.
    pub fn wait(&self) {
        while !self.within(Duration::from_hours(1)) {}
    }

    fn tell(&self) {
        let (told, changed) = &*self.0;
        *told.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
    }
}

/// The whole `main` of a double: under the Service Control Manager, or here and now if one of the
/// arguments is `--console`.
pub fn main(work: Work) -> ExitCode {
    if std::env::args().any(|argument| argument == "--console") {
        return match carry_out(work, &Stop::default()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    // A second `main` in one process does not happen; the first work stays.
    let _ = WORK.set(work);
    // The name is of no meaning for a service that has its process to itself.
    match windows_service::service_dispatcher::start("double", service_entry) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "this program is a service: start it with sc.exe, or run it with --console: {error}"
            );
            ExitCode::FAILURE
        }
    }
}

fn carry_out(work: Work, stop: &Stop) -> Result<()> {
    let arguments = Arguments::of_this_process();
    crash_if_told(&arguments, stop);
    work(&arguments, stop)
}

/// `--die CODE` makes any double crash with that code: at once, or `--die-after-ms N` later.
fn crash_if_told(arguments: &Arguments, stop: &Stop) {
    let Some(code) = arguments.number("--die") else {
        return;
    };
    let code = u32::try_from(code).unwrap_or(1);
    let after = Duration::from_millis(arguments.number("--die-after-ms").unwrap_or_default());
    if after.is_zero() {
        return die(code);
    }
    let stop = stop.clone();
    std::thread::spawn(move || {
        if !stop.within(after) {
            die(code);
        }
    });
}

/// Ends this process without a word to the Service Control Manager, as a crash does.
fn die(code: u32) {
    // SAFETY: both calls take no memory of ours; the pseudo handle of this process is always valid.
    unsafe {
        TerminateProcess(GetCurrentProcess(), code);
    }
}

/// A service has no terminal: why it failed is written next to its program, as `NAME.error.txt`.
fn write_down(error: &crate::Error) {
    if let Ok(program) = std::env::current_exe() {
        let _ = std::fs::write(program.with_extension("error.txt"), error.to_string());
    }
}

fn service_main(_arguments: Vec<OsString>) {
    let stop = Stop::default();
    let heard = stop.clone();
    let registered = service_control_handler::register("double", move |control| match control {
        ServiceControl::Stop | ServiceControl::Shutdown => {
            heard.tell();
            ServiceControlHandlerResult::NoError
        }
        ServiceControl::Interrogate => ServiceControlHandlerResult::NoError,
        _ => ServiceControlHandlerResult::NotImplemented,
    });
    let (Ok(handle), Some(work)) = (registered, WORK.get()) else {
        return;
    };
    // `--starts-within-ms N` lets any double take its time.
    if let Some(pause) = Arguments::of_this_process().number("--starts-within-ms") {
        report(handle, ServiceState::StartPending, 0);
        std::thread::sleep(Duration::from_millis(pause));
    }
    report(handle, ServiceState::Running, 0);
    let done = carry_out(*work, &stop);
    // `--stops-within-ms N` lets any double take its time.
    if let Some(pause) = Arguments::of_this_process().number("--stops-within-ms") {
        report(handle, ServiceState::StopPending, 0);
        std::thread::sleep(Duration::from_millis(pause));
    }
    if let Err(error) = &done {
        write_down(error);
    }
    report(handle, ServiceState::Stopped, u32::from(done.is_err()));
}

fn report(handle: ServiceStatusHandle, state: ServiceState, code: u32) {
    let accepts = if state == ServiceState::Running {
        ServiceControlAccept::STOP | ServiceControlAccept::SHUTDOWN
    } else {
        ServiceControlAccept::empty()
    };
    // Nobody is left to tell if the manager itself is gone.
    let _ = handle.set_service_status(ServiceStatus {
        service_type: ServiceType::OWN_PROCESS,
        current_state: state,
        controls_accepted: accepts,
        exit_code: ServiceExitCode::Win32(code),
        checkpoint: 0,
        wait_hint: Duration::from_secs(u64::from(state == ServiceState::StopPending)),
        process_id: None,
    });
}
