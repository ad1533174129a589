//! What goes wrong with an instance is told, tried again, and goes well in the end.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_testbed::api_proxy::ApiProxy;
use evenkeel_testbed::chance::{Chance, is_soak, seed};
use evenkeel_testbed::process::run;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::windows_instance::WindowsInstance;
use evenkeel_testbed::{Doing, Error, Result};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::bed::{Bed, LONG, is_skipped, make_key};
use crate::scene::{annotated, free_port, metrics};

/// Where the way to the instance begins, and the name that leads there; its other address leads nowhere.
const WAY: Ipv6Addr = Ipv6Addr::LOCALHOST;
const DEAF: &str = "127.34.0.3";
const NAME: &str = "six.trouble.test";
/// A name that only a server knows which never answers, and where that is.
const UNKNOWN: &str = "nowhere.trouble.test";
const SILENT_DNS: &str = "127.34.0.4:53";
/// How long an answer about a name is waited for.
const LOOK_UP: Duration = Duration::from_secs(5);
/// How long each chunk is on a slow way, how long all work may take there, and how soon it begins and an operator
/// ends: long before anybody gives up waiting for an answer about a name.
const SLOW: Duration = Duration::from_millis(100);
const SHORT: &str = "15s";
const SOON: Duration = Duration::from_secs(3);
/// What may be sent twice: the end of what was on its way, each time that it broke off.
const AGAIN: u64 = 16 << 20;
const MISSING: &str = "evenkeel.dev/missing-files";
const PROGRAM: &str = r"C:\k\service-double.exe";

/// What the operator does to make a node of a machine, as its log says.
const STEPS: [&str; 8] = [
    ": connecting",
    "copying its agent",
    "reading the state of the machine",
    "copying its payload:",
    "starting its bootstrap services",
    "writing the desired version on its Node",
    "installing its agent's service",
    DONE,
];
const DONE: &str = "and its agent runs";

/// Those of them that take a while.
const WAITED: [&str; 3] = [STEPS[3], STEPS[4], STEPS[6]];

