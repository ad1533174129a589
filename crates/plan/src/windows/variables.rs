//! Texts in a service's command that stand for a field of the Node, or for what a script prints.
//!
//! A kubelet writes its own Node, so that a field may hold anything. Nothing of it is quoted: how, would
//! depend on the program. A value that could be more than one plain word is refused.

use evenkeel_api::windows::services::Service;
use serde_json::Value;

use crate::json_path::JsonPath;

/// A longer value is no name, address or number of a node.
const LONGEST: usize = 1024;
/// How much of a text is shown.
const SHOWN: usize = 80;
/// Besides letters and digits, what means nothing to the service manager, to a shell, or to whoever
/// splits a command into words.
const PLAIN: &str = r"._-:/,=@+#~[]\";

/// Why a text in a command has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoValue {
    /// It may come: a field that is not there yet, a script that failed.
    NotYet(String),
    /// It never will, as it is written.
    Never(String),
}

/// The text of the one field of `node` that `path` names, written `{.metadata.name}`.
pub fn field(path: &str, node: &Value) -> Result<String, NoValue> {
    let read = JsonPath::read(path).map_err(|error| {
        let shown: String = path.chars().take(SHOWN).collect();
        NoValue::Never(format!("{shown} is not a supported JSON path: {error}"))
    })?;
    let found = read.find(node);
    match found.as_slice() {
        [] => Err(NoValue::NotYet(format!("the Node has no {path} yet"))),
        [Value::String(text)] => Ok(text.clone()),
        [value @ (Value::Number(_) | Value::Bool(_))] => Ok(value.to_string()),
        [_] => Err(NoValue::Never(format!(
            "{path} is not a string field of the Node: name a field that has a string"
        ))),
        _ => Err(NoValue::Never(format!(
            "{path} matches {} fields of the Node: narrow it to one",
            found.len()
        ))),
    }
}

/// The command of `service` with every text in its place, or everything that has no value.
///
/// `script` gives what the script at a path printed.
pub fn command(
    service: &Service,
    node: Option<&Value>,
    mut script: impl FnMut(&str) -> Result<String, NoValue>,
) -> Result<String, Vec<NoValue>> {
    let (mut values, mut missing) = (Vec::new(), Vec::new());
    let mut note = |name: &str, value: Result<String, NoValue>| match value {
        Ok(value) => values.push((name.to_owned(), value)),
        Err(why) => missing.push(why.of(&service.name, name)),
    };
    for variable in &service.node_variables {
        let value = match node {
            Some(node) => {
                field(&variable.json_path, node).and_then(|value| plain(&variable.json_path, value))
            }
            None => Err(NoValue::NotYet("there is no Node yet".to_owned())),
        };
        note(&variable.name, value);
    }
    for variable in &service.powershell_variables {
        note(&variable.name, script(&variable.path));
    }
    if !missing.is_empty() {
        return Err(missing);
    }
    // The longest first: one name may begin with another.
    values.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    let (mut command, mut rest) = (String::new(), service.command.as_str());
    // What a value holds stands for nothing more.
    while let Some(letter) = rest.chars().next() {
        let found = values
            .iter()
            .find(|(name, _)| !name.is_empty() && rest.starts_with(name.as_str()));
        let length = if let Some((name, value)) = found {
            // Only here it is known where a value stands.
            let mut fields = service.node_variables.iter();
            if let Some(field) = fields.find(|it| it.name == *name)
                && begins_word(&command)
                && value.starts_with(['-', '/'])
            {
                let why = refused(&field.json_path, value, "begins like an option");
                return Err(vec![why.of(&service.name, name)]);
            }
            command.push_str(value);
            name.len()
        } else {
            command.push(letter);
            letter.len_utf8()
        };
        rest = &rest[length..];
    }
    Ok(command)
}

