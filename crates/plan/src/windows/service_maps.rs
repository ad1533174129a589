//! What becomes of every `services-*` ConfigMap in the operator's namespace: its own is as it would write
//! it, one of a version that nodes still run stays while it says what they run, and all others go.

use evenkeel_api::windows::version::Version;

use crate::fleet::node::Node;

/// A services ConfigMap, as it was seen.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, and none excludes another"
)]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObservedMap {
    /// Its name.
    pub name: String,
    /// Which of all objects that ever had this name it is.
    pub uid: String,
    /// Whether it is on its way out already.
    pub is_going: bool,
    /// Whether its contents cannot be changed.
    pub immutable: bool,
    /// Whether it has our label.
    pub labelled: bool,
    /// The uid of the WindowsPool that owns it.
    pub owner: Option<String>,
    /// SHA-256 of its `data` as it stands, in the form of a services hash.
    pub digest: String,
    /// Whether its contents hold by the rules of services.
    pub holds: bool,
}

/// What the operator would write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Own<'a> {
    /// Its version.
    pub version: &'a Version,
    /// The hash of its contents.
    pub hash: &'a str,
    /// The uid of the WindowsPool, if there is one.
    pub owner: Option<&'a str>,
}

/// What is to be done about one ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MapAction {
    /// There is none of our name: make it.
    Create,
    /// The one of our name is wrong, and what is immutable cannot be mended: delete it and make ours.
    Replace {
        /// Which one.
        uid: String,
        /// In what it is wrong.
        why: String,
    },
    /// Its contents are right, and only label or owner are not: write these.
    Mark {
        /// Which one.
        uid: String,
    },
    /// Delete it.
    Remove {
        /// Its name.
        name: String,
        /// Which one.
        uid: String,
        /// Why nobody needs it.
        why: String,
    },
}

/// What is to be done about all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MapDecision {
    /// In this order.
    pub actions: Vec<MapAction>,
    /// Why nothing is done: the newer version that is installed.
    pub newer: Option<Version>,
}

/// The services that some node runs, or is told to run: versions with their hashes.
pub fn in_use<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Vec<(Version, String)> {
    let mut all = Vec::new();
    for windows in nodes.into_iter().filter_map(|node| node.windows.as_ref()) {
        for (version, hash) in [
            (&windows.version, &windows.current_services),
            (&windows.desired_version, &windows.desired_services),
        ] {
            let version = version.as_ref().and_then(|it| it.version().ok());
            if let (Some(version), Some(hash)) = (version, hash) {
                all.push((version.clone(), hash.clone()));
            }
        }
    }
    all
}

/// Decides about all of `seen`.
///
/// A ConfigMap of a newer release counts as that of a newer operator only if it is whole: labelled,
/// immutable, owned by the pool if there is one, and right by the rules. Then nothing is done at all.
/// Anything less is somebody's mistake, and goes.
pub fn decide(own: Own<'_>, seen: &[ObservedMap], in_use: &[(Version, String)]) -> MapDecision {
    let newer = seen
        .iter()
        .filter(|map| is_whole(map, own.owner))
        .filter_map(|map| Version::from_config_map_name(&map.name).ok())
        .filter(|version| version.compare_release(own.version).is_gt())
        .max_by(Version::compare_release);
    if newer.is_some() {
        return MapDecision {
            newer,
            ..MapDecision::default()
        };
    }
    let name = own.version.config_map_name();
    let mut actions = Vec::new();
    match seen.iter().find(|map| map.name == name) {
        None => actions.push(MapAction::Create),
        Some(map) => actions.extend(about_own(own, map)),
    }
    for map in seen.iter().filter(|map| map.name != name && !map.is_going) {
        if let Some(why) = superfluous(map, in_use) {
            actions.push(MapAction::Remove {
                name: map.name.clone(),
                uid: map.uid.clone(),
                why,
            });
        }
    }
    MapDecision {
        actions,
        newer: None,
    }
}

fn is_whole(map: &ObservedMap, owner: Option<&str>) -> bool {
    let is_owned = owner.is_none_or(|owner| map.owner.as_deref() == Some(owner));
    !map.is_going && map.labelled && map.immutable && map.holds && is_owned
}

fn about_own(own: Own<'_>, map: &ObservedMap) -> Option<MapAction> {
    let uid = map.uid.clone();
    let wrong = if map.is_going {
        Some("it is being deleted".to_owned())
    } else if map.digest != own.hash {
        Some("its contents differ from this version".to_owned())
    } else if !map.immutable {
        Some("it is not immutable".to_owned())
    } else {
        None
    };
    match wrong {
        Some(why) => Some(MapAction::Replace { uid, why }),
        None if !map.labelled || (own.owner.is_some() && map.owner.as_deref() != own.owner) => {
            Some(MapAction::Mark { uid })
        }
        None => None,
    }
}

/// Why a ConfigMap of another version is not needed.
fn superfluous(map: &ObservedMap, in_use: &[(Version, String)]) -> Option<String> {
    let Ok(version) = Version::from_config_map_name(&map.name) else {
        return Some("its name has no version".to_owned());
    };
    let mut hashes = in_use
        .iter()
        .filter(|(used, _)| *used == version)
        .peekable();
    if hashes.peek().is_none() {
        Some(format!("no node runs {version}"))
    } else if !hashes.any(|(_, hash)| *hash == map.digest) {
        Some(format!(
            "its contents differ from what the nodes that run {version} use"
        ))
    } else {
        None
    }
}
