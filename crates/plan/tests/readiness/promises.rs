//! One node at a time: what taints it, and what lets pods come again.

use std::time::Duration;

use evenkeel_api::names::taint;
use evenkeel_api::readiness::ReadinessRule;
use evenkeel_plan::readiness::{
    ConditionSnapshot, Feed, LeaseSnapshot, PodSnapshot, ReadinessAction, TaintChange,
};
use serde_json::{Value, json};

use crate::world::{World, rule};

fn gpu(extensions: &Value) -> ReadinessRule {
    let selector = json!({ "matchLabels": { "pool": "gpu" } });
    rule(
        "gpu",
        &json!({ "nodeSelector": selector, "extensions": extensions }),
    )
}

pub(crate) fn one() -> ReadinessRule {
    gpu(&json!([{ "name": "dp", "lease": {} }]))
}

/// Covers R02, R09.
#[test]
fn a_new_node_is_released_by_the_last_of_all_that_it_must_have_and_by_nothing_else() {
    for tainted_from_creation in [true, false] {
        let optional = json!({ "name": "log", "lease": {}, "affectsReadiness": false });
        let mut world = World::new(&[gpu(&json!([
            { "name": "a", "lease": {} }, { "name": "b", "lease": {} }, { "name": "c", "lease": {} }, optional,
        ]))]);
        world.begin();
        // Leases of an earlier node of that name are no evidence.
        for extension in ["a", "b", "c"] {
            let old = LeaseSnapshot {
                renewed: "old".to_owned(),
                holder: "n1".to_owned(),
                ..LeaseSnapshot::default()
            };
            world.lease("node-extensions", &format!("n1.{extension}"), old);
        }
        world.join("n1", tainted_from_creation);
        assert!(world.is_tainted("n1"));
        let exposed = world
            .log
            .iter()
            .any(|(_, it)| matches!(it, ReadinessAction::Write { exposed: true, .. }));
        assert_eq!(
            exposed, !tainted_from_creation,
            "counted where there was no admission"
        );
        world.pass(60_000);
        for extension in ["a", "b", "c"] {
            assert!(world.is_tainted("n1"), "before {extension}");
            world
                .machine("n1")
                .extensions
                .insert(extension.to_owned(), true);
            world.renew("n1", true);
            world.act();
        }
        assert!(!world.is_tainted("n1"));
        assert_eq!(world.machines["n1"].snapshot.owners, None);
        world.pass(60_000);
        let writes = if tainted_from_creation { 1 } else { 2 };
        assert_eq!(world.writes["n1"], writes);
    }
}

/// Covers R04.
#[test]
fn silence_taints_when_it_has_lasted_long_enough_and_renewal_releases_whatever_the_clocks_say() {
    for clock in [0, 3_600_000, -3_600_000] {
        let mut world = World::new(&[one()]);
        world.add("n1", "a", &["dp"]);
        world.add("n2", "a", &["dp"]);
        world.machine("n1").clock = clock;
        world.begin();
        world.pass(60_000);
        world.machine("n1").clock -= 30_000;
        world.pass(20_000);
        assert_eq!(world.tainted(), 0);
        world.renew("n1", true);
        let last = world.now;
        world
            .machine("n1")
            .extensions
            .insert("dp".to_owned(), false);
        world.pass(9_900);
        assert!(!world.is_tainted("n1"));
        world.pass(200);
        assert!(
            world.is_tainted("n1"),
            "{} ms after the last renewal",
            world.now - last
        );
        let why = world.log.iter().find_map(|(_, it)| match it {
            ReadinessAction::Write {
                change: TaintChange::Taint(why),
                ..
            } => Some(why.clone()),
            _ => None,
        });
        assert_eq!(
            why.as_deref(),
            Some("extension dp (gpu): Lease node-extensions/n1.dp was not renewed for 10s")
        );
        world.pass(30_000);
        world.machine("n1").extensions.insert("dp".to_owned(), true);
        world.renew("n1", true);
        world.act();
        assert!(!world.is_tainted("n1"));
        world.pass(30_000);
        assert_eq!(
            world.writes.get("n1"),
            Some(&2),
            "one to taint and one to release"
        );
        assert_eq!(world.writes.get("n2"), None);
    }
}

