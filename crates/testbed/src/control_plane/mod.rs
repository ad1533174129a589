//! A real control plane on this machine: etcd, kube-apiserver, kube-controller-manager,
//! kube-scheduler. There are no kubelets; a [`NodeDouble`](crate::node_double::NodeDouble) stands in
//! for one.
//!
//! One control plane serves many tests, each with a namespace and node names of its own. It belongs
//! to no runtime: its methods may be called from any thread, inside a runtime or not.

mod audit;
mod authority;
pub(crate) mod programs;
mod servers;

use std::net::SocketAddr;
use std::ops::{Deref, Range};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Api;
use kube::api::{ListParams, PostParams};
use rustix::process::Signal;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub use self::audit::Request;
use self::programs::Programs;
use self::servers::Servers;
use crate::helm;
use crate::kubeconfig::Kubeconfig;
use crate::need::Need;
use crate::process::{Running, run};
use crate::wait::{self, Look};
use crate::{Doing, Error, Result};

/// How long a server may take to come up on a busy machine.
const START: Duration = Duration::from_mins(2);
/// How long one answer of the API server may take.
const ANSWER: Duration = Duration::from_secs(30);
/// How long one question whether it is ready may take.
const LOOK: Duration = Duration::from_secs(2);
/// How often another port is tried if one is taken between being found free and being used.
const ATTEMPTS: u32 = 5;

/// The file with the admin's login, for `kubectl`.
const ADMIN: &str = "admin.kubeconfig";

/// A running control plane. It ends, and its data with it, when this is dropped.
pub struct ControlPlane {
    // Fields are dropped in this order: whoever calls goes before whoever is called.
    scheduler: Mutex<Running>,
    controllers: Mutex<Running>,
    api_server: Mutex<Option<Running>>,
    etcd: Mutex<Running>,
    servers: Servers,
    admin: Kubeconfig,
    port: u16,
    etcd_port: u16,
    namespaces: AtomicU32,
}