/// The value of a field, if it is one plain word wherever it stands.
fn plain(path: &str, value: String) -> Result<String, NoValue> {
    let odd = |it: &char| !it.is_ascii_alphanumeric() && !PLAIN.contains(*it);
    let why = match value.chars().find(odd) {
        Some(letter) if letter.is_control() => "has a control character",
        Some(letter) if letter.is_whitespace() => "has a space",
        Some('"' | '\'' | '`') => "has a quote",
        Some(_) => "has a character with a meaning in commands",
        None if value.is_empty() => "is empty",
        None if value.len() > LONGEST => "is too long",
        // Before a quote it would take that quote into the word.
        None if value.ends_with('\\') => "ends with a backslash",
        None => return Ok(value),
    };
    Err(refused(path, &value, why))
}

fn refused(path: &str, value: &str, why: &str) -> NoValue {
    let shown: String = value.chars().take(SHOWN / 2).collect();
    let more = if shown.len() < value.len() { "…" } else { "" };
    NoValue::NotYet(format!(
        "{path} of the Node {why} ({shown:?}{more}), which could change the command: give that field a plain \
         value (letters, digits and {PLAIN}), or name another field in nodeVariablesinCommand"
    ))
}

/// Whether what is put behind `command` begins a word of it.
fn begins_word(command: &str) -> bool {
    let before = command.trim_end_matches(['"', '\'']);
    before.is_empty() || before.ends_with(char::is_whitespace)
}

impl NoValue {
    /// What is wrong, in words.
    pub fn words(&self) -> &str {
        match self {
            Self::NotYet(words) | Self::Never(words) => words,
        }
    }

