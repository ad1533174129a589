//! What is taken out of a bundle. `evenkeel_plan::secret` says what looks secret; where it cannot be
//! asked, because something is encoded and cannot be read, it is taken out as well.

use evenkeel_api::document::{self, Document};
use evenkeel_api::machine::machine_config::MachineConfig;
use evenkeel_api::names::group;
use evenkeel_plan::secret::looks_secret;
use serde_json::{Value, json};

const REMOVED: &str = "(removed: it looks secret)";
const REMOVED_UNREAD: &str = "(removed: it cannot be read, so it may be secret)";
/// An annotation with the whole object in it, once more.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What a thing is called is no secret, even if it is called so.
const NAMES: [&str; 6] = ["name", "namespace", "kind", "path", "uid", "secretName"];

/// Takes secrets out of an object. Says how many things it took out.
pub(super) fn object(object: &mut Value) -> usize {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.remove(LAST_APPLIED);
        }
    }
    let (judged, mut removed) = if object["kind"] == "MachineConfig" {
        machine_config(object)
    } else {
        (Vec::new(), 0)
    };
    removed += walk("", object);
    for (path, contents) in judged {
        let files = object["spec"]["config"]["storage"]["files"].as_array_mut();
        let mut files = files.into_iter().flatten();
        if let Some(file) = files.find(|file| file["path"] == path.as_str()) {
            file["contents"] = contents;
        }
    }
    removed
}

/// Contents of files are encoded: they are judged as what they stand for. Those that may stay are
/// taken out for now, each with its file's path.
fn machine_config(object: &mut Value) -> (Vec<(String, Value)>, usize) {
    let known = read(object);
    let files = object["spec"]["config"]["storage"]["files"].as_array_mut();
    let (mut judged, mut removed) = (Vec::new(), 0);
    for file in files.into_iter().flatten() {
        let path = file["path"].as_str().unwrap_or_default().to_owned();
        let Some(file) = file.as_object_mut() else {
            continue;
        };
        let contents = known.as_ref().and_then(|it| it.files.get(&path));
        match contents {
            Some(read) if !looks_secret(&path, &read.contents) => {
                let kept = file.insert("contents".to_owned(), Value::Null);
                judged.push((path, kept.unwrap_or_default()));
            }
            _ => {
                let reason = contents.map_or(REMOVED_UNREAD, |_| REMOVED);
                for part in ["contents", "append"] {
                    if file.contains_key(part) {
                        file.insert(part.to_owned(), json!(reason));
                        removed += 1;
                    }
                }
            }
        }
    }
    (judged, removed)
}

fn read(object: &Value) -> Option<MachineConfig> {
    let text = json!({
        "apiVersion": format!("{}/v1", group::MACHINE_CONFIGURATION),
        "kind": "MachineConfig",
        "metadata": { "name": object["metadata"]["name"] },
        "spec": object["spec"],
    });
    let (documents, _) = document::read("", text.to_string().as_bytes()).ok()?;
    documents.into_iter().find_map(|it| match it {
        Document::MachineConfig(config) => Some(config),
        _ => None,
    })
}

/// Every text in `value`, by the name it stands under.
fn walk(name: &str, value: &mut Value) -> usize {
    match value {
        Value::String(text) => {
            if NAMES.contains(&name) || text.starts_with("(removed") {
                return 0;
            }
            let reason = if text.starts_with("data:") {
                REMOVED_UNREAD
            } else if looks_secret(&format!("/{name}"), text.as_bytes()) {
                REMOVED
            } else {
                return 0;
            };
            reason.clone_into(text);
            1
        }
        Value::Array(items) => items.iter_mut().map(|item| walk(name, item)).sum(),
        Value::Object(fields) => {
            // A variable of a container: its name is next to its value.
            let named = fields
                .get("name")
                .and_then(Value::as_str)
                .map(str::to_owned);
            let walked = fields
                .iter_mut()
                .map(|(key, value)| match (&named, key.as_str()) {
                    (Some(named), "value") => walk(named, value),
                    (_, "binaryData") => unread(value),
                    _ => walk(key, value),
                });
            walked.sum()
        }
        _ => 0,
    }
}

/// Bytes that nobody judges.
fn unread(value: &mut Value) -> usize {
    let fields = value.as_object_mut().into_iter().flatten();
    fields
        .map(|(_, value)| *value = json!(REMOVED_UNREAD))
        .count()
}

