//! One leader among several copies of a program, by a Lease.
//!
//! A leader that cannot renew steps down by its own clock, well before anybody else may take over by
//! theirs: it counts from when it began to ask for the renewal, the others from when they saw it. No
//! clock of one machine is compared to that of another. What a leader has sent before it stopped may still arrive later:
//! whoever follows makes sure that it is refused, by the number of its term.

mod claim;
mod moment;

use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use self::claim::{Claim, Move};
use self::moment::Moment;
use crate::{Metrics, Stop};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{oneshot, watch};

/// Which Lease it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl std::fmt::Display for LeaseName {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}/{}", self.namespace, self.name)
    }
}

/// How long things take around a Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    duration: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self::lasting(Duration::from_secs(15))
    }
}

impl Timing {
    /// A Lease that others may take `duration` after its last renewal (whole seconds, at least one).
    pub fn lasting(duration: Duration) -> Self {
        Self {
            duration: Duration::from_secs(duration.as_secs().max(1)),
        }
    }

    /// How long a Lease lasts without a renewal.
    pub fn duration(self) -> Duration {
        self.duration
    }

    /// A leader that could not renew for so long steps down.
    pub fn step_down(self) -> Duration {
        self.duration * 2 / 3
    }

    /// How long one answer may take. Two of them fit before stepping down.
    fn patience(self) -> Duration {
        self.duration / 3
    }

    /// The time from one renewal, or one reading of the Lease, to the next.
    pub fn pause(self) -> Duration {
        self.duration / 5
    }
}

/// One time of leading: who leads later has a greater number, as long as the Lease is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Term(pub i64);

/// A candidate: it tries to lead, and leads, until it is dropped or its work is over.
#[derive(Debug)]
pub struct Leadership {
    identity: String,
    leads: watch::Receiver<bool>,
    /// Until when we lead unless the Lease is renewed.
    until: watch::Receiver<Option<Moment>>,
    term: watch::Receiver<Term>,
    stop: Stop,
    /// Sending asks the task to give the Lease back; dropping ends the task at once.
    end: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

impl Leadership {
    /// Is a candidate for leadership by `lease`, in a task of its own.
    pub fn start(
        client: Client,
        lease: LeaseName,
        timing: Timing,
        metrics: &Metrics,
        stop: Stop,
    ) -> Self {
        let identity = identity();
        let (says, leads) = watch::channel(false);
        let (says_until, until) = watch::channel(None);
        let (says_term, term) = watch::channel(Term::default());
        let (end, ended) = oneshot::channel();
        let gauge = metrics.leader(&lease.to_string());
        gauge.set(0);
        let candidate = Candidate {
            api: Api::namespaced(client, &lease.namespace),
            claim: Claim::new(identity.clone(), &lease, timing),
            lease,
            timing,
            says,
            says_until,
            says_term,
            gauge,
        };
        Self {
            identity,
            leads,
            until,
            term,
            stop,
            end,
            task: tokio::spawn(candidate.work(ended)),
        }
    }

    /// Who we are in the Lease.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Whether we lead, now and whenever that changes.
    pub fn is_leader(&self) -> watch::Receiver<bool> {
        self.leads.clone()
    }

    /// Does `work` whenever we lead, until it ends by itself; then gives the Lease back.
    ///
    /// It is told which term that is. When leadership is lost the work is dropped where it is, and done anew when we lead again. What
    /// it spawned it must end itself. `None` if the program was asked to stop before `work` had
    /// ended or begun; work that runs by then has to end itself.
    pub async fn run_while_leading<T>(mut self, mut work: impl AsyncFnMut(Term) -> T) -> Option<T> {
        let outcome = loop {
            tokio::select! {
                biased;
                () = self.stop.stopped() => break None,
                leads = self.leads.wait_for(|leads| *leads) => if leads.is_err() { break None },
            }
            let until = self.until.clone();
            let term = *self.term.borrow();
            tokio::select! {
                biased;
                _ = self.leads.wait_for(|leads| !*leads) => {}
                done = while_in_time(work(term), until) => if done.is_some() { break done },
            }
        };
        self.release().await;
        outcome
    }

    /// Gives the Lease back, so that another one need not wait until it is over.
    pub async fn release(self) {
        let _ = self.end.send(());
        let _ = self.task.await;
    }
}

/// Goes on with `work` only after a look at the clock: a process that was frozen must not do a single
/// step more before the task that renews has noticed. `None` if the time is over.
async fn while_in_time<T>(
    work: impl Future<Output = T>,
    until: watch::Receiver<Option<Moment>>,
) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|context| {
        if until.borrow().is_none_or(|until| Moment::now() >= until) {
            return Poll::Ready(None);
        }
        work.as_mut().poll(context).map(Some)
    })
    .await
}

