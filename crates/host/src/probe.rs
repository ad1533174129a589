//! Questions to what runs on this machine: whether it answers HTTP, takes a connection, or says by gRPC
//! that it serves. Each waits no longer than it is told.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use evenkeel_api::readiness::Check;

/// How much of an answer is read.
const MOST: usize = 64 << 10;

/// Asks, and says why the answer is not healthy. A service is asked of whoever runs it, not here.
pub fn ask(check: &Check, timeout: Duration) -> Result<(), String> {
    match check {
        Check::TcpSocket { port } => connect(*port, timeout).map(|_| ()),
        Check::HttpGet { port, path } => http(*port, path, timeout),
        Check::Grpc { port, service } => grpc(*port, service, timeout),
        Check::UnixSocket { path } => socket(path, timeout),
        Check::Service { name } => Err(format!("service {name} cannot be probed here")),
    }
}

fn connect(port: u16, timeout: Duration) -> Result<TcpStream, String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&address, timeout)
        .map_err(|error| format!("cannot connect to port {port}: {error}"))?;
    let limit = Some(timeout);
    let limited = stream
        .set_read_timeout(limit)
        .and_then(|()| stream.set_write_timeout(limit));
    limited.map_err(|error| error.to_string())?;
    Ok(stream)
}

#[cfg(target_os = "linux")]
fn socket(path: &str, timeout: Duration) -> Result<(), String> {
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

    let refused = |error: Errno| format!("cannot connect to socket {path}: {error}");
    let address = SocketAddrUnix::new(path).map_err(refused)?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = socket.map_err(refused)?;
    let end = Instant::now() + timeout;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(()),
            // As many wait as it lets wait: whoever does not take them does not serve.
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => return Err(refused(error)),
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn socket(path: &str, _: Duration) -> Result<(), String> {
    // A named pipe or a socket file: it can be opened as long as somebody serves it.
    let opened = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path);
    opened
        .map(|_| ())
        .map_err(|error| format!("cannot open {path}: {error}"))
}

