//! A node's own list of extensions: whoever is on the node writes it, so what it can ask of the operator is bounded. Each
//! watch is a connection to the API server, and a node may not make thousands of them.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::names::annotation;
use evenkeel_api::readiness::{Extension, extensions_from_json};

use super::snapshot::Feed;
use super::verdict::feed;

/// The longest list, in bytes. (Annotations of a Node may have 256 KiB together.)
pub const LONGEST: usize = 16 * 1024;
/// The most extensions in a list.
pub const EXTENSIONS: usize = 32;
/// The most watches that one list asks for.
pub const WATCHES: usize = 8;
/// The most watches that all lists ask for together, besides those of rules.
pub const WATCHES_IN_ALL: usize = 64;

/// Of a list that is too long, no more than shows that it is.
pub fn bounded(mut text: String) -> String {
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST + 4));
        text.shrink_to_fit();
    }
    text
}

/// What `text`, the list of `node`, asks for, or why it counts for nothing.
pub(super) fn read(node: &str, text: &str) -> Result<Vec<Extension>, String> {
    let place = format!("{} of node {node}", annotation::SYSTEM_EXTENSIONS);
    let ignored = |why: String| {
        Err(format!(
            "{place} is ignored: {why}; write a NodeReadinessRule instead"
        ))
    };
    if text.len() > LONGEST {
        return ignored(format!("it is longer than {LONGEST} bytes"));
    }
    let read = extensions_from_json(&place, text);
    let (extensions, _) = read.map_err(|problems| problems.to_string())?;
    if extensions.len() > EXTENSIONS {
        let count = extensions.len();
        return ignored(format!(
            "it has {count} extensions and the limit is {EXTENSIONS}"
        ));
    }
    let watches: BTreeSet<Feed> = extensions.iter().filter_map(feed).collect();
    if watches.len() > WATCHES {
        let count = watches.len();
        return ignored(format!(
            "it needs {count} watches (namespaces, kinds and selectors) and the limit is {WATCHES}"
        ));
    }
    Ok(extensions)
}

/// Of what nodes' lists ask for, what is watched: all that rules ask for too, and of the others so many as there may be, those that
/// are watched already first, then those that most nodes ask for.
pub(super) fn chosen(
    asked: &BTreeMap<Feed, usize>,
    by_rules: &BTreeSet<Feed>,
    before: impl Fn(&Feed) -> bool,
) -> BTreeSet<Feed> {
    let mut others: Vec<_> = asked
        .iter()
        .filter(|(feed, _)| !by_rules.contains(feed))
        .collect();
    others.sort_by_key(|(feed, count)| (!before(feed), std::cmp::Reverse(**count)));
    let of_rules = asked.keys().filter(|it| by_rules.contains(it));
    let of_others = others.into_iter().map(|(feed, _)| feed);
    of_rules
        .chain(of_others.take(WATCHES_IN_ALL))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(extensions: usize, namespaces: usize) -> String {
        let all: Vec<String> = (0..extensions)
            .map(|number| {
                format!(
                    r#"{{"name": "e{number}", "lease": {{"namespace": "n{}"}}}}"#,
                    number % namespaces
                )
            })
            .collect();
        format!("[{}]", all.join(","))
    }

    /// Covers S06.
    #[test]
    fn a_list_beyond_its_bounds_counts_for_nothing_and_says_which() {
        assert_eq!(read("a", &list(32, 8)).map(|it| it.len()), Ok(32));
        for (text, said) in [
            (list(33, 1), "33 extensions"),
            (list(32, 9), "9 watches"),
            (format!("[{}]", " ".repeat(LONGEST)), "longer than 16384"),
        ] {
            let error = read("a", &text).unwrap_err();
            assert!(error.contains(said), "{error}");
            assert!(error.contains("of node a"), "{error}");
            assert!(error.contains("NodeReadinessRule"), "{error}");
        }
    }

    #[test]
    fn a_list_that_was_cut_is_still_too_long() {
        for text in ["x".repeat(300_000), "ü".repeat(300_000), "😀".repeat(5_000)] {
            let cut = bounded(text);
            assert!(cut.len() > LONGEST && cut.len() < LONGEST + 8);
        }
        assert_eq!(bounded("[]".to_owned()), "[]");
    }

    /// Covers S06.
    #[test]
    fn what_is_watched_stays_and_what_most_ask_for_comes_first() {
        let feed = |number: usize| Feed::Leases {
            namespace: format!("n{number:03}"),
        };
        let asked: BTreeMap<_, _> = (0..200).map(|it| (feed(it), it)).collect();
        let by_rules = BTreeSet::from([feed(0)]);
        let chosen = chosen(&asked, &by_rules, |it| *it == feed(3));
        assert_eq!(chosen.len(), WATCHES_IN_ALL + 1);
        for number in [0, 3, 199, 200 - (WATCHES_IN_ALL - 1)] {
            assert!(chosen.contains(&feed(number)), "{number}");
        }
        assert!(!chosen.contains(&feed(200 - WATCHES_IN_ALL)));
    }
}
