//! The payload: sealed, held to its manifest, and refused by the name of the file.

use std::path::Path;
use std::process::Output;

use evenkeel_api::windows::windows_pool::condition;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::{Doing, Result, need};

use super::bed::{Bed, fill, seal, worker_ignition};

fn said(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

fn write(folder: &Path, file: &str, contents: &str) -> Result<()> {
    let path = folder.join(file);
    std::fs::write(path, contents).doing(|| format!("cannot write {file}"))
}

/// Covers H08.
#[test]
fn a_payload_is_sealed_as_this_version_and_not_if_something_is_wrong_with_it() -> Result<()> {
    let scratch = Scratch::new("seal")?;
    let folder = scratch.path().join("payload");
    fill(&folder)?;
    let sealed = seal(&folder, &[])?;
    assert!(sealed.status.success(), "{}", said(&sealed));
    let own = evenkeel_api::windows::version::Version::from_config_map_name;
    let manifest = std::fs::read_to_string(folder.join("manifest.yaml"));
    let manifest = manifest.doing(|| "there is no manifest")?;
    let version = manifest.lines().find_map(|it| it.strip_prefix("version: "));
    let version = version.unwrap_or_default();
    assert!(
        own(&format!("services-{}", version.replace('.', "-"))).is_ok(),
        "{version}"
    );
    assert!(said(&sealed).contains(version), "{}", said(&sealed));
    assert!(version.starts_with(env!("CARGO_PKG_VERSION")), "{version}");
    // The same files give the same manifest.
    seal(&folder, &[])?;
    let again = std::fs::read_to_string(folder.join("manifest.yaml"));
    assert_eq!(again.doing(|| "there is no manifest")?, manifest);
    for (file, contents, words) in [
        ("files/state/x", "", "the agent's state"),
        ("stray.exe", "", "move it below files/"),
        ("services.yaml", "services: [{name: a}]", "services.yaml"),
        ("kubelet.yaml", "kind: Other", "KubeletConfiguration"),
    ] {
        let scratch = Scratch::new("seal")?;
        let folder = scratch.path().join("payload");
        fill(&folder)?;
        std::fs::create_dir_all(folder.join("files/state")).doing(|| "cannot make a folder")?;
        write(&folder, file, contents)?;
        let refused = seal(&folder, &[])?;
        assert!(!refused.status.success());
        assert!(said(&refused).contains(words), "{file}: {}", said(&refused));
        assert!(!folder.join("manifest.yaml").exists(), "{file}");
    }
    std::fs::remove_file(folder.join("files/kubelet.exe")).doing(|| "cannot remove it")?;
    let refused = said(&seal(&folder, &[])?);
    assert!(
        refused.contains("files/kubelet.exe: missing, and service kubelet needs it"),
        "{refused}"
    );
    let refused = seal(&folder, &["--payload-version", "1.2"])?;
    assert!(
        said(&refused).contains("is not a version"),
        "{}",
        said(&refused)
    );
    Ok(())
}

/// Covers H08.
#[tokio::test]
async fn a_payload_that_is_not_what_was_sealed_is_refused_by_the_name_of_the_file() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bed = Bed::new("tampered").await?;
    bed.give_worker(&worker_ignition("first")).await?;
    write(&bed.payload, "files/kubelet.exe", "somebody else's")?;
    let _operator = bed.operator()?;
    let message = bed
        .until_condition(condition::DEGRADED, true, "InvalidPayload")
        .await?;
    assert!(
        message.contains("files/kubelet.exe: differs from the sealed file"),
        "{message}"
    );
    assert!(message.contains("payload seal"), "the cure: {message}");
    assert!(bed.map_names().await?.is_empty(), "nothing is configured");
    Ok(())
}