/// A control plane of one test. One that went on after it would take processors from all others.
#[derive(Debug)]
pub struct OwnControlPlane(&'static ControlPlane);

impl Deref for OwnControlPlane {
    type Target = &'static ControlPlane;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for OwnControlPlane {
    fn drop(&mut self) {
        // Whoever calls goes before whoever is called. One that cannot be killed is the reaper's.
        for program in [&self.0.scheduler, &self.0.controllers] {
            let _ = held(program).kill();
        }
        drop(held(&self.0.api_server).take());
        let _ = held(&self.0.etcd).kill();
    }
}

impl ControlPlane {
    /// What a test that uses one needs: also Helm, because programs of ours have the rights of the chart.
    pub const NEEDS: &[Need] = &[Self::NEED, helm::NEED];
    /// Its programs alone.
    pub const NEED: Need = Need::Made(Programs::can_be_had);

    /// Makes its programs ready, so that the first start does not have to.
    pub fn prepare() -> Result<()> {
        Programs::find().map(|_| ())
    }

    /// Starts one of its own. Prefer [`ControlPlane::shared`] unless the test stops or freezes it.
    pub fn start() -> Result<Self> {
        Self::start_with(Programs::find()?)
    }

    /// Starts one for a single test. It may be held on to for as long as anybody likes, and ends with what is returned.
    pub fn start_own() -> Result<OwnControlPlane> {
        Ok(OwnControlPlane(Box::leak(Box::new(Self::start()?))))
    }

    fn start_with(programs: Programs) -> Result<Self> {
        let servers = Servers::new(programs)?;
        let mut attempt = 1;
        let (etcd_port, port, etcd, api_server) = loop {
            match start_core(&servers) {
                Err(error) if attempt < ATTEMPTS && servers::port_was_taken(&error) => attempt += 1,
                other => break other?,
            }
        };
        let admin = servers.login(port, "admin", &["system:masters"], None)?;
        admin.write(&servers.file(ADMIN))?;
        let control_plane = Self {
            scheduler: Mutex::new(servers.scheduler(port)?),
            controllers: Mutex::new(servers.controllers(port)?),
            api_server: Mutex::new(Some(api_server)),
            etcd: Mutex::new(etcd),
            admin,
            servers,
            port,
            etcd_port,
            namespaces: AtomicU32::new(0),
        };
        control_plane.wait_for_controllers()?;
        control_plane.let_nodes_bootstrap()?;
        Ok(control_plane)
    }

    /// The one control plane of this process, started by whoever asks first.
    pub fn shared() -> Result<&'static Self> {
        static SHARED: OnceLock<Result<ControlPlane>> = OnceLock::new();
        SHARED
            .get_or_init(Self::start)
            .as_ref()
            .map_err(Clone::clone)
    }

    /// Where the API server listens, as this machine reaches it.
    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// The certificate of the authority that signs everybody's.
    pub fn authority(&self) -> String {
        self.servers.authority.certificate()
    }

    /// The login that may do everything.
    pub fn admin_kubeconfig(&self) -> Kubeconfig {
        self.admin.clone()
    }

    /// A login as `user` in `groups` (two at most), by a client certificate.
    pub fn kubeconfig_for_user(&self, user: &str, groups: &[&str]) -> Result<Kubeconfig> {
        self.servers.login(self.port, user, groups, None)
    }

    /// The same, where the certificate holds for some time only.
    pub fn kubeconfig_that_holds(
        &self,
        user: &str,
        groups: &[&str],
        holds: Range<SystemTime>,
    ) -> Result<Kubeconfig> {
        self.servers.login(self.port, user, groups, Some(holds))
    }

    /// A login as the kubelet of node `name`, without the detour of a signing request.
    pub fn kubeconfig_for_node(&self, name: &str) -> Result<Kubeconfig> {
        self.kubeconfig_for_user(&format!("system:node:{name}"), &["system:nodes"])
    }

    /// What a new machine has before it has a certificate: it may ask for one, and nothing else.
    pub fn bootstrap_kubeconfig(&self) -> Result<Kubeconfig> {
        self.kubeconfig_for_user("system:bootstrap:testbed", &["system:bootstrappers"])
    }

    /// A login as a service account, by a token for it.
    pub fn kubeconfig_for_service_account(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Kubeconfig> {
        let token = ask(ANSWER, async || {
            let api: Api<ServiceAccount> = Api::namespaced(self.admin.client().await?, namespace);
            let request = TokenRequest {
                spec: TokenRequestSpec {
                    expiration_seconds: Some(24 * 60 * 60),
                    ..TokenRequestSpec::default()
                },
                ..TokenRequest::default()
            };
            let answer = api
                .create_token_request(name, &PostParams::default(), &request)
                .await
                .doing(|| format!("cannot get a token of service account {namespace}/{name}"))?;
            answer
                .status
                .map(|status| status.token)
                .ok_or_else(|| Error::failed("the API server answered without a token"))
        })?;
        let authority = self.servers.authority.certificate();
        Kubeconfig::with_token(&servers::server(self.port), &authority, &token)
    }

    /// Makes a namespace of its own for a test, ready to have pods, and says its name.
    pub fn namespace(&self, prefix: &str) -> Result<String> {
        let number = self.namespaces.fetch_add(1, Ordering::Relaxed);
        let name = format!("{prefix}-{number}");
        ask(ANSWER, async || {
            let client = self.admin.client().await?;
            let namespace = from(json!({ "metadata": { "name": name } }))?;
            Api::<Namespace>::all(client.clone())
                .create(&PostParams::default(), &namespace)
                .await
                .doing(|| format!("cannot make namespace {name}"))?;
            self.service_account(client, &name).await
        })?;
        Ok(name)
    }

    /// The program `kubectl`, for a command of the test's own.
    pub fn kubectl_program(&self) -> PathBuf {
        self.servers.programs.path("kubectl")
    }

    /// Runs `kubectl` as admin and returns what it printed.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let login = self.servers.file(ADMIN);
        run(self
            .servers
            .programs
            .command("kubectl")
            .arg(format!("--kubeconfig={}", login.display()))
            .arg(format!(
                "--cache-dir={}",
                self.servers.file("kubectl").display()
            ))
            // Its own limit for the list of all kinds is 32 s.
            .arg(format!("--request-timeout={}s", START.as_secs()))
            .args(arguments))
    }

    /// What `user` has asked for and was answered by now, oldest first. Written down are members of the group
    /// `evenkeel:agents`, and what service accounts write.
    pub fn requests_of(&self, user: &str) -> Result<Vec<Request>> {
        let path = self.servers.file(audit::LOG);
        let log = std::fs::read_to_string(&path)
            .doing(|| format!("cannot read the audit log {}", path.display()))?;
        Ok(audit::requests(&log, user))
    }

    /// Kills the API server. Its data stay; [`ControlPlane::start_api_server`] brings it back.
    pub fn stop_api_server(&self) -> Result<()> {
        match held(&self.api_server).take() {
            Some(mut running) => running.kill().map(|_| ()),
            None => Err(Error::failed("the API server is already stopped")),
        }
    }

    /// Starts the API server again, on the same port and data, and waits until it is ready.
    pub fn start_api_server(&self) -> Result<()> {
        let mut place = held(&self.api_server);
        if place.is_some() {
            return Err(Error::failed("the API server is already running"));
        }
        let mut running = self.servers.api_server(self.port, self.etcd_port)?;
        wait_for_api_server(&self.admin, &mut running, &mut held(&self.etcd)).map_err(|error| {
            if servers::port_was_taken(&error) {
                let port = self.port;
                return Error::failed(format!(
                    "port {port} of the API server is in use by another program: end that program (`ss -ltnp 'sport = {port}'` names it)"
                ));
            }
            error
        })?;
        *place = Some(running);
        Ok(())
    }

    /// Freezes the API server: it keeps its connections and answers nothing.
    pub fn freeze_api_server(&self) -> Result<()> {
        self.signal_api_server(Signal::STOP)?;
        held(&self.api_server)
            .as_ref()
            .map_or(Ok(()), Running::until_stopped)
    }

    /// Lets a frozen API server go on.
    pub fn thaw_api_server(&self) -> Result<()> {
        self.signal_api_server(Signal::CONT)
    }

    fn signal_api_server(&self, signal: Signal) -> Result<()> {
        held(&self.api_server)
            .as_ref()
            .ok_or_else(|| Error::failed("the API server is stopped"))?
            .signal(signal)
    }

    /// An error with the last words of whichever server has ended. A stopped API server is no error.
    pub fn still_runs(&self) -> Result<()> {
        held(&self.etcd).still_runs()?;
        if let Some(api_server) = held(&self.api_server).as_mut() {
            api_server.still_runs()?;
        }
        held(&self.controllers).still_runs()?;
        held(&self.scheduler).still_runs()
    }

    /// The controllers make every namespace's service account: when there is one, they work.
    fn wait_for_controllers(&self) -> Result<()> {
        ask(START, async || {
            let client = self.admin.client().await?;
            self.service_account(client, "default").await
        })
    }

    async fn service_account(&self, client: kube::Client, namespace: &str) -> Result<()> {
        let api: Api<ServiceAccount> = Api::namespaced(client, namespace);
        let what = format!("the service account of namespace {namespace}");
        wait::until_async(&what, ANSWER, async || {
            self.still_runs()?;
            Ok(match api.get_opt("default").await {
                Ok(Some(_)) => Look::Found(()),
                Ok(None) => Look::NotYet("it is not there".to_owned()),
                Err(error) => Look::NotYet(error.to_string()),
            })
        })
        .await
    }

    fn let_nodes_bootstrap(&self) -> Result<()> {
        let binding: ClusterRoleBinding = from(json!({
            "metadata": { "name": "testbed:bootstrappers" },
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "system:node-bootstrapper",
            },
            "subjects": [{
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Group",
                "name": "system:bootstrappers",
            }],
        }))?;
        ask(ANSWER, async || {
            Api::all(self.admin.client().await?)
                .create(&PostParams::default(), &binding)
                .await
                .map(|_| ())
                .doing(|| "cannot let new machines request certificates")
        })
    }
}

