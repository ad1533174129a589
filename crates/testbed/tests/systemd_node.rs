//! A node is a real machine to everything that talks to it, and leaves nothing behind.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::network::GATEWAY;
use evenkeel_testbed::process::run;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::{Doing, Error, Result, SystemdNode, need};

const OWNER: &str = env!("CARGO_BIN_EXE_systemd-node");
const DEADLINE: Duration = Duration::from_secs(20);

#[test]
fn a_unit_starts_over_d_bus() -> Result<()> {
    if need::skip(SystemdNode::NEEDS)? {
        return Ok(());
    }
    let node = SystemdNode::boot("unit")?;
    node.write(
        "/etc/systemd/system/probe.service",
        "[Service]\nExecStart=/usr/bin/sleep infinity\n",
    )?;
    let manager = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1"];
    let call = |arguments: &[&str]| {
        let interface = "org.freedesktop.systemd1.Manager";
        node.run(&[&["busctl", "call"], &manager[..], &[interface], arguments].concat())
    };
    call(&["Reload"])?;
    call(&["StartUnit", "ss", "probe.service", "replace"])?;
    let state = || {
        node.run(&[
            "busctl",
            "get-property",
            "org.freedesktop.systemd1",
            "/org/freedesktop/systemd1/unit/probe_2eservice",
            "org.freedesktop.systemd1.Unit",
            "ActiveState",
        ])
    };
    until("probe.service to be active", DEADLINE, || {
        let state = state()?;
        Ok(if state.trim() == "s \"active\"" {
            Look::Found(())
        } else {
            Look::NotYet(state)
        })
    })?;
    call(&["StopUnit", "ss", "probe.service", "replace"])?;
    until("probe.service to be inactive", DEADLINE, || {
        let state = state()?;
        Ok(if state.trim() == "s \"inactive\"" {
            Look::Found(())
        } else {
            Look::NotYet(state)
        })
    })?;
    assert_eq!(node.failed_units()?, Vec::<String>::new());
    Ok(())
}

#[test]
fn a_node_reaches_the_api_server() -> Result<()> {
    if need::skip(SystemdNode::NEEDS)? || need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let cluster = ControlPlane::shared()?;
    let node = SystemdNode::boot("reaches")?;
    node.install(&cluster.kubectl_program(), "/usr/local/bin/kubectl")?;
    let login = cluster.kubeconfig_for_user("somebody", &["readers"])?;
    node.write(
        "/root/kubeconfig",
        login.at(&GATEWAY.to_string()).as_yaml()?,
    )?;
    let ask = ["kubectl", "--kubeconfig=/root/kubeconfig"];
    let said = node.run(
        &[
            &ask[..],
            &[
                "auth",
                "whoami",
                "-o",
                "jsonpath={.status.userInfo.username}",
            ],
        ]
        .concat(),
    )?;
    assert_eq!(said, "somebody");
    Ok(())
}

#[test]
fn a_reboot_gives_a_new_boot_id_and_keeps_the_rest() -> Result<()> {
    if need::skip(SystemdNode::NEEDS)? {
        return Ok(());
    }
    let mut node = SystemdNode::boot("reboot")?;
    let first = node.boot_id()?;
    let machine = node.read("/etc/machine-id")?;
    node.write("/var/lib/probe", "kept")?;
    node.write("/run/probe", "lost")?;

    node.reboot()?;
    let second = node.boot_id()?;
    assert_ne!(first, second);

    node.run(&["systemctl", "--no-block", "reboot"])?;
    node.wait_for_reboot(&second)?;
    let third = node.boot_id()?;
    assert!(third != first && third != second);

    let inside = node.run(&["cat", "/proc/sys/kernel/random/boot_id"])?;
    assert_eq!(inside.trim(), third);
    assert_eq!(node.read("/etc/machine-id")?, machine);
    assert_eq!(node.read("/var/lib/probe")?, b"kept");
    assert!(node.read("/run/probe").is_err(), "/run outlived a reboot");
    assert!(reaches_us(&node)?);
    Ok(())
}

#[test]
fn two_nodes_side_by_side_are_two_machines_that_reach_this_one() -> Result<()> {
    if need::skip(SystemdNode::NEEDS)? {
        return Ok(());
    }
    let (one, two) = (SystemdNode::boot("first")?, SystemdNode::boot("second")?);
    assert_ne!(one.address(), two.address());
    assert_ne!(one.read("/etc/machine-id")?, two.read("/etc/machine-id")?);
    for (node, name) in [(&one, "first"), (&two, "second")] {
        assert_eq!(node.run(&["hostname"])?.trim(), name);
        let addresses = node.run(&["ip", "-brief", "address", "show", "eth0"])?;
        assert!(
            addresses.contains(&node.address().to_string()),
            "{addresses}"
        );
        assert!(reaches_us(node)?, "{name}");
    }
    // Each manages its own units, in its own control group.
    one.run(&["systemctl", "stop", "ssh.service"])?;
    assert_eq!(
        two.run(&["systemctl", "is-active", "ssh.service"])?.trim(),
        "active"
    );
    Ok(())
}

