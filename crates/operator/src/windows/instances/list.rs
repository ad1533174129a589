//! The list of instances that people bring: the ConfigMap `windows-instances`, entry by entry, so that a
//! mistake in one harms no other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use evenkeel_api::names::object;
use evenkeel_api::windows::windows_instances::{Address, Instance, from_data};
use evenkeel_plan::windows::instances::{DesiredInstance, FailureKind, InstanceFailure};
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::ResourceExt;

use super::names::Names;

/// The list, as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct List {
    /// By the name of the instance.
    entries: BTreeMap<String, (Address, Instance)>,
    /// Entries that cannot be read, by the name of the instance they would be, with what is wrong.
    pub(crate) mistakes: BTreeMap<String, InstanceFailure>,
    /// The ConfigMap itself.
    uid: Option<String>,
    namespace: Option<String>,
}

impl List {
    /// Reads it; one that is not there is empty.
    pub(crate) fn read(object: Option<&ConfigMap>, namespace: &str) -> Self {
        let mut list = Self {
            uid: object.and_then(ResourceExt::uid),
            namespace: Some(namespace.to_owned()),
            ..Self::default()
        };
        let data = object.and_then(|it| it.data.as_ref()).into_iter().flatten();
        for (key, value) in data {
            let one = BTreeMap::from([(key.clone(), value.clone())]);
            match from_data(&format!("ConfigMap {}", object::WINDOWS_INSTANCES), &one) {
                Ok((read, _)) => {
                    for (address, instance) in read {
                        let name = address.to_string();
                        let twice = list.entries.insert(name.clone(), (address, instance));
                        if twice.is_some() {
                            let message = format!("{key} is there twice: keep one");
                            list.mistakes.insert(key.clone(), problem(message));
                        }
                    }
                }
                Err(problems) => {
                    list.mistakes
                        .insert(key.to_ascii_lowercase(), problem(problems.to_string()));
                }
            }
        }
        list
    }

    /// Those of which nobody can say now where they are: entries that cannot be read, and names of which it is
    /// not known yet where they lead. What was made of them stays.
    pub(crate) fn unclear(&self, names: &Names) -> BTreeSet<String> {
        let unknown = self.names().into_iter();
        let unknown = unknown.filter(|name| names.lead_to(name).is_none());
        self.mistakes.keys().cloned().chain(unknown).collect()
    }

    /// The machines, with their addresses as far as known.
    pub(crate) fn wanted(&self, names: &Names) -> BTreeMap<String, DesiredInstance> {
        let entries = self.entries.iter();
        let wanted = entries.filter_map(|(name, (address, instance))| {
            let addresses = match address {
                Address::Ip(address) => Ok(vec![*address]),
                Address::Dns(name) => names.lead_to(name)?,
            };
            let wanted = DesiredInstance {
                user: instance.user.clone(),
                addresses,
                node_addresses: instance.node_address.into_iter().collect(),
                node: None,
            };
            Some((name.clone(), wanted))
        });
        wanted.collect()
    }

    /// Where it says that an instance is, or that its Node is. Where a name leads whoever keeps the name says, and does
    /// not count.
    pub(crate) fn addresses(&self, instance: &str) -> Vec<IpAddr> {
        let Some((address, listed)) = self.entries.get(instance) else {
            return Vec::new();
        };
        let by_number = match address {
            Address::Ip(address) => Some(*address),
            Address::Dns(_) => None,
        };
        by_number.into_iter().chain(listed.node_address).collect()
    }

    /// The names in it.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        let addresses = self.entries.values().map(|(address, _)| address);
        let names = addresses.filter_map(|it| match it {
            Address::Dns(name) => Some(name.clone()),
            Address::Ip(_) => None,
        });
        names.collect()
    }

    /// How an Event names it.
    pub(crate) fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("ConfigMap".to_owned()),
            name: Some(object::WINDOWS_INSTANCES.to_owned()),
            namespace: self.namespace.clone(),
            uid: self.uid.clone(),
            ..ObjectReference::default()
        }
    }
}

#[cfg(test)]
impl List {
    /// A list of one.
    pub(super) fn of(name: &str) -> Self {
        let data = [(name.to_owned(), "username=core".to_owned())];
        let object = ConfigMap {
            data: Some(data.into()),
            ..ConfigMap::default()
        };
        Self::read(Some(&object), "evenkeel")
    }
}

fn problem(message: String) -> InstanceFailure {
    InstanceFailure::new(FailureKind::InvalidInstance, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_in_one_entry_harms_no_other() {
        let data = [
            ("10.0.0.1", "username=Administrator"),
            ("10.0.0.2", "Administrator"),
            ("10.0.0.3", "username="),
            ("Win.Example", "username=core"),
            ("win.example", "username=core"),
            ("a_b", "username=core"),
        ];
        let data = data.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let object = ConfigMap {
            data: Some(data.into()),
            ..ConfigMap::default()
        };
        let list = List::read(Some(&object), "evenkeel");
        let names: Vec<_> = list.entries.keys().map(String::as_str).collect();
        assert_eq!(names, ["10.0.0.1", "win.example"]);
        for (name, words) in [
            ("10.0.0.2", "no equals sign"),
            ("10.0.0.3", "the user name is empty"),
            ("win.example", "there twice"),
            ("a_b", "neither an IP address nor a DNS name"),
        ] {
            let problem = &list.mistakes[name];
            assert!(problem.message.contains(words), "{problem:?}");
            assert!(problem.message.contains(name), "{problem:?}");
        }
        assert_eq!(list.mistakes.len(), 4);
        // Nobody has looked up the name yet: its machine neither comes nor goes.
        let names = Names::default();
        let wanted = list.wanted(&names).into_keys();
        assert_eq!(wanted.collect::<Vec<_>>(), ["10.0.0.1"]);
        assert!(list.unclear(&names).contains("win.example"));
    }
}
