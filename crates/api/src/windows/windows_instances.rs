//! The `ConfigMap` `windows-instances`: machines that people bring themselves, each an address with
//! the user to log in as.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use crate::problem::{At, Findings, Problems, Warning};

/// Where an instance is reached.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// By number.
    Ip(IpAddr),
    /// By a DNS name, in lower case.
    Dns(String),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Dns(name) => name.fmt(f),
        }
    }
}

/// How an instance is reached, and what its Node is known by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Instance {
    /// The user to log in as.
    pub user: String,
    /// An address that its Node has, where that is another one than it is reached at.
    pub node_address: Option<IpAddr>,
}

/// Instances, by address.
pub type WindowsInstances = BTreeMap<Address, Instance>;

/// The longest name of a user, with a domain, that Windows has.
const LONGEST_USER: usize = 360;

/// Reads the `data` of the `ConfigMap`. `source` is what problems call it.
pub fn from_data(
    source: &str,
    data: &BTreeMap<String, String>,
) -> Result<(WindowsInstances, Vec<Warning>), Problems> {
    let mut findings = Findings::of(source);
    let entries = data
        .iter()
        .map(|(address, value)| (address.as_str(), value.as_str(), 0));
    let instances = read_entries(entries, &At::top(None), &mut findings);
    findings.finish(instances)
}

/// Reads addresses with their values and lines.
pub(crate) fn read_entries<'a>(
    entries: impl Iterator<Item = (&'a str, &'a str, u32)>,
    at: &At<'_>,
    findings: &mut Findings,
) -> WindowsInstances {
    let mut instances = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (key, value, line) in entries {
        let here = at.on_line(line).called(key);
        let instance = instance(value)
            .map_err(|message| findings.problem(&here, message))
            .ok();
        let address = match address(key) {
            Ok(address) => address,
            Err(message) => {
                findings.problem(&here, message);
                continue;
            }
        };
        if matches!(address, Address::Ip(IpAddr::V6(_))) {
            findings.warning(
                &here,
                "a key of a ConfigMap cannot have a colon, so no cluster accepts this entry: list a DNS name that \
                 resolves to the address",
            );
        }
        if !seen.insert(address.clone()) {
            findings.problem(
                &here,
                format!("the address {address} is listed twice: keep one"),
            );
        }
        if let Some(instance) = instance {
            instances.insert(address, instance);
        }
    }
    instances
}

fn instance(value: &str) -> Result<Instance, String> {
    let cure =
        "write username=<user>, and ,nodeAddress=<IP address> if its Node has another address";
    let mut instance = Instance::default();
    // No user of Windows has a comma in its name.
    for part in value.trim().split(',') {
        let Some((key, text)) = part.split_once('=') else {
            return Err(format!("the value {part:?} has no equals sign: {cure}"));
        };
        match key.trim() {
            "username" => text.trim().clone_into(&mut instance.user),
            "nodeAddress" => {
                let address = text.trim().parse();
                let address =
                    address.map_err(|_| format!("{text:?} is not an IP address: {cure}"))?;
                instance.node_address = Some(address);
            }
            key => return Err(format!("unknown key {key:?}: {cure}")),
        }
    }
    let user = &instance.user;
    if user.len() > LONGEST_USER {
        return Err(format!(
            "the user name has more than {LONGEST_USER} characters: {cure}"
        ));
    }
    if user.is_empty() {
        return Err(format!("the user name is empty: {cure}"));
    }
    if user.chars().any(char::is_control) {
        return Err(format!(
            "the user name has a line break or another control character: {cure}"
        ));
    }
    Ok(instance)
}

