//! What is refused, with the place and the cure: every line here is a promise to the author of a file.
#![allow(clippy::panic, clippy::too_many_lines)] // A panic is a test's report, a table its length.

use evenkeel_api::document;

fn refused(text: &str) -> Vec<String> {
    match document::read("worker.yaml", text.as_bytes()) {
        Ok(read) => panic!("{text} was read as {read:?}"),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

/// One problem, and exactly this one.
fn assert_refused(text: &str, message: &str) {
    assert_eq!(refused(text), [format!("worker.yaml: {message}")], "{text}");
}

/// Covers M04.
#[test]
fn a_text_that_is_no_document_is_refused() {
    for (text, message) in [
        ("", "the file is empty: write a MachineConfig"),
        ("# only a comment\n", "the file is empty"),
        ("---\n---\n", "the file is empty"),
        (
            "a: [1\nb: 2\n",
            "line 2: column 2: invalid YAML: illegal placement of ':' indicator",
        ),
        (
            "{\"a\": 1,\n \"b\" 2}",
            "line 2: column 6: invalid JSON: expected `:`",
        ),
        (
            "{\"a\": 1",
            "line 1: column 7: invalid JSON: EOF while parsing an object",
        ),
        (
            "a: 1\nb: 2\na: 3\n",
            "line 3: column 1: the key \"a\" is set twice: keep one",
        ),
        ("- a\n", "line 1: found a list instead of an object"),
        ("hello\n", "line 1: found text instead of an object"),
        (
            "a: 1\n",
            "line 1: the object has no kind and is not a bare Ignition config",
        ),
        (
            "apiVersion: apps/v1\nkind: Deployment\n",
            "line 1: kind Deployment (apps/v1) is not supported: write a MachineConfig, a bare Ignition config",
        ),
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\n",
            "line 1: ConfigMap other is not supported",
        ),
        (
            "variant: fcos\nversion: 1.5.0\n",
            "line 1: this is a Butane config: translate it to Ignition first",
        ),
        (
            "apiVersion: machineconfiguration.openshift.io/v2\nkind: MachineConfig\nspec: {}\n",
            "line 1: apiVersion \"machineconfiguration.openshift.io/v2\" is not supported: write machineconfiguration.openshift.io/v1",
        ),
        (
            "kind: MachineConfig\nspec: {}\n",
            "line 1: apiVersion is missing",
        ),
    ] {
        let problems = refused(text);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0].starts_with(&format!("worker.yaml: {message}")),
            "{problems:?}"
        );
    }
}

#[test]
fn bytes_that_are_no_text_or_too_many_are_refused() {
    let problems = document::read("x", b"a: 1\nb: \xff\xfe\n").unwrap_err();
    assert_eq!(
        problems.to_string(),
        "x: line 2 is not UTF-8: save the file as UTF-8 text"
    );
    let huge = vec![b' '; 100_000_000];
    let problems = document::read("x", &huge).unwrap_err();
    assert_eq!(
        problems.to_string(),
        "x: the file has 96 MiB: the limit is 64 MiB"
    );
}

#[test]
fn aliases_cannot_blow_a_file_up() {
    let laughs = |(name, below): (&str, &str)| {
        let copies = format!("*{below}, ").repeat(50);
        format!("{name}: &{name} [{copies}]\n")
    };
    let chain = [("b", "a"), ("c", "b"), ("d", "c"), ("e", "d"), ("f", "e")];
    let deep: String = chain.into_iter().map(laughs).collect();
    let deep = format!("a: &a [{}]\n{deep}", "x, ".repeat(50));
    let wide = format!(
        "a: &a {}\nb: [{}]\n",
        "x".repeat(900_000),
        "*a, ".repeat(900)
    );
    for bomb in [deep, wide] {
        let problems = refused(&bomb);
        assert_eq!(problems.len(), 1);
        assert!(
            problems[0].contains("too many values, once its aliases are expanded"),
            "{problems:?}"
        );
    }
}

