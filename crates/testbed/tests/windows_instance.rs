//! What a Windows instance of the test bed promises, proved on real ones.
#![cfg(target_os = "linux")]

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_testbed::process::{Running, run, tell};
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::windows_instance::{WindowsInstance, windows_program};
use evenkeel_testbed::{Doing, Error, Result, need};

const SOON: Duration = Duration::from_secs(20);
const PIPE: &str = r"\\.\pipe\containerd-containerd";

/// An instance, or none if this machine has not what it needs.
fn instance(name: &str) -> Result<Option<WindowsInstance>> {
    if need::skip(&WindowsInstance::NEEDS)? {
        return Ok(None);
    }
    let start = Instant::now();
    let instance = WindowsInstance::boot(name)?;
    tell(&format!("{name} booted in {:?}", start.elapsed()));
    Ok(Some(instance))
}

fn install(instance: &WindowsInstance, bin: &str) -> Result<String> {
    let place = format!(r"C:\k\{bin}.exe");
    instance.install(&windows_program("evenkeel-testbed", bin)?, &place)?;
    Ok(place)
}

fn service(instance: &WindowsInstance, words: &[&str]) -> Result<String> {
    instance.ask(&[&["windows-probe", "service"], words].concat())
}

fn until_service(instance: &WindowsInstance, name: &str, wanted: &str) -> Result<()> {
    until(&format!("service {name} to be {wanted}"), SOON, || {
        let state = service(instance, &["state", name])?;
        Ok(if state == wanted {
            Look::Found(())
        } else {
            Look::NotYet(state)
        })
    })
}

fn file(instance: &WindowsInstance, windows: &str) -> Result<String> {
    let path = instance.path(windows)?;
    until(windows, SOON, || {
        Ok(match std::fs::read_to_string(&path) {
            Ok(text) => Look::Found(text),
            Err(error) => Look::NotYet(error.to_string()),
        })
    })
}

#[test]
fn a_service_is_created_runs_stops_and_is_removed_and_nothing_is_left() -> Result<()> {
    let Some(instance) = instance("services")? else {
        return Ok(());
    };
    let start = Instant::now();
    let bare = instance.snapshot()?;
    tell(&format!("a snapshot took {:?}", start.elapsed()));
    let program = install(&instance, "service-double")?;
    let record = r"C:\k\record.json";
    service(
        &instance,
        &[
            "create", "svc", "manual", &program, "--record", record, "a b",
        ],
    )?;
    assert_eq!(service(&instance, &["state", "svc"])?, "Stopped");
    service(&instance, &["start", "svc"])?;
    until_service(&instance, "svc", "Running")?;
    let recorded: serde_json::Value =
        serde_json::from_str(&file(&instance, record)?).doing(|| record)?;
    assert_eq!(
        recorded["arguments"],
        serde_json::json!(["--record", record, "a b"])
    );
    assert_eq!(recorded["environment"]["COMPUTERNAME"], "SERVICES");

    let later = bare.diff(&instance.snapshot()?);
    for line in [
        r"+ file C:\k\service-double.exe",
        r"+ folder C:\k",
        r"+ service svc\ImagePath",
    ] {
        assert!(
            later.iter().any(|it| it == line),
            "{line} is not in {later:#?}"
        );
    }
    service(&instance, &["stop", "svc"])?;
    until_service(&instance, "svc", "Stopped")?;
    service(&instance, &["delete", "svc"])?;
    let gone = service(&instance, &["state", "svc"])
        .err()
        .map(|it| it.to_string());
    assert!(
        gone.is_some_and(|it| it.contains("1060")),
        "the service is still there"
    );
    std::fs::remove_dir_all(instance.path(r"C:\k")?).doing(|| r"cannot remove C:\k")?;
    assert_eq!(bare.diff(&instance.snapshot()?), Vec::<String>::new());
    Ok(())
}

