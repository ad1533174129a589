//! How long Windows machines take to become nodes, what their payload's way costs beside OpenSSH's own
//! `sftp`, and what five hundred settled ones cost, against the limits: `cargo bench -p evenkeel-operator
//! --bench instances`. It boots eleven instances: let nothing else run.

use std::net::{Ipv4Addr, TcpListener};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use evenkeel_api::names::annotation;
use evenkeel_testbed::node_double::{NodeDouble, NodeFleet, Os};
use evenkeel_testbed::process::run;
use evenkeel_testbed::table::Table;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::windows_instance::WindowsInstance;
use evenkeel_testbed::{Doing, Error, Result};
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use serde_json::json;

#[path = "../tests/operator/instances/bed.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod bed;
#[path = "../tests/operator/records.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod records;
#[path = "../tests/operator/scene.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod scene;

use bed::Bed;

/// What is added to the payload where its way is measured: about what a real one has.
const LARGE: usize = 192 * MIB;
const MIB: usize = 1024 * 1024;
/// How many are configured at once.
const TOGETHER: usize = 10;
/// How many are settled.
const SETTLED: usize = 500;
/// How long the operator of those is looked at.
const IDLE: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_mins(5);
const VERSION: &str = "1.2.3-abc1234";

/// Seconds from listed to serving, beyond what `sftp` takes for the bytes.
const ONE: f64 = 20.0;
/// Seconds from listed until all serve, bytes and all.
const ALL: f64 = 60.0;
/// How long the payload's way may take, in ways of `sftp`.
const RATIO: f64 = 2.0;
/// Seconds that a silent machine may delay others.
const DELAY: f64 = 1.0;
/// How often that is measured, with the silent one and without.
const ROUNDS: usize = 3;
/// Somebody who takes connections and never says a word.
const SILENT: &str = "127.34.0.9";
/// Requests in the time that an idle operator is looked at, beside the renewals of its own Lease.
const REQUESTS: f64 = 0.0;
/// MiB.
const RESIDENT: f64 = 60.0;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    Table::verdict(
        runtime
            .doing(|| "cannot make a runtime")
            .and_then(|runtime| runtime.block_on(bench())),
    )
}

async fn bench() -> Result<Table> {
    let mut table = Table::default();
    settled(&mut table).await?;
    one(&mut table).await?;
    together(&mut table).await?;
    beside_a_silent_one(&mut table).await?;
    Ok(table)
}

