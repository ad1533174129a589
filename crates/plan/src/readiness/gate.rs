//! One node: which extensions it must have, what each is said to be, and what follows for the node.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use evenkeel_api::names::annotation;
use evenkeel_api::readiness::{
    EVICT_AFTER, Extension, ReadinessRule, RuleOrigin, RuleTaint, Source,
};

use super::evict::EvictionState;
use super::guard::Class;
use super::own_list;
use super::restart_record::{Restart, RestartRecord};
use super::snapshot::{Evidence, Feed, NodeSnapshot};
use super::time::Moment;
use super::verdict::{Case, Finding, Memory, Verdict, feed};
use crate::listing::listed;

/// How many reasons a sentence names.
const NAMED: usize = 3;

/// The rule that a node's own list is; no object can have this name.
pub const OWN_LIST: &str = annotation::SYSTEM_EXTENSIONS;

/// How far a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodePhase {
    /// It is new or was restarted, and not all that it must have was heard of since.
    Booting {
        /// Since when.
        since: Moment,
    },
    /// Pods may come.
    Ready {
        /// Since when.
        since: Moment,
    },
    /// An extension is not healthy.
    Broken {
        /// Since when.
        since: Moment,
    },
    /// That has lasted so long that its pods go elsewhere.
    Evicting {
        /// Since when it is not ready.
        since: Moment,
    },
}

impl NodePhase {
    /// One word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Booting { .. } => "Booting",
            Self::Ready { .. } => "Ready",
            Self::Broken { .. } => "Broken",
            Self::Evicting { .. } => "Evicting",
        }
    }

    /// Since when.
    pub const fn since(self) -> Moment {
        match self {
            Self::Booting { since }
            | Self::Ready { since }
            | Self::Broken { since }
            | Self::Evicting { since } => since,
        }
    }

    /// What comes after, when the node `is_held` or not, for a restart or not.
    fn next(self, is_held: bool, for_restart: bool, now: Moment) -> Self {
        match (self, is_held, for_restart) {
            (Self::Ready { since }, false, _) => Self::Ready { since },
            (_, false, _) => Self::Ready { since: now },
            (Self::Booting { since }, true, true) => Self::Booting { since },
            // It was restarted once more: what went on with it begins anew.
            (Self::Ready { .. } | Self::Broken { .. } | Self::Evicting { .. }, true, true) => {
                Self::Booting { since: now }
            }
            (Self::Ready { .. }, true, false) => Self::Broken { since: now },
            (Self::Booting { since } | Self::Broken { since }, true, false) => {
                Self::Broken { since }
            }
            (Self::Evicting { since }, true, false) => Self::Evicting { since },
        }
    }
}

/// An extension that a node must have.
#[derive(Debug, Clone)]
pub(super) struct Need {
    pub(super) rule: Rc<ReadinessRule>,
    index: usize,
    /// Which of the conditions it is of which one is enough.
    choice: usize,
    /// Whether its rule has nothing to do with the node any more.
    pub(super) completed: bool,
    pub(super) memory: Memory,
    pub(super) verdict: Verdict,
    pub(super) last: Option<Moment>,
    /// Since when it is unhealthy or silent.
    unhealthy_since: Option<Moment>,
    /// Whether it counts though nothing tells that it is newer than the reboot.
    pub(super) unclear: bool,
    /// Whether what tells of it is not there at all.
    absent: bool,
}

impl Need {
    /// One that was not asked for before now; `found` is what stood on the Node when we came.
    fn new(
        rule: &Rc<ReadinessRule>,
        (index, choice): (usize, usize),
        found: &RestartRecord,
        now: Moment,
    ) -> Self {
        let mut need = Self {
            rule: Rc::clone(rule),
            index,
            choice,
            completed: false,
            memory: Memory::from(now),
            verdict: Verdict::Unknown,
            last: None,
            unhealthy_since: None,
            unclear: false,
            absent: false,
        };
        let before = need.key().and_then(|key| found.before.get(&key));
        need.memory.before = before.cloned();
        need
    }

    pub(super) fn extension(&self) -> Option<&Extension> {
        let extension = self.rule.extensions.get(self.index)?;
        extension.choices().get(self.choice)
    }

    /// Whether `other` stands for the same extension: one of them is enough.
    fn is_choice_of(&self, other: &Self) -> bool {
        self.index == other.index && self.rule.name == other.rule.name
    }

