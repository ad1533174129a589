//! What the programs are made of: a bill of materials in `CycloneDX`'s form, and the licences of all dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// A package that programs of a release are made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// As SPDX writes it.
    pub(crate) licence: String,
    /// The checksum of its source, where it comes from a registry.
    checksum: Option<String>,
    folder: PathBuf,
    /// The identities of those that it needs.
    needs: BTreeSet<String>,
}

impl Package {
    fn url(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }

    /// Whether it is ours.
    fn is_own(&self) -> bool {
        self.checksum.is_none()
    }
}

/// All packages that end up in the programs, by the identity that cargo gives them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dependencies(BTreeMap<String, Package>);

impl Dependencies {
    /// What `metadata` (of `cargo metadata`) and `lock` (`Cargo.lock`) say of the packages `roots`.
    pub(crate) fn read(metadata: &Value, lock: &str, roots: &[&str]) -> Result<Self> {
        let checksums = checksums(lock);
        let nodes = list(&metadata["resolve"]["nodes"]);
        let mut needs: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for node in nodes {
            let of = list(&node["deps"]).iter().filter(|it| is_in_program(it));
            let of = of.filter_map(|it| it["pkg"].as_str().map(str::to_owned));
            needs.insert(text(&node["id"]), of.collect());
        }
        let packages: BTreeMap<&str, &Value> = list(&metadata["packages"])
            .iter()
            .map(|package| (text(&package["id"]), package))
            .collect();
        let is_root = |package: &Value| roots.contains(&text(&package["name"]));
        let own = packages.iter().filter(|(_, package)| is_root(package));
        let mut left: Vec<&str> = own.map(|(id, _)| *id).collect();
        if left.len() != roots.len() {
            bail!("cargo does not know all of {}", roots.join(", "));
        }
        let mut found = BTreeMap::new();
        while let Some(id) = left.pop() {
            if found.contains_key(id) {
                continue;
            }
            let package = packages
                .get_key_value(id)
                .with_context(|| format!("cargo says nothing of {id}"))?
                .1;
            let (name, version) = (text(&package["name"]), text(&package["version"]));
            let needs = needs.get(id).cloned().unwrap_or_default();
            for need in &needs {
                let (known, _) = packages
                    .get_key_value(need.as_str())
                    .with_context(|| format!("cargo says nothing of {need}"))?;
                left.push(known);
            }
            let licence = text(&package["license"]).replace('/', " OR ");
            let manifest = Path::new(text(&package["manifest_path"]));
            let package = Package {
                name: name.to_owned(),
                version: version.to_owned(),
                licence,
                checksum: checksums
                    .get(&(name.to_owned(), version.to_owned()))
                    .cloned(),
                folder: manifest.parent().unwrap_or(manifest).to_owned(),
                needs,
            };
            found.insert(id.to_owned(), package);
        }
        Ok(Self(found))
    }

    /// The bill of materials of `version`, which was made at `time` as RFC 3339 writes it.
    pub(crate) fn bill(&self, version: &str, time: &str) -> Value {
        let components: Vec<Value> = self.0.values().map(component).collect();
        let dependencies: Vec<Value> = self
            .0
            .values()
            .map(|package| {
                let needs = package.needs.iter().filter_map(|it| self.0.get(it));
                let needs: BTreeSet<String> = needs.map(Package::url).collect();
                json!({ "ref": package.url(), "dependsOn": needs })
            })
            .collect();
        json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {
                "timestamp": time,
                "component": { "type": "application", "bom-ref": "evenkeel", "name": "evenkeel", "version": version },
            },
            "components": components,
            "dependencies": dependencies,
        })
    }

    /// Every licence, with the names of those who have it, and the texts that they come with.
    pub(crate) fn licences(&self) -> Result<String> {
        let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut list = String::new();
        for package in self.0.values().filter(|it| !it.is_own()) {
            let name = format!("{} {}", package.name, package.version);
            writeln!(list, "{name}: {}", package.licence)?;
            for text in licence_texts(&package.folder)? {
                texts.entry(text).or_default().insert(name.clone());
            }
        }
        let mut whole = format!(
            "Evenkeel is under the Apache License 2.0. Its programs contain the packages below.\n\n{list}"
        );
        for (text, of) in texts {
            let of: Vec<String> = of.into_iter().collect();
            write!(
                whole,
                "\n{:=<80}\n{}\n{:-<80}\n{}\n",
                "",
                of.join(", "),
                "",
                text.trim()
            )?;
        }
        Ok(whole)
    }

    /// The packages whose licence nobody states.
    pub(crate) fn without_licence(&self) -> Vec<&Package> {
        let packages = self.0.values();
        packages.filter(|it| it.licence.is_empty()).collect()
    }
}