/// Covers H10, H12, H14.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_becomes_a_node_whatever_goes_wrong_on_the_way() -> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let bed = Bed::new("win-trouble").await?;
    let mut instance = bed.instance("op-trouble-1")?;
    // It is reached through somebody who can cut the way to it, and counts.
    let way = ApiProxy::at((WAY, 22).into(), SocketAddr::from((instance.address(), 22)))?;
    // No key of a ConfigMap can be an address of IPv6, but a name that leads there can.
    let address = NAME.to_owned();
    // Its Node has the address that nobody reaches it at.
    let value = format!("username=Administrator,nodeAddress={}", instance.address());
    let entry = (address.as_str(), value.as_str());
    let silent = UdpSocket::bind(SILENT_DNS).doing(|| "cannot be a name server")?;
    silent.set_nonblocking(true).doing(|| "cannot look")?;
    let names = names(&bed)?;
    let port = free_port()?;
    let listen = format!("127.0.0.1:{port}");
    let options = ["--instance-timeout", SHORT, "--listen", &listen];
    let mut operator = bed.operator_knowing(&names, &options)?;
    bed.led().await?;
    offered(&bed).await?;
    // Whoever waits for an answer about another name, or trickles, does so alone.
    way.delay(SLOW);
    bed.list(&[(UNKNOWN, entry.1), entry]).await?;
    bed.told("InstanceSlow", &[&address, "--instance-timeout"])
        .await?;
    // Of the first file only a part has gone, and it is counted.
    let copied = copied(port).await?;
    let agent = std::fs::metadata(bed.payload.join("files/evenkeel-agent.exe"));
    let agent = agent.doing(|| "there is no agent")?.len();
    assert!(copied > 0 && copied < agent, "{copied} of {agent}");
    bed.told("AddressUnknown", &[UNKNOWN, "no answer within"])
        .await?;
    // By the operator's own clock, from when it asked for the other name.
    let asked = bed.said_at(UNKNOWN, "no answer within")? - LOOK_UP;
    let begun = bed.connected_at(&address)?.duration_since(asked);
    println!("proof: it was begun {begun:?} after a name was asked for that nobody knows");
    assert!(
        begun < SignedDuration::try_from(SOON).doing(|| "too long")?,
        "{begun:?}"
    );
    // Told to stop, it does not wait for the name server either.
    let is_soon = |took: &Duration| *took < SOON;
    kept_async("stopped within three seconds", is_soon, async || {
        while silent.recv(&mut [0; 512]).is_ok() {}
        until_async("the name server to be asked", LONG, async || {
            Ok(match silent.recv(&mut [0; 512]) {
                Ok(_) => Look::Found(()),
                Err(_) => Look::NotYet(bed.last_words(3)),
            })
        })
        .await?;
        let start = Instant::now();
        operator.stop(LONG).await?;
        let took = start.elapsed();
        operator = bed.operator_knowing(&names, &options)?;
        Ok(took)
    })
    .await?;
    way.delay(Duration::ZERO);
    // The way is cut when half of the payload is there.
    let size = bed.payload_size()?;
    bed.list(&[entry]).await?;
    until_async("half of the payload to be sent", LONG, async || {
        let sent = way.sent();
        Ok(if sent > size / 2 {
            Look::Found(())
        } else {
            Look::NotYet(format!("{sent} of {size}\n{}", bed.last_words(3)))
        })
    })
    .await?;
    way.cut();
    // Then a payload with a hole, hardly any room, and no key that can be used.
    let hole = bed.payload.join("files/service-double.exe");
    let aside = bed.scene.scratch.path().join("aside");
    std::fs::rename(&hole, &aside).doing(|| "cannot take a file away")?;
    bed.told("ConnectionBroken", &[&address, "while copying"])
        .await?;
    bed.told("PayloadIncomplete", &[&address, "service-double.exe"])
        .await?;
    let folder = "/C:/k";
    let full = format!("mkdir -p {folder} && mount -t tmpfs -o size=1m full {folder}");
    in_instance(&instance, &full)?;
    std::fs::rename(&aside, &hole).doing(|| "cannot put a file back")?;
    bed.told("DiskFull", &[&address, "make room"]).await?;
    in_instance(&instance, &format!("umount {folder}"))?;
    bed.put_secret("cloud-private-key", "private-key.pem", b"ssh-ed25519 AAAA")
        .await?;
    bed.told("InvalidSshKey", &[&address, "is not a private key"])
        .await?;
    let locked = bed.scene.scratch.path().join("locked");
    make_key(&locked, &["-t", "rsa", "-b", "2048"])?;
    let mut lock = Command::new("ssh-keygen");
    run(lock.args(["-q", "-p", "-N", "secret", "-f"]).arg(&locked))?;
    bed.put_key(&locked).await?;
    bed.told("InvalidSshKey", &[&address, "has a passphrase"])
        .await?;
    let secrets: Api<Secret> = Api::namespaced(bed.scene.client.clone(), &bed.scene.name);
    let gone = secrets
        .delete("cloud-private-key", &DeleteParams::default())
        .await;
    gone.doing(|| "cannot delete the key")?;
    bed.told("InvalidSshKey", &[&address, "is missing", "ssh-keygen"])
        .await?;

    // Of what was there already nothing is sent again. Killed in the middle, wherever that is.
    let mut chance = Chance(seed());
    println!("proof: kills by chance, EVENKEEL_SEED={}", seed());
    let (mut hit, mut in_the_middle) = (BTreeSet::new(), 0);
    let rounds = if is_soak() { 20 } else { 1 };
    for round in 0..rounds {
        // First where nobody was yet, and as exactly as can be; then anywhere before the end.
        let (among, longest): (Vec<_>, _) = if round == 0 {
            (WAITED.to_vec(), 500)
        } else if hit.len() < STEPS.len() {
            let others = STEPS.into_iter().filter(|it| !hit.contains(*it));
            (others.collect(), 0)
        } else {
            (STEPS.into_iter().filter(|it| *it != DONE).collect(), 100)
        };
        let step = among[chance.below(among.len())];
        let mut log = bed.scene.log_from_now()?;
        if round == 0 {
            bed.put_key(&bed.key).await?;
        } else {
            bed.list(&[entry]).await?;
        }
        comes_to(&mut log, step)?;
        if longest > 0 {
            pause(&mut chance, longest).await;
        }
        operator.kill()?;
        let at = last_step(&bed);
        println!(
            "proof: kill {} of {rounds} hit the operator at: {at:?}",
            round + 1
        );
        hit.extend(at);
        in_the_middle += u32::from(at != Some(DONE));
        bed.scene.nobody_leads().await?;
        // It may have brought a login, or a file that nobody wants any more.
        for name in ["login.1794941404282637", "gone.exe.0123456789abcdef"] {
            instance.install(&bed.key, &format!(r"C:\k\{name}.part"))?;
        }
        operator = bed.operator_knowing(&names, &[])?;
        bed.serves(&instance).await?;
        if at != Some(DONE) {
            no_parts(&instance).await?;
        }
        if round == 0 {
            let sent = way.sent();
            println!(
                "proof: {sent} bytes were sent for a payload of {size}, cut off once and killed once"
            );
            assert!(sent < size + size / 20 + AGAIN, "{sent} of {size}");
        }
        for service in ["containerd", "kubelet", "network", "evenkeel-agent"] {
            let state = instance.ask(&["windows-probe", "service", "state", service])?;
            assert_eq!(state, "Running", "{service}");
        }
        if round + 1 < rounds {
            bed.settled(&address).await?;
            bed.list(&[]).await?;
            bed.forgotten(&address).await?;
        }
    }
    if is_soak() {
        assert_eq!(hit, BTreeSet::from(STEPS), "a step was never hit");
        assert!(in_the_middle >= 15, "{in_the_middle} of {rounds}");
    }

    // Made anew by somebody, or is somebody else in its place?
    let machine = instance.folder().join("machine");
    for file in ["host_key", "host_key.pub"] {
        std::fs::remove_file(machine.join(file)).doing(|| "there is no host key")?;
    }
    make_key(&machine.join("host_key"), &["-t", "ed25519"])?;
    instance.reboot()?;
    lose(&instance)?;
    let cure = format!("evenkeel instances trust {address}");
    bed.told("HostKeyChanged", &[&address, &cure]).await?;
    assert!(
        !instance.path(PROGRAM)?.exists(),
        "a stranger was sent files"
    );
    forget_host_key(&bed, &address).await?;
    until_async("the file to be back", LONG, async || {
        let node = bed.scene.node("op-trouble-1").await?;
        let missing = annotated(&node, MISSING).unwrap_or_default();
        let is_there = instance.path(PROGRAM)?.exists();
        Ok(if is_there && missing.is_empty() {
            Look::Found(())
        } else {
            Look::NotYet(format!(
                "missing: {missing:?}, there: {is_there}\n{}",
                bed.last_words(5)
            ))
        })
    })
    .await?;

    // It is gone, and then taken out.
    drop(operator);
    bed.scene.nobody_leads().await?;
    let _operator = bed.operator_knowing(&names, &["--leave-timeout", "4s"])?;
    instance.cut()?;
    bed.list(&[]).await?;
    let said = bed
        .told("InstanceAbandoned", &[&address, "op-trouble-1"])
        .await?;
    assert!(
        said.contains(r"C:\k\") && said.contains("are still on it"),
        "{said}"
    );
    bed.forgotten(&address).await?;
    let nodes = bed.scene.nodes();
    assert!(
        nodes
            .get_opt("op-trouble-1")
            .await
            .doing(|| "no answer")?
            .is_none()
    );
    Ok(())
}

