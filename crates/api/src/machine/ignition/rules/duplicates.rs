//! That nothing is said twice, and that numbers are such as Ignition can hold.

use std::collections::{BTreeMap, BTreeSet};

use crate::located::{Node, Value};
use crate::problem::{At, Findings};
use crate::shape::Shape;

/// Lists whose readers say themselves what is in them twice, as long as it has a name.
const READ_ELSEWHERE: [&str; 11] = [
    "files",
    "directories",
    "links",
    "units",
    "dropins",
    "groups",
    "users",
    "disks",
    "filesystems",
    "raid",
    "luks",
];

pub(super) fn check(node: &Node<'_>, shape: &Shape, at: &At<'_>, findings: &mut Findings) {
    match (shape, &node.value) {
        (Shape::Integer, Value::Integer(number)) if i64::try_from(*number).is_err() => {
            findings.problem(
                at,
                format!("{number} is out of range: use a smaller number"),
            );
        }
        (Shape::List(element), Value::List(items)) => {
            for (index, item) in items.iter().enumerate() {
                check(item, element, &at.index(index, item.line), findings);
            }
        }
        (Shape::Object(object), Value::Map(_)) => {
            let identity = node.text(object.identity).unwrap_or_default();
            let here = at.called(identity);
            let here = if identity.is_empty() { at } else { &here };
            let mut seen: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
            for field in object.fields {
                let Some(value) = node.get(field.name) else {
                    continue;
                };
                let list = here.key(field.name, value.line);
                check(value, field.shape, &list, findings);
                let Shape::List(element) = field.shape else {
                    continue;
                };
                if field.appended {
                    continue;
                }
                let seen = seen.entry(field.family.unwrap_or(field.name)).or_default();
                for (index, item) in value.items().iter().enumerate() {
                    let key = key_of(item, element);
                    let is_new = seen.insert(key.clone());
                    let said = READ_ELSEWHERE.contains(&field.name)
                        && matches!(element, Shape::Object(_))
                        && !key.is_empty();
                    if !is_new && !said {
                        findings.problem(
                            &list.index(index, item.line),
                            format!("{key:?} is listed twice in {}: keep one", field.name),
                        );
                    }
                }
            }
        }
        _ => {}
    }
}

/// What tells an element of a list from the others.
fn key_of(item: &Node<'_>, element: &Shape) -> String {
    let Shape::Object(object) = element else {
        return item.as_text().unwrap_or_default().to_owned();
    };
    // A partition by its number first, something to be read by where it is.
    let number = item
        .integer("number")
        .filter(|number| *number != 0 && object.identity == "label");
    if let Some(number) = number {
        return format!("number {number}");
    }
    let identity = if object.identity.is_empty() {
        "source"
    } else {
        object.identity
    };
    item.text(identity).unwrap_or_default().to_owned()
}
