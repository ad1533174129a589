//! What was seen: Nodes, what extensions renew, and their pods, as narrow as decisions need them.
//! Nothing here decides.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Duration;

use evenkeel_api::names::{label, object};
use evenkeel_api::readiness::{ReadinessRule, Report, RuleTaint, TaintEffect};
use serde_json::Value;

use super::time::Moment;
use crate::fleet::labels::Labels;

/// The namespace of the kubelets' own Leases.
const KUBELET_LEASES: &str = "kube-node-lease";

/// What is seen of a Node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeSnapshot {
    /// Its name.
    pub name: String,
    /// Which of all Nodes that ever had this name it is.
    pub uid: String,
    /// Its labels.
    pub labels: Labels,
    /// Which boot of its machine this is, as its kubelet says.
    pub boot_id: String,
    /// Its taints, as they stand there.
    pub taints: Vec<Value>,
    /// The rules that hold our taint, as written on it.
    pub owners: Option<String>,
    /// What whoever put our taint there wrote with it.
    pub record: Option<String>,
    /// The taints of rules that have one of their own, as written on it.
    pub own_taints: Option<String>,
    /// The bootstrap rules that it has done with, as written on it.
    pub completed: Option<String>,
    /// The same of node-readiness-controller's rules: what follows the beginning of the annotation's name.
    pub completed_nrc: Vec<Box<str>>,
    /// Extensions of its own, as written on it.
    pub extensions: Option<String>,
    /// Whether it has any annotations.
    pub has_annotations: bool,
    /// Whether it has a permit to be down.
    pub has_permit: bool,
    /// Its conditions.
    pub conditions: Vec<ConditionSnapshot>,
}

/// What is seen of a condition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConditionSnapshot {
    /// Its type.
    pub kind: Box<str>,
    /// True, False or Unknown.
    pub status: Box<str>,
    /// When its status changed, by somebody else's clock: another text is another change.
    pub transition: Box<str>,
    /// Its last heartbeat, by somebody else's clock: another text is another heartbeat.
    pub heartbeat: Box<str>,
}

impl NodeSnapshot {
    /// The zone it is in; empty if it does not say.
    pub fn zone(&self) -> &str {
        self.labels.get(label::ZONE).unwrap_or_default()
    }

    /// Whether the readiness taint is on it, whoever put it there, or a taint that a rule of ours has put there.
    pub fn is_tainted(&self) -> bool {
        self.has(&RuleTaint::default()) || self.listed().any(|it| self.has(&it))
    }

    /// Whether a taint is on it.
    pub fn has(&self, taint: &RuleTaint) -> bool {
        self.taints.iter().any(|it| taint.is(it))
    }

    /// Whether the taint of a rule is on it, in any of the effects that the rule may give it.
    pub fn has_of(&self, rule: &ReadinessRule) -> bool {
        effects(&rule.taint).iter().any(|it| self.has(it))
    }

    /// The taints that rules of ours with a taint of their own have put on it.
    pub fn listed(&self) -> impl Iterator<Item = RuleTaint> {
        let all = self.own_taints.as_deref().unwrap_or_default().split(',');
        all.filter_map(|it| {
            let (key, effect) = it.rsplit_once(':')?;
            Some(RuleTaint {
                key: key.to_owned(),
                effect: TaintEffect::parse(effect)?,
                value: String::new(),
            })
        })
    }

    /// The readiness taints that are on it, for people.
    pub fn readiness_taints(&self) -> Vec<String> {
        let all = [RuleTaint::default()].into_iter().chain(self.listed());
        let found: BTreeSet<_> = all.filter(|it| self.has(it)).collect();
        found.iter().map(ToString::to_string).collect()
    }
}

/// A taint in all effects that its rule may give it: one that takes pods away keeps them away at first.
pub(super) fn effects(taint: &RuleTaint) -> Vec<RuleTaint> {
    let mut all = vec![taint.clone()];
    if taint.effect == TaintEffect::NoExecute {
        all.push(taint.with(TaintEffect::NoSchedule));
    }
    all
}

/// Where evidence comes from: one watch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feed {
    /// Leases of a namespace.
    Leases {
        /// The namespace.
        namespace: String,
    },
    /// Objects with a Lease inside.
    Objects {
        /// Their group and version.
        api_version: String,
        /// Their kind.
        kind: String,
        /// Their namespace.
        namespace: String,
        /// Where in them the Lease is.
        lease: String,
    },
    /// Pods that a selector selects.
    Pods {
        /// Their namespace.
        namespace: String,
        /// The selector, as a request says it.
        selector: String,
    },
}

impl Feed {
    /// The kubelets' own Leases.
    pub fn kubelets() -> Self {
        Self::Leases {
            namespace: KUBELET_LEASES.to_owned(),
        }
    }

    /// The agents' Leases.
    pub fn agents() -> Self {
        Self::Leases {
            namespace: object::EXTENSIONS_NAMESPACE.to_owned(),
        }
    }
}

/// What is seen of something that is renewed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaseSnapshot {
    /// When it was renewed, by somebody else's clock: another text is another renewal.
    pub renewed: String,
    /// Who renews it.
    pub holder: String,
    /// How long it lasts, if it says so.
    pub lasts: Option<Duration>,
    /// What an agent says on it.
    pub report: Option<String>,
}

