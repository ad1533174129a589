//! `evenkeel rollout windows POOL`: when nodes of a pool may start to be disrupted.

use std::fmt::Write;

use anyhow::Result;
use evenkeel_api::names::object;
use evenkeel_plan::fleet::drain;
use evenkeel_plan::fleet::field_problem::FieldProblem;
use evenkeel_plan::fleet::maintenance::{FrozenPart, WindowOpening};
use evenkeel_plan::fleet::policy::{PolicyLookup, PolicyReference};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::Ending;
use crate::arguments::{ClusterArguments, Format};
use crate::cluster::{self, Cluster, NamedPolicies};
use crate::output::{self, Paint};
use crate::table::{lines, table};
use crate::windows::upgrade::WindowsNodes;

/// How many windows are listed.
const COUNT: usize = 10;

/// A window at one of its times.
struct ListedWindow {
    /// Begin and end, as a clock there shows them.
    local: [String; 2],
    span: [Timestamp; 2],
    schedule: String,
    lasts: String,
    timezone: String,
    frozen: FrozenPart,
}

/// The calendar of a pool, from now on.
struct PoolCalendar {
    pool: String,
    policy: Option<String>,
    overridden: Option<String>,
    problems: Vec<FieldProblem>,
    /// Why nodes may not start, if so.
    closed: Option<String>,
    /// When that changes.
    next_change: Option<Timestamp>,
    windows: Vec<ListedWindow>,
    freezes: Vec<[Timestamp; 2]>,
    has_windows: bool,
}

pub(crate) fn run(arguments: &ClusterArguments, pool: &str, format: Format) -> Result<Ending> {
    let now = Timestamp::now();
    let (calendar, short) = cluster::with(arguments, async |cluster| {
        PoolCalendar::of(&cluster, pool, now).await
    })?;
    output::warn(short);
    output::show(format, |paint| calendar.text(paint), || calendar.document())?;
    Ok(Ending::well_if(calendar.problems.is_empty()))
}

impl PoolCalendar {
    /// That of a pool, and what is to be said of its windows.
    async fn of(cluster: &Cluster, name: &str, now: Timestamp) -> Result<(Self, Option<String>)> {
        let (reference, timeout, problems) = reference(cluster, name).await?;
        let policies = NamedPolicies::named_by(cluster, std::iter::once(&reference)).await?;
        let policy = policies.look_up(&reference);
        let effect = reference.effect(policy, now);
        let mut calendar = Self {
            pool: name.to_owned(),
            policy: reference.name.clone(),
            overridden: reference.notice(),
            problems: problems.into_iter().chain(effect.problem).collect(),
            closed: effect.closed.map(|it| it.to_string()),
            next_change: None,
            windows: Vec::new(),
            freezes: Vec::new(),
            has_windows: false,
        };
        let PolicyLookup::Found(policy) = policy else {
            return Ok((calendar, None));
        };
        let all = &policy.calendar;
        calendar.has_windows = !all.windows.is_empty();
        if calendar.overridden.is_none() && policy.problems.is_empty() {
            calendar.next_change = all.next_change(now);
        }
        calendar.windows = all.openings(now, COUNT).iter().map(listed).collect();
        let ahead = all.freezes.iter().filter(|it| it.to > now);
        calendar.freezes = ahead.map(|it| [it.from, it.to]).collect();
        calendar.freezes.sort();
        let short = policy.short_windows(timeout.unwrap_or(drain::TIMEOUT));
        Ok((calendar, short))
    }

    /// Whether nodes may start, in one sentence.
    fn verdict(&self) -> String {
        let until = |what: &str| match self.next_change {
            Some(until) => format!("{what} until {until}"),
            None => what.to_owned(),
        };
        match (&self.policy, &self.closed, &self.overridden) {
            (None, ..) => {
                "The pool names no RolloutPolicy: nodes may start at any time.".to_owned()
            }
            (_, Some(closed), _) => format!("Closed: {closed}."),
            (_, None, Some(overridden)) => format!("Open: {overridden}."),
            (_, None, None) => format!("{}.", until("Open")),
        }
    }

