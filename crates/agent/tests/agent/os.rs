//! A changed image or changed arguments of the kernel are staged after the drain, booted, and verified.

use evenkeel_testbed::Result;
use evenkeel_testbed::wait::{Look, until_async};
use serde_json::{Value, json};

use super::scene::{ANSWERED, ASKED, BOOT, CURRENT, SOON, STATE, Scene, says, spec};

const FILE: &str = "/etc/managed";
const OLD: &str = "quay.io/os@sha256:1";
const NEW: &str = "quay.io/os@sha256:2";

/// A configuration with a file, an image and arguments.
fn boots(contents: &str, image: &str, arguments: &[&str]) -> Value {
    let mut spec = spec(&[(FILE, contents)], &[]);
    spec["osImageURL"] = json!(image);
    spec["kernelArguments"] = json!(arguments);
    spec
}

/// A node that boots [`OLD`], with these programs, at a first configuration that says so.
async fn at_rest(name: &str, managers: &[&str]) -> Result<Option<Scene>> {
    let Some(scene) = Scene::start(name).await? else {
        return Ok(None);
    };
    scene
        .node
        .install_os(managers, OLD, &["root=/dev/x", "a=1"])?;
    scene.node.write(FILE, "one\n")?;
    let boot = scene.node.boot_id()?;
    scene.at_rest(boots("one\n", OLD, &["a=1"])).await?;
    assert_eq!(scene.node.boot_id()?, boot, "what is there is adopted");
    Ok(Some(scene))
}

/// Goes to `config` until pods may leave, and lets them.
async fn drain(scene: &Scene, config: &str) -> Result<()> {
    scene.desire(config).await?;
    let request = format!("drain-{config}");
    scene
        .until("a drain to be asked for", SOON, |seen| {
            says(seen, ASKED, &request)
        })
        .await?;
    scene.annotate(ANSWERED, &request).await
}

fn cmdline(scene: &Scene) -> Result<String> {
    scene.node.run(&["cat", "/proc/cmdline"])
}

fn status(scene: &Scene) -> Result<String> {
    scene.node.run(&["rpm-ostree", "status", "--json"])
}

/// Covers M10, M11.
#[tokio::test]
async fn an_image_and_arguments_are_staged_after_the_drain_and_verified_after_the_boot()
-> Result<()> {
    let Some(mut scene) = at_rest("os-stages", &["rpm-ostree", "bootc"]).await? else {
        return Ok(());
    };
    let new = boots("two\n", NEW, &["b", "b", "console=ttyS0"]);
    let new = scene.config("new", new).await?;
    let calls = scene.node.os_calls()?;
    let staged = |calls: &[String]| {
        calls
            .iter()
            .any(|call| call.contains("rebase") || call.contains("kargs -"))
    };
    assert!(!staged(&calls), "staged for nothing: {calls:#?}");
    scene.desire(&new).await?;
    let request = format!("drain-{new}");
    let (seen, _) = scene
        .until("a drain to be asked for", SOON, |seen| {
            says(seen, ASKED, &request)
        })
        .await?;
    let calls = scene.node.os_calls()?;
    assert!(!staged(&calls), "staged before the drain: {calls:#?}");
    let words = format!("os image (is {OLD}, should be {NEW})");
    let reason = &seen["machineconfiguration.openshift.io/reason"];
    assert!(reason.contains(&words), "{reason}");
    let boot = scene.node.boot_id()?;
    scene.annotate(ANSWERED, &request).await?;
    scene.node.wait_for_reboot(&boot)?;
    scene.until_done(&new, BOOT).await?;

    let calls = scene.node.os_calls()?;
    for call in [
        "rpm-ostree rebase ostree-unverified-registry:quay.io/os@sha256:2",
        "rpm-ostree kargs --delete=a=1 --append=b --append=b --append=console=ttyS0",
    ] {
        let times = calls.iter().filter(|other| *other == call).count();
        assert_eq!(times, 1, "{call} in {calls:#?}");
    }
    assert!(cmdline(&scene)?.contains(" root=/dev/x b b console=ttyS0 "));
    assert!(status(&scene)?.contains(NEW));
    assert_eq!(scene.node.read(FILE)?, b"two\n");
    Ok(())
}

