//! OpenShift's own machine-config operator at work: its controller renders a pool and rolls it out, node by node with drains,
//! once on a cluster of its own and once with our operator and our agents installed. Everything that is theirs is the same.

mod picture;

use std::sync::Arc;

use evenkeel_api::names::{annotation, label, openshift};
use evenkeel_testbed::chance::is_soak;
use evenkeel_testbed::control_plane::{ControlPlane, OwnControlPlane};
use evenkeel_testbed::machine_config_operator::{DaemonDouble, MachineConfigController};
use evenkeel_testbed::node_double::{NodeDouble, NodeFleet};
use evenkeel_testbed::process::Running;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result, SystemdNode, need};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use serde_json::json;

use self::picture::{Histories, Picture};
use crate::idle::{told, until_state};
use crate::pools::file;
use crate::rollout::LONG;
use crate::scene::{SOON, Scene, annotated, free_port, metrics};
use crate::systemd::{agent, install};

const POOL: &str = "worker";
const WORKER: &str = "node-role.kubernetes.io/worker";

/// What our programs may write while that half is theirs: what is said of themselves, and what is of our own group.
const OURS: [&str; 4] = ["leases", "events", "windowspools", "tokenreviews"];

/// A cluster with their controller, its daemon on every node, and applications that are drained.
struct Cluster {
    controller: Option<MachineConfigController>,
    daemons: DaemonDouble,
    histories: Histories,
    nodes: Arc<Vec<NodeDouble>>,
    scene: Scene,
    _control_plane: OwnControlPlane,
}

