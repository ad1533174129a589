//! One node: which extensions it must have, what each is said to be, and what follows for the node.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use evenkeel_api::names::annotation;
use evenkeel_api::readiness::{
    EVICT_AFTER, Extension, ReadinessRule, Report, extensions_from_json,
};

use super::guard::Class;
use super::patch::Want;
use super::sight::{Evidence, Feed, NodeSight};
use super::time::Moment;
use super::verdict::{Case, Memory, Verdict, is_agent};

/// The rule that a node's own list is; no object can have this name.
pub const OWN_LIST: &str = annotation::SYSTEM_EXTENSIONS;

/// How far a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
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
    /// Something that it must have is not well.
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

impl Phase {
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
    memory: Memory,
    pub(super) verdict: Verdict,
    pub(super) last: Option<Moment>,
}

impl Need {
    pub(super) fn extension(&self) -> Option<&Extension> {
        self.rule.extensions.get(self.index)
    }

    /// Whether the node may not have pods without it.
    fn decides(&self) -> bool {
        !self.rule.dry_run && self.extension().is_some_and(|it| it.affects_readiness)
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
    pub(super) sight: NodeSight,
    pub(super) needs: Vec<Need>,
    pub(super) phase: Phase,
    /// The rules that hold it, and since when.
    pub(super) holds: BTreeMap<String, Moment>,
    pub(super) restarted: Option<Moment>,
    pub(super) kubelet_back: Option<Moment>,
    /// The last two boots that anybody told of, newest first.
    boots: [Box<str>; 2],
    kubelet_start: Box<str>,
    /// Whether its agent has ever said anything.
    is_told: bool,
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
    pub(super) fn new(sight: NodeSight, is_new: bool, now: Moment) -> Self {
        // One that is tainted was not ready when somebody else looked: something must be heard.
        let restarted = (is_new || sight.is_tainted()).then_some(now);
        let mut gate = Self {
            needs: Vec::new(),
            phase: restarted.map_or(Phase::Ready { since: now }, |since| Phase::Booting {
                since,
            }),
            holds: BTreeMap::new(),
            restarted,
            kubelet_back: None,
            boots: [sight.boot_id.as_str().into(), "".into()],
            kubelet_start: "".into(),
            is_told: false,
            own: None,
            problem: None,
            outlived: None,
            class: Class::default(),
            wake: None,
            busy: false,
            silence: Silence::Unasked,
            exposed: is_new && !sight.is_tainted(),
            sight: NodeSight::default(),
        };
        gate.read_own_list(sight.extensions.as_deref(), &sight.name);
        gate.sight = sight;
        gate
    }

    /// The node as it is now. Says whether what it must have may be something else.
    pub(super) fn see(&mut self, sight: NodeSight, now: Moment) -> bool {
        let has_other_list = sight.extensions != self.sight.extensions;
        if has_other_list {
            self.read_own_list(sight.extensions.as_deref(), &sight.name);
        }
        let changes = has_other_list || sight.labels != self.sight.labels;
        let boot = std::mem::take(&mut self.sight.boot_id);
        if sight.boot_id != boot {
            self.hear_of_boot(&sight.boot_id, now);
        }
        self.sight = sight;
        changes
    }

    fn read_own_list(&mut self, text: Option<&str>, node: &str) {
        self.own = None;
        self.problem = None;
        let Some(text) = text.filter(|it| !it.trim().is_empty()) else {
            return;
        };
        match extensions_from_json(&format!("{OWN_LIST} of node {node}"), text) {
            Ok((extensions, _)) => {
                self.own = Some(Rc::new(ReadinessRule {
                    name: OWN_LIST.to_owned(),
                    evict_after: EVICT_AFTER,
                    extensions,
                    ..ReadinessRule::default()
                }));
            }
            Err(problems) => self.problem = Some(problems.to_string()),
        }
    }

    /// Somebody says which boot this is.
    fn hear_of_boot(&mut self, boot: &str, now: Moment) {
        // The kubelet and the agent tell of the same boot, one after the other.
        if boot.is_empty() || self.boots.iter().any(|it| **it == *boot) {
            return;
        }
        let is_first = self.boots[0].is_empty();
        self.boots.swap(0, 1);
        self.boots[0] = boot.into();
        if !is_first {
            self.restart(now);
        }
    }

    /// What the node's agent says: another boot of the machine or another start of its kubelet than
    /// it said before is a restart.
    pub(super) fn hear(&mut self, report: &Report, now: Moment) {
        if !std::mem::replace(&mut self.is_told, true) {
            // It may have said so long ago.
            if *self.boots[0] != *report.boot_id {
                self.boots[1] = report.boot_id.as_str().into();
            }
            self.kubelet_start = report.kubelet_start.as_str().into();
            return;
        }
        self.hear_of_boot(&report.boot_id, now);
        let start = report.kubelet_start.as_str();
        if !start.is_empty() && *self.kubelet_start != *start {
            let is_first = self.kubelet_start.is_empty();
            self.kubelet_start = start.into();
            if !is_first && self.restarted != Some(now) {
                self.restart(now);
            }
        }
    }

    fn restart(&mut self, now: Moment) {
        self.restarted = Some(now);
        self.kubelet_back = None;
        // What it has to be ready within begins anew.
        self.holds.values_mut().for_each(|since| *since = now);
    }

    /// Which of `rules` it must follow, from now on.
    pub(super) fn follow(&mut self, rules: &BTreeMap<String, Rc<ReadinessRule>>, now: Moment) {
        let mut before = std::mem::take(&mut self.needs);
        let labels = &self.sight.labels;
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
                        None => Need {
                            rule: Rc::clone(rule),
                            index,
                            memory: Memory::from(now),
                            verdict: Verdict::Unknown,
                            last: None,
                        },
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
        sight_since: Moment,
        now: Moment,
    ) -> Judgement {
        let mut judgement = Judgement::default();
        let mut held = BTreeSet::new();
        let mut for_restart = false;
        let is_confirmed = self.silence == Silence::Confirmed;
        let lookup = |feed: &Feed| evidence.get(feed);
        let mut needs = std::mem::take(&mut self.needs);
        for need in &mut needs {
            let Some(extension) = need.rule.extensions.get(need.index) else {
                continue;
            };
            let case = Case {
                node: &self.sight,
                extension,
                evidence: &lookup,
                restarted: self.restarted,
                kubelet_back: self.kubelet_back,
                sight_since,
                is_held: self.holds.contains_key(&need.rule.name),
                now,
            };
            let finding = case.judge(&mut need.memory);
            need.verdict = finding.verdict;
            need.last = finding.last;
            judgement.next = judgement.next.into_iter().chain(finding.next).min();
            if !need.decides() {
                continue;
            }
            judgement.class.quiet |= finding.quiet;
            for_restart |= matches!(need.verdict, Verdict::Awaited(_));
            let is_held = self.holds.contains_key(&need.rule.name)
                || (is_confirmed && matches!(need.verdict, Verdict::Silent(_)));
            if need.verdict.holds(is_held) {
                held.insert(need.rule.name.clone());
            } else if matches!(need.verdict, Verdict::Silent(_)) {
                judgement.silent = true;
            }
        }
        self.needs = needs;
        if is_confirmed {
            self.silence = Silence::Unasked;
        }
        let rules = self.rules();
        if self.sight.has_leave {
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
            });
        }
        // A taint that no rule of ours put there, on a node that no rule of ours is about, is not ours.
        (self.sight.owners.is_some() || self.class.governed).then_some(Want::Free)
    }

    /// When its pods are to be evicted, as far as it goes by its rules.
    pub(super) fn evicts_from(&self) -> Option<Moment> {
        if self.sight.has_leave {
            return None;
        }
        let due = self.needs.iter().filter_map(|need| {
            let since = *self.holds.get(&need.rule.name)?;
            let extension = need.extension()?;
            let counts = need.decides() && need.verdict.holds(true) && !is_agent(extension);
            let after = need.rule.evict_after;
            (counts && !after.is_zero()).then(|| since + after)
        });
        due.min()
    }

    /// Why it is held, for people: the first reasons.
    pub(super) fn why(&self) -> String {
        let reasons = self.reasons();
        let more = reasons.len().saturating_sub(3);
        let mut text = reasons
            .iter()
            .take(3)
            .map(|(need, name)| {
                let rule = &need.rule.name;
                format!("{name} of {rule}: {}", need.verdict.why())
            })
            .collect::<Vec<_>>()
            .join("; ");
        if text.is_empty() && self.sight.has_leave {
            "it has leave to be down".clone_into(&mut text);
        }
        if more > 0 {
            text = format!("{text}; and {more} more");
        }
        text
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
