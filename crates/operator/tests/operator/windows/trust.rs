//! Whom many nodes trust. Each agent here watches the bundle itself, with its own login, and decides with what the real
//! one decides with (`plan::trust`), on a simulated store; the real store is tried where the real agent runs.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_api::names::{annotation, object};
use evenkeel_api::windows::trust_bundle::Certificate;
use evenkeel_plan::machine::entry::Hash;
use evenkeel_plan::windows::trust::{DesiredTrust, Published, Root, difference, wanted};
use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::node_double::{NodeFleet, Os};
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::bed::{Bed, OWN, worker_ignition};
use crate::scene::{SOON, alone};

const NODES: usize = 100;
/// A bundle of this size is normal.
const CERTIFICATES: usize = 300;
/// How soon all of them follow a bundle.
const PROMISED: Duration = Duration::from_secs(10);

/// The trusted roots of a machine.
#[derive(Default)]
struct Store {
    roots: Vec<Root>,
    imports: usize,
    removals: usize,
    written: Option<Instant>,
}

type SharedStore = Arc<Mutex<Store>>;

impl Store {
    fn sync(&mut self, certificates: &[Certificate]) {
        let wanted: Vec<Hash> = certificates.iter().map(|it| Hash::of(&it.der)).collect();
        let change = difference(&wanted, &self.roots);
        self.imports += change.add.len();
        self.removals += change.remove.len();
        self.roots
            .retain(|root| !change.remove.contains(&root.fingerprint));
        self.roots.extend(change.add.iter().map(|at| Root {
            fingerprint: wanted[*at],
            is_our_root: true,
        }));
        self.written = Some(Instant::now());
    }

    fn ours(&self) -> BTreeSet<Hash> {
        let ours = self.roots.iter().filter(|root| root.is_our_root);
        ours.map(|root| root.fingerprint).collect()
    }
}

fn lock(store: &SharedStore) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a store at the bundle, as an agent does.
async fn follow(client: Client, namespace: String, store: SharedStore) {
    let api: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let mut changes = watcher::watch_object(api, object::TRUSTED_CA)
        .default_backoff()
        .boxed();
    while let Some(change) = changes.next().await {
        let Ok(found) = change else { continue };
        let published = Published::of(found.map(|it| it.data.unwrap_or_default()));
        let now = jiff::Timestamp::now().as_second();
        if let (DesiredTrust::Exactly(certificates), _) = wanted(&published, true, now) {
            lock(&store).sync(&certificates);
        }
    }
}

/// The certificate of an authority: as PEM, and its fingerprint.
fn authority(name: &str) -> Result<(String, Hash)> {
    let key = KeyPair::generate().doing(|| "no key")?;
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let signed = parameters.self_signed(&key).doing(|| "no certificate")?;
    Ok((signed.pem(), Hash::of(signed.der())))
}

/// Fills the bundle in and waits until every store has exactly that; how long the last one took.
async fn publish(bed: &Bed, all: &[(String, Hash)], stores: &[SharedStore]) -> Result<Duration> {
    let text: String = all.iter().map(|(pem, _)| pem.as_str()).collect();
    let wanted: BTreeSet<Hash> = all.iter().map(|(_, hash)| *hash).collect();
    let patch = Patch::Merge(json!({ "data": { object::TRUSTED_CA_FILE: text } }));
    let asked = Instant::now();
    let done = bed
        .maps()
        .patch(object::TRUSTED_CA, &PatchParams::default(), &patch)
        .await;
    done.doing(|| "cannot fill in the bundle")?;
    until_async("all nodes to follow the bundle", SOON, async || {
        let there = stores.iter().filter(|it| lock(it).ours() == wanted);
        let there = there.count();
        Ok(if there == stores.len() {
            Look::Found(())
        } else {
            Look::NotYet(format!("{there} of {}", stores.len()))
        })
    })
    .await?;
    let last = stores.iter().filter_map(|it| lock(it).written).max();
    Ok(last.map_or(Duration::MAX, |it| it.duration_since(asked)))
}

