//! Whether a change of `registries.conf` can take an image source away from pods that run.
//!
//! Three changes cannot: a registry added with `mirror-by-digest-only`, a mirror added below such a
//! registry, and entries appended to `unqualified-search-registries`. A mirror with
//! `pull-from-mirror = "digest-only"` says for itself what the registry says for all of its mirrors. The
//! files are compared as the settings they parse to, so comments, order of tables and spelling do not matter.

use std::collections::BTreeMap;

use toml::{Table, Value};

/// What a change of the file means for pods that run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SourceChange {
    /// Nothing, or one of the three safe changes.
    Safe,
    /// Anything else.
    Unsafe,
    /// One side cannot be read; the sentence says which.
    Unreadable(String),
}

const SEARCH: &str = "unqualified-search-registries";
const DIGEST_ONLY: &str = "mirror-by-digest-only";
const PULL_FROM_MIRROR: &str = "pull-from-mirror";

/// Compares two contents of the file; a file that is not there is empty.
pub(crate) fn judge(old: &[u8], new: &[u8]) -> SourceChange {
    match (
        RegistrySettings::read(old, "old"),
        RegistrySettings::read(new, "new"),
    ) {
        (Ok(old), Ok(new)) if old.grows_safely_to(&new) => SourceChange::Safe,
        (Ok(_), Ok(_)) => SourceChange::Unsafe,
        (Err(why), _) | (_, Err(why)) => SourceChange::Unreadable(why),
    }
}

struct RegistrySettings {
    /// By prefix, or location where there is none.
    registries: BTreeMap<String, Registry>,
    search: Vec<Value>,
    /// Every other setting of the file.
    rest: Table,
}

struct Registry {
    digest_only: bool,
    mirrors: Vec<Value>,
    /// Every other setting of the registry.
    rest: Table,
}

impl RegistrySettings {
    fn read(bytes: &[u8], which: &str) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes)
            .map_err(|_| format!("the {which} contents are not UTF-8"))?;
        let mut rest: Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(0, |span| {
                text[..span.start.min(text.len())].matches('\n').count() + 1
            });
            format!(
                "the {which} contents are not TOML (line {line}: {})",
                error.message()
            )
        })?;
        let search = list(rest.remove(SEARCH), || {
            format!("{SEARCH} of the {which} contents is not a list")
        })?;
        let tables = list(rest.remove("registry"), || {
            format!("registry of the {which} contents is not a list of tables")
        })?;
        let mut registries = BTreeMap::new();
        for table in tables {
            let (name, registry) = Registry::read(table, which)?;
            if registries.insert(name.clone(), registry).is_some() {
                return Err(format!("the {which} contents have registry {name} twice"));
            }
        }
        Ok(Self {
            registries,
            search,
            rest,
        })
    }

    fn grows_safely_to(&self, new: &Self) -> bool {
        let kept = self.registries.iter().all(|(name, old)| {
            new.registries
                .get(name)
                .is_some_and(|new| old.grows_safely_to(new))
        });
        let added = new
            .registries
            .iter()
            .all(|(name, it)| it.is_by_digest_only() || self.registries.contains_key(name));
        self.rest == new.rest && new.search.starts_with(&self.search) && kept && added
    }
}

impl Registry {
    fn read(value: Value, which: &str) -> Result<(String, Self), String> {
        let Value::Table(mut rest) = value else {
            return Err(format!(
                "registry of the {which} contents is not a list of tables"
            ));
        };
        let text = |key: &str| {
            rest.get(key)
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
        };
        let name = text("prefix")
            .or_else(|| text("location"))
            .ok_or_else(|| {
                format!("a registry of the {which} contents has neither prefix nor location")
            })?
            .to_owned();
        // A prefix that repeats the location says nothing more.
        if text("prefix") == text("location") {
            rest.remove("prefix");
        }
        rest.retain(|key, value| !is_default(key, value));
        let mirrors = list(rest.remove("mirror"), || {
            format!("mirror of registry {name} in the {which} contents is not a list")
        })?;
        let mirrors: Vec<Value> = mirrors.into_iter().map(without_defaults).collect();
        let digest_only = rest.remove(DIGEST_ONLY).is_some();
        // Whoever reads the file for real refuses the whole of it.
        if digest_only && mirrors.iter().any(|it| it.get(PULL_FROM_MIRROR).is_some()) {
            return Err(format!(
                "registry {name} of the {which} contents has {DIGEST_ONLY}, and a mirror with {PULL_FROM_MIRROR}: use one of them"
            ));
        }
        Ok((
            name,
            Self {
                digest_only,
                mirrors,
                rest,
            },
        ))
    }

