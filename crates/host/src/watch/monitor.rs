//! From hints to events: looks at the path, compares, tells, heals.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::{Duration, Instant};

use evenkeel_api::backoff::Backoff;
use evenkeel_plan::machine::entry::{Activity, Entry, ServiceEntry};
use evenkeel_plan::machine::pace::{HEALS_AGAIN, Hint, Pace, Trouble};
use evenkeel_plan::machine::resource::Resource;
use evenkeel_plan::machine::targets::{Part, Targets};

use super::{Event, Heard, Look, Source};
use crate::disk::{Disk, Host};
use crate::execute::{Claim, State};
use crate::verify::{Finding, judge};
use crate::{Error, Result};

/// How often everything is looked at without a hint, if nobody says otherwise.
const SLOW_CHECK: Duration = Duration::from_mins(5);
/// Work between two looks at the source: whoever wants us to stop does not wait longer, but for the
/// one path we are at.
const AT_A_TIME: Duration = Duration::from_millis(50);

/// Watches targets for drift. Drive it with [`Monitor::run`], or pass by pass.
pub struct Monitor<'a, H> {
    host: &'a H,
    /// Where contents are kept, if drift is to be healed.
    state: Option<&'a State>,
    targets: Targets,
    slow_check: Duration,
    next_check: Instant,
    sweep: Option<Sweep>,
    /// Paths to look at.
    hints: BTreeMap<String, Hint>,
    /// Paths that are not right.
    drifts: BTreeMap<String, Drift>,
    /// Paths that drifted lately.
    paces: BTreeMap<String, Pace>,
    /// Services that ended by themselves lately, by their place.
    crashes: BTreeMap<String, Pace>,
}

/// A look at everything, in the order of the paths.
#[derive(Debug)]
struct Sweep {
    since: Instant,
    /// The last path that was looked at.
    at: Option<String>,
    /// Once more from the start when this one is through.
    again: bool,
}

#[derive(Debug)]
struct Drift {
    finding: Finding,
    /// When the first hint came.
    since: Instant,
    /// When it is tried again to heal it.
    retry_at: Option<Instant>,
    /// The pauses between those tries.
    pauses: Backoff,
    /// Why the last one failed.
    failed: Option<String>,
    /// We put it back, and what must follow is left to do: whoever uses it was not told.
    is_half_healed: bool,
}

impl<'a, H: Host> Monitor<'a, H> {
    /// Tells what drifts, and touches nothing.
    pub fn reporting(host: &'a H, targets: Targets) -> Self {
        Self {
            host,
            state: None,
            targets,
            slow_check: SLOW_CHECK,
            next_check: Instant::now() + SLOW_CHECK,
            sweep: None,
            hints: BTreeMap::new(),
            drifts: BTreeMap::new(),
            paces: BTreeMap::new(),
            crashes: BTreeMap::new(),
        }
    }

    /// Tells what drifts and puts it back, with contents from the store: see
    /// [`Claim::keep_contents`].
    pub fn healing(host: &'a H, state: &'a State, targets: Targets) -> Self {
        Self {
            state: Some(state),
            ..Self::reporting(host, targets)
        }
    }

    /// Looks at everything this often, for what the source cannot notice.
    #[must_use]
    pub fn checking_every(mut self, time: Duration) -> Self {
        self.slow_check = time;
        self.next_check = Instant::now() + time;
        self
    }

    /// What is wrong now, in the order of the paths.
    pub fn drifted(&self) -> impl Iterator<Item = &Finding> {
        self.drifts.values().map(|drift| &drift.finding)
    }

    /// Every hint so far was followed.
    pub fn is_at_rest(&self) -> bool {
        self.sweep.is_none() && self.hints.is_empty()
    }

    /// A look at everything has begun and is not through yet.
    pub fn is_looking_at_everything(&self) -> bool {
        self.sweep.is_some()
    }

    /// Goes on until the source is stopped.
    pub fn run(&mut self, source: &mut impl Source, tell: &mut dyn FnMut(Event)) -> Result<()> {
        while self.watch_once(source, Duration::MAX, tell)? == Watching::GoOn {}
        Ok(())
    }