struct Candidate {
    api: Api<Lease>,
    claim: Claim,
    lease: LeaseName,
    timing: Timing,
    says: watch::Sender<bool>,
    says_until: watch::Sender<Option<Moment>>,
    says_term: watch::Sender<Term>,
    gauge: Gauge,
}

impl Candidate {
    async fn work(mut self, mut ended: oneshot::Receiver<()>) {
        let asked = {
            let until = async {
                loop {
                    self.compete().await;
                }
            };
            tokio::select! {
                biased;
                asked = &mut ended => asked.is_ok(),
                () = until => false,
            }
        };
        self.says_until.send_replace(None);
        self.says(false);
        if asked {
            self.give_back().await;
        }
    }

    /// One reading or renewal, and the pause after it. The time of stepping down interrupts both.
    async fn compete(&mut self) {
        let begin = Moment::now();
        let left = self.claim.until().map(|until| until.since(begin));
        let limit = self.timing.patience();
        let limit = left.map_or(limit, |left| left.min(limit));
        let attempt = attempt(&self.api, &mut self.claim);
        match tokio::time::timeout(limit, attempt).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(lease = %self.lease, "cannot renew the Lease: {error}");
            }
            Err(_) => {
                tracing::debug!(lease = %self.lease, "no answer from the API server within {limit:?}");
            }
        }
        self.judge();
        let pause = begin + self.timing.pause();
        let wake = self.claim.until().map_or(pause, |until| pause.min(until));
        tokio::time::sleep(wake.since(Moment::now())).await;
        self.judge();
    }

    /// Leads exactly as long as the claim is good.
    fn judge(&mut self) {
        self.claim.expire(Moment::now());
        self.says_term.send_replace(Term(self.claim.term()));
        self.says_until.send_replace(self.claim.until());
        self.says(self.claim.until().is_some());
    }

    fn says(&self, leads: bool) {
        let changed = self
            .says
            .send_if_modified(|said| std::mem::replace(said, leads) != leads);
        if changed {
            let who = self.claim.identity();
            let what = if leads {
                "became the leader"
            } else {
                "is no longer the leader"
            };
            tracing::info!(lease = %self.lease, who, "{what}");
        }
        self.gauge.set(i64::from(leads));
    }

    async fn give_back(&mut self) {
        let giving = give_back(&self.api, &mut self.claim);
        match tokio::time::timeout(self.timing.patience(), giving).await {
            Ok(Ok(())) => tracing::debug!(lease = %self.lease, "released the Lease"),
            Ok(Err(error)) => {
                tracing::info!(lease = %self.lease, "cannot release the Lease: {error}");
            }
            Err(_) => tracing::info!(lease = %self.lease, "cannot release the Lease in time"),
        }
    }
}

/// Takes our name out of the Lease, if it is there.
async fn give_back(api: &Api<Lease>, claim: &mut Claim) -> kube::Result<()> {
    let mut looked = false;
    while let Some(lease) = claim.released() {
        match api
            .replace(claim.name(), &PostParams::default(), &lease)
            .await
        {
            // Perhaps our own last renewal, whose answer we did not wait for.
            Err(kube::Error::Api(status)) if status.code == 409 && !looked => {
                let seen = api.get_opt(claim.name()).await?;
                claim.saw(seen, Moment::now());
                looked = true;
            }
            answer => return answer.map(|_| ()),
        }
    }
    Ok(())
}

/// One step towards a good claim. What is dropped in the middle, or fails, leaves a claim that looks
/// first.
async fn attempt(api: &Api<Lease>, claim: &mut Claim) -> kube::Result<()> {
    let parameters = PostParams::default();
    let mut looked = false;
    loop {
        let begin = Moment::now();
        let answer = match claim.next(begin) {
            Move::Look if looked => return Ok(()),
            Move::Look => {
                let seen = api.get_opt(claim.name()).await?;
                claim.saw(seen, Moment::now());
                looked = true;
                continue;
            }
            Move::Create(lease) => {
                claim.doubt();
                api.create(&parameters, &lease).await
            }
            Move::Replace(lease) => {
                claim.doubt();
                api.replace(claim.name(), &parameters, &lease).await
            }
        };
        match answer {
            Ok(lease) => {
                claim.wrote(lease, begin);
                return Ok(());
            }
            // Somebody else wrote since we looked.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) && !looked => {}
            Err(error) => return Err(error),
        }
    }
}

/// A name for this very process: the machine's, and a number that a restart does not repeat.
pub(crate) fn identity() -> String {
    let given = std::env::var("HOSTNAME").or_else(|_| std::env::var("COMPUTERNAME"));
    let machine = given
        .or_else(|_| std::fs::read_to_string("/proc/sys/kernel/hostname"))
        .unwrap_or_default();
    // The standard library seeds its hash maps with a random number.
    let number = RandomState::new().hash_one(std::process::id());
    format!("{}_{number:016x}", machine.trim().to_lowercase())
}
