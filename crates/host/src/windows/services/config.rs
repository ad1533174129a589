//! How a service is configured: read from the manager and written to it.

use std::io;
use std::time::Duration;

use evenkeel_api::names::windows::MANAGED_TAG;
use evenkeel_plan::machine::entry::{ServiceEntry, Start};
use windows_sys::Win32::Foundation::ERROR_INVALID_LEVEL;
use windows_sys::Win32::System::Services::{
    ChangeServiceConfig2W, ChangeServiceConfigW, CreateServiceW, SC_ACTION, SC_ACTION_RESTART,
    SERVICE_CHANGE_CONFIG, SERVICE_CONFIG_DESCRIPTION, SERVICE_CONFIG_FAILURE_ACTIONS,
    SERVICE_CONFIG_FAILURE_ACTIONS_FLAG, SERVICE_CONFIG_PRESHUTDOWN_INFO, SERVICE_DESCRIPTIONW,
    SERVICE_ERROR_NORMAL, SERVICE_FAILURE_ACTIONS_FLAG, SERVICE_FAILURE_ACTIONSW,
    SERVICE_NO_CHANGE, SERVICE_PRESHUTDOWN_INFO, SERVICE_START, SERVICE_WIN32_OWN_PROCESS,
    SERVICE_WIN32_SHARE_PROCESS,
};

use super::{Handle, KEY, count, failed, is, manager, open};
use crate::Result;
use crate::windows::registry::{Key, Value};
use crate::windows::text::{wide, wide_list};

const LOCAL_SYSTEM: &str = "LocalSystem";
/// How long after a crash the manager starts a service of ours again, in milliseconds: the first,
/// the second, and every further time.
const RESTART_AFTER: [u32; 3] = [1_000, 5_000, 30_000];
/// After so many seconds without a crash it begins anew.
const FORGET_AFTER: u32 = 3_600;

/// How a service is configured, as the registry has it; nothing if there is no such service, or only
/// until nobody holds it any more.
pub(super) fn read(name: &str) -> Result<Option<ServiceEntry>> {
    let Some(key) = Key::read(&format!(r"{KEY}\{name}"))? else {
        return Ok(None);
    };
    let number = |name| -> Result<Option<u32>> {
        Ok(match key.value(name)? {
            Some(Value::Number(number)) => Some(number),
            _ => None,
        })
    };
    let text = |name| -> Result<String> {
        Ok(match key.value(name)? {
            Some(Value::Text(text) | Value::Expands(text)) => text,
            _ => String::new(),
        })
    };
    let (Some(start), None) = (number("Start")?, key.value("DeleteFlag")?) else {
        return Ok(None);
    };
    Ok(Some(ServiceEntry {
        command: text("ImagePath")?,
        dependencies: match key.value("DependOnService")? {
            Some(Value::List(names)) => names,
            _ => Vec::new(),
        },
        start: match start {
            2 => Start::Automatic,
            3 => Start::Manual,
            4 => Start::Disabled,
            other => Start::Driver(other),
        },
        description: text("Description")?,
        account: text("ObjectName")?,
        ..ServiceEntry::default()
    }))
}

/// Whether other services may run in the process of this one: then its stop is not the end of that.
pub(in crate::windows) fn shares_its_process(name: &str) -> bool {
    let kind = Key::read(&format!(r"{KEY}\{name}")).ok().flatten();
    let kind = kind.and_then(|key| key.value("Type").ok().flatten());
    matches!(kind, Some(Value::Number(kind)) if kind & SERVICE_WIN32_SHARE_PROCESS != 0)
}

/// Makes the service if it is not there, and configures it.
/// `restarts`: the manager starts it again when it ends by itself.
pub(super) fn write(name: &str, entry: &ServiceEntry, restarts: bool) -> Result<()> {
    let access = SERVICE_CHANGE_CONFIG | SERVICE_START;
    let start = match entry.start {
        Start::Automatic => 2,
        Start::Manual => 3,
        Start::Disabled => 4,
        Start::Driver(other) => other,
    };
    let command = wide(&entry.command);
    let dependencies = wide_list(&entry.dependencies);
    let service = match open(name, access)? {
        Some(service) => {
            change(&service, name, entry, start, &command, &dependencies)?;
            service
        }
        None => create(name, entry, access, start, &command, &dependencies)?,
    };
    describe(&service, name, &entry.description)?;
    if entry.description.starts_with(MANAGED_TAG) {
        restart_on_failure(&service, name, restarts)?;
    }
    Ok(())
}

fn create(
    name: &str,
    entry: &ServiceEntry,
    access: u32,
    start: u32,
    command: &[u16],
    dependencies: &[u16],
) -> Result<Handle> {
    let manager = manager()?;
    let (wide_name, account) = (wide(name), account(entry));
    count();
    // SAFETY: every text ends with a zero and the list with two; null stands for no group, no tag and
    // no password, and as the account for the system's own.
    let service = unsafe {
        CreateServiceW(
            manager.0,
            wide_name.as_ptr(),
            wide_name.as_ptr(),
            access,
            SERVICE_WIN32_OWN_PROCESS,
            start,
            SERVICE_ERROR_NORMAL,
            command.as_ptr(),
            std::ptr::null(),
            std::ptr::null_mut(),
            dependencies.as_ptr(),
            account.as_ref().map_or(std::ptr::null(), Vec::as_ptr),
            std::ptr::null(),
        )
    };
    if !service.is_null() {
        return Ok(Handle(service));
    }
    Err(failed("create", name, io::Error::last_os_error()))
}