fn http(port: u16, path: &str, timeout: Duration) -> Result<(), String> {
    // A blank or the end of a line in it would make another question of it.
    if path.contains(|it: char| it.is_control() || it.is_whitespace()) {
        return Err(format!(
            "path {path:?} is not sent to port {port}: remove its blanks and control characters"
        ));
    }
    let failed = |error: std::io::Error| format!("no answer from port {port} for {path}: {error}");
    let mut stream = connect(port, timeout)?;
    let ask = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nUser-Agent: evenkeel-agent\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(ask.as_bytes()).map_err(failed)?;
    let end = Instant::now() + timeout;
    let mut answer = Vec::new();
    let mut chunk = [0; 512];
    while !answer.windows(2).any(|it| it == b"\r\n") && answer.len() < MOST {
        let length = stream.read(&mut chunk).map_err(failed)?;
        if length == 0 || Instant::now() > end {
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

/// One call of `grpc.health.v1.Health/Check`: so little of HTTP/2 is needed for it that a whole client
/// would be larger than the agent's other questions together.
fn grpc(port: u16, service: &str, timeout: Duration) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("no gRPC answer from port {port}: {error}");
    let mut stream = connect(port, timeout)?;
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
    let end = Instant::now() + timeout;
    let mut body = Vec::new();
    while Instant::now() < end && body.len() < MOST {
        let mut head = [0; 9];
        stream.read_exact(&mut head).map_err(failed)?;
        let [a, b, c, kind, flags, ..] = head;
        let mut payload = vec![0; usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)];
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
    Err(format!(
        "no gRPC answer from port {port} within {timeout:?}"
    ))
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const SOON: Duration = Duration::from_secs(2);

    /// Answers each connection with these bytes, after it has read some.
    fn server(answer: &'static [u8]) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut stream = stream;
                let mut ask = [0; 4096];
                _ = stream.read(&mut ask);
                _ = stream.write_all(answer);
            }
        });
        port
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_socket_is_healthy_while_it_accepts_connections_and_nobody_waits_for_one_that_hangs() {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plugin.sock");
        let check = Check::UnixSocket {
            path: path.display().to_string(),
        };
        assert!(ask(&check, SOON).is_err(), "there is none");
        let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert!(ask(&check, SOON).is_err(), "nobody listens");
        rustix::net::listen(&listener, 0).unwrap();
        assert_eq!(ask(&check, SOON), Ok(()));
        // It takes nobody in: who comes after those that may wait is not answered, and comes back.
        let begun = Instant::now();
        let hangs = (0..4).map(|_| ask(&check, Duration::from_millis(100)));
        assert!(hangs.filter(Result::is_err).count() >= 1);
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    }

    #[test]
    fn http_is_healthy_below_400_and_whatever_is_not_http_is_not() {
        let get = |port, path: &str| Check::HttpGet {
            port,
            path: path.to_owned(),
        };
        for (answer, is_healthy) in [
            (&b"HTTP/1.1 200 OK\r\n\r\n"[..], true),
            (b"HTTP/1.1 302 Found\r\n\r\n", true),
            (b"HTTP/1.0 503 Busy\r\n\r\n", false),
            (b"SSH-2.0-OpenSSH\r\n", false),
            (b"", false),
        ] {
            let port = server(answer);
            assert_eq!(
                ask(&get(port, "/healthz"), SOON).is_ok(),
                is_healthy,
                "{answer:?}"
            );
        }
        let port = server(b"HTTP/1.1 503 Busy\r\n\r\n");
        assert_eq!(
            ask(&get(port, "/x"), SOON),
            Err(format!("port {port} answers /x with HTTP status 503"))
        );
    }

    /// Covers S09.
    #[test]
    fn a_path_that_would_be_more_than_a_path_is_never_sent() {
        for path in [
            "/x HTTP/1.1\r\nHost: other",
            "/x\nX-Token: y",
            "/a b",
            "/a\0",
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let port = listener.local_addr().unwrap().port();
            let path = path.to_owned();
            let why = ask(&Check::HttpGet { port, path }, SOON).unwrap_err();
            assert!(why.contains("is not sent to port"), "{why}");
            assert!(!why.contains(char::is_control), "{why}");
            assert!(listener.accept().is_err(), "somebody came");
        }
    }

    #[test]
    fn a_port_or_a_socket_is_healthy_when_it_accepts_a_connection() {
        let port = server(b"");
        assert_eq!(ask(&Check::TcpSocket { port }, SOON), Ok(()));
        let free = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        assert!(
            ask(&Check::TcpSocket { port: free }, SOON)
                .unwrap_err()
                .contains("cannot connect to port")
        );
        let nothing = Check::UnixSocket {
            path: "/nonexistent.sock".to_owned(),
        };
        assert!(ask(&nothing, SOON).is_err());
    }

    #[test]
    fn grpc_is_healthy_when_it_says_serving() {
        // Settings, the headers of the answer, and a message with one field: the status.
        const SERVING: &[u8] = &[
            0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88, 0, 0, 7, 0, 0, 0, 0, 0, 1,
            0, 0, 0, 0, 2, 8, 1,
        ];
        const NOT: &[u8] = &[
            0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 2, 8, 2,
        ];
        const REFUSED: &[u8] = &[0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88];
        let check = |port| Check::Grpc {
            port,
            service: "csi".to_owned(),
        };
        assert_eq!(ask(&check(server(SERVING)), SOON), Ok(()));
        assert_eq!(
            ask(&check(server(NOT)), SOON),
            Err("the gRPC health status is NOT_SERVING".to_owned())
        );
        assert!(
            ask(&check(server(REFUSED)), SOON)
                .unwrap_err()
                .contains("no such service")
        );
        assert!(ask(&check(server(b"HTTP/1.1 200 OK\r\n\r\n")), SOON).is_err());
    }
}