/// Covers M10, M11.
#[tokio::test]
async fn bootc_switches_the_image_and_names_what_it_cannot_do() -> Result<()> {
    let Some(mut scene) = at_rest("os-bootc", &["bootc", "ostree"]).await? else {
        return Ok(());
    };
    let base = scene.called("base");
    let beyond = scene.config("beyond", boots("two\n", NEW, &["b"])).await?;
    scene.desire(&beyond).await?;
    let reason = scene.until_degraded("kargs.d", SOON).await?;
    assert!(reason.contains("kernel arguments: is a=1"), "{reason}");
    assert!(says(&scene.annotations().await?, CURRENT, &base));
    assert_eq!(scene.node.read(FILE)?, b"one\n");

    let new = scene.config("new", boots("two\n", NEW, &["a=1"])).await?;
    scene.go_to(&new).await?;
    let calls = scene.node.os_calls()?;
    assert!(
        calls.contains(&format!("bootc switch -- {NEW}")),
        "{calls:#?}"
    );
    Ok(())
}

/// Covers M09, M10.
#[tokio::test]
async fn an_image_that_cannot_be_staged_leaves_files_as_they_were_and_is_tried_again() -> Result<()>
{
    let Some(mut scene) = at_rest("os-fails", &["rpm-ostree"]).await? else {
        return Ok(());
    };
    let new = scene.config("new", boots("two\n", NEW, &["b"])).await?;
    // The arguments come after the image, which must not stay staged either.
    scene.node.fail_os(&["rpm-ostree rebase"])?;
    drain(&scene, &new).await?;
    let reason = scene.until_degraded("was told to fail", SOON).await?;
    assert!(
        reason.contains("os image failed; all changes were undone"),
        "{reason}"
    );
    assert_eq!(scene.node.read(FILE)?, b"one\n");
    assert!(!status(&scene)?.contains(NEW));
    let boot = scene.node.boot_id()?;
    scene.node.fail_os(&[])?;
    scene.node.wait_for_reboot(&boot)?;
    scene.until_done(&new, BOOT).await?;
    assert!(cmdline(&scene)?.contains(" b "));
    Ok(())
}

/// Covers M11.
#[tokio::test]
async fn a_machine_that_boots_another_image_is_degraded_with_both_names() -> Result<()> {
    let Some(mut scene) = at_rest("os-stubborn", &["rpm-ostree"]).await? else {
        return Ok(());
    };
    let new = scene.config("new", boots("two\n", NEW, &["a=1"])).await?;
    scene.node.boot_stubbornly(true)?;
    drain(&scene, &new).await?;
    let reason = scene.until_degraded(NEW, BOOT).await?;
    assert!(
        reason.contains(&format!("os image: {OLD} is booted, should be {NEW}")),
        "{reason}"
    );
    assert!(reason.contains(&new), "{reason}");
    // Whoever boots the right one is done, and needs no annotation for it.
    scene.node.boot_stubbornly(false)?;
    scene.node.reboot()?;
    scene.until_done(&new, BOOT).await?;
    Ok(())
}

