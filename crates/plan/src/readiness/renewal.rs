//! When an agent renews its Lease: often while somebody takes silence on it for something, seldom while nobody does.
//! At rest the renewals of a fleet are what a cluster pays for its agents.

use std::time::Duration;

use evenkeel_api::readiness::{AGENT_EXPIRY, Extension, NODE};

use super::time::Moment;
use super::verdict::is_told_by_agent;

/// How many renewals must fit into the time that a Lease lasts.
const RENEWALS: u32 = 3;
/// The pause between renewals while nobody asks for them. What is told of agents that are silent for minutes needs three
/// of them.
const AT_REST: Duration = Duration::from_secs(40);

/// The pause between renewals of an agent's Lease, for a node that needs these extensions; nothing, if it is not known
/// which it needs.
pub fn renewal_period(needed: Option<&[Extension]>) -> Duration {
    let asks = |it: &Extension| is_told_by_agent(it, NODE);
    match needed {
        Some(needed) if !needed.iter().any(asks) => AT_REST,
        _ => AGENT_EXPIRY / RENEWALS,
    }
}

/// When an agent's Lease is renewed next. Agents that wrote at the same time, because of a rule or an outage that was
/// everybody's, do not write at the same time ever after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewal {
    period: Duration,
    /// Which part of half a period this node waits longer than others, in thousandths.
    share: u32,
    /// Whether others were written at the same time, or will be.
    is_crowded: bool,
    /// Nothing if it is to be written whenever that can be done.
    due: Option<Moment>,
}

impl Renewal {
    /// The Lease of `node` was not written yet.
    pub fn of(node: &str) -> Self {
        let share = node.bytes().fold(7_u32, |sum, byte| {
            sum.wrapping_mul(16_777_619) ^ u32::from(byte)
        });
        Self {
            period: renewal_period(None),
            share: share % 1000,
            is_crowded: true,
            due: None,
        }
    }

    /// From now on it is renewed this often. Who is to write more often has waited the same part of the shorter period; who
    /// may write more seldom says so first, when the Lease is due that lasts for less.
    pub fn set_period(&mut self, period: Duration, now: Moment) {
        if period < self.period
            && let Some(due) = self.due
        {
            let left = due.since(now).as_secs_f64() / self.period.as_secs_f64();
            self.due = Some(now + period.mul_f64(left.clamp(0.0, 1.0)));
        }
        self.is_crowded |= period > self.period;
        self.period = period;
    }

    /// How long the Lease lasts that is written now.
    pub fn lasts(&self) -> Duration {
        self.period * RENEWALS
    }

    /// Whether it is to be written, though nothing on it has changed.
    pub fn is_due(&self, now: Moment) -> bool {
        self.due.is_none_or(|due| due <= now)
    }

    /// It was written.
    pub fn written(&mut self, now: Moment) {
        let is_news = self.due.is_none_or(|due| due > now);
        let is_crowded = std::mem::take(&mut self.is_crowded) || is_news;
        let pause = if is_crowded {
            self.period / 2 + self.period / 2 * self.share / 1000
        } else {
            self.period
        };
        self.due = Some(now + pause);
    }

