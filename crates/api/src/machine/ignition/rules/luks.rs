//! Encrypted volumes.

use serde_json::Value as Json;

use super::super::url;
use super::{Broken, filled, is_set, judge_path};
use crate::located::Node;

const MAX_LABEL: usize = 47;

pub(super) fn volume(volume: &Node<'_>) -> Vec<Broken> {
    let mut broken = Vec::new();
    if let Some(name) = filled(volume, "name").filter(|name| name.contains('/')) {
        broken.push(("name", format!("name {name:?} has a slash: leave it out")));
    }
    if let Some(label) = filled(volume, "label").filter(|label| label.len() > MAX_LABEL) {
        broken.push((
            "label",
            format!("label has {} bytes: the limit is {MAX_LABEL}", label.len()),
        ));
    }
    if let Err(message) = judge_path("device", volume.text("device").unwrap_or_default()) {
        broken.push(("device", message));
    }
    let key_file = volume.get("keyFile");
    let has_key_file = key_file.is_some_and(|it| filled(it, "source").is_some());
    let clevis = volume.get("clevis");
    if let Some(clevis) = clevis {
        broken.extend(pins(clevis).into_iter().map(|message| ("clevis", message)));
    }
    if volume.get("cex").is_some_and(|cex| is_set(cex, "enabled")) {
        if clevis.is_some_and(is_bound) {
            broken.push((
                "cex",
                "cex stands beside clevis: keep one of them".to_owned(),
            ));
        }
        if has_key_file {
            broken.push((
                "cex",
                "cex stands beside keyFile: keep one of them".to_owned(),
            ));
        }
    }
    broken
}

/// Whether it binds the volume to anything.
fn is_bound(clevis: &Node<'_>) -> bool {
    let custom = clevis.get("custom");
    custom.is_some_and(|custom| filled(custom, "pin").is_some()) || has_simple_pins(clevis)
}

fn has_simple_pins(clevis: &Node<'_>) -> bool {
    !clevis.list("tang").is_empty()
        || is_set(clevis, "tpm2")
        || clevis.integer("threshold").is_some_and(|it| it != 0)
}

fn pins(clevis: &Node<'_>) -> Vec<String> {
    let mut broken = Vec::new();
    if let Some(custom) = clevis.get("custom") {
        // Ignition 3.2 minds one that is there, whatever it says.
        if has_simple_pins(clevis) {
            broken.push("clevis.custom stands beside other pins: keep one of them".to_owned());
        }
        match filled(custom, "pin") {
            Some("tpm2" | "tang" | "sss") => {}
            Some(pin) => broken.push(format!(
                "clevis.custom.pin {pin:?} is unknown: use tpm2, tang or sss"
            )),
            None => broken.push("clevis.custom.pin is missing: use tpm2, tang or sss".to_owned()),
        }
        if filled(custom, "config").is_none() {
            broken.push("clevis.custom.config is missing: give the pin's configuration".to_owned());
        }
    }
    for server in clevis.list("tang") {
        let address = server.text("url").unwrap_or_default();
        if let Err(message) = url::judge_web(address) {
            broken.push(format!("clevis.tang.url {message}"));
        }
        if filled(server, "thumbprint").is_none() {
            broken.push(format!(
                "clevis.tang {address:?} has no thumbprint: give it one"
            ));
        }
        let advertisement = filled(server, "advertisement");
        if advertisement.is_some_and(|it| serde_json::from_str::<Json>(it).is_err()) {
            broken.push(format!(
                "clevis.tang {address:?} has an advertisement that is not JSON: ask the server for it again"
            ));
        }
    }
    broken
}
