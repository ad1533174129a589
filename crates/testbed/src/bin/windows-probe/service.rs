//! Services, through the Service Control Manager.

use std::ffi::OsString;
use std::path::PathBuf;

use evenkeel_testbed::{Error, Result};
use windows_service::service::{
    ServiceAccess, ServiceErrorControl, ServiceInfo, ServiceStartType, ServiceState, ServiceType,
};
use windows_service::service_manager::{ServiceManager, ServiceManagerAccess};

use crate::meddle;

pub(crate) fn ask(words: &[&str]) -> Result<String> {
    let manager = ServiceManager::local_computer(
        None::<&str>,
        ServiceManagerAccess::CONNECT | ServiceManagerAccess::CREATE_SERVICE,
    )
    .map_err(|error| failed("reach the service manager", &error))?;
    let (["create", name, ..] | [_, name]) = words else {
        return Err(Error::failed(
            "service create|start|stop|delete|state NAME …",
        ));
    };
    let said = |error| failed(&words.join(" "), &error);
    if let ["create", name, start, program, arguments @ ..] = words {
        manager
            .create_service(
                &info(name, start, program, arguments)?,
                ServiceAccess::START,
            )
            .map_err(said)?;
        return Ok("created".to_owned());
    }
    let service = manager
        .open_service(name, ServiceAccess::ALL_ACCESS)
        .map_err(said)?;
    match words {
        ["start", _] => service.start::<OsString>(&[]).map_err(said)?,
        ["stop", _] => {
            service.stop().map_err(said)?;
        }
        ["delete", _] => service.delete().map_err(said)?,
        ["state", _] => {
            let status = service.query_status().map_err(said)?;
            let process = status.process_id.unwrap_or_default();
            // The manager may say so of one whose process is gone (Wine).
            if status.current_state == ServiceState::Running && !meddle::lives(process) {
                return Ok("Ended".to_owned());
            }
            return Ok(format!("{:?}", status.current_state));
        }
        _ => return Err(Error::failed(format!("unknown: {}", words.join(" ")))),
    }
    Ok("done".to_owned())
}

fn info(name: &str, start: &str, program: &str, arguments: &[&str]) -> Result<ServiceInfo> {
    Ok(ServiceInfo {
        name: name.into(),
        display_name: name.into(),
        service_type: ServiceType::OWN_PROCESS,
        start_type: match start {
            "auto" => ServiceStartType::AutoStart,
            "manual" => ServiceStartType::OnDemand,
            other => {
                return Err(Error::failed(format!(
                    "start is auto or manual, not {other}"
                )));
            }
        },
        error_control: ServiceErrorControl::Normal,
        executable_path: PathBuf::from(program),
        launch_arguments: arguments.iter().map(OsString::from).collect(),
        dependencies: Vec::new(),
        account_name: None,
        account_password: None,
    })
}

/// With what the system said, which the error itself keeps to itself.
pub(crate) fn failed(what: &str, error: &windows_service::Error) -> Error {
    let source = match error {
        windows_service::Error::Winapi(source) => source.to_string(),
        other => other.to_string(),
    };
    Error::because(format!("cannot {what}"), source)
}