/// Whether a dependency ends up in a program, and does not only build or test it.
fn is_in_program(dependency: &Value) -> bool {
    list(&dependency["dep_kinds"])
        .iter()
        .any(|it| it["kind"].is_null())
}

fn component(package: &Package) -> Value {
    let mut component = json!({
        "type": if package.is_own() { "application" } else { "library" },
        "bom-ref": package.url(),
        "name": package.name,
        "version": package.version,
        "purl": package.url(),
        "licenses": [{ "expression": package.licence }],
    });
    if let Some(checksum) = &package.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

/// The checksums in a lock file, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let field = |block: &str, name: &str| {
        let mut lines = block.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
        value.map(|value| value.trim_matches('"').to_owned())
    };
    let blocks = lock.split("[[package]]");
    blocks
        .filter_map(|block| {
            let key = (field(block, "name")?, field(block, "version")?);
            Some((key, field(block, "checksum")?))
        })
        .collect()
}

/// The licences that lie in the source of a package.
fn licence_texts(folder: &Path) -> Result<Vec<String>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut texts = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", folder.display()))?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_licence = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"]
            .iter()
            .any(|word| name.starts_with(word));
        if is_licence && entry.path().is_file() {
            let text = std::fs::read(entry.path())
                .with_context(|| format!("cannot read {}", entry.path().display()))?;
            texts.push(String::from_utf8_lossy(&text).replace('\r', ""));
        }
    }
    texts.sort();
    Ok(texts)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(folder: &Path) -> Value {
        let package = |name: &str, version: &str, licence: &str| {
            json!({
                "id": format!("{name}@{version}"), "name": name, "version": version, "license": licence,
                "manifest_path": folder.join(name).join("Cargo.toml"),
            })
        };
        let needs =
            |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        json!({
            "packages": [
                package("ours", "0.1.0", "Apache-2.0"),
                package("used", "1.0.0", "MIT/Apache-2.0"),
                package("deep", "2.0.0", ""),
                package("tests-only", "3.0.0", "MIT"),
            ],
            "resolve": { "nodes": [
                { "id": "ours@0.1.0", "deps": [needs("used@1.0.0", Value::Null), needs("tests-only@3.0.0", json!("dev"))] },
                { "id": "used@1.0.0", "deps": [needs("deep@2.0.0", Value::Null), needs("ours@0.1.0", json!("build"))] },
                { "id": "deep@2.0.0", "deps": [] },
                { "id": "tests-only@3.0.0", "deps": [] },
            ] },
        })
    }

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n\n[[package]]\nname = \"used\"\nversion = \"1.0.0\"\nsource = \"registry\"\nchecksum = \"abc\"\n\n[[package]]\nname = \"deep\"\nversion = \"2.0.0\"\nchecksum = \"def\"\n";

    #[test]
    fn the_bill_lists_what_is_in_the_programs_and_nothing_that_only_tests_them() {
        let found = Dependencies::read(&metadata(Path::new("/src")), LOCK, &["ours"]).unwrap();
        let bill = found.bill("0.1.0", "2026-01-01T00:00:00Z");
        let names: Vec<_> = list(&bill["components"])
            .iter()
            .map(|it| text(&it["name"]))
            .collect();
        assert_eq!(names, ["deep", "ours", "used"]);
        let used = &bill["components"][2];
        assert_eq!(used["purl"], "pkg:cargo/used@1.0.0");
        assert_eq!(used["hashes"][0]["content"], "abc");
        assert_eq!(used["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(
            bill["dependencies"][1]["dependsOn"],
            json!(["pkg:cargo/used@1.0.0"])
        );
        let nobody: Vec<_> = found
            .without_licence()
            .iter()
            .map(|it| it.name.clone())
            .collect();
        assert_eq!(nobody, ["deep"]);
    }

    #[test]
    fn a_licence_text_stands_once_with_all_who_have_it() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["ours", "used", "deep"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(
                folder.path().join(name).join("LICENSE-MIT"),
                "Do as you like.",
            )
            .unwrap();
        }
        let found = Dependencies::read(&metadata(folder.path()), LOCK, &["ours"]).unwrap();
        let licences = found.licences().unwrap();
        assert_eq!(licences.matches("Do as you like.").count(), 1, "{licences}");
        assert!(
            licences.contains("\ndeep 2.0.0, used 1.0.0\n"),
            "{licences}"
        );
        assert!(!licences.contains("ours"), "{licences}");
    }

    #[test]
    fn an_unknown_package_is_named() {
        let error = Dependencies::read(&metadata(Path::new("/src")), LOCK, &["nobody"]);
        assert_eq!(
            error.unwrap_err().to_string(),
            "cargo does not know all of nobody"
        );
    }
}
