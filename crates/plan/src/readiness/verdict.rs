//! What the evidence says of one extension on one node. Evidence counts by when we saw it, never by
//! the time that is written on it; after a restart only what is newer counts.

use std::time::Duration;

use evenkeel_api::machine::node_state::NodeState;
use evenkeel_api::names::object::EXTENSIONS_NAMESPACE;
use evenkeel_api::readiness::{AGENT_EXPIRY, AGENT_EXTENSION, Extension, NODE, RuleOrigin, Source};

use super::snapshot::{Evidence, Feed, NodeSnapshot, Sign};
use super::time::Moment;

/// How long pods must stay ready after the kubelet is back, where nothing else tells.
const SETTLED: Duration = Duration::from_secs(10);
/// How long a Lease inside another object lasts that does not say.
const LASTS: Duration = Duration::from_secs(10);

/// What the evidence says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is healthy.
    Healthy,
    /// Nothing was heard of it yet, and not for so long that it means something.
    Unconfirmed,
    /// Nothing was heard of it since the restart.
    Pending(Box<str>),
    /// It cannot be told yet.
    Unknown,
    /// It is unhealthy: its evidence says so.
    Unhealthy(Box<str>),
    /// Nothing is heard of it any more.
    Silent(Box<str>),
}

impl Verdict {
    /// One word for it.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Unconfirmed => "unconfirmed",
            Self::Pending(_) => "pending",
            Self::Unknown => "unknown",
            Self::Unhealthy(_) => "unhealthy",
            Self::Silent(_) => "silent",
        }
    }

    /// Why it is not healthy, for people.
    pub fn why(&self) -> &str {
        match self {
            Self::Healthy => "",
            Self::Unconfirmed => "no evidence was heard yet",
            Self::Unknown => "its evidence is not read yet",
            Self::Pending(why) | Self::Unhealthy(why) | Self::Silent(why) => why,
        }
    }

    /// Whether a node is not ready with it. What is only not heard of holds on to what was.
    pub(super) fn holds(&self, is_held: bool) -> bool {
        match self {
            Self::Healthy | Self::Unconfirmed => false,
            Self::Pending(_) | Self::Unhealthy(_) => true,
            Self::Unknown | Self::Silent(_) => is_held,
        }
    }
}

/// A verdict, and when it may be another one without anything being seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) verdict: Verdict,
    pub(super) next: Option<Moment>,
    /// Whether half of the time has passed in which it must be heard.
    pub(super) quiet: bool,
    /// When it was heard last.
    pub(super) last: Option<Moment>,
    /// Whether it counts though nothing tells that it is newer than the reboot.
    pub(super) unclear: bool,
    /// Whether what tells of it is not there at all.
    pub(super) absent: bool,
}

impl From<Verdict> for Finding {
    fn from(verdict: Verdict) -> Self {
        Self {
            verdict,
            next: None,
            quiet: false,
            last: None,
            unclear: false,
            absent: false,
        }
    }
}

/// What is remembered of an extension that a node must have.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    /// Since when it must have it.
    pub(super) since: Moment,
    /// What a condition says: the text, when it was seen first, and when it last changed.
    pub(super) said: Option<(Box<str>, Moment, Option<Moment>)>,
    /// What a condition said before the restart after which it must be heard.
    pub(super) before: Option<Box<str>>,
    /// What a condition said before the node got a permit to be down.
    pub(super) at_permit: Option<Box<str>>,
    /// Whether a condition has said something else since that restart.
    pub(super) answered: bool,
    /// Whether what tells of it was there since the machine was restarted.
    pub(super) was_there: bool,
    /// Whether it was silent already when the kubelet alone was restarted, which changes nothing about
    /// that.
    pub(super) was_silent: bool,
    /// Since when its pods are not all ready.
    unready_since: Option<Moment>,
}

impl Memory {
    pub(super) fn from(since: Moment) -> Self {
        Self {
            since,
            said: None,
            before: None,
            at_permit: None,
            answered: false,
            was_there: false,
            was_silent: false,
            unready_since: None,
        }
    }

    /// The machine, or its kubelet alone, was restarted. Without `before` nothing of that is to be
    /// heard again.
    pub(super) fn restart(&mut self, is_boot: bool, is_silent: bool, before: Option<Box<str>>) {
        self.was_there &= !is_boot;
        self.was_silent = is_silent && !is_boot;
        if is_boot || before.is_some() {
            self.answered = false;
            self.before = before;
        }
    }
}