#[test]
fn a_login_over_ssh_is_a_session_of_logind() -> Result<()> {
    if need::skip(SystemdNode::NEEDS)? {
        return Ok(());
    }
    let node = SystemdNode::boot("login")?;
    assert_eq!(node.run(&["loginctl", "--no-legend"])?, "");
    let mut ssh = node.ssh();
    let mut login = ssh
        .args(["echo in && cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .doing(|| "cannot run ssh")?;
    let mut said = String::new();
    let stdout = login
        .stdout
        .take()
        .ok_or_else(|| Error::failed("no output"))?;
    BufReader::new(stdout)
        .read_line(&mut said)
        .doing(|| "cannot read from ssh")?;
    assert_eq!(said, "in\n");
    let sessions = node.run(&["loginctl", "--no-legend"])?;
    assert_eq!(sessions.lines().count(), 1, "{sessions}");
    assert!(sessions.contains(" root "), "{sessions}");

    drop(login.stdin.take());
    login.wait().doing(|| "cannot wait for ssh")?;
    until("the session to end", DEADLINE, || {
        let sessions = node.run(&["loginctl", "--no-legend"])?;
        Ok(if sessions.is_empty() || sessions.contains("closing") {
            Look::Found(())
        } else {
            Look::NotYet(sessions)
        })
    })
}

#[test]
fn a_cut_node_boots_again_with_its_files() -> Result<()> {
    if need::skip(SystemdNode::NEEDS)? {
        return Ok(());
    }
    let mut node = SystemdNode::boot("cut")?;
    let first = node.boot_id()?;
    node.install(Path::new(OWNER), "/usr/local/bin/probe")?;
    let scratch = Scratch::new("copy")?;
    let copy = scratch.path().join("local");
    assert!(node.copy_while_off("/usr/local", &copy).is_err());
    node.run(&["rm", "/etc/hostname"])?;
    assert!(node.own_files().join("usr/local/bin/probe").is_file());
    node.cut()?;
    let Err(off) = node.run(&["true"]) else {
        panic!("a command ran on a node that is off");
    };
    assert_eq!(off.to_string(), "node cut is off");
    node.copy_while_off("/usr/local", &copy)?;
    let copied = std::fs::read(copy.join("bin/probe")).doing(|| "it was not copied")?;
    assert!(copied == std::fs::read(OWNER).unwrap_or_default());
    // What comes from the tree below is copied too, what was removed is not.
    node.copy_while_off("/etc", &scratch.path().join("etc"))?;
    assert!(scratch.path().join("etc/passwd").is_file());
    assert!(!scratch.path().join("etc/hostname").exists());

    node.boot_again()?;
    assert_ne!(node.boot_id()?, first);
    node.run(&["test", "-x", "/usr/local/bin/probe"])?;
    assert!(node.read("/usr/local/bin/probe")? == std::fs::read(OWNER).unwrap_or_default());

    node.power_off()?;
    node.boot_again()?;
    node.run(&["test", "-x", "/usr/local/bin/probe"])?;
    Ok(())
}

#[test]
fn root_of_a_node_is_not_root_of_this_machine() -> Result<()> {
    if need::skip(SystemdNode::NEEDS)? {
        return Ok(());
    }
    let node = SystemdNode::boot("fence")?;
    let attempt = "mknod /tmp/disk b 1 0 2>&1 || echo no disk
        echo evil 2>/dev/null > /proc/sys/kernel/domainname || echo no kernel setting";
    let refused = "mknod: /tmp/disk: Operation not permitted\nno disk\nno kernel setting\n";
    for said in [
        node.run(&["sh", "-c", attempt])?,
        run(node.ssh().arg(attempt))?,
    ] {
        assert_eq!(said, refused);
    }
    Ok(())
}

#[test]
fn nothing_survives_a_drop() -> Result<()> {
    if need::skip(SystemdNode::NEEDS)? {
        return Ok(());
    }
    let node = SystemdNode::boot("gone")?;
    let trace = Trace::of(&node.console(), &node.address().to_string())?;
    assert_ne!(trace.left()?, Vec::<String>::new());
    drop(node);
    trace.wait_until_gone()
}

#[test]
fn nothing_survives_when_the_owner_of_a_node_is_killed() -> Result<()> {
    if need::skip(SystemdNode::NEEDS)? {
        return Ok(());
    }
    let mut owner = Command::new(OWNER)
        .arg("orphan")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .doing(|| "cannot start the owner")?;
    let stdout = owner
        .stdout
        .take()
        .ok_or_else(|| Error::failed("no output"))?;
    let said: Vec<_> = BufReader::new(stdout)
        .lines()
        .map_while(std::result::Result::ok)
        .take_while(|line| !line.starts_with("it runs"))
        .collect();
    let [console, log_in] = &said[..] else {
        return Err(Error::failed(format!("the owner said {said:?}")));
    };
    let console = console.trim_start_matches("console: ");
    let address = log_in.rsplit('@').next().unwrap_or_default();
    let trace = Trace::of(Path::new(console), address)?;
    assert_ne!(trace.left()?, Vec::<String>::new());
    owner.kill().doing(|| "cannot kill the owner")?;
    owner.wait().doing(|| "cannot wait for the owner")?;
    trace.wait_until_gone()
}

#[test]
fn what_is_missing_is_one_sentence_with_its_cure() -> Result<()> {
    if need::skip(SystemdNode::NEEDS)? {
        return Ok(());
    }
    // Nobody may not reach this machine's build folder.
    let open = Scratch::new("owner")?;
    let owner = open.path().join("systemd-node");
    std::fs::copy(OWNER, &owner)
        .and_then(|_| std::fs::set_permissions(open.path(), PermissionsExt::from_mode(0o755)))
        .doing(|| "cannot copy the owner")?;
    let nobody = evenkeel_testbed::process::output(
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&owner),
        &[],
    )?;
    assert_eq!(
        String::from_utf8_lossy(&nobody.stderr),
        "this needs root (for namespaces and mounts): run it as root, for example with sudo\n"
    );
    let bare =
        evenkeel_testbed::process::output(Command::new(&owner).env("PATH", "/nowhere"), &[])?;
    assert_eq!(
        String::from_utf8_lossy(&bare.stderr),
        "`systemd-nspawn` is not installed: apt-get install systemd-container\n"
    );
    Ok(())
}

/// Whether the node gets an answer from a server of this machine, at the gateway's address.
fn reaches_us(node: &SystemdNode) -> Result<bool> {
    let listener = TcpListener::bind("0.0.0.0:0").doing(|| "cannot listen")?;
    let port = listener.local_addr().doing(|| "cannot listen")?.port();
    std::thread::scope(|scope| {
        let guest = scope.spawn(|| {
            listener.accept().and_then(|(mut peer, from)| {
                peer.write_all(b"welcome")?;
                Ok(from.ip())
            })
        });
        let script = format!("cat < /dev/tcp/{GATEWAY}/{port}");
        let heard = node.run(&["bash", "-c", &script]);
        if heard.is_err() {
            // Lets the server go.
            let _ = std::net::TcpStream::connect(("127.0.0.1", port));
        }
        let from = guest
            .join()
            .map_err(|_| Error::failed("the server panicked"))?;
        Ok(heard? == "welcome" && from.ok() == Some(node.address().into()))
    })
}

/// By what a node would be found if something of it were left.
struct Trace {
    unique: String,
    address: String,
}

impl Trace {
    fn of(console: &Path, address: &str) -> Result<Self> {
        let unique = console.parent().and_then(Path::file_name);
        let unique = unique.ok_or_else(|| Error::failed("a console without a folder"))?;
        Ok(Self {
            unique: unique.to_string_lossy().into_owned(),
            address: address.to_owned(),
        })
    }

    /// Processes that hold its name spaces or were started for it, mounts, control groups, folders
    /// and routes.
    fn left(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            for file in ["mountinfo", "cmdline", "cgroup"] {
                let path = process.path().join(file);
                let content = std::fs::read(&path).unwrap_or_default();
                if String::from_utf8_lossy(&content).contains(&self.unique) {
                    left.push(path.display().to_string());
                }
            }
        }
        let groups = Path::new("/sys/fs/cgroup");
        for group in ["", "unified", "systemd"].map(|name| groups.join(name).join(&self.unique)) {
            left.extend(group.exists().then(|| group.display().to_string()));
        }
        let folder = std::env::temp_dir().join(&self.unique);
        left.extend(folder.exists().then(|| folder.display().to_string()));
        let routes = run(Command::new("ip").args(["route", "show", &self.address]))?;
        left.extend(routes.lines().map(str::to_owned));
        Ok(left)
    }

    fn wait_until_gone(&self) -> Result<()> {
        until("everything of a node to be gone", DEADLINE, || {
            let left = self.left()?;
            Ok(if left.is_empty() {
                Look::Found(())
            } else {
                Look::NotYet(left.join("\n"))
            })
        })
    }
}
