//! The paths that are watched, as a tree of names: what an event is about is found in one step,
//! however many paths there are. Knows nothing of the kernel.

use std::collections::{BTreeMap, HashMap};

/// A node of the tree. A parent's number is smaller than its children's.
pub(super) type Id = usize;
/// The kernel's number of a watched folder. It is never used twice.
pub(super) type Wd = i32;

pub(super) const ROOT: Id = 0;

/// A path, or a folder on the way to one.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) path: Box<str>,
    pub(super) parent: Id,
    pub(super) children: BTreeMap<Box<str>, Id>,
    /// Somebody wants to know when it changes.
    pub(super) wanted: bool,
    /// The folder that it is, behind all links; `None` while there is none.
    pub(super) folder: Option<Wd>,
    /// The names that lead there behind a link, each in its folder.
    ways: Vec<(Wd, Box<[u8]>)>,
}

impl Node {
    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// What a watched folder is to us.
#[derive(Debug, Default)]
struct Watched {
    /// The folders of the tree that it is: more than one if links lead to it.
    folders: Vec<Id>,
    /// Names in it that lead to folders of the tree, behind a link.
    ways: Vec<(Box<[u8]>, Id)>,
}

#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    watched: HashMap<Wd, Watched>,
}

impl Tree {
    pub(super) fn new() -> Self {
        Self {
            nodes: vec![Node::default()],
            watched: HashMap::new(),
        }
    }

    pub(super) fn node(&self, id: Id) -> &Node {
        &self.nodes[id]
    }

    /// Adds a path, with the folders on the way to it.
    pub(super) fn want(&mut self, path: &str) -> Id {
        let mut id = ROOT;
        let mut end = 0;
        for name in path.split('/').skip(1).filter(|name| !name.is_empty()) {
            end += 1 + name.len();
            id = match self.nodes[id].children.get(name) {
                Some(child) => *child,
                None => self.grow(id, name, &path[..end]),
            };
        }
        self.nodes[id].wanted = true;
        id
    }

    fn grow(&mut self, parent: Id, name: &str, path: &str) -> Id {
        let id = self.nodes.len();
        self.nodes.push(Node {
            path: path.into(),
            parent,
            ..Node::default()
        });
        self.nodes[parent].children.insert(name.into(), id);
        id
    }

    /// The children of a node that are folders on the way to something.
    pub(super) fn folders_in(&self, id: Id) -> Vec<Id> {
        let children = self.nodes[id].children.values().copied();
        children
            .filter(|child| !self.nodes[*child].children.is_empty())
            .collect()
    }

    /// The paths below a node that somebody wants.
    pub(super) fn wanted_below(&self, id: Id, found: &mut impl Extend<Id>) {
        for child in self.nodes[id].children.values() {
            if self.nodes[*child].wanted {
                found.extend([*child]);
            }
            self.wanted_below(*child, found);
        }
    }

    /// The nodes that `name` in a watched folder stands for.
    pub(super) fn named(&self, wd: Wd, name: &[u8]) -> Vec<Id> {
        let Some(watched) = self.watched.get(&wd) else {
            return Vec::new();
        };
        let text = std::str::from_utf8(name).ok();
        let children = watched
            .folders
            .iter()
            .filter_map(|folder| self.nodes[*folder].children.get(text?))
            .copied();
        let ways = watched
            .ways
            .iter()
            .filter(|(way, _)| **way == *name)
            .map(|(_, id)| *id);
        children.chain(ways).collect()
    }

    /// The folders of the tree that a watched folder is.
    pub(super) fn folders_at(&self, wd: Wd) -> &[Id] {
        self.watched.get(&wd).map_or(&[], |found| &found.folders)
    }

    /// The node is the folder `wd` from now on. The folder it was before is returned, if nothing is
    /// left in it that matters.
    pub(super) fn settle(&mut self, id: Id, wd: Option<Wd>) -> Option<Wd> {
        let before = std::mem::replace(&mut self.nodes[id].folder, wd);
        if before == wd {
            return None;
        }
        if let Some(wd) = wd {
            self.watched.entry(wd).or_default().folders.push(id);
        }
        let watched = self.watched.get_mut(&before?)?;
        watched.folders.retain(|folder| *folder != id);
        before.filter(|wd| self.is_idle(*wd))
    }

    /// `name` in the folder `wd` leads to the node, behind a link.
    pub(super) fn lead(&mut self, id: Id, wd: Wd, name: &[u8]) {
        self.nodes[id].ways.push((wd, name.into()));
        let watched = self.watched.entry(wd).or_default();
        watched.ways.push((name.into(), id));
    }

    /// Forgets the ways to a node. The folders they went through are returned.
    pub(super) fn stray(&mut self, id: Id) -> Vec<Wd> {
        let ways = std::mem::take(&mut self.nodes[id].ways);
        for (wd, name) in &ways {
            if let Some(watched) = self.watched.get_mut(wd) {
                watched
                    .ways
                    .retain(|(way, node)| *node != id || way != name);
            }
        }
        ways.into_iter().map(|(wd, _)| wd).collect()
    }

    /// Whether nothing in the folder matters.
    pub(super) fn is_idle(&self, wd: Wd) -> bool {
        self.watched
            .get(&wd)
            .is_none_or(|watched| watched.folders.is_empty() && watched.ways.is_empty())
    }

    /// The kernel watches the folder no more. The nodes that relied on it are returned.
    pub(super) fn lose(&mut self, wd: Wd) -> Vec<Id> {
        let Some(watched) = self.watched.remove(&wd) else {
            return Vec::new();
        };
        for id in &watched.folders {
            self.nodes[*id].folder = None;
        }
        let ways = watched.ways.into_iter().map(|(_, id)| id);
        watched.folders.into_iter().chain(ways).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_a_folder_stands_for_every_path_it_leads_to() {
        let mut tree = Tree::new();
        let file = tree.want("/etc/chrony.conf");
        let folder = tree.node(file).parent;
        let other = tree.want("/opt/conf/chrony.conf");
        let other_folder = tree.node(other).parent;
        tree.settle(folder, Some(7));
        assert_eq!(tree.named(7, b"chrony.conf"), [file]);
        assert_eq!(tree.named(7, b"passwd"), [] as [Id; 0]);

        // /opt/conf is a link to /etc, and the name `etc` in the root leads there.
        tree.lead(other_folder, 3, b"etc");
        tree.settle(other_folder, Some(7));
        assert_eq!(tree.named(7, b"chrony.conf"), [file, other]);
        assert_eq!(tree.named(3, b"etc"), [other_folder]);

        assert_eq!(tree.stray(other_folder), [3]);
        assert!(tree.is_idle(3));
        assert_eq!(tree.settle(folder, None), None, "another one is left");
        assert_eq!(tree.settle(other_folder, None), Some(7));
    }

    #[test]
    fn a_lost_folder_is_nobodys_folder() {
        let mut tree = Tree::new();
        let file = tree.want("/etc/a");
        let folder = tree.node(file).parent;
        tree.settle(folder, Some(1));
        assert_eq!(tree.lose(1), [folder]);
        assert_eq!(tree.node(folder).folder, None);
        assert_eq!(tree.named(1, b"a"), [] as [Id; 0]);
    }
}
