//! SSH keys that let somebody in: they stand where the sshd of the machine reads them.

use std::process::{Command, Stdio};

use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::{Doing, Error, Result};

use super::scene::{SOON, Scene, spec};

const SETTINGS: &str = "/etc/ssh/sshd_config.d/10-keys.conf";

/// Changes what sshd does, and waits until it does it.
fn set(scene: &Scene, settings: &str) -> Result<()> {
    scene.node.write(SETTINGS, settings)?;
    let restart = ["systemctl", "restart", "ssh.service"];
    scene.node.run(&restart).map(|_| ())
}

/// The public half of the key that the test bed logs in with.
fn public_key(scene: &Scene) -> Result<String> {
    let derived = Command::new("ssh-keygen")
        .args(["-y", "-f"])
        .arg(scene.node.ssh_key())
        .output()
        .doing(|| "cannot run ssh-keygen")?;
    let key = String::from_utf8_lossy(&derived.stdout).trim().to_owned();
    if key.is_empty() {
        return Err(Error::failed("there is no public key"));
    }
    Ok(key)
}

/// Whom a login as core finds itself to be; nothing if it is not let in.
fn login(scene: &Scene) -> Result<String> {
    let options = [
        "BatchMode=yes",
        "IdentitiesOnly=yes",
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
    ];
    let mut ssh = Command::new("ssh");
    ssh.args(["-F", "none", "-i"]).arg(scene.node.ssh_key());
    for option in options {
        ssh.args(["-o", option]);
    }
    let core = format!("core@{}", scene.node.address());
    let ssh = ssh.args([&core, "id -un"]).stdin(Stdio::null());
    let ended = ssh.output().doing(|| "cannot run ssh")?;
    Ok(String::from_utf8_lossy(&ended.stdout).trim().to_owned())
}

/// Covers O13.
#[tokio::test]
async fn keys_let_core_in_wherever_its_sshd_reads_them() -> Result<()> {
    let Some(scene) = Scene::start("sshkeys").await? else {
        return Ok(());
    };
    let key = public_key(&scene)?;
    set(&scene, "AuthorizedKeysFile /etc/ssh/keys/%u\n")?;
    assert_eq!(login(&scene)?, "", "let in without a key");
    scene.at_rest(spec(&[], &[&key])).await?;
    assert_eq!(login(&scene)?, "core", "{}", scene.log());
    let there = ["stat", "-c", "%U %a", "/etc/ssh/keys/core"];
    assert_eq!(scene.node.run(&there)?, "core 600\n");
    assert!(scene.node.read("/home/core/.ssh/authorized_keys").is_err());

    // Without the keys nobody is let in.
    let without = scene.config("without", spec(&[], &[])).await?;
    scene.desire(&without).await?;
    scene.until_done(&without, SOON).await?;
    assert_eq!(login(&scene)?, "");

    // Somebody moved the place meanwhile: the next configuration goes where sshd reads now.
    set(&scene, "AuthorizedKeysFile .ssh/other_keys\n")?;
    let moved = scene.config("moved", spec(&[], &[&key])).await?;
    scene.desire(&moved).await?;
    scene.until_done(&moved, SOON).await?;
    assert_eq!(login(&scene)?, "core", "{}", scene.log());
    let there = ["stat", "-c", "%U %a", "/home/core/.ssh"];
    assert_eq!(scene.node.run(&there)?, "core 700\n");
    Ok(())
}

