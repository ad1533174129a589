//! Waiting never evicts: whatever restarts, whoever leads and however long nothing is heard, only what
//! is not well or fell silent takes pods away.

use std::collections::BTreeSet;

use evenkeel_api::readiness::ReadinessRule;
use evenkeel_plan::readiness::{Feed, PodSnapshot};
use proptest::prelude::*;
use serde_json::json;

use crate::world::{World, rule};

const NODES: u8 = 6;

fn all_kinds() -> ReadinessRule {
    let pods = json!({ "namespace": "g", "selector": { "matchLabels": { "app": "dp" } } });
    rule(
        "all",
        &json!({
            "nodeSelector": { "matchLabels": { "pool": "gpu" } },
            "evictAfter": "5s",
            "extensions": [
                { "name": "once", "condition": { "type": "NetReady" } },
                { "name": "npd", "condition": { "type": "KernelSound", "freshness": "10m" } },
                { "name": "dp", "lease": {} },
                { "name": "pods", "pods": pods },
            ],
        }),
    )
}

fn feed() -> Feed {
    Feed::Pods {
        namespace: "g".to_owned(),
        selector: "app=dp".to_owned(),
    }
}

#[derive(Debug, Clone)]
enum Deed {
    Pass(u16),
    Freeze,
    Thaw,
    TakeOver,
    /// From then on nothing is heard of the node but its kubelet.
    Reboot(u8),
    RestartKubelet(u8),
    /// All that is alive there is heard again.
    Hear(u8),
    /// Its condition is False.
    Break(u8),
    /// Its Lease is not renewed any more.
    Silence(u8),
}

fn any_deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        8 => (0..20_000_u16).prop_map(Deed::Pass),
        1 => Just(Deed::Freeze),
        2 => Just(Deed::Thaw),
        1 => Just(Deed::TakeOver),
        3 => any::<u8>().prop_map(Deed::Reboot),
        3 => any::<u8>().prop_map(Deed::RestartKubelet),
        2 => any::<u8>().prop_map(Deed::Hear),
        1 => any::<u8>().prop_map(Deed::Break),
        1 => any::<u8>().prop_map(Deed::Silence),
    ]
}

struct Fleet {
    world: World,
    /// Restarted, and not heard since.
    waiting: BTreeSet<String>,
    /// Something was not well, or fell silent, since it was heard last.
    guilty: BTreeSet<String>,
    /// Makes every stamp another one.
    stamp: u32,
}

impl Fleet {
    fn start() -> Self {
        let mut world = World::new(&[all_kinds()]);
        for number in 0..NODES {
            let node = format!("n{number}");
            // Each in a zone of its own: the limits of a zone are tried elsewhere.
            world.add(&node, &node, &["dp"]);
            world.write_condition(&node, "NetReady", "True", "0");
            world.condition(&node, "KernelSound", "True", "0");
            let pod = PodSnapshot {
                name: format!("p{number}"),
                node,
                ready: true,
                ending: false,
                mark: "0".to_owned(),
            };
            world.pod(&feed(), pod);
        }
        world.begin();
        let mut fleet = Self {
            world,
            waiting: BTreeSet::new(),
            guilty: BTreeSet::new(),
            stamp: 0,
        };
        for number in 0..NODES {
            fleet.report(&format!("n{number}"));
        }
        fleet
    }

    /// The agent tells of another start of its kubelet.
    fn report(&mut self, node: &str) {
        self.stamp += 1;
        let boot = self.world.machines[node].snapshot.boot_id.clone();
        let report = json!({ "bootId": boot, "kubeletStart": self.stamp.to_string() });
        self.world.report(node, &report);
    }

    fn wait(&mut self, node: &str) {
        self.world
            .machine(node)
            .extensions
            .insert("dp".to_owned(), false);
        self.waiting.insert(node.to_owned());
    }

    fn observe(&mut self, node: &str) {
        self.stamp += 1;
        let stamp = self.stamp.to_string();
        self.world
            .machine(node)
            .extensions
            .insert("dp".to_owned(), true);
        self.world.write_condition(node, "NetReady", "True", &stamp);
        self.world.condition(node, "KernelSound", "True", &stamp);
        self.world.renew(node, true);
        self.world.act();
        self.waiting.remove(node);
    }

    fn happen(&mut self, deed: &Deed) {
        let name = |node: u8| format!("n{}", node % NODES);
        let is_frozen = self.world.frozen.is_some();
        match deed {
            Deed::Pass(milliseconds) => {
                self.world.pass(u64::from(*milliseconds));
                // Heartbeats come in time, where anything is alive.
                for number in 0..NODES {
                    let node = name(number);
                    if !is_frozen && !self.waiting.contains(&node) {
                        self.stamp += 1;
                        let stamp = self.stamp.to_string();
                        self.world.condition(&node, "KernelSound", "True", &stamp);
                    }
                }
            }
            Deed::Freeze => self.world.freeze(),
            Deed::Thaw => self.world.thaw(),
            _ if is_frozen => {}
            Deed::TakeOver => self.world.begin(),
            Deed::Reboot(node) => {
                let node = name(*node);
                self.wait(&node);
                self.stamp += 1;
                let boot = format!("boot-{}", self.stamp);
                self.world.reboot(&node, &boot);
            }
            Deed::RestartKubelet(node) => {
                let node = name(*node);
                self.wait(&node);
                self.report(&node);
            }
            Deed::Hear(node) => self.observe(&name(*node)),
            Deed::Break(node) => {
                let node = name(*node);
                self.stamp += 1;
                let stamp = self.stamp.to_string();
                self.world.condition(&node, "NetReady", "False", &stamp);
                self.guilty.insert(node);
            }
            Deed::Silence(node) => {
                let node = name(*node);
                let extensions = &mut self.world.machine(&node).extensions;
                extensions.insert("dp".to_owned(), false);
                self.guilty.insert(node);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// Covers N02.
    #[test]
    fn nobody_is_evicted_who_only_was_not_heard_yet(
        deeds in proptest::collection::vec(any_deed(), 1..60)
    ) {
        let mut fleet = Fleet::start();
        for deed in &deeds {
            fleet.happen(deed);
            let innocent = fleet.world.evicting.difference(&fleet.guilty).next();
            prop_assert_eq!(innocent, None, "after {:?}", deed);
        }
        // Then all restart, and nothing is heard for ten minutes.
        fleet.happen(&Deed::Thaw);
        for node in 0..NODES {
            fleet.observe(&format!("n{node}"));
        }
        fleet.happen(&Deed::Pass(20_000));
        fleet.guilty.clear();
        for node in 0..NODES {
            fleet.happen(&if node % 2 == 0 { Deed::Reboot(node) } else { Deed::RestartKubelet(node) });
        }
        fleet.world.pass(600_000);
        prop_assert!(fleet.world.evicting.is_empty(), "{:?}", fleet.world.evicting);
        prop_assert_eq!(fleet.world.tainted(), usize::from(NODES), "and new pods stay away");
        // What says that it is not well does evict, a while after it says so.
        fleet.happen(&Deed::Break(0));
        fleet.world.pass(4_000);
        prop_assert!(fleet.world.evicting.is_empty(), "not before its time");
        for node in 1..NODES {
            fleet.observe(&format!("n{node}"));
        }
        fleet.world.pass(60_000);
        prop_assert_eq!(fleet.world.evicting.iter().collect::<Vec<_>>(), ["n0"]);
    }
}
