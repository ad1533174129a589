//! `NodeReadinessRule` for the cluster: the keys are those of the reader's own table, so that what
//! `evenkeel check` takes and what the API server takes are one shape. Here stand the sentences,
//! the defaults and the rules that the API server can check by itself.

use serde_json::{Map, Value, json};

use super::{AGE, Naming, definition, structural};
use crate::names::{group, object, taint};
use crate::readiness::{
    self, AGENT_EXPIRY, CA, COMMAND, HEADER, HEADERS, KIND, LEAST_EXPIRY, NODE_IP, PLURAL,
    RESERVED_HEADERS, RuleStatus, SPEC, WORD,
};
use crate::shape::Shape;

/// How many extensions a rule may have.
const EXTENSIONS: u32 = 32;
/// How many conditions may stand for an extension.
const CHOICES: u32 = 32;
/// The key of a taint.
const TAINT_KEY: &str =
    r"^(readiness\.k8s\.io|evenkeel\.dev)/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
/// The value of a taint.
const TAINT_VALUE: &str = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$";
/// A text without control characters.
const PRINTED: &str = r"^[^\x00-\x1f\x7f]*$";
/// A path that stands in one line, between two blanks.
const LINE: &str = r"^/[^\x00-\x20\x7f]*$";
/// The name of a header.
const HEADER_NAME: &str = r"^[-!#$%&'*+.^_`|~0-9A-Za-z]+$";
/// How a duration is written.
const DURATION: &str = "^([0-9]+(ms|s|m|h))+$";

pub(super) fn rules() -> Value {
    let columns = [
        ("Nodes", "integer", ".status.nodes.total"),
        ("Ready", "integer", ".status.nodes.ready"),
        ("NotReady", "integer", ".status.nodes.notReady"),
        ("Evicting", "integer", ".status.nodes.evicting"),
        ("DryRun", "boolean", ".spec.dryRun"),
        ("Suspend", "boolean", ".spec.suspend"),
        (
            "Valid",
            "string",
            ".status.conditions[?(@.type==\"Valid\")].status",
        ),
        AGE,
    ];
    let mut spec = schema(&SPEC);
    for (place, all) in [
        ("", of_rules()),
        ("extensions.[].", of_extensions()),
        ("extensions.[].condition.", of_conditions()),
        ("extensions.[].anyOf.[].", of_conditions()),
        ("extensions.[].probe.", of_probes()),
    ] {
        for (path, facts) in all.as_object().into_iter().flatten() {
            decorate(&mut spec, &format!("{place}{path}"), facts);
        }
    }
    let schema = json!({
        "description": "Extensions that a set of nodes must have before pods are scheduled to them, and the evidence that each is healthy.",
        "type": "object",
        "required": ["spec"],
        "properties": { "spec": spec, "status": structural::<RuleStatus>() },
    });
    let naming = Naming {
        group: group::EVENKEEL,
        version: readiness::VERSION,
        kind: KIND,
        plural: PLURAL,
        short: "ekr",
        has_status: true,
    };
    definition(&naming, &columns, &schema)
}

/// The keys of a table.
fn schema(shape: &Shape) -> Value {
    match shape {
        Shape::Text => json!({ "type": "string", "maxLength": 253 }),
        Shape::Flag => json!({ "type": "boolean" }),
        Shape::Integer => json!({ "type": "integer" }),
        Shape::Anything => {
            json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
        }
        Shape::Texts => json!({
            "type": "object",
            "maxProperties": 32,
            "additionalProperties": { "type": "string", "maxLength": 63 },
        }),
        Shape::List(element) | Shape::OneOrMany(element) => {
            json!({ "type": "array", "maxItems": EXTENSIONS, "items": schema(element) })
        }
        Shape::Object(object) => {
            let properties: Map<String, Value> = object
                .fields
                .iter()
                .map(|field| (field.name.to_owned(), schema(field.shape)))
                .collect();
            let required: Vec<_> = object
                .fields
                .iter()
                .filter(|field| field.required)
                .map(|field| field.name)
                .collect();
            let mut object = json!({ "type": "object", "properties": properties });
            if !required.is_empty() {
                object["required"] = json!(required);
            }
            object
        }
    }
}

