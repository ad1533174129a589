//! One node: which extensions it must have, what each is said to be, and what follows for the node.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use evenkeel_api::names::annotation;
use evenkeel_api::readiness::{EVICT_AFTER, Extension, ReadinessRule, Source};

use super::guard::Class;
use super::own_list;
use super::patch::Want;
use super::restart_record::{Restart, RestartRecord};
use super::snapshot::{Evidence, Feed, NodeSnapshot};
use super::time::Moment;
use super::verdict::{Case, Finding, Memory, Verdict, feed, is_agent};
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
    fn new(rule: &Rc<ReadinessRule>, index: usize, found: &RestartRecord, now: Moment) -> Self {
        let mut need = Self {
            rule: Rc::clone(rule),
            index,
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
        self.rule.extensions.get(self.index)
    }

    /// Whether the node may not have pods without it.
    pub(super) fn decides(&self) -> bool {
        !self.rule.dry_run && self.extension().is_some_and(|it| it.affects_readiness)
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
        Some(format!("{}/{}", self.rule.name, self.extension()?.name))
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
    fn evicts_since(&self) -> Option<Moment> {
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
    pub(super) needs: Vec<Need>,
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
            needs: Vec::new(),
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
        for rule in selected.chain(&self.own) {
            for (index, extension) in rule.extensions.iter().enumerate() {
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
                            index,
                            ..known
                        },
                        None => Need::new(rule, index, &self.found, now),
                    });
            }
        }
    }

    /// The rules that may taint it.
    fn rules(&self) -> BTreeSet<&str> {
        let needs = self.needs.iter().filter(|it| !it.rule.dry_run);
        needs.map(|it| it.rule.name.as_str()).collect()
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
        for need in &mut needs {
            let Some(extension) = need.rule.extensions.get(need.index) else {
                continue;
            };
            let lookup = |feed: &Feed| evidence.get(feed);
            let case = Case {
                node: &self.snapshot,
                extension,
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
            let is_quiet = finding.quiet;
            judgement.next = judgement.next.into_iter().chain(finding.next).min();
            need.find(finding, now);
            if !need.decides() {
                continue;
            }
            judgement.class.quiet |= is_quiet;
            let is_held = self.holds.contains_key(&need.rule.name)
                || (is_confirmed && matches!(need.verdict, Verdict::Silent(_)));
            if need.verdict.holds(is_held) {
                held.insert(need.rule.name.clone());
                is_waiting |= matches!(need.verdict, Verdict::Pending(_));
                is_unhealthy |= need.evicts_since().is_some();
            } else if matches!(need.verdict, Verdict::Silent(_)) {
                judgement.silent = true;
            }
        }
        self.needs = needs;
        if is_confirmed {
            self.silence = Silence::Unasked;
        }
        let rules = self.rules();
        let mut for_restart = is_waiting && !is_unhealthy;
        if self.snapshot.has_permit {
            // It goes down by our own doing, or may: it comes back as one that was restarted.
            for_restart = !rules.is_empty();
            held = rules.iter().map(ToString::to_string).collect();
        }
        judgement.class.governed = !rules.is_empty();
        judgement.class.held = !held.is_empty();
        judgement.class.held_back = judgement.silent;
        self.holds.retain(|rule, _| held.contains(rule));
        for rule in held {
            self.holds.entry(rule).or_insert(now);
        }
        self.found.silent &= !self.holds.is_empty();
        self.phase = self.phase.next(!self.holds.is_empty(), for_restart, now);
        judgement
    }

    /// What is to be on the Node, if it is ours to say.
    pub(super) fn want(&self) -> Option<Want> {
        if !self.holds.is_empty() {
            let startup = self.needs.iter().any(|need| {
                need.rule.autoscaler_startup_taint && self.holds.contains_key(&need.rule.name)
            });
            return Some(Want::Held {
                owners: self.holds.keys().cloned().collect(),
                startup,
                record: self.record(),
            });
        }
        // A taint that no rule of ours put there, on a node that no rule of ours is about, is not ours.
        (self.snapshot.owners.is_some() || self.class.governed).then_some(Want::Free)
    }

    /// When its pods are to be evicted, as far as it goes by its rules.
    pub(super) fn evicts_from(&self) -> Option<Moment> {
        if self.snapshot.has_permit {
            return None;
        }
        let due = self.needs.iter().filter_map(|need| {
            let since = *self.holds.get(&need.rule.name)?.max(&need.evicts_since()?);
            let extension = need.extension()?;
            let counts = need.decides() && !is_agent(extension);
            let after = need.rule.evict_after;
            (counts && !after.is_zero()).then(|| since + after)
        });
        due.min()
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
            text => text,
        }
    }

    fn reasons(&self) -> Vec<(&Need, &str)> {
        let holding = self.needs.iter().filter(|need| {
            need.decides() && need.verdict.holds(self.holds.contains_key(&need.rule.name))
        });
        holding
            .filter_map(|need| Some((need, need.extension()?.name.as_str())))
            .collect()
    }
}
