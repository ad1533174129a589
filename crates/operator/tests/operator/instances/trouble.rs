//! What goes wrong with an instance is told, tried again, and goes well in the end.

use std::collections::BTreeSet;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use evenkeel_testbed::api_proxy::ApiProxy;
use evenkeel_testbed::chance::{Chance, is_soak, seed};
use evenkeel_testbed::process::run;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::windows_instance::WindowsInstance;
use evenkeel_testbed::{Doing, Result};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::bed::{Bed, LONG, is_skipped, make_key};
use crate::scene::annotated;

/// Where the way to the instance begins, and the name that leads there and nowhere else.
const WAY: Ipv6Addr = Ipv6Addr::LOCALHOST;
const NAME: &str = "six.trouble.test";
/// What may be sent twice: the end of what was on its way, each time that it broke off.
const AGAIN: u64 = 12 << 20;
const MISSING: &str = "evenkeel.dev/missing-files";
const PROGRAM: &str = r"C:\k\service-double.exe";

/// What the operator does to make a node of a machine, as its log says.
const STEPS: [&str; 8] = [
    ": connecting",
    "copying its agent",
    "asking the machine what it is and has",
    "copying its payload:",
    "starting its bootstrap services",
    "telling its Node what to run",
    "installing its agent's service",
    "now, and its agent runs",
];

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
    // It has no IPv4 address at all: no key of a ConfigMap can be one of IPv6, but a name that leads there can.
    let hosts = bed.scene.scratch.path().join("hosts");
    std::fs::write(&hosts, format!("127.0.0.1 localhost\n{WAY} {NAME}\n"))
        .doing(|| "cannot write names")?;
    let address = NAME.to_owned();
    let entry = (address.as_str(), "username=Administrator");
    let operator = bed.operator_knowing(&hosts, &[])?;
    bed.led().await?;
    offered(&bed).await?;
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
    bed.told("ConnectionBroken", &[&address, "was copied"])
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
    bed.told("InvalidSshKey", &[&address, "is no private key"])
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
    bed.told("InvalidSshKey", &[&address, "is not there", "ssh-keygen"])
        .await?;

    // Of what was there already nothing is sent again.
    bed.put_key(&bed.key).await?;

    // Killed in the middle, wherever that is.
    let mut chance = Chance(seed());
    let mut operator = operator;
    let mut hit = BTreeSet::new();
    let rounds = if is_soak() { 20 } else { 1 };
    for round in 0..rounds {
        if round == 0 {
            connecting(&bed, &address).await?;
            pause(&mut chance, 12_000).await;
        } else {
            // First where nobody was yet, and as exactly as can be; then anywhere.
            let mut others = STEPS.iter().filter(|it| !hit.contains(**it));
            let (step, longest) = match others.next() {
                Some(step) => (*step, 20),
                None => (STEPS[chance.below(STEPS.len())], 1_500),
            };
            let before = count(&bed, step);
            bed.list(&[entry]).await?;
            comes_to(&bed, step, before).await?;
            pause(&mut chance, longest).await;
        }
        operator.kill()?;
        let at = last_step(&bed);
        println!(
            "proof: kill {} of {rounds} hit the operator at: {at:?}",
            round + 1
        );
        hit.extend(at);
        bed.scene.nobody_leads().await?;
        operator = bed.operator_knowing(&hosts, &[])?;
        bed.serves(&instance).await?;
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
    let _operator = bed.operator_knowing(&hosts, &["--leave-timeout", "4s"])?;
    instance.cut()?;
    bed.list(&[]).await?;
    let said = bed
        .told("InstanceAbandoned", &[&address, "op-trouble-1"])
        .await?;
    assert!(
        said.contains(r"C:\k\") && said.contains("Left behind"),
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

/// Waits until the operator knows what new nodes get: it has opened the payload.
async fn offered(bed: &Bed) -> Result<()> {
    until_async("the payload to be opened", LONG, async || {
        let log = bed.scene.log();
        Ok(if log.contains("the payload is what was sealed") {
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

/// Waits until the operator has reached the instance again.
async fn connecting(bed: &Bed, address: &str) -> Result<()> {
    let count = || {
        let log = bed.scene.log();
        log.lines()
            .filter(|it| it.contains(": connecting") && it.contains(address))
            .count()
    };
    let before = count();
    until_async("the operator to connect", LONG, async || {
        let now = count();
        Ok(if now > before || bed.last_words(1).contains("copying") {
            Look::Found(())
        } else {
            Look::NotYet(bed.last_words(3))
        })
    })
    .await
}

/// How often the operator has come to a step.
fn count(bed: &Bed, step: &str) -> usize {
    let log = bed.scene.log();
    log.lines().filter(|it| it.contains(step)).count()
}

/// Waits until the operator has come to a step once more.
async fn comes_to(bed: &Bed, step: &str, before: usize) -> Result<()> {
    until_async(&format!("the operator at {step:?}"), LONG, async || {
        Ok(if count(bed, step) > before {
            Look::Found(())
        } else {
            Look::NotYet(bed.last_words(3))
        })
    })
    .await
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
