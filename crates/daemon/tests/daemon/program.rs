//! A whole program: how it is watched, what it counts, and how it ends.
//!
//! The program is this test binary, started again with a variable that says what to be.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use evenkeel_daemon::{
    Arguments, Daemon, Error as DaemonError, Leadership, LeaseName, Listen, Stop, Timing,
};
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::wait::{Look, until, until_async};
use evenkeel_testbed::{Doing, Error, Result, need};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, PostParams, WatchParams};
use kube::{Api, ResourceExt};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::{Bench, PATIENCE, PROGRAM};

const BE: &str = "EVENKEEL_TEST_BE";
const LOGIN: &str = "EVENKEEL_TEST_KUBECONFIG";
const LIMIT: Duration = Duration::from_secs(2);
const LEASE: Duration = Duration::from_secs(4);

fn arguments(kubeconfig: &Path) -> Arguments {
    Arguments {
        listen: Listen::At(([127, 0, 0, 1], 0).into()),
        kubeconfig: Some(kubeconfig.to_owned()),
        ..Arguments::default()
    }
}

/// The status and the whole answer of a GET.
fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).doing(|| "cannot connect")?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").doing(|| "cannot ask")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).doing(|| "no answer")?;
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| Error::failed(format!("no status in {answer:?}")))?;
    Ok((status, answer))
}

#[tokio::test(flavor = "multi_thread")]
async fn health_readiness_and_metrics_answer_over_http() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bench = Bench::new("http")?;
    let file = bench.file("login", &bench.login)?;
    let daemon = Daemon::start(PROGRAM, &arguments(&file))
        .await
        .doing(|| "cannot start")?;
    let address = daemon
        .address()
        .ok_or_else(|| Error::failed("no address"))?;
    let check = daemon.health().check("node");
    let (status, answer) = get(address, "/readyz")?;
    assert_eq!(status, 503, "{answer}");
    assert!(answer.contains("[-] node: has not started yet"), "{answer}");
    check.ready();
    // Ready once the API server has answered, too.
    let answer = until_async("the program to be ready", PATIENCE, async || {
        let (status, answer) = get(address, "/readyz")?;
        Ok(match status {
            200 => Look::Found(answer),
            _ => Look::NotYet(answer),
        })
    })
    .await?;
    assert!(answer.contains("[+] node"), "{answer}");
    assert!(answer.contains("[+] api-server"), "{answer}");
    let heartbeat = daemon
        .health()
        .heartbeat("worker", Duration::from_millis(50));
    until("the heartbeat to be missed", PATIENCE, || {
        let (status, answer) = get(address, "/healthz")?;
        Ok(match status {
            503 => Look::Found(()),
            _ => Look::NotYet(answer),
        })
    })?;
    heartbeat.end();
    assert_eq!(get(address, "/healthz")?.0, 200);
    let (status, answer) = get(address, "/metrics")?;
    assert_eq!(status, 200);
    assert!(answer.contains("application/openmetrics-text"), "{answer}");
    assert!(
        answer.contains(r#"evenkeel_build_info{program="evenkeel-test",version="1.2.3"} 1"#),
        "{answer}"
    );
    assert_eq!(get(address, "/")?.0, 404);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_is_counted_by_what_it_asks_for_and_is_made_in_our_name() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bench = Bench::new("count")?;
    let (client, metrics) = bench.client("login", &bench.login).await?;
    let api: Api<ConfigMap> = Api::namespaced(client, &bench.namespace);
    let object =
        serde_json::from_value(json!({ "metadata": { "name": "mine" }, "data": { "a": "b" } }))
            .doing(|| "no config map")?;
    let made = api
        .create(&PostParams::default(), &object)
        .await
        .doing(|| "cannot make it")?;
    let ours = made
        .managed_fields()
        .first()
        .and_then(|it| it.manager.clone());
    assert_eq!(ours.as_deref(), Some("evenkeel-test"));
    api.list(&ListParams::default()).await.doing(|| "no list")?;
    assert!(
        api.get_opt("no-such")
            .await
            .doing(|| "no answer")?
            .is_none()
    );
    let refused = api
        .delete("mine", &kube::api::DeleteParams::default())
        .await;
    assert!(refused.is_err(), "it may do more than it should");
    // It may not watch either; that it asked is counted all the same.
    let watched = api.watch(&WatchParams::default(), "0").await;
    drop(watched);
    for (verb, count) in [
        ("create", 1),
        ("list", 1),
        ("get", 1),
        ("delete", 1),
        ("watch", 1),
        ("patch", 0),
    ] {
        assert_eq!(metrics.api_requests(verb, "configmaps"), count, "{verb}");
    }
    assert_eq!(metrics.api_errors("404"), 1);
    assert_eq!(metrics.api_errors("403"), 2);
    Ok(())
}

/// Not a test by itself: the program that the tests below start and end.
#[tokio::test]
async fn the_program() -> Result<(), DaemonError> {
    let (Ok(be), Ok(login)) = (std::env::var(BE), std::env::var(LOGIN)) else {
        return Ok(());
    };
    let daemon = Daemon::start(PROGRAM, &arguments(Path::new(&login)))
        .await?
        .stopping_within(LIMIT);
    daemon
        .run(async |daemon| {
            match be.as_str() {
                "stubborn" => std::future::pending::<()>().await,
                "polite" => daemon.stop().stopped().await,
                file => lead(daemon, Path::new(file)).await?,
            }
            Ok(())
        })
        .await
}

