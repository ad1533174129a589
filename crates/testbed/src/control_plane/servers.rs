//! The four servers of a control plane as processes: their arguments, their ports and their logs.
//! What a test does with them is in [`super::ControlPlane`].

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::ops::Range;
use std::path::PathBuf;
use std::time::SystemTime;

use super::audit;
use super::authority::{self, Authority};
use super::programs::Programs;
use crate::kubeconfig::Kubeconfig;
use crate::process::Running;
use crate::scratch::Scratch;
use crate::{Doing, Error, Result, network};

/// The address of the Service of the API server: the first of its range.
pub(super) const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

/// Files and arguments shared by the servers.
pub(super) struct Servers {
    pub(super) programs: Programs,
    pub(super) authority: Authority,
    scratch: Scratch,
}

impl Servers {
    /// Writes keys and certificates down.
    pub(super) fn new(programs: Programs) -> Result<Self> {
        let servers = Self {
            programs,
            authority: Authority::new()?,
            scratch: Scratch::new("control-plane")?,
        };
        let api_server = servers.authority.server(
            &["localhost", "kubernetes", "kubernetes.default.svc"],
            &[
                IpAddr::V4(Ipv4Addr::LOCALHOST),
                IpAddr::V4(network::GATEWAY),
                IpAddr::V4(SERVICE),
            ],
        )?;
        let to_kubelets =
            servers
                .authority
                .client("kube-apiserver-kubelet-client", &["system:masters"], None)?;
        let tokens = authority::key()?;
        for (name, text) in [
            ("ca.crt", servers.authority.certificate()),
            ("ca.key", servers.authority.key()),
            ("api-server.crt", api_server.certificate),
            ("api-server.key", api_server.key),
            ("kubelet-client.crt", to_kubelets.certificate),
            ("kubelet-client.key", to_kubelets.key),
            ("tokens.key", tokens.serialize_pem()),
            ("tokens.pub", tokens.public_key_pem()),
            (audit::POLICY_FILE, audit::POLICY.to_owned()),
        ] {
            std::fs::write(servers.file(name), text).doing(|| format!("cannot write {name}"))?;
        }
        Ok(servers)
    }

    /// The path of a file of this control plane.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// A login by certificate at the API server on `port`.
    pub(super) fn login(
        &self,
        port: u16,
        user: &str,
        groups: &[&str],
        holds: Option<Range<SystemTime>>,
    ) -> Result<Kubeconfig> {
        let pair = self.authority.client(user, groups, holds)?;
        Kubeconfig::with_certificate(
            &server(port),
            &self.authority.certificate(),
            &pair.certificate,
            &pair.key,
        )
    }

    /// The store. Nothing is flushed to disk: it need not survive this machine.
    pub(super) fn etcd(&self, port: u16) -> Result<Running> {
        let data = self.file(&format!("etcd-{port}"));
        let mut command = self.programs.command("etcd");
        command.args([
            "--unsafe-no-fsync".to_owned(),
            "--log-level=warn".to_owned(),
            format!("--data-dir={}", data.display()),
            format!("--listen-client-urls=http://127.0.0.1:{port}"),
            format!("--advertise-client-urls=http://127.0.0.1:{port}"),
            // It has no peers, so nobody needs to know this port.
            "--listen-peer-urls=http://127.0.0.1:0".to_owned(),
        ]);
        Running::start("etcd", &mut command, &self.file("etcd.log"))
    }

    /// The API server. It listens on every address, so that test hosts in networks of their own
    /// reach it at the gateway.
    pub(super) fn api_server(&self, port: u16, etcd_port: u16) -> Result<Running> {
        let mut command = self.programs.command("kube-apiserver");
        command.args([
            format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
            "--bind-address=0.0.0.0".to_owned(),
            format!("--secure-port={port}"),
            format!("--advertise-address={}", network::GATEWAY),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--profiling=false".to_owned(),
            self.flag("tls-cert-file", "api-server.crt"),
            self.flag("tls-private-key-file", "api-server.key"),
            self.flag("client-ca-file", "ca.crt"),
            // A name of a node says nothing to this machine.
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            self.flag("kubelet-client-certificate", "kubelet-client.crt"),
            self.flag("kubelet-client-key", "kubelet-client.key"),
            self.flag("service-account-key-file", "tokens.pub"),
            self.flag("service-account-signing-key-file", "tokens.key"),
            self.flag("audit-policy-file", audit::POLICY_FILE),
            self.flag("audit-log-path", audit::LOG),
        ]);
        Running::start("kube-apiserver", &mut command, &self.file("api-server.log"))
    }

    /// The controllers, with more requests a second than their default of 20, which would make a
    /// thousand nodes take minutes. The node life cycle keeps its own times.
    pub(super) fn controllers(&self, port: u16) -> Result<Running> {
        let login = "controllers.kubeconfig";
        self.login(
            port,
            "system:kube-controller-manager",
            &["system:masters"],
            None,
        )?
        .write(&self.file(login))?;
        let mut command = self.programs.command("kube-controller-manager");
        command.args([
            self.flag("kubeconfig", login),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            "--kube-api-qps=2000".to_owned(),
            "--kube-api-burst=4000".to_owned(),
            "--concurrent-gc-syncs=4".to_owned(),
            self.flag("cluster-signing-cert-file", "ca.crt"),
            self.flag("cluster-signing-key-file", "ca.key"),
            self.flag("root-ca-file", "ca.crt"),
            self.flag("service-account-private-key-file", "tokens.key"),
        ]);
        let log = self.file("controllers.log");
        Running::start("kube-controller-manager", &mut command, &log)
    }

    /// The scheduler.
    pub(super) fn scheduler(&self, port: u16) -> Result<Running> {
        let login = self.file("scheduler.kubeconfig");
        self.login(port, "system:kube-scheduler", &[], None)?
            .write(&login)?;
        let config = self.file("scheduler.yaml");
        let text = format!(
            "apiVersion: kubescheduler.config.k8s.io/v1\n\
             kind: KubeSchedulerConfiguration\n\
             leaderElection:\n  leaderElect: false\n\
             clientConnection:\n  kubeconfig: {}\n  qps: 2000\n  burst: 4000\n",
            login.display()
        );
        std::fs::write(&config, text).doing(|| "cannot write scheduler.yaml")?;
        let mut command = self.programs.command("kube-scheduler");
        command.args([
            format!("--config={}", config.display()),
            "--secure-port=0".to_owned(),
        ]);
        Running::start("kube-scheduler", &mut command, &self.file("scheduler.log"))
    }

    fn flag(&self, name: &str, file: &str) -> String {
        format!("--{name}={}", self.file(file).display())
    }
}

/// The URL of the API server on `port`, as this machine reaches it.
pub(super) fn server(port: u16) -> String {
    format!("https://127.0.0.1:{port}")
}

/// A port that nothing listens on now. Something may, before its server does.
pub(super) fn free_port() -> Result<u16> {
    TcpListener::bind(("0.0.0.0", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .doing(|| "no port is free on this machine")
}

/// Whether `error` has the words of a server whose port was taken.
pub(super) fn port_was_taken(error: &Error) -> bool {
    error.to_string().contains("address already in use")
}