fn change(
    service: &Handle,
    name: &str,
    entry: &ServiceEntry,
    start: u32,
    command: &[u16],
    dependencies: &[u16],
) -> Result<()> {
    let now = read(name)?.unwrap_or_default();
    // Naming the account wants a password, so it is named only if it is another one.
    let account = (!now.account.eq_ignore_ascii_case(&entry.account))
        .then(|| account(entry).unwrap_or_else(|| wide(LOCAL_SYSTEM)));
    let password = account.as_ref().map(|_| wide(""));
    let or_null = |text: &Option<Vec<u16>>| text.as_ref().map_or(std::ptr::null(), Vec::as_ptr);
    count();
    // SAFETY: every text ends with a zero and the list with two; null leaves a part as it is.
    let done = unsafe {
        ChangeServiceConfigW(
            service.0,
            SERVICE_NO_CHANGE,
            start,
            SERVICE_NO_CHANGE,
            command.as_ptr(),
            std::ptr::null(),
            std::ptr::null_mut(),
            dependencies.as_ptr(),
            or_null(&account),
            or_null(&password),
            std::ptr::null(),
        )
    };
    checked(done, "configure", name)
}

/// The account to name; none for the system's own.
fn account(entry: &ServiceEntry) -> Option<Vec<u16>> {
    let own = entry.account.is_empty() || entry.account.eq_ignore_ascii_case(LOCAL_SYSTEM);
    (!own).then(|| wide(&entry.account))
}

fn describe(service: &Handle, name: &str, description: &str) -> Result<()> {
    let mut text = wide(description);
    let info = SERVICE_DESCRIPTIONW {
        lpDescription: text.as_mut_ptr(),
    };
    count();
    // SAFETY: the structure is the one that this level wants; its text ends with a zero.
    let done = unsafe {
        ChangeServiceConfig2W(
            service.0,
            SERVICE_CONFIG_DESCRIPTION,
            (&raw const info).cast(),
        )
    };
    checked(done, "describe", name)
}

/// Lets the manager start a service of ours again when it ends by itself, or not; one that is not there, or not ours,
/// stays as it is.
pub(super) fn set_restarts(name: &str, restarts: bool) -> Result<()> {
    let found = read(name)?;
    if !found.is_some_and(|found| found.description.starts_with(MANAGED_TAG)) {
        return Ok(());
    }
    match open(name, SERVICE_CHANGE_CONFIG | SERVICE_START)? {
        Some(service) => restart_on_failure(&service, name, restarts),
        None => Ok(()),
    }
}

/// How long the system waits at a shutdown for a service that asked to be told before.
pub(in crate::windows) fn set_preshutdown(name: &str, wait: Duration) -> Result<()> {
    let Some(service) = open(name, SERVICE_CHANGE_CONFIG)? else {
        return Ok(());
    };
    let info = SERVICE_PRESHUTDOWN_INFO {
        dwPreshutdownTimeout: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
    };
    count();
    // SAFETY: the structure is the one that this level wants.
    let done = unsafe {
        ChangeServiceConfig2W(
            service.0,
            SERVICE_CONFIG_PRESHUTDOWN_INFO,
            (&raw const info).cast(),
        )
    };
    checked(done, "set the preshutdown timeout of", name)
}

/// The manager starts it again when it ends by itself, or has no failure actions for it at all.
fn restart_on_failure(service: &Handle, name: &str, restarts: bool) -> Result<()> {
    let mut actions = RESTART_AFTER.map(|after| SC_ACTION {
        Type: SC_ACTION_RESTART,
        Delay: after,
    });
    let count_of = u32::try_from(actions.len()).unwrap_or_default();
    // No actions and no period, but an array: that deletes those that were there.
    let info = SERVICE_FAILURE_ACTIONSW {
        dwResetPeriod: if restarts { FORGET_AFTER } else { 0 },
        lpRebootMsg: std::ptr::null_mut(),
        lpCommand: std::ptr::null_mut(),
        cActions: if restarts { count_of } else { 0 },
        lpsaActions: actions.as_mut_ptr(),
    };
    count();
    // SAFETY: the structure is the one that this level wants, and its actions outlive the call.
    let done = unsafe {
        ChangeServiceConfig2W(
            service.0,
            SERVICE_CONFIG_FAILURE_ACTIONS,
            (&raw const info).cast(),
        )
    };
    checked(done, "set the failure actions of", name)?;
    if !restarts {
        return Ok(());
    }
    let flag = SERVICE_FAILURE_ACTIONS_FLAG {
        fFailureActionsOnNonCrashFailures: 1,
    };
    count();
    // SAFETY: as above.
    let done = unsafe {
        ChangeServiceConfig2W(
            service.0,
            SERVICE_CONFIG_FAILURE_ACTIONS_FLAG,
            (&raw const flag).cast(),
        )
    };
    if done == 0 && is(&io::Error::last_os_error(), ERROR_INVALID_LEVEL) {
        // Only crashes count there, then.
        return Ok(());
    }
    checked(done, "set the failure flag of", name)
}

fn checked(done: windows_sys::core::BOOL, doing: &str, name: &str) -> Result<()> {
    if done != 0 {
        return Ok(());
    }
    Err(failed(doing, name, io::Error::last_os_error()))
}