    /// It could not be written.
    pub fn failed(&mut self) {
        self.due = None;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use evenkeel_api::readiness::extensions_from_json;
    use proptest::prelude::*;

    use super::*;

    const OFTEN: Duration = Duration::from_secs(10);

    fn at(milliseconds: u64) -> Moment {
        Moment(Duration::from_millis(milliseconds))
    }

    fn period(list: &str) -> Duration {
        let (needed, _) = extensions_from_json("it", list).unwrap();
        renewal_period(Some(&needed))
    }

    /// Covers R16.
    #[test]
    fn an_agent_renews_often_only_while_something_is_judged_by_its_lease() {
        assert_eq!(renewal_period(None), OFTEN, "nothing is known yet");
        for (list, expected) in [
            ("[]", AT_REST),
            (
                r#"[{"name": "a", "lease": {}}, {"name": "b", "condition": {"type": "B"}}]"#,
                AT_REST,
            ),
            (
                r#"[{"name": "a", "pods": {"namespace": "x", "selector": {"matchLabels": {"a": "b"}}}}]"#,
                AT_REST,
            ),
            (
                r#"[{"name": "a", "lease": {}}, {"name": "p", "probe": {"tcpSocket": {"port": 1}}}]"#,
                OFTEN,
            ),
            (
                r#"[{"name": "evenkeel-agent", "lease": {"expiry": "30s"}}]"#,
                OFTEN,
            ),
            (
                r#"[{"name": "x", "lease": {"name": "{node}.evenkeel-agent"}}]"#,
                OFTEN,
            ),
            (
                r#"[{"name": "x", "lease": {"namespace": "other", "name": "{node}.evenkeel-agent"}}]"#,
                AT_REST,
            ),
            (
                r#"[{"name": "x", "lease": {"name": "a.{node}.evenkeel-agent"}}]"#,
                AT_REST,
            ),
            (
                r#"[{"name": "x", "status": {"apiVersion": "a/v1", "kind": "B", "name": "{node}.evenkeel-agent"}}]"#,
                OFTEN,
            ),
            (
                r#"[{"name": "x", "status": {"apiVersion": "a/v1", "kind": "B", "name": "{node}", "lease": ".lease"}}]"#,
                AT_REST,
            ),
        ] {
            assert_eq!(period(list), expected, "{list}");
        }
    }

    #[test]
    fn the_alert_on_silent_agents_needs_three_missed_renewals() {
        let alerts = include_str!("../../../../deploy/alerts/agent.yaml");
        let (_, rest) = alerts.split_once("evenkeel-agent\"} > ").unwrap();
        let limit: u64 = rest.split_whitespace().next().unwrap().parse().unwrap();
        assert!(AT_REST * RENEWALS <= Duration::from_secs(limit), "{limit}");
    }

    #[test]
    fn who_waits_has_waited_the_same_part_of_the_other_period() {
        let mut renewal = Renewal::of("a");
        assert!(renewal.is_due(at(0)));
        renewal.written(at(0));
        let (due, never) = (renewal.due.unwrap(), at(0) + OFTEN);
        assert!(at(5_000) <= due && due < never, "{due:?}");
        assert!(!renewal.is_due(at(4_999)) && renewal.is_due(due));
        renewal.written(due);
        assert_eq!(renewal.due, Some(due + OFTEN));
        // The Lease that lasts for thirty seconds is renewed in time; the next one says that it lasts longer.
        let due = due + OFTEN;
        renewal.set_period(AT_REST, at(15_000));
        assert_eq!(renewal.due, Some(due));
        renewal.written(due);
        assert_eq!(renewal.lasts(), Duration::from_mins(2));
        let next = renewal.due.unwrap();
        assert!(
            due + AT_REST / 2 <= next && next < due + AT_REST,
            "{next:?}"
        );
        renewal.written(next);
        assert_eq!(renewal.due, Some(next + AT_REST));
        renewal.set_period(OFTEN, next + AT_REST / 4);
        assert_eq!(
            renewal.due,
            Some(next + AT_REST / 4 + OFTEN * 3 / 4),
            "a quarter of the pause is over"
        );
        renewal.failed();
        assert!(renewal.is_due(at(0)));
    }

    /// How many of 5,000 agents write in each second, each of which looks every half a second; the period changes with
    /// the times.
    fn writes(seconds: u64, period: impl Fn(u64) -> Duration) -> Vec<u32> {
        let mut agents: Vec<_> = (0..5_000)
            .map(|number| Renewal::of(&format!("worker-{number}")))
            .collect();
        let mut writes = BTreeMap::<u64, u32>::new();
        for step in 0..seconds * 2 {
            let (now, second) = (at(step * 500), step / 2);
            for agent in &mut agents {
                if agent.period != period(second) {
                    agent.set_period(period(second), now);
                }
                if agent.is_due(now) {
                    agent.written(now);
                    *writes.entry(second).or_default() += 1;
                }
            }
        }
        (0..seconds)
            .map(|second| writes.get(&second).copied().unwrap_or_default())
            .collect()
    }

    /// Covers R16.
    #[test]
    fn five_thousand_agents_at_rest_write_125_times_a_second_and_not_all_at_once() {
        // All start at once; a rule comes after ten minutes and goes five minutes later.
        let writes = writes(1_500, |second| {
            if (600..900).contains(&second) {
                OFTEN
            } else {
                AT_REST
            }
        });
        let mean = |from: usize, to: usize| {
            writes[from..to].iter().sum::<u32>() / u32::try_from(to - from).unwrap()
        };
        let most = |from: usize, to: usize| writes[from..to].iter().max().copied().unwrap();
        assert_eq!(writes[0], 5_000);
        assert!((123..=127).contains(&mean(80, 600)), "{}", mean(80, 600));
        assert!((490..=510).contains(&mean(620, 900)), "{}", mean(620, 900));
        assert!(
            (123..=127).contains(&mean(980, 1500)),
            "{}",
            mean(980, 1500)
        );
        for (from, to, limit) in [(1, 600, 500), (600, 900, 1_600), (910, 1_500, 500)] {
            assert!(most(from, to) <= limit, "{from}: {}", most(from, to));
        }
    }

    proptest! {
        /// Covers R16.
        #[test]
        fn no_pause_is_longer_than_the_lease_lasts(
            node in "[a-z0-9.-]{1,20}",
            steps in prop::collection::vec((0_u64..20_000, any::<bool>(), 0_u8..10), 1..60),
        ) {
            let mut renewal = Renewal::of(&node);
            let (mut now, mut lasts, mut since) = (at(0), None, at(0));
            for (pause, often, what) in steps {
                // It is looked at every half a second, and when something happens.
                for _ in 0..pause / 500 {
                    now = now + Duration::from_millis(500);
                    if renewal.is_due(now) {
                        renewal.written(now);
                        (lasts, since) = (Some(renewal.lasts()), now);
                    }
                    let silent = now.since(since);
                    prop_assert!(lasts.is_none_or(|it| silent * 2 < it), "{silent:?} of {lasts:?}");
                }
                match what {
                    0..6 => {
                        let period = if often { OFTEN } else { AT_REST };
                        renewal.set_period(period, now);
                    }
                    6..9 => {
                        renewal.written(now);
                        (lasts, since) = (Some(renewal.lasts()), now);
                    }
                    _ => {}
                }
            }
        }
    }
}