    /// Whether the node may not have pods without it.
    pub(super) fn decides(&self) -> bool {
        self.is_acted_on() && self.extension().is_some_and(|it| it.affects_readiness)
    }

    /// Whether anything follows from it: not if its rule only says what it would do, or leaves all as it is.
    fn is_acted_on(&self) -> bool {
        !self.rule.dry_run && !self.rule.suspend && !self.completed
    }

    /// The condition of the Node that tells of it, if one does.
    pub(super) fn condition(&self) -> Option<&str> {
        match &self.extension()?.source {
            Source::Condition { kind, .. } => Some(kind),
            _ => None,
        }
    }

    /// Its rule and its name.
    pub(super) fn key(&self) -> Option<String> {
        let (rule, extension) = (&self.rule.name, self.rule.extensions.get(self.index)?);
        Some(match (&extension.source, self.condition()) {
            (Source::AnyOf(_), Some(kind)) => format!("{rule}/{}/{kind}", extension.name),
            _ => format!("{rule}/{}", extension.name),
        })
    }

    /// Whether nothing tells of it any more.
    pub(super) fn is_missed(&self) -> bool {
        match self.verdict {
            Verdict::Silent(_) => true,
            Verdict::Unhealthy(_) => self.absent,
            _ => false,
        }
    }

    /// The node was restarted, and its condition is as it was `before`.
    pub(super) fn restart(&mut self, restart: Restart, before: Option<Box<str>>) {
        let is_limited = self.extension().is_some_and(
            |it| matches!(it.source, Source::Condition { freshness, .. } if !freshness.is_zero()),
        );
        let is_boot = restart == Restart::Machine;
        let is_silent = matches!(self.verdict, Verdict::Silent(_));
        let before = before.filter(|_| is_boot || is_limited);
        self.memory.restart(is_boot, is_silent, before);
    }

    /// Takes note of what was found.
    fn find(&mut self, finding: Finding, now: Moment) {
        match &finding.verdict {
            // Its time begins when it is resumed.
            _ if self.rule.suspend => self.unhealthy_since = None,
            Verdict::Unhealthy(_) | Verdict::Silent(_) => {
                self.unhealthy_since.get_or_insert(now);
            }
            Verdict::Healthy | Verdict::Unconfirmed | Verdict::Pending(_) => {
                self.unhealthy_since = None;
            }
            // What is not known now is as it was.
            Verdict::Unknown => {}
        }
        self.verdict = finding.verdict;
        self.last = finding.last;
        self.unclear = finding.unclear;
        self.absent = finding.absent;
    }

    /// Since when its evidence is a reason to evict. What was only not heard yet never is.
    pub(super) fn evicts_since(&self) -> Option<Moment> {
        match self.verdict {
            Verdict::Unhealthy(_) | Verdict::Silent(_) => self.unhealthy_since,
            _ => None,
        }
    }
}

/// What was found out about a node.
#[derive(Debug, Default)]
pub(super) struct Judgement {
    /// When that may be otherwise without anything being seen.
    pub(super) next: Option<Moment>,
    /// Whether something would hold it that is only not heard of.
    pub(super) silent: bool,
    /// What it counts as.
    pub(super) class: Class,
}

/// What is known of the silence of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Silence {
    /// Nothing but that nothing was heard.
    Unasked,
    /// It is being read fresh.
    Asked,
    /// It was, and is so.
    Confirmed,
}

#[derive(Debug)]
pub(super) struct Gate {
    pub(super) snapshot: NodeSnapshot,
    /// The rules that select it.
    pub(super) selected: Vec<Rc<ReadinessRule>>,
    pub(super) needs: Vec<Need>,
    /// Bootstrap rules that it has done with, and that is not written yet.
    pub(super) completing: BTreeSet<String>,
    /// Taints of node-readiness-controller's rules that are held here: ours to take off when their rule selects the node no more.
    /// For our own rules that is written on the Node.
    pub(super) held_taints: BTreeSet<RuleTaint>,
    /// Which of its pods are evicted.
    pub(super) eviction: EvictionState,
    pub(super) phase: NodePhase,
    /// The rules that hold it, and since when.
    pub(super) holds: BTreeMap<String, Moment>,
    /// When it was new, or it or its kubelet were restarted.
    pub(super) restarted: Option<Moment>,
    /// When it was new, or its machine was restarted.
    pub(super) booted: Option<Moment>,
    pub(super) kubelet_back: Option<Moment>,
    /// The last two boots that anybody told of, newest first.
    pub(super) boots: [Box<str>; 2],
    pub(super) kubelet_start: Box<str>,
    /// Whether its agent has ever said anything.
    pub(super) is_told: bool,
    /// What whoever looked before us wrote on it. Where that was held for something that fell silent, it
    /// must be heard, and counting as heard is not enough.
    found: RestartRecord,
    /// Its own list, as a rule.
    own: Option<Rc<ReadinessRule>>,
    /// Why its own list cannot be read.
    pub(super) problem: Option<String>,
    /// When its kubelet was first heard while something else was not.
    pub(super) outlived: Option<Moment>,
    pub(super) class: Class,
    /// When it is looked at again.
    pub(super) wake: Option<Moment>,
    /// Something is being written on it.
    pub(super) busy: bool,
    /// What is known of its silence.
    pub(super) silence: Silence,
    /// It was there without our taint when it came.
    pub(super) exposed: bool,
}

