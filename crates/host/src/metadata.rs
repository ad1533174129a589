//! What a cloud tells a machine of it: one question and one short answer over plain HTTP, past any proxy.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use evenkeel_plan::windows::node_name::MetadataRequest;

use crate::{Error, Result};

/// How long the cloud may take for each part of an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// No answer that is asked for here is longer.
const LONGEST: u64 = 16 * 1024;

/// What is answered at `base` (`http://169.254.169.254`).
pub fn ask(base: &str, request: &MetadataRequest) -> Result<String> {
    let url = format!("{}{}", base.trim_end_matches('/'), request.path);
    answered(base, request).map_err(|error| Error::path("read", url, error))
}

fn answered(base: &str, request: &MetadataRequest) -> io::Result<String> {
    let host = base.strip_prefix("http://").unwrap_or(base);
    let host = host.trim_end_matches('/');
    let address = if host.contains(':') {
        host.to_socket_addrs()?.next()
    } else {
        (host, 80).to_socket_addrs()?.next()
    };
    let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let MetadataRequest {
        method,
        path,
        header: (header, value),
    } = request;
    // Version 1.0: the answer ends with the connection, and comes in one piece.
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: {host}\r\n{header}: {value}\r\nContent-Length: 0\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or_else(|| io::Error::other("the answer is not HTTP"))?;
    let status = head.lines().next().unwrap_or_default();
    if status.split_whitespace().nth(1) == Some("200") {
        Ok(body.trim().to_owned())
    } else {
        Err(io::Error::other(format!("the answer is {status:?}")))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    use evenkeel_plan::windows::node_name::Platform;

    use super::*;

    /// Answers as many questions as there are answers, and says what was asked.
    fn cloud(answers: &'static [&'static str]) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let served = std::thread::spawn(move || {
            let mut asked = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let lines = lines.map(|it| it.unwrap()).take_while(|it| !it.is_empty());
                asked.push(lines.collect::<Vec<_>>().join("\n"));
                stream.write_all(answer.as_bytes()).unwrap();
            }
            asked
        });
        (base, served)
    }

    /// Covers W02.
    #[test]
    fn a_cloud_is_asked_for_leave_and_then_for_the_name() {
        let (base, served) = cloud(&[
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\ntoken",
            "HTTP/1.1 200 OK\r\n\r\nip-10-0-0-1.ec2.internal\n",
            "HTTP/1.1 401 Unauthorized\r\n\r\nwho are you",
            "220 mail.example.com",
        ]);
        let token = ask(&base, &Platform::Aws.token_request().unwrap()).unwrap();
        let request = Platform::Aws.name_request(&token).unwrap();
        assert_eq!(ask(&base, &request).unwrap(), "ip-10-0-0-1.ec2.internal");
        for words in ["401 Unauthorized", "not HTTP"] {
            let said = ask(&base, &request).unwrap_err().with_causes();
            assert!(said.contains(words) && said.contains(&base), "{said}");
        }
        let asked = served.join().unwrap();
        assert!(asked[0].starts_with("PUT /latest/api/token HTTP/1.0\n"));
        assert!(
            asked[1].contains("\nX-aws-ec2-metadata-token: token\n"),
            "{asked:?}"
        );
        let gone = ask(&base, &request).unwrap_err().with_causes();
        assert!(gone.contains("cannot read http://"), "{gone}");
    }
}
