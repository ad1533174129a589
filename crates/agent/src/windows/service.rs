//! The agent under the Service Control Manager: it says how it is, and stops when it is told to.

use std::ffi::OsString;
use std::sync::OnceLock;
use std::time::Duration;

use evenkeel_api::names::windows::AGENT_SERVICE;
use evenkeel_daemon::Stop;
use evenkeel_host::windows::event_log;
use windows_service::define_windows_service;
use windows_service::service::{
    ServiceControl, ServiceControlAccept, ServiceExitCode, ServiceState, ServiceStatus, ServiceType,
};
use windows_service::service_control_handler::{
    self, ServiceControlHandlerResult, ServiceStatusHandle,
};

use super::arguments::CommandLine;

/// How long the manager waits for the stop that it asked for; the work has 20 s, the last Events 3.
const STOP: Duration = Duration::from_secs(30);

static LINE: OnceLock<CommandLine> = OnceLock::new();

define_windows_service!(service_entry, service_main);

/// Runs `line` under the Service Control Manager.
pub(crate) fn run(line: CommandLine) -> anyhow::Result<()> {
    // There is one command line in a process, and one `main`.
    _ = LINE.set(line);
    windows_service::service_dispatcher::start(AGENT_SERVICE, service_entry).map_err(|error| {
        anyhow::anyhow!(
            "--windows-service works only under the Service Control Manager: run `sc start {AGENT_SERVICE}`, \
             or leave the flag out ({error})"
        )
    })
}

fn service_main(_: Vec<OsString>) {
    let stop = Stop::default();
    let heard = stop.clone();
    let registered =
        service_control_handler::register(AGENT_SERVICE, move |control| match control {
            ServiceControl::Stop | ServiceControl::Shutdown | ServiceControl::Preshutdown => {
                heard.stop();
                ServiceControlHandlerResult::NoError
            }
            ServiceControl::Interrogate => ServiceControlHandlerResult::NoError,
            _ => ServiceControlHandlerResult::NotImplemented,
        });
    let (Ok(handle), Some(line)) = (registered, LINE.get()) else {
        return;
    };
    report(handle, ServiceState::Running, 0);
    let asked = stop.clone();
    // The manager is told at once that the stop was heard, and not only when it is over.
    std::thread::spawn(move || {
        if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() {
            runtime.block_on(asked.stopped());
            report(handle, ServiceState::StopPending, 0);
        }
    });
    let ended = super::run(line.clone(), stop.clone());
    if let Err(error) = &ended {
        tracing::error!("{error:#}");
        // It may be the log that cannot be written.
        event_log::report_error(AGENT_SERVICE, &format!("{error:#}"));
    }
    report(handle, ServiceState::Stopped, u32::from(ended.is_err()));
}

fn report(handle: ServiceStatusHandle, state: ServiceState, code: u32) {
    let accepted = if state == ServiceState::Running {
        ServiceControlAccept::STOP | ServiceControlAccept::SHUTDOWN
    } else {
        ServiceControlAccept::empty()
    };
    let wait_hint = if state == ServiceState::StopPending {
        STOP
    } else {
        Duration::ZERO
    };
    // Nobody is left to tell if the manager itself is gone.
    _ = handle.set_service_status(ServiceStatus {
        service_type: ServiceType::OWN_PROCESS,
        current_state: state,
        controls_accepted: accepted,
        exit_code: ServiceExitCode::Win32(code),
        checkpoint: 0,
        wait_hint,
        process_id: None,
    });
}
