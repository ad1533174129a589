//! What goes wrong on a Windows node is told with its field and its cure, and the rest keeps working.

use std::time::{Duration, Instant, SystemTime};

use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::windows_instance::windows_unit_tests;
use evenkeel_testbed::{Doing, Error, Result};
use serde_json::{Value, json};

use super::scene::{AGENT, SOON, STATE, Scene};

/// Whoever is a kubelet is in this group.
const KUBELETS: &str = "--as-group=system:nodes";

fn as_kubelet(scene: &Scene) -> String {
    format!("--as=system:node:{}", scene.name)
}

const DOUBLE: &str = r"C:\k\service-double.exe";

fn service(name: &str, command: &str, priority: u32) -> Value {
    json!({"name": name, "command": command, "bootstrap": false, "priority": priority})
}

/// Covers H25, H28, S09.
#[test]
fn one_bad_service_is_told_and_the_others_run() -> Result<()> {
    let Some(scene) = Scene::start("win-trouble")? else {
        return Ok(());
    };
    let write = |path: &str, text: &str| {
        let path = scene.instance.path(path)?;
        std::fs::write(path, text).doing(|| "cannot write a script")
    };
    write(r"C:\k\good.ps1", "Write-Output 'value'")?;
    write(r"C:\k\hangs.ps1", "Start-Sleep -Seconds 3600")?;
    write(r"C:\k\two.ps1", "Write-Output 'a'\nWrite-Output 'b'")?;
    write(r"C:\k\fails.ps1", "throw 'no network'")?;
    let scripted = |name: &str, priority: u32| {
        let mut it = service(name, &format!("{DOUBLE} --value OUT"), priority);
        it["powershellVariablesinCommand"] =
            json!([{"name": "OUT", "path": format!(r"C:\k\{name}.ps1")}]);
        it
    };
    let mut lost = service("lost", &format!("{DOUBLE} --x FIELD"), 9);
    lost["nodeVariablesinCommand"] = json!([{"name": "FIELD", "jsonPathNodeObject": "{.metadata.annotations.example\\.com/field}"}]);
    let mut lied = service("lied", &format!("{DOUBLE} --x LIE"), 11);
    lied["nodeVariablesinCommand"] =
        json!([{"name": "LIE", "jsonPathNodeObject": "{.metadata.annotations.example\\.com/lie}"}]);
    let mut lonely = service("lonely", DOUBLE, 10);
    lonely["dependencies"] = json!(["no-such-service"]);
    let more = json!([
        service("dies", &format!("{DOUBLE} --die 7"), 3),
        scripted("good", 4),
        scripted("hangs", 5),
        scripted("two", 6),
        scripted("fails", 7),
        lost,
        lied,
        lonely,
    ]);
    let hash = scene.publish(&scene.data_with("", &json!([]), &more)?)?;
    refused_arguments(&scene)?;
    scene.bootstrap()?;
    let install = [AGENT, "service", "install", "--script-timeout", "20"];
    scene.instance.ask(&install)?;
    scene.tell(&hash)?;
    // A script that hangs holds nobody up.
    scene.until_runs("network", SOON)?;
    scene.until_runs("good", SOON)?;
    let command = scene.value(&format!(r"{}\good", super::SERVICES), "ImagePath")?;
    assert!(command.is_some_and(|it| it.contains("--value value")));
    let hangs = r"service hangs: OUT has no value: cannot run script C:\k\hangs.ps1: ";
    for words in [
        hangs,
        r"service two: OUT has no value: cannot run script C:\k\two.ps1: the script printed more than one line",
        r"service fails: OUT has no value: cannot run script C:\k\fails.ps1: the script ended with exit code: 1: no network",
        r"service lost: FIELD has no value: the Node has no {.metadata.annotations.example\.com/field} yet",
    ] {
        scene.until_told("ServicesIncomplete", words)?;
    }
    scene.until_told(
        "DriftHealFailed",
        "cannot start service no-such-service: the service does not exist",
    )?;
    // The Node itself says so, too, for whoever decides about others.
    scene.until_annotation(STATE, "Degraded", SOON)?;
    assert_eq!(scene.annotation(super::VERSION)?, None, "it is not done");
    assert_eq!(scene.node()?["spec"]["unschedulable"], true);

    // Started again with back-off, and told with its exit code and how often; the others live on.
    let kubelet = scene.instance.path(r"C:\k\kubelet-double.json")?;
    let started = || {
        let at = kubelet.metadata().and_then(|it| it.modified());
        at.doing(|| "the kubelet has not run")
    };
    let before = started()?;
    let note = scene.until_told("DriftFought", "service dies: ended by itself with code 7")?;
    println!("proof: {note}");
    assert!(note.contains("times in a row"), "{note}");
    assert_eq!(started()?, before, "the kubelet was started again");
    for good in ["containerd", "kubelet", "network", "good"] {
        assert_eq!(scene.state(good), "Running", "{good}");
    }

    // A value that its kubelet writes cannot change the command: it is told, and nothing is started.
    let lie = r#"example.com/lie=a" --die "7"#;
    scene.kubectl(&[
        "annotate",
        "node",
        &scene.name,
        lie,
        &as_kubelet(&scene),
        KUBELETS,
    ])?;
    let note = scene.until_told(
        "ServicesIncomplete",
        r"service lied: LIE has no value: {.metadata.annotations.example\.com/lie} of the Node has a quote",
    )?;
    assert!(note.contains("give that field a plain value"), "{note}");
    assert_ne!(scene.state("lied"), "Running");
    let nothing = scene.value(&format!(r"{}\lied", super::SERVICES), "ImagePath")?;
    assert_eq!(nothing, None);

    // A value that comes later is used at once.
    let field = "example.com/field=here";
    scene.kubectl(&["annotate", "node", &scene.name, field])?;
    scene.until_runs("lost", SOON)?;
    away(&scene)?;
    refused_contents(&scene)?;
    logs(&scene)
}

