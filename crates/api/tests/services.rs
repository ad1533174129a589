//! The services `ConfigMap`: its keys, its elements and its rules, and the text and hash we give it.
#![allow(clippy::panic, clippy::too_many_lines)] // A panic is a test's report, a table its length.

use std::collections::BTreeMap;

use evenkeel_api::document::{self, Document};
use evenkeel_api::windows::services::{NodeVariable, PowershellVariable, Service, Services};

fn data(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = entries
        .iter()
        .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
    owned.collect()
}

fn read(entries: &[(&str, &str)]) -> Services {
    match Services::from_data("services", &data(entries)) {
        Ok((services, _)) => services,
        Err(problems) => panic!("{problems}"),
    }
}

fn refused(entries: &[(&str, &str)]) -> Vec<String> {
    match Services::from_data("services", &data(entries)) {
        Ok(read) => panic!("{read:?}"),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

/// A service in a line: `name bootstrap priority dependencies…`, `b` for bootstrap.
fn service(line: &str) -> String {
    let words: Vec<_> = line.split(' ').collect();
    let dependencies: Vec<_> = words[3..].iter().map(|name| format!("{name:?}")).collect();
    format!(
        r#"{{"name": "{}", "command": "c.exe", "bootstrap": {}, "priority": {}, "dependencies": [{}]}}"#,
        words[0],
        words[1] == "b",
        words[2],
        dependencies.join(", ")
    )
}

fn services(lines: &[&str]) -> String {
    let services: Vec<_> = lines.iter().map(|line| service(line)).collect();
    format!("[{}]", services.join(", "))
}

/// Covers H05, H06.
#[test]
fn one_object_or_a_list_is_read_and_case_of_keys_is_no_difference() {
    let service = r#"{"name": "new", "command": "C:\\new.exe --a=NODE --b=IP", "bootstrap": false, "priority": 2,
        "nodeVariablesinCommand": {"name": "NODE", "jsonPathNodeObject": "metadata.name"},
        "powershellVariablesinCommand": {"name": "IP", "path": "C:\\k\\ip.ps1"}, "dependencies": []}"#;
    let one = read(&[("Services", service), ("FILES", "[]")]);
    let listed = service
        .replace(
            r#"{"name": "NODE", "jsonPathNodeObject": "metadata.name"}"#,
            r#"[{"name": "NODE", "jsonPathNodeObject": "{.metadata.name}"}]"#,
        )
        .replace(
            "powershellVariablesinCommand",
            "PowershellVariablesInCommand",
        );
    let many = read(&[("services", &format!("[{listed}]")), ("files", "[]")]);
    assert_eq!(one, many);
    let expected = Service {
        name: "new".to_owned(),
        command: r"C:\new.exe --a=NODE --b=IP".to_owned(),
        dependencies: Vec::new(),
        node_variables: vec![NodeVariable {
            name: "NODE".to_owned(),
            json_path: "{.metadata.name}".to_owned(),
        }],
        powershell_variables: vec![PowershellVariable {
            name: "IP".to_owned(),
            path: r"C:\k\ip.ps1".to_owned(),
        }],
        bootstrap: false,
        priority: 2,
    };
    assert_eq!(one.services, [expected]);
    let checksum = "A".repeat(64);
    let full = read(&[
        ("services", "[]"),
        (
            "files",
            &format!(r#"{{"path": "C:\\k\\a.exe", "checksum": "{checksum}"}}"#),
        ),
        (
            "environmentVars",
            r#"{"name": "HTTP_PROXY", "value": "http://p"}"#,
        ),
        (
            "watchedEnvironmentVars",
            r#"[{"name": "NO_PROXY"}, "https_proxy", "http_proxy"]"#,
        ),
    ]);
    assert_eq!(full.files[0].checksum, "a".repeat(64));
    assert_eq!(full.watched, ["HTTP_PROXY", "https_proxy", "NO_PROXY"]);
    assert!(full.is_watched("Http_Proxy") && !full.is_watched("PATH"));
}

/// Covers H05.
#[test]
fn an_unknown_or_missing_key_is_named() {
    let none = [("services", "[]"), ("files", "[]")];
    read(&none);
    for (entries, message) in [
        (
            vec![("files", "[]")],
            "services: the key \"services\" is missing: add it ([] for none)",
        ),
        (
            vec![("services", "[]")],
            "services: the key \"files\" is missing: add it ([] for none)",
        ),
        (
            vec![none[0], none[1], ("enviromentVars", "[]")],
            "services: enviromentVars: unknown key \"enviromentVars\" (did you mean \"environmentVars\"?)",
        ),
        (
            vec![none[0], none[1], ("other", "[]")],
            "services: other: unknown key \"other\": remove it",
        ),
        (
            vec![none[0], none[1], ("Files", "[]")],
            "services: files: files is set twice (case-insensitive): keep one",
        ),
        (
            vec![none[0], ("files", "")],
            "services: files: files is empty: write [] for none",
        ),
        (
            vec![none[0], ("files", "null")],
            "services: files: files must be a list or an object, found nothing",
        ),
        (
            vec![none[0], ("files", "[{]")],
            "services: files: files is not JSON: column 3: invalid JSON: key must be a string",
        ),
        (
            vec![none[0], ("files", "- path: x")],
            "services: files: files is not JSON: column 2: invalid JSON: invalid number",
        ),
    ] {
        assert_eq!(refused(&entries), [message]);
    }
}

/// Covers H06.
#[test]
fn every_element_is_checked_by_its_name() {
    let base = r#""name": "kubelet", "command": "k.exe", "bootstrap": false, "priority": 1"#;
    let long = base.replace("kubelet", &"k".repeat(257));
    for (element, message) in [
        (
            r#""name": "kubelet", "command": "k.exe", "bootstrap": false"#.to_owned(),
            "kubelet: priority is missing",
        ),
        (
            r#""name": "kubelet", "command": "k.exe", "priority": 1"#.to_owned(),
            "kubelet: bootstrap is missing",
        ),
        (
            r#""name": "kubelet", "bootstrap": false, "priority": 1"#.to_owned(),
            "kubelet: command is missing",
        ),
        (
            base.replace("k.exe", " "),
            "kubelet: command is empty: write the command that the service runs",
        ),
        (
            base.replace("k.exe", r#"\"k.exe"#),
            "kubelet: command has an unclosed quotation mark: close it",
        ),
        (
            base.replace("kubelet", "a/b"),
            "a/b: name has a slash or a backslash, which Windows does not allow: remove it",
        ),
        (
            base.replace("kubelet", r"a\\b"),
            r"a\b: name has a slash or a backslash, which Windows does not allow: remove it",
        ),
        (long, "name has 257 characters: the limit is 256"),
        (
            format!("{base}, \"depends\": []"),
            "kubelet: unknown key \"depends\": remove it",
        ),
        (
            format!("{base}, \"priorty\": 1"),
            "kubelet: unknown key \"priorty\" (did you mean \"priority\"?)",
        ),
        (
            format!(r#"{base}, "dependencies": "a""#),
            "kubelet: dependencies must be a list, found text: put it into a list",
        ),
        (
            format!(
                r#"{base}, "nodeVariablesinCommand": {{"name": "A", "jsonPathNodeObject": "{{"}}"#
            ),
            "kubelet: variable A: jsonPathNodeObject \"{\" has an unmatched brace: write one path, for example {.metadata.name}",
        ),
        (
            format!(r#"{base}, "powershellVariablesinCommand": {{"name": "A", "path": ""}}"#),
            "kubelet: variable A has an empty path: give the script",
        ),
        (
            base.replace('1', "-1"),
            "kubelet: priority -1 is negative: give 0 or more",
        ),
        (
            base.replace('1', "1.5"),
            "kubelet: priority must be a whole number, found a fraction",
        ),
        (
            base.replace('1', "\"1\""),
            "kubelet: priority must be a whole number, found text: write it without quotes",
        ),
        (
            base.replace('1', "99999999999"),
            "kubelet: priority 99999999999 is above 4294967295: give a lower one",
        ),
    ] {
        let problems = refused(&[("services", &format!("{{{element}}}")), ("files", "[]")]);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0].starts_with("services: services[0] "),
            "{problems:?}"
        );
        assert!(problems[0].ends_with(message), "{problems:?}");
    }
}

/// Covers H06.
#[test]
fn files_and_variables_are_checked_by_their_names() {
    let hex = "a".repeat(64);
    for (key, element, message) in [
        (
            "files",
            format!(r#"{{"path": "k.exe", "checksum": "{hex}"}}"#),
            r"files[0] k.exe: path is relative: begin it with a drive, for example C:\k\",
        ),
        (
            "files",
            r#"{"path": "C:\\k.exe", "checksum": "abc"}"#.to_owned(),
            r"files[0] C:\k.exe: checksum is not a SHA-256: write 64 hex digits",
        ),
        (
            "files",
            r#"{"path": "C:\\k.exe"}"#.to_owned(),
            r"files[0] C:\k.exe: checksum is missing",
        ),
        (
            "environmentVars",
            r#"[{"name": "a", "value": ""}, {"name": "A", "value": ""}]"#.to_owned(),
            "environmentVars[1] A: the same variable is listed twice (case-insensitive): keep one",
        ),
        (
            "environmentVars",
            r#"{"name": "a=b", "value": ""}"#.to_owned(),
            "environmentVars[0] a=b: name has an equals sign or a NUL, which Windows does not allow: remove it",
        ),
        (
            "watchedEnvironmentVars",
            r#"{"name": ""}"#.to_owned(),
            "watchedEnvironmentVars[0]: name is empty: give one",
        ),
        (
            "watchedEnvironmentVars",
            r#"{"nam": "a"}"#.to_owned(),
            "watchedEnvironmentVars[0].nam: unknown key \"nam\" (did you mean \"name\"?)",
        ),
    ] {
        let mut entries = vec![("services", "[]"), (key, element.as_str())];
        if key != "files" {
            entries.push(("files", "[]"));
        }
        let problems = refused(&entries);
        assert!(
            problems.contains(&format!("services: {message}")),
            "{problems:?}"
        );
    }
}

/// Covers H07.
#[test]
fn services_that_cannot_be_together_are_refused_by_name() {
    for (lines, message) in [
        (
            vec!["a b 0 z", "z - 1"],
            "services[0] a: bootstrap service a depends on z, which is not a bootstrap service: set bootstrap of z to true, or remove the dependency",
        ),
        (
            vec!["a - 0 a"],
            "services[0] a: the service depends on itself: a -> a: remove the dependency",
        ),
        (
            vec!["a - 0 b", "b - 0 A"],
            "services[0] a: the dependencies form a cycle: a -> b -> a: remove one of them",
        ),
        (
            vec!["x - 0", "y - 0 x", "c - 1 d", "d - 1 e", "e - 1 c"],
            "services[2] c: the dependencies form a cycle: c -> d -> e -> c: remove one of them",
        ),
        (
            vec!["x - 0 b", "b - 0 a", "a - 0 b"],
            "services[1] b: the dependencies form a cycle: b -> a -> b: remove one of them",
        ),
        (
            vec!["a b 3", "z - 2"],
            "services[0] a: bootstrap service a has priority 3, which is not below priority 2 of z, which is not a bootstrap service: give a a lower priority",
        ),
        (
            vec!["a b 2", "z - 2"],
            "services[0] a: bootstrap service a shares priority 2 with z, which is not a bootstrap service: give a a lower priority",
        ),
        (
            vec!["a - 0", "A - 1"],
            "services[1] A: the name A is used twice (first by services[0] a): keep one",
        ),
    ] {
        let problems = refused(&[("services", &services(&lines)), ("files", "[]")]);
        assert_eq!(problems, [format!("services: {message}")], "{lines:?}");
    }
    let both = refused(&[
        (
            "services",
            &services(&["a - 0 b", "b - 0 a", "c - 0 d", "d - 0 c"]),
        ),
        ("files", "[]"),
    ]);
    assert_eq!(both.len(), 2, "{both:?}");
    let variable = r#"{"name": "a", "command": "c NODE", "bootstrap": true, "priority": 0,
        "nodeVariablesinCommand": [{"name": "NODE", "jsonPathNodeObject": "metadata.name"}]}"#;
    assert_eq!(
        refused(&[("services", variable), ("files", "[]")]),
        [
            "services: services[0] a: bootstrap service a has node variables (NODE), but it starts before the Node exists: remove them, or set bootstrap to false"
        ]
    );
}

/// Covers H07.
#[test]
fn services_that_can_be_together_are_accepted() {
    for lines in [
        vec!["a b 0", "b b 0 a", "z - 1 a b"],
        vec!["a - 0 Dhcp", "b - 0 a Tcpip"],
        vec!["d - 0", "b - 0 d", "c - 0 d", "a - 0 b c"],
        vec!["a b 0", "b b 1"],
    ] {
        read(&[("services", &services(&lines)), ("files", "[]")]);
    }
}

/// Covers H06.
#[test]
fn what_does_nothing_is_a_warning() {
    let text = r#"[{"name": "a", "command": "c", "bootstrap": false, "priority": 0, "dependencies": ["b"],
        "nodeVariablesinCommand": [{"name": "NODE", "jsonPathNodeObject": "metadata.name"}]},
        {"name": "b", "command": "c", "bootstrap": false, "priority": 1}]"#;
    let (_, warnings) =
        Services::from_data("services", &data(&[("services", text), ("files", "[]")])).unwrap();
    let warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "services: services[0] a: variable NODE is not used in the command: remove it",
            "services: services[0] a: priority 0 creates the service before its dependency b, which has priority 1",
        ]
    );
}