/// All that a verdict is about.
pub(super) struct Case<'a> {
    pub(super) node: &'a NodeSnapshot,
    pub(super) extension: &'a Extension,
    /// Whose kind its rule is.
    pub(super) origin: RuleOrigin,
    pub(super) evidence: &'a dyn Fn(&Feed) -> Option<&'a Evidence>,
    /// The last restart of the machine or of its kubelet.
    pub(super) restarted: Option<Moment>,
    /// The last one of the machine; a new node is one, too.
    pub(super) booted: Option<Moment>,
    /// When the kubelet was first heard after it.
    pub(super) kubelet_back: Option<Moment>,
    /// Since when the API server answers without a break.
    pub(super) watched_since: Moment,
    /// Whether its rule holds the node: then being heard is needed, and counting as heard is not enough.
    pub(super) is_held: bool,
    /// Whether it was held when we came: then what was only found is not heard.
    pub(super) is_found: bool,
    pub(super) now: Moment,
}

/// Where to look for what an extension renews.
pub(super) fn place(extension: &Extension, node: &str) -> Option<(Feed, String)> {
    match &extension.source {
        Source::Lease {
            namespace, name, ..
        }
        | Source::Status {
            namespace,
            name,
            lease: None,
            ..
        } => {
            let namespace = namespace.clone();
            Some((Feed::Leases { namespace }, name.replace(NODE, node)))
        }
        Source::Status {
            api_version,
            kind,
            namespace,
            name,
            lease: Some(lease),
        } => {
            let feed = Feed::Objects {
                api_version: api_version.clone(),
                kind: kind.clone(),
                namespace: namespace.clone(),
                lease: lease.clone(),
            };
            Some((feed, name.replace(NODE, node)))
        }
        Source::Probe { .. } => Some((Feed::agents(), format!("{node}.{AGENT_EXTENSION}"))),
        Source::Pods { .. } | Source::Condition { .. } | Source::AnyOf(_) => None,
    }
}

/// The watch that tells of an extension, if it is not the Node's own.
pub(super) fn feed(extension: &Extension) -> Option<Feed> {
    match &extension.source {
        Source::Pods {
            namespace,
            selector,
            ..
        } => Some(Feed::Pods {
            namespace: namespace.clone(),
            selector: selector.to_query(),
        }),
        _ => place(extension, "").map(|(feed, _)| feed),
    }
}

