//! What becomes of services ConfigMaps.

use evenkeel_api::windows::version::Version;
use evenkeel_plan::windows::service_maps::{MapAction, ObservedMap, Own, decide};
use proptest::prelude::*;

fn map(name: &str, digest: &str) -> ObservedMap {
    ObservedMap {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        immutable: true,
        labelled: true,
        owner: Some("pool".to_owned()),
        digest: digest.to_owned(),
        holds: true,
        is_going: false,
    }
}

/// Makes something wrong.
type Edit = fn(&mut ObservedMap);

const OWN: &str = "services-1-2-3-abc1234";

#[expect(clippy::unwrap_used, reason = "it is a version")]
fn used(version: &str, hash: &str) -> Vec<(Version, String)> {
    vec![(version.parse().unwrap(), hash.to_owned())]
}

fn actions(seen: &[ObservedMap], used: &[(Version, String)]) -> Vec<MapAction> {
    let Ok(version) = Version::from_config_map_name(OWN) else {
        return Vec::new();
    };
    let own = Own {
        version: &version,
        hash: "mine",
        owner: Some("pool"),
    };
    decide(own, seen, used).actions
}

/// Covers H01, H02, H03.
#[test]
fn our_own_is_as_we_would_write_it() {
    let none = Vec::new();
    assert_eq!(actions(&[], &none), [MapAction::Create]);
    assert_eq!(actions(&[map(OWN, "mine")], &none), []);
    let changes: [(Edit, &str); 3] = [
        (|it| it.digest = "other".to_owned(), "contents"),
        (|it| it.immutable = false, "not immutable"),
        (|it| it.is_going = true, "being deleted"),
    ];
    for (change, words) in changes {
        let mut wrong = map(OWN, "mine");
        change(&mut wrong);
        let found = actions(&[wrong], &none);
        assert!(
            matches!(&found[..], [MapAction::Replace { why, .. }] if why.contains(words)),
            "{found:?}"
        );
    }
    let marks: [Edit; 3] = [
        |it| it.labelled = false,
        |it| it.owner = None,
        |it| it.owner = Some("an earlier pool".to_owned()),
    ];
    for change in marks {
        let mut bare = map(OWN, "mine");
        change(&mut bare);
        let found = actions(&[bare], &none);
        assert!(matches!(&found[..], [MapAction::Mark { .. }]), "{found:?}");
    }
}

/// Covers H03.
#[test]
fn others_stay_only_while_they_say_what_nodes_run() {
    let old = "services-1-1-0-0000001";
    let seen = |digest: &str| [map(OWN, "mine"), map(old, digest)];
    let in_use = used("1.1.0-0000001", "told");
    assert_eq!(actions(&seen("told"), &in_use), []);
    for (digest, in_use, words) in [
        ("other", &in_use, "differ from what the nodes that run"),
        ("told", &Vec::new(), "no node runs 1.1.0-0000001"),
    ] {
        let found = actions(&seen(digest), in_use);
        assert!(
            matches!(&found[..], [MapAction::Remove { name, why, .. }] if name == old && why.contains(words)),
            "{found:?}"
        );
    }
    let found = actions(&[map(OWN, "mine"), map("services-of-mine", "x")], &in_use);
    assert!(
        matches!(&found[..], [MapAction::Remove { why, .. }] if why.contains("no version")),
        "{found:?}"
    );
}

#[test]
fn a_newer_operators_is_respected_and_an_impostors_is_not() {
    let newer = "services-1-3-0-fffffff";
    let version = Version::from_config_map_name(OWN).unwrap();
    let own = Own {
        version: &version,
        hash: "mine",
        owner: Some("pool"),
    };
    let none = Vec::new();
    let decision = decide(own, &[map(newer, "theirs"), map("services-x", "y")], &none);
    assert_eq!(decision.actions, [], "nothing is touched");
    assert_eq!(
        decision.newer.map(|it| it.to_string()).as_deref(),
        Some("1.3.0-fffffff")
    );
    let lacks: [Edit; 5] = [
        |it| it.labelled = false,
        |it| it.immutable = false,
        |it| it.holds = false,
        |it| it.owner = None,
        |it| it.owner = Some("another".to_owned()),
    ];
    for lack in lacks {
        let mut impostor = map(newer, "theirs");
        lack(&mut impostor);
        let decision = decide(own, &[map(OWN, "mine"), impostor], &none);
        assert_eq!(decision.newer, None);
        assert!(
            matches!(&decision.actions[..], [MapAction::Remove { name, .. }] if name == newer),
            "{decision:?}"
        );
    }
    // Another commit of one release is neither newer nor older: the leader's counts.
    let decision = decide(own, &[map("services-1-2-3-9999999", "x")], &none);
    assert_eq!(decision.newer, None);
    assert_eq!(decision.actions.len(), 2);
}

prop_compose! {
    fn any_map()(
        name in prop::sample::select(vec![OWN, "services-1-1-0-0000001", "services-1-2-3-9999999", "services-rubbish", "services-2-0-0-fffffff"]),
        digest in prop::sample::select(vec!["mine", "a", "b"]),
        immutable in any::<bool>(),
        labelled in any::<bool>(),
        owner in prop::option::of(prop::sample::select(vec!["pool", "another"])),
        holds in any::<bool>(),
        is_going in prop::bool::weighted(0.1),
    ) -> ObservedMap {
        ObservedMap { immutable, labelled, owner: owner.map(str::to_owned), holds, is_going, ..map(name, digest) }
    }
}

proptest! {
    /// Covers H03.
    #[test]
    fn once_done_there_is_nothing_to_do_and_nothing_in_use_is_lost(
        maps in prop::collection::vec(any_map(), 0..6),
        used in prop::collection::vec((
            prop::sample::select(vec!["1.1.0-0000001", "1.2.3-9999999"]).prop_map(|it| it.parse().unwrap()),
            prop::sample::select(vec!["a".to_owned(), "b".to_owned()]),
        ), 0..3),
    ) {
        let mut seen: Vec<ObservedMap> = Vec::new();
        for map in maps {
            if !seen.iter().any(|it| it.name == map.name) {
                seen.push(map);
            }
        }
        let version = Version::from_config_map_name(OWN).unwrap();
        let own = Own { version: &version, hash: "mine", owner: Some("pool") };
        let decision = decide(own, &seen, &used);
        if decision.newer.is_some() {
            prop_assert!(decision.actions.is_empty());
            return Ok(());
        }
        let mut after = seen.clone();
        for action in &decision.actions {
            match action {
                MapAction::Create => after.push(map(OWN, "mine")),
                MapAction::Replace { .. } | MapAction::Mark { .. } => {
                    after.retain(|it| it.name != OWN);
                    after.push(map(OWN, "mine"));
                }
                MapAction::Remove { name, .. } => {
                    let gone = after.iter().find(|it| it.name == *name).cloned().unwrap();
                    if let Ok(version) = Version::from_config_map_name(name) {
                        prop_assert!(!used.contains(&(version, gone.digest)), "{name} is in use");
                    }
                    after.retain(|it| it.name != *name);
                }
            }
        }
        after.retain(|it| !it.is_going);
        let mine = after.iter().find(|it| it.name == OWN).cloned().unwrap();
        prop_assert_eq!(ObservedMap { holds: true, ..mine }, map(OWN, "mine"));
        prop_assert_eq!(decide(own, &after, &used).actions, Vec::new());
    }
}
