//! Whom a MachineConfig matters to: the pools that are made from it, and those that use a rendered one.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::names::label;
use evenkeel_api::selector::Selector;

use crate::fleet::node::Node;

/// A MachineConfig without what it says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConfigSnapshot {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The uid of the pool that it was rendered for.
    pub owner: Option<String>,
}

impl ConfigSnapshot {
    /// Whether it was made from others.
    pub fn is_rendered(&self) -> bool {
        self.labels.contains_key(label::RENDERED)
    }

    /// Whether it was rendered for the pool with this uid.
    pub fn is_of(&self, pool: &str) -> bool {
        self.is_rendered() && self.owner.as_deref() == Some(pool)
    }

    /// Whether a pool with `selector` is made from it.
    pub fn is_source(&self, selector: Option<&Selector>) -> bool {
        let label = |name: &str| self.labels.get(name).map(String::as_str);
        !self.is_rendered() && selector.is_some_and(|it| it.matches(label))
    }

    /// Whether it is meant for some pool, and none of these selectors selects it.
    pub fn has_no_effect(&self, selectors: &[&Selector]) -> bool {
        let has_role = self.labels.contains_key(label::ROLE);
        let is_selected = selectors.iter().any(|it| self.is_source(Some(it)));
        !self.is_rendered() && !has_role && !is_selected
    }
}

/// Who uses rendered configurations.
#[derive(Debug, Default)]
pub struct ConfigUsers {
    pools: BTreeSet<String>,
    used: BTreeSet<String>,
}

impl ConfigUsers {
    /// A node uses what it has and what it is on its way to.
    pub fn add_node(&mut self, node: &Node) {
        let configs = [&node.desired_config, &node.current_config];
        self.used.extend(configs.into_iter().flatten().cloned());
    }

    /// The pool with this uid exists.
    pub fn add_pool(&mut self, uid: &str) {
        self.pools.insert(uid.to_owned());
    }

    /// Some pool rolls this configuration out, or has done so.
    pub fn add_used(&mut self, config: &str) {
        self.used.insert(config.to_owned());
    }

    /// Whether `config` was rendered for a pool that exists, and nobody uses it. Those of a pool that is gone go with it.
    pub fn is_unused(&self, config: &ConfigSnapshot) -> bool {
        let is_of_pool = config
            .owner
            .as_ref()
            .is_some_and(|it| self.pools.contains(it));
        config.is_rendered() && is_of_pool && !self.used.contains(&config.name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(name: &str, labels: &[(&str, &str)], owner: Option<&str>) -> ConfigSnapshot {
        let labels = labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        ConfigSnapshot {
            name: name.to_owned(),
            labels: labels.collect(),
            owner: owner.map(str::to_owned),
        }
    }

    #[test]
    fn a_rendered_configuration_is_unused_once_no_pool_and_no_node_has_it() {
        let rendered = |name, owner| config(name, &[(label::RENDERED, "true")], owner);
        let mut users = ConfigUsers::default();
        users.add_pool("p1");
        users.add_used("rolled-out");
        users.add_node(&Node {
            desired_config: Some("next".to_owned()),
            current_config: Some("last".to_owned()),
            ..Node::default()
        });
        for (name, owner, is_unused) in [
            ("old", Some("p1"), true),
            ("old", Some("gone"), false),
            ("old", None, false),
            ("rolled-out", Some("p1"), false),
            ("next", Some("p1"), false),
            ("last", Some("p1"), false),
        ] {
            assert_eq!(
                users.is_unused(&rendered(name, owner)),
                is_unused,
                "{name} of {owner:?}"
            );
        }
        assert!(
            !users.is_unused(&config("old", &[], Some("p1"))),
            "somebody wrote it"
        );
    }

    #[test]
    fn a_machine_config_without_a_role_that_nobody_selects_has_no_effect() {
        let worker = json!({ "matchLabels": { "role": "worker" } });
        let worker: Selector = serde_json::from_value(worker).unwrap();
        let of_worker = config("a", &[("role", "worker")], None);
        let of_nobody = config("b", &[("role", "gpu")], None);
        let meant = config("c", &[(label::ROLE, "later")], None);
        let made = config("d", &[(label::RENDERED, "true"), ("role", "worker")], None);
        assert!(of_worker.is_source(Some(&worker)) && !of_nobody.is_source(Some(&worker)));
        assert!(!made.is_source(Some(&worker)) && !of_worker.is_source(None));
        let idle: Vec<_> = [of_worker, of_nobody, meant, made]
            .into_iter()
            .filter(|it| it.has_no_effect(&[&worker]))
            .map(|it| it.name)
            .collect();
        assert_eq!(idle, ["b"]);
    }
}