impl Cluster {
    /// One with `count` workers that have their first configuration.
    async fn start(count: usize) -> Result<(Self, String)> {
        let control_plane = ControlPlane::start_own()?;
        let scene = Scene::on(*control_plane, "openshift").await?;
        MachineConfigController::install(*control_plane)?;
        let login = control_plane.admin_kubeconfig();
        let nodes = (0..count).map(|number| {
            // One zone each: then it is certain which node is the next one.
            scene
                .describe(&format!("{POOL}-{number}"))
                .label(WORKER, "")
                .zone(&format!("z{number}"))
        });
        let nodes = NodeFleet::start(nodes.collect(), &login).await?;
        let nodes = Arc::new(nodes.into_nodes());
        scene.deployment("shop", 2, 1).await?;
        scene.ready("", 2).await?;
        let cluster = Self {
            controller: Some(MachineConfigController::start(*control_plane)?),
            daemons: DaemonDouble::start(&login, &nodes, POOL).await?,
            histories: Histories::of(&scene),
            nodes,
            scene,
            _control_plane: control_plane,
        };
        cluster.configure("1").await?;
        let pool = json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool",
            "metadata": { "name": POOL, "labels": { "place": cluster.scene.name } },
            "spec": {
                "machineConfigSelector": { "matchLabels": { label::ROLE: POOL } },
                "nodeSelector": { "matchLabels": { WORKER: "" } },
            },
        });
        let pool = serde_json::from_value(pool).doing(|| "no pool")?;
        let pools = cluster.scene.pools();
        let made = pools.create(&PostParams::default(), &pool).await;
        made.doing(|| "cannot make their pool")?;
        let first = cluster.until_updated("").await?;
        Ok((cluster, first))
    }

    /// Says what a file of every worker is to say.
    async fn configure(&self, contents: &str) -> Result<()> {
        let config = json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
            "metadata": { "name": "50-worker", "labels": { label::ROLE: POOL } },
            "spec": file("/etc/example", contents),
        });
        let parameters = PatchParams::apply("people").force();
        let patch = Patch::Apply(config);
        let configs = self.scene.configs();
        let applied = configs.patch("50-worker", &parameters, &patch).await;
        applied
            .map(|_| ())
            .doing(|| "cannot change their MachineConfig")
    }

    async fn pool(&self) -> Result<DynamicObject> {
        let pool = self.scene.pools().get(POOL).await;
        pool.doing(|| "cannot read their pool")
    }

    /// Waits until their controller says that all of the pool runs what is rendered, which is not `before`.
    async fn until_updated(&self, before: &str) -> Result<String> {
        let pools = self.scene.pools();
        let controller = &self.controller;
        until_async("their pool to be updated", LONG, async || {
            if let Some(controller) = controller {
                controller.still_runs()?;
            }
            let pool = pools.get(POOL).await.doing(|| "cannot read their pool")?;
            let (spec, status) = (&pool.data["spec"], &pool.data["status"]);
            let runs = status["configuration"]["name"].as_str().unwrap_or_default();
            let mut conditions = status["conditions"].as_array().into_iter().flatten();
            let is_updated = conditions.any(|it| it["type"] == "Updated" && it["status"] == "True");
            let is_current = spec["configuration"]["name"] == runs
                && status["observedGeneration"] == json!(pool.metadata.generation);
            Ok(
                if is_updated && is_current && !runs.is_empty() && runs != before {
                    Look::Found(runs.to_owned())
                } else {
                    let log = controller.as_ref().map(MachineConfigController::log);
                    let log = log.unwrap_or_default();
                    let lines: Vec<_> = log.lines().rev().take(12).collect();
                    Look::NotYet(format!("{:#}\n{lines:#?}", pool.data))
                },
            )
        })
        .await
    }

    /// Waits until a node is on its way to what its pool is to run since `before`.
    async fn until_on_its_way(&self, before: &str) -> Result<()> {
        until_async("a node to be on its way", LONG, async || {
            for node in self.nodes.iter() {
                let seen = self.scene.node(node.name()).await?;
                let is_told = annotated(&seen, annotation::DESIRED_CONFIG) != Some(before);
                if is_told && annotated(&seen, annotation::STATE) == Some("Working") {
                    return Ok(Look::Found(()));
                }
            }
            Ok(Look::NotYet(format!("{:#}", self.pool().await?.data)))
        })
        .await
    }

    /// Lets them roll out another configuration, and stop and start anew in the middle of it if that is asked for; `meanwhile` is
    /// what is looked at while nobody of them leads.
    async fn roll_out(
        &mut self,
        first: &str,
        is_interrupted: bool,
        meanwhile: impl AsyncFn(&Scene) -> Result<()>,
    ) -> Result<()> {
        self.configure("2").await?;
        if is_interrupted {
            self.until_on_its_way(first).await?;
            if let Some(controller) = self.controller.take() {
                controller.stop().await?;
            }
            meanwhile(&self.scene).await?;
            let control_plane = self.scene.control_plane;
            self.controller = Some(MachineConfigController::start(control_plane)?);
        }
        self.until_updated(first).await.map(|_| ())
    }

    /// What is theirs when all is done, and what the nodes went through.
    async fn picture(&self) -> Result<Picture> {
        assert!(
            self.daemons.boots() >= self.nodes.len(),
            "not every machine booted"
        );
        Picture::of(&self.scene, POOL, &self.histories).await
    }
}

/// Our operator and agents as they are shipped, on somebody else's cluster.
struct Ours {
    operator: Running,
    machines: Vec<SystemdNode>,
    port: u16,
}

impl Ours {
    async fn install(cluster: &Cluster) -> Result<Self> {
        let scene = &cluster.scene;
        scene.let_agents_in()?;
        let agent = agent()?;
        let names = cluster.nodes.iter().map(NodeDouble::name);
        let machines = names.map(|name| install(scene, name, &agent));
        let machines = machines.collect::<Result<Vec<_>>>()?;
        let port = free_port()?;
        let listen = format!("127.0.0.1:{port}");
        let operator = scene.operator(&["--listen", &listen])?;
        let note = told(scene, "OtherOperatorAlive").await?;
        assert!(
            note.contains("machine-config operator is running"),
            "{note}"
        );
        let ours = Self {
            operator,
            machines,
            port,
        };
        ours.until_agents_keep_off().await?;
        Ok(ours)
    }

