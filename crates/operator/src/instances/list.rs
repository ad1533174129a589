//! The list of instances that people bring: the ConfigMap `windows-instances`, entry by entry, so that a
//! mistake in one harms no other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use evenkeel_api::names::object;
use evenkeel_api::windows_instances::{Address, from_data};
use evenkeel_plan::instances::{Problem, Wanted};
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::ResourceExt;

/// How long a name may take to be looked up.
const LOOK_UP: Duration = Duration::from_secs(5);
const INVALID: &str = "InvalidInstance";

/// The list, as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct List {
    /// Users by the name of the instance.
    entries: BTreeMap<String, (Address, String)>,
    /// Entries that cannot be read, by the name of the instance they would be, with what is wrong.
    pub(crate) mistakes: BTreeMap<String, Problem>,
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
                    for (address, user) in read {
                        let name = address.to_string();
                        let twice = list.entries.insert(name.clone(), (address, user));
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

    /// Entries that cannot be read: what was made of them stays.
    pub(crate) fn unreadable(&self) -> BTreeSet<String> {
        self.mistakes.keys().cloned().collect()
    }

    /// The machines, with their addresses as they are now.
    pub(crate) async fn wanted(&self) -> BTreeMap<String, Wanted> {
        let look = self.entries.iter().map(async |(name, (address, user))| {
            let addresses = look_up(address).await;
            let user = user.clone();
            (name.clone(), Wanted { user, addresses })
        });
        futures::future::join_all(look).await.into_iter().collect()
    }

    /// Whether a name may lead elsewhere later.
    pub(crate) fn has_names(&self) -> bool {
        let mut addresses = self.entries.values().map(|(address, _)| address);
        addresses.any(|it| matches!(it, Address::Dns(_)))
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

fn problem(message: String) -> Problem {
    Problem {
        category: INVALID,
        message,
    }
}

async fn look_up(address: &Address) -> Result<Vec<IpAddr>, Problem> {
    let name = match address {
        Address::Ip(address) => return Ok(vec![*address]),
        Address::Dns(name) => name,
    };
    let found = tokio::time::timeout(LOOK_UP, tokio::net::lookup_host((name.as_str(), 22))).await;
    let why = match found {
        Ok(Ok(found)) => {
            let mut addresses: Vec<IpAddr> = found.map(|it| it.ip()).collect();
            addresses.sort();
            addresses.dedup();
            if !addresses.is_empty() {
                return Ok(addresses);
            }
            "it has no address".to_owned()
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {}s", LOOK_UP.as_secs()),
    };
    Err(Problem {
        category: "AddressUnknown",
        message: format!(
            "its name does not resolve ({why}): correct it, or list the IP address instead"
        ),
    })
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
            ("10.0.0.3", "the user is empty"),
            ("win.example", "there twice"),
            ("a_b", "neither an IP address nor a DNS name"),
        ] {
            let problem = &list.mistakes[name];
            assert!(problem.message.contains(words), "{problem:?}");
            assert!(problem.message.contains(name), "{problem:?}");
        }
        assert_eq!(list.mistakes.len(), 4);
        assert!(list.has_names());
    }

    #[tokio::test]
    async fn a_name_that_does_not_resolve_says_so() {
        let data = [("nowhere.invalid".to_owned(), "username=a".to_owned())];
        let object = ConfigMap {
            data: Some(data.into()),
            ..ConfigMap::default()
        };
        let wanted = List::read(Some(&object), "evenkeel").wanted().await;
        let problem = wanted["nowhere.invalid"].addresses.clone().unwrap_err();
        assert_eq!(problem.category, "AddressUnknown");
    }
}