impl std::fmt::Debug for ControlPlane {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "ControlPlane at {}", self.address())
    }
}

fn start_core(servers: &Servers) -> Result<(u16, u16, Running, Running)> {
    let (etcd_port, port) = (servers::free_port()?, servers::free_port()?);
    let mut etcd = servers.etcd(etcd_port)?;
    let mut api_server = servers.api_server(port, etcd_port)?;
    let admin = servers.login(port, "admin", &["system:masters"], None)?;
    wait_for_api_server(&admin, &mut api_server, &mut etcd)?;
    Ok((etcd_port, port, etcd, api_server))
}

fn wait_for_api_server(
    admin: &Kubeconfig,
    api_server: &mut Running,
    etcd: &mut Running,
) -> Result<()> {
    ask(2 * START, async || {
        let client = admin.client().await?;
        wait::until_async("the API server to be ready", START, async || {
            etcd.still_runs()?;
            api_server.still_runs()?;
            // A list of a path is a plain GET of it.
            let question = kube::core::Request::new("/readyz")
                .list(&ListParams::default())
                .doing(|| "cannot ask the API server whether it is ready")?;
            // Whoever else has the port may keep the question and never answer; the server has ended
            // by then, and that is told by the next look.
            let answer = client.request_text(question);
            Ok(match tokio::time::timeout(LOOK, answer).await {
                Ok(Ok(_)) => Look::Found(()),
                Ok(Err(error)) => Look::NotYet(error.to_string()),
                Err(_) => Look::NotYet("it accepts and does not answer".to_owned()),
            })
        })
        .await
    })
}

