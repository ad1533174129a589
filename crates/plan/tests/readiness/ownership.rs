//! Whose a taint is, and what goes with its rule.

use evenkeel_api::names::taint;
use evenkeel_plan::readiness::LeaseSnapshot;
use serde_json::json;

use crate::promises::one;
use crate::world::{World, rule};

/// Covers R12, R15.
#[test]
fn what_is_ours_goes_with_its_rule_and_what_is_not_is_never_touched() {
    let theirs = json!({ "key": "theirs", "effect": "NoExecute", "timeAdded": "t" });
    let ours = json!({ "key": taint::META_READINESS, "effect": "NoSchedule" });
    let mut dry = one();
    dry.dry_run = true;
    let mut world = World::new(&[]);
    world.add("n1", "a", &[]);
    world.add("by-hand", "a", &[]);
    world.machine("n1").snapshot.taints = vec![theirs.clone()];
    world.machine("by-hand").snapshot.taints = vec![ours];
    world.machine("by-hand").snapshot.labels = [("pool", "other")].into_iter().collect();
    world.begin();
    world.pass(30_000);
    world.set_rule(dry);
    world.pass(30_000);
    world.delete_rule("gpu");
    world.pass(30_000);
    assert!(world.writes.is_empty(), "no rule, or one that is dry");
    // The rule comes: what it must have is silent, and the node is tainted.
    world.set_rule(one());
    world.pass(9_000);
    assert!(!world.is_tainted("n1"), "all counts as just seen");
    world.pass(2_000);
    assert!(world.is_tainted("n1"));
    for how in ["deleted", "not selected", "dry"] {
        match how {
            "deleted" => world.delete_rule("gpu"),
            "dry" => {
                let mut dry = one();
                dry.dry_run = true;
                world.set_rule(dry);
            }
            _ => {
                world.machine("n1").snapshot.labels = [("pool", "other")].into_iter().collect();
                world.show("n1");
            }
        }
        assert_eq!(
            json!(world.machines["n1"].snapshot.taints),
            json!([theirs]),
            "{how}"
        );
        assert_eq!(world.machines["n1"].snapshot.owners, None, "{how}");
        world.machine("n1").snapshot.labels = [("pool", "gpu")].into_iter().collect();
        world.show("n1");
        world.set_rule(one());
        world.pass(12_000);
        assert!(world.is_tainted("n1"), "{how}");
    }
    assert!(world.is_tainted("by-hand"));
    assert_eq!(world.writes.get("by-hand"), None);
    // Two rules hold one taint, which stays until neither does.
    let mut other = one();
    other.name = "cni".to_owned();
    world.set_rule(other);
    world.pass(12_000);
    assert_eq!(
        world.machines["n1"].snapshot.owners.as_deref(),
        Some("cni,gpu")
    );
    world.delete_rule("gpu");
    assert_eq!(world.machines["n1"].snapshot.owners.as_deref(), Some("cni"));
    assert!(world.is_tainted("n1"));
    world.delete_rule("cni");
    assert!(!world.is_tainted("n1"));
}

/// Covers S13.
#[test]
fn the_lease_of_another_nodes_agent_is_no_evidence_whatever_name_leads_to_it() {
    // Each pattern leads from the one node to the only Lease that the agent of the other may write.
    for (pattern, victim, liar) in [
        ("{node}.b.evenkeel-agent", "a", "a.b"),
        ("{node}-agent", "a.evenkeel", "a"),
        ("x.{node}.evenkeel-agent", "a", "x.a"),
        ("{node}", "a.evenkeel-agent", "a"),
    ] {
        let lease = json!({ "name": pattern, "expiry": "60s" });
        let wanted = json!({ "name": "dp", "lease": lease });
        let mut world = World::new(&[rule("gpu", &json!({ "extensions": [wanted] }))]);
        world.add(victim, "a", &[]);
        world.begin();
        for second in 0..100 {
            // It says that it is the other's, too.
            let forged = LeaseSnapshot {
                renewed: format!("forged {second}"),
                holder: victim.to_owned(),
                ..LeaseSnapshot::default()
            };
            world.lease("node-extensions", &format!("{liar}.evenkeel-agent"), forged);
            world.pass(1_000);
        }
        assert!(world.is_tainted(victim), "{pattern}");
        let told = (format!("{liar}.evenkeel-agent"), victim.to_owned());
        assert_eq!(world.readiness.foreign(victim), [told], "{pattern}");
    }
}