impl Gate {
    /// A node that was seen. `is_new`: it was not there before.
    pub(super) fn new(snapshot: NodeSnapshot, is_new: bool, now: Moment) -> Self {
        // One that is tainted was not ready when somebody else looked. Unless that one wrote that something
        // fell silent, it waits as one that is new: something must be heard.
        let mut found = if is_new {
            RestartRecord::default()
        } else {
            RestartRecord::of(&snapshot)
        };
        found.silent &= snapshot.is_tainted();
        let restarted = (is_new || snapshot.is_tainted() && !found.silent).then_some(now);
        let is_booted = restarted.is_some() || !found.before.is_empty();
        let owners = snapshot.owners.as_deref().unwrap_or_default().split(',');
        let held = owners.filter(|it| found.silent && !it.is_empty());
        let holds = held.map(|it| (it.to_owned(), now)).collect();
        let mut gate = Self {
            selected: Vec::new(),
            needs: Vec::new(),
            completing: BTreeSet::new(),
            held_taints: BTreeSet::new(),
            eviction: EvictionState::No,
            phase: match restarted {
                Some(since) => NodePhase::Booting { since },
                None if found.silent => NodePhase::Broken { since: now },
                None => NodePhase::Ready { since: now },
            },
            holds,
            restarted,
            booted: is_booted.then_some(now),
            found,
            kubelet_back: None,
            boots: [snapshot.boot_id.as_str().into(), "".into()],
            kubelet_start: "".into(),
            is_told: false,
            own: None,
            problem: None,
            outlived: None,
            class: Class::default(),
            wake: None,
            busy: false,
            silence: Silence::Unasked,
            exposed: is_new && !snapshot.is_tainted(),
            snapshot: NodeSnapshot::default(),
        };
        gate.read_own_list(snapshot.extensions.as_deref(), &snapshot.name);
        gate.snapshot = snapshot;
        gate
    }

    /// The node as it is now. Says whether what it must have may be something else.
    pub(super) fn see(&mut self, snapshot: NodeSnapshot, now: Moment) -> bool {
        let has_other_list = snapshot.extensions != self.snapshot.extensions;
        if has_other_list {
            self.read_own_list(snapshot.extensions.as_deref(), &snapshot.name);
        }
        let changes = has_other_list || snapshot.labels != self.snapshot.labels;
        if snapshot.has_permit && !self.snapshot.has_permit {
            self.prepare_to_go_down(&snapshot);
        }
        if snapshot.boot_id != self.snapshot.boot_id {
            self.see_boot(&snapshot, now);
        }
        self.snapshot = snapshot;
        changes
    }

    fn read_own_list(&mut self, text: Option<&str>, node: &str) {
        self.own = None;
        self.problem = None;
        let Some(text) = text.filter(|it| !it.trim().is_empty()) else {
            return;
        };
        match own_list::read(node, text) {
            Ok(extensions) => {
                self.own = Some(Rc::new(ReadinessRule {
                    name: OWN_LIST.to_owned(),
                    evict_after: EVICT_AFTER,
                    extensions,
                    ..ReadinessRule::default()
                }));
            }
            Err(problem) => self.problem = Some(problem),
        }
    }

    /// What its own list asks for.
    pub(super) fn own_extensions(&self) -> impl Iterator<Item = &Extension> {
        let own = self.needs.iter().filter(|it| it.rule.name == OWN_LIST);
        own.filter_map(Need::extension)
    }

