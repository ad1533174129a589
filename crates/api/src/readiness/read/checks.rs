//! Reading of what a probe checks.

use super::super::{
    CA, COMMAND, Check, HEADER, HEADERS, HttpGet, ProbeHost, ProbeTls, RESERVED_HEADERS, WORD,
    is_header_name,
};
use super::only_one;
use crate::located::Node;
use crate::problem::{At, Findings};

const CHECKS: [&str; 6] = [
    "httpGet",
    "tcpSocket",
    "grpc",
    "unixSocket",
    "service",
    "exec",
];

/// How a certificate in PEM begins.
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";

pub(super) fn read_check(probe: &Node<'_>, at: &At<'_>, findings: &mut Findings) -> Option<Check> {
    let (kind, node) = only_one(probe, &CHECKS)
        .map_err(|message| findings.problem(at, message))
        .ok()?;
    let here = at.key(kind, node.line);
    let text = |key: &str, default: &str| node.text(key).unwrap_or(default).to_owned();
    for key in ["path", "service", "name"] {
        let in_a_line = kind == "httpGet";
        let is_odd = |it: char| it.is_control() || (in_a_line && it.is_whitespace());
        if node.text(key).is_some_and(|text| text.contains(is_odd)) {
            let blanks = if in_a_line { "blanks or " } else { "" };
            findings.problem(
                &here,
                format!("{key} has {blanks}control characters, which would change the request: remove them"),
            );
        }
    }
    let host = ProbeHost::read(node.text("host").unwrap_or_default());
    let host = host.map_err(|message| findings.problem(&here, message));
    let port = node.integer("port").and_then(|port| {
        let valid = u16::try_from(port).ok().filter(|port| *port > 0);
        if valid.is_none() {
            findings.problem(&here, format!("port {port} is invalid: use 1 to 65535"));
        }
        valid
    });
    Some(match kind {
        "httpGet" => Check::HttpGet(HttpGet {
            headers: headers(node, &here, findings),
            tls: tls(node)
                .map_err(|message| findings.problem(&here, message.to_owned()))
                .ok()?,
            host: host.ok()?,
            port: port?,
            path: text("path", "/"),
        }),
        "tcpSocket" => Check::TcpSocket {
            host: host.ok()?,
            port: port?,
        },
        "grpc" => Check::Grpc {
            host: host.ok()?,
            port: port?,
            service: text("service", ""),
        },
        "unixSocket" => Check::UnixSocket {
            path: text("path", ""),
        },
        "service" => Check::Service {
            name: text("name", ""),
        },
        _ => Check::Exec {
            command: command(node, &here, findings)?,
        },
    })
}

fn headers(node: &Node<'_>, at: &At<'_>, findings: &mut Findings) -> Vec<(String, String)> {
    let mut headers = Vec::new();
    for item in node.list("httpHeaders") {
        let (Some(name), Some(value)) = (item.text("name"), item.text("value")) else {
            continue;
        };
        if !is_header_name(name) {
            findings.problem(at, format!("httpHeaders: {name:?} is no name of a header"));
        } else if RESERVED_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
            findings.problem(
                at,
                format!("httpHeaders: the agent itself writes the header {name}: remove it"),
            );
        } else if value.contains(char::is_control) || value.len() > HEADER {
            findings.problem(
                at,
                format!("httpHeaders: the value of {name} has control characters or more than {HEADER} bytes"),
            );
        }
        headers.push((name.to_owned(), value.to_owned()));
    }
    if headers.len() > HEADERS {
        findings.problem(at, format!("httpHeaders: give at most {HEADERS}"));
    }
    headers
}

/// How TLS is spoken, if at all; or why that makes no sense.
fn tls(node: &Node<'_>) -> Result<Option<ProbeTls>, &'static str> {
    let ca = node.text("ca").filter(|it| !it.trim().is_empty());
    let server_name = node.text("serverName").unwrap_or_default().to_owned();
    let is_unverified = node.flag("insecureSkipVerify").unwrap_or_default();
    match (node.text("scheme").unwrap_or("HTTP"), ca, is_unverified) {
        ("HTTP", None, false) if server_name.is_empty() => Ok(None),
        ("HTTP", ..) => Err("ca, serverName and insecureSkipVerify need scheme: HTTPS"),
        ("HTTPS", Some(_), true) => {
            Err("ca and insecureSkipVerify are set together: set exactly one")
        }
        ("HTTPS", None, false) => Err(
            "scheme HTTPS needs ca, certificates in PEM that the server's is verified with, or insecureSkipVerify: true",
        ),
        ("HTTPS", None, true) if server_name.is_empty() => Ok(Some(ProbeTls::Unverified)),
        ("HTTPS", None, true) => {
            Err("serverName is not verified with insecureSkipVerify: remove one of them")
        }
        ("HTTPS", Some(ca), false) if ca.len() > CA || !ca.contains(BEGIN) => Err(
            "ca has no certificates in PEM, or is longer than 16 KiB: paste the text that begins with -----BEGIN CERTIFICATE-----",
        ),
        ("HTTPS", Some(ca), false) => Ok(Some(ProbeTls::Ca {
            pem: ca.to_owned(),
            server_name,
        })),
        _ => Err("scheme is unknown: write HTTP or HTTPS"),
    }
}

fn command(node: &Node<'_>, at: &At<'_>, findings: &mut Findings) -> Option<Vec<String>> {
    let words = node.list("command").iter().filter_map(Node::as_text);
    let command: Vec<_> = words.map(str::to_owned).collect();
    let program = command.first().map(String::as_str).unwrap_or_default();
    let is_path = program.starts_with('/')
        && !program
            .split('/')
            .skip(1)
            .any(|it| matches!(it, "" | "." | ".."));
    if !is_path {
        findings.problem(
            at,
            format!("command: {program:?} is not the whole path of a program, such as /usr/local/bin/check"),
        );
        return None;
    }
    let is_odd = |it: &String| it.contains(char::is_control) || it.len() > WORD;
    if command.len() > COMMAND || command.iter().any(is_odd) {
        findings.problem(
            at,
            format!(
                "command: give at most {COMMAND} words of {WORD} bytes, without control characters"
            ),
        );
        return None;
    }
    Some(command)
}