    fn grows_safely_to(&self, new: &Self) -> bool {
        if self.rest != new.rest || self.digest_only != new.digest_only {
            return false;
        }
        // The old mirrors in their old order; between them others may have come.
        let mut old = self.mirrors.iter().peekable();
        for mirror in &new.mirrors {
            if old.next_if_eq(&mirror).is_none() && !self.digest_only && !is_by_digest_only(mirror)
            {
                return false;
            }
        }
        old.next().is_none()
    }

    /// Whether all that its mirrors are asked for is named by its digest.
    fn is_by_digest_only(&self) -> bool {
        let is_each = !self.mirrors.is_empty() && self.mirrors.iter().all(is_by_digest_only);
        self.digest_only || is_each
    }
}

/// Whether a mirror says so for itself.
fn is_by_digest_only(mirror: &Value) -> bool {
    mirror.get(PULL_FROM_MIRROR).and_then(Value::as_str) == Some("digest-only")
}

fn is_default(key: &str, value: &Value) -> bool {
    match key {
        "blocked" | "insecure" | DIGEST_ONLY => value.as_bool() == Some(false),
        PULL_FROM_MIRROR => matches!(value.as_str(), Some("" | "all")),
        _ => false,
    }
}

fn without_defaults(mirror: Value) -> Value {
    match mirror {
        Value::Table(mut table) => {
            table.retain(|key, value| !is_default(key, value));
            Value::Table(table)
        }
        other => other,
    }
}