/// Whether who renews a Lease is on the node.
pub(super) fn is_of(holder: &str, node: &str) -> bool {
    let rest = holder.strip_prefix(node);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether this is the Lease of another node's agent, and no evidence for `node`: an agent may write one
/// Lease, and a pattern of a rule may lead to that one from a node whose name begins or ends alike.
pub(super) fn is_anothers(feed: &Feed, name: &str, node: &str) -> bool {
    let owner = name.strip_suffix(AGENT_EXTENSION);
    let owner = owner.and_then(|rest| rest.strip_suffix('.'));
    *feed == Feed::agents() && owner.is_some_and(|owner| owner != node)
}

/// Whether it is the agent's own state, which never evicts anybody.
pub(super) fn is_agent(extension: &Extension) -> bool {
    matches!(&extension.source, Source::Lease { namespace, name, .. }
        if namespace == EXTENSIONS_NAMESPACE && *name == format!("{NODE}.{AGENT_EXTENSION}"))
}

impl Case<'_> {
    /// The verdict.
    pub(super) fn judge(&self, memory: &mut Memory) -> Finding {
        match &self.extension.source {
            Source::Lease { expiry, .. } => self.renewed(memory, Some(*expiry)),
            Source::Status { .. } => self.renewed(memory, None),
            Source::Probe { .. } => self.probe(memory),
            Source::Pods { debounce, .. } => self.pods(memory, *debounce),
            Source::Condition {
                kind,
                status,
                default_status,
                ..
            } if self.origin == RuleOrigin::Nrc => self.as_it_stands(kind, status, default_status),
            Source::Condition {
                kind,
                status,
                freshness,
                default_status,
            } => self.condition(memory, kind, status, (*freshness, default_status)),
            // Each of its conditions is judged by itself.
            Source::AnyOf(_) => Verdict::Unknown.into(),
        }
    }

    /// The restart after which something must be heard; what is asked for only since then need not.
    pub(super) fn awaits(&self, memory: &Memory) -> Option<Moment> {
        self.restarted.filter(|restart| memory.since <= *restart)
    }

    /// The same for a restart of the machine, or for a new node.
    pub(super) fn awaits_boot(&self, memory: &Memory) -> Option<Moment> {
        self.booted.filter(|boot| memory.since <= *boot)
    }

    /// Since when silence counts: not from before we saw this very watch without a break.
    pub(super) fn counted(&self, last: Moment) -> Moment {
        if self.is_held {
            return last;
        }
        let feed = feed(self.extension).and_then(|feed| (self.evidence)(&feed));
        let since = feed.map(|it| it.since).unwrap_or_default();
        last.max(self.watched_since).max(since)
    }

    fn sign(&self) -> Option<&Sign> {
        let (feed, name) = place(self.extension, &self.node.name)?;
        if is_anothers(&feed, &name, &self.node.name) {
            return None;
        }
        let evidence = (self.evidence)(&feed)?;
        let sign = evidence.signs.get(name.as_str());
        sign.filter(|sign| is_of(&sign.holder, &self.node.name))
    }

    fn is_listed(&self) -> bool {
        let feed = feed(self.extension);
        feed.is_none_or(|feed| (self.evidence)(&feed).is_some_and(|it| it.is_listed))
    }

    /// Until when its silence means nothing, if that may not be read.
    fn unread_until(&self) -> Option<Moment> {
        let evidence = (self.evidence)(&feed(self.extension)?)?;
        Some(evidence.unread_until).filter(|until| *until > self.now)
    }

    /// What is renewed, or is not any more.
    fn renewed(&self, memory: &Memory, expiry: Option<Duration>) -> Finding {
        let sign = self.sign();
        let what = || match place(self.extension, &self.node.name) {
            Some((Feed::Leases { namespace }, name)) => format!("Lease {namespace}/{name}"),
            Some((
                Feed::Objects {
                    kind, namespace, ..
                },
                name,
            )) => {
                format!("{kind} {namespace}/{name}")
            }
            _ => String::new(),
        };
        let last = sign.map(Sign::last);
        let with = |verdict: Verdict| Finding {
            last,
            ..Finding::from(verdict)
        };
        let lasts = sign.and_then(|it| it.lasts);
        // An agent that nobody asked for evidence so far renews seldom, and says so: until it has heard of the rule.
        let expiry = match (expiry, lasts) {
            (Some(expiry), Some(lasts)) if is_told_by_agent(self.extension, &self.node.name) => {
                expiry.max(lasts)
            }
            (expiry, lasts) => expiry.or(lasts).unwrap_or(LASTS),
        };
        let heard = last.unwrap_or(memory.since).max(memory.since);
        if let Some(restart) = self.awaits(memory)
            && !sign.is_some_and(|it| !it.is_gone() && it.renewed > Some(restart))
            && !memory.was_silent
        {
            let why = format!("{} was not renewed since the restart", what());
            return with(Verdict::Pending(why.into()));
        }
        if !self.is_listed() {
            return with(Verdict::Unknown);
        }
        if let Some(until) = self.unread_until() {
            return Finding {
                next: Some(until),
                ..with(Verdict::Unknown)
            };
        }
        let from = self.counted(heard);
        let (half, over) = (from + expiry / 2, from + expiry);
        if self.now >= over {
            let why = match sign {
                Some(sign) if !sign.is_gone() => {
                    format!("{} was not renewed for {expiry:?}", what())
                }
                _ => format!("this node has no {}", what()),
            };
            return Finding {
                quiet: true,
                ..with(Verdict::Silent(why.into()))
            };
        }
        if self.is_found && sign.is_none_or(|it| it.renewed.is_none()) {
            return Finding {
                next: Some(over),
                ..with(Verdict::Unknown)
            };
        }
        let verdict = match sign.and_then(|it| it.report.as_ref()) {
            Some(report) if is_agent(self.extension) && report.state == NodeState::Degraded => {
                Verdict::Unhealthy("the agent reports Degraded".into())
            }
            _ if sign.is_some_and(|it| !it.is_gone()) => Verdict::Healthy,
            _ => Verdict::Unconfirmed,
        };
        Finding {
            next: Some(if self.now < half { half } else { over }),
            quiet: self.now >= half,
            ..with(verdict)
        }
    }

    fn probe(&self, memory: &Memory) -> Finding {
        let lasts = self.sign().and_then(|it| it.lasts);
        let expiry = lasts.unwrap_or(AGENT_EXPIRY);
        let heard = self.renewed(memory, Some(expiry));
        if !matches!(heard.verdict, Verdict::Healthy | Verdict::Unconfirmed) {
            return heard;
        }
        let report = self.sign().and_then(|it| it.report.as_ref());
        match report.and_then(|it| it.probes.get(&self.extension.name)) {
            Some(probe) if probe.healthy => heard,
            Some(probe) => Finding {
                verdict: Verdict::Unhealthy(format!("probe failed: {}", probe.message).into()),
                ..heard
            },
            None if self.awaits(memory).is_some() => Finding {
                verdict: Verdict::Pending("it was not probed since the restart".into()),
                ..heard
            },
            None => {
                let over = self.counted(memory.since) + expiry;
                let verdict = if self.now >= over {
                    Verdict::Silent("the node's agent does not probe it".into())
                } else {
                    Verdict::Unconfirmed
                };
                Finding {
                    verdict,
                    next: heard
                        .next
                        .into_iter()
                        .chain([over])
                        .filter(|it| *it > self.now)
                        .min(),
                    ..heard
                }
            }
        }
    }

    fn pods(&self, memory: &mut Memory, debounce: Duration) -> Finding {
        let awaits = self.awaits(memory);
        if !self.is_listed() {
            let why = "its pods are not listed yet".into();
            return awaits
                .map_or(Verdict::Unknown, |_| Verdict::Pending(why))
                .into();
        }
        let evidence = feed(self.extension).and_then(|feed| (self.evidence)(&feed));
        let pods = evidence.and_then(|it| it.pods.get(self.node.name.as_str()));
        let pods: Vec<_> = pods
            .into_iter()
            .flat_map(|pods| pods.values())
            .filter(|it| !it.snapshot.ending)
            .collect();
        let last = pods.iter().filter_map(|it| it.changed).max();
        let unready = pods.iter().find(|it| !it.snapshot.ready);
        let settled = self.kubelet_back.map(|back| back + SETTLED);
        let why = match unready {
            Some(pod) => format!("pod {} is not ready", pod.snapshot.name),
            None if pods.is_empty() => "the node has none of its pods".to_owned(),
            None => {
                memory.unready_since = None;
                memory.was_there = true;
                let Some(restart) = awaits else {
                    return Finding {
                        last,
                        ..Verdict::Healthy.into()
                    };
                };
                // A kubelet that restarts does not touch its pods: one that has not changed counts
                // when it stayed ready for a while under the new one.
                let old = pods.iter().find(|it| it.changed <= Some(restart));
                return match (old, settled) {
                    (None, _) => Verdict::Healthy.into(),
                    (_, Some(settled)) if self.now >= settled => Verdict::Healthy.into(),
                    (Some(pod), settled) => Finding {
                        next: settled,
                        last,
                        ..Verdict::Pending(
                            format!(
                                "pod {} has not changed since the restart",
                                pod.snapshot.name
                            )
                            .into(),
                        )
                        .into()
                    },
                };
            }
        };
        // Nor is it told yet that one that has not changed is still not ready, or that none comes.
        let is_settled = settled.is_some_and(|at| self.now >= at);
        let is_untold = match unready {
            Some(pod) => awaits.is_some_and(|it| pod.changed <= Some(it)) && !is_settled,
            None => self.awaits_boot(memory).is_some() && !memory.was_there,
        };
        if is_untold {
            return Finding {
                next: settled.filter(|at| *at > self.now),
                last,
                ..Verdict::Pending(why.into()).into()
            };
        }
        let since = *memory.unready_since.get_or_insert(self.now);
        let counts_from = since + debounce;
        let finding = if self.now >= counts_from || awaits.is_some_and(|it| it >= since) {
            Finding::from(Verdict::Unhealthy(why.into()))
        } else {
            Finding {
                next: Some(counts_from),
                ..Verdict::Unconfirmed.into()
            }
        };
        Finding {
            last,
            absent: unready.is_none(),
            ..finding
        }
    }
}

/// Whether what an extension of `node` is judged by is the Lease of the node's agent.
pub(super) fn is_told_by_agent(extension: &Extension, node: &str) -> bool {
    place(extension, node).is_some_and(|(feed, name)| {
        feed == Feed::agents() && name == format!("{node}.{AGENT_EXTENSION}")
    })
}
