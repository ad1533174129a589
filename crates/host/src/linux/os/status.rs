//! What rpm-ostree and bootc say about deployments, read from their JSON.

use evenkeel_plan::machine::os::plain;
use serde_json::Value;

/// A container image that is not verified any further than by its registry.
const REGISTRY: &str = "ostree-unverified-registry:";
/// Arguments that each boot gets anew, or that stand for others until then.
const FLEETING: [&str; 3] = ["BOOT_IMAGE=", "initrd=", "ostree="];

/// The images of two deployments.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Images {
    pub(super) booted: Option<String>,
    pub(super) next: Option<String>,
    /// Who else stages images here, if anybody does.
    pub(super) driver: Option<Driver>,
}

/// A program that has taken the updates of the machine on itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Driver {
    pub(super) name: String,
    pub(super) unit: String,
}

/// Reads `rpm-ostree status --json`: the first deployment is the next to boot.
pub(super) fn rpm_ostree(text: &str) -> Result<Images, String> {
    let status = json(text)?;
    let deployments = status["deployments"].as_array();
    let deployments = deployments.ok_or("the answer lists no deployments")?;
    let image = |deployment: &Value| {
        let reference = deployment["container-image-reference"].as_str();
        reference.map(named)
    };
    let driver = &status["update-driver"];
    let of_driver = |field: &str| driver[field].as_str().map(str::to_owned);
    let booted = deployments
        .iter()
        .find(|deployment| deployment["booted"] == true)
        .ok_or("the answer names no booted deployment")?;
    Ok(Images {
        booted: image(booted),
        next: deployments.first().and_then(image),
        driver: of_driver("driver-name")
            .zip(of_driver("driver-sd-unit"))
            .map(|(name, unit)| Driver { name, unit }),
    })
}

/// Reads `bootc status --format json`.
pub(super) fn bootc(text: &str) -> Result<Images, String> {
    let host = json(text)?;
    let status = &host["status"];
    let image = |entry: &Value| entry["image"]["image"]["image"].as_str().map(named);
    if status["booted"].is_null() {
        return Err("the answer names no booted deployment".to_owned());
    }
    let rolls_back = status["rollbackQueued"] == true;
    let next = [
        (&status["staged"], true),
        (&status["rollback"], rolls_back),
        (&status["booted"], true),
    ];
    let next = next
        .into_iter()
        .find(|(it, counts)| *counts && !it.is_null());
    Ok(Images {
        booted: image(&status["booted"]),
        next: next.and_then(|(it, _)| image(it)),
        driver: None,
    })
}

fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("the answer is not valid JSON: {error}"))
}

/// An image as a configuration names it: what is not verified needs no word for that.
fn named(reference: &str) -> String {
    match reference.split_once(':') {
        Some((form, _)) if form.starts_with("ostree-") && !form.contains("unverified") => {
            reference.to_owned()
        }
        _ => plain(reference).to_owned(),
    }
}

/// An image as rpm-ostree wants it: from its registry, unless it says otherwise.
pub(super) fn reference(image: &str) -> String {
    if image.starts_with("ostree-") {
        return image.to_owned();
    }
    format!("{REGISTRY}{}", plain(image))
}

/// The arguments that stay from boot to boot.
pub(super) fn lasting(mut arguments: Vec<String>) -> Vec<String> {
    arguments.retain(|argument| {
        let is_fleeting = FLEETING.iter().any(|prefix| argument.starts_with(prefix));
        !argument.starts_with('$') && !is_fleeting
    });
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(booted: Option<&str>, next: Option<&str>) -> Images {
        Images {
            booted: booted.map(str::to_owned),
            next: next.map(str::to_owned),
            driver: None,
        }
    }

    #[test]
    fn the_first_deployment_of_rpm_ostree_is_next_and_one_is_booted() {
        let staged = r#"{"deployments": [
            {"booted": false, "staged": true, "container-image-reference": "ostree-unverified-registry:quay.io/os:2"},
            {"booted": true, "container-image-reference": "ostree-unverified-image:docker://quay.io/os:1"}]}"#;
        assert_eq!(
            rpm_ostree(staged),
            Ok(images(Some("quay.io/os:1"), Some("quay.io/os:2")))
        );
        let refs = r#"{"deployments": [{"booted": true, "origin": "fedora:fedora/x86_64/coreos/stable"}]}"#;
        assert_eq!(rpm_ostree(refs), Ok(images(None, None)));
        for (broken, why) in [
            ("error", "not valid JSON"),
            ("{}", "lists no deployments"),
            (
                r#"{"deployments": []}"#,
                "the answer names no booted deployment",
            ),
        ] {
            assert!(
                rpm_ostree(broken).is_err_and(|error| error.contains(why)),
                "{broken}"
            );
        }
    }

    #[test]
    fn bootc_boots_what_is_staged_else_what_it_rolls_back_to_else_the_same() {
        let entry = |image: &str| {
            format!(
                r#"{{"image": {{"image": {{"image": "{image}", "transport": "registry"}}, "imageDigest": "sha256:1"}}}}"#
            )
        };
        let status = |staged: &str, queued: bool| {
            format!(
                r#"{{"apiVersion": "org.containers.bootc/v1", "kind": "BootcHost", "status": {{
                    "staged": {staged}, "booted": {}, "rollback": {}, "rollbackQueued": {queued}, "type": "bootcHost"}}}}"#,
                entry("os:1"),
                entry("os:0")
            )
        };
        for (staged, queued, next) in [
            ("null".to_owned(), false, "os:1"),
            ("null".to_owned(), true, "os:0"),
            (entry("os:2"), false, "os:2"),
        ] {
            assert_eq!(
                bootc(&status(&staged, queued)),
                Ok(images(Some("os:1"), Some(next)))
            );
        }
        let not_bootc = r#"{"status": {"booted": null}}"#;
        assert!(bootc(not_bootc).is_err());
    }

    #[test]
    fn an_image_has_one_name_whatever_it_was_fetched_with() {
        assert_eq!(
            reference("quay.io/os:1"),
            "ostree-unverified-registry:quay.io/os:1"
        );
        let signed = "ostree-image-signed:registry:quay.io/os:1";
        assert_eq!(reference(signed), signed);
        assert_eq!(
            named(&reference("quay.io/os@sha256:1")),
            "quay.io/os@sha256:1"
        );
        assert_eq!(named(signed), signed);
    }

    #[test]
    fn what_a_boot_adds_by_itself_is_no_argument_of_anybody() {
        let all =
            "BOOT_IMAGE=(hd0)/x $ignition_firstboot ostree=/ostree/boot.1/x root=UUID=1 quiet";
        let all = all.split(' ').map(str::to_owned).collect();
        assert_eq!(lasting(all), ["root=UUID=1", "quiet"]);
    }
}
