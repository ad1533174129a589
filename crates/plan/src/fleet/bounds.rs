//! How much of a Node is kept. Its kubelet writes most of it, up to 1.5 MiB; with a hundred that do, the operator would have no
//! memory for the others.

use std::collections::BTreeMap;

/// The longest annotation that counts; the operator writes none that is longer, and agents neither.
pub const ANNOTATION: usize = 16 * 1024;
/// The longest labels that count, all names and values of a Node together.
pub const LABELS: usize = 64 * 1024;
/// The most conditions and addresses that count.
pub const MANY: usize = 128;

/// Whose labels count before those of others: who removes them could make a node another one.
const FIRST: [&str; 4] = ["kubernetes.io", "k8s.io", "openshift.io", "evenkeel.dev"];

/// Annotations that are too long count as if they were not there.
pub fn annotations(annotations: &mut BTreeMap<String, String>) {
    annotations.retain(|_, value| value.len() <= ANNOTATION);
}

/// Of too many labels, those that count.
pub fn labels(labels: &mut BTreeMap<String, String>) {
    let size = |name: &str, value: &str| name.len() + value.len();
    let all: usize = labels.iter().map(|(name, value)| size(name, value)).sum();
    if all <= LABELS {
        return;
    }
    let is_first = |name: &str| {
        let domain = name.split_once('/').map_or("", |(domain, _)| domain);
        FIRST.iter().any(|it| {
            domain
                .strip_suffix(it)
                .is_some_and(|it| it.is_empty() || it.ends_with('.'))
        })
    };
    let mut left = LABELS;
    let mut kept = BTreeMap::new();
    let (first, others): (Vec<_>, Vec<_>) = std::mem::take(labels)
        .into_iter()
        .partition(|(name, _)| is_first(name));
    for (name, value) in first.into_iter().chain(others) {
        let size = size(&name, &value);
        if size > left {
            break;
        }
        left -= size;
        kept.insert(name, value);
    }
    *labels = kept;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers S06.
    #[test]
    fn what_is_too_long_counts_for_nothing_and_the_rest_stays() {
        let mut said = BTreeMap::from([
            ("a".to_owned(), "x".repeat(ANNOTATION)),
            ("b".to_owned(), "x".repeat(ANNOTATION + 1)),
            ("c".to_owned(), "x".to_owned()),
        ]);
        annotations(&mut said);
        assert_eq!(said.keys().collect::<Vec<_>>(), ["a", "c"]);
    }

    /// Covers S06.
    #[test]
    fn labels_of_the_cluster_count_before_those_that_fill_a_node() {
        let mut few = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        labels(&mut few);
        assert_eq!(few.len(), 1);
        let mut many: BTreeMap<_, _> = (0..5000)
            .map(|it| (format!("a{it:05}"), "x".repeat(50)))
            .collect();
        let known = [
            "kubernetes.io/os",
            "node-role.kubernetes.io/worker",
            "evenkeel.dev/x",
        ];
        for name in known {
            many.insert(name.to_owned(), "y".to_owned());
        }
        many.insert("zkubernetes.io/os".to_owned(), "y".to_owned());
        labels(&mut many);
        assert!(many.len() > 1000 && many.len() < 1200, "{}", many.len());
        for name in known {
            assert!(many.contains_key(name), "{name}");
        }
        assert!(!many.contains_key("zkubernetes.io/os"));
    }
}