    fn text(&self, paint: Paint) -> String {
        let policy = self.policy.as_ref();
        let policy = policy.map_or_else(String::new, |it| format!(" (RolloutPolicy {it})"));
        let mut text = format!("{}{policy}: {}\n", paint.bold(&self.pool), self.verdict());
        for problem in &self.problems {
            let _ = writeln!(text, "{} {problem}", paint.red("!"));
        }
        if self.policy.is_some() && !self.has_windows && self.problems.is_empty() {
            text.push_str(
                "The policy has no windows: nodes may start whenever no freeze is in force.\n",
            );
        }
        if !self.windows.is_empty() {
            let mut rows = table(
                &[
                    "OPENS",
                    "CLOSES",
                    "LASTS",
                    "SCHEDULE",
                    "TIME ZONE",
                    "FROZEN",
                ],
                paint,
            );
            for it in &self.windows {
                let [opens, closes] = it.local.clone();
                let frozen = frozen(it.frozen).to_owned();
                rows.add_row([
                    opens,
                    closes,
                    it.lasts.clone(),
                    it.schedule.clone(),
                    it.timezone.clone(),
                    frozen,
                ]);
            }
            let _ = write!(text, "\n{}", lines(&rows));
        }
        if !self.freezes.is_empty() {
            let mut rows = table(&["FREEZE FROM", "TO"], paint);
            for [from, to] in &self.freezes {
                rows.add_row([from.to_string(), to.to_string()]);
            }
            let _ = write!(text, "\n{}", lines(&rows));
        }
        text
    }

    fn document(&self) -> Value {
        let windows = self.windows.iter().map(|it| {
            let [opens, closes] = it.span;
            json!({
                "opens": opens,
                "closes": closes,
                "schedule": it.schedule,
                "duration": it.lasts,
                "timezone": it.timezone,
                "frozen": frozen(it.frozen),
            })
        });
        let freezes = self.freezes.iter();
        json!({
            "pool": self.pool,
            "policy": self.policy,
            "open": self.closed.is_none(),
            "closed": self.closed,
            "override": self.overridden,
            "nextChange": self.next_change,
            "problems": self.problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "windows": windows.collect::<Vec<_>>(),
            "freezes": freezes.map(|[from, to]| json!({ "from": from, "to": to })).collect::<Vec<_>>(),
        })
    }
}

fn frozen(part: FrozenPart) -> &'static str {
    match part {
        FrozenPart::None => "no",
        FrozenPart::Some => "in part",
        FrozenPart::All => "yes",
    }
}

fn listed(opening: &WindowOpening<'_>) -> ListedWindow {
    let window = opening.window;
    let span = [opening.span.from, opening.span.to];
    let zone = &window.timezone;
    let local = span.map(|it| {
        it.to_zoned(zone.clone())
            .strftime("%a %Y-%m-%d %H:%M %Z")
            .to_string()
    });
    ListedWindow {
        local,
        span,
        schedule: window.schedule.clone(),
        lasts: window.lasts.clone(),
        timezone: zone.iana_name().unwrap_or("UTC").to_owned(),
        frozen: opening.frozen,
    }
}

/// Which policy a pool names, how long its drains may take where it says so, and what is wrong with what it says of its
/// policy. The Windows pool goes by its name, unless a `MachineConfigPool` has it.
async fn reference(
    cluster: &Cluster,
    name: &str,
) -> Result<(
    PolicyReference,
    Option<std::time::Duration>,
    Vec<FieldProblem>,
)> {
    let found = cluster.pool(name).await;
    if found.is_err()
        && name == object::WINDOWS_POOL
        && let Some(windows) = WindowsNodes::of(cluster).await?
    {
        let pool = windows.into_pool();
        return Ok((pool.policy, None, pool.problems));
    }
    let pool = found?.pool;
    Ok((pool.policy, pool.drain_timeout, pool.problems))
}