/// Adds facts to the schema at a path of keys.
fn decorate(schema: &mut Value, path: &str, facts: &Value) {
    let place = path
        .split('.')
        .filter(|it| !it.is_empty())
        .fold(schema, |at, key| match key {
            "[]" => &mut at["items"],
            key => &mut at["properties"][key],
        });
    if let (Some(place), Value::Object(facts)) = (place.as_object_mut(), facts) {
        place.extend(facts.clone());
    }
}

/// A text without control characters.
fn printed(description: &str) -> Value {
    json!({ "description": description, "pattern": PRINTED })
}

fn text(description: &str) -> Value {
    json!({ "description": description })
}

/// A duration with what it is by default.
fn duration(description: &str, default: &str) -> Value {
    json!({ "description": description, "default": default, "maxLength": 20, "pattern": DURATION })
}

fn rule(rule: &str, message: &str) -> Value {
    json!({ "rule": rule, "message": message })
}

/// That exactly one of some keys is there.
fn only_one(keys: &[&str]) -> Value {
    let count: Vec<_> = keys
        .iter()
        .map(|key| format!("(has(self.{key}) ? 1 : 0)"))
        .collect();
    rule(
        &format!("{} == 1", count.join(" + ")),
        &format!("give exactly one of {}", keys.join(", ")),
    )
}

/// That a name is not the same for all nodes.
fn has_node() -> Value {
    rule(
        "!has(self.name) || self.name.contains('{node}')",
        "name must have {node} in it: what all nodes share is evidence for none",
    )
}

fn operators() -> Value {
    json!({ "enum": ["In", "NotIn", "Exists", "DoesNotExist"] })
}

fn port() -> Value {
    json!({ "description": "Port on the node.", "minimum": 1, "maximum": 65535 })
}

fn host() -> Value {
    json!({
        "description": format!("Address of the node that is asked: an IP address that is its own, or {NODE_IP} for those of its Node. Without it, the loopback address, of IPv4 or else of IPv6."),
        "pattern": r"^(\{nodeIP\}|[0-9A-Fa-f:.]*)$",
        "maxLength": 45,
    })
}

/// That TLS has exactly one way to be trusted, and nothing else has any.
fn tls_rules() -> Value {
    let skips = "has(self.insecureSkipVerify) && self.insecureSkipVerify";
    json!([
        rule(
            &format!("(self.scheme == 'HTTPS') == ((has(self.ca) && self.ca != '') != ({skips}))"),
            "scheme HTTPS needs either ca or insecureSkipVerify: true, and HTTP takes neither",
        ),
        rule(
            "!has(self.serverName) || self.serverName == '' || (has(self.ca) && self.ca != '')",
            "serverName needs ca",
        ),
    ])
}

fn header_rule() -> Value {
    let reserved = RESERVED_HEADERS.map(|it| format!("'{it}'")).join(", ");
    json!([rule(
        &format!("!(self.name.lowerAscii() in [{reserved}])"),
        "the agent itself writes this header",
    )])
}

fn selector_rule() -> Value {
    json!([rule(
        "!has(self.matchExpressions) || self.matchExpressions.all(it, it.operator in ['In', 'NotIn'] ? has(it.values) && size(it.values) > 0 : !has(it.values) || size(it.values) == 0)",
        "In and NotIn need values, Exists and DoesNotExist take none",
    )])
}

