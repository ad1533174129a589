//! One leads; the next one takes over; nobody leads by mistake.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use evenkeel_daemon::{Leadership, LeaseName, Metrics, Stop, Timing};
use evenkeel_testbed::api_proxy::ApiProxy;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::kubeconfig::Kubeconfig;
use evenkeel_testbed::{Doing, Error, Result, need};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::sync::watch;

use crate::{Bench, PATIENCE};

const DURATION: Duration = Duration::from_secs(5);
/// What a busy machine may add to a promised time.
const SLACK: Duration = Duration::from_secs(3);

async fn candidate(bench: &Bench, name: &str, login: &Kubeconfig) -> Result<(Leadership, Metrics)> {
    let (client, metrics) = bench.client(name, login).await?;
    let lease = LeaseName {
        namespace: bench.namespace.clone(),
        name: "operator".to_owned(),
    };
    let timing = Timing::lasting(DURATION);
    let leadership = Leadership::start(client, lease, timing, &metrics, Stop::default());
    Ok((leadership, metrics))
}

/// Waits until it `leads` or does not, and says when that was.
async fn when(leads: bool, mut says: watch::Receiver<bool>, limit: Duration) -> Result<Instant> {
    let wait = says.wait_for(|now| *now == leads);
    match tokio::time::timeout(limit, wait).await {
        Ok(Ok(_)) => Ok(Instant::now()),
        Ok(Err(_)) => Err(Error::failed("the candidate has ended")),
        Err(_) => Err(Error::failed(format!(
            "waited {limit:?} for leading to be {leads}"
        ))),
    }
}

async fn lease(bench: &Bench) -> Result<Lease> {
    let client = bench.control_plane.admin_kubeconfig().client().await?;
    Api::namespaced(client, &bench.namespace)
        .get("operator")
        .await
        .doing(|| "no lease")
}

async fn holder(bench: &Bench) -> Result<String> {
    let spec = lease(bench).await?.spec.unwrap_or_default();
    Ok(spec.holder_identity.unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_candidates_one_leads_and_the_other_follows_when_it_gives_back() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bench = Bench::new("lead")?;
    let (first, metrics) = candidate(&bench, "first", &bench.login).await?;
    when(true, first.is_leader(), PATIENCE).await?;
    assert_eq!(holder(&bench).await?, first.identity());
    let (second, _) = candidate(&bench, "second", &bench.login).await?;
    let second_leads = second.is_leader();
    // Over twice the duration, renewals keep the second one out.
    let kept_out = when(true, second_leads.clone(), 2 * DURATION).await;
    assert!(kept_out.is_err(), "two lead");
    assert!(*first.is_leader().borrow(), "the first lost it");
    let renewals = metrics.api_requests("update", "leases");
    assert!((5..=20).contains(&renewals), "{renewals} renewals");
    assert!(metrics.text().contains(&format!(
        "evenkeel_leader{{lease=\"{}/operator\"}} 1",
        bench.namespace
    )));
    let begin = Instant::now();
    first.release().await;
    let led = when(true, second_leads, PATIENCE).await?;
    let took = led - begin;
    assert!(
        took < DURATION / 5 + SLACK,
        "a lease given back was free after {took:?}"
    );
    assert_eq!(holder(&bench).await?, second.identity());
    let transitions = lease(&bench)
        .await?
        .spec
        .and_then(|spec| spec.lease_transitions);
    assert_eq!(transitions, Some(1));
    second.release().await;
    assert_eq!(holder(&bench).await?, "");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_is_followed_within_the_lease_duration_and_not_sooner() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bench = Bench::new("killed")?;
    let (first, _) = candidate(&bench, "first", &bench.login).await?;
    when(true, first.is_leader(), PATIENCE).await?;
    let (second, _) = candidate(&bench, "second", &bench.login).await?;
    let begin = Instant::now();
    drop(first);
    let took = when(true, second.is_leader(), PATIENCE).await? - begin;
    // The last renewal was at most one pause (a fifth) before the end.
    assert!(took > DURATION * 3 / 5, "it took over after {took:?}");
    assert!(
        took < DURATION * 6 / 5 + SLACK,
        "it took over after {took:?}"
    );
    second.release().await;
    Ok(())
}

/// Counts how many of it are alive.
struct Guard(Arc<AtomicU32>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_answers_ends_its_work_before_another_one_leads() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bench = Bench::new("cut-off")?;
    let proxy = ApiProxy::before(bench.control_plane)?;
    let (first, _) = candidate(&bench, "first", &bench.login.through(&proxy)).await?;
    let first_leads = first.is_leader();
    let (runs, alive) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let work = {
        let (runs, alive) = (runs.clone(), alive.clone());
        tokio::spawn(first.run_while_leading(async move |_| {
            alive.fetch_add(1, Ordering::SeqCst);
            let _guard = Guard(alive.clone());
            // The second time it ends by itself.
            if runs.fetch_add(1, Ordering::SeqCst) == 0 {
                std::future::pending::<()>().await;
            }
        }))
    };
    when(true, first_leads.clone(), PATIENCE).await?;
    let (second, _) = candidate(&bench, "second", &bench.login).await?;
    let second_leads = second.is_leader();

    proxy.stall();
    let begin = Instant::now();
    let (lost, led) = tokio::try_join!(
        when(false, first_leads, PATIENCE),
        when(true, second_leads.clone(), PATIENCE)
    )?;
    assert!(lost < led, "two led for {:?}", lost - led);
    assert!(
        lost - begin <= DURATION * 2 / 3 + SLACK,
        "{:?}",
        lost - begin
    );
    assert_eq!(alive.load(Ordering::SeqCst), 0, "the work goes on");
    assert_eq!(runs.load(Ordering::SeqCst), 1);

    // Back again, it waits until it leads, and then works anew.
    proxy.resume();
    let too_soon = when(false, second_leads, DURATION).await;
    assert!(too_soon.is_err(), "the one who leads was disturbed");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    second.release().await;
    let ended = tokio::time::timeout(PATIENCE, work)
        .await
        .doing(|| "it never led again")?
        .doing(|| "the work broke")?;
    assert_eq!(ended, Some(()));
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    assert_eq!(holder(&bench).await?, "", "it gave the lease back");
    Ok(())
}