/// A folder with what the operator knows of names.
fn names(bed: &Bed) -> Result<PathBuf> {
    let folder = bed.scene.scratch.path().join("names");
    std::fs::create_dir_all(&folder).doing(|| "cannot make a folder")?;
    let hosts = format!("127.0.0.1 localhost\n{DEAF} {NAME}\n{WAY} {NAME}\n");
    let (server, _) = SILENT_DNS.split_once(':').unwrap_or_default();
    let servers = format!("nameserver {server}\noptions timeout:30\n");
    for (file, text) in [("hosts", hosts), ("resolv.conf", servers)] {
        std::fs::write(folder.join(file), text).doing(|| "cannot write names")?;
    }
    Ok(folder)
}

/// Waits until nothing of what broke off is left.
async fn no_parts(instance: &WindowsInstance) -> Result<()> {
    let folder = instance.path(r"C:\k")?;
    until_async("what broke off to be removed", LONG, async || {
        let entries = std::fs::read_dir(&folder).doing(|| "there is no payload")?;
        let paths = entries.filter_map(|it| Some(it.ok()?.path()));
        let is_part = |it: &PathBuf| it.extension().is_some_and(|it| it == "part");
        let left: Vec<_> = paths.filter(is_part).collect();
        Ok(if left.is_empty() {
            Look::Found(())
        } else {
            Look::NotYet(format!("{left:?}"))
        })
    })
    .await
}