/// What is said of each key of a rule, by its path; `[]` is the elements of a list.
fn of_rules() -> Value {
    let least = LEAST_EXPIRY.as_secs();
    let agent = AGENT_EXPIRY.as_secs();
    json!({
        "nodeSelector": {
            "description": "Nodes that the rule selects. All nodes if it is absent or empty.",
            "x-kubernetes-validations": selector_rule(),
        },
        "": { "x-kubernetes-validations": [rule(
            "!has(self.taint) || self.taint.effect != 'NoExecute' || duration(self.evictAfter) > duration('0s')",
            "taint.effect NoExecute evicts pods, and evictAfter 0s never does: give evictAfter a time, or use NoSchedule",
        )] },
        "nodeSelector.matchExpressions.[].operator": operators(),
        "taint": text("Taint of a node that is not ready by this rule. Without it, the taint is kubernetes.io/MetaReadiness:NoSchedule, which rules share."),
        "taint.key": {
            "description": "Its key, readiness.k8s.io/NAME or evenkeel.dev/NAME.",
            "pattern": TAINT_KEY,
            "x-kubernetes-validations": [rule(
                &format!("!(self in ['{}', '{}'])", taint::DRAINING, taint::FIRST_CONFIG),
                "this key is used for something else: choose another",
            )],
        },
        "taint.value": { "description": "Its value.", "maxLength": 63, "pattern": TAINT_VALUE },
        "taint.effect": {
            "description": "Its effect. With NoExecute, the taint is NoSchedule at first; it becomes NoExecute when the pods that do not tolerate it were evicted, after evictAfter and within their budgets.",
            "default": "NoSchedule",
            "enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"],
        },
        "enforcement": {
            "description": "Continuous, or Bootstrap: once a node was ready, the rule never taints it again.",
            "default": "Continuous",
            "enum": ["Continuous", "Bootstrap"],
        },
        "evictAfter": duration("How long an extension may be unhealthy or silent before pods are evicted. 0s means never. An extension that was only not heard yet after a restart never causes evictions.", "5m"),
        "dryRun": { "description": "Whether the rule only reports what it would do, and changes no Node.", "default": false },
        "suspend": { "description": "Whether the rule stays as it is: no taint is set or removed for it, and no pod is evicted. It still reports.", "default": false },
        "publishConditions": { "description": "Whether every extension is published as a condition evenkeel.dev/NAME of its Node.", "default": false },
        "autoscalerStartupTaint": { "description": "Whether a node that is not ready also gets the startup taint of the Cluster Autoscaler.", "default": false },
        "extensions": {
            "description": "Extensions that a node must have.",
            "minItems": 1,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
        "extensions.[]": { "x-kubernetes-validations": [
            only_one(&["lease", "status", "pods", "condition", "anyOf", "probe"]),
            rule(
                &format!("!has(self.lease) || duration(self.lease.expiry) >= duration(self.name == 'evenkeel-agent' ? '{agent}s' : '{least}s')"),
                &format!("lease.expiry is too short, three renewals must fit: give at least {least}s, and {agent}s for evenkeel-agent"),
            ),
        ] },
    })
}

