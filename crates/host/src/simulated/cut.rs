//! What a power cut leaves of a tree: of everything that was not made durable, anything.
//!
//! Every name that changed since its folder was last synced has one of the states it had since, each
//! name for itself, so that also what two renames leave behind in the wrong order is seen. A file
//! that was never synced is whole, empty, cut short or zeros.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_plan::machine::entry::{Hash, Ids};

use super::disk::UMASK;
use super::tree::{File, Inode, InodeFolder, InodeId, InodeTree, ROOT};

/// Chooses a number below the one it is given.
pub type Chooser<'a> = &'a mut dyn FnMut(usize) -> usize;

/// The tree after the cut; all of it is durable.
pub(super) fn cut(tree: &InodeTree, choose: Chooser<'_>) -> InodeTree {
    let mut after = InodeTree::new();
    if let Some(root) = tree.folder(ROOT)
        && let Some(copy) = after.folder_mut(ROOT)
    {
        copy.mode = root.mode;
        copy.owner = root.owner;
    }
    let mut loss = Loss {
        tree,
        after,
        copies: BTreeMap::new(),
    };
    let mut ahead = vec![(ROOT, ROOT)];
    while let Some((old, new)) = ahead.pop() {
        ahead.extend(loss.names(old, new, choose));
    }
    for id in loss.after.ids() {
        loss.after.settle(id);
    }
    for (place, states) in &tree.named {
        let left = states.get(choose(states.len())).cloned();
        loss.after
            .named
            .insert(place.clone(), left.into_iter().collect());
    }
    loss.after
}

struct Loss<'a> {
    tree: &'a InodeTree,
    after: InodeTree,
    /// What has been kept already, by what it was.
    copies: BTreeMap<InodeId, InodeId>,
}

impl Loss<'_> {
    /// Decides the names in one folder, and returns the folders below it that are still to decide.
    fn names(
        &mut self,
        old: InodeId,
        new: InodeId,
        choose: Chooser<'_>,
    ) -> Vec<(InodeId, InodeId)> {
        let mut below = Vec::new();
        let Some(folder) = self.tree.folder(old) else {
            return below;
        };
        let kept = folder
            .names
            .iter()
            .filter(|(name, _)| !folder.past.contains_key(*name));
        let mut names: Vec<(&String, InodeId)> = kept.map(|(name, id)| (name, *id)).collect();
        for (name, past) in &folder.past {
            let now = folder.names.get(name).copied();
            let states: Vec<Option<InodeId>> = past.iter().copied().chain([now]).collect();
            if let Some(Some(id)) = states.get(choose(states.len())) {
                names.push((name, *id));
            }
        }
        for (name, id) in names {
            // No file system lets a folder stand in two places.
            if self.copies.contains_key(&id) && self.tree.folder(id).is_some() {
                continue;
            }
            let copy = match self.copies.get(&id) {
                Some(copy) => *copy,
                None => self.copy(id, is_new(folder, name, id), choose),
            };
            self.copies.insert(id, copy);
            self.after.name(new, name, Some(copy));
            if self.tree.folder(id).is_some() {
                below.push((id, copy));
            }
        }
        below
    }

    fn copy(&mut self, id: InodeId, is_new: bool, choose: Chooser<'_>) -> InodeId {
        let node = match self.tree.node(id) {
            Some(Inode::File(file)) if !file.durable => Inode::File(damaged(file, choose)),
            Some(Inode::Folder(folder)) => {
                // What is in a folder came after its mode; an empty one may still lack it.
                let bare = is_new && folder.names.is_empty() && folder.past.is_empty();
                Inode::Folder(if bare && choose(2) == 1 {
                    InodeFolder::empty(folder.mode & !UMASK, Ids::default())
                } else {
                    InodeFolder::empty(folder.mode, folder.owner)
                })
            }
            Some(other) => other.clone(),
            None => return id,
        };
        let copy = self.after.add(node);
        if let Some(label) = self.tree.label(id) {
            self.after.set_label(copy, &label);
        }
        copy
    }
}

fn is_new(folder: &InodeFolder, name: &str, id: InodeId) -> bool {
    folder
        .past
        .get(name)
        .is_some_and(|past| past.first() != Some(&Some(id)))
}

fn damaged(file: &File, choose: Chooser<'_>) -> File {
    let whole = &file.contents;
    let contents: Arc<[u8]> = match choose(4) {
        0 => Arc::clone(whole),
        1 => Arc::from([]),
        2 => whole[..choose(whole.len().max(1))].into(),
        _ => vec![0; whole.len()].into(),
    };
    let (mode, owner) = if choose(2) == 0 {
        (file.mode, file.owner)
    } else {
        (0o600, Ids::default())
    };
    File {
        hash: Hash::of(&contents),
        contents,
        mode,
        owner,
        durable: true,
    }
}
