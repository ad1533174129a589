//! What programs find inside: services, registry, doubles, PowerShell.

use std::time::Instant;

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::network::GATEWAY;
use evenkeel_testbed::process::{Running, tell};
use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::{Doing, Error, Result};

use super::{SOON, file, install, instance, service, until_service};

const ENVIRONMENT: &str = r"HKLM\System\CurrentControlSet\Control\Session Manager\Environment";
const PIPE: &str = r"\\.\pipe\containerd-containerd";

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

    let certificate = rcgen::generate_simple_self_signed(["root.test".to_owned()]);
    let certificate = certificate.doing(|| "cannot make a certificate")?.cert;
    std::fs::write(instance.path(r"C:\users\root.der")?, certificate.der())
        .doing(|| "cannot write the certificate")?;
    instance.ask(&["windows-probe", "trust", r"C:\users\root.der"])?;
    instance.ask(&["reg", "add", ENVIRONMENT, "/v", "NEW_ONE", "/d", "1"])?;
    let later = bare.diff(&instance.snapshot()?);
    let [one, two, three] = later.as_slice() else {
        return Err(Error::failed(format!("three things were added: {later:?}")));
    };
    assert_eq!(one, r"+ file C:\users\root.der");
    assert!(two.starts_with("+ root "), "{two}");
    assert_eq!(three, "+ variable NEW_ONE");
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
fn the_double_of_containerd_opens_its_pipe_as_a_service() -> Result<()> {
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
    Ok(())
}

#[test]
fn the_kubelet_double_joins_the_cluster_and_knows_its_reboots() -> Result<()> {
    let Some(mut instance) = instance("kubelet")? else {
        return Ok(());
    };
    let cluster = ControlPlane::shared()?;
    let program = install(&instance, "kubelet-double")?;
    let bootstrap = cluster.bootstrap_kubeconfig()?.at(&GATEWAY.to_string());
    bootstrap.write(&instance.path(r"C:\k\bootstrap")?)?;
    let proxy = ["HTTP_PROXY", "/d", "http://proxy:3128"];
    instance.ask(&[&["reg", "add", ENVIRONMENT, "/v"], proxy.as_slice()].concat())?;
    let address = instance.address().to_string();
    let arguments = [
        r"--kubeconfig=C:\k\kubeconfig",
        r"--bootstrap-kubeconfig=C:\k\bootstrap",
        "--hostname-override=win-under-wine",
        &format!("--node-ip={address}"),
        "--windows-service",
        "--v=4",
    ];
    let create = ["create", "kubelet", "auto", &program];
    service(&instance, &[&create[..], &arguments[..]].concat())?;
    // As on Windows, the service manager reads the Machine environment when it starts.
    instance.reboot()?;
    until_service(&instance, "kubelet", "Running")?;
    let recorded = file(&instance, r"C:\k\kubelet-double.json")?;
    let recorded: serde_json::Value = serde_json::from_str(&recorded).doing(|| recorded)?;
    assert_eq!(recorded["arguments"], serde_json::json!(arguments));
    assert_eq!(recorded["environment"]["HTTP_PROXY"], "http://proxy:3128");

    until("the kubelet's request for a certificate", SOON, || {
        let asked = cluster.kubectl(&["get", "csr", "-o", "name"])?;
        match asked.lines().next() {
            Some(name) => cluster
                .kubectl(&["certificate", "approve", name])
                .map(Look::Found),
            None => Ok(Look::NotYet("no request".to_owned())),
        }
    })?;
    let node = |path: &str| {
        cluster.kubectl(&[
            "get",
            "node",
            "win-under-wine",
            "-o",
            &format!("jsonpath={path}"),
        ])
    };
    let registered = |boot: &str| {
        until("the node with its boot", SOON, || {
            let seen = node("{.status.nodeInfo.bootID}").unwrap_or_else(|error| error.to_string());
            Ok(if seen == boot {
                Look::Found(())
            } else {
                Look::NotYet(seen)
            })
        })
    };
    registered(&instance.boot_id()?)?;
    assert_eq!(node("{.status.nodeInfo.operatingSystem}")?, "windows");
    assert_eq!(
        node(r#"{.status.addresses[?(@.type=="InternalIP")].address}"#)?,
        address
    );
    instance.reboot()?;
    registered(&instance.boot_id()?)?;
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