/// The same of its extensions.
fn of_extensions() -> Value {
    json!({
        "name": { "description": "Its name.", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$" },
        "affectsReadiness": { "description": "Whether the node is not ready without the extension. If false, the extension is only reported.", "default": true },
        "lease": { "description": "A Lease that the extension renews.", "x-kubernetes-validations": [has_node()] },
        "lease.namespace": { "description": "Its namespace.", "default": object::EXTENSIONS_NAMESPACE },
        "lease.name": text("Name of the Lease. {node} stands for the name of the node. The default is {node}.EXTENSION."),
        "lease.expiry": duration("How old the last renewal may be.", "10s"),
        "status": { "description": "An object with a Lease inside, or with a Lease of the same name.", "x-kubernetes-validations": [has_node()] },
        "status.apiVersion": text("Its group and version."),
        "status.kind": text("Its kind."),
        "status.namespace": { "description": "Its namespace.", "default": object::EXTENSIONS_NAMESPACE },
        "status.name": { "description": "Name of the object. {node} stands for the name of the node.", "default": "{node}" },
        "status.lease": { "description": "Path of the Lease in the object, for example .status.lease. Without it, the Lease of the same name is used.", "pattern": "^(\\.[A-Za-z_][A-Za-z0-9_]*)+$" },
        "pods": text("Pods that must all be ready on the node. A node without such a pod is not ready."),
        "pods.namespace": text("Their namespace."),
        "pods.selector": { "description": "Selects the pods.", "x-kubernetes-validations": selector_rule() },
        "pods.selector.matchExpressions.[].operator": operators(),
        "pods.debounce": duration("How long pods must be unready before that counts.", "0s"),
        "condition": text("A condition of the Node. Written once, it counts until it changes. After a reboot, it counts after it was written again."),
        "anyOf": {
            "description": "Conditions of the Node, of which one is enough.",
            "minItems": 1,
            "maxItems": CHOICES,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
        "probe": {
            "description": "A probe that the agent runs on the node.",
            "x-kubernetes-validations": [
                only_one(&["httpGet", "tcpSocket", "grpc", "unixSocket", "service", "exec"]),
                rule(
                    "duration(self.period) > duration('0s') && duration(self.timeout) > duration('0s') && duration(self.timeout) <= duration(self.period)",
                    "period and timeout must be above 0s, and timeout not longer than period",
                ),
            ],
        },
    })
}

/// The same of a condition.
fn of_conditions() -> Value {
    let statuses = json!(["True", "False", "Unknown"]);
    json!({
        "type": text("Its type."),
        "status": { "description": "Status that means healthy.", "default": "True", "enum": statuses },
        "freshness": duration("How old the heartbeat may be. 0s means any age, and none is needed after a restart of the kubelet.", "0s"),
        "defaultStatus": { "description": "Status that counts while the Node does not have the condition. Without it, a Node without the condition is not ready.", "enum": statuses },
    })
}

/// The same of the probe of an extension.
fn of_probes() -> Value {
    json!({
        "httpGet": {
            "description": "An HTTP request. An answer of 200 to 399 means healthy.",
            "x-kubernetes-validations": tls_rules(),
        },
        "httpGet.host": host(),
        "httpGet.scheme": { "description": "HTTP or HTTPS.", "default": "HTTP", "enum": ["HTTP", "HTTPS"] },
        "httpGet.httpHeaders": { "description": "Headers of the request. Everybody who can read rules can read them, and so can every agent.", "maxItems": HEADERS },
        "httpGet.httpHeaders.[]": { "x-kubernetes-validations": header_rule() },
        "httpGet.httpHeaders.[].name": { "description": "Its name.", "maxLength": 128, "pattern": HEADER_NAME },
        "httpGet.httpHeaders.[].value": { "description": "Its value.", "maxLength": HEADER, "pattern": PRINTED },
        "httpGet.ca": { "description": "Certificates in PEM. The certificate of the server must be signed by one of them.", "maxLength": CA },
        "httpGet.serverName": printed("Name that the certificate of the server must have. Without it, the address that is asked, and localhost for the loopback address."),
        "httpGet.insecureSkipVerify": text("Whether any certificate is accepted."),
        "httpGet.port": port(),
        "httpGet.path": { "description": "Path, without blanks and control characters.", "default": "/", "pattern": LINE },
        "tcpSocket": text("A TCP connection. An accepted connection means healthy."),
        "tcpSocket.port": port(),
        "tcpSocket.host": host(),
        "grpc": text("The gRPC health service. SERVING means healthy."),
        "grpc.port": port(),
        "grpc.host": host(),
        "grpc.service": printed("Service to ask for. If empty, the whole server."),
        "unixSocket": text("A connection to a socket file. An accepted connection means healthy."),
        "unixSocket.path": printed("Path of the socket file."),
        "service": text("A system service. Running means healthy."),
        "service.name": printed("Its name, for example crio.service."),
        "exec": text("A program on the node, on Linux. Exit code 0 means healthy. The agent runs only programs that its owner allows."),
        "exec.command": {
            "description": "Path of the program, and its arguments. No shell is run.",
            "minItems": 1,
            "maxItems": COMMAND,
            "x-kubernetes-validations": [rule("self[0].startsWith('/')", "the program must be a whole path")],
        },
        "exec.command.[]": { "maxLength": WORD, "pattern": PRINTED },
        "period": duration("How often the probe runs.", "5s"),
        "timeout": duration("How long the answer may take.", "1s"),
        "failureThreshold": { "description": "How many failures in a row mean unhealthy.", "default": 3, "minimum": 1 },
    })
}
