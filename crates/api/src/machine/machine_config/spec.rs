//! The `spec` of a `MachineConfig`, all but its Ignition config.

use super::{MachineConfig, Section};
use crate::located::Node;
use crate::shape::Shape::{Anything, Flag, Text};
use crate::shape::{self, TEXTS, keys};

keys! {
    /// What the engine does itself is read; every other field is kept as it stands.
    pub(crate) SPEC {
        baseOSExtensionsContainerImage: Text, config: Anything.not_kept(), extensions: TEXTS,
        fips: Flag, kernelArguments: TEXTS.not_kept(), kernelType: Text.text_by_default("default"),
        osImageURL: Text.not_kept(),
    }
}

/// Reads everything of a MachineConfig's `spec` but its Ignition config.
pub(crate) fn read_spec(spec: &Node<'_>, config: &mut MachineConfig) {
    let image = spec.text("osImageURL").unwrap_or_default();
    image.clone_into(&mut config.os_image_url);
    let arguments = spec
        .list("kernelArguments")
        .iter()
        .filter_map(Node::as_text);
    config.kernel_arguments = arguments.map(str::to_owned).collect();
    if let serde_json::Value::Object(fields) = shape::canonical(spec, &[&SPEC]) {
        for (field, value) in fields {
            let section = Section {
                name: format!("spec.{field}"),
                identity: String::new(),
            };
            config.unsupported.insert(section, value);
        }
    }
}
