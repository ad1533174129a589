//! Watches of what only one rule or one node names: whatever becomes of them, others do not notice.

use evenkeel_plan::readiness::{Feed, LeaseSnapshot};
use serde_json::json;

use crate::promises::one;
use crate::world::{World, rule};

/// Covers N03, S03.
#[test]
fn what_one_rule_names_never_changes_when_the_silence_of_another_counts() {
    for trouble in [
        "missing",
        "listed again and again",
        "lost",
        "not to be read",
    ] {
        let other = json!({ "namespace": "theirs", "name": "{node}.x", "expiry": "1m" });
        let missing = json!({ "apiVersion": "a.example.com/v1", "kind": "Missing", "namespace": "theirs", "name": "{node}", "lease": ".lease" });
        let extensions = json!([
            { "name": "x", "lease": other, "affectsReadiness": false },
            { "name": "m", "status": missing },
        ]);
        let selector = json!({ "matchLabels": { "pool": "gpu" } });
        let other = rule(
            "other",
            &json!({ "nodeSelector": selector, "extensions": extensions }),
        );
        let mut world = World::new(&[one(), other]);
        for node in ["n1", "n2", "n3", "n4"] {
            world.add(node, "a", &["dp"]);
        }
        world.begin();
        world.pass(20_000);
        assert_eq!(world.tainted(), 0, "what is not there tells nothing");
        let feed = Feed::Leases {
            namespace: "theirs".to_owned(),
        };
        world.renew("n1", true);
        world.machine("n1").extensions.clear();
        for _ in 0..99 {
            match trouble {
                "listed again and again" => {
                    world.readiness.relisting(&feed);
                    world.readiness.listed(&feed, world.moment());
                    // And one that never began.
                    world.readiness.listed(&feed, world.moment());
                }
                "lost" => world.readiness.relisting(&feed),
                "not to be read" => {
                    let now = world.moment();
                    world.readiness.unreadable("n2", &feed, now);
                }
                _ => {}
            }
            world.pass(100);
        }
        assert_eq!(world.tainted(), 0, "{trouble}");
        world.pass(300);
        assert!(world.is_tainted("n1"), "{trouble}: ten seconds are over");
        assert_eq!(world.tainted(), 1, "{trouble}");
        // One of its own is known again only when it is listed.
        if trouble == "lost" {
            let seen = LeaseSnapshot::default();
            let now = world.moment();
            world.readiness.see_lease(&feed, "n2.x", seen, now);
            world.pass(120_000);
            let view = world.readiness.node("n2", world.moment()).unwrap();
            let says = view.extensions.iter().map(|it| it.says);
            assert_eq!(says.collect::<Vec<_>>(), ["healthy", "unknown", "unknown"]);
        }
    }
}