    /// Waits for hints, at most for `timeout`, and follows those that are due.
    pub fn watch_once(
        &mut self,
        source: &mut impl Source,
        timeout: Duration,
        tell: &mut dyn FnMut(Event),
    ) -> Result<Watching> {
        match source.next(timeout.min(self.until_due(Instant::now())))? {
            Heard::Stopped => return Ok(Watching::Stopped),
            Heard::Looks(looks) => looks.into_iter().for_each(|look| self.observe(look)),
        }
        self.follow(tell);
        Ok(Watching::GoOn)
    }

    /// Looks at everything, beginning with the next pass.
    pub fn check_everything(&mut self) {
        match &mut self.sweep {
            Some(sweep) => sweep.again = true,
            None => self.sweep = Some(Sweep::new()),
        }
    }

    fn observe(&mut self, look: Look) {
        match look {
            Look::Everything => self.check_everything(),
            Look::Path(path) if self.targets.contains_key(&path) => self.hint(path),
            Look::Path(_) => {}
        }
    }

    fn hint(&mut self, path: String) {
        let now = Instant::now();
        self.hints
            .entry(path)
            .and_modify(|hint| hint.again(now))
            .or_insert_with(|| Hint::new(now));
    }

    /// When a path is to be looked at or healed next.
    fn due(&self, path: &str, hint: &Hint) -> Instant {
        match self.paces.get(path) {
            Some(pace) => hint.due().max(pace.not_before()),
            None => hint.due(),
        }
    }

    fn until_due(&self, now: Instant) -> Duration {
        if self.sweep.is_some() {
            return Duration::ZERO;
        }
        let hints = self.hints.iter().map(|(path, hint)| self.due(path, hint));
        let retries = self.drifts.values().filter_map(|drift| drift.retry_at);
        let next = hints
            .chain(retries)
            .min()
            .map_or(self.next_check, |due| due.min(self.next_check));
        next.saturating_duration_since(now)
    }

    fn follow(&mut self, tell: &mut dyn FnMut(Event)) {
        let start = Instant::now();
        let hinted = self
            .hints
            .iter()
            .filter(|(path, hint)| self.due(path, hint) <= start)
            .map(|(path, hint)| (path.clone(), hint.first));
        let retried = self
            .drifts
            .iter()
            .filter(|(_, drift)| drift.retry_at.is_some_and(|at| at <= start))
            .map(|(path, _)| (path.clone(), start));
        let due: Vec<(String, Instant)> = hinted.chain(retried).collect();
        for (path, since) in due {
            self.hints.remove(&path);
            self.look(&path, since, tell);
            if start.elapsed() > AT_A_TIME {
                return;
            }
        }
        if start >= self.next_check {
            self.next_check = start + self.slow_check;
            self.paces.retain(|_, pace| !pace.is_over(start));
            self.crashes.retain(|_, crashes| !crashes.is_over(start));
            self.check_everything();
        }
        while let Some(mut sweep) = self.sweep.take() {
            let from = sweep.at.take().map_or(Unbounded, Excluded);
            let next = self.targets.range::<String, _>((from, Unbounded)).next();
            if let Some(path) = next.map(|(path, _)| path.clone()) {
                self.look(&path, sweep.since, tell);
                sweep.at = Some(path);
                self.sweep = Some(sweep);
            } else if sweep.again {
                self.sweep = Some(Sweep::new());
            }
            if start.elapsed() > AT_A_TIME {
                return;
            }
        }
    }

    /// Looks at one path, tells what is new, and heals it if it may.
    fn look(&mut self, path: &str, since: Instant, tell: &mut dyn FnMut(Event)) {
        let Some(target) = self.targets.get(path) else {
            return;
        };
        let Some(finding) = judge(self.host.disk(), path, target) else {
            match (self.drifts.get(path), self.state) {
                (Some(drift), Some(state)) if drift.is_half_healed => self.heal(path, state, tell),
                _ => {
                    if let Some(Drift { finding, .. }) = self.drifts.remove(path) {
                        tell(Event::Recovered { finding });
                    }
                }
            }
            return;
        };
        let before = self.drifts.get(path);
        if before.is_none_or(|drift| drift.finding != finding) {
            tell(Event::Drifted {
                finding: finding.clone(),
                again: before.is_some(),
                after: since.elapsed(),
            });
            let now = Instant::now();
            if !is_crash(&finding) {
                let pace = self.paces.entry(path.to_owned());
                let pace = pace.or_insert_with(|| Pace::of(Trouble::Drift, now));
                if let Some(times) = pace.again(now) {
                    tell(Event::Fought {
                        finding: finding.clone(),
                        times,
                        wait: pace.wait(),
                    });
                }
            }
            self.drifts
                .entry(path.to_owned())
                .and_modify(|drift| drift.finding.clone_from(&finding))
                .or_insert(Drift {
                    finding,
                    since,
                    retry_at: None,
                    pauses: HEALS_AGAIN,
                    failed: None,
                    is_half_healed: false,
                });
        }
        if let Some(state) = self.state {
            self.heal(path, state, tell);
        }
    }