/// Five hundred that are what they should be.
async fn settled(table: &mut Table) -> Result<()> {
    let bed = Bed::new("bench-settled").await?;
    let hash = {
        let _operator = bed.operator(&[])?;
        bed.services().await?
    };
    bed.scene.nobody_leads().await?;
    let addresses: Vec<String> = (0..SETTLED)
        .map(|number| {
            let [.., high, low] = u32::try_from(number + 1).unwrap_or(1).to_be_bytes();
            Ipv4Addr::new(127, 35, high, low).to_string()
        })
        .collect();
    let mut doors = Vec::new();
    for address in &addresses {
        let door = TcpListener::bind((address.as_str(), 22));
        let door = door.doing(|| format!("cannot listen at {address}:22"))?;
        door.set_nonblocking(true).doing(|| "cannot listen")?;
        doors.push(door);
    }
    let described = addresses.iter().enumerate().map(|(number, address)| {
        let node = bed.scene.describe(&format!("w{number:03}"));
        node.os(Os::Windows).address("InternalIP", address)
    });
    let login = bed.scene.control_plane.admin_kubeconfig();
    let fleet = NodeFleet::start(described.collect(), &login).await?;
    let told = fleet.nodes().iter().zip(&addresses).map(Ok);
    let told = futures::stream::iter(told);
    told.try_for_each_concurrent(16, async |(node, address)| {
        let annotations = json!({
            annotation::WINDOWS_VERSION: VERSION, annotation::WINDOWS_DESIRED_VERSION: VERSION,
            annotation::CURRENT_SERVICES: hash, annotation::DESIRED_SERVICES: hash,
            annotation::INSTANCE: format!("Administrator@{address}"),
        });
        let patch = json!({ "metadata": { "annotations": annotations } });
        bed.scene.patch(node.name(), &patch).await
    })
    .await?;
    let entries: Vec<_> = addresses
        .iter()
        .map(|it| (it.as_str(), "username=Administrator"))
        .collect();
    bed.list(&entries).await?;
    let records = addresses.iter().map(String::as_str);
    let records = records.zip(fleet.nodes().iter().map(NodeDouble::name));
    bed.scene.remember(records).await?;
    let port = scene::free_port()?;
    let listen = format!("127.0.0.1:{port}");
    let operator = bed.operator(&["--listen", &listen])?;
    until_async("all to be Ready", LONG, async || {
        let ready = ready(&bed).await?;
        Ok(if ready == SETTLED {
            Look::Found(())
        } else {
            Look::NotYet(format!("{ready}\n{}", bed.last_words(5)))
        })
    })
    .await?;
    // What follows from that, Events and statuses, is written first.
    tokio::time::sleep(IDLE).await;
    let before = scene::requests(port).await?;
    tokio::time::sleep(IDLE).await;
    let after = scene::requests(port).await?;
    let more = after.iter().map(|(what, count)| {
        let known = before.get(what).copied().unwrap_or_default();
        (what.as_str(), count - known)
    });
    let (mut asked, mut leases) = (0.0, 0.0);
    for (what, count) in more.filter(|(_, count)| *count > 0.0) {
        // Its own is renewed for as long as it leads.
        if what.contains("verb=\"update\",resource=\"leases\"") {
            leases += count;
        } else {
            asked += count;
            Table::note(what, count, "");
        }
    }
    let knocked = doors.iter().filter(|it| it.accept().is_ok()).count();
    let all = format!("{SETTLED} settled");
    Table::note(
        &format!("{all}: renewals of its own Lease in 30 s"),
        leases,
        "",
    );
    table.row(
        &format!("{all}: other requests in 30 s"),
        asked,
        REQUESTS,
        "",
    );
    table.row(&format!("{all}: SSH connections"), number(knocked), 0.0, "");
    let resident = |field| resident(operator.id(), field);
    table.row(
        &format!("{all}: VmRSS"),
        resident("VmRSS:")?,
        RESIDENT,
        "MiB",
    );
    Table::note(&format!("{all}: at most"), resident("VmHWM:")?, "MiB");
    Ok(())
}

/// One machine with a payload of real size.
async fn one(table: &mut Table) -> Result<()> {
    let bed = Bed::new("bench-one").await?;
    let mut large = vec![0; LARGE];
    let mut state = 1_u64;
    for word in large.as_chunks_mut::<8>().0 {
        // Nothing on the way may make it smaller.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        *word = state.to_le_bytes();
    }
    let place = bed.payload.join("files/large.bin");
    std::fs::write(place, large).doing(|| "cannot write a large file")?;
    bed.seal()?;
    let instance = bed.instance("bench-one")?;
    let _operator = bed.operator(&[])?;
    bed.services().await?;
    let begun = Instant::now();
    bed.list_these(&[&instance]).await?;
    bed.serves(&instance).await?;
    let took = begun.elapsed().as_secs_f64();
    let copied = span(&bed.scene.log())?;
    let sftp = sftp(&bed, &instance)?;
    Table::note("one: listed to Ready, bytes and all", took, "s");
    Table::note("one: sftp moves its files in", sftp, "s");
    Table::note("one: the operator moves them in", copied, "s");
    table.row("one: listed to Ready beyond that", took - sftp, ONE, "s");
    table.row("one: its files' way, in sftp's", copied / sftp, RATIO, "x");
    Ok(())
}