/// Covers H07.
#[test]
fn creation_goes_by_bootstrap_then_priority_then_dependencies() {
    let read = read(&[
        (
            "services",
            &services(&["z - 5", "a - 5 z", "k b 1", "c b 0", "m - 4", "b b 1 k"]),
        ),
        ("files", "[]"),
    ]);
    let names: Vec<_> = read
        .creation_order()
        .iter()
        .map(|service| service.name.as_str())
        .collect();
    assert_eq!(names, ["c", "k", "b", "m", "z", "a"]);
}

/// Covers H06.
#[test]
fn equal_contents_have_equal_text_and_hash_however_they_were_written() {
    let left = read(&[
        ("services", &services(&["a - 0 y x", "b - 0"])),
        ("files", "[]"),
    ]);
    let right = read(&[
        ("Services", &services(&["b - 0", "a - 0 x y x"])),
        ("Files", " [ ] "),
        ("environmentVars", "[]"),
    ]);
    assert_eq!(left, right);
    let canonical = left.canonical();
    assert_eq!(
        canonical["services"],
        r#"[{"name":"a","command":"c.exe","dependencies":["x","y"],"nodeVariablesinCommand":[],"powershellVariablesinCommand":[],"bootstrap":false,"priority":0},{"name":"b","command":"c.exe","dependencies":[],"nodeVariablesinCommand":[],"powershellVariablesinCommand":[],"bootstrap":false,"priority":0}]"#
    );
    assert_eq!(canonical["files"], "[]");
    assert_eq!(canonical.len(), 4);
    assert_eq!(left.hash(), right.hash());
    let (again, warnings) = Services::from_data("again", &canonical).unwrap();
    assert_eq!((again, warnings), (left.clone(), Vec::new()));
    let empty = read(&[("services", "[]"), ("files", "[]")]);
    // sha256 of {"environmentVars":"[]","files":"[]","services":"[]","watchedEnvironmentVars":"[]"}
    assert_eq!(
        empty.hash(),
        "651d252af41a8541ca8ab65f9fc276d9b5dc479ca3e464bf74e32c7b4bf3c1a3"
    );
    assert_ne!(left.hash(), empty.hash());
}