/// Covers R03, R06.
#[test]
fn a_restarted_kubelet_takes_the_node_back_and_pods_that_never_changed_count_after_a_while() {
    let selector = json!({ "matchLabels": { "app": "dp" } });
    let mut world = World::new(&[gpu(
        &json!([{ "name": "dp", "pods": { "namespace": "g", "selector": selector } }]),
    )]);
    let feed = Feed::Pods {
        namespace: "g".to_owned(),
        selector: "app=dp".to_owned(),
    };
    world.add("n1", "a", &[]);
    let pod = |ready: bool, mark: &str| PodSnapshot {
        name: "p1".to_owned(),
        node: "n1".to_owned(),
        ready,
        ending: false,
        mark: mark.to_owned(),
    };
    world.pod(&feed, pod(true, "1"));
    world.begin();
    let report = |boot: &str, kubelet: &str| json!({ "bootId": boot, "kubeletStart": kubelet });
    world.report("n1", &report("boot-n1", "k1"));
    world.pass(60_000);
    assert_eq!(world.tainted(), 0);
    world.report("n1", &report("boot-n1", "k2"));
    assert!(world.is_tainted("n1"), "at the agent's sign");
    // The kubelet renews its lease every 10 s; ten seconds after that the pod counts.
    world.pass(9_000);
    assert!(world.is_tainted("n1"));
    world.pass(12_000);
    assert!(!world.is_tainted("n1"));
    // After a restart of the machine a pod that was started anew counts at once.
    world.machine("n1").snapshot.boot_id = "boot-2".to_owned();
    world.show("n1");
    assert!(world.is_tainted("n1"));
    world.pass(100);
    world.report("n1", &report("boot-2", "k3"));
    world.pass(100);
    world.pod(&feed, pod(false, "2"));
    world.pod(&feed, pod(true, "3"));
    assert!(!world.is_tainted("n1"));
    assert_eq!(world.writes["n1"], 4);
    // An unready pod is bad evidence, and so is none.
    world.pod(&feed, pod(false, "4"));
    assert!(world.is_tainted("n1"));
}

#[test]
fn a_rolling_update_is_ridden_over_by_the_debounce() {
    let selector = json!({ "matchLabels": { "app": "dp" } });
    let pods = json!({ "namespace": "g", "selector": selector, "debounce": "5s" });
    let mut world = World::new(&[gpu(&json!([{ "name": "dp", "pods": pods }]))]);
    let feed = Feed::Pods {
        namespace: "g".to_owned(),
        selector: "app=dp".to_owned(),
    };
    world.add("n1", "a", &[]);
    let pod = |ready: bool, mark: &str| PodSnapshot {
        name: "p1".to_owned(),
        node: "n1".to_owned(),
        ready,
        ending: false,
        mark: mark.to_owned(),
    };
    world.pod(&feed, pod(true, "1"));
    world.begin();
    world.pod(&feed, pod(false, "2"));
    world.pass(4_800);
    world.pod(&feed, pod(true, "3"));
    world.pass(10_000);
    assert!(world.writes.is_empty());
    world.pod(&feed, pod(false, "4"));
    world.pass(5_200);
    assert!(world.is_tainted("n1"));
}

/// Covers R07.
#[test]
fn an_old_true_is_not_true() {
    let mut world = World::new(&[gpu(
        &json!([{ "name": "c", "condition": { "type": "GpuReady", "freshness": "10m" } }]),
    )]);
    world.add("n1", "a", &[]);
    let say = |world: &mut World, status: &str, heartbeat: &str| {
        world.machine("n1").snapshot.conditions = vec![ConditionSnapshot {
            kind: "GpuReady".into(),
            status: status.into(),
            transition: "t".into(),
            heartbeat: heartbeat.into(),
        }];
        world.show("n1");
    };
    say(&mut world, "True", "12:00");
    world.begin();
    world.pass(300_000);
    say(&mut world, "True", "12:05");
    world.pass(590_000);
    assert!(!world.is_tainted("n1"));
    world.pass(20_000);
    assert!(world.is_tainted("n1"));
    say(&mut world, "True", "11:00");
    assert!(
        !world.is_tainted("n1"),
        "another heartbeat is a newer one, whatever its clock says"
    );
    say(&mut world, "False", "11:01");
    assert!(world.is_tainted("n1"));
    say(&mut world, "True", "11:02");
    world.machine("n1").snapshot.boot_id = "boot-2".to_owned();
    world.show("n1");
    assert!(world.is_tainted("n1"), "nothing was said since the restart");
    world.pass(100);
    say(&mut world, "True", "11:03");
    assert!(!world.is_tainted("n1"));
}