fn list(value: Option<Value>, wrong: impl FnOnce() -> String) -> Result<Vec<Value>, String> {
    match value {
        None => Ok(Vec::new()),
        Some(Value::Array(values)) => Ok(values),
        Some(_) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = r#"
unqualified-search-registries = ["a.io"]
[[registry]]
prefix = "q.io"
location = "q.io"
mirror-by-digest-only = true
[[registry.mirror]]
location = "m1.io"
[[registry]]
location = "tags.io"
[[registry.mirror]]
location = "m2.io"
"#;

    /// Covers M14.
    #[test]
    fn only_the_three_safe_changes_and_no_change_spare_the_drain() {
        let with = |from: &str, to: &str| {
            assert!(
                BASE.contains(from),
                "the case replaces {from:?}, which is not there"
            );
            BASE.replacen(from, to, 1)
        };
        let and = |more: &str| format!("{BASE}{more}");
        let mirror = "[[registry.mirror]]\nlocation = \"m1.io\"\n";
        let cases: Vec<(String, bool, &str)> = vec![
            (BASE.to_owned(), true, "nothing changed"),
            (and("# a comment\n\n"), true, "a comment parses the same"),
            (with("\"a.io\"", "'a.io'"), true, "another way to quote"),
            (
                with("prefix = \"q.io\"\n", ""),
                true,
                "a prefix that repeats the location says nothing",
            ),
            (
                with(
                    "location = \"tags.io\"\n",
                    "location = \"tags.io\"\nblocked = false\n",
                ),
                true,
                "a default written out",
            ),
            (
                with(
                    "location = \"m2.io\"",
                    "location = \"m2.io\"\ninsecure = false",
                ),
                true,
                "a mirror's default written out",
            ),
            (
                and("[[registry]]\nprefix = \"n.io\"\nmirror-by-digest-only = true\n"),
                true,
                "a registry added, by digest only",
            ),
            (
                and(
                    "[[registry]]\nprefix = \"n.io\"\nmirror-by-digest-only = true\n[[registry.mirror]]\nlocation = \"m.io\"\n",
                ),
                true,
                "the same with a mirror",
            ),
            (
                with(
                    mirror,
                    &format!("{mirror}[[registry.mirror]]\nlocation = \"m9.io\"\n"),
                ),
                true,
                "a mirror added behind, by digest only",
            ),
            (
                with(
                    mirror,
                    &format!("[[registry.mirror]]\nlocation = \"m9.io\"\n{mirror}"),
                ),
                true,
                "a mirror added in front, by digest only",
            ),
            (
                with("[\"a.io\"]", "[\"a.io\", \"b.io\"]"),
                true,
                "a search registry appended",
            ),
            (
                with("[\"a.io\"]", "[\"b.io\", \"a.io\"]"),
                false,
                "a search registry put in front changes what short names mean",
            ),
            (
                with("[\"a.io\"]", "[]"),
                false,
                "a search registry taken away",
            ),
            (
                with("[\"a.io\"]", "[\"b.io\"]"),
                false,
                "a search registry replaced",
            ),
            (
                and("[[registry]]\nprefix = \"n.io\"\n"),
                false,
                "a registry added, also by tag",
            ),
            (
                and("[[registry]]\nprefix = \"n.io\"\nmirror-by-digest-only = false\n"),
                false,
                "the same said outright",
            ),
            (
                and("[[registry.mirror]]\nlocation = \"m9.io\"\n"),
                false,
                "a mirror added to a registry that is used by tag",
            ),
            (with(mirror, ""), false, "a mirror taken away"),
            (with("\"m1.io\"", "\"m7.io\""), false, "a mirror replaced"),
            (
                with(mirror, &format!("{mirror}insecure = true\n")),
                false,
                "a mirror's setting changed",
            ),
            (
                with("mirror-by-digest-only = true\n", ""),
                false,
                "no longer by digest only",
            ),
            (
                with(
                    "location = \"tags.io\"\n",
                    "location = \"tags.io\"\nmirror-by-digest-only = true\n",
                ),
                false,
                "by digest only from now on",
            ),
            (
                with(
                    "location = \"tags.io\"\n",
                    "location = \"tags.io\"\nblocked = true\n",
                ),
                false,
                "a registry blocked",
            ),
            (
                with(
                    "location = \"tags.io\"\n",
                    "location = \"tags.io\"\ninsecure = true\n",
                ),
                false,
                "a registry made insecure",
            ),
            (
                with("location = \"q.io\"", "location = \"elsewhere.io\""),
                false,
                "a registry moved",
            ),
            (
                with(
                    "[[registry]]\nlocation = \"tags.io\"\n[[registry.mirror]]\nlocation = \"m2.io\"\n",
                    "",
                ),
                false,
                "a registry taken away",
            ),
            (
                format!("short-name-mode = \"enforcing\"\n{BASE}"),
                false,
                "another setting of the file",
            ),
            (and("[aliases]\nx = \"q.io/x\"\n"), false, "an alias added"),
            (String::new(), false, "the file emptied"),
        ];
        for (new, safe, because) in &cases {
            let expected = if *safe {
                SourceChange::Safe
            } else {
                SourceChange::Unsafe
            };
            assert_eq!(
                judge(BASE.as_bytes(), new.as_bytes()),
                expected,
                "{because}:\n{new}"
            );
        }
        assert!(cases.len() >= 20);
    }

    /// Covers O16.
    #[test]
    fn a_mirror_that_is_pulled_from_by_digest_only_is_as_safe_as_a_registry_that_says_so() {
        const DIGEST: &str = "pull-from-mirror = \"digest-only\"\n";
        let registry = |mirrors: &[&str]| {
            let mirrors = mirrors
                .iter()
                .map(|it| format!("[[registry.mirror]]\n{it}\n"));
            format!(
                "[[registry]]\nlocation = \"n.io\"\n{}",
                mirrors.collect::<String>()
            )
        };
        let plain = |name: &str| format!("location = \"{name}\"");
        let digest = |name: &str| format!("location = \"{name}\"\n{DIGEST}");
        let tag = |name: &str| format!("location = \"{name}\"\npull-from-mirror = \"tag-only\"");
        let all = |name: &str| format!("location = \"{name}\"\npull-from-mirror = \"all\"");
        let none = String::new();
        let (a, b) = (digest("a.io"), digest("b.io"));
        for (old, new, safe, because) in [
            (
                &none,
                registry(&[&a]),
                true,
                "a registry added, its mirror by digest only",
            ),
            (&none, registry(&[&a, &b]), true, "the same with two"),
            (
                &none,
                registry(&[&a, &plain("b.io")]),
                false,
                "one of its mirrors also by tag",
            ),
            (
                &none,
                registry(&[&tag("a.io")]),
                false,
                "its mirror by tag only",
            ),
            (
                &none,
                registry(&[]),
                false,
                "a registry without a mirror is used by tag",
            ),
            (
                &registry(&[]),
                registry(&[&a]),
                true,
                "a first mirror added, by digest only",
            ),
            (
                &registry(&[&plain("m.io")]),
                registry(&[&plain("m.io"), &a]),
                true,
                "a mirror added behind",
            ),
            (
                &registry(&[&plain("m.io")]),
                registry(&[&a, &plain("m.io")]),
                true,
                "a mirror added in front",
            ),
            (
                &registry(&[&a]),
                registry(&[&a, &plain("m.io")]),
                false,
                "a mirror added, also by tag",
            ),
            (
                &registry(&[&a]),
                registry(&[&a, &tag("m.io")]),
                false,
                "a mirror added, by tag only",
            ),
            (
                &registry(&[&a]),
                registry(&[&plain("a.io")]),
                false,
                "a mirror that is asked for tags from now on",
            ),
            (
                &registry(&[&plain("a.io")]),
                registry(&[&a]),
                false,
                "a mirror that is no longer asked for tags",
            ),
            (
                &registry(&[&a, &b]),
                registry(&[&b]),
                false,
                "a mirror taken away",
            ),
            (
                &registry(&[&a, &b]),
                registry(&[&b, &a]),
                false,
                "mirrors in another order",
            ),
            (
                &registry(&[&plain("m.io")]),
                registry(&[&all("m.io")]),
                true,
                "a default written out",
            ),
        ] {
            let expected = if safe {
                SourceChange::Safe
            } else {
                SourceChange::Unsafe
            };
            assert_eq!(
                judge(old.as_bytes(), new.as_bytes()),
                expected,
                "{because}:\n{new}"
            );
        }
        let both =
            registry(&[&a]).replacen("n.io\"\n", "n.io\"\nmirror-by-digest-only = true\n", 1);
        let said = judge(b"", both.as_bytes());
        let SourceChange::Unreadable(why) = said else {
            panic!("{said:?}")
        };
        assert!(why.contains("registry n.io of the new contents"), "{why}");
    }

    #[test]
    fn order_of_registries_does_not_matter_and_order_of_mirrors_does() {
        let registry = |name: &str| format!("[[registry]]\nlocation = \"{name}\"\n");
        let (ab, ba) = (
            registry("a") + &registry("b"),
            registry("b") + &registry("a"),
        );
        assert_eq!(judge(ab.as_bytes(), ba.as_bytes()), SourceChange::Safe);
        let mirrors = |names: [&str; 2]| {
            let list = names
                .map(|name| format!("[[registry.mirror]]\nlocation = \"{name}\"\n"))
                .concat();
            format!("[[registry]]\nlocation = \"r\"\nmirror-by-digest-only = true\n{list}")
        };
        assert_eq!(
            judge(
                mirrors(["a", "b"]).as_bytes(),
                mirrors(["b", "a"]).as_bytes()
            ),
            SourceChange::Unsafe
        );
    }

    #[test]
    fn what_cannot_be_read_says_which_side_and_why() {
        let cases: [(&[u8], &[u8], &str); 5] = [
            (b"a = [", b"", "the old contents are not TOML (line 1"),
            (b"", b"x\ny = ", "the new contents are not TOML (line 1"),
            (b"", b"\xff", "the new contents are not UTF-8"),
            (
                b"",
                b"[[registry]]\nblocked = true",
                "has neither prefix nor location",
            ),
            (b"", b"registry = 3", "not a list of tables"),
        ];
        for (old, new, expected) in cases {
            match judge(old, new) {
                SourceChange::Unreadable(why) => assert!(why.contains(expected), "{why}"),
                other => panic!("{other:?} for {expected}"),
            }
        }
    }
}
