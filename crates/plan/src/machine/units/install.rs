//! What enabling a unit means: the links that its `[Install]` section asks for.
//!
//! systemd enables a unit by making symbolic links below `/etc/systemd/system`. We compute the same
//! links, so that a live machine and an offline tree get the same result, and so that each link can
//! be journaled and undone like any other path.

use std::collections::BTreeMap;

/// Where the administrator's units live; everything of ours goes there.
pub const UNIT_FOLDER: &str = "/etc/systemd/system";

/// The `[Install]` section of a unit and of its drop-ins.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Install {
    wanted_by: Vec<String>,
    required_by: Vec<String>,
    upheld_by: Vec<String>,
    alias: Vec<String>,
    also: Vec<String>,
    default_instance: Option<String>,
}

impl Install {
    /// Reads the sections of a unit's file and then of its drop-ins, in their order.
    pub fn read<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut install = Self::default();
        for text in texts {
            let mut inside = false;
            for line in joined_lines(text) {
                let line = line.trim();
                if line.starts_with(['#', ';']) {
                    continue;
                }
                if line.starts_with('[') {
                    inside = line == "[Install]";
                } else if inside && let Some((key, value)) = line.split_once('=') {
                    install.set(key.trim_end(), value.trim_start());
                }
            }
        }
        install
    }

    fn set(&mut self, key: &str, value: &str) {
        let list = match key {
            "WantedBy" => &mut self.wanted_by,
            "RequiredBy" => &mut self.required_by,
            "UpheldBy" => &mut self.upheld_by,
            "Alias" => &mut self.alias,
            "Also" => &mut self.also,
            "DefaultInstance" => {
                self.default_instance = (!value.is_empty()).then(|| value.to_owned());
                return;
            }
            _ => return,
        };
        if value.is_empty() {
            list.clear();
        }
        list.extend(value.split_whitespace().map(str::to_owned));
    }

    /// Whether enabling the unit does anything at all.
    pub fn is_empty(&self) -> bool {
        self.wanted_by.is_empty()
            && self.required_by.is_empty()
            && self.upheld_by.is_empty()
            && self.alias.is_empty()
            && self.also.is_empty()
    }

    /// Units that are enabled and disabled together with this one.
    pub fn also(&self) -> &[String] {
        &self.also
    }

    /// The links that make unit `name` enabled, whose file is at `fragment`: path → target.
    pub fn links(&self, name: &str, fragment: &str) -> BTreeMap<String, String> {
        let mut links = BTreeMap::new();
        let Some(linked) = self.instance_of(name) else {
            return links;
        };
        for (folder, units) in [
            ("wants", &self.wanted_by),
            ("requires", &self.required_by),
            ("upholds", &self.upheld_by),
        ] {
            for unit in units {
                let unit = expand(unit, &linked);
                links.insert(
                    format!("{UNIT_FOLDER}/{unit}.{folder}/{linked}"),
                    fragment.to_owned(),
                );
            }
        }
        for alias in &self.alias {
            let alias = expand(alias, &linked);
            if alias != linked {
                links.insert(format!("{UNIT_FOLDER}/{alias}"), fragment.to_owned());
            }
        }
        links
    }

    /// A template is enabled as its default instance, and not at all without one.
    fn instance_of(&self, name: &str) -> Option<String> {
        match name.split_once("@.") {
            None => Some(name.to_owned()),
            Some((stem, suffix)) => self
                .default_instance
                .as_ref()
                .map(|instance| format!("{stem}@{instance}.{suffix}")),
        }
    }
}

/// The template of an instance: `a@b.service` comes from `a@.service`.
pub fn template_of(name: &str) -> Option<String> {
    let (stem, rest) = name.split_once('@')?;
    let (instance, suffix) = rest.rsplit_once('.')?;
    (!instance.is_empty()).then(|| format!("{stem}@.{suffix}"))
}

/// The specifiers that make sense in `[Install]`.
fn expand(text: &str, name: &str) -> String {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let (prefix, instance) = stem.split_once('@').unwrap_or((stem, ""));
    text.replace("%i", instance)
        .replace("%n", name)
        .replace("%N", stem)
        .replace("%p", prefix)
        .replace("%j", prefix.rsplit('-').next().unwrap_or(prefix))
}

/// Lines, with those that end in a backslash joined to the next, as systemd reads them.
fn joined_lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut open = false;
    for line in text.lines() {
        let (body, continues) = match line.strip_suffix('\\') {
            Some(body) => (body, true),
            None => (line, false),
        };
        match lines.last_mut().filter(|_| open) {
            Some(last) => {
                last.push(' ');
                last.push_str(body);
            }
            None => lines.push(body.to_owned()),
        }
        open = continues;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAGMENT: &str = "/etc/systemd/system/a.service";

    fn links(name: &str, text: &str) -> Vec<String> {
        Install::read([text])
            .links(name, FRAGMENT)
            .into_keys()
            .collect()
    }

    #[test]
    fn links_are_those_that_systemd_would_make() {
        for (name, text, expected) in [
            (
                "a.service",
                "[Unit]\nDescription=x\n[Install]\nWantedBy=multi-user.target graphical.target\n",
                vec![
                    "/etc/systemd/system/graphical.target.wants/a.service",
                    "/etc/systemd/system/multi-user.target.wants/a.service",
                ],
            ),
            (
                "a.service",
                "[Install]\nRequiredBy=b.service\n",
                vec!["/etc/systemd/system/b.service.requires/a.service"],
            ),
            (
                "a.service",
                "[Install]\nUpheldBy=b.service\n",
                vec!["/etc/systemd/system/b.service.upholds/a.service"],
            ),
            (
                "a.service",
                "[Install]\nAlias=c.service a.service\n",
                vec!["/etc/systemd/system/c.service"],
            ),
            (
                "a.service",
                "[Install]\nWantedBy=x.target\nWantedBy=\n",
                vec![],
            ),
            ("a.service", "[Service]\nWantedBy=x.target\n", vec![]),
            (
                "a.service",
                "[Install]\n# WantedBy=x.target\n;WantedBy=y.target\n",
                vec![],
            ),
            (
                "a.service",
                "[Install]\nWantedBy=x.target \\\n  y.target\n",
                vec![
                    "/etc/systemd/system/x.target.wants/a.service",
                    "/etc/systemd/system/y.target.wants/a.service",
                ],
            ),
            ("g@.service", "[Install]\nWantedBy=x.target\n", vec![]),
            (
                "g@.service",
                "[Install]\nWantedBy=x.target\nDefaultInstance=tty1\n",
                vec!["/etc/systemd/system/x.target.wants/g@tty1.service"],
            ),
            (
                "g@sda.service",
                "[Install]\nWantedBy=dev-%i.device\n",
                vec!["/etc/systemd/system/dev-sda.device.wants/g@sda.service"],
            ),
        ] {
            assert_eq!(links(name, text), expected, "{name}: {text}");
        }
    }

    #[test]
    fn a_drop_in_adds_to_the_install_section() {
        let install = Install::read([
            "[Install]\nWantedBy=a.target\n",
            "[Install]\nWantedBy=b.target\n",
        ]);
        assert_eq!(install.links("x.service", FRAGMENT).len(), 2);
    }

    #[test]
    fn an_instance_knows_its_template() {
        assert_eq!(template_of("a@b.service").as_deref(), Some("a@.service"));
        assert_eq!(template_of("a@.service"), None);
        assert_eq!(template_of("a.service"), None);
    }
}