/// Covers M10.
#[tokio::test]
async fn without_anything_that_stages_a_node_is_degraded_until_there_is() -> Result<()> {
    let Some(mut scene) = Scene::start("os-none").await? else {
        return Ok(());
    };
    let base = scene.at_rest(spec(&[], &["ssh-ed25519 A"])).await?;
    let new = scene.config("new", boots("two\n", NEW, &["b"])).await?;
    scene.desire(&new).await?;
    let reason = scene
        .until_degraded("neither rpm-ostree nor bootc", SOON)
        .await?;
    assert!(
        reason.contains("os image") && reason.contains("kernel arguments"),
        "{reason}"
    );
    let seen = scene.annotations().await?;
    assert!(says(&seen, CURRENT, &base), "{seen:#?}");
    assert_eq!(seen.get(ASKED), None, "a drain for nothing");
    assert!(scene.node.read(FILE).is_err());
    scene
        .node
        .install_os(&["rpm-ostree"], OLD, &["root=/dev/x"])?;
    let request = format!("drain-{new}");
    let what = "the node to notice";
    scene
        .until(what, BOOT, |seen| says(seen, ASKED, &request))
        .await?;
    let boot = scene.node.boot_id()?;
    scene.annotate(ANSWERED, &request).await?;
    scene.node.wait_for_reboot(&boot)?;
    scene.until_done(&new, BOOT).await?;
    Ok(())
}

/// Covers M09.
#[tokio::test]
async fn an_image_that_a_power_cut_took_away_is_staged_again() -> Result<()> {
    let Some(mut scene) = at_rest("os-cut", &["rpm-ostree"]).await? else {
        return Ok(());
    };
    let new = scene.config("new", boots("two\n", NEW, &["b"])).await?;
    // Everything is staged and written, and then it cannot go down in good order.
    scene
        .node
        .run(&["systemctl", "mask", "--runtime", "reboot.target"])?;
    drain(&scene, &new).await?;
    scene.until_degraded("cannot reboot", BOOT).await?;
    assert!(status(&scene)?.contains(NEW), "nothing is staged");
    let boot = scene.node.boot_id()?;
    scene.node.cut()?;
    scene.node.boot_again()?;
    assert_ne!(scene.node.boot_id()?, boot);
    scene.until_done(&new, BOOT).await?;
    let calls = scene.node.os_calls()?;
    let rebases = calls.iter().filter(|it| it.contains("rebase")).count();
    assert_eq!(rebases, 2, "{calls:#?}");
    assert!(cmdline(&scene)?.contains(" b "));
    assert_eq!(scene.node.read(FILE)?, b"two\n");
    Ok(())
}

/// Covers M08, M11.
#[tokio::test]
async fn a_unit_that_systemd_takes_otherwise_than_declared_is_degraded_at_start() -> Result<()> {
    let Some(scene) = Scene::start("os-units").await? else {
        return Ok(());
    };
    let unit = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n";
    scene
        .node
        .write("/usr/lib/systemd/system/theirs.service", unit)?;
    scene.node.run(&["systemctl", "enable", "theirs.service"])?;
    let units = json!({ "config": {
        "ignition": { "version": "3.4.0" },
        "systemd": { "units": [{ "name": "theirs.service", "enabled": true }] },
    }});
    let base = scene.at_rest(units).await?;
    // Everything is as declared on disk, and yet it will not start.
    scene
        .node
        .run(&["systemctl", "mask", "--runtime", "theirs.service"])?;
    scene
        .node
        .run(&["systemctl", "restart", "evenkeel-agent.service"])?;
    let reason = scene.until_degraded("theirs.service", SOON).await?;
    assert!(
        reason.contains("systemd reports masked-runtime, should be enabled"),
        "{reason}"
    );
    scene
        .node
        .run(&["systemctl", "unmask", "--runtime", "theirs.service"])?;
    let seen = scene.until_done(&base, BOOT).await?;
    assert!(says(&seen, STATE, "Done"));
    Ok(())
}

/// Covers M10.
#[tokio::test]
async fn an_agent_in_a_container_stages_on_the_machine_and_not_in_the_container() -> Result<()> {
    let Some(mut scene) = Scene::start("os-mounted").await? else {
        return Ok(());
    };
    scene
        .node
        .install_os(&["rpm-ostree"], OLD, &["root=/dev/x"])?;
    scene.mount_the_root()?;
    // What is staged is kept in the machine's /run, which the container has not.
    scene.at_rest(spec(&[], &["ssh-ed25519 A"])).await?;
    let new = scene.config("new", boots("two\n", NEW, &["b"])).await?;
    scene.go_to(&new).await?;
    assert!(status(&scene)?.contains(NEW));
    assert!(cmdline(&scene)?.contains(" b "));
    Ok(())
}

