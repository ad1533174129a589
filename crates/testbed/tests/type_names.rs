//! One word names one thing: no two types of a crate have the same name.
//!
//! What `linux` and `windows` have in the same place is one thing on two systems, and an alias that only fills in
//! what a generic type leaves open is that type. What a function or a test defines for itself has no name outside.

mod source_files;

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_testbed::{Doing, Result};
use syn::{Item, ItemType, Type};

use source_files::{Module, crates};

/// Where the types of each name are defined: one place for each thing.
type Places = BTreeMap<String, BTreeSet<String>>;

fn is_same_name(alias: &ItemType) -> bool {
    let Type::Path(path) = &*alias.ty else {
        return false;
    };
    path.path
        .segments
        .last()
        .is_some_and(|it| it.ident == alias.ident)
}

fn collect(items: &[Item], module: &Module, places: &mut Places) {
    for item in items {
        let name = match item {
            Item::Struct(it) => &it.ident,
            Item::Enum(it) => &it.ident,
            Item::Union(it) => &it.ident,
            Item::Trait(it) => &it.ident,
            Item::Type(it) if !is_same_name(it) => &it.ident,
            Item::Mod(it) if it.ident != "tests" => {
                if let Some((_, items)) = &it.content {
                    collect(
                        items,
                        &[&module[..], &[it.ident.to_string()]].concat(),
                        places,
                    );
                }
                continue;
            }
            _ => continue,
        };
        let place = match module.split_first() {
            Some((system, rest)) if system == "linux" || system == "windows" => {
                format!("system::{}", rest.join("::"))
            }
            _ => module.join("::"),
        };
        places.entry(name.to_string()).or_default().insert(place);
    }
}

/// The names that stand for more than one thing, and where.
fn ambiguous(files: &BTreeMap<Module, String>) -> Result<Places> {
    let mut places = Places::new();
    for (module, text) in files {
        let file = syn::parse_file(text).doing(|| format!("cannot read {}", module.join("::")))?;
        collect(&file.items, module, &mut places);
    }
    places.retain(|_, places| places.len() > 1);
    Ok(places)
}

#[test]
fn no_two_types_of_a_crate_have_one_name() -> Result<()> {
    let mut count = 0;
    for (folder, files) in crates()? {
        count += files.len();
        let found = ambiguous(&files)?;
        assert!(
            found.is_empty(),
            "{}: rename what is another thing: {found:?}",
            folder.display()
        );
    }
    assert!(count > 300, "only {count} files were found");
    Ok(())
}

#[test]
fn what_is_one_thing_may_have_one_name() -> Result<()> {
    for (one, other, is_ambiguous) in [
        (("a", "struct A;"), ("b", "enum A {}"), true),
        (("a", "pub trait A {}"), ("b", "type A = u8;"), true),
        (("a", "mod c { struct A; }"), ("b", "struct A;"), true),
        (("a", "struct A;"), ("windows", "struct A;"), true),
        (("linux::a", "struct A;"), ("windows::b", "struct A;"), true),
        (
            ("linux::a", "struct A;"),
            ("windows::a", "struct A;"),
            false,
        ),
        (
            ("a", "struct A<T>(T);"),
            ("b", "type A = crate::a::A<u8>;"),
            false,
        ),
        (("a", "struct A;"), ("b", "mod tests { struct A; }"), false),
        (("a", "struct A;"), ("b", "fn f() { struct A; }"), false),
        (
            ("a", "struct A;"),
            ("b", "use crate::a::A; struct B(A);"),
            false,
        ),
    ] {
        let file = |(name, text): (&str, &str)| {
            let module: Module = name.split("::").map(str::to_owned).collect();
            (module, text.to_owned())
        };
        let files = BTreeMap::from([file(one), file(other)]);
        assert_eq!(!ambiguous(&files)?.is_empty(), is_ambiguous, "{files:?}");
    }
    Ok(())
}
