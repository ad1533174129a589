//! No file of ours imports in a circle: whoever reads one can read those it uses, and comes to an end.
//!
//! A file may use what the files above it in its own folder define (`super`); that is one thing in several
//! files, and no circle.

mod source_files;

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_testbed::{Doing, Result};
use syn::visit::{self, Visit};
use syn::{ItemMod, ItemUse, UseTree};

use source_files::{Module, crates};

type Graph = BTreeMap<Module, BTreeSet<Module>>;

/// The paths that a file names, as they are written: `crate::a::B`, `super::C`.
#[derive(Default)]
struct Named(Vec<Vec<String>>);

impl Named {
    fn tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(it) => self.tree(&with(&it.ident), &it.tree),
            UseTree::Group(it) => it.items.iter().for_each(|each| self.tree(before, each)),
            UseTree::Name(it) => self.0.push(with(&it.ident)),
            UseTree::Rename(it) => self.0.push(with(&it.ident)),
            UseTree::Glob(_) => self.0.push(before.to_vec()),
        }
    }
}

impl<'a> Visit<'a> for Named {
    fn visit_item_use(&mut self, it: &'a ItemUse) {
        self.tree(&[], &it.tree);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let names = path.segments.iter().map(|it| it.ident.to_string());
        self.0.push(names.collect());
        visit::visit_path(self, path);
    }

    fn visit_item_mod(&mut self, it: &'a ItemMod) {
        // Tests within a file see whatever they like.
        if it.content.is_some() && it.ident != "tests" {
            visit::visit_item_mod(self, it);
        }
    }
}

/// Where a path leads that is written in `from`: the file that it names something of.
fn resolve(from: &Module, path: &[String], files: &BTreeMap<Module, String>) -> Option<Module> {
    let mut names = path.iter().peekable();
    let mut at = match names.peek()?.as_str() {
        "crate" => {
            names.next();
            Vec::new()
        }
        "self" => {
            names.next();
            from.clone()
        }
        "super" => {
            let mut at = from.clone();
            while names.next_if(|it| *it == "super").is_some() {
                at.pop();
            }
            at
        }
        _ => from.clone(),
    };
    let begin = at.clone();
    for name in names {
        at.push(name.clone());
        if !files.contains_key(&at) {
            at.pop();
            break;
        }
    }
    let is_named = at != begin
        || path
            .first()
            .is_some_and(|it| it == "super" || it == "crate");
    (is_named && files.contains_key(&at)).then_some(at)
}

/// Which file uses which, of files by their modules.
fn graph(files: &BTreeMap<Module, String>) -> Result<Graph> {
    let mut graph = Graph::new();
    for (module, text) in files {
        let file = syn::parse_file(text).doing(|| format!("cannot read {}", module.join("::")))?;
        let mut named = Named::default();
        named.visit_file(&file);
        let uses = named.0.iter().filter_map(|it| resolve(module, it, files));
        let uses = uses.filter(|it| it != module && !module.starts_with(it));
        graph.insert(module.clone(), uses.collect());
    }
    Ok(graph)
}

/// A way from a file back to itself, if there is one.
fn circle(graph: &Graph) -> Option<Vec<Module>> {
    fn follow(
        at: &Module,
        graph: &Graph,
        way: &mut Vec<Module>,
        done: &mut BTreeSet<Module>,
    ) -> Option<Vec<Module>> {
        if let Some(begin) = way.iter().position(|it| it == at) {
            return Some(way.split_off(begin));
        }
        if !done.insert(at.clone()) {
            return None;
        }
        way.push(at.clone());
        let found = graph[at].iter().find_map(|it| follow(it, graph, way, done));
        way.pop();
        found
    }
    let mut done = BTreeSet::new();
    graph
        .keys()
        .find_map(|it| follow(it, graph, &mut Vec::new(), &mut done))
}

#[test]
fn no_file_imports_in_a_circle() -> Result<()> {
    let mut count = 0;
    for (folder, files) in crates()? {
        count += files.len();
        if let Some(circle) = circle(&graph(&files)?) {
            let names: Vec<String> = circle.iter().map(|it| it.join("::")).collect();
            panic!(
                "{}: {} uses the first one again: move what they share into a file of its own",
                folder.display(),
                names.join(" uses ")
            );
        }
    }
    assert!(count > 300, "only {count} files were found");
    Ok(())
}

#[test]
fn a_circle_is_found_and_a_folder_is_one_thing() -> Result<()> {
    let files = |all: &[(&str, &str)]| -> BTreeMap<Module, String> {
        let module = |name: &str| -> Module {
            let names = name.split("::").filter(|it| !it.is_empty());
            names.map(str::to_owned).collect()
        };
        let all = all.iter();
        all.map(|(name, text)| (module(name), (*text).to_owned()))
            .collect()
    };
    let root = ("", "mod a; mod b;");
    for (all, is_circle) in [
        (
            vec![root, ("a", "use crate::b::B;"), ("b", "use super::a::A;")],
            true,
        ),
        (
            vec![
                root,
                ("a", "fn f() -> crate::b::B {}"),
                ("b", "use crate::{a::A};"),
            ],
            true,
        ),
        (vec![root, ("a", "use crate::b::B;"), ("b", "")], false),
        (
            vec![
                root,
                ("a", "use crate::b::B;"),
                ("b", "mod tests { use crate::a::A; }"),
            ],
            false,
        ),
        (
            vec![
                root,
                ("a", "mod c; use self::c::C;"),
                ("a::c", "use super::A;"),
            ],
            false,
        ),
        (
            vec![
                root,
                ("a", "mod c; use c::C;"),
                ("a::c", "use crate::b::B;"),
                ("b", "use crate::a::A;"),
            ],
            true,
        ),
    ] {
        let graph = graph(&files(&all))?;
        assert_eq!(circle(&graph).is_some(), is_circle, "{all:?}");
    }
    Ok(())
}
