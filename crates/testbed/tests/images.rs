//! The images cannot be built where there are no registries. What their recipes name must exist, and
//! must be what the chart runs.

#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::process::run;
use evenkeel_testbed::{Doing, Error, Result, need};
use serde_json::Value;

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The instructions of a recipe: its first word and the rest, without remarks.
fn recipe(program: &str) -> Result<Vec<(String, String)>> {
    let path = project().join(format!("deploy/{program}/Containerfile"));
    let text = std::fs::read_to_string(&path).doing(|| format!("no {}", path.display()))?;
    let lines = text.lines().map(str::trim);
    Ok(lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .map(|(word, rest)| (word.to_owned(), rest.trim().to_owned()))
        .collect())
}

fn all<'a>(recipe: &'a [(String, String)], word: &str) -> Vec<&'a str> {
    let found = recipe.iter().filter(|(it, _)| it == word);
    found.map(|(_, rest)| rest.as_str()).collect()
}

/// The programs of a package, as cargo knows them.
fn programs(package: &str) -> Result<Vec<String>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(project())
        .args(["metadata", "--no-deps", "--format-version=1", "--offline"]);
    let metadata: Value = serde_json::from_str(&run(&mut cargo)?).doing(|| "no metadata")?;
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    let package = packages
        .iter()
        .find(|it| it["name"] == package)
        .ok_or_else(|| Error::failed(format!("there is no package {package}")))?;
    let targets = package["targets"].as_array().cloned().unwrap_or_default();
    let programs = targets.iter().filter(|it| it["kind"][0] == "bin");
    Ok(programs
        .filter_map(|it| it["name"].as_str().map(str::to_owned))
        .collect())
}

#[test]
fn what_the_recipes_of_the_images_name_is_there() -> Result<()> {
    let ignored = std::fs::read_to_string(project().join(".containerignore"));
    let ignored = ignored.doing(|| "no .containerignore")?;
    let docker = std::fs::read_to_string(project().join(".dockerignore"));
    assert_eq!(docker.doing(|| "no .dockerignore")?, ignored);
    for program in ["operator", "agent"] {
        let name = format!("evenkeel-{program}");
        let recipe = recipe(program)?;
        let mut built = Vec::new();
        for copy in all(&recipe, "COPY") {
            let words: Vec<&str> = copy.split_whitespace().collect();
            let Some((to, from)) = words.split_last() else {
                continue;
            };
            if let Some(("--from=build", paths)) = from.split_first().map(|(a, b)| (*a, b)) {
                let place = format!("/src/target/release/{name}");
                assert_eq!(paths, [place.as_str()], "{copy}");
                built.push((*to).to_owned());
                continue;
            }
            for path in from {
                assert!(
                    project().join(path).exists(),
                    "{program}: no {path} to copy"
                );
                assert!(
                    ignored.contains(&format!("!{path}\n")),
                    "{path} is kept out of the build"
                );
            }
        }
        let [run] = all(&recipe, "RUN")[..] else {
            panic!("{recipe:?}");
        };
        assert_eq!(
            run,
            format!("cargo build --release --locked --package {name}")
        );
        assert!(programs(&name)?.contains(&name), "{name}");
        assert_eq!(built, [format!("/usr/local/bin/{name}")]);
        assert_eq!(
            all(&recipe, "ENTRYPOINT"),
            [format!("[\"/usr/local/bin/{name}\"]")]
        );
        let [build, last] = all(&recipe, "FROM")[..] else {
            panic!("{recipe:?}");
        };
        assert!(
            build.ends_with(" AS build") && last.contains("distroless"),
            "{recipe:?}"
        );
        let manifest = std::fs::read_to_string(project().join("Cargo.toml"));
        let wanted = build.split(':').nth(1).and_then(|it| it.split('-').next());
        let version = format!("rust-version = \"{}\"", wanted.unwrap_or_default());
        assert!(
            manifest.doing(|| "no Cargo.toml")?.contains(&version),
            "{build}"
        );
    }
    assert_eq!(all(&recipe("operator")?, "USER"), ["65532:65532"]);
    Ok(())
}

#[test]
fn the_chart_runs_the_images_as_who_they_are() -> Result<()> {
    if need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    let chart = Chart::render("evenkeel", &[])?;
    for (kind, name, image) in [
        ("Deployment", "evenkeel-operator", "evenkeel-operator:"),
        ("DaemonSet", "evenkeel-agent", "evenkeel-agent:"),
        ("Job", "evenkeel-uninstall", "evenkeel-operator:"),
    ] {
        let pod = &chart.object(kind, name)?["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let runs = container["image"].as_str().unwrap_or_default();
        assert!(runs.starts_with(image), "{runs}");
        assert!(
            container["command"].is_null(),
            "the image's own entry point"
        );
        if image.contains("operator") {
            assert_eq!(pod["securityContext"]["runAsUser"], 65532);
        }
    }
    let version = chart.object("Deployment", "evenkeel-operator")?;
    let version = &version["metadata"]["labels"]["app.kubernetes.io/version"];
    assert_eq!(version, env!("CARGO_PKG_VERSION"), "one version for all");
    Ok(())
}
