//! What lies in a release folder: images with nothing but one static program, a chart that takes their digests, and a
//! checksum of everything.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::process::Command;

use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::process::run;
use evenkeel_testbed::{Doing, Error, Result, need};
use evenkeel_xtask::archive::sha256;
use flate2::read::GzDecoder;
use serde_json::{Value, json};

use crate::installed::done;
use crate::release::Release;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The images, each with who runs in it and by which value the chart takes its digest.
const IMAGES: [(&str, &str, &str); 2] = [
    ("evenkeel-operator", "65532:65532", "operator"),
    ("evenkeel-agent", "0:0", "agent"),
];

/// A file of an archive.
struct File {
    mode: u32,
    owner: u64,
    contents: Vec<u8>,
}

/// The files of a tar, without its folders.
fn files(tar: impl Read) -> Result<BTreeMap<String, File>> {
    let mut archive = tar::Archive::new(tar);
    let mut files = BTreeMap::new();
    for entry in archive.entries().doing(|| "no tar")? {
        let mut entry = entry.doing(|| "no entry")?;
        if entry.header().entry_type().is_dir() {
            continue;
        }
        let path = entry.path().doing(|| "no path")?.display().to_string();
        let mut contents = Vec::new();
        entry
            .read_to_end(&mut contents)
            .doing(|| format!("cannot read {path}"))?;
        let header = entry.header();
        let file = File {
            mode: header.mode().doing(|| "no mode")?,
            owner: header.uid().doing(|| "no owner")?,
            contents,
        };
        files.insert(path, file);
    }
    Ok(files)
}

/// An OCI archive.
struct Layout(BTreeMap<String, File>);

impl Layout {
    fn read(path: &Path) -> Result<Self> {
        let archive =
            std::fs::File::open(path).doing(|| format!("cannot open {}", path.display()))?;
        files(archive).map(Self)
    }

    /// The only thing that its index names.
    fn top(&self) -> Result<Value> {
        let index = json_of(&self.0["index.json"].contents)?;
        let all = index["manifests"].as_array().cloned().unwrap_or_default();
        match all.as_slice() {
            [top] => Ok(top.clone()),
            other => Err(Error::failed(format!("the index has {}", other.len()))),
        }
    }

    /// What a descriptor leads to, which must be what its digest says.
    fn blob(&self, descriptor: &Value) -> Result<&[u8]> {
        let digest = descriptor["digest"].as_str().unwrap_or_default();
        let path = format!("blobs/{}", digest.replace(':', "/"));
        let blob = self.0.get(&path);
        let blob = &blob
            .ok_or_else(|| Error::failed(format!("no {path}")))?
            .contents;
        assert_eq!(digest, format!("sha256:{}", sha256(blob)));
        Ok(blob)
    }

    fn json(&self, descriptor: &Value) -> Result<Value> {
        json_of(self.blob(descriptor)?)
    }
}

fn json_of(text: &[u8]) -> Result<Value> {
    serde_json::from_slice(text).doing(|| "no JSON")
}

/// What the system must know of a program (little-endian, 64 bit): for which processor it is, and whether it asks for an
/// interpreter, as every program does that is not linked statically.
fn program(elf: &[u8]) -> Result<(u64, bool)> {
    const INTERPRETER: u64 = 3;
    let number = |at: u64, bytes: usize| {
        let at = usize::try_from(at).ok()?;
        let digits = elf.get(at..at + bytes)?.iter().rev();
        Some(digits.fold(0, |number, digit| (number << 8) | u64::from(*digit)))
    };
    let facts = || {
        let (headers, size, count) = (number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?);
        let mut asks = false;
        for at in 0..count {
            asks |= number(headers + at * size, 4)? == INTERPRETER;
        }
        Some((number(0x12, 2)?, asks))
    };
    facts()
        .filter(|_| elf.starts_with(b"\x7fELF\x02\x01"))
        .ok_or_else(|| Error::failed("this is no program of 64 bits"))
}

