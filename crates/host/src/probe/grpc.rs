//! gRPC's health service. So little of HTTP/2 is needed for one call of it that a whole client would be larger than the
//! agent's other questions together.

use std::io::{Read, Write};

use super::MOST;
use super::connection::Connection;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// One call of `grpc.health.v1.Health/Check`.
pub(super) fn check(mut stream: Connection, port: u16, service: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("no gRPC answer from port {port}: {error}");
    let mut headers = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/grpc.health.v1.Health/Check"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        // A field as it stands, without tables and codes.
        headers.push(0);
        for text in [name, value] {
            headers.push(u8::try_from(text.len()).unwrap_or_default());
            headers.extend_from_slice(text.as_bytes());
        }
    }
    let length = u8::try_from(service.len()).ok().filter(|it| *it < 128);
    let length = length.ok_or("the gRPC service name is too long")?;
    let mut message = Vec::new();
    if length > 0 {
        message.extend([0x0a, length]);
        message.extend_from_slice(service.as_bytes());
    }
    let size = u8::try_from(message.len()).unwrap_or_default();
    let body = [&[0, 0, 0, 0, size][..], &message].concat();
    let ask = [
        PREFACE.to_vec(),
        frame(SETTINGS, 0, 0, &[]),
        frame(HEADERS, END_HEADERS, 1, &headers),
        frame(DATA, END_STREAM, 1, &body),
    ]
    .concat();
    stream.write_all(&ask).map_err(failed)?;
    let mut body = Vec::new();
    while body.len() < MOST {
        let mut head = [0; 9];
        stream.read_exact(&mut head).map_err(failed)?;
        let [a, b, c, kind, flags, ..] = head;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        if length > MOST {
            break;
        }
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).map_err(failed)?;
        match kind {
            SETTINGS if flags & ACK == 0 => {
                stream
                    .write_all(&frame(SETTINGS, ACK, 0, &[]))
                    .map_err(failed)?;
            }
            PING if flags & ACK == 0 => {
                stream
                    .write_all(&frame(PING, ACK, 0, &payload))
                    .map_err(failed)?;
            }
            DATA => {
                body.extend_from_slice(&payload);
                if let Some(serves) = serves(&body) {
                    return serves;
                }
            }
            HEADERS if flags & END_STREAM != 0 => {
                return Err(format!(
                    "port {port} refuses the gRPC health check of {service:?}: it has no such service, or serves no health checks"
                ));
            }
            RESET | GO_AWAY => return Err(format!("port {port} ended the gRPC call")),
            _ => {}
        }
    }
    Err(format!("the gRPC answer of port {port} is too long"))
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [.., a, b, c] = payload.len().to_be_bytes();
    let mut frame = vec![a, b, c, kind, flags, 0, 0, 0, stream];
    frame.extend_from_slice(payload);
    frame
}

/// What the answer says, when all of it is there.
fn serves(body: &[u8]) -> Option<Result<(), String>> {
    let (head, message) = body.split_at_checked(5)?;
    let length = head
        .iter()
        .skip(1)
        .fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte));
    let message = message.get(..length)?;
    // The one field is the status; without it, it is 0.
    let status = match message {
        [0x08, status, ..] => *status,
        _ => 0,
    };
    Some(match status {
        1 => Ok(()),
        2 => Err("the gRPC health status is NOT_SERVING".to_owned()),
        3 => Err("the gRPC health status is SERVICE_UNKNOWN".to_owned()),
        other => Err(format!("the gRPC health status is {other}")),
    })
}