/// Without the API server the last known state is kept, and told when it is back.
fn away(scene: &Scene) -> Result<()> {
    scene.proxy.refuse();
    scene.proxy.cut();
    // The agent itself starts without it, too.
    scene.kill_agent()?;
    scene.start_agent()?;
    for (what, on) in [
        ("stop", "network"),
        ("set", "EK_ABSENT"),
        ("tamper", DOUBLE),
    ] {
        let took = scene.meddle(what, on)?;
        println!("proof: without the API server, {what} {on} was put back after {took} ms");
    }
    scene.proxy.accept();
    let words = "environment variable EK_ABSENT: should not be there";
    scene.until_told("DriftHealed", words).map(|_| ())
}

/// Arguments and surroundings that will not do: one line each, which names what is wrong.
fn refused_arguments(scene: &Scene) -> Result<()> {
    let version = scene.version.as_str();
    let login = r"C:\k\login";
    let no_node = "--node-timeout=1";
    for (words, said) in [
        (
            vec!["bootstrap", "--desired-version", version],
            "--kubeconfig",
        ),
        (
            vec![
                "bootstrap",
                "--desired-version",
                version,
                "--kubeconfig",
                r"C:\k\none",
            ],
            r"C:\k\none",
        ),
        (
            vec![
                "bootstrap",
                "--desired-version",
                "1.2",
                "--kubeconfig",
                login,
            ],
            "1.2.3-abc1234",
        ),
        (
            vec![
                "bootstrap",
                "--desired-version",
                "9.9.9-abc1234",
                "--kubeconfig",
                login,
                no_node,
            ],
            "ConfigMap evenkeel/services-9-9-9-abc1234 does not exist",
        ),
        (
            vec!["trust", "sync", r"C:\k\none.pem"],
            r"file C:\k\none.pem does not exist",
        ),
        (
            vec!["trust", "sync", r"C:\k\good.ps1"],
            "no certificate found",
        ),
        (
            vec!["controller", "--windows-service"],
            "sc start evenkeel-agent",
        ),
    ] {
        let output = scene.instance.run(&[&[AGENT], &words[..]].concat())?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{words:?}");
        assert!(errors.contains(said), "{words:?}: {errors}");
    }
    Ok(())
}

