//! Which keys a readiness rule may have, and what they hold.

use crate::shape::Shape::{Anything, Flag, Integer, List, Text, Texts};
use crate::shape::{Shape, TEXTS, object, optional, required};

/// The whole object.
pub(crate) const RULE: Shape = object(
    "",
    &[
        required("apiVersion", &Text),
        required("kind", &Text),
        required("metadata", &Anything),
        required("spec", &SPEC),
        optional("status", &Anything),
    ],
);

pub(crate) const SPEC: Shape = object(
    "",
    &[
        optional("nodeSelector", &SELECTOR),
        optional("evictAfter", &Text),
        optional("dryRun", &Flag),
        optional("publishConditions", &Flag),
        optional("autoscalerStartupTaint", &Flag),
        required("extensions", &List(&EXTENSION)),
    ],
);

const SELECTOR: Shape = object(
    "",
    &[
        optional("matchLabels", &Texts),
        optional("matchExpressions", &List(&REQUIREMENT)),
    ],
);

const REQUIREMENT: Shape = object(
    "key",
    &[
        required("key", &Text),
        required("operator", &Text),
        optional("values", &TEXTS),
    ],
);

pub(super) const EXTENSION: Shape = object(
    "name",
    &[
        required("name", &Text),
        optional("affectsReadiness", &Flag),
        optional("lease", &LEASE),
        optional("status", &STATUS),
        optional("pods", &PODS),
        optional("condition", &CONDITION),
        optional("probe", &PROBE),
    ],
);

const LEASE: Shape = object(
    "",
    &[
        optional("namespace", &Text),
        optional("name", &Text),
        optional("expiry", &Text),
    ],
);

const STATUS: Shape = object(
    "",
    &[
        required("apiVersion", &Text),
        required("kind", &Text),
        optional("namespace", &Text),
        optional("name", &Text),
        optional("lease", &Text),
    ],
);

const PODS: Shape = object(
    "",
    &[
        required("namespace", &Text),
        required("selector", &SELECTOR),
        optional("debounce", &Text),
    ],
);

const CONDITION: Shape = object(
    "",
    &[
        required("type", &Text),
        optional("status", &Text),
        optional("freshness", &Text),
    ],
);

const PROBE: Shape = object(
    "",
    &[
        optional("httpGet", &HTTP_GET),
        optional("tcpSocket", &TCP_SOCKET),
        optional("grpc", &GRPC),
        optional("unixSocket", &UNIX_SOCKET),
        optional("service", &SERVICE),
        optional("period", &Text),
        optional("timeout", &Text),
        optional("failureThreshold", &Integer),
    ],
);

const HTTP_GET: Shape = object("", &[required("port", &Integer), optional("path", &Text)]);
const TCP_SOCKET: Shape = object("", &[required("port", &Integer)]);
const GRPC: Shape = object(
    "",
    &[required("port", &Integer), optional("service", &Text)],
);
const UNIX_SOCKET: Shape = object("", &[required("path", &Text)]);
const SERVICE: Shape = object("", &[required("name", &Text)]);
