//! A machine that somebody else provisioned and ours takes over: with sections that cannot change on a running
//! machine, which were decided then.

use std::time::Duration;

use evenkeel_api::names::linux::OWN_STATE;
use evenkeel_host::disk::{Disk, Host};
use evenkeel_host::execute::{Claim, State};
use evenkeel_host::linux::LinuxHost;
use evenkeel_plan::machine::provision::Provision;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::{Doing, Result};
use serde_json::{Value, json};

use super::scene::{ANSWERED, ASKED, CURRENT, SOON, STATE, Scene, says, spec};

const FILE: &str = "/etc/theirs.conf";
const DAEMON: &str = "/etc/machine-config-daemon";
/// How long nothing may happen after a node is done.
const QUIET: Duration = Duration::from_secs(2);

/// A configuration with one of everything that cannot change.
fn provisioned(device: &str) -> Value {
    let mut spec = spec(&[(FILE, "theirs\n")], &[]);
    spec["config"]["storage"]["disks"] = json!([{ "device": device, "wipeTable": true }]);
    spec["config"]["passwd"]["users"] = json!([
        { "name": "core", "passwordHash": "$6$x" }, { "name": "admin", "groups": ["wheel"] },
    ]);
    spec["fips"] = json!(true);
    spec["kernelType"] = json!("realtime");
    spec["extensions"] = json!(["usbguard"]);
    spec
}

/// Every file of the machine that is not ours, with its inode and when it was changed.
fn machine(scene: &Scene) -> Result<String> {
    let list = "find /etc /usr/local /home /var/lib/kubelet -xdev -not -path '/etc/machine-config-daemon*' \
        -printf '%p %i %m %u %g %s %C@\\n' 2>/dev/null | sort; true";
    scene.node.run(&["sh", "-c", list])
}

/// Goes to a first configuration, and finds that nothing was asked for and nothing was touched.
async fn is_adopted(scene: &Scene, config: &str) -> Result<()> {
    let (before, boot) = (machine(scene)?, scene.node.boot_id()?);
    assert!(before.contains(FILE), "{before}");
    scene.desire(config).await?;
    scene.until_done(config, SOON).await?;
    let quiet = scene.stays(QUIET, |seen| says(seen, STATE, "Done"));
    quiet.await?;
    let seen = scene.annotations().await?;
    assert_eq!(
        (seen.get(ASKED), seen.get(ANSWERED)),
        (None, None),
        "a drain"
    );
    assert_eq!(scene.node.boot_id()?, boot, "it was booted");
    assert_eq!(machine(scene)?, before, "something was touched");
    Ok(())
}

/// Covers O06.
#[tokio::test]
async fn a_node_of_the_machine_config_daemon_is_adopted_and_its_sections_stay_as_they_are()
-> Result<()> {
    let Some(scene) = Scene::start("adopted").await? else {
        return Ok(());
    };
    // As that daemon leaves a node: the file that it wrote, and what it last brought the machine to.
    scene.node.write(FILE, "theirs\n")?;
    scene.node.run(&["chmod", "644", FILE])?;
    let current =
        json!({ "metadata": { "name": "rendered-worker-1" }, "spec": provisioned("/dev/sda") });
    scene.node.run(&["mkdir", "-p", DAEMON])?;
    scene
        .node
        .write(&format!("{DAEMON}/currentconfig"), current.to_string())?;
    let first = scene.config("first", provisioned("/dev/sda")).await?;
    is_adopted(&scene, &first).await?;
    let told = "MachineConfig rendered-worker-1 (/etc/machine-config-daemon/currentconfig)";
    scene.until_told("MachineAdopted", told, SOON).await?;

    // From then on such a change is refused, by name.
    let second = scene.config("second", provisioned("/dev/sdb")).await?;
    scene.desire(&second).await?;
    let reason = scene.until_degraded("storage.disks /dev/sdb", SOON).await?;
    assert!(
        reason.contains("storage.disks /dev/sda: is gone"),
        "{reason}"
    );
    assert!(says(&scene.annotations().await?, CURRENT, &first));
    scene.desire(&first).await?;
    scene.until_done(&first, SOON).await?;
    Ok(())
}

/// Covers O06.
#[tokio::test]
async fn a_machine_that_has_only_the_name_of_it_is_adopted_from_the_clusters_machine_config()
-> Result<()> {
    let Some(scene) = Scene::start("named").await? else {
        return Ok(());
    };
    scene.node.write(FILE, "theirs\n")?;
    scene.node.run(&["chmod", "644", FILE])?;
    let theirs = scene.config("theirs", provisioned("/dev/sda")).await?;
    // As the first boot leaves it: everything but the Ignition config, which is where the disks are.
    let mut boxed = provisioned("/dev/sda");
    boxed["config"] = json!({ "ignition": { "version": "3.4.0" } });
    let boxed = json!({ "metadata": { "name": theirs }, "spec": boxed });
    let place = "/etc/ignition-machine-config-encapsulated.json.bak";
    scene.node.write(place, boxed.to_string())?;

    let other = scene.config("other", provisioned("/dev/sdb")).await?;
    scene.desire(&other).await?;
    let reason = scene.until_degraded("storage.disks /dev/sdb", SOON).await?;
    let from = format!("it was provisioned from MachineConfig {theirs} (in the cluster)");
    assert!(reason.contains(&from), "{reason}");
    scene.until_told("MachineAdopted", &theirs, SOON).await?;
    // It is remembered: the object may go.
    scene.delete_config("theirs").await?;
    let first = scene.config("first", provisioned("/dev/sda")).await?;
    is_adopted(&scene, &first).await
}

/// Covers O06.
#[tokio::test]
async fn a_machine_that_nobody_vouches_for_says_what_adopts_it() -> Result<()> {
    let Some(scene) = Scene::start("unvouched").await? else {
        return Ok(());
    };
    scene.node.write(FILE, "theirs\n")?;
    scene.node.run(&["chmod", "644", FILE])?;
    let first = scene.config("first", provisioned("/dev/sda")).await?;
    scene.desire(&first).await?;
    let reason = scene.until_degraded("passwd.users admin", SOON).await?;
    assert!(
        reason.contains("run `evenkeel adopt -f FILE` on it"),
        "{reason}"
    );
    assert_eq!(
        scene.annotations().await?.get(ASKED),
        None,
        "a drain for nothing"
    );

    // What `evenkeel adopt` writes next to the agent that runs.
    let scratch = Scratch::new("adopt")?;
    let host = LinuxHost::offline(scratch.path()).doing(|| "cannot open a tree")?;
    let state = State::at(OWN_STATE);
    let said = json!({ "spec": provisioned("/dev/sda") }).to_string();
    let said = Provision::read("provision", said.as_bytes()).doing(|| "no such provision")?;
    let claim = Claim::take(&host, &state).doing(|| "cannot claim a tree")?;
    assert!(claim.adopt(&said).doing(|| "cannot adopt a tree")?);
    let record = format!("{OWN_STATE}/record");
    let text = host
        .disk()
        .read(&record)
        .doing(|| "cannot read the record")?;
    scene.node.write(&record, text.unwrap_or_default())?;
    scene.until_done(&first, Duration::from_mins(1)).await?;
    Ok(())
}