/// A ConfigMap that does not hold is told with its field, and nothing of it is applied.
fn refused_contents(scene: &Scene) -> Result<()> {
    let good = scene.data("", &json!([]))?;
    for (key, value, words) in [
        ("services", None, "services"),
        ("extra", Some("[]"), "extra"),
        ("files", Some("[{"), "files"),
        (
            "services",
            Some(r#"[{"name": "a/b", "command": "x", "bootstrap": true, "priority": 0}]"#),
            "a/b",
        ),
        (
            "services",
            Some(r#"[{"name": "open", "command": "\"x", "bootstrap": true, "priority": 0}]"#),
            "open",
        ),
    ] {
        let mut data = good.clone();
        match value {
            Some(value) => _ = data.insert(key.to_owned(), value.to_owned()),
            None => _ = data.remove(key),
        }
        scene.put_configmap(&data)?;
        // Some other hash than the one that is kept.
        scene.tell(&format!("{key}-{}", value.map_or(0, str::len)))?;
        scene.until_told("InvalidConfig", words)?;
    }
    assert_eq!(scene.state("network"), "Running");
    Ok(())
}

/// The agent's logs are files, bundled by one command.
fn logs(scene: &Scene) -> Result<()> {
    assert!(scene.log().contains("DriftHealed"), "{}", scene.log());
    let line = format!(r"{AGENT} logs > C:\k\logs.tar.gz");
    let ended = scene.instance.cmd(&line)?;
    assert!(ended.status.success(), "{ended:?}");
    let file = scene.instance.path(r"C:\k\logs.tar.gz")?;
    let listed = std::process::Command::new("tar")
        .arg("tzf")
        .arg(&file)
        .output()
        .doing(|| "no tar")?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(
        listed.contains("agent.log") && listed.contains("inspect.json"),
        "{listed}"
    );
    Ok(())
}

/// Why `bootstrap` does not do it.
fn refused_bootstrap(scene: &Scene, more: &[&str]) -> Result<String> {
    let words = [
        AGENT,
        "bootstrap",
        "--desired-version",
        &scene.version,
        "--kubeconfig",
        r"C:\k\login",
    ];
    let output = scene.instance.run(&[&words[..], more].concat())?;
    assert!(!output.status.success(), "{output:?}");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// There is no Node of this machine's name, as long as the kubelet has not made one; what is in place stays.
fn orphan(scene: &Scene) -> Result<()> {
    let mut data = scene.data("", &json!([]))?;
    let services = data.entry("services".to_owned()).or_default();
    *services = services.replace(
        "kubelet-double.exe --kubeconfig",
        "service-double.exe --kubeconfig",
    );
    scene.put_configmap(&data)?;
    let said = refused_bootstrap(scene, &["--node-timeout=3"])?;
    let expected = format!(
        "there is no Node {}, or it has another internal address than this machine ([{}",
        scene.name,
        scene.instance.address()
    );
    assert!(
        said.contains("no Node for this machine after 3s") && said.contains(&expected),
        "{said}"
    );
    assert_eq!(scene.state("kubelet"), "Running");
    Ok(())
}

/// Two Nodes with this machine's address: nobody guesses.
fn twins(scene: &Scene) -> Result<()> {
    let twin = format!("{}-twin", scene.name);
    let file = scene.instance.folder().join("twin.json");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": twin}});
    std::fs::write(&file, node.to_string()).doing(|| "cannot write")?;
    scene.kubectl(&["create", "-f", &file.display().to_string()])?;
    let address = scene.instance.address();
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
    let patch = [
        "patch",
        "node",
        &twin,
        "--subresource=status",
        "--type=merge",
        "-p",
    ];
    scene.kubectl(&[&patch[..], &[&status.to_string()]].concat())?;
    let said = refused_bootstrap(scene, &[])?;
    let expected = format!(
        "several Nodes have an internal address of this machine ({}, {twin})",
        scene.name
    );
    assert!(said.contains(&expected), "{said}");
    // What is there already stays as it is.
    assert_eq!(scene.state("network"), "Running");
    scene.kubectl(&["delete", "node", &twin]).map(|_| ())
}

/// Covers H24.
#[test]
fn an_agent_that_is_told_to_stop_does_and_one_that_cannot_start_says_why() -> Result<()> {
    let Some(scene) = Scene::start("win-service")? else {
        return Ok(());
    };
    let units = windows_unit_tests("evenkeel-agent", &["--bin", "evenkeel-agent"])?;
    scene.instance.install(&units, r"C:\k\units.exe")?;
    let said = scene.instance.ask(&[r"C:\k\units.exe", "windows::"])?;
    assert!(
        said.contains("test result: ok") && !said.contains("running 0"),
        "{said}"
    );
    orphan(&scene)?;
    let data = scene.data("", &json!([]))?;
    scene.at_rest(&data)?;
    let start = Instant::now();
    scene
        .instance
        .ask(&["windows-probe", "service", "stop", "evenkeel-agent"])?;
    until("the agent to stop", Duration::from_secs(30), || {
        Ok(match scene.state("evenkeel-agent") {
            state if state == "Stopped" => Look::Found(()),
            other => Look::NotYet(other),
        })
    })
    .map_err(|error| Error::failed(format!("{error}\n{}", scene.log())))?;
    println!(
        "proof: the agent's service stopped after {:?}",
        start.elapsed()
    );
    assert_eq!(scene.agent_process()?, None);
    assert_eq!(scene.state("network"), "Running");

    // A login is renewed before it ends, and the agent goes on with the new one.
    let now = SystemTime::now();
    let ends = now + Duration::from_secs(25);
    scene.log_in_until(now - Duration::from_mins(5)..ends)?;
    let old = scene.login()?;
    scene.start_agent()?;
    until("another login", SOON, || {
        scene.approve()?;
        Ok(if scene.login()? == old {
            Look::NotYet("the old one".to_owned())
        } else {
            Look::Found(())
        })
    })
    .map_err(|error| Error::failed(format!("{error}\n{}", scene.log())))?;
    until("the end of the old login", SOON, || {
        let left = ends.duration_since(SystemTime::now());
        Ok(left.map_or(Look::Found(()), |left| Look::NotYet(format!("{left:?}"))))
    })?;
    let data = scene.data("--renewed", &json!([]))?;
    let hash = scene.publish(&data)?;
    scene.tell(&hash)?;
    scene.until_annotation(super::CURRENT, &hash, SOON)?;
    scene.until_told("ServicesDone", &hash)?;

    twins(&scene)?;

    // One that cannot even start says so where a machine's troubles are looked for.
    scene
        .instance
        .ask(&["windows-probe", "service", "stop", "evenkeel-agent"])?;
    std::fs::write(scene.instance.path(r"C:\k\state\kubeconfig")?, "{").doing(|| "cannot write")?;
    until("the agent to stop", Duration::from_secs(30), || {
        Ok(match scene.agent_process()? {
            None => Look::Found(()),
            Some(process) => Look::NotYet(format!("process {process}")),
        })
    })?;
    scene.start_agent().ok();
    until("its last words", SOON, || {
        let log = scene.log();
        Ok(if log.contains("kubeconfig") && log.contains("ERROR") {
            Look::Found(())
        } else {
            Look::NotYet(log)
        })
    })
}
