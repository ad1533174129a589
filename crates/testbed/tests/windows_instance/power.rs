//! How an instance boots, reboots and ends.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_testbed::process::{Running, tell};
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::windows_instance::WindowsInstance;
use evenkeel_testbed::{Doing, Result, need};
use rustix::process::Signal;

use super::{SOON, install, instance, is_started, service, this_test, until_service};

#[test]
fn an_automatic_service_runs_again_after_every_kind_of_reboot() -> Result<()> {
    let Some(mut instance) = instance("reboots")? else {
        return Ok(());
    };
    let program = install(&instance, "service-double")?;
    service(
        &instance,
        &[
            "create",
            "svc",
            "auto",
            &program,
            "--record",
            r"C:\k\record.json",
        ],
    )?;
    service(&instance, &["create", "idle", "manual", &program])?;
    let mut boots = vec![instance.boot_id()?];
    for how in [
        "the owner",
        "shutdown.exe",
        "ExitWindowsEx",
        "shutdown and power on",
        "a cut",
    ] {
        let start = Instant::now();
        let first = instance.process()?;
        let last = instance.boot_id()?;
        match how {
            "the owner" => instance.reboot()?,
            "shutdown.exe" => {
                instance
                    .ssh()?
                    .arg("shutdown /r /t 0")
                    .status()
                    .doing(|| "cannot run ssh")?;
                instance.until_rebooted(&last)?;
            }
            "ExitWindowsEx" => {
                instance.run(&["windows-probe", "reboot"])?;
                instance.until_rebooted(&last)?;
            }
            "a cut" => {
                instance.cut()?;
                assert!(!instance.is_on()?);
                instance.power_on()?;
            }
            _ => {
                instance.shutdown()?;
                assert!(instance.ask(&["hostname"]).is_err());
                instance.power_on()?;
            }
        }
        tell(&format!("rebooted by {how} in {:?}", start.elapsed()));
        let boot = instance.boot_id()?;
        assert!(!boots.contains(&boot), "{how}: the boot id is an old one");
        boots.push(boot);
        assert!(
            !PathBuf::from(format!("/proc/{first}")).exists(),
            "{how}: process {first} lives"
        );
        until_service(&instance, "svc", "Running")?;
        assert_eq!(service(&instance, &["state", "idle"])?, "Stopped");
    }
    instance.run(&["shutdown", "/s"])?;
    until("the instance to be off", SOON, || {
        Ok(if instance.is_on()? {
            Look::NotYet("on".to_owned())
        } else {
            Look::Found(())
        })
    })
}

/// What an instance is made of on this machine.
struct Traces {
    name_space: PathBuf,
    folder: PathBuf,
}

impl Traces {
    fn of(instance: &WindowsInstance) -> Result<Self> {
        Ok(Self {
            name_space: name_space(&instance.process()?.to_string())?,
            folder: instance.folder().to_owned(),
        })
    }

    /// Waits until no process of the instance lives, and with the last of them its mounts and its
    /// network are gone, and until its folder is.
    fn until_gone(&self) -> Result<()> {
        until("every trace of the instance to go", SOON, || {
            let processes = self.processes()?;
            let folder = self.folder.exists();
            Ok(if processes.is_empty() && !folder {
                Look::Found(())
            } else {
                Look::NotYet(format!("processes {processes:?}, folder there: {folder}"))
            })
        })
    }

    fn processes(&self) -> Result<Vec<String>> {
        let all = std::fs::read_dir("/proc").doing(|| "cannot read /proc")?;
        let names = all.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let ours = |pid: &String| name_space(pid).is_ok_and(|it| it == self.name_space);
        Ok(names.filter(ours).collect())
    }
}

fn name_space(pid: &str) -> Result<PathBuf> {
    let link = Path::new("/proc").join(pid).join("ns/net");
    std::fs::read_link(&link).doing(|| format!("cannot read {}", link.display()))
}

#[test]
fn nothing_is_left_of_an_instance_that_was_dropped() -> Result<()> {
    let Some(instance) = instance("dropped")? else {
        return Ok(());
    };
    let traces = Traces::of(&instance)?;
    assert!(traces.processes()?.len() > 5, "Wine and sshd run");
    drop(instance);
    traces.until_gone()
}

#[test]
fn nothing_is_left_of_an_instance_whose_owner_was_killed() -> Result<()> {
    if need::skip(&WindowsInstance::NEEDS)? {
        return Ok(());
    }
    let scratch = Scratch::new("owner")?;
    let log = scratch.path().join("log");
    let mut command = this_test("power::an_owner_to_be_killed")?;
    let mut owner = Running::start("the owner", &mut command, &log)?;
    let traces = until("the owner's instance", Duration::from_mins(2), || {
        owner.still_runs()?;
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let words = text
            .lines()
            .find_map(|line| line.strip_prefix("instance: ")?.split_once(' '));
        Ok(match words {
            Some((name_space, folder)) => Look::Found(Traces {
                name_space: name_space.into(),
                folder: folder.into(),
            }),
            None => Look::NotYet(text),
        })
    })?;
    assert!(traces.processes()?.len() > 5 && traces.folder.exists());
    owner.signal(Signal::KILL)?;
    traces.until_gone()
}

#[test]
#[ignore = "another test starts it as a process, to kill it"]
fn an_owner_to_be_killed() -> Result<()> {
    if !is_started() {
        return Ok(());
    }
    let Some(instance) = instance("owned")? else {
        return Ok(());
    };
    let traces = Traces::of(&instance)?;
    println!(
        "instance: {} {}",
        traces.name_space.display(),
        traces.folder.display()
    );
    until("being killed", SOON, || {
        Ok(Look::NotYet("alive".to_owned()))
    })
}