/// Covers O11.
#[tokio::test]
async fn another_driver_of_updates_is_named_before_a_drain_and_bypassed_by_choice() -> Result<()> {
    let Some(mut scene) = at_rest("os-driver", &["rpm-ostree"]).await? else {
        return Ok(());
    };
    scene.node.let_drive("Zincati", "zincati.service")?;
    let new = scene.config("new", boots("two\n", NEW, &["a=1"])).await?;
    scene.desire(&new).await?;
    let reason = scene.until_degraded("Zincati drives", SOON).await?;
    for part in [
        "os image: is",
        "systemctl disable --now zincati.service",
        "--bypass-driver",
    ] {
        assert!(reason.contains(part), "{reason}");
    }
    let seen = scene.annotations().await?;
    assert_eq!(seen.get(ASKED), None, "a drain for nothing");
    assert_eq!(scene.node.read(FILE)?, b"one\n");

    scene.start_with(&["--bypass-driver"])?;
    let boot = scene.node.boot_id()?;
    drain(&scene, &new).await?;
    scene.node.wait_for_reboot(&boot)?;
    scene.until_done(&new, BOOT).await?;
    let bypassing = format!("rpm-ostree rebase --bypass-driver ostree-unverified-registry:{NEW}");
    let calls = scene.node.os_calls()?;
    assert!(calls.contains(&bypassing), "{calls:#?}");
    Ok(())
}

/// Covers O11.
#[tokio::test]
async fn an_image_is_the_same_however_its_reference_is_written() -> Result<()> {
    let Some(mut scene) = at_rest("os-forms", &["rpm-ostree"]).await? else {
        return Ok(());
    };
    let boot = scene.node.boot_id()?;
    for (name, form) in [
        ("signed", "ostree-image-signed:docker://"),
        ("remote", "ostree-remote-image:fedora:docker://"),
        ("registry", "ostree-unverified-registry:"),
    ] {
        let spec = boots("one\n", &format!("{form}{OLD}"), &["a=1"]);
        let same = scene.config(name, spec).await?;
        scene.desire(&same).await?;
        scene.until_done(&same, SOON).await?;
    }
    assert_eq!(scene.node.boot_id()?, boot, "a boot for another word");
    let signed = format!("ostree-image-signed:docker://{NEW}");
    let new = scene
        .config("new", boots("two\n", &signed, &["a=1"]))
        .await?;
    scene.go_to(&new).await?;
    let staged = format!("rpm-ostree rebase {signed}");
    assert!(scene.node.os_calls()?.contains(&staged));
    // Who verifies it is part of the reference that is booted, and the image is the same.
    let plain = scene.config("plain", boots("two\n", NEW, &["a=1"])).await?;
    let boot = scene.node.boot_id()?;
    scene.desire(&plain).await?;
    scene.until_done(&plain, SOON).await?;
    assert_eq!(scene.node.boot_id()?, boot);
    Ok(())
}

/// Covers O11.
#[tokio::test]
async fn the_logins_of_the_kubelet_reach_whoever_pulls_images() -> Result<()> {
    let Some(mut scene) = at_rest("os-login", &["rpm-ostree"]).await? else {
        return Ok(());
    };
    scene.node.ask_for_login("quay.io-token")?;
    let without = scene
        .config("without", boots("two\n", NEW, &["a=1"]))
        .await?;
    drain(&scene, &without).await?;
    scene
        .until_degraded("authentication required", SOON)
        .await?;
    assert_eq!(scene.node.read(FILE)?, b"one\n");

    let secret = "{\"auths\":{\"quay.io-token\":{}}}";
    let files = [(FILE, "two\n"), ("/var/lib/kubelet/config.json", secret)];
    let mut with = spec(&files, &[]);
    with["osImageURL"] = json!(NEW);
    with["kernelArguments"] = json!(["a=1"]);
    let with = scene.config("with", with).await?;
    scene.go_to(&with).await?;
    assert!(status(&scene)?.contains(NEW));
    Ok(())
}