#[test]
fn a_change_of_the_registry_is_noticed_by_another_process() -> Result<()> {
    let Some(instance) = instance("registry")? else {
        return Ok(());
    };
    let key = r"SOFTWARE\Evenkeel\Test";
    let log = instance.folder().join("watch.log");
    let mut command = instance.command(&["windows-probe", "registry", "watch", key])?;
    let mut watcher = Running::start("the watcher", &mut command, &log)?;
    let mut lines = |count: usize| {
        until("the watcher's next line", SOON, || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let lines: Vec<_> = text.lines().map(|it| it.trim().to_owned()).collect();
            if lines.len() >= count {
                return Ok(Look::Found(lines));
            }
            watcher.still_runs()?;
            Ok(Look::NotYet(text))
        })
    };
    assert_eq!(lines(1)?, ["watching"]);
    let set = instance.ask(&["windows-probe", "registry", "set", key, "value", "new"])?;
    let noticed = lines(2)?.pop().unwrap_or_default();
    let micros = |text: &str| text.parse::<u64>().doing(|| format!("no time: {text}"));
    let took = micros(&noticed)?.checked_sub(micros(&set)?);
    let took = took.ok_or_else(|| Error::failed("noticed before it was changed"))?;
    tell(&format!(
        "a change of the registry was noticed after {took} µs"
    ));
    assert!(took < 1_000_000, "{took} µs");
    Ok(())
}

