//! The elements of a list in the services `ConfigMap`, one by one.

use crate::located::{Node, Value};
use crate::problem::{At, Findings};
use crate::shape::{self, Shape};

/// Reads each element whose shape is right; a position without one is reported and left out.
pub(super) fn each<T>(
    items: &[Node<'_>],
    shape: &Shape,
    at: &At<'_>,
    findings: &mut Findings,
    mut read: impl FnMut(&Node<'_>, &At<'_>, &mut Findings) -> T,
) -> Vec<(T, bool)> {
    let mut found = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let here = at.index(index, item.line);
        let before = findings.count();
        if item.value == Value::Null {
            findings.problem(&here, "the element is empty: remove it or fill it in");
        }
        shape::check(item, shape, 0, &here, findings);
        let identity = ["name", "path"].into_iter().find_map(|key| item.text(key));
        let here = here.called(identity.unwrap_or_default());
        let value = read(item, &here, findings);
        found.push((value, findings.count() == before));
    }
    found
}
