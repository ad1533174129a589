//! A file system in memory: what stands where, and what its names were since they were last made
//! durable.
//!
//! Only shapes and walking; what a call does and which errors it gives is next door.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_plan::machine::attributes::Attributes;
use evenkeel_plan::machine::entry::{Entry, Hash, Ids};

/// A thing that stands under a name, by number.
pub(super) type InodeId = u64;
pub(super) const ROOT: InodeId = 0;
/// As many links as Linux follows before it calls them a circle.
const MOST_LINKS: usize = 40;

#[derive(Debug, Clone)]
pub(super) enum Inode {
    File(File),
    Link(Arc<str>),
    Folder(InodeFolder),
}

#[derive(Debug, Clone)]
pub(super) struct File {
    pub(super) contents: Arc<[u8]>,
    pub(super) hash: Hash,
    pub(super) mode: u32,
    pub(super) owner: Ids,
    /// Whether a power cut leaves it whole.
    pub(super) durable: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct InodeFolder {
    pub(super) mode: u32,
    pub(super) owner: Ids,
    pub(super) names: BTreeMap<String, InodeId>,
    /// What a name stood for before, since the folder was last made durable; the oldest first.
    pub(super) past: BTreeMap<String, Vec<Option<InodeId>>>,
}

/// Why a path leads nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Astray {
    Missing,
    NotAFolder,
    Circle,
}

/// All of it. A copy shares what is large.
#[derive(Debug, Clone)]
pub(super) struct InodeTree {
    nodes: BTreeMap<InodeId, Arc<Inode>>,
    /// The security labels of those that have one.
    labels: BTreeMap<InodeId, Arc<str>>,
    /// The extended attributes of those that have some.
    attributes: BTreeMap<InodeId, Arc<Attributes>>,
    next: InodeId,
    /// How many nodes there may be before the unreachable ones are dropped.
    roomy: usize,
    /// What stands under names that are no paths: the last state is the current one, those before it
    /// were there since all this was last made durable.
    pub(super) named: BTreeMap<String, Vec<Entry>>,
}

impl File {
    pub(super) fn fresh(contents: &[u8], mode: u32, owner: Ids) -> Self {
        Self {
            hash: Hash::of(contents),
            contents: contents.into(),
            mode,
            owner,
            durable: false,
        }
    }
}

impl InodeFolder {
    pub(super) const fn empty(mode: u32, owner: Ids) -> Self {
        Self {
            mode,
            owner,
            names: BTreeMap::new(),
            past: BTreeMap::new(),
        }
    }
}

impl InodeTree {
    pub(super) fn new() -> Self {
        let root = Inode::Folder(InodeFolder::empty(0o755, Ids::default()));
        Self {
            nodes: BTreeMap::from([(ROOT, Arc::new(root))]),
            labels: BTreeMap::new(),
            attributes: BTreeMap::new(),
            next: ROOT + 1,
            roomy: 64,
            named: BTreeMap::new(),
        }
    }

    pub(super) fn node(&self, id: InodeId) -> Option<&Inode> {
        self.nodes.get(&id).map(Arc::as_ref)
    }

    pub(super) fn node_mut(&mut self, id: InodeId) -> Option<&mut Inode> {
        self.nodes.get_mut(&id).map(Arc::make_mut)
    }

    pub(super) fn folder(&self, id: InodeId) -> Option<&InodeFolder> {
        match self.node(id) {
            Some(Inode::Folder(folder)) => Some(folder),
            _ => None,
        }
    }

    pub(super) fn folder_mut(&mut self, id: InodeId) -> Option<&mut InodeFolder> {
        match self.node_mut(id) {
            Some(Inode::Folder(folder)) => Some(folder),
            _ => None,
        }
    }

