//! What a Machine is made of: a Windows instance, or a node with nobody home.

use std::pin::Pin;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::kubeconfig::Kubeconfig;
use crate::node_double::{NodeDescription, NodeDouble};
use crate::windows_instance::WindowsInstance;
use crate::{Doing, Result};

/// The machine behind a Machine. When it is dropped it is gone.
pub trait Body: Send + Sync + 'static {
    /// Where it is reached.
    fn address(&self) -> String;
    /// The Node that it is, or will be.
    fn node(&self) -> String;
}

impl Body for WindowsInstance {
    fn address(&self) -> String {
        WindowsInstance::address(self).to_string()
    }

    fn node(&self) -> String {
        self.computer_name().to_lowercase()
    }
}

impl<B: Body> Body for Arc<B> {
    fn address(&self) -> String {
        B::address(self)
    }

    fn node(&self) -> String {
        B::node(self)
    }
}

/// A machine that is a Node, with what is written on it, and nothing else.
#[derive(Debug)]
pub struct SimulatedMachine {
    node: NodeDouble,
    address: String,
}

impl SimulatedMachine {
    /// Starts the described node, and writes `annotations` on it.
    pub async fn start(
        description: NodeDescription,
        annotations: &Value,
        login: &Kubeconfig,
    ) -> Result<Self> {
        let address = description.internal_ip();
        let node = description.start(login).await?;
        let nodes: Api<Node> = Api::all(login.client().await?);
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        nodes
            .patch(node.name(), &PatchParams::default(), &patch)
            .await
            .doing(|| format!("cannot write on node {}", node.name()))?;
        Ok(Self { node, address })
    }
}

impl Body for SimulatedMachine {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn node(&self) -> String {
        self.node.name().to_owned()
    }
}

/// A machine in the making.
pub type Making = Pin<Box<dyn Future<Output = Result<Box<dyn Body>>> + Send>>;
/// Makes the machine of a Machine, whose name and labels it is told.
pub type Maker = Arc<dyn Fn(String, Value) -> Making + Send + Sync>;