/// Covers R08, R16.
#[test]
fn probes_count_as_the_agent_says_and_its_own_state_only_where_a_rule_asks_for_it() {
    let mut world = World::new(&[gpu(
        &json!([{ "name": "cni", "probe": { "tcpSocket": { "port": 1 } } }]),
    )]);
    world.add("n1", "a", &[]);
    world.begin();
    let report = |healthy: bool, state: &str| {
        json!({
            "bootId": "boot-n1", "kubeletStart": "k", "state": state,
            "probes": { "cni": { "healthy": healthy, "message": "connection refused" } },
        })
    };
    world.report("n1", &report(true, "Degraded"));
    world.pass(10_000);
    assert!(
        !world.is_tainted("n1"),
        "its configuration state has no effect by default"
    );
    world.report("n1", &report(false, "Done"));
    assert!(world.is_tainted("n1"));
    world.report("n1", &report(true, "Done"));
    assert!(!world.is_tainted("n1"));
    world.pass(29_000);
    assert!(!world.is_tainted("n1"));
    world.pass(2_000);
    assert!(
        world.is_tainted("n1"),
        "an agent that is silent tells nothing"
    );
    world.report("n1", &report(true, "Done"));
    let agent = json!([{ "name": "evenkeel-agent", "lease": { "expiry": "30s" } }]);
    world.set_rule(rule("config", &json!({ "nodeSelector": { "matchLabels": { "pool": "gpu" } }, "evictAfter": "1s", "extensions": agent })));
    world.report("n1", &report(true, "Degraded"));
    assert!(world.is_tainted("n1"));
    assert_eq!(
        world.machines["n1"].snapshot.owners.as_deref(),
        Some("config")
    );
    world.pass(10_000);
    assert!(world.evicting.is_empty(), "and never evicts");
}

/// Covers R16.
#[test]
fn a_new_rule_takes_no_agent_for_silent_that_has_not_heard_of_it() {
    let mut world = World::new(&[one()]);
    world.add("n1", "a", &["dp"]);
    world.begin();
    let report = |world: &mut World, lasts| {
        let lease = LeaseSnapshot {
            renewed: format!("{}", world.now),
            holder: "n1".to_owned(),
            lasts: Some(Duration::from_secs(lasts)),
            report: Some(
                json!({ "bootId": "b", "kubeletStart": "k", "state": "Done" }).to_string(),
            ),
        };
        world.lease("node-extensions", "n1.evenkeel-agent", lease);
        world.act();
    };
    // At rest it renews every forty seconds, and says so.
    report(&mut world, 120);
    world.pass(35_000);
    let agent = json!([{ "name": "evenkeel-agent", "lease": { "expiry": "30s" } }]);
    world.set_rule(rule(
        "config",
        &json!({ "nodeSelector": { "matchLabels": { "pool": "gpu" } }, "extensions": agent }),
    ));
    world.pass(80_000);
    assert!(!world.is_tainted("n1"));
    report(&mut world, 30);
    world.pass(29_000);
    assert!(!world.is_tainted("n1"));
    world.pass(2_000);
    assert!(world.is_tainted("n1"), "now it has heard, and is silent");
}

/// Covers R10.
#[test]
fn pods_are_evicted_after_a_while_and_not_when_it_recovers_a_moment_before() {
    let mut rule = one();
    rule.evict_after = Duration::from_mins(1);
    for recovers in [true, false] {
        let mut world = World::new(&[rule.clone()]);
        world.add("n1", "a", &["dp"]);
        world.add("n2", "a", &["dp"]);
        world.begin();
        world
            .machine("n1")
            .extensions
            .insert("dp".to_owned(), false);
        world.pass(20_000);
        assert!(world.is_tainted("n1"));
        let since = world
            .log
            .iter()
            .find(|(_, it)| matches!(it, ReadinessAction::Write { .. }))
            .unwrap()
            .0;
        let left = since + 60_000 - world.now;
        world.pass(left - 200);
        assert!(world.evicting.is_empty());
        if recovers {
            world.machine("n1").extensions.insert("dp".to_owned(), true);
            world.renew("n1", true);
            world.act();
        }
        world.pass(400);
        assert_eq!(world.evicting.contains("n1"), !recovers);
        world.machine("n1").extensions.insert("dp".to_owned(), true);
        world.pass(5_000);
        assert!(world.evicting.is_empty(), "it recovered in the middle");
        assert!(!world.is_tainted("n1"));
    }
}

