//! How an instance is reached from outside, and that it is not another one.

use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;
use std::time::Instant;

use evenkeel_testbed::network::GATEWAY;
use evenkeel_testbed::process::{run, tell};
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::windows_instance::WindowsInstance;
use evenkeel_testbed::{Doing, Result};

use super::instance;

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
fn programs_inside_reach_this_machine_by_the_name_it_was_given() -> Result<()> {
    let Some(instance) = instance("reaching")? else {
        return Ok(());
    };
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).doing(|| "cannot listen")?;
    let port = listener.local_addr().doing(|| "no port")?.port();
    let name = format!("api.test:{port}");
    assert!(instance.ask(&["windows-probe", "connect", &name]).is_err());
    instance.add_host("api.test", GATEWAY)?;
    let reached = instance.ask(&["windows-probe", "connect", &name])?;
    assert_eq!(reached, format!("{GATEWAY}:{port}"));
    let (_, from) = listener.accept().doing(|| "nobody came")?;
    assert_eq!(from.ip(), instance.address());
    Ok(())
}