/// Covers M04, M07, M08.
#[test]
fn every_rule_names_section_identity_and_cure() {
    let config = |rest: &str| format!("ignition: {{version: 3.2.0}}\n{rest}\n");
    for (rest, message) in [
        (
            "storage: {files: [{path: etc/x}]}",
            "line 2: storage.files[0] etc/x: path is relative: begin it with /",
        ),
        (
            "storage: {files: [{path: /etc/../x}]}",
            "line 2: storage.files[0] /etc/../x: path has a component \"..\": remove it",
        ),
        (
            "storage: {files: [{path: /x, mode: 010000}]}",
            "line 2: storage.files[0] /x: mode 0o10000 is above 07777: give permission bits only",
        ),
        (
            "storage: {files: [{path: /x, mode: -1}]}",
            "line 2: storage.files[0] /x: mode -1 is negative: give permission bits only",
        ),
        (
            "storage: {files: [{path: /x, mode: '0644'}]}",
            "line 2: storage.files[0] /x: mode must be a whole number, found text: write it without quotes",
        ),
        (
            "storage: {files: [{path: /x, mode: 1.5}]}",
            "line 2: storage.files[0] /x: mode must be a whole number, found a fraction",
        ),
        (
            "storage: {files: [{path: /x, user: {id: -1}}]}",
            "line 2: storage.files[0] /x: user.id -1 is not a valid user ID: use 0 to 4294967294",
        ),
        (
            "storage: {files: [{path: /x, group: {id: 1, name: a}}]}",
            "line 2: storage.files[0] /x: group has both id and name \"a\": give one of them",
        ),
        (
            "storage: {files: [{path: /x},\n {path: /x}]}",
            "line 3: storage.files[1] /x: the same path is listed twice in storage.files: keep one",
        ),
        (
            "storage: {files: [{path: /x}], directories: [{path: /x}]}",
            "line 2: storage.directories[0] /x: the same path is also in storage.files: keep one",
        ),
        (
            "storage: {files: [{path: /x/y/z}, {path: /x}]}",
            "line 2: storage.files[0] /x/y/z: path is below /x, which is a file: move one of them",
        ),
        (
            "storage: {files: [{path: /x, append: [{source: 'data:,a'}]}]}",
            "line 2: storage.files[0] /x: append is not supported: give the whole contents",
        ),
        (
            "storage: {files: [{path: /x, contents: {source: 'http://a/b'}}]}",
            "line 2: storage.files[0] /x: contents.source has scheme \"http\", which is not fetched: write the contents as a data URL",
        ),
        (
            "storage: {files: [{path: /run/machine-config-daemon-force}]}",
            "line 2: storage.files[0] /run/machine-config-daemon-force: this is the force file, which makes the agent apply everything again: a configuration may not contain it, create it by hand",
        ),
        (
            "storage: {files: [{path: /x, contens: {}}]}",
            "line 2: storage.files[0] /x: unknown key \"contens\" (did you mean \"contents\"?)",
        ),
        (
            "storage: {files: [{path: /x, contents: {sourse: 'data:,'}}]}",
            "line 2: storage.files[0] /x: unknown key \"sourse\" (did you mean \"source\"?)",
        ),
        (
            "storage: {files: [{mode: 420}]}",
            "line 2: storage.files[0]: path is missing",
        ),
        (
            "storage: {files: {path: /x}}",
            "line 2: storage.files: files must be a list, found an object: put it into a list",
        ),
        (
            "storage: {flies: []}",
            "line 2: storage.flies: unknown key \"flies\" (did you mean \"files\"?)",
        ),
        (
            "storage: {disks: [{device: /dev/sda, wipe: true}]}",
            "line 2: storage.disks[0] /dev/sda: unknown key \"wipe\": remove it",
        ),
        (
            "storage: {disks: [{device: /dev/sda}, {device: /dev/sda}]}",
            "line 2: storage.disks[1] /dev/sda: /dev/sda is listed twice in storage.disks: keep one",
        ),
        (
            "kernelArguments: {shouldExist: [a]}",
            "line 2: kernelArguments: kernelArguments needs Ignition 3.3 or later, and this configuration is 3.2: raise ignition.version",
        ),
        (
            "systemd: {units: [{name: a/b.service}]}",
            "line 2: systemd.units[0] a/b.service: name has a slash: give the unit's name, not a path",
        ),
        (
            "systemd: {units: [{name: a.service, dropins: [{name: x, contents: b}]}]}",
            "line 2: systemd.units[0].dropins[0] a.service x: name does not end in .conf: systemd reads no other drop-ins",
        ),
        (
            "systemd: {units: [{name: a.service}, {name: a.service}]}",
            "line 2: systemd.units[1] a.service: the same unit is listed twice: keep one",
        ),
        (
            "systemd: {units: [{name: a.service, dropins: [{name: a.conf, contents: b}, {name: a.conf, contents: c}]}]}",
            "line 2: systemd.units[0].dropins[1] a.service a.conf: the same drop-in is listed twice: keep one",
        ),
        (
            "systemd: {units: [{name: a.service, enable: true}]}",
            "line 2: systemd.units[0] a.service: unknown key \"enable\" (did you mean \"enabled\"?)",
        ),
        (
            "systemd: {units: [{name: a.service, contents: x}]}\nstorage: {files: [{path: /etc/systemd/system/a.service}]}",
            "line 3: storage.files[0] /etc/systemd/system/a.service: the same file is also unit a.service: keep one of them",
        ),
        (
            "passwd: {users: [{name: core}, {name: core}]}",
            "line 2: passwd.users[1] core: core is listed twice in passwd.users: keep one",
        ),
        (
            "passwd: {users: [{name: core, sshAuthorizedKeys: key}]}",
            "line 2: passwd.users[0] core: sshAuthorizedKeys must be a list, found text: put it into a list",
        ),
    ] {
        assert_refused(&config(rest), message);
    }
    assert_refused(
        "ignition: {version: 3.6.0}",
        "line 1: ignition.version: ignition.version \"3.6.0\" is unknown: use 3.5.0 or older (2.2.0 and 3.0.0 to 3.5.0 are supported)",
    );
    assert_refused(
        "ignition: {version: 3.2}",
        "line 1: ignition.version: ignition.version must be text, found a fraction: write \"3.4.0\"",
    );
    assert_refused(
        "ignition: {timeouts: {}}",
        "line 1: ignition: ignition.version is missing: write the version of the specification, for example 3.4.0",
    );
    assert_refused(
        "ignition: {version: 2.2.0}\nstorage: {files: [{path: /x, filesystem: data}]}",
        "line 2: storage.files[0] /x: filesystem \"data\" is not supported: use root",
    );
    assert_refused(
        "ignition: {version: 2.2.0}\nstorage: {files: [{path: /x, filesystem: root, append: true}]}",
        "line 2: storage.files[0] /x: append is not supported: give the whole contents",
    );
}