    /// Which of `rules` it must follow, from now on.
    pub(super) fn follow(&mut self, rules: &BTreeMap<String, Rc<ReadinessRule>>, now: Moment) {
        let mut before = std::mem::take(&mut self.needs);
        let labels = &self.snapshot.labels;
        let selected = rules
            .values()
            .filter(|rule| rule.node_selector.matches(|name| labels.get(name)));
        self.selected = selected.chain(&self.own).cloned().collect();
        for rule in &self.selected {
            let choices = rule.extensions.iter().enumerate().flat_map(|(index, it)| {
                let choices = it.choices().iter().enumerate();
                choices.map(move |(choice, it)| ((index, choice), it))
            });
            for (place, extension) in choices {
                let is_same = |it: &Need| {
                    it.rule.name == rule.name
                        && it.extension().is_some_and(|it| {
                            (&it.name, &it.source) == (&extension.name, &extension.source)
                        })
                };
                let known = before.iter().position(is_same);
                self.needs
                    .push(match known.map(|at| before.swap_remove(at)) {
                        Some(known) => Need {
                            rule: Rc::clone(rule),
                            index: place.0,
                            choice: place.1,
                            ..known
                        },
                        None => Need::new(rule, place, &self.found, now),
                    });
            }
        }
        self.needs.shrink_to_fit();
    }

    /// The rules that it follows are known for the first time. One that came with the taint of a rule waits, as one that is new.
    pub(super) fn adopt(&mut self, now: Moment) {
        let mut own = self.selected.iter();
        let is_closed = own.any(|rule| {
            rule.origin == RuleOrigin::Evenkeel
                && self.snapshot.has_of(rule)
                && !self.snapshot.has_completed(rule)
        });
        if is_closed && self.restarted.is_none() && self.holds.is_empty() {
            self.restarted = Some(now);
            self.booted = Some(now);
            self.phase = NodePhase::Booting { since: now };
        }
    }

    /// The rules that may do something here: neither dry nor suspended, and not done with it.
    pub(super) fn acting(&self) -> impl Iterator<Item = &Rc<ReadinessRule>> {
        let acting = self.selected.iter().filter(|it| !it.dry_run && !it.suspend);
        acting.filter(|it| !self.snapshot.has_completed(it))
    }

    /// The needs that are one extension.
    pub(super) fn groups(&self) -> impl Iterator<Item = &[Need]> {
        self.needs.chunk_by(Need::is_choice_of)
    }

    /// Its needs that stand for the same extension as one of them.
    pub(super) fn group_of(&self, need: &Need) -> &[Need] {
        let mut groups = self.groups();
        let found = groups.find(|it| it.first().is_some_and(|it| it.is_choice_of(need)));
        found.unwrap_or_default()
    }

    /// The rules that may taint it now.
    fn rules(&self) -> BTreeSet<&str> {
        self.acting().map(|it| it.name.as_str()).collect()
    }

