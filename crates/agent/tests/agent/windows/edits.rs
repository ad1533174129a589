//! What somebody may change by hand on a Windows node.

/// A payload file, the program of a service that runs.
pub(crate) const PAYLOAD: &str = r"C:\k\service-double.exe";

/// What is done, to what, and what the Event says of it.
pub(crate) const EDITS: [(&str, &str, &str); 11] = [
    ("stop", "network", "service network: is stopped"),
    ("kill", "network", "service network: ended by itself"),
    ("delete", "network", "service network: missing"),
    ("command", "network", "command differs"),
    ("dependencies", "network", "dependencies differ"),
    ("start", "network", "is disabled"),
    ("description", "network", "description differs"),
    (
        "set",
        "EK_PROXY",
        "environment variable EK_PROXY: value differs",
    ),
    (
        "unset",
        "EK_PROXY",
        "environment variable EK_PROXY: missing",
    ),
    (
        "tamper",
        PAYLOAD,
        r"file C:\k\service-double.exe: contents differ",
    ),
    ("remove", PAYLOAD, r"file C:\k\service-double.exe: missing"),
];