    pub(super) fn add(&mut self, node: Inode) -> InodeId {
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, Arc::new(node));
        id
    }

    pub(super) fn label(&self, id: InodeId) -> Option<String> {
        self.labels.get(&id).map(|label| label.as_ref().to_owned())
    }

    pub(super) fn set_label(&mut self, id: InodeId, label: &str) {
        self.labels.insert(id, label.into());
    }

    pub(super) fn attributes(&self, id: InodeId) -> Attributes {
        let found = self.attributes.get(&id);
        found.map(|it| it.as_ref().clone()).unwrap_or_default()
    }

    pub(super) fn set_attributes(&mut self, id: InodeId, attributes: &Attributes) {
        self.attributes.insert(id, Arc::new(attributes.clone()));
    }

    /// Follows `path` to its end, links too. No link leads out: the root's parent is the root.
    pub(super) fn walk(&self, path: &str) -> Result<InodeId, Astray> {
        let parts = |path: &str| -> Vec<String> {
            path.split('/')
                .filter(|part| !matches!(*part, "" | "."))
                .rev()
                .map(str::to_owned)
                .collect()
        };
        let mut way = vec![ROOT];
        let mut ahead = parts(path);
        let mut links = 0;
        while let Some(name) = ahead.pop() {
            let here = way.last().copied().unwrap_or(ROOT);
            let folder = self.folder(here).ok_or(Astray::NotAFolder)?;
            if name == ".." {
                if way.len() > 1 {
                    way.pop();
                }
                continue;
            }
            let id = *folder.names.get(&name).ok_or(Astray::Missing)?;
            if let Some(Inode::Link(target)) = self.node(id) {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Astray::Circle);
                }
                if target.starts_with('/') {
                    way.truncate(1);
                }
                ahead.extend(parts(target));
            } else {
                way.push(id);
            }
        }
        Ok(way.last().copied().unwrap_or(ROOT))
    }

    /// The folder that holds `path`, links followed, and the last name of `path`.
    pub(super) fn parent<'p>(&self, path: &'p str) -> Result<(InodeId, &'p str), Astray> {
        let (folder, name) = path.rsplit_once('/').ok_or(Astray::Missing)?;
        let id = self.walk(folder)?;
        self.folder(id)
            .map(|_| (id, name))
            .ok_or(Astray::NotAFolder)
    }

    /// What stands at `path`, its last name not followed.
    pub(super) fn at(&self, path: &str) -> Result<InodeId, Astray> {
        let (folder, name) = self.parent(path)?;
        self.named(folder, name).ok_or(Astray::Missing)
    }

    pub(super) fn named(&self, folder: InodeId, name: &str) -> Option<InodeId> {
        self.folder(folder)?.names.get(name).copied()
    }

    /// Lets `name` stand for `id`, or for nothing. The past keeps what it stood for.
    pub(super) fn name(&mut self, folder: InodeId, name: &str, id: Option<InodeId>) {
        let Some(folder) = self.folder_mut(folder) else {
            return;
        };
        let before = match id {
            Some(id) => folder.names.insert(name.to_owned(), id),
            None => folder.names.remove(name),
        };
        folder.past.entry(name.to_owned()).or_default().push(before);
    }

    /// The names in a folder are durable from here on.
    pub(super) fn settle(&mut self, folder: InodeId) {
        if let Some(folder) = self.folder_mut(folder) {
            folder.past.clear();
        }
        if self.nodes.len() > self.roomy {
            let reached = self.reached();
            self.nodes.retain(|id, _| reached.contains(id));
            self.labels.retain(|id, _| reached.contains(id));
            self.attributes.retain(|id, _| reached.contains(id));
            self.roomy = 2 * self.nodes.len().max(32);
        }
    }

    pub(super) fn ids(&self) -> Vec<InodeId> {
        self.nodes.keys().copied().collect()
    }

    /// Everything that stands somewhere now, or may come back in a power cut.
    fn reached(&self) -> BTreeSet<InodeId> {
        let mut reached = BTreeSet::new();
        let mut ahead = vec![ROOT];
        while let Some(id) = ahead.pop() {
            if reached.insert(id)
                && let Some(folder) = self.folder(id)
            {
                ahead.extend(folder.names.values());
                ahead.extend(folder.past.values().flatten().flatten());
            }
        }
        reached
    }

    pub(super) fn entry(&self, id: InodeId) -> Entry {
        match self.node(id) {
            None => Entry::Absent,
            Some(Inode::File(file)) => Entry::File {
                hash: file.hash,
                mode: file.mode,
                owner: file.owner,
            },
            Some(Inode::Link(target)) => Entry::Link {
                target: target.as_ref().to_owned(),
            },
            Some(Inode::Folder(folder)) => Entry::Directory {
                mode: folder.mode,
                owner: folder.owner,
            },
        }
    }

    /// What stands under a name that is no path.
    pub(super) fn under(&self, place: &str) -> Entry {
        let states = self.named.get(place);
        let last = states.and_then(|states| states.last());
        last.cloned().unwrap_or(Entry::Absent)
    }

    /// Everything that stands below the root, by path, and under names.
    pub(super) fn all(&self) -> BTreeMap<String, Entry> {
        let named = self.named.keys();
        let named = named.map(|place| (place.clone(), self.under(place)));
        let mut all: BTreeMap<_, _> = named.filter(|(_, it)| *it != Entry::Absent).collect();
        let mut ahead = vec![(String::new(), ROOT)];
        while let Some((path, id)) = ahead.pop() {
            for (name, id) in self.folder(id).into_iter().flat_map(|folder| &folder.names) {
                let path = format!("{path}/{name}");
                all.insert(path.clone(), self.entry(*id));
                ahead.push((path, *id));
            }
        }
        all
    }
}