/// Covers M04.
#[test]
fn all_problems_of_a_file_are_told_in_its_order() {
    let text = "\
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata: {name: a}
spec:
  kernalType: realtime
  config:
    ignition: {version: 3.2.0}
    storage:
      files:
      - path: /etc/x
        mode: 010000
        contents: {source: 'data:;base64,!'}
      - path: relative
    systemd:
      units:
      - name: a
---
kind: Pod
";
    let problems = document::read("worker.yaml", text.as_bytes()).unwrap_err();
    let places: Vec<_> = problems
        .iter()
        .map(|problem| (problem.place.line, problem.place.path.as_str()))
        .collect();
    assert_eq!(
        places,
        [
            (Some(5), "spec.kernalType"),
            (Some(11), "spec.config.storage.files[0].mode"),
            (Some(12), "spec.config.storage.files[0].contents"),
            (Some(13), "spec.config.storage.files[1].path"),
            (Some(16), "spec.config.systemd.units[0]"),
            (Some(18), ""),
        ]
    );
    assert_eq!(problems.category(), "InvalidConfig");
}

/// Covers M05.
#[test]
fn a_script_has_no_place_in_a_configuration() {
    let config = |rest: &str| format!("ignition: {{version: 3.5.0}}\n{rest}\n");
    for rest in [
        "scripts: [a]",
        "storage: {scripts: [a]}",
        "systemd: {commands: [a]}",
    ] {
        let problems = refused(&config(rest));
        assert!(problems[0].contains("unknown key"), "{problems:?}");
    }
}
