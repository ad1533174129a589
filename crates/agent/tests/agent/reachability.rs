//! An agent that cannot reach its API server says so within seconds, and is not ready. It runs here on an empty folder
//! instead of a machine: nobody tells it to change anything.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use evenkeel_testbed::api_proxy::ApiProxy;
use evenkeel_testbed::blackhole::Blackhole;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::kubeconfig::Kubeconfig;
use evenkeel_testbed::process::Running;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::{Doing, Error, Result, need};

use super::scene::{SOON, cluster, login};

/// Within so long it says what it cannot reach.
const PROMISED: Duration = Duration::from_secs(10);

struct Agent {
    _program: Running,
    scratch: Scratch,
    port: u16,
}

impl Agent {
    fn start(node: &str, login: &Kubeconfig) -> Result<Self> {
        let scratch = Scratch::new("reach")?;
        let root = scratch.path().join("root");
        std::fs::create_dir(&root).doing(|| "no folder")?;
        let kubeconfig = scratch.path().join("kubeconfig");
        login.write(&kubeconfig)?;
        let bound = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
        let port = bound.doing(|| "no port")?.port();
        let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_evenkeel-agent")));
        command
            .args(["controller", "--node-name", node])
            .arg("--root")
            .arg(&root)
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .args(["--listen", &format!("127.0.0.1:{port}")]);
        let log = scratch.path().join("log");
        Ok(Self {
            _program: Running::start("evenkeel-agent", &mut command, &log)?,
            scratch,
            port,
        })
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.path().join("log")).unwrap_or_default()
    }

    /// Waits until the log has a line with all of `words`.
    fn logs(&self, words: &[&str], limit: Duration) -> Result<()> {
        until(&format!("a line with {words:?}"), limit, || {
            let log = self.log();
            let is_it = |line: &str| words.iter().all(|it| line.contains(it));
            Ok(if log.lines().any(is_it) {
                Look::Found(())
            } else {
                Look::NotYet(log)
            })
        })
    }

    fn page(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).doing(|| "no answer")?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").doing(|| "cannot ask")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).doing(|| "no answer")?;
        Ok(answer)
    }

    /// Waits until a page says `words`.
    fn says(&self, path: &str, words: &str) -> Result<()> {
        until(&format!("{path} to say {words:?}"), SOON, || {
            Ok(match self.page(path) {
                Ok(answer) if answer.contains(words) => Look::Found(()),
                Ok(answer) => Look::NotYet(answer),
                Err(error) => Look::NotYet(error.to_string()),
            })
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_packets_are_dropped_it_says_so_and_is_not_ready_until_it_has_connected() -> Result<()>
{
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let hole = Blackhole::open().await?;
    let address = hole.address();
    let agent = Agent::start("dropped", &login("dropped")?.at(&address.to_string()))?;
    let cannot =
        format!("cannot reach the API server at https://{address}: no connection within 5 s");
    agent.logs(&[&cannot], PROMISED)?;
    agent.says("/readyz", &format!("[-] api-server: {cannot}"))?;
    let answer = agent.page("/readyz")?;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    agent.says("/healthz", &format!("[!] api-server: {cannot}"))?;
    agent.says("/metrics", "\nevenkeel_apiserver_reachable 0\n")?;

    drop(hole);
    let _proxy = ApiProxy::at(address, cluster()?.address())?;
    agent.logs(&["connected to the API server"], SOON)?;
    agent.says("/readyz", "[+] api-server\n")?;
    agent.says("/metrics", "\nevenkeel_apiserver_reachable 1\n")
}

/// An API server that answers, but not about the agent's own Node.
#[tokio::test(flavor = "multi_thread")]
async fn before_it_has_heard_of_its_node_it_is_not_ready() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let agent = Agent::start("unheard", &cluster()?.kubeconfig_for_user("nobody", &[])?)?;
    agent.says("/readyz", "[+] api-server\n")?;
    agent.logs(&["forbidden"], SOON)?;
    let answer = agent.page("/readyz")?;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("[-] node"), "{answer}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connection_and_a_certificate_that_nobody_trusts_are_named() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bound = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
    let nobody = bound.doing(|| "no port")?.to_string();
    let login = login("refused")?;
    let agent = Agent::start("refused", &login.at(&nobody))?;
    let cannot = format!("cannot reach the API server at https://{nobody}: nothing listens there");
    agent.logs(&[&cannot, "Connection refused"], PROMISED)?;
    drop(agent);

    let other = rcgen::generate_simple_self_signed(vec!["other".to_owned()])
        .map_err(|error| Error::failed(error.to_string()))?;
    let untrusted = Kubeconfig::with_token(login.server(), &other.cert.pem(), "token")?;
    let agent = Agent::start("untrusted", &untrusted)?;
    let cannot = format!(
        "cannot reach the API server at {}: TLS fails",
        login.server()
    );
    agent.logs(&[&cannot, "UnknownIssuer"], PROMISED)
}