/// While it leads, it adds to `file`, which is in a folder of the namespace's name.
async fn lead(daemon: &Daemon, file: &Path) -> Result<(), DaemonError> {
    let folder = file.parent().and_then(Path::file_name).unwrap_or_default();
    let lease = LeaseName {
        namespace: folder.to_string_lossy().into_owned(),
        name: "operator".to_owned(),
    };
    let leadership = daemon.stand_for(lease, Timing::lasting(LEASE));
    let work = leadership.run_while_leading(async |_| {
        let mut file = std::fs::File::create(file)?;
        while !daemon.stop().is_asked() {
            file.write_all(b"x")?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok::<_, std::io::Error>(())
    });
    work.await.unwrap_or(Ok(())).map_err(DaemonError::work)
}

/// The program, which does not outlive its test.
struct Started(Child);

impl Started {
    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.0), signal).doing(|| "cannot signal the program")
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the program, and waits until it says that it has started.
fn start(be: &str, login: &Path) -> Result<Started> {
    let program = std::env::current_exe().doing(|| "no program")?;
    let mut child = Command::new(program)
        .args(["--exact", "program::the_program", "--nocapture"])
        .env(BE, be)
        .env(LOGIN, login)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map(Started)
        .doing(|| "cannot start the program")?;
    let log = child
        .0
        .stderr
        .take()
        .ok_or_else(|| Error::failed("no log"))?;
    let mut log = BufReader::new(log);
    let mut line = String::new();
    while !line.contains("started") {
        line.clear();
        if log.read_line(&mut line).doing(|| "no log")? == 0 {
            return Err(Error::failed("the program has ended before it started"));
        }
    }
    // It goes on to be read, so that the program can go on to write.
    std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    Ok(child)
}

/// Sends `signal`; how it ended, and after how long.
async fn end(mut program: Started, signal: Signal) -> Result<(ExitStatus, Duration)> {
    let begin = Instant::now();
    program.signal(signal)?;
    let status = until_async("the program to end", PATIENCE, async || {
        Ok(match program.0.try_wait().doing(|| "cannot wait")? {
            Some(status) => Look::Found(status),
            None => Look::NotYet("it runs".to_owned()),
        })
    })
    .await?;
    Ok((status, begin.elapsed()))
}

#[tokio::test]
async fn a_signal_ends_the_program_at_once_and_its_work_within_its_time() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bench = Bench::new("signals")?;
    let login = bench.file("login", &bench.login)?;
    for signal in [Signal::TERM, Signal::INT] {
        let is_at_once = |took: &Duration| *took < LIMIT;
        kept_async("it ends at once", is_at_once, async || {
            let (status, took) = end(start("polite", &login)?, signal).await?;
            assert!(status.success(), "{status}");
            Ok(took)
        })
        .await?;
    }
    let is_in_time = |took: &Duration| *took < LIMIT + Duration::from_secs(2);
    kept_async("it ends when its time is over", is_in_time, async || {
        let (status, took) = end(start("stubborn", &login)?, Signal::TERM).await?;
        assert!(status.code().is_some_and(|code| code != 0), "{status}");
        assert!(took >= LIMIT, "it took {took:?}");
        Ok(took)
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_leader_does_nothing_more_when_it_wakes_up_after_another_one_took_over()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bench = Bench::new("frozen")?;
    let login = bench.file("login", &bench.login)?;
    let folder = bench.scratch.path().join(&bench.namespace);
    std::fs::create_dir(&folder).doing(|| "no folder")?;
    let file = folder.join("work");
    let done = || std::fs::metadata(&file).map_or(0, |file| file.len());
    let leader = start(&file.to_string_lossy(), &login)?;
    until("the program to lead", PATIENCE, || {
        Ok(match done() {
            0 => Look::NotYet("it did nothing".to_owned()),
            _ => Look::Found(()),
        })
    })?;
    leader.signal(Signal::STOP)?;
    let before = done();
    let (client, metrics) = bench.client("other", &bench.login).await?;
    let lease = LeaseName {
        namespace: bench.namespace.clone(),
        name: "operator".to_owned(),
    };
    let timing = Timing::lasting(LEASE);
    let other = Leadership::start(client, lease, timing, &metrics, Stop::default());
    let mut leads = other.is_leader();
    let took_over = leads.wait_for(|leads| *leads);
    tokio::time::timeout(PATIENCE, took_over)
        .await
        .doing(|| "nobody took over")?
        .doing(|| "the candidate has ended")?;
    leader.signal(Signal::CONT)?;
    let more = until("work of the one who slept", Duration::from_secs(1), || {
        Ok(match done() {
            same if same == before => Look::NotYet("nothing".to_owned()),
            more => Look::Found(more),
        })
    });
    assert!(more.is_err(), "it went on from {before} to {more:?}");
    let (status, _) = end(leader, Signal::TERM).await?;
    assert!(status.success(), "{status}");
    assert!(*other.is_leader().borrow());
    other.release().await;
    Ok(())
}
