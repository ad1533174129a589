//! Presets: what the machine itself says about a unit that the configuration neither enables nor
//! disables.

/// Whether the preset files, given in the order in which systemd reads them, enable unit `name`.
///
/// The first rule that matches decides; without any, a unit is enabled, as systemd does it.
pub fn enables<'a>(files: impl IntoIterator<Item = &'a str>, name: &str) -> bool {
    for line in files.into_iter().flat_map(str::lines) {
        let mut words = line.split_whitespace();
        let enable = match words.next() {
            Some("enable") => true,
            Some("disable" | "ignore") => false,
            _ => continue,
        };
        let matches = words
            .next()
            .is_some_and(|pattern| glob(pattern.as_bytes(), name.as_bytes()));
        if matches {
            return enable;
        }
    }
    true
}

/// `*`, `?` and `[abc]`, as in file names.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|skipped| glob(rest, &name[skipped..])),
        Some((b'?', rest)) => name
            .split_first()
            .is_some_and(|(_, after)| glob(rest, after)),
        Some((b'[', rest)) => {
            let Some(end) = rest.iter().position(|byte| *byte == b']') else {
                return false;
            };
            let (set, negated) = match rest[..end].split_first() {
                Some((b'!' | b'^', set)) => (set, true),
                _ => (&rest[..end], false),
            };
            name.split_first().is_some_and(|(first, after)| {
                set.contains(first) != negated && glob(&rest[end + 1..], after)
            })
        }
        Some((byte, rest)) => name
            .split_first()
            .is_some_and(|(first, after)| first == byte && glob(rest, after)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_decides() {
        let files = [
            "# ours\nenable ssh.*\ndisable [ab]-?.service\n",
            "enable a-1.service\ndisable *\n",
        ];
        for (name, enabled) in [
            ("ssh.service", true),
            ("ssh.socket", true),
            ("a-1.service", false),
            ("b-x.service", false),
            ("c-x.service", false),
            ("sshd.service", false),
        ] {
            assert_eq!(enables(files, name), enabled, "{name}");
        }
    }

    #[test]
    fn without_a_rule_a_unit_is_enabled() {
        assert!(enables([], "a.service"));
        assert!(enables(["disable b.service"], "a.service"));
    }
}