fn address(text: &str) -> Result<Address, String> {
    if text.is_empty() {
        return Err("the address is empty: give an IP address or a DNS name".to_owned());
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(Address::Ip(address));
    }
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let numeric = text
        .rsplit('.')
        .next()
        .is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
    if text.len() > 253 || numeric || !text.split('.').all(label) {
        return Err(format!(
            "{text:?} is neither an IP address nor a DNS name: give one of them"
        ));
    }
    Ok(Address::Dns(text.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(entries: &[(&str, &str)]) -> Result<WindowsInstances, String> {
        let data = entries
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        from_data("instances.yaml", &data.collect())
            .map(|(instances, _)| instances)
            .map_err(|problems| problems.to_string())
    }

    #[test]
    fn an_instance_is_an_address_and_a_user() {
        let instances = read(&[
            ("10.1.42.1", "username=Administrator"),
            ("2001:db8::1", "username=core\n"),
            ("Win-1.Example.com", r"username=EXAMPLE\core"),
        ])
        .unwrap();
        let pairs: Vec<_> = instances
            .iter()
            .map(|(address, instance)| (address.to_string(), instance.user.as_str()))
            .collect();
        assert_eq!(
            pairs,
            [
                ("10.1.42.1".to_owned(), "Administrator"),
                ("2001:db8::1".to_owned(), "core"),
                ("win-1.example.com".to_owned(), r"EXAMPLE\core"),
            ]
        );
    }

    /// Covers S01.
    #[test]
    fn an_instance_may_be_reached_at_another_address_than_its_node_has() {
        let listed = [("jump.example.com", "username=core, nodeAddress=10.1.42.7")];
        let instances = read(&listed).unwrap();
        let instance = instances.values().next().unwrap();
        assert_eq!(instance.user, "core");
        assert_eq!(instance.node_address, Some([10, 1, 42, 7].into()));
        for (value, words) in [
            ("username=core,nodeAddress=win", "is not an IP address"),
            ("nodeAddress=10.1.42.7", "the user name is empty"),
            ("username=core,password=x", "unknown key \"password\""),
        ] {
            let message = read(&[("10.1.42.1", value)]).unwrap_err();
            assert!(message.contains(words), "{message}");
        }
        let long = format!("username={}", "x".repeat(400));
        assert!(
            read(&[("10.1.42.1", &long)])
                .unwrap_err()
                .contains("more than")
        );
    }

    #[test]
    fn an_address_that_no_config_map_can_have_is_told_with_the_cure() {
        let data = [("2001:db8::1".to_owned(), "username=core".to_owned())];
        let (_, warnings) = from_data("instances.yaml", &data.into()).unwrap();
        let said = warnings.first().map(ToString::to_string);
        let said = said.unwrap_or_default();
        assert!(said.contains("2001:db8::1"), "{said}");
        assert!(said.contains("list a DNS name"), "{said}");
    }

    #[test]
    fn what_is_no_instance_is_refused_by_its_address() {
        for (address, value, words) in [
            ("10.1.42.1", "Administrator", "no equals sign"),
            ("10.1.42.1", "username=", "the user name is empty"),
            ("10.1.42.1", "user=core", "unknown key \"user\""),
            (
                "10.1.42.1",
                "username=core\npassword=x",
                "control character",
            ),
            ("", "username=core", "the address is empty"),
            (
                "10.1.42.256",
                "username=core",
                "neither an IP address nor a DNS name",
            ),
            (
                "win_1",
                "username=core",
                "neither an IP address nor a DNS name",
            ),
            (
                "-win",
                "username=core",
                "neither an IP address nor a DNS name",
            ),
            (
                "win..a",
                "username=core",
                "neither an IP address nor a DNS name",
            ),
        ] {
            let message = read(&[(address, value)]).unwrap_err();
            assert!(message.contains(words), "{message}");
            assert!(message.contains(address), "{message}");
        }
        let message = read(&[("win.a", "username=a"), ("WIN.a", "username=b")]).unwrap_err();
        assert!(message.contains("win.a is listed twice"), "{message}");
        let message = read(&[
            ("2001:db8::1", "username=a"),
            ("2001:DB8:0::1", "username=b"),
        ])
        .unwrap_err();
        assert!(message.contains("2001:db8::1 is listed twice"), "{message}");
    }
}