/// Does `work` on a runtime of its own, in a thread of its own, so that it may be called from inside
/// another runtime.
fn ask<T: Send>(deadline: Duration, work: impl AsyncFnOnce() -> Result<T> + Send) -> Result<T> {
    let limited = async || {
        wait::within(deadline, work()).await.unwrap_or_else(|| {
            Err(Error::failed(format!(
                "the API server did not answer within {deadline:?}: check whether it is frozen"
            )))
        })
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .doing(|| "cannot make a runtime")?
                .block_on(limited())
        });
        thread
            .join()
            .unwrap_or_else(|_| Err(Error::failed("a request to the API server panicked")))
    })
}

/// What a test was doing when it panicked does not spoil a control plane for the next one.
fn held<T>(place: &Mutex<T>) -> MutexGuard<'_, T> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

fn from<T: DeserializeOwned>(object: Value) -> Result<T> {
    serde_json::from_value(object).doing(|| "cannot put an object together")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;
    use std::time::Instant;

    use super::*;
    use crate::scratch::Scratch;

    /// The real programs, but for an API server that is this shell script.
    fn with_api_server(folder: &Path, script: &str) -> Result<Programs> {
        let real = Programs::find()?;
        for name in [
            "etcd",
            "kube-controller-manager",
            "kube-scheduler",
            "kubectl",
        ] {
            symlink(real.path(name), folder.join(name)).doing(|| "cannot link")?;
        }
        let path = folder.join("kube-apiserver");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).doing(|| "cannot write")?;
        let permissions = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, permissions).doing(|| "cannot permit")?;
        Programs::in_folder(folder)
    }

    #[test]
    fn an_api_server_that_ends_is_told_at_once_with_its_last_words() -> Result<()> {
        let scratch = Scratch::new("programs")?;
        let programs = with_api_server(scratch.path(), "echo unknown flag; exit 3")?;
        let start = Instant::now();
        let error = ControlPlane::start_with(programs).unwrap_err();
        assert_eq!(
            error,
            Error::failed("kube-apiserver ended with exit status: 3: unknown flag")
        );
        assert!(start.elapsed() < START / 4, "{:?}", start.elapsed());
        Ok(())
    }

    #[test]
    fn a_port_taken_before_the_server_had_it_is_tried_no_more_than_a_few_times() -> Result<()> {
        let scratch = Scratch::new("programs")?;
        let count = scratch.path().join("count");
        let script = format!(
            "echo >> {}; echo bind: address already in use; exit 1",
            count.display()
        );
        let programs = with_api_server(scratch.path(), &script)?;
        let error = ControlPlane::start_with(programs).unwrap_err();
        assert!(servers::port_was_taken(&error), "{error}");
        let tried = std::fs::read(&count).doing(|| "it was never tried")?.len();
        assert_eq!(u32::try_from(tried), Ok(ATTEMPTS));
        Ok(())
    }
}