#[test]
#[ignore = "takes long: runs in ./test --soak"]
fn an_image_is_one_static_program_that_says_who_runs_it_and_where_it_comes_from() -> Result<()> {
    if need::skip(&[])? {
        return Ok(());
    }
    let release = Release::make()?;
    let digests = std::fs::read(release.path("images.json")).doing(|| "no images.json")?;
    let digests = json_of(&digests)?;
    for (name, user, _) in IMAGES {
        let place = format!("usr/local/bin/{name}");
        let path = release.path(&format!("images/{name}-{VERSION}.oci.tar"));
        let layout = Layout::read(&path)?;
        let top = layout.top()?;
        assert_eq!(top["digest"], digests[name]);
        let images = layout.json(&top)?["manifests"].as_array().cloned();
        let images = images.unwrap_or_default();
        assert!(!images.is_empty(), "{name} is for no architecture");
        for image in images {
            let manifest = layout.json(&image)?;
            let config = layout.json(&manifest["config"])?;
            let layers = manifest["layers"].as_array().map(Vec::as_slice);
            let [layer] = layers.unwrap_or_default() else {
                return Err(Error::failed(format!(
                    "{name} has another base: {manifest}"
                )));
            };
            let inside = files(GzDecoder::new(layout.blob(layer)?))?;
            assert_eq!(inside.keys().collect::<Vec<_>>(), [&place]);
            let file = &inside[&place];
            assert_eq!((file.mode, file.owner), (0o755, 0));
            let architecture = image["platform"]["architecture"].as_str();
            let processor = match architecture {
                Some("amd64") => 62,
                Some("arm64") => 183,
                other => return Err(Error::failed(format!("{name} is for {other:?}"))),
            };
            assert_eq!(program(&file.contents)?, (processor, false), "{name}");
            assert_eq!(config["architecture"], json!(architecture));
            let config = &config["config"];
            assert_eq!(config["User"], user);
            assert_eq!(config["Entrypoint"], json!([format!("/{place}")]));
            let labels = config["Labels"].as_object().cloned().unwrap_or_default();
            let label = |it: &str| labels[&format!("org.opencontainers.image.{it}")].as_str();
            assert_eq!(label("title"), Some(name));
            assert_eq!(label("version"), Some(VERSION));
            assert_eq!(label("licenses"), Some("Apache-2.0"));
            assert_eq!(label("revision").map(str::len), Some(12));
            assert!(label("url").is_some_and(|it| it.starts_with("https://")));
            assert!(label("created").is_some_and(|it| it.ends_with('Z')));
        }
    }
    Ok(())
}

#[test]
#[ignore = "takes long: runs in ./test --soak"]
fn the_packed_chart_takes_the_digests_of_the_images_beside_it() -> Result<()> {
    if need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    let release = Release::make()?;
    let chart = release.path(&format!("chart/evenkeel-{VERSION}.tgz"));
    let packed = chart.display().to_string();
    done("helm lint", &Chart::helm(&["lint", "--strict", &packed])?)?;
    // As an artifact for registries it is the same file.
    let artifact = Layout::read(&chart.with_extension("oci.tar"))?;
    let manifest = artifact.json(&artifact.top()?)?;
    let file = std::fs::read(&chart).doing(|| "no chart")?;
    assert_eq!(artifact.blob(&manifest["layers"][0])?, file);

    let digests = std::fs::read(release.path("images.json")).doing(|| "no images.json")?;
    let digests = json_of(&digests)?;
    let digest = |name: &str| digests[name].as_str().unwrap_or_default().to_owned();
    let options: Vec<String> = IMAGES
        .iter()
        .map(|(name, _, value)| format!("--set=image.digests.{value}={}", digest(name)))
        .collect();
    let registry = "--set=global.imageRegistry=registry.example.com/ops";
    let mut words = vec!["template", "evenkeel", &packed, registry];
    words.extend(options.iter().map(String::as_str));
    let rendered = Chart::helm(&words)?;
    done("helm template", &rendered)?;
    let text = String::from_utf8_lossy(&rendered.stdout);
    let used = text
        .lines()
        .filter_map(|it| it.trim().strip_prefix("image: "));
    let used: BTreeSet<&str> = used.map(|it| it.trim_matches('"')).collect();
    let expected =
        IMAGES.map(|(name, ..)| format!("registry.example.com/ops/{name}@{}", digest(name)));
    let expected: BTreeSet<&str> = expected.iter().map(String::as_str).collect();
    assert_eq!(used, expected);
    Ok(())
}

#[test]
#[ignore = "takes long: runs in ./test --soak"]
fn every_file_of_a_release_has_its_checksum() -> Result<()> {
    if need::skip(&[])? {
        return Ok(());
    }
    let release = Release::make()?;
    let folder = release.folder();
    run(Command::new("sha256sum")
        .args(["--check", "--strict", "--quiet", "SHA256SUMS"])
        .current_dir(folder))?;
    let sums = std::fs::read_to_string(folder.join("SHA256SUMS")).doing(|| "no SHA256SUMS")?;
    let listed = sums.lines().filter_map(|it| Some(it.split_once("  ")?.1));
    let listed: BTreeSet<String> = listed.map(str::to_owned).collect();
    let there = run(Command::new("find")
        .args([".", "-type", "f", "-printf", "%P\\n"])
        .current_dir(folder))?;
    let there = there.lines().filter(|it| *it != "SHA256SUMS");
    let there: BTreeSet<String> = there.map(str::to_owned).collect();
    assert_eq!(there, listed);
    Ok(())
}
