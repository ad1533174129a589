//! A kubelet as the rest of the cluster sees it, without a machine behind it: a Node, its Lease, its
//! certificate, and the status of the pods bound to it.
//!
//! No container runs. Nothing here depends on the operating system it runs on, and nothing on the
//! test's runtime: doubles live in a thread of their own, and go on while a test blocks.

mod certificate;
mod description;
mod fleet;
mod kubelet;
pub mod logs;
mod pods;
mod rounds;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::DeleteParams;
use kube::{Api, Client};
use tokio::runtime::Runtime;

pub use self::description::{NodeDescription, Os};
pub use self::fleet::NodeFleet;
use self::kubelet::{Kubelet, Presence};
use crate::kubeconfig::Kubeconfig;
use crate::{Doing, Error, Result};

/// How long registering, of a whole fleet too, and each change may take.
const PATIENCE: Duration = Duration::from_mins(5);

/// One node of the cluster, with nobody home. When this is dropped the node falls silent, as if its
/// cable were pulled; its object stays.
#[derive(Debug)]
pub struct NodeDouble {
    kubelet: Arc<Kubelet>,
}

impl NodeDouble {
    /// Describes a node; [`NodeDescription::start`] and [`NodeDescription::join`] bring it to life.
    pub fn named(name: &str) -> NodeDescription {
        NodeDescription::named(name)
    }

    /// The described node, logged in with a certificate of its own if it was described so, else with
    /// the login and client that it shares. It is not registered yet.
    async fn log_in(
        description: NodeDescription,
        shared: (Arc<Kubeconfig>, Client),
    ) -> Result<Self> {
        let login = match &description.certificate_from {
            Some(bootstrap) => {
                let own = certificate::obtain(&description, bootstrap).await?;
                let client = own.client().await?;
                (Arc::new(own), client)
            }
            None => shared,
        };
        let kubelet = Arc::new(Kubelet::new(description, login));
        Ok(Self { kubelet })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.kubelet.name()
    }

    /// How it logs in: as itself if it has a certificate of its own.
    pub fn kubeconfig(&self) -> &Kubeconfig {
        &self.kubelet.login
    }

    /// Its boot id, which changes with [`NodeDouble::restart_machine`].
    pub fn boot_id(&self) -> String {
        self.kubelet.boot_id()
    }

    /// Stops all writes: no Lease, no status, no pod is moved. What is done to the node meanwhile is
    /// reported when it resumes, but for the pods of a restarted machine.
    pub fn pause(&self) {
        self.kubelet.turn(Presence::Paused);
    }

    /// Goes on after [`NodeDouble::pause`], with a renewed Lease and status.
    pub async fn resume(&self) -> Result<()> {
        self.kubelet.turn(Presence::Up);
        let kubelet = self.kubelet.clone();
        spawn(async move {
            kubelet.renew_lease().await?;
            kubelet.post_status().await
        })
        .await
    }

    /// Reports `status` for `condition` (`Ready`, `MemoryPressure`, or one of the test's own) until
    /// told otherwise.
    pub async fn lie(&self, condition: &str, status: &str) -> Result<()> {
        self.kubelet.believe(condition, status);
        let kubelet = self.kubelet.clone();
        spawn(async move { kubelet.post_status().await }).await
    }

    /// Restarts the kubelet alone: it registers again and renews its Lease. Its pods are left as they
    /// are, as a kubelet does since 1.35.
    pub async fn restart_kubelet(&self) -> Result<()> {
        let kubelet = self.kubelet.clone();
        spawn(async move { kubelet.register().await }).await
    }

    /// Restarts the machine: a new boot id, and every container of its pods starts anew.
    pub async fn restart_machine(&self) -> Result<()> {
        let kubelet = self.kubelet.clone();
        spawn(async move {
            kubelet.reboot();
            let before = kubelet.believe("Ready", "False");
            kubelet.register().await?;
            kubelet.believe("Ready", before.as_deref().unwrap_or("True"));
            kubelet.post_status().await?;
            pods::restart_all(&kubelet).await
        })
        .await
    }

    /// The machine is gone for good; its Node and pods stay for others to notice.
    pub fn vanish(self) {
        drop(self);
    }

    /// The machine is gone and its Node is deleted, which `login` must be allowed to do (a node's own
    /// is not).
    pub async fn delete(self, login: &Kubeconfig) -> Result<()> {
        let name = self.name().to_owned();
        self.vanish();
        let nodes: Api<Node> = Api::all(login.client().await?);
        match nodes.delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
            other => other
                .map(|_| ())
                .doing(|| format!("cannot delete node {name}")),
        }
    }
}

impl Drop for NodeDouble {
    fn drop(&mut self) {
        self.kubelet.turn(Presence::Gone);
    }
}

impl NodeDescription {
    /// Registers the node and keeps it alive, logged in with `login` (or with a certificate of its
    /// own, if so described).
    pub async fn start(self, login: &Kubeconfig) -> Result<NodeDouble> {
        let login = login.clone();
        let interval = self.lease_interval;
        spawn(async move {
            let client = login.client().await?;
            let node = NodeDouble::log_in(self, (Arc::new(login), client)).await?;
            node.kubelet.register().await?;
            let kubelet = node.kubelet.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = rounds::go(vec![kubelet.clone()], interval) => {}
                    () = pods::follow_one(kubelet.clone()) => {}
                }
            });
            Ok(node)
        })
        .await
    }

    /// Asks for a certificate with the credential `bootstrap`, waits until somebody has approved it,
    /// and starts the node with it: as a new machine joins.
    pub async fn join(self, bootstrap: &Kubeconfig) -> Result<NodeDouble> {
        self.with_certificate_from(bootstrap).start(bootstrap).await
    }
}

/// Does `work` on the doubles' own runtime.
async fn spawn<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    static DOUBLES: OnceLock<Result<Runtime>> = OnceLock::new();
    let runtime = DOUBLES.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("node-doubles")
            .enable_all()
            .build()
            .doing(|| "cannot make the runtime of the node doubles")
    });
    let runtime = runtime.as_ref().map_err(Clone::clone)?;
    let done = runtime.spawn(async move {
        tokio::time::timeout(PATIENCE, work)
            .await
            .unwrap_or_else(|_| {
                Err(Error::failed(format!(
                    "the API server did not answer a node double within {PATIENCE:?}"
                )))
            })
    });
    done.await
        .unwrap_or_else(|error| Err(Error::because("a node double failed", error)))
}