/// What is seen of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodSnapshot {
    /// Its name.
    pub name: String,
    /// The node it is bound to.
    pub node: String,
    /// Whether it is ready.
    pub ready: bool,
    /// Whether it is on its way out, or has ended.
    pub ending: bool,
    /// Something that differs whenever its containers were started anew or its readiness changed.
    pub mark: String,
}

/// Something that is renewed, as it is remembered.
#[derive(Debug, Clone, Default)]
pub(super) struct Sign {
    /// What a renewal changes. Empty: it is gone.
    mark: Box<str>,
    pub(super) holder: Box<str>,
    pub(super) lasts: Option<Duration>,
    pub(super) report: Option<Rc<Report>>,
    /// When it was seen first.
    pub(super) first: Moment,
    /// When it was last seen to have changed since we look.
    pub(super) renewed: Option<Moment>,
}

impl Sign {
    /// The last sign of life; what was only found counts as just seen.
    pub(super) fn last(&self) -> Moment {
        self.renewed.unwrap_or(self.first)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.mark.is_empty()
    }

    /// Whether it is as it was seen fresh.
    pub(super) fn is_as(&self, fresh: Option<&LeaseSnapshot>) -> bool {
        *self.mark == *fresh.map_or("", |it| it.renewed.as_str())
    }
}

/// A pod, as it is remembered.
#[derive(Debug, Clone)]
pub(super) struct PodSign {
    pub(super) snapshot: PodSnapshot,
    /// When it last changed since we look.
    pub(super) changed: Option<Moment>,
}

/// All evidence of one feed.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// Whether all is known that there was at some time.
    pub(super) is_listed: bool,
    /// Whether it ever was: then what comes new is new.
    was_listed: bool,
    /// Since when it is seen without a break.
    pub(super) since: Moment,
    /// Until when nothing is made of its silence, because it may not be read.
    pub(super) unread_until: Moment,
    pub(super) signs: HashMap<Box<str>, Sign>,
    /// By node, by name.
    pub(super) pods: HashMap<Box<str>, BTreeMap<Box<str>, PodSign>>,
    /// Names that a listing has shown so far.
    shown: BTreeSet<Box<str>>,
}

impl Evidence {
    /// Whether it was known once and is not to be trusted now.
    pub(super) fn is_stale(&self) -> bool {
        self.was_listed && !self.is_listed
    }

    /// A listing begins.
    pub(super) fn relist(&mut self) {
        self.is_listed = false;
        self.shown.clear();
    }

    /// A listing is over: whatever it has not shown is gone, and all else counts as just seen. One that
    /// never began says nothing.
    pub(super) fn listed(&mut self, now: Moment) {
        if self.is_listed {
            return;
        }
        self.since = now;
        let shown = std::mem::take(&mut self.shown);
        for (name, sign) in &mut self.signs {
            if !shown.contains(name) {
                sign.mark = "".into();
            }
        }
        for pods in self.pods.values_mut() {
            pods.retain(|name, _| shown.contains(name));
        }
        (self.is_listed, self.was_listed) = (true, true);
    }

    /// Takes note of something that is renewed. Says whether it was, and what an agent said on it if
    /// that is news.
    pub(super) fn see_lease(
        &mut self,
        name: &str,
        snapshot: LeaseSnapshot,
        now: Moment,
    ) -> (bool, Option<Rc<Report>>) {
        if !self.is_listed {
            self.shown.insert(name.into());
        }
        let is_new = !self.signs.contains_key(name);
        let sign = self.signs.entry(name.into()).or_insert_with(|| Sign {
            first: now,
            ..Sign::default()
        });
        // What was there at our first look may be old; whatever differs later is new.
        let is_renewed = if is_new {
            self.was_listed
        } else {
            *sign.mark != *snapshot.renewed
        };
        sign.mark = snapshot.renewed.into();
        sign.holder = snapshot.holder.into();
        sign.lasts = snapshot.lasts;
        if is_renewed {
            sign.renewed = Some(now);
        }
        let said = snapshot
            .report
            .and_then(|text| Report::from_json(&text).ok());
        let mut news = None;
        if said.as_ref() != sign.report.as_deref() {
            sign.report = said.map(Rc::new);
            news.clone_from(&sign.report);
        }
        (is_renewed, news)
    }

    /// It is gone; when it was seen last stays known.
    pub(super) fn lose_lease(&mut self, name: &str) {
        if let Some(sign) = self.signs.get_mut(name) {
            sign.mark = "".into();
        }
    }

    pub(super) fn see_pod(&mut self, snapshot: PodSnapshot, now: Moment) {
        if !self.is_listed {
            self.shown.insert(snapshot.name.as_str().into());
        }
        let pods = self.pods.entry(snapshot.node.as_str().into()).or_default();
        let known = pods.get(snapshot.name.as_str());
        let changed = match known {
            Some(known) if known.snapshot.mark == snapshot.mark => known.changed,
            Some(_) => Some(now),
            None => self.was_listed.then_some(now),
        };
        pods.insert(snapshot.name.as_str().into(), PodSign { snapshot, changed });
    }

    pub(super) fn lose_pod(&mut self, node: &str, name: &str) {
        if let Some(pods) = self.pods.get_mut(node) {
            pods.remove(name);
            if pods.is_empty() {
                self.pods.remove(node);
            }
        }
    }
}