/// Covers R13.
#[test]
fn the_autoscaler_gets_its_own_taint_where_a_rule_asks_for_it() {
    let mut rule = one();
    rule.autoscaler_startup_taint = true;
    let mut world = World::new(&[rule]);
    world.add("n1", "a", &[]);
    world.begin();
    world.pass(11_000);
    let keys = |world: &World| -> Vec<String> {
        let taints = &world.machines["n1"].snapshot.taints;
        taints
            .iter()
            .map(|it| it["key"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        keys(&world),
        [taint::META_READINESS, taint::AUTOSCALER_STARTUP]
    );
    world.machine("n1").extensions.insert("dp".to_owned(), true);
    world.pass(5_000);
    assert!(keys(&world).is_empty());
}

/// Covers R01.
#[test]
fn a_node_lists_extensions_of_its_own_and_a_list_that_cannot_be_read_taints_nobody() {
    let mut world = World::new(&[]);
    world.add("n1", "a", &[]);
    world.begin();
    world.machine("n1").snapshot.extensions = Some(r#"[{"name": "csi", "lease": {}}]"#.to_owned());
    world.show("n1");
    for feed in world.readiness.feeds() {
        let now = evenkeel_plan::readiness::Moment(Duration::from_millis(world.now));
        world.readiness.listed(&feed, now);
    }
    world.pass(11_000);
    assert!(world.is_tainted("n1"));
    assert_eq!(
        world.machines["n1"].snapshot.owners.as_deref(),
        Some("evenkeel.dev/system-extensions")
    );
    world.machine("n1").snapshot.extensions = Some(r#"[{"name": "csi"}]"#.to_owned());
    world.show("n1");
    assert!(!world.is_tainted("n1"));
    let why = world.readiness.problem("n1").unwrap();
    assert!(why.contains("extensions[0] csi: none of lease"), "{why}");
}

#[test]
fn a_lease_of_another_node_is_no_evidence() {
    let mut world = World::new(&[one()]);
    world.add("n1", "a", &[]);
    world.begin();
    for second in 0..12 {
        let lease = LeaseSnapshot {
            renewed: second.to_string(),
            holder: "n10".to_owned(),
            ..LeaseSnapshot::default()
        };
        world.lease("node-extensions", "n1.dp", lease);
        world.pass(1_000);
    }
    assert!(world.is_tainted("n1"));
    assert_eq!(
        world.readiness.foreign("n1"),
        [("n1.dp".to_owned(), "n10".to_owned())]
    );
    let lease = LeaseSnapshot {
        renewed: "13".to_owned(),
        holder: "n1/dp".to_owned(),
        ..LeaseSnapshot::default()
    };
    world.lease("node-extensions", "n1.dp", lease);
    world.act();
    assert!(!world.is_tainted("n1"));
}

/// Covers R02.
#[test]
fn a_node_is_tainted_before_it_goes_down_by_our_own_doing_and_waits_for_newer_evidence() {
    let mut world = World::new(&[one()]);
    world.add("n1", "a", &["dp"]);
    world.begin();
    world.pass(10_000);
    world.machine("n1").snapshot.has_permit = true;
    world.show("n1");
    assert!(world.is_tainted("n1"), "as soon as it has a permit");
    world
        .machine("n1")
        .extensions
        .insert("dp".to_owned(), false);
    world.pass(20_000);
    world.machine("n1").snapshot.boot_id = "boot-2".to_owned();
    world.show("n1");
    world.machine("n1").snapshot.has_permit = false;
    world.show("n1");
    world.pass(5_000);
    assert!(world.is_tainted("n1"));
    world.machine("n1").extensions.insert("dp".to_owned(), true);
    world.pass(4_000);
    assert!(!world.is_tainted("n1"));
    // Leave without a restart: nothing new is needed.
    world.machine("n1").snapshot.has_permit = true;
    world.show("n1");
    world.machine("n1").snapshot.has_permit = false;
    world.show("n1");
    assert!(!world.is_tainted("n1"));
    assert_eq!(world.writes["n1"], 4);
}

#[test]
fn conditions_are_published_on_change_only() {
    let mut rule = one();
    rule.publish_conditions = true;
    let mut world = World::new(&[rule]);
    world.add("n1", "a", &["dp"]);
    world.begin();
    world.pass(30_000);
    world
        .machine("n1")
        .extensions
        .insert("dp".to_owned(), false);
    world.pass(30_000);
    let published: Vec<_> = world
        .log
        .iter()
        .filter_map(|(_, it)| match it {
            ReadinessAction::Publish { conditions, .. } => {
                let it = &conditions[0];
                Some(format!("{} {} {}", it.kind, it.status, it.reason))
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        published,
        ["evenkeel.dev/dp True Well", "evenkeel.dev/dp False Silent"]
    );
}