/// A text that may be JSON.
pub(super) fn text(text: &str) -> (String, usize) {
    match serde_json::from_str::<Value>(text) {
        Ok(mut value) => {
            let removed = walk("", &mut value);
            let text = serde_json::to_string_pretty(&value).unwrap_or_default();
            (text, removed)
        }
        Err(_) => log(text),
    }
}

/// Line by line; a private key is more than one.
pub(super) fn log(text: &str) -> (String, usize) {
    let mut kept = String::new();
    let mut removed = 0;
    let mut in_key = false;
    for line in text.lines() {
        let begins = line.contains("-----BEGIN ") && line.contains("PRIVATE KEY-----");
        if begins || in_key || looks_secret("", line.as_bytes()) {
            if !in_key {
                kept.push_str(REMOVED);
                kept.push('\n');
                removed += 1;
            }
            in_key = (begins || in_key) && !line.contains("-----END ");
            continue;
        }
        kept.push_str(line);
        kept.push('\n');
    }
    (kept, removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_that_look_secret_go_whatever_they_are_encoded_in_and_others_stay() {
        let secret = "data:text/plain;base64,cGFzc3dvcmQ9aHVudGVyMg==";
        let mut config = json!({
            "kind": "MachineConfig",
            "metadata": {
                "name": "99-a", "managedFields": [{}],
                "annotations": { LAST_APPLIED: secret, "a": "b" },
            },
            "spec": { "config": {
                "ignition": { "version": "3.4.0" },
                "storage": { "files": [
                    { "path": "/etc/a", "contents": { "source": secret } },
                    { "path": "/etc/b", "contents": { "source": "data:,plain" } },
                    { "path": "/var/lib/kubelet/config.json", "contents": { "source": "data:,%7B%7D" } },
                ] },
                "systemd": { "units": [{ "name": "a.service", "contents": "Environment=TOKEN=hunter2" }] },
            } },
        });
        assert_eq!(object(&mut config), 3);
        let text = config.to_string();
        for gone in [
            "hunter2",
            "aHVudGVyMg",
            LAST_APPLIED,
            "managedFields",
            "%7B",
        ] {
            assert!(!text.contains(gone), "{gone} is in {text}");
        }
        assert!(
            text.contains("data:,plain") && text.contains("\"a\":\"b\""),
            "{text}"
        );

        config["spec"]["config"]["ignition"] =
            json!({ "version": "9.9.9", "config": { "merge": [{ "source": secret }] } });
        object(&mut config);
        assert!(
            !config.to_string().contains("data:"),
            "what nobody can read may be secret"
        );
    }

    #[test]
    fn a_variable_whose_name_is_secret_loses_its_value() {
        let mut pod = json!({ "kind": "Pod", "env": [
            { "name": "API_TOKEN", "value": "hunter2" }, { "name": "HOME", "value": "/root" },
        ] });
        pod["binaryData"] = json!({ "a": "aHVudGVyMg==" });
        assert_eq!(object(&mut pod), 2);
        assert_eq!(pod["binaryData"]["a"], REMOVED_UNREAD);
        assert_eq!(pod["env"][0]["value"], REMOVED);
        assert_eq!(pod["env"][1]["value"], "/root");
        let mut services = json!({ "kind": "ConfigMap", "data": {
            "environmentVars": r#"[{"name":"HTTP_PROXY","value":"http://me:hunter2@proxy"}]"#,
            "watchedEnvironmentVars": r#"[{"name":"HTTP_PROXY"}]"#,
        } });
        assert_eq!(object(&mut services), 1);
        assert_eq!(services["data"]["environmentVars"], REMOVED);
    }

    #[test]
    fn a_key_in_a_log_goes_to_its_last_line() {
        let log_text = "one\n-----BEGIN PRIVATE KEY-----\nMIIabc\nMIIdef\n-----END PRIVATE KEY-----\nAuthorization: Bearer x\ntwo\n";
        let (kept, removed) = log(log_text);
        assert_eq!(kept, format!("one\n{REMOVED}\n{REMOVED}\ntwo\n"));
        assert_eq!(removed, 2);
        assert_eq!(text("{\"password\": \"x\", \"a\": 1}").1, 1);
    }
}
