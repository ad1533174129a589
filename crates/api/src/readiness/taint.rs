//! The taint that a rule sets on a node that is not ready.

use std::fmt;

use serde_json::{Value, json};

use crate::names::{group, taint};

/// Whose keys a rule may use besides our own.
const READINESS_KEYS: &str = "readiness.k8s.io";
/// How long the name of a key and a value may be.
const LONGEST: usize = 63;

/// What a taint does to pods that do not tolerate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum TaintEffect {
    /// They do not come.
    #[default]
    NoSchedule,
    /// They come if they have nowhere else to go.
    PreferNoSchedule,
    /// They do not come, and those that are there go.
    NoExecute,
}

impl TaintEffect {
    /// As Kubernetes writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }

    /// Reads what Kubernetes writes.
    pub fn parse(text: &str) -> Option<Self> {
        let all = [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute];
        all.into_iter().find(|it| it.as_str() == text)
    }
}

/// The taint of a rule. By default it is the one that all rules share.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleTaint {
    /// Its key.
    pub key: String,
    /// What it does.
    pub effect: TaintEffect,
    /// Its value; empty if it has none.
    pub value: String,
}

impl Default for RuleTaint {
    fn default() -> Self {
        Self {
            key: taint::META_READINESS.to_owned(),
            effect: TaintEffect::NoSchedule,
            value: String::new(),
        }
    }
}

impl RuleTaint {
    /// Whether it is the one that all rules share.
    pub fn is_shared(&self) -> bool {
        self.key == taint::META_READINESS
    }

    /// Whether a taint of a Node is this one. Two of one key and effect cannot be on a Node.
    pub fn is(&self, on_node: &Value) -> bool {
        on_node["key"] == self.key.as_str() && on_node["effect"] == self.effect.as_str()
    }

    /// As it stands on a Node.
    pub fn to_value(&self) -> Value {
        let mut taint = json!({ "key": self.key, "effect": self.effect.as_str() });
        if !self.value.is_empty() {
            taint["value"] = json!(self.value);
        }
        taint
    }

    /// The same with another effect.
    #[must_use]
    pub fn with(&self, effect: TaintEffect) -> Self {
        Self {
            effect,
            ..self.clone()
        }
    }

    /// Why a rule of ours may not have it, if it may not.
    pub fn refusal(&self) -> Option<String> {
        let (domain, name) = self.key.split_once('/').unwrap_or(("", &self.key));
        if ![READINESS_KEYS, group::EVENKEEL].contains(&domain) || !is_word(name) {
            return Some(format!(
                "taint.key {:?} is invalid: use {READINESS_KEYS}/NAME or {}/NAME",
                self.key,
                group::EVENKEEL
            ));
        }
        if taint::ALL.contains(&self.key.as_str()) {
            return Some(format!(
                "taint.key {} is used for something else: choose another",
                self.key
            ));
        }
        let is_valid = self.value.is_empty() || is_word(&self.value);
        (!is_valid).then(|| format!("taint.value {:?} is invalid: use at most {LONGEST} letters, digits, dashes, dots and underscores", self.value))
    }
}

impl fmt::Display for RuleTaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.key, self.effect.as_str())
    }
}

fn is_word(text: &str) -> bool {
    let is_end = |c: char| c.is_ascii_alphanumeric();
    (1..=LONGEST).contains(&text.len())
        && text.starts_with(is_end)
        && text.ends_with(is_end)
        && text.chars().all(|c| is_end(c) || "-_.".contains(c))
}
