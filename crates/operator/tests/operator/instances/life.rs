//! From a bare machine to a node, and back.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_testbed::chance::is_soak;
use evenkeel_testbed::process::{Running, run};
use evenkeel_testbed::{Doing, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::Value;

use super::bed::{Bed, is_skipped, make_key};
use super::meddler::{Meddler, applied};
use crate::scene::annotated;

/// Somebody who takes connections and never says a word.
const SILENT: &str = "127.34.0.1";
/// A machine that is no Windows.
const LINUX: &str = "127.34.0.2";

/// A Linux machine's OpenSSH server, for the owner of `key`.
fn linux(bed: &Bed) -> Result<Running> {
    let folder = bed.scene.scratch.path();
    let host_key = folder.join("linux_key");
    make_key(&host_key, &["-t", "ed25519"])?;
    let config = folder.join("sshd_config");
    let text = format!(
        "ListenAddress {LINUX}:22\nHostKey {}\nAuthorizedKeysFile {}\nPermitRootLogin prohibit-password\n\
         StrictModes no\nUsePAM no\nPidFile none\nSubsystem sftp internal-sftp\n",
        host_key.display(),
        bed.key.with_extension("pub").display()
    );
    std::fs::write(&config, text).doing(|| "cannot write sshd's configuration")?;
    std::fs::create_dir_all("/run/sshd").doing(|| "cannot make sshd's folder")?;
    let mut sshd = Command::new("/usr/sbin/sshd");
    sshd.args(["-D", "-e", "-f"]).arg(&config);
    Running::start(
        "a Linux machine's sshd",
        &mut sshd,
        &folder.join("sshd.log"),
    )
}

/// What the operator says of one machine, and how long after its first word.
fn steps(bed: &Bed, name: &str) -> Vec<String> {
    let log = bed.scene.log();
    let lines = log.lines().filter(|it| it.contains(&format!("{name:?}")));
    let said = lines.filter_map(|line| {
        let (stamp, words) = line.split_once(' ')?;
        let words = words.split_once(": ")?.1;
        Some((stamp.parse::<Timestamp>().ok()?, words))
    });
    let mut first = None;
    said.map(|(at, words)| {
        let after = at.duration_since(*first.get_or_insert(at));
        format!("{:6.2} s: {words}", after.as_secs_f64())
    })
    .collect()
}

/// Covers H04, H10, H12, H13, X06.
#[tokio::test(flavor = "multi_thread")]
async fn machines_become_nodes_beside_a_silent_one_and_one_that_leaves_is_as_bare_as_before()
-> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let bed = Bed::new("win-life").await?;
    let count = if is_soak() { 10 } else { 3 };
    let names: Vec<String> = (1..=count).map(|it| format!("op-life-{it}")).collect();
    let mut instances = Vec::new();
    for name in &names {
        instances.push(bed.instance(name)?);
    }
    let before = instances[0].snapshot()?;
    let _silent = TcpListener::bind((SILENT, 22)).doing(|| "cannot listen")?;
    let _linux = linux(&bed)?;
    let addresses: Vec<String> = instances
        .iter()
        .map(|it| it.address().to_string())
        .collect();
    let entry = "username=Administrator";
    let mut list = vec![
        (SILENT, entry),
        (LINUX, "username=root"),
        ("10.99.0.1", "Administrator"),
        ("10.99.0.2", "username="),
        ("nowhere.invalid", entry),
        ("localhost", entry),
        ("127.0.0.1", entry),
    ];
    list.extend(addresses.iter().map(|it| (it.as_str(), entry)));
    let _operator = bed.operator(&[])?;
    bed.led().await?;
    let right = bed.services().await?;
    let start = Instant::now();
    let meddler = Meddler::begin(&bed, &right);
    bed.list(&list).await?;
    for instance in &instances {
        bed.serves(instance).await?;
    }
    println!(
        "proof: {count} machines served {:?} after they were listed",
        start.elapsed()
    );

    for line in steps(&bed, &addresses[0]) {
        println!("proof: {line}");
    }

    // Whatever was done to their services meanwhile was put right at once, and nobody applied it.
    let deeds = meddler.end().await?;
    let slowest = deeds.iter().max_by_key(|(_, took)| *took).copied();
    println!(
        "proof: {} times somebody meddled with the services; the slowest to be put right: {slowest:?}",
        deeds.len()
    );
    assert!(deeds.len() >= 4, "{deeds:?}");
    for instance in &instances {
        let (hashes, times) = applied(instance)?;
        assert_eq!(hashes, BTreeSet::from([right.clone()]));
        assert!(times >= 2, "it was not written down: {times}");
    }

    for (reason, note) in bed.told_so_far().await? {
        if reason == "PayloadCopied" {
            println!("proof: {note}");
        }
    }

    // Nobody waited for the silent one: all were begun at once.
    let all = addresses.iter().map(String::as_str).chain([SILENT]);
    let begun: Result<Vec<Timestamp>> = all.map(|it| bed.connected_at(it)).collect();
    let begun = begun?;
    let (first, last) = (begun.iter().min(), begun.iter().max());
    let apart = last
        .zip(first)
        .map(|(last, first)| last.duration_since(*first));
    println!(
        "proof: the first and the last of {} were begun {apart:?} apart",
        begun.len()
    );
    assert!(apart.is_some_and(|it| it.as_millis() < 1000), "{begun:?}");

    // Every mistake was told on the list, with its entry and what to do.
    for (reason, words) in [
        ("InstanceSilent", &[SILENT, "is there an SSH server"][..]),
        ("NotWindows", &[LINUX, "remove it from the list"]),
        ("InvalidInstance", &["10.99.0.1", "write username=<user>"]),
        ("InvalidInstance", &["10.99.0.2", "the user name is empty"]),
        (
            "AddressUnknown",
            &["nowhere.invalid", "list the IP address"],
        ),
        ("SameInstance", &["localhost", "127.0.0.1", "keep one"]),
    ] {
        bed.told(reason, words).await?;
    }
    // What a login is good for is minutes; none is left behind. Where it was, with keys that stay, nobody else may look.
    assert!(!instances[0].path(r"C:\k\login")?.exists());
    for folder in [r"C:\k", r"C:\k\state", r"C:\k\store"] {
        let path = instances[0].path(folder)?;
        let mode = std::fs::metadata(&path).doing(|| "there is no payload")?;
        let mode = mode.permissions().mode();
        assert_eq!(mode & 0o007, 0, "{folder} is open to all: {mode:o}");
    }
    for (name, address) in names.iter().zip(&addresses) {
        let node = bed.scene.node(name).await?;
        let of = annotated(&node, "evenkeel.dev/instance");
        assert_eq!(of, Some(format!("Administrator@{address}").as_str()));
        let status = bed.settled(address).await?;
        assert_eq!(status["node"], *name);
    }
    at_rest(&bed, &list).await?;

    // A new key: nodes keep running, and whoever knows no other is taken out with it.
    let new = bed.scene.scratch.path().join("new_key");
    make_key(&new, &["-t", "ecdsa"])?;
    let public = std::fs::read_to_string(new.with_extension("pub")).doing(|| "no key")?;
    instances[0].authorize_only(&public)?;
    bed.put_key(&new).await?;

    // One leaves. An entry that cannot be read any more takes nobody out.
    let mut rest: Vec<_> = addresses[1..]
        .iter()
        .map(|it| (it.as_str(), entry))
        .collect();
    rest[0].1 = "Administrator";
    bed.list(&rest).await?;
    bed.forgotten(&addresses[0]).await?;
    assert!(
        bed.scene
            .nodes()
            .get_opt(&names[0])
            .await
            .doing(|| "no answer")?
            .is_none()
    );
    let after = instances[0].snapshot()?;
    assert_eq!(before.diff(&after), Vec::<String>::new());
    let secrets: Api<Secret> = Api::namespaced(bed.scene.client.clone(), &bed.scene.name);
    let keys = secrets
        .get("evenkeel-host-keys")
        .await
        .doing(|| "no host keys")?;
    let keys: Vec<String> = keys.data.unwrap_or_default().into_keys().collect();
    assert!(
        !keys.contains(&addresses[0]) && keys.contains(&addresses[1]),
        "{keys:?}"
    );
    for instance in &instances[1..] {
        bed.serves(instance).await?;
    }
    Ok(())
}

/// Nobody is asked who is settled: there is no connection, and the status stays as it is.
async fn at_rest(bed: &Bed, list: &[(&str, &str)]) -> Result<()> {
    let settled: Vec<(&str, &str)> = list
        .iter()
        .filter(|(name, _)| name.starts_with("198."))
        .copied()
        .collect();
    bed.list(&settled).await?;
    bed.forgotten(SILENT).await?;
    let connections = || -> Result<String> {
        let said =
            run(Command::new("ss").args(["-Htn", "state", "established", "( dport = :22 )"]))?;
        let ours = settled.iter().any(|(name, _)| said.contains(name));
        Ok(if ours { said } else { String::new() })
    };
    let mut states = Vec::<Value>::new();
    for (name, _) in &settled {
        states.push(bed.status(name).await?);
    }
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        assert_eq!(connections()?, "", "somebody is connected");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for ((name, _), state) in settled.iter().zip(states) {
        assert_eq!(bed.status(name).await?, state);
    }
    Ok(())
}
