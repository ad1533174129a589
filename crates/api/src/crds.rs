//! The kinds that we bring, as the cluster wants them described. `deploy/crds` holds what this says,
//! and a test holds it to that.

mod readiness;
mod rollout_policy;
mod windows_pool;

use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema};
use serde_json::{Value, json};

use crate::fleet::machine_config_pool as pool;
use crate::names::group;

/// All of them, with the file that holds each.
pub fn all() -> [(&'static str, Value); 5] {
    [
        ("machineconfigs.yaml", machine_configs()),
        ("machineconfigpools.yaml", machine_config_pools()),
        ("nodereadinessrules.yaml", readiness::rules()),
        ("rolloutpolicies.yaml", rollout_policy::policies()),
        ("windowspools.yaml", windows_pool::pools()),
    ]
}

/// What a kind is called.
struct Naming<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
    plural: &'a str,
    short: &'a str,
    has_status: bool,
}

fn machine_configs() -> Value {
    let columns = [
        (
            "GeneratedByController",
            "string",
            r".metadata.labels.evenkeel\.dev/rendered",
        ),
        ("IgnitionVersion", "string", ".spec.config.ignition.version"),
        AGE,
    ];
    let text = |description: &str| json!({ "type": "string", "description": description });
    let texts = |description: &str| json!({ "type": "array", "items": { "type": "string" }, "description": description });
    let schema = json!({
        "description": "Configuration of a machine. Evenkeel validates it, and names the place of every problem.",
        "type": "object",
        "required": ["spec"],
        "properties": { "spec": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": true,
            "properties": {
                "config": {
                    "description": "An Ignition config, 2.2 or 3.0 to 3.5.",
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                },
                "osImageURL": text("Image of the operating system. Of several MachineConfigs, the last one counts."),
                "kernelArguments": texts("Kernel arguments. Those of several MachineConfigs are appended."),
                "kernelType": text("Kernel type, default or realtime."),
                "extensions": texts("Extensions of the operating system. Those of several MachineConfigs are combined."),
                "fips": { "type": "boolean", "description": "Whether FIPS mode is on. It is on if any MachineConfig sets it." },
                "baseOSExtensionsContainerImage": text("Image that extensions come from."),
            },
        } },
    });
    let naming = Naming {
        group: group::MACHINE_CONFIGURATION,
        version: "v1",
        kind: "MachineConfig",
        plural: "machineconfigs",
        short: "mc",
        has_status: false,
    };
    definition(&naming, &columns, &schema)
}

fn machine_config_pools() -> Value {
    let status = |kind: &str| format!(".status.conditions[?(@.type==\"{kind}\")].status");
    let (updated, updating, degraded) = (status("Updated"), status("Updating"), status("Degraded"));
    let columns = [
        ("Config", "string", ".status.configuration.name"),
        ("Updated", "string", updated.as_str()),
        ("Updating", "string", updating.as_str()),
        ("Degraded", "string", degraded.as_str()),
        ("MachineCount", "integer", ".status.machineCount"),
        ("ReadyMachineCount", "integer", ".status.readyMachineCount"),
        (
            "UpdatedMachineCount",
            "integer",
            ".status.updatedMachineCount",
        ),
        (
            "DegradedMachineCount",
            "integer",
            ".status.degradedMachineCount",
        ),
        AGE,
    ];
    let schema = json!({
        "description": "Nodes that share one configuration, which is rolled out to a few of them at a time.",
        "type": "object",
        "required": ["spec"],
        "properties": { "spec": structural::<pool::PoolSpec>(), "status": structural::<pool::PoolStatus>() },
        "x-kubernetes-validations": [{
            "rule": "size(self.metadata.name) <= 200",
            "message": "the name of a pool is part of the names of its rendered configurations: use at most 200 characters",
        }],
    });
    let naming = Naming {
        group: group::MACHINE_CONFIGURATION,
        version: "v1",
        kind: pool::KIND,
        plural: pool::PLURAL,
        short: "mcp",
        has_status: true,
    };
    definition(&naming, &columns, &schema)
}

/// When it was made.
const AGE: (&str, &str, &str) = ("Age", "date", ".metadata.creationTimestamp");

fn definition(names: &Naming<'_>, columns: &[(&str, &str, &str)], schema: &Value) -> Value {
    let Naming {
        group,
        kind,
        plural,
        ..
    } = names;
    let columns: Vec<_> = columns
        .iter()
        .map(|(name, kind, path)| json!({ "name": name, "type": kind, "jsonPath": path }))
        .collect();
    let mut version = json!({
        "name": names.version,
        "served": true,
        "storage": true,
        "additionalPrinterColumns": columns,
        "schema": { "openAPIV3Schema": schema },
    });
    if names.has_status {
        version["subresources"] = json!({ "status": {} });
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group,
            "names": {
                "kind": kind,
                "listKind": format!("{kind}List"),
                "plural": plural,
                "singular": kind.to_lowercase(),
                "shortNames": [names.short],
            },
            "scope": "Cluster",
            "versions": [version],
        },
    })
}

/// The schema of a type, as a definition may have it: no references, and absent instead of null.
fn structural<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::openapi3();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    Structural.transform(&mut schema);
    schema.remove("title");
    schema.to_value()
}

/// Leaves out what a definition may not say.
struct Structural;

impl Transform for Structural {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        schema.remove("nullable");
        schema.remove("title");
        // An enum of one word each with a description: only the words are wanted.
        if let Some(Value::Array(options)) = schema.get("oneOf").cloned() {
            let words: Option<Vec<_>> = options
                .iter()
                .map(|it| it["enum"].get(0).cloned())
                .collect();
            if let Some(words) = words {
                schema.remove("oneOf");
                schema.insert("type".to_owned(), json!("string"));
                schema.insert("enum".to_owned(), Value::Array(words));
            }
        }
    }
}