    fn heal(&mut self, path: &str, state: &State, tell: &mut dyn FnMut(Event)) {
        let Some(drift) = self.drifts.get_mut(path) else {
            return;
        };
        let now = Instant::now();
        if drift.retry_at.is_some_and(|at| at > now) {
            return;
        }
        if is_crash(&drift.finding) {
            let crashes = self.crashes.entry(path.to_owned());
            let crashes = crashes.or_insert_with(|| Pace::of(Trouble::Crash, now));
            if crashes.not_before() > now {
                drift.retry_at = Some(crashes.not_before());
                return;
            }
            if let Some(times) = crashes.again(now) {
                tell(Event::Fought {
                    finding: drift.finding.clone(),
                    times,
                    wait: crashes.wait(),
                });
            }
        }
        match put_back(self.host, state, &drift.finding) {
            Ok(found) => {
                if let Some(Drift { finding, since, .. }) = self.drifts.remove(path) {
                    let (finding, took) = (finding.found_as(found), since.elapsed());
                    tell(Event::Healed { finding, took });
                }
            }
            Err(error) => {
                let again_in = drift.pauses.next_pause();
                drift.retry_at = Some(Instant::now() + again_in);
                let failed = Some(format!("{error:?}"));
                let is_new = drift.failed != failed;
                drift.failed = failed;
                let target = self.targets.get(path);
                drift.is_half_healed =
                    target.is_some_and(|target| judge(self.host.disk(), path, target).is_none());
                if is_new {
                    tell(Event::HealFailed {
                        finding: drift.finding.clone(),
                        error,
                        again_in,
                    });
                }
            }
        }
    }
}

/// Whether there is a next pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watching {
    /// There is.
    GoOn,
    /// The source was stopped.
    Stopped,
}

impl Sweep {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            at: None,
            again: false,
        }
    }
}

/// Whether a service ended by itself: starting it again may not help.
fn is_crash(finding: &Finding) -> bool {
    matches!(
        finding.seen,
        Some(Entry::Service(ServiceEntry {
            activity: Activity::Ended(_),
            ..
        }))
    )
}

/// Puts the path of `finding` back as it should be, with contents from the store; what stood there.
pub fn put_back<H: Host>(host: &H, state: &State, finding: &Finding) -> Result<Entry> {
    let claim = Claim::take(host, state)?;
    let stood = claim.heal(&finding.path, &finding.resource, &finding.expected)?;
    if matches!(finding.resource, Resource::Unit(_)) {
        host.reload_units()?;
    }
    for service in to_restart(finding) {
        host.restart(service)?;
    }
    if let (Entry::Service(_), found) = (&finding.expected, host.disk().look(&finding.path)?) {
        let Some(why) = found.differs_from(&finding.expected) else {
            return Ok(stood);
        };
        let trouble = match &finding.resource {
            Resource::Service(name) => host.trouble_of(name),
            _ => None,
        };
        return Err(Error::Services {
            doing: format!("heal {}", finding.resource),
            source: trouble.unwrap_or(why).into(),
        });
    }
    // A file or a link is replaced, or it is an error. What is in the way of nothing, or of a folder,
    // stays if it is not ours to take away.
    if !matches!(finding.expected, Entry::File { .. } | Entry::Link { .. })
        && host.disk().look(&finding.path)? != finding.expected
    {
        let stays = std::io::Error::other(
            "what is there is foreign and is not removed: remove it yourself",
        );
        return Err(Error::path("heal", &finding.path, stays));
    }
    Ok(stood)
}

/// The services that must start again once `finding` is put back.
fn to_restart(finding: &Finding) -> &[String] {
    match (&finding.resource, &finding.part, &finding.seen) {
        (_, Part::Payload(services), _) => services,
        (Resource::Service(name), _, Some(Entry::Service(seen))) => match &finding.expected {
            Entry::Service(expected) if seen.needs_restart_for(expected) => {
                std::slice::from_ref(name)
            }
            _ => &[],
        },
        _ => &[],
    }
}