/// Covers O13.
#[tokio::test]
async fn a_place_that_nobody_reads_is_refused_and_taken_once_it_is_mended() -> Result<()> {
    let Some(scene) = Scene::start("sshflatcar").await? else {
        return Ok(());
    };
    let key = public_key(&scene)?;
    scene.at_rest(spec(&[], &[])).await?;
    // As on Flatcar.
    let fragments = "/home/core/.ssh/authorized_keys.d";
    scene
        .node
        .write(&format!("{fragments}/people"), "# none\n")?;
    let theirs = ["chown", "-R", "core:core", "/home/core/.ssh"];
    scene.node.run(&theirs)?;
    scene
        .node
        .write("/usr/bin/update-ssh-keys", "#!/bin/sh\n")?;
    let first = scene.config("first", spec(&[], &[&key])).await?;
    scene.desire(&first).await?;
    scene.until_done(&first, SOON).await?;
    assert_eq!(login(&scene)?, "core", "{}", scene.log());
    assert!(scene.node.read("/home/core/.ssh/authorized_keys").is_err());

    // Nothing is left that will do.
    set(&scene, "AuthorizedKeysFile .ssh/authorized_keys\n")?;
    assert_eq!(login(&scene)?, "");
    let new = scene
        .config("new", spec(&[], &[&key, "ssh-ed25519 A"]))
        .await?;
    scene.desire(&new).await?;
    let reason = scene.until_degraded("update-ssh-keys", SOON).await?;
    let cure = reason.split('`').nth(1).unwrap_or_default().to_owned();
    assert!(cure.starts_with("AuthorizedKeysFile "), "{reason}");
    assert!(scene.node.read("/home/core/.ssh/authorized_keys").is_err());
    // The cure that it names, to the letter.
    set(&scene, &format!("{cure}\n"))?;
    scene.until_done(&new, 2 * SOON).await?;
    assert_eq!(login(&scene)?, "core", "{}", scene.log());

    // An sshd that cannot say where it reads is told, and asked again.
    let wrong = "NoSuchSetting yes\n";
    scene.node.write(SETTINGS, wrong)?;
    let newer = scene
        .config("newer", spec(&[], &[&key, "ssh-ed25519 B"]))
        .await?;
    scene.desire(&newer).await?;
    let reason = scene.until_degraded("sshd -T", SOON).await?;
    assert!(reason.contains("NoSuchSetting"), "{reason}");
    set(&scene, &format!("{cure}\n"))?;
    scene.until_done(&newer, 2 * SOON).await?;
    Ok(())
}

/// Covers O13.
#[tokio::test]
async fn a_user_that_only_the_name_service_knows_is_let_in() -> Result<()> {
    let Some(scene) = Scene::start("sshnss").await? else {
        return Ok(());
    };
    let key = public_key(&scene)?;
    let folder = Scratch::new("name-service")?;
    let module = folder.path().join("libnss_evenkeel.so.2");
    let source = folder.path().join("name_service.c");
    std::fs::write(&source, include_str!("name_service.c")).doing(|| "no source")?;
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&module, &source])
        .status()
        .doing(|| "cannot run cc")?;
    assert!(built.success(), "the name service does not compile");
    scene.node.run(&["userdel", "core"])?;
    let place = scene
        .node
        .run(&["sh", "-c", "dirname $(ls /usr/lib/*/libnss_files.so.2)"])?;
    let place = format!("{}/libnss_evenkeel.so.2", place.trim());
    scene.node.install(&module, &place)?;
    scene
        .node
        .write("/srv/users", "core:x:4711:100:Core:/srv/core:/bin/sh\n")?;
    let home = ["install", "-d", "-o", "4711", "-g", "100", "/srv/core"];
    scene.node.run(&home)?;
    let asks = "s/^passwd:.*/passwd: files evenkeel/";
    scene.node.run(&["sed", "-i", asks, "/etc/nsswitch.conf"])?;
    scene
        .node
        .run(&["sh", "-c", "echo 'core:*::0:99999:7:::' >> /etc/shadow"])?;
    scene.node.run(&["systemctl", "restart", "ssh.service"])?;
    assert_eq!(login(&scene)?, "", "let in without a key");
    scene.at_rest(spec(&[], &[&key])).await?;
    assert_eq!(login(&scene)?, "core", "{}", scene.log());
    let there = ["stat", "-c", "%u:%g %a", "/srv/core/.ssh/authorized_keys"];
    assert_eq!(scene.node.run(&there)?, "4711:100 600\n");
    Ok(())
}
