//! Arguments of the kernel as lists. Those of a configuration stand among those that the machine
//! brought along, in any number, so they are counted, and only the difference is ever changed.

use std::collections::{BTreeMap, BTreeSet};

/// What leads from one list of arguments to another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edits {
    /// Go, the first of that name and value each time.
    pub delete: Vec<String>,
    /// Come at the end, in this order.
    pub append: Vec<String>,
}

impl Edits {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.delete.is_empty() && self.append.is_empty()
    }

    /// `all` with the edits made. What is not there cannot be taken away.
    pub fn made_to(&self, all: &[String]) -> Vec<String> {
        let mut all = all.to_vec();
        for argument in &self.delete {
            if let Some(place) = all.iter().position(|other| other == argument) {
                all.remove(place);
            }
        }
        all.extend(self.append.iter().cloned());
        all
    }
}

/// The arguments that `texts` hold, one by one. Blanks separate them except within double quotes, as
/// for the kernel.
pub fn split<T: AsRef<str>>(texts: &[T]) -> Vec<String> {
    let mut all = Vec::new();
    for text in texts {
        let (mut argument, mut quoted) = (String::new(), false);
        for letter in text.as_ref().chars() {
            if letter == '"' {
                quoted = !quoted;
            }
            if letter.is_whitespace() && !quoted {
                if !argument.is_empty() {
                    all.push(std::mem::take(&mut argument));
                }
            } else {
                argument.push(letter);
            }
        }
        if !argument.is_empty() {
            all.push(argument);
        }
    }
    all
}

/// Those of `declared` that are among `all`, each as often as it is in both.
pub fn present(declared: &[String], all: &[String]) -> Vec<String> {
    sorted_out(declared, all).0
}

/// Those of `declared` that are not among `all`, or not often enough.
pub fn missing(declared: &[String], all: &[String]) -> Vec<String> {
    sorted_out(declared, all).1
}

fn sorted_out(declared: &[String], all: &[String]) -> (Vec<String>, Vec<String>) {
    let mut left: BTreeMap<&String, usize> = BTreeMap::new();
    for argument in all {
        *left.entry(argument).or_default() += 1;
    }
    declared
        .iter()
        .cloned()
        .partition(|argument| match left.get_mut(argument) {
            Some(count) if *count > 0 => {
                *count -= 1;
                true
            }
            _ => false,
        })
}

/// What leads from `from` to exactly `to`: what both have stays where it is, unless that gives
/// another order; then all of it goes and comes again, because order matters to a console.
pub fn edits(from: &[String], to: &[String]) -> Edits {
    let least = Edits {
        delete: missing(from, to),
        append: missing(to, from),
    };
    if least.made_to(from) == to {
        return least;
    }
    Edits {
        delete: from.to_vec(),
        append: to.to_vec(),
    }
}

/// What is left to do on a machine with the arguments `now`, of a change from `before` to `after`.
/// Only the arguments that this change touches are looked at: the others may have become others since.
pub fn remaining(now: &[String], before: &[String], after: &[String]) -> Edits {
    let change = edits(before, after);
    let touched: BTreeSet<&String> = change.delete.iter().chain(&change.append).collect();
    let of = |all: &[String]| -> Vec<String> {
        all.iter()
            .filter(|argument| touched.contains(argument))
            .cloned()
            .collect()
    };
    edits(&of(now), &of(after))
}