    /// Looks at all evidence, and says what follows.
    pub(super) fn judge(
        &mut self,
        evidence: &BTreeMap<Feed, Evidence>,
        watched_since: Moment,
        now: Moment,
    ) -> Judgement {
        let mut judgement = Judgement::default();
        let mut held = BTreeSet::new();
        let (mut is_waiting, mut is_unhealthy) = (false, false);
        let is_confirmed = self.silence == Silence::Confirmed;
        let mut needs = std::mem::take(&mut self.needs);
        let mut quiet = Vec::with_capacity(needs.len());
        for need in &mut needs {
            need.completed = self.snapshot.has_completed(&need.rule);
            let extension = need.rule.extensions.get(need.index);
            let Some(extension) = extension.and_then(|it| it.choices().get(need.choice)) else {
                quiet.push(false);
                continue;
            };
            let lookup = |feed: &Feed| evidence.get(feed);
            let case = Case {
                node: &self.snapshot,
                extension,
                origin: need.rule.origin,
                evidence: &lookup,
                restarted: self.restarted,
                booted: self.booted,
                kubelet_back: self.kubelet_back,
                watched_since,
                is_held: self.holds.contains_key(&need.rule.name),
                is_found: self.found.silent,
                now,
            };
            let finding = case.judge(&mut need.memory);
            quiet.push(finding.quiet);
            judgement.next = judgement.next.into_iter().chain(finding.next).min();
            need.find(finding, now);
        }
        let mut quiet = quiet.into_iter();
        for group in needs.chunk_by(Need::is_choice_of) {
            let is_quiet = quiet
                .by_ref()
                .take(group.len())
                .fold(true, |all, it| all & it);
            let Some(first) = group.first().filter(|it| it.decides()) else {
                continue;
            };
            judgement.class.quiet |= is_quiet;
            let rule = &first.rule.name;
            let is_held = |need: &Need| {
                self.holds.contains_key(rule)
                    || (is_confirmed && matches!(need.verdict, Verdict::Silent(_)))
            };
            let is_silent = |need: &Need| matches!(need.verdict, Verdict::Silent(_));
            if group.iter().all(|it| it.verdict.holds(is_held(it))) {
                held.insert(rule.clone());
                let is_pending = |it: &Need| matches!(it.verdict, Verdict::Pending(_));
                is_waiting |= group.iter().any(is_pending);
                is_unhealthy |= group.iter().all(|it| it.evicts_since().is_some());
            } else if group
                .iter()
                .all(|it| is_silent(it) || it.verdict.holds(is_held(it)))
            {
                judgement.silent = true;
            }
        }
        self.needs = needs;
        if is_confirmed {
            self.silence = Silence::Unasked;
        }
        let rules = self.rules();
        let is_governed = !rules.is_empty();
        let mut for_restart = is_waiting && !is_unhealthy;
        if self.snapshot.has_permit {
            // It goes down by our own doing, or may: it comes back as one that was restarted.
            let mut own = self.acting().filter(|it| it.origin == RuleOrigin::Evenkeel);
            for_restart = own.next().is_some();
            held.extend(self.own_acting());
        }
        judgement.class.governed = is_governed;
        held.extend(self.kept());
        judgement.class.held = !held.is_empty();
        judgement.class.held_back = judgement.silent;
        self.holds.retain(|rule, _| held.contains(rule));
        for rule in held {
            self.holds.entry(rule).or_insert(now);
        }
        self.found.silent &= !self.holds.is_empty();
        self.phase = self.phase.next(!self.holds.is_empty(), for_restart, now);
        self.end_evictions();
        if !matches!(self.phase, NodePhase::Evicting { .. }) {
            self.eviction = EvictionState::No;
        }
        self.completing = self.done_with();
        judgement
    }

    /// The rules of ours that may do something here.
    pub(super) fn own_acting(&self) -> impl Iterator<Item = String> {
        let own = self.acting().filter(|it| it.origin == RuleOrigin::Evenkeel);
        own.map(|it| it.name.clone())
    }

    /// Since when all that may evict its pods is seen without a break.
    pub(super) fn seen_since(&self, evidence: &BTreeMap<Feed, Evidence>) -> Moment {
        let evicting = self.needs.iter().filter(|it| it.evicts_since().is_some());
        let feeds = evicting.filter_map(|it| evidence.get(&feed(it.extension()?)?));
        feeds.map(|it| it.since).max().unwrap_or_default()
    }

    /// Why it is held, for people: the first reasons.
    pub(super) fn why(&self) -> String {
        let reasons = self.reasons().into_iter().map(|(need, name)| {
            let rule = &need.rule.name;
            format!("extension {name} ({rule}): {}", need.verdict.why())
        });
        match listed(reasons, NAMED, "; ") {
            none if none.is_empty() && self.snapshot.has_permit => {
                "the node has a disruption permit".to_owned()
            }
            none if none.is_empty() && !self.suspended().is_empty() => stays(&self.suspended()),
            text => text,
        }
    }

    fn reasons(&self) -> Vec<(&Need, &str)> {
        let is_holding = |need: &Need| {
            need.decides() && need.verdict.holds(self.holds.contains_key(&need.rule.name))
        };
        let holding = self.groups().filter(|it| it.iter().all(is_holding));
        holding
            .flatten()
            .filter_map(|need| Some((need, need.extension()?.name.as_str())))
            .collect()
    }
}

/// What suspended rules mean for a node, for people.
pub(super) fn stays(rules: &BTreeSet<&str>) -> String {
    let names: Vec<_> = rules.iter().copied().collect();
    let (noun, verb, them) = match names.as_slice() {
        [_] => ("rule", "is", "it"),
        _ => ("rules", "are", "they"),
    };
    format!(
        "readiness {noun} {} {verb} suspended: the taint stays as it is until {them} {verb} resumed",
        names.join(", ")
    )
}