/// Covers O12.
#[tokio::test]
async fn staging_has_the_machines_proxy_and_outlives_the_agent() -> Result<()> {
    let Some(mut scene) = at_rest("os-outside", &["rpm-ostree"]).await? else {
        return Ok(());
    };
    let proxy = "https_proxy=http://proxy.example.com:3128\n";
    scene.node.write("/etc/environment", proxy)?;
    scene.mount_the_root()?;
    scene.node.hold_os(true)?;
    let new = scene.config("new", boots("two\n", NEW, &["a=1"])).await?;
    drain(&scene, &new).await?;
    until_async("the image to be pulled", SOON, async || {
        // Nobody has changed anything before.
        let changes = scene.node.os_changes().unwrap_or_default();
        Ok(if changes.iter().any(|it| it.contains("rebase")) {
            Look::Found(())
        } else {
            Look::NotYet(format!("{changes:?}"))
        })
    })
    .await?;
    let boot = scene.node.boot_id()?;
    let kill = [
        "systemctl",
        "kill",
        "--signal=KILL",
        "evenkeel-agent.service",
    ];
    scene.node.run(&kill)?;
    let active = ["systemctl", "is-active", "evenkeel-os.service"];
    assert_eq!(scene.node.run(&active)?.trim(), "active");
    scene.node.hold_os(false)?;
    scene.node.wait_for_reboot(&boot)?;
    scene.until_done(&new, BOOT).await?;
    let changes = scene.node.os_changes()?;
    let rebases: Vec<_> = changes.iter().filter(|it| it.contains("rebase")).collect();
    let expected =
        "rpm-ostree rebase: /system.slice/evenkeel-os.service proxy=http://proxy.example.com:3128";
    assert_eq!(rebases, [expected]);
    Ok(())
}

/// Covers O12.
#[tokio::test]
async fn a_transaction_of_somebody_else_is_waited_for() -> Result<()> {
    let Some(mut scene) = at_rest("os-busy", &["rpm-ostree"]).await? else {
        return Ok(());
    };
    scene.node.keep_os_busy(true)?;
    let new = scene.config("new", boots("two\n", NEW, &["a=1"])).await?;
    drain(&scene, &new).await?;
    scene
        .until_degraded("Transaction in progress: upgrade", SOON)
        .await?;
    assert_eq!(scene.node.read(FILE)?, b"one\n");
    let boot = scene.node.boot_id()?;
    scene.node.keep_os_busy(false)?;
    scene.node.wait_for_reboot(&boot)?;
    scene.until_done(&new, BOOT).await?;
    Ok(())
}

/// Covers O12.
#[tokio::test]
async fn what_another_image_brings_is_no_drift() -> Result<()> {
    let Some(mut scene) = at_rest("os-etc", &["rpm-ostree"]).await? else {
        return Ok(());
    };
    scene
        .node
        .let_bring(&[(OLD, FILE, "one"), (NEW, FILE, "theirs")])?;
    let new = scene.config("new", boots("one\n", NEW, &["a=1"])).await?;
    scene.go_to(&new).await?;
    assert_eq!(scene.node.read(FILE)?, b"one\n");
    let healed = scene.events().await?;
    let healed = healed.iter().find(|it| it.0 == "ConfigDriftHealed");
    assert!(healed.is_some_and(|it| it.1.contains(FILE)), "{healed:?}");
    // What drifts later is drift.
    scene.node.write(FILE, "drifted\n")?;
    scene.until_degraded(FILE, SOON).await?;
    Ok(())
}