/// Many at once.
async fn together(table: &mut Table) -> Result<()> {
    let bed = Bed::new("bench-ten").await?;
    let mut instances = Vec::new();
    for number in 0..TOGETHER {
        instances.push(bed.instance(&format!("bench-{number}"))?);
    }
    let _operator = bed.operator(&[])?;
    bed.services().await?;
    let begun = Instant::now();
    bed.list_these(&instances.iter().collect::<Vec<_>>())
        .await?;
    let mut serve = futures::stream::iter(&instances)
        .map(|it| bed.serves(it))
        .buffer_unordered(TOGETHER);
    let mut first = None;
    while let Some(served) = serve.next().await {
        served?;
        first.get_or_insert(begun.elapsed());
    }
    let last = begun.elapsed().as_secs_f64();
    let first = first.unwrap_or_default().as_secs_f64();
    Table::note("ten: the first of them is Ready after", first, "s");
    table.row("ten: listed until all are Ready", last, ALL, "s");
    Ok(())
}

/// Two machines, by themselves and beside one that says nothing.
async fn beside_a_silent_one(table: &mut Table) -> Result<()> {
    let bed = Bed::new("bench-silent").await?;
    let instances = [bed.instance("bench-a")?, bed.instance("bench-b")?];
    let addresses = instances.each_ref().map(|it| it.address().to_string());
    let _silent = TcpListener::bind((SILENT, 22)).doing(|| "cannot listen")?;
    let _operator = bed.operator(&[])?;
    bed.services().await?;
    let user = "username=Administrator";
    let alone = addresses.each_ref().map(|it| (it.as_str(), user));
    let [first, second] = alone;
    let beside = [first, second, (SILENT, user)];
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (list, times) in [(&alone[..], &mut without), (&beside[..], &mut with)] {
            let begun = Instant::now();
            bed.list(list).await?;
            for instance in &instances {
                bed.serves(instance).await?;
            }
            times.push(begun.elapsed().as_secs_f64());
            for address in &addresses {
                bed.settled(address).await?;
            }
            bed.list(&[]).await?;
            for (name, _) in list {
                bed.forgotten(name).await?;
            }
        }
    }
    let [without, with] = [median(without), median(with)];
    Table::note("two: listed to Ready", without, "s");
    Table::note("two: the same beside a silent one", with, "s");
    table.row("two: delayed by the silent one", with - without, DELAY, "s");
    Ok(())
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or_default()
}

/// How many the operator has written down as Ready.
async fn ready(bed: &Bed) -> Result<usize> {
    let records = bed.scene.records().await?;
    let ready = records.values().filter(|it| it["state"] == "Ready");
    Ok(ready.count())
}

/// How many seconds the files of the payload, all but the agent, were on their way, as the log says.
fn span(log: &str) -> Result<f64> {
    let at = |category: &str| -> Option<Timestamp> {
        let line = log.lines().find(|it| it.contains(category))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let span = at("CopyingPayload").zip(at("PayloadCopied"));
    let (from, to) = span.ok_or_else(|| Error::failed(format!("nothing was copied: {log}")))?;
    Ok(to.duration_since(from).as_secs_f64())
}

/// How many seconds OpenSSH's own client takes for the same files to the same server: the better of two.
fn sftp(bed: &Bed, instance: &WindowsInstance) -> Result<f64> {
    let files = bed.payload.join("files");
    let mut lines = vec!["mkdir /C:/bench".to_owned()];
    for entry in std::fs::read_dir(files).doing(|| "no payload")? {
        let path = entry.doing(|| "no payload")?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name != "evenkeel-agent.exe" {
            lines.push(format!("put {} /C:/bench/{name}", path.display()));
        }
    }
    let batch = bed.scene.scratch.path().join("batch");
    let mut best = f64::MAX;
    for _ in 0..2 {
        std::fs::write(&batch, lines.join("\n")).doing(|| "cannot write a batch")?;
        let begun = Instant::now();
        run(&mut instance.sftp(&batch)?)?;
        best = best.min(begun.elapsed().as_secs_f64());
        // The folder is there the second time.
        if let Some(line) = lines.first_mut() {
            "pwd".clone_into(line);
        }
    }
    Ok(best)
}

fn resident(process: u32, field: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    let status = status.doing(|| "no operator")?;
    let line = status.lines().find_map(|it| it.strip_prefix(field));
    let kib = line.and_then(|it| it.split_whitespace().next()?.parse::<f64>().ok());
    let kib = kib.ok_or_else(|| Error::failed(format!("{field} is not there")))?;
    Ok(kib / 1024.0)
}

fn number(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}
