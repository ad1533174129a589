//! A real Prometheus server: what it has heard of whom, asked with its own `promtool`. Alerts are judged without one, in
//! [`alerts`](crate::alerts).

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use kube::api::ListParams;
use serde_json::Value;

use crate::go_module::{GoModule, GoProgram, GoTool};
use crate::need::Need;
use crate::process::{Running, output, run};
use crate::scratch::Scratch;
use crate::wait::{Look, until};
use crate::{Doing, Result};

const NAME: &str = "github.com/prometheus/prometheus";

const MODULE: GoModule = GoModule {
    folder: "promtool",
    go_mod: include_str!("../promtool/go.mod"),
    go_sum: include_str!("../promtool/go.sum"),
    own: &[],
    otherwise: "set PROMETHEUS to the path of a prometheus program",
};

pub(crate) const PROMTOOL: GoTool = GoTool {
    module: GoModule {
        otherwise: "set PROMTOOL to the path of a promtool program",
        ..MODULE
    },
    program: GoProgram {
        name: "promtool",
        package: "github.com/prometheus/prometheus/cmd/promtool",
        tags: "",
        takes: "4 minutes",
    },
    version_of: NAME,
    variable: "PROMTOOL",
};

const SERVER: GoTool = GoTool {
    module: MODULE,
    program: GoProgram {
        name: "prometheus",
        package: "github.com/prometheus/prometheus/cmd/prometheus",
        // It finds whom to ask in Kubernetes, and nowhere else.
        tags: "remove_all_sd,enable_kubernetes_sd",
        takes: "4 minutes",
    },
    version_of: NAME,
    variable: "PROMETHEUS",
};

/// The kinds by which the Prometheus Operator is told what to scrape.
const MONITORS: GoModule = GoModule {
    folder: "monitors",
    go_mod: include_str!("../monitors/go.mod"),
    go_sum: include_str!("../monitors/go.sum"),
    own: &[],
    otherwise: "run the tests that need no test bed",
};
const OPERATOR: &str = "github.com/prometheus-operator/prometheus-operator";

/// How long a start may take on a busy machine.
const START: Duration = Duration::from_mins(1);

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct Prometheus {
    program: Running,
    address: String,
    _files: Scratch,
}

impl Prometheus {
    /// What a test with one needs. It is made by the first test that starts one.
    pub const NEEDS: &[Need] = &[Need::Made(can_be_had)];

    /// What a test with [`kinds`](Self::kinds) needs.
    pub const KINDS: &[Need] = &[Need::Made(kinds_can_be_had)];

    /// The folder with the definitions of `ServiceMonitor`, `PodMonitor` and `PrometheusRule`.
    pub fn kinds() -> Result<PathBuf> {
        let definitions = ["servicemonitors", "podmonitors", "prometheusrules"]
            .map(|it| format!("example/prometheus-operator-crd/monitoring.coreos.com_{it}.yaml"));
        let definitions: Vec<&str> = definitions.iter().map(String::as_str).collect();
        MONITORS.sources(OPERATOR, &definitions)
    }

    /// Starts one with this configuration, and waits until it answers.
    pub fn start(configuration: &Value) -> Result<Self> {
        let files = Scratch::new("prometheus")?;
        let file = files.path().join("prometheus.yaml");
        // All JSON is YAML, too.
        std::fs::write(&file, configuration.to_string())
            .doing(|| "cannot write prometheus.yaml")?;
        run(Command::new(PROMTOOL.find()?)
            .args(["check", "config"])
            .arg(&file))?;
        let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|it| it.local_addr());
        let address = free
            .doing(|| "no port is free on this machine")?
            .to_string();
        let mut command = Command::new(SERVER.find()?);
        command
            .current_dir(files.path())
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                files.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={address}"));
        let log = files.path().join("log");
        let mut server = Self {
            program: Running::start("prometheus", &mut command, &log)?,
            address,
            _files: files,
        };
        until("Prometheus to be ready", START, || {
            server.program.still_runs()?;
            let url = format!("--url={}", server.url());
            let ready = output(
                Command::new(PROMTOOL.find()?).args(["check", "ready", &url]),
                &[],
            )?;
            Ok(if ready.status.success() {
                Look::Found(())
            } else {
                Look::NotYet(server.program.last_words())
            })
        })?;
        Ok(server)
    }

    /// The series that `expression` has now, each with `metric` (its labels) and `value`.
    pub fn ask(&mut self, expression: &str) -> Result<Vec<Value>> {
        self.program.still_runs()?;
        let said = run(Command::new(PROMTOOL.find()?).args([
            "query",
            "instant",
            "--format=json",
            &self.url(),
            expression,
        ]))?;
        serde_json::from_str(&said).doing(|| format!("promtool said no JSON of {expression}"))
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

fn kinds_can_be_had() -> Result<()> {
    MONITORS.can_be_fetched(OPERATOR)
}

fn can_be_had() -> Result<()> {
    SERVER.can_be_had()?;
    PROMTOOL.can_be_had()
}

/// What `/metrics` at this address answers whoever has this token, or none: the HTTP status.
pub async fn answer(address: &str, token: Option<&str>) -> Result<u16> {
    let url = format!("https://{address}");
    let mut config = kube::Config::new(url.parse().doing(|| format!("{url} is no address"))?);
    // Agents make their own certificates.
    config.accept_invalid_certs = true;
    config.proxy_url = None;
    config.default_retry = false;
    config.auth_info.token = token.map(Into::into);
    let client = kube::Client::try_from(config).doing(|| format!("cannot ask {url}"))?;
    let mut request = kube::core::Request::new("/")
        .list(&ListParams::default())
        .doing(|| "cannot ask for metrics")?;
    *request.uri_mut() = "/metrics".parse().doing(|| "no path")?;
    let answer = client.send(request.map(Into::into)).await;
    let answer = answer.doing(|| format!("{url} does not answer"))?;
    Ok(answer.status().as_u16())
}