/// Covers H05.
#[test]
fn a_problem_inside_a_value_has_its_line_in_the_file() {
    let text = r#"apiVersion: v1
kind: ConfigMap
metadata: {name: services-1-2-3-abc1234}
data:
  files: "[]"
  services: |
    [
      {"name": "a", "command": "c", "bootstrap": false, "priority": 0},
      {"name": "b", "command": "c", "bootstrap": false,
       "priority": -1}
    ]
"#;
    let problems = document::read("s.yaml", text.as_bytes()).unwrap_err();
    assert_eq!(
        problems.to_string(),
        "s.yaml: line 9: services[1] b: priority -1 is negative: give 0 or more"
    );
    let (documents, warnings) =
        document::read("s.yaml", text.replace("-1}", "1}").as_bytes()).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    let [Document::Services { name, services }] = documents.as_slice() else {
        panic!("{documents:?}");
    };
    assert_eq!(name.as_deref(), Some("services-1-2-3-abc1234"));
    assert_eq!(services.services.len(), 2);
    let broken = text.replace("\"priority\": -1}", "\"priority\" 1}");
    let problems = document::read("s.yaml", broken.as_bytes()).unwrap_err();
    assert!(
        problems
            .to_string()
            .starts_with("s.yaml: line 10: services: services is not JSON: "),
        "{problems}"
    );
}