    fn of(self, service: &str, name: &str) -> Self {
        let named = |words: String| format!("service {service}: {name} has no value: {words}");
        match self {
            Self::NotYet(words) => Self::NotYet(named(words)),
            Self::Never(words) => Self::Never(named(words)),
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_api::windows::services::{NodeVariable, PowershellVariable};
    use serde_json::json;

    use super::*;

    fn node() -> Value {
        json!({
            "metadata": {"name": "win-1", "annotations": {"k8s.ovn.org/subnet": "10.1.0.0/24", "it's": "x"}},
            "status": {
                "addresses": [
                    {"type": "InternalIP", "address": "10.0.0.7"},
                    {"type": "Hostname", "address": "win-1"}
                ],
                "nodeInfo": {"port": 10250}
            }
        })
    }

    #[test]
    fn a_field_is_found_however_kubernetes_writes_it() {
        for (path, value) in [
            ("{.metadata.name}", "win-1"),
            (
                r"{.metadata.annotations.k8s\.ovn\.org/subnet}",
                "10.1.0.0/24",
            ),
            (
                "{.metadata.annotations['k8s.ovn.org/subnet']}",
                "10.1.0.0/24",
            ),
            ("{.metadata.annotations.it's}", "x"),
            (
                r#"{.status.addresses[?(@.type=="InternalIP")].address}"#,
                "10.0.0.7",
            ),
            ("{.status.addresses[1].address}", "win-1"),
            ("{.status.nodeInfo.port}", "10250"),
        ] {
            assert_eq!(field(path, &node()).as_deref(), Ok(value), "{path}");
        }
        let none = field("{.metadata.labels.x}", &node()).unwrap_err();
        assert!(matches!(none, NoValue::NotYet(_)), "{none:?}");
        for path in [
            "{.status.addresses}",
            "{.status.addresses[*].type}",
            "{.a[0}",
        ] {
            let never = field(path, &node()).unwrap_err();
            assert!(matches!(never, NoValue::Never(_)), "{path}: {never:?}");
        }
    }

    #[test]
    fn a_command_has_all_its_values_or_says_which_are_missing() {
        let service = Service {
            name: "proxy".to_owned(),
            command: "p.exe --node=NODE --ip=NODE_IP --script=OUT".to_owned(),
            node_variables: vec![
                NodeVariable {
                    name: "NODE".to_owned(),
                    json_path: "{.metadata.name}".to_owned(),
                },
                NodeVariable {
                    name: "NODE_IP".to_owned(),
                    json_path: "{.status.addresses[0].address}".to_owned(),
                },
            ],
            powershell_variables: vec![PowershellVariable {
                name: "OUT".to_owned(),
                path: r"C:\k\out.ps1".to_owned(),
            }],
            ..Service::default()
        };
        // What a value holds stands for nothing more.
        let said = command(&service, Some(&node()), |_| Ok("NODE".to_owned()));
        assert_eq!(
            said.unwrap(),
            "p.exe --node=win-1 --ip=10.0.0.7 --script=NODE"
        );
        let said = command(&service, Some(&node()), |path| {
            assert_eq!(path, r"C:\k\out.ps1");
            Ok("printed".to_owned())
        });
        assert_eq!(
            said.unwrap(),
            "p.exe --node=win-1 --ip=10.0.0.7 --script=printed"
        );
        let missing = command(&service, None, |_| {
            Err(NoValue::NotYet("it hangs".to_owned()))
        });
        let missing = missing.unwrap_err();
        let words: Vec<_> = missing.iter().map(NoValue::words).collect();
        assert_eq!(words.len(), 3, "{words:?}");
        assert_eq!(words[2], "service proxy: OUT has no value: it hangs");
    }

    /// Covers S09.
    #[test]
    fn a_field_that_could_change_the_command_is_refused_with_its_variable_its_field_and_the_cure() {
        let path = "{.metadata.labels.zone}";
        let service = |command: &str| Service {
            name: "proxy".to_owned(),
            command: command.to_owned(),
            node_variables: vec![NodeVariable {
                name: "ZONE".to_owned(),
                json_path: path.to_owned(),
            }],
            ..Service::default()
        };
        let say = |line: &str, value: &str| {
            let node = json!({"metadata": {"labels": {"zone": value}}});
            command(&service(line), Some(&node), |_| Ok(String::new()))
        };
        let long = "a".repeat(1025);
        for (value, why) in [
            ("a --token=x", "has a space"),
            ("a\u{a0}b", "has a space"),
            ("a\tb", "has a control character"),
            ("a\r\nb", "has a control character"),
            ("a\0", "has a control character"),
            (r#"a" --x "b"#, "has a quote"),
            ("a'b", "has a quote"),
            ("a`b", "has a quote"),
            ("%PATH%", "a meaning in commands"),
            ("$(calc)", "a meaning in commands"),
            ("a&calc", "a meaning in commands"),
            ("a|b", "a meaning in commands"),
            ("a;b", "a meaning in commands"),
            // Some programs read it as a plain quote.
            ("a\u{ff02}b", "a meaning in commands"),
            (r"a\", "ends with a backslash"),
            ("", "is empty"),
            (&long, "is too long"),
        ] {
            for line in [
                "p.exe --zone=ZONE",
                "p.exe ZONE",
                r#""p.exe" "--zone=ZONE""#,
            ] {
                let missing = say(line, value).unwrap_err();
                let words = missing[0].words();
                for part in ["service proxy: ZONE has no value", path, why, "plain value"] {
                    assert!(words.contains(part), "{value:?}: {words}");
                }
                assert!(
                    !words.contains(char::is_control) && words.len() < 500,
                    "{words}"
                );
            }
        }
        for option in ["--privileged", "/quiet"] {
            for line in ["p.exe ZONE", r#"p.exe "ZONE""#, "ZONE"] {
                let missing = say(line, option).unwrap_err();
                assert!(missing[0].words().contains("begins like an option"));
            }
            assert!(say("p.exe --zone=ZONE", option).is_ok());
        }
        for value in [
            "a-1",
            "10.0.0.7",
            "fd00::7",
            "10.1.0.0/24,fd00::/64",
            r"d\u",
            "azure:///s/x",
        ] {
            assert_eq!(say("p --zone=ZONE", value), Ok(format!("p --zone={value}")));
        }
    }
}
