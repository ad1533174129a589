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
        nodeSelector: SELECTOR, taint: TAINT, enforcement: Text, evictAfter: Text, dryRun: Flag, suspend: Flag, publishConditions: Flag,
        autoscalerStartupTaint: Flag, extensions: List(EXTENSION).required(),
    }
    /// The whole object of node-readiness-controller.
    pub(super) NRC_RULE {
        apiVersion: Text.required(), kind: Text.required(), metadata: Anything.required(),
        spec: NRC_SPEC.required(), status: Anything,
    }
    NRC_SPEC {
        conditions: List(NRC_CONDITION).required(), conditionPolicy: Text, enforcementMode: Text.required(),
        taint: NRC_TAINT.required(), nodeSelector: SELECTOR.required(), dryRun: Flag,
    }
    NRC_CONDITION by "type" { type: Text.required(), requiredStatus: Text.required(), defaultStatus: Text }
    NRC_TAINT { key: Text.required(), value: Text, effect: Text.required(), timeAdded: Anything }
    TAINT { key: Text.required(), value: Text, effect: Text }
    SELECTOR { matchLabels: Texts, matchExpressions: List(REQUIREMENT) }
    REQUIREMENT by "key" { key: Text.required(), operator: Text.required(), values: TEXTS }
    pub(super) EXTENSION by "name" {
        name: Text.required(), affectsReadiness: Flag, lease: LEASE, status: STATUS, pods: PODS,
        condition: CONDITION, anyOf: List(CONDITION), probe: PROBE,
    }
    LEASE { namespace: Text, name: Text, expiry: Text }
    STATUS {
        apiVersion: Text.required(), kind: Text.required(), namespace: Text, name: Text,
        lease: Text,
    }
    PODS { namespace: Text.required(), selector: SELECTOR.required(), debounce: Text }
    CONDITION by "type" { type: Text.required(), status: Text, freshness: Text, defaultStatus: Text }
    PROBE {
        httpGet: HTTP_GET, tcpSocket: TCP_SOCKET, grpc: GRPC, unixSocket: UNIX_SOCKET,
        service: SERVICE, exec: EXEC, period: Text, timeout: Text, failureThreshold: Integer,
    }
    HTTP_GET {
        port: Integer.required(), path: Text, host: Text, scheme: Text, httpHeaders: List(HEADER),
        ca: Text, serverName: Text, insecureSkipVerify: Flag,
    }
    HEADER by "name" { name: Text.required(), value: Text.required() }
    TCP_SOCKET { port: Integer.required(), host: Text }
    GRPC { port: Integer.required(), host: Text, service: Text }
    UNIX_SOCKET { path: Text.required() }
    SERVICE { name: Text.required() }
    EXEC { command: TEXTS.required() }
}
