//! An HTTP GET, of whose answer the first line counts.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::time::Instant;

use evenkeel_api::readiness::{HttpGet, is_header_name};

use super::{MOST, connection, tls};

pub(super) fn get(get: &HttpGet, addresses: &[IpAddr], end: Instant) -> Result<(), String> {
    let (port, path) = (get.port, &get.path);
    // A blank or the end of a line in it would make another question of it.
    if path.contains(|it: char| it.is_control() || it.is_whitespace()) {
        return Err(format!(
            "path {path:?} is not sent to port {port}: remove its blanks and control characters"
        ));
    }
    let is_odd = |(name, value): &&(String, String)| {
        !is_header_name(name) || value.contains(char::is_control)
    };
    if let Some((name, _)) = get.headers.iter().find(is_odd) {
        return Err(format!(
            "header {name:?} is not sent to port {port}: remove what is no header, and control characters"
        ));
    }
    let stream = connection::connect(get.host, addresses, port, end)?;
    let peer = stream.peer();
    let request = request(get, peer.ok());
    match &get.tls {
        None => answer(stream, &request, get),
        Some(trust) => {
            let stream = tls::secured(stream, trust, get)?;
            answer(stream, &request, get)
        }
    }
}

fn request(get: &HttpGet, peer: Option<IpAddr>) -> String {
    let (port, path) = (get.port, &get.path);
    let host = match peer {
        Some(peer) if !peer.is_loopback() && peer.is_ipv6() => format!("[{peer}]"),
        Some(peer) if !peer.is_loopback() => peer.to_string(),
        _ => "localhost".to_owned(),
    };
    let mut request = format!("GET {path} HTTP/1.1\r\n");
    let has = |wanted: &str| {
        let mut names = get.headers.iter().map(|(name, _)| name);
        names.any(|it| it.eq_ignore_ascii_case(wanted))
    };
    if !has("host") {
        _ = write!(request, "Host: {host}:{port}\r\n");
    }
    if !has("user-agent") {
        request.push_str("User-Agent: evenkeel-agent\r\n");
    }
    for (name, value) in &get.headers {
        _ = write!(request, "{name}: {value}\r\n");
    }
    request.push_str("Connection: close\r\n\r\n");
    request
}

/// Sends the request, and reads as much of the answer as tells whether it is healthy.
fn answer(mut stream: impl Read + Write, request: &str, get: &HttpGet) -> Result<(), String> {
    let (port, path) = (get.port, &get.path);
    let failed = |error: std::io::Error| format!("no answer from port {port} for {path}: {error}");
    stream.write_all(request.as_bytes()).map_err(failed)?;
    stream.flush().map_err(failed)?;
    let mut answer = Vec::new();
    let mut chunk = [0; 512];
    while !answer.windows(2).any(|it| it == b"\r\n") && answer.len() < MOST {
        let length = stream.read(&mut chunk).map_err(failed)?;
        if length == 0 {
            break;
        }
        answer.extend_from_slice(chunk.get(..length).unwrap_or_default());
    }
    let line = String::from_utf8_lossy(&answer);
    let line = line.lines().next().unwrap_or_default();
    let code = line
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1));
    match code.and_then(|code| code.parse::<u16>().ok()) {
        Some(200..=399) => Ok(()),
        Some(code) => Err(format!(
            "port {port} answers {path} with HTTP status {code}"
        )),
        None => Err(format!("the answer of port {port} for {path} is not HTTP")),
    }
}