/// How many bytes of payload the operator says that it has sent.
async fn copied(port: u16) -> Result<u64> {
    let text = metrics(port).await?;
    let mut lines = text.lines();
    let count = lines.find_map(|it| it.strip_prefix("evenkeel_payload_copied_bytes_total "));
    let count = count.and_then(|it| it.parse().ok());
    count.ok_or_else(|| Error::failed(format!("it does not say what it has copied: {text}")))
}

/// Waits until the operator knows what new nodes get: it has opened the payload.
async fn offered(bed: &Bed) -> Result<()> {
    until_async("the payload to be opened", LONG, async || {
        let log = bed.scene.log();
        Ok(if log.contains("the payload matches its manifest") {
            Look::Found(())
        } else {
            Look::NotYet(log)
        })
    })
    .await
}

/// Runs a line of shell in the instance's own file systems.
fn in_instance(instance: &WindowsInstance, line: &str) -> Result<()> {
    let process = instance.process()?.to_string();
    let mut enter = Command::new("nsenter");
    enter.args(["--target", &process, "--mount", "--", "sh", "-c", line]);
    run(&mut enter).map(|_| ())
}

/// Waits until what is written to a log comes to a step, and says so at once: some steps take milliseconds.
fn comes_to(log: &mut File, step: &str) -> Result<()> {
    let start = Instant::now();
    let mut said = Vec::new();
    tokio::task::block_in_place(|| {
        while start.elapsed() < LONG {
            log.read_to_end(&mut said).doing(|| "there is no log")?;
            if String::from_utf8_lossy(&said).contains(step) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        let said = String::from_utf8_lossy(&said);
        Err(Error::failed(format!("nobody came to {step:?}: {said}")))
    })
}

/// The step that the operator came to last.
fn last_step(bed: &Bed) -> Option<&'static str> {
    let log = bed.scene.log();
    let step = |line: &str| STEPS.into_iter().find(|it| line.contains(it));
    log.lines().rev().find_map(step)
}

/// A pause by chance, of so many milliseconds at most.
async fn pause(chance: &mut Chance, longest: usize) {
    let pause = u64::try_from(chance.below(longest)).unwrap_or(0);
    tokio::time::sleep(Duration::from_millis(pause)).await;
}

/// Takes a payload file away, and the agent's own copy of it.
fn lose(instance: &WindowsInstance) -> Result<()> {
    let program = instance.path(PROGRAM)?;
    let sum = run(Command::new("sha256sum").arg(&program))?;
    let sum = sum.split_whitespace().next().unwrap_or_default().to_owned();
    let copy = instance.path(&format!(r"C:\k\store\{sum}"))?;
    for file in [copy.as_path(), Path::new(&program)] {
        std::fs::remove_file(file).doing(|| format!("there is no {}", file.display()))?;
    }
    Ok(())
}

/// As `evenkeel instances trust` does it.
async fn forget_host_key(bed: &Bed, address: &str) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(bed.scene.client.clone(), &bed.scene.name);
    let patch = Patch::Merge(json!({ "data": { address: null } }));
    let done = secrets
        .patch("evenkeel-host-keys", &PatchParams::default(), &patch)
        .await;
    done.map(|_| ()).doing(|| "cannot forget a host key")
}