#[test]
fn commands_and_large_files_go_through_ssh_and_sftp() -> Result<()> {
    let Some(instance) = instance("ssh-test")? else {
        return Ok(());
    };
    let said = run(instance.ssh()?.arg("hostname"))?;
    assert_eq!(said.trim(), "SSH-TEST");
    let quoted = run(instance.ssh()?.arg(r#"echo "a b" & echo %COMPUTERNAME%"#))?;
    assert_eq!(
        quoted.split_whitespace().collect::<Vec<_>>(),
        [r#""a"#, r#"b""#, "SSH-TEST"]
    );
    let status = instance
        .ssh()?
        .arg("exit 7")
        .status()
        .doing(|| "cannot run ssh")?;
    assert_eq!(status.code(), Some(7));
    let host_key = instance.host_key()?;
    assert!(host_key.starts_with("ssh-ed25519 "), "{host_key}");

    let scratch = Scratch::new("sftp")?;
    let [up, down, batch] = ["up", "down", "batch"].map(|it| scratch.path().join(it));
    let script = "head -c 52428800 /dev/urandom >\"$1\"; sha256sum <\"$1\"";
    let sum = run(Command::new("sh").args(["-c", script, "sh"]).arg(&up))?;
    let lines = format!(
        "-mkdir /C:/k\nput {} /C:/k/large.bin\nget /C:/k/large.bin {}\n",
        up.display(),
        down.display()
    );
    std::fs::write(&batch, lines).doing(|| "cannot write the batch")?;
    let start = Instant::now();
    run(&mut instance.sftp(&batch)?)?;
    tell(&format!(
        "50 MB went there and back in {:?}",
        start.elapsed()
    ));
    let inside = run(instance.ssh()?.arg(r"windows-probe sha256 C:\k\large.bin"))?;
    assert!(
        sum.starts_with(inside.trim()),
        "{sum} here, {inside} inside"
    );
    assert_eq!(
        run(Command::new("sha256sum").arg(&down))?.get(..64),
        sum.get(..64)
    );

    let other = scratch.path().join("other");
    run(Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(&other))?;
    let as_other = || -> Result<String> {
        let mut ssh = Command::new("ssh");
        ssh.args([
            "-F",
            "none",
            "-o",
            "BatchMode=yes",
            "-o",
            "StrictHostKeyChecking=no",
        ]);
        ssh.args([
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "IdentitiesOnly=yes",
            "-i",
        ]);
        run(ssh
            .arg(&other)
            .args([&format!("core@{}", instance.address()), "ver"]))
    };
    assert!(as_other().is_err(), "a stranger logged in");
    let public = std::fs::read_to_string(other.with_extension("pub")).doing(|| "cannot read it")?;
    instance.authorize(&public)?;
    instance.add_user("core")?;
    assert!(as_other()?.contains("Windows 10."));
    Ok(())
}

#[test]
fn two_instances_have_their_own_address_name_registry_and_disk() -> Result<()> {
    let Some(one) = instance("first")? else {
        return Ok(());
    };
    let two = WindowsInstance::boot("Second-1")?;
    assert_ne!(one.address(), two.address());
    for (instance, name) in [(&one, "FIRST"), (&two, "SECOND-1")] {
        assert_eq!(instance.computer_name(), name);
        assert_eq!(instance.ask(&["hostname"])?, name);
        let output = instance.cmd("echo %COMPUTERNAME%")?;
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), name);
        let addresses = instance.ask(&["ipconfig"])?;
        assert!(
            addresses.contains(&instance.address().to_string()),
            "{addresses}"
        );
    }
    one.ask(&[
        "reg",
        "add",
        r"HKLM\Software\Evenkeel",
        "/v",
        "here",
        "/d",
        "1",
    ])?;
    std::fs::write(one.path(r"C:\here.txt")?, "1").doing(|| r"cannot write C:\here.txt")?;
    assert!(
        two.ask(&["reg", "query", r"HKLM\Software\Evenkeel"])
            .is_err()
    );
    assert!(!two.path(r"C:\here.txt")?.exists());
    assert_eq!(one.path(r"c:\HERE.TXT")?, one.drive_c().join("here.txt"));
    assert!(WindowsInstance::boot("a name with spaces").is_err());
    Ok(())
}

#[test]
fn the_doubles_of_containerd_and_kubelet_run_as_services() -> Result<()> {
    let Some(instance) = instance("doubles")? else {
        return Ok(());
    };
    let program = install(&instance, "containerd-double")?;
    assert!(instance.ask(&["windows-probe", "pipe", PIPE]).is_err());
    service(
        &instance,
        &[
            "create",
            "containerd",
            "manual",
            &program,
            "--delay-ms",
            "200",
        ],
    )?;
    service(&instance, &["start", "containerd"])?;
    let said = until("containerd's pipe", SOON, || {
        Ok(match instance.ask(&["windows-probe", "pipe", PIPE]) {
            Ok(said) => Look::Found(said),
            Err(error) => Look::NotYet(error.to_string()),
        })
    })?;
    assert_eq!(said, "k");
    assert_eq!(instance.ask(&["windows-probe", "pipe", PIPE])?, "k");
    service(&instance, &["stop", "containerd"])?;
    until_service(&instance, "containerd", "Stopped")?;
    assert!(instance.ask(&["windows-probe", "pipe", PIPE]).is_err());
    let died = instance.run(&[&program, "--console", "--die", "3"])?;
    assert_eq!(died.status.code(), Some(3));

    let program = install(&instance, "kubelet-double")?;
    std::fs::write(instance.path(r"C:\k\kubeconfig")?, "{}").doing(|| "cannot write it")?;
    let proxy = ["HTTP_PROXY", "/d", "http://proxy:3128"];
    let environment = r"HKLM\System\CurrentControlSet\Control\Session Manager\Environment";
    instance.ask(&[&["reg", "add", environment, "/v"], proxy.as_slice()].concat())?;
    let arguments = [
        r"--kubeconfig=C:\k\kubeconfig",
        "--windows-service",
        "--v=4",
    ];
    service(
        &instance,
        &[
            &["create", "kubelet", "manual", &program],
            arguments.as_slice(),
        ]
        .concat(),
    )?;
    service(&instance, &["start", "kubelet"])?;
    until_service(&instance, "kubelet", "Running")?;
    let recorded = file(&instance, r"C:\k\kubelet-double.json")?;
    let recorded: serde_json::Value = serde_json::from_str(&recorded).doing(|| recorded)?;
    assert_eq!(recorded["arguments"], serde_json::json!(arguments));
    tell(&format!(
        "HTTP_PROXY: {}",
        recorded["environment"]["HTTP_PROXY"]
    ));
    Ok(())
}

#[test]
fn the_powershell_stand_in_runs_a_script_and_fails_on_what_it_does_not_know() -> Result<()> {
    let Some(instance) = instance("powershell")? else {
        return Ok(());
    };
    let script = "Write-Output \"10.0.0.7 on $env:COMPUTERNAME\"\r\nexit 4\r\n";
    std::fs::write(instance.path(r"C:\net ip.ps1")?, script).doing(|| "cannot write the script")?;
    let output = instance.cmd(r#"powershell.exe -NoProfile -File "C:\net ip.ps1""#)?;
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        (said.trim(), output.status.code()),
        ("10.0.0.7 on POWERSHELL", Some(4))
    );

    let failed = instance.ask(&["powershell", "-Command", "Get-HnsNetwork"]);
    let sentence = failed.err().map(|it| it.to_string()).unwrap_or_default();
    assert!(
        sentence.contains("does not know the statement: Get-HnsNetwork"),
        "{sentence}"
    );
    Ok(())
}

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
