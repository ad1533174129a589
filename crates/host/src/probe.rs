//! Questions to what runs on this machine: whether it answers HTTP, takes a connection, or says by gRPC
//! that it serves. Each waits no longer than it is told.

mod connection;
mod grpc;
mod http;
mod tls;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use evenkeel_api::readiness::Check;

/// How much of an answer is read.
const MOST: usize = 64 << 10;

/// Asks, and says why the answer is not healthy. `addresses` are those of the node. A service, and a program, is asked of
/// whoever runs it, not here.
pub fn ask(check: &Check, addresses: &[IpAddr], timeout: Duration) -> Result<(), String> {
    let end = Instant::now() + timeout;
    match check {
        Check::TcpSocket { host, port } => {
            connection::connect(*host, addresses, *port, end).map(|_| ())
        }
        Check::HttpGet(get) => http::get(get, addresses, end),
        Check::Grpc {
            host,
            port,
            service,
        } => {
            let stream = connection::connect(*host, addresses, *port, end)?;
            grpc::check(stream, *port, service)
        }
        Check::UnixSocket { path } => socket(path, timeout),
        Check::Service { name } => Err(format!("service {name} cannot be probed here")),
        Check::Exec { .. } => Err(
            "exec probes run on Linux only: probe a port, a socket or a service instead".to_owned(),
        ),
    }
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use evenkeel_api::readiness::{HttpGet, ProbeHost};

    use super::*;

    const SOON: Duration = Duration::from_secs(2);

    fn get(port: u16, path: &str) -> Check {
        Check::HttpGet(HttpGet {
            port,
            path: path.to_owned(),
            ..HttpGet::default()
        })
    }

    fn tcp(port: u16) -> Check {
        Check::TcpSocket {
            host: ProbeHost::Loopback,
            port,
        }
    }

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
        assert!(ask(&check, &[], SOON).is_err(), "there is none");
        let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert!(ask(&check, &[], SOON).is_err(), "nobody listens");
        rustix::net::listen(&listener, 0).unwrap();
        assert_eq!(ask(&check, &[], SOON), Ok(()));
        // It takes nobody in: who comes after those that may wait is not answered, and comes back.
        let begun = Instant::now();
        let hangs = (0..4).map(|_| ask(&check, &[], Duration::from_millis(100)));
        assert!(hangs.filter(Result::is_err).count() >= 1);
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    }

    #[test]
    fn http_is_healthy_below_400_and_whatever_is_not_http_is_not() {
        let get = |port, path: &str| get(port, path);
        for (answer, is_healthy) in [
            (&b"HTTP/1.1 200 OK\r\n\r\n"[..], true),
            (b"HTTP/1.1 302 Found\r\n\r\n", true),
            (b"HTTP/1.0 503 Busy\r\n\r\n", false),
            (b"SSH-2.0-OpenSSH\r\n", false),
            (b"", false),
        ] {
            let port = server(answer);
            assert_eq!(
                ask(&get(port, "/healthz"), &[], SOON).is_ok(),
                is_healthy,
                "{answer:?}"
            );
        }
        let port = server(b"HTTP/1.1 503 Busy\r\n\r\n");
        assert_eq!(
            ask(&get(port, "/x"), &[], SOON),
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
            let why = ask(&get(port, &path), &[], SOON).unwrap_err();
            assert!(why.contains("is not sent to port"), "{why}");
            assert!(!why.contains(char::is_control), "{why}");
            assert!(listener.accept().is_err(), "somebody came");
        }
    }

    #[test]
    fn a_port_or_a_socket_is_healthy_when_it_accepts_a_connection() {
        let port = server(b"");
        assert_eq!(ask(&tcp(port), &[], SOON), Ok(()));
        let free = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        assert!(
            ask(&tcp(free), &[], SOON)
                .unwrap_err()
                .contains("cannot connect to port")
        );
        let nothing = Check::UnixSocket {
            path: "/nonexistent.sock".to_owned(),
        };
        assert!(ask(&nothing, &[], SOON).is_err());
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
            host: ProbeHost::Loopback,
            service: "csi".to_owned(),
        };
        assert_eq!(ask(&check(server(SERVING)), &[], SOON), Ok(()));
        assert_eq!(
            ask(&check(server(NOT)), &[], SOON),
            Err("the gRPC health status is NOT_SERVING".to_owned())
        );
        assert!(
            ask(&check(server(REFUSED)), &[], SOON)
                .unwrap_err()
                .contains("no such service")
        );
        assert!(ask(&check(server(b"HTTP/1.1 200 OK\r\n\r\n")), &[], SOON).is_err());
    }

    /// Reads a request from whoever connects, and answers it.
    fn respond(mut stream: impl Read + Write, answer: &[u8]) -> Option<String> {
        let mut ask = Vec::new();
        let mut chunk = [0; 1024];
        while !ask.windows(4).any(|it| it == b"\r\n\r\n") {
            let length = stream.read(&mut chunk).ok().filter(|it| *it > 0)?;
            ask.extend_from_slice(&chunk[..length]);
        }
        stream.write_all(answer).ok()?;
        stream.flush().ok()?;
        String::from_utf8(ask).ok()
    }

    /// A real server with TLS at `address`, whose certificate is for `names`; its CA in PEM, and what it is asked.
    fn https(address: &str, names: &[&str]) -> (u16, String, std::sync::mpsc::Receiver<String>) {
        use rustls::pki_types::{CertificateDer, PrivateKeyDer};

        let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        parameters
            .distinguished_name
            .push(rcgen::DnType::CommonName, "a CA");
        let key = rcgen::KeyPair::generate().unwrap();
        let ca = rcgen::CertifiedIssuer::self_signed(parameters, key).unwrap();
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        let key = rcgen::KeyPair::generate().unwrap();
        let own = rcgen::CertificateParams::new(names).unwrap();
        let own = own.signed_by(&key, &ca).unwrap();
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![CertificateDer::from(own.der().to_vec())], key)
            .unwrap();
        let config = std::sync::Arc::new(config);
        let listener = TcpListener::bind((address, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let session = rustls::ServerConnection::new(config.clone()).unwrap();
                let stream = rustls::StreamOwned::new(session, stream);
                if let Some(asked) = respond(stream, b"HTTP/1.1 204 Fine\r\n\r\n") {
                    _ = tell.send(asked);
                }
            }
        });
        (port, ca.pem(), told)
    }

    /// Covers N04.
    #[test]
    fn https_is_healthy_with_the_right_ca_and_name_or_without_any() {
        let (port, pem, told) = https("127.0.0.1", &["localhost", "csi.example.com"]);
        let (other_port, other, _) = https("127.0.0.1", &["10.9.9.9"]);
        let ca = |pem: &str, name: &str| evenkeel_api::readiness::ProbeTls::Ca {
            pem: pem.to_owned(),
            server_name: name.to_owned(),
        };
        let asked = |port, tls| {
            let get = HttpGet {
                port,
                path: "/livez".to_owned(),
                headers: vec![
                    ("X-Scope".to_owned(), "node".to_owned()),
                    ("host".to_owned(), "csi".to_owned()),
                ],
                tls: Some(tls),
                host: ProbeHost::Loopback,
            };
            ask(&Check::HttpGet(get), &[], SOON)
        };
        assert_eq!(asked(port, ca(&pem, "")), Ok(()));
        let request = told.recv_timeout(SOON).unwrap();
        assert_eq!(
            request,
            "GET /livez HTTP/1.1\r\nUser-Agent: evenkeel-agent\r\nX-Scope: node\r\nhost: csi\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(asked(port, ca(&pem, "csi.example.com")), Ok(()));
        let unverified = evenkeel_api::readiness::ProbeTls::Unverified;
        assert_eq!(asked(other_port, unverified.clone()), Ok(()));
        for (port, tls, why) in [
            (port, ca(&other, ""), "invalid peer certificate"),
            (port, ca(&pem, "other.example.com"), "NotValidForName"),
            (other_port, ca(&other, ""), "NotValidForName"),
            (
                port,
                ca("-----BEGIN CERTIFICATE-----", ""),
                "the ca of the probe cannot be read",
            ),
        ] {
            let said = asked(port, tls).unwrap_err();
            assert!(
                said.to_lowercase()
                    .replace(' ', "")
                    .contains(&why.to_lowercase().replace(' ', "")),
                "{why}: {said}"
            );
        }
        // Who speaks no TLS, or nothing at all, is no server with TLS.
        let plain = server(b"HTTP/1.1 200 OK\r\n\r\n");
        assert!(asked(plain, unverified.clone()).is_err());
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let begun = Instant::now();
        assert!(asked(silent.local_addr().unwrap().port(), unverified).is_err());
        assert!(begun.elapsed() < SOON * 2, "{:?}", begun.elapsed());
    }

    /// Covers N04.
    #[test]
    fn what_listens_on_ipv6_alone_is_reached_and_what_is_another_machine_is_not_asked() {
        if let Ok(listener) = TcpListener::bind("[::1]:0") {
            let port = listener.local_addr().unwrap().port();
            assert_eq!(ask(&tcp(port), &[], SOON), Ok(()), "loopback is either");
            let at = |host| Check::TcpSocket { host, port };
            let v6 = ProbeHost::read("::1").unwrap();
            assert_eq!(ask(&at(v6), &[], SOON), Ok(()));
            let v4 = ProbeHost::read("127.0.0.1").unwrap();
            assert!(ask(&at(v4), &[], SOON).is_err());
            let (port, pem, told) = https("::1", &["::1"]);
            let get = HttpGet {
                port,
                path: "/".to_owned(),
                host: v6,
                tls: Some(evenkeel_api::readiness::ProbeTls::Ca {
                    pem,
                    server_name: String::new(),
                }),
                ..HttpGet::default()
            };
            assert_eq!(ask(&Check::HttpGet(get), &[], SOON), Ok(()));
            assert!(told.recv_timeout(SOON).is_ok());
        }
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let at = |host| Check::TcpSocket { host, port };
        // The way to a documentation address begins at our own, if there is a way.
        let probe = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        let own = probe
            .connect("192.0.2.1:9")
            .and_then(|()| probe.local_addr());
        if let Ok(own) = own {
            let node = [IpAddr::from([192, 0, 2, 1]), own.ip()];
            assert_eq!(ask(&at(ProbeHost::At(own.ip())), &[], SOON), Ok(()));
            assert_eq!(ask(&at(ProbeHost::Node), &node, SOON), Ok(()));
        }
        for (host, addresses) in [
            (ProbeHost::read("192.0.2.1").unwrap(), &[][..]),
            (ProbeHost::read("0.0.0.0").unwrap(), &[]),
            (ProbeHost::Node, &[IpAddr::from([192, 0, 2, 1])]),
        ] {
            let why = ask(&at(host), addresses, SOON).unwrap_err();
            assert!(why.contains("is not an address of this node"), "{why}");
        }
        assert!(ask(&at(ProbeHost::Node), &[], SOON).is_err());
    }

    /// Covers N04.
    #[test]
    fn a_server_that_answers_slowly_costs_no_more_than_the_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                while stream.write_all(b"x").is_ok() {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        });
        let begun = Instant::now();
        assert!(ask(&get(port, "/"), &[], Duration::from_millis(200)).is_err());
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    }
}
