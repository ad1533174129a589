//! Which keys a readiness rule may have, and what they hold.

use crate::shape::Shape::{Anything, Flag, Integer, List, Text, Texts};
use crate::shape::{TEXTS, keys};

keys! {
    /// The whole object.
    pub(crate) RULE {
        apiVersion: Text.required(), kind: Text.required(), metadata: Anything.required(),
        spec: SPEC.required(), status: Anything,
    }
    pub(crate) SPEC {
        nodeSelector: SELECTOR, evictAfter: Text, dryRun: Flag, publishConditions: Flag,
        autoscalerStartupTaint: Flag, extensions: List(EXTENSION).required(),
    }
    SELECTOR { matchLabels: Texts, matchExpressions: List(REQUIREMENT) }
    REQUIREMENT by "key" { key: Text.required(), operator: Text.required(), values: TEXTS }
    pub(super) EXTENSION by "name" {
        name: Text.required(), affectsReadiness: Flag, lease: LEASE, status: STATUS, pods: PODS,
        condition: CONDITION, probe: PROBE,
    }
    LEASE { namespace: Text, name: Text, expiry: Text }
    STATUS {
        apiVersion: Text.required(), kind: Text.required(), namespace: Text, name: Text,
        lease: Text,
    }
    PODS { namespace: Text.required(), selector: SELECTOR.required(), debounce: Text }
    CONDITION { type: Text.required(), status: Text, freshness: Text }
    PROBE {
        httpGet: HTTP_GET, tcpSocket: TCP_SOCKET, grpc: GRPC, unixSocket: UNIX_SOCKET,
        service: SERVICE, period: Text, timeout: Text, failureThreshold: Integer,
    }
    HTTP_GET { port: Integer.required(), path: Text }
    TCP_SOCKET { port: Integer.required() }
    GRPC { port: Integer.required(), service: Text }
    UNIX_SOCKET { path: Text.required() }
    SERVICE { name: Text.required() }
}