/// What a boot, a drain or other services would change on Nodes.
async fn standing(bed: &Bed) -> Result<Vec<Value>> {
    let ours = ListParams::default().labels(&format!("place={}", bed.scene.name));
    let nodes = bed.scene.nodes().list(&ours).await;
    let nodes = nodes.doing(|| "cannot list Nodes")?.items;
    let of = |node: &k8s_openapi::api::core::v1::Node| {
        let info = node.status.as_ref().and_then(|it| it.node_info.as_ref());
        let ours = node.annotations().iter();
        let ours = ours.filter(|(key, _)| key.contains("evenkeel") || key.contains("openshift"));
        let cordoned = node.spec.as_ref().and_then(|it| it.unschedulable);
        json!([
            node.name_any(),
            ours.collect::<Vec<_>>(),
            cordoned,
            info.map(|it| &it.boot_id),
        ])
    };
    Ok(nodes.iter().map(of).collect())
}

/// Covers P06.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_nodes_follow_a_bundle_within_ten_seconds_and_none_of_them_boots() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bed = Bed::new("trust").await?;
    bed.scene.let_agents_in()?;
    let chart = Chart::render(&bed.scene.name, &["--set=windows.enabled=true"])?;
    {
        let _alone = alone();
        let agents = chart.component("agent").rights();
        agents.apply(bed.scene.control_plane)?;
    }
    bed.give_worker(&worker_ignition("first")).await?;
    let proxy = [("HTTPS_PROXY", "http://proxy.example:3128")];
    let _operator = bed.operator_in(&proxy, &[])?;
    let (_, services) = bed.own_map(SOON).await?;
    let hash = services.hash();
    let described = (0..NODES).map(|at| bed.scene.describe(&format!("n{at:03}")).os(Os::Windows));
    let login = bed.scene.control_plane.admin_kubeconfig();
    let fleet = NodeFleet::start(described.collect(), &login).await?;
    let nodes = fleet.into_nodes();
    let annotations = json!({
        annotation::WINDOWS_VERSION: OWN, annotation::WINDOWS_DESIRED_VERSION: OWN,
        annotation::CURRENT_SERVICES: hash, annotation::DESIRED_SERVICES: hash,
    });
    let mut agents = JoinSet::new();
    let mut stores = Vec::new();
    for node in &nodes {
        bed.annotate(node.name(), annotations.clone()).await?;
        let client = bed.scene.agent_login(node.name())?.client().await?;
        let store = SharedStore::default();
        agents.spawn(follow(client, bed.scene.name.clone(), Arc::clone(&store)));
        stores.push(store);
    }
    bed.until_status("all nodes", |it| {
        usize::try_from(it.nodes.updated) == Ok(NODES)
    })
    .await?;

    until_async("the bundle to be there", SOON, async || {
        let found = bed.maps().get_opt(object::TRUSTED_CA).await;
        Ok(match found.doing(|| "cannot read the bundle")? {
            Some(_) => Look::Found(()),
            None => Look::NotYet(bed.scene.log()),
        })
    })
    .await?;
    let roots = (0..CERTIFICATES).map(|at| authority(&format!("root {at}")));
    let mut roots: Vec<_> = roots.collect::<Result<_>>()?;
    let took = publish(&bed, &roots, &stores).await?;
    println!("proof: {NODES} nodes had a bundle of {CERTIFICATES} certificates after {took:?}");
    let before = standing(&bed).await?;
    assert_eq!(before.len(), NODES);
    roots[7] = authority("another")?;
    let took = publish(&bed, &roots, &stores).await?;
    println!("proof: {NODES} nodes followed one change of it after {took:?}");
    assert!(took < PROMISED, "{took:?}");
    for store in &stores {
        let store = lock(store);
        assert_eq!((store.imports, store.removals), (CERTIFICATES + 1, 1));
    }
    assert_eq!(standing(&bed).await?, before);
    Ok(())
}
