//! The agent under the Service Control Manager: it says how it is, and stops when it is told to.

use std::ffi::OsString;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use evenkeel_api::names::windows::AGENT_SERVICE;
use evenkeel_daemon::Stop;
use evenkeel_host::windows::event_log;
use windows_service::define_windows_service;
use windows_service::service::{
    ServiceControl, ServiceControlAccept, ServiceExitCode, ServiceState, ServiceStatus, ServiceType,
};
use windows_service::service_control_handler::{self, ServiceControlHandlerResult};

use super::arguments::CommandLine;

/// How long the manager waits for the stop that it asked for, also before a shutdown; the work has 20 s, the last
/// Events 3.
pub(super) const STOP: Duration = Duration::from_secs(30);

static LINE: OnceLock<CommandLine> = OnceLock::new();
static SERVICE: OnceLock<Service> = OnceLock::new();

define_windows_service!(service_entry, service_main);

/// This service, for whoever hears a control or has something to report.
struct Service {
    stop: Stop,
    lifecycle: Mutex<Option<Lifecycle>>,
}

/// What the manager was told of this service.
struct Lifecycle {
    stage: ServiceStage,
    tell: Box<dyn Fn(ServiceStatus) + Send>,
}

/// How far a service is. There is no way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ServiceStage {
    Registered,
    Running,
    Stopping,
    /// With the code that says whether it failed.
    Stopped(u32),
}

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
    let service = SERVICE.get_or_init(|| Service {
        stop: Stop::default(),
        lifecycle: Mutex::new(None),
    });
    // The handler keeps nothing: it may be called once more after the stop that it was told of.
    let registered = service_control_handler::register(AGENT_SERVICE, |control| match control {
        ServiceControl::Stop | ServiceControl::Shutdown | ServiceControl::Preshutdown => {
            if let Some(service) = SERVICE.get() {
                // The manager is told at once that the stop was heard, and not only when it is over.
                service.reach(ServiceStage::Stopping);
                service.stop.stop();
            }
            ServiceControlHandlerResult::NoError
        }
        ServiceControl::Interrogate => ServiceControlHandlerResult::NoError,
        _ => ServiceControlHandlerResult::NotImplemented,
    });
    let (Ok(handle), Some(line)) = (registered, LINE.get()) else {
        return;
    };
    service.is_heard_by(Lifecycle {
        stage: ServiceStage::Registered,
        // Nobody is left to tell if the manager itself is gone.
        tell: Box::new(move |status| _ = handle.set_service_status(status)),
    });
    service.reach(ServiceStage::Running);
    let ended = super::run(line.clone(), service.stop.clone());
    if let Err(error) = &ended {
        tracing::error!("{error:#}");
        // It may be the log that cannot be written.
        event_log::report_error(AGENT_SERVICE, &format!("{error:#}"));
    }
    service.reach(ServiceStage::Stopped(u32::from(ended.is_err())));
}

impl Service {
    fn is_heard_by(&self, lifecycle: Lifecycle) {
        let mut heard = self
            .lifecycle
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *heard = Some(lifecycle);
    }

    fn reach(&self, stage: ServiceStage) {
        let mut heard = self
            .lifecycle
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(lifecycle) = heard.as_mut() {
            lifecycle.reach(stage);
        }
    }
}

impl Lifecycle {
    /// Tells the manager, unless it was told of a later stage: after the stop it must hear nothing more, because the
    /// process may be another one's by then.
    fn reach(&mut self, stage: ServiceStage) {
        if stage > self.stage && !matches!(self.stage, ServiceStage::Stopped(_)) {
            self.stage = stage;
            (self.tell)(status(stage));
        }
    }
}

fn status(stage: ServiceStage) -> ServiceStatus {
    let (current_state, code) = match stage {
        ServiceStage::Registered => (ServiceState::StartPending, 0),
        ServiceStage::Running => (ServiceState::Running, 0),
        ServiceStage::Stopping => (ServiceState::StopPending, 0),
        ServiceStage::Stopped(code) => (ServiceState::Stopped, code),
    };
    let is_stopping = stage == ServiceStage::Stopping;
    ServiceStatus {
        service_type: ServiceType::OWN_PROCESS,
        current_state,
        // A shutdown leaves a few seconds; before it there is as much time as the service was given.
        controls_accepted: if stage == ServiceStage::Running {
            ServiceControlAccept::STOP
                | ServiceControlAccept::PRESHUTDOWN
                | ServiceControlAccept::SHUTDOWN
        } else {
            ServiceControlAccept::empty()
        },
        exit_code: ServiceExitCode::Win32(code),
        checkpoint: u32::from(is_stopping),
        wait_hint: if is_stopping { STOP } else { Duration::ZERO },
        process_id: None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Covers W10.
    #[test]
    fn nothing_is_reported_after_the_stop_whoever_comes_late() {
        let (told, hears) = mpsc::channel();
        let service = Service {
            stop: Stop::default(),
            lifecycle: Mutex::new(None),
        };
        // Before there is anybody to tell.
        service.reach(ServiceStage::Running);
        service.is_heard_by(Lifecycle {
            stage: ServiceStage::Registered,
            tell: Box::new(move |status| told.send(status).unwrap()),
        });
        service.reach(ServiceStage::Running);
        std::thread::scope(|threads| {
            for _ in 0..8 {
                threads.spawn(|| {
                    service.reach(ServiceStage::Stopping);
                    service.reach(ServiceStage::Stopped(1));
                    service.reach(ServiceStage::Stopped(2));
                    service.reach(ServiceStage::Stopping);
                    service.reach(ServiceStage::Running);
                });
            }
        });
        let told: Vec<_> = hears.try_iter().collect();
        let states: Vec<_> = told.iter().map(|it| it.current_state).collect();
        let stopped = [
            ServiceState::Running,
            ServiceState::StopPending,
            ServiceState::Stopped,
        ];
        assert_eq!(states, stopped);
        assert_eq!(told[2].exit_code, ServiceExitCode::Win32(1));
        let accepts: Vec<_> = told.iter().map(|it| it.controls_accepted).collect();
        assert!(accepts[0].contains(ServiceControlAccept::PRESHUTDOWN));
        assert!(accepts[1].is_empty() && accepts[2].is_empty());
        assert_eq!(told[1].wait_hint, STOP);
    }
}