    /// Waits until each agent has seen its node, and says whose it is.
    async fn until_agents_keep_off(&self) -> Result<()> {
        for machine in &self.machines {
            let what = format!("the agent of {} to say that it keeps off", machine.name());
            until_async(&what, SOON, async || {
                let log = machine.run(&["journalctl", "--no-pager", "-u", "evenkeel-agent"])?;
                Ok(if log.contains("is foreign: ") {
                    Look::Found(())
                } else {
                    Look::NotYet(log)
                })
            })
            .await?;
        }
        Ok(())
    }

    /// That they live, and have written nothing but of themselves.
    async fn check(&mut self, cluster: &Cluster) -> Result<()> {
        self.operator.still_runs()?;
        let text = metrics(self.port).await?;
        let line = "evenkeel_idle{half=\"machine-config\"} 1";
        assert!(text.contains(line), "{text}");
        let account = format!(
            "system:serviceaccount:{}:evenkeel-operator",
            cluster.scene.name
        );
        let agents = cluster.nodes.iter().map(NodeDouble::name);
        let agents = agents.map(|name| format!("evenkeel:agent:{name}"));
        for user in agents.chain([account]) {
            let asked = cluster.scene.control_plane.requests_of(&user)?;
            assert!(!asked.is_empty(), "{user} has asked for nothing");
            let mut written = asked
                .iter()
                .filter(|it| !["get", "list", "watch"].contains(&it.verb.as_str()));
            let theirs = written.find(|it| {
                !OURS.contains(&it.resource.as_str()) || it.namespace == openshift::NAMESPACE
            });
            if let Some(theirs) = theirs {
                return Err(Error::failed(format!("{user} wrote: {theirs:?}")));
            }
        }
        for machine in &self.machines {
            let found = machine.run(&[
                "sh",
                "-c",
                "ls /etc/example /etc/openshift-release 2>&1; true",
            ])?;
            assert_eq!(found.matches("No such file").count(), 2, "{found}");
        }
        Ok(())
    }
}

/// Their roll-out on a cluster without us.
async fn alone(count: usize, is_interrupted: bool) -> Result<Picture> {
    let (mut cluster, first) = Cluster::start(count).await?;
    let nothing = async |_: &Scene| Ok(());
    cluster.roll_out(&first, is_interrupted, nothing).await?;
    cluster.picture().await
}

/// The same one with us.
async fn with_ours(count: usize, is_interrupted: bool) -> Result<Picture> {
    let (mut cluster, first) = Cluster::start(count).await?;
    let mut ours = Ours::install(&cluster).await?;
    let port = ours.port;
    // Their leader gives its Lease back in the middle of a roll-out: that is their affair.
    let meanwhile = async |scene: &Scene| {
        told(scene, "OtherOperatorLapsed").await?;
        until_state(scene, port, "machine-config", "lapsed").await
    };
    cluster.roll_out(&first, is_interrupted, meanwhile).await?;
    ours.check(&cluster).await?;
    cluster.picture().await
}

/// Covers O05.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes long: runs in ./test --soak"]
async fn what_the_machine_config_operators_own_controller_does_is_the_same_with_ours_beside_it()
-> Result<()> {
    let needs = [
        ControlPlane::NEEDS,
        SystemdNode::NEEDS,
        &[MachineConfigController::NEED],
    ];
    if need::skip(&needs.concat())? {
        return Ok(());
    }
    let (count, is_interrupted) = if is_soak() { (3, true) } else { (1, false) };
    let start = std::time::Instant::now();
    let (alone, with_ours) = tokio::try_join!(
        alone(count, is_interrupted),
        with_ours(count, is_interrupted)
    )?;
    alone.is_the_same_as(&with_ours)?;
    println!(
        "proof: the machine-config operator's own controller took {count} nodes from one configuration to the next{}, twice, in {:?}: \
         with ours beside it, the last byte of its pool, its {} MachineConfigs and Nodes, who wrote which field, and {} changes of the Nodes on the way are the same",
        if is_interrupted {
            ", stopped and started in between"
        } else {
            ""
        },
        start.elapsed(),
        alone.configs(),
        alone.changes(),
    );
    Ok(())
}
