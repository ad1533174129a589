//! What services may not be together: the rules of the services `ConfigMap` that need more than one
//! service to be judged. Each finding is for one service, by its position, and names every other.

use std::collections::BTreeMap;

use super::{Service, folded};

/// What is wrong with the service at this position.
pub(super) type Finding = (usize, String);

/// A service as it was written; `whole` if all of it could be read.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) service: Service,
    pub(super) whole: bool,
}

/// Every violation.
pub(super) fn violations(drafts: &[Draft]) -> Vec<Finding> {
    let by_name = by_name(drafts);
    let mut findings = duplicates(drafts, &by_name);
    findings.extend(bootstrap_dependencies(drafts, &by_name));
    findings.extend(cycles(drafts, &by_name));
    findings.extend(priorities(drafts));
    findings
}

/// What is most likely a mistake.
pub(super) fn doubts(drafts: &[Draft]) -> Vec<Finding> {
    let by_name = by_name(drafts);
    let mut findings = Vec::new();
    for (index, Draft { service, .. }) in drafts.iter().enumerate() {
        let names = service.node_variables.iter().map(|variable| &variable.name);
        let names = names.chain(
            service
                .powershell_variables
                .iter()
                .map(|variable| &variable.name),
        );
        for name in names.filter(|name| !service.command.contains(*name)) {
            findings.push((
                index,
                format!("variable {name} is not used in the command: remove it"),
            ));
        }
        for (name, other) in known_dependencies(service, &by_name, drafts) {
            if other.bootstrap == service.bootstrap && other.priority > service.priority {
                findings.push((
                    index,
                    format!(
                        "priority {} creates the service before its dependency {name}, which has priority {}",
                        service.priority, other.priority
                    ),
                ));
            }
        }
    }
    findings
}

type ByName = BTreeMap<String, usize>;

fn by_name(drafts: &[Draft]) -> ByName {
    let mut by_name = BTreeMap::new();
    for (index, draft) in drafts.iter().enumerate() {
        by_name.entry(folded(&draft.service.name)).or_insert(index);
    }
    by_name
}

fn known_dependencies<'d>(
    service: &'d Service,
    by_name: &ByName,
    drafts: &'d [Draft],
) -> impl Iterator<Item = (&'d String, &'d Service)> {
    service.dependencies.iter().filter_map(|name| {
        let index = by_name.get(&folded(name))?;
        Some((name, &drafts[*index].service))
    })
}

fn duplicates(drafts: &[Draft], by_name: &ByName) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, Draft { service, .. }) in drafts.iter().enumerate() {
        let first = by_name
            .get(&folded(&service.name))
            .copied()
            .unwrap_or(index);
        if first != index {
            let other = &drafts[first].service.name;
            findings.push((
                index,
                format!(
                    "the name {} is used twice (first by services[{first}] {other}): keep one",
                    service.name
                ),
            ));
        }
    }
    findings
}

fn bootstrap_dependencies(drafts: &[Draft], by_name: &ByName) -> Vec<Finding> {
    let mut findings = Vec::new();
    let whole = drafts
        .iter()
        .enumerate()
        .filter(|(_, draft)| draft.whole && draft.service.bootstrap);
    for (index, Draft { service, .. }) in whole {
        for name in &service.dependencies {
            let Some(other) = by_name.get(&folded(name)).map(|at| &drafts[*at]) else {
                continue;
            };
            if other.whole && !other.service.bootstrap {
                let (name, other) = (&service.name, &other.service.name);
                findings.push((
                    index,
                    format!("bootstrap service {name} depends on {other}, which is not a bootstrap service: set bootstrap of {other} to true, or remove the dependency"),
                ));
            }
        }
    }
    findings
}

/// Takes away, again and again, what depends on nothing that is left. The rest leads into cycles.
fn cycles(drafts: &[Draft], by_name: &ByName) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut edges: Vec<Vec<usize>> = Vec::with_capacity(drafts.len());
    for (index, Draft { service, .. }) in drafts.iter().enumerate() {
        let known = service
            .dependencies
            .iter()
            .filter_map(|name| by_name.get(&folded(name)));
        let mut known: Vec<usize> = known.copied().collect();
        if known.contains(&index) {
            let name = &service.name;
            findings.push((
                index,
                format!("the service depends on itself: {name} -> {name}: remove the dependency"),
            ));
            known.retain(|other| *other != index);
        }
        edges.push(known);
    }
    let left = in_or_above_cycles(&edges);
    let mut seen = vec![false; drafts.len()];
    for start in (0..drafts.len()).filter(|index| left[*index]) {
        let mut walk: Vec<usize> = Vec::new();
        let mut here = start;
        while !seen[here] {
            seen[here] = true;
            walk.push(here);
            match edges[here].iter().find(|next| left[**next]) {
                Some(next) => here = *next,
                None => break,
            }
        }
        let Some(entry) = walk.iter().position(|index| *index == here) else {
            continue;
        };
        let mut cycle = walk.split_off(entry);
        let first = cycle.iter().enumerate().min_by_key(|(_, index)| **index);
        let first = first.map_or(0, |(position, _)| position);
        cycle.rotate_left(first);
        let names = cycle
            .iter()
            .chain(cycle.first())
            .map(|index| drafts[*index].service.name.as_str());
        let names: Vec<_> = names.collect();
        if names.len() > 2 {
            let message = format!(
                "the dependencies form a cycle: {}: remove one of them",
                names.join(" -> ")
            );
            findings.push((cycle[0], message));
        }
    }
    findings
}

fn in_or_above_cycles(edges: &[Vec<usize>]) -> Vec<bool> {
    let mut left = vec![true; edges.len()];
    let mut waiting: Vec<usize> = edges.iter().map(Vec::len).collect();
    let mut above: Vec<Vec<usize>> = vec![Vec::new(); edges.len()];
    for (index, below) in edges.iter().enumerate() {
        for dependency in below {
            above[*dependency].push(index);
        }
    }
    let mut free: Vec<usize> = (0..edges.len())
        .filter(|index| waiting[*index] == 0)
        .collect();
    while let Some(index) = free.pop() {
        left[index] = false;
        for dependent in &above[index] {
            waiting[*dependent] -= 1;
            if waiting[*dependent] == 0 {
                free.push(*dependent);
            }
        }
    }
    left
}

/// The numbers of bootstrap services are below all others, and shared with none.
fn priorities(drafts: &[Draft]) -> Vec<Finding> {
    let whole = || drafts.iter().enumerate().filter(|(_, draft)| draft.whole);
    let mut later: BTreeMap<u32, &Service> = BTreeMap::new();
    for (_, Draft { service, .. }) in whole().filter(|(_, draft)| !draft.service.bootstrap) {
        later.entry(service.priority).or_insert(service);
    }
    let Some((lowest, first)) = later.first_key_value() else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for (index, Draft { service, .. }) in whole().filter(|(_, draft)| draft.service.bootstrap) {
        let (name, priority) = (&service.name, service.priority);
        if let Some(other) = later.get(&priority) {
            let other = &other.name;
            findings.push((
                index,
                format!("bootstrap service {name} shares priority {priority} with {other}, which is not a bootstrap service: give {name} a lower priority"),
            ));
        }
        if priority > *lowest {
            let other = &first.name;
            findings.push((
                index,
                format!("bootstrap service {name} has priority {priority}, which is not below priority {lowest} of {other}, which is not a bootstrap service: give {name} a lower priority"),
            ));
        }
    }
    findings
}
