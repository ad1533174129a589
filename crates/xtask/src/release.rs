//! A release folder, from a commit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::chart::PackedChart;
use crate::dependencies::Dependencies;
use crate::krew::{self, Download};
use crate::programs::{TARGETS, Target, said};
use evenkeel_xtask::archive::{Archive, sha256};
use evenkeel_xtask::image::{ImageConfig, Layout};

/// The packages whose programs are released.
const PACKAGES: [&str; 3] = ["evenkeel-agent", "evenkeel-cli", "evenkeel-operator"];

/// What is to be made, of which commit, and where.
#[derive(Debug)]
pub(crate) struct Release {
    project: PathBuf,
    out: PathBuf,
    profile: String,
    targets: Vec<Target>,
    download: String,
    version: String,
    commit: String,
    /// When the commit was made: in seconds since 1970, and as RFC 3339 writes it.
    time: (u64, String),
}

/// The files of a release that are written so far, with their checksums.
#[derive(Debug, Default)]
struct Written(BTreeMap<String, String>);

impl Release {
    /// Looks at the project, and at what is to be made.
    pub(crate) fn new(
        out: Option<PathBuf>,
        profile: &str,
        targets: &[String],
        allow_changes: bool,
        download: String,
    ) -> Result<Self> {
        let known: Vec<&str> = TARGETS.iter().map(|it| it.triple).collect();
        if let Some(unknown) = targets.iter().find(|it| !known.contains(&it.as_str())) {
            bail!(
                "--target {unknown}: a release is made for {}",
                known.join(", ")
            );
        }
        let wanted = |it: &Target| targets.is_empty() || targets.iter().any(|of| of == it.triple);
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let project = project.canonicalize().context("the project is not there")?;
        let git = |arguments: &[&str]| {
            let folder = project.display().to_string();
            said("git", &[&["-C", &folder], arguments].concat())
        };
        let changes = git(&["status", "--porcelain"])?;
        if let (Some(change), false) = (changes.lines().next(), allow_changes) {
            bail!(
                "a release is made of a commit, and there are uncommitted changes ({change}): commit them"
            );
        }
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let seconds = git(&["log", "-1", "--format=%ct"])?;
        let time = git(&[
            "log",
            "-1",
            "--format=%cd",
            "--date=format-local:%Y-%m-%dT%H:%M:%SZ",
        ])?;
        let out = out.unwrap_or_else(|| project.join(format!("target/evenkeel-{version}")));
        let is_used = std::fs::read_dir(&out).is_ok_and(|mut it| it.next().is_some());
        if is_used {
            bail!(
                "{} is not empty: remove it, or choose another folder with --out",
                out.display()
            );
        }
        Ok(Self {
            targets: TARGETS.into_iter().filter(wanted).collect(),
            commit: git(&["rev-parse", "--short=12", "HEAD"])?,
            time: (seconds.parse().context("git knows no time")?, time),
            profile: profile.to_owned(),
            project,
            out,
            download,
            version,
        })
    }

    /// Makes all of it.
    pub(crate) fn make(&self) -> Result<()> {
        let mut written = Written::default();
        let mut programs = BTreeMap::new();
        for target in &self.targets {
            eprintln!("building for {} …", target.triple);
            let folder = target.build(&self.project, &self.profile, &self.commit)?;
            for program in target.programs {
                let path = folder.join(target.file(program));
                let contents = std::fs::read(&path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                programs.insert((target.triple, *program), contents);
            }
        }
        let downloads = self.archives(&programs, &mut written)?;
        let images = self.images(&programs, &mut written)?;
        self.chart(&mut written)?;
        let krew = krew::manifest(&self.version, &downloads);
        let krew = serde_saphyr::to_string(&krew).context("cannot write the krew manifest")?;
        self.write("krew/evenkeel.yaml", krew, &mut written)?;
        self.write("images.json", pretty(&images), &mut written)?;
        self.materials(&mut written)?;
        let sums: Vec<String> = written
            .0
            .iter()
            .map(|(path, sum)| format!("{sum}  {path}\n"))
            .collect();
        self.write("SHA256SUMS", sums.concat(), &mut written)?;
        println!(
            "evenkeel {} of commit {} is in {}:",
            self.version,
            self.commit,
            self.out.display()
        );
        for path in written.0.keys() {
            println!("  {path}");
        }
        Ok(())
    }

    /// The programs, each packed with the licence. Says which of them krew downloads.
    fn archives(
        &self,
        programs: &BTreeMap<(&'static str, &'static str), Vec<u8>>,
        written: &mut Written,
    ) -> Result<Vec<Download>> {
        let licence = self.read("LICENSE")?;
        let mut downloads = Vec::new();
        for target in &self.targets {
            for program in target.programs {
                let mut files = Archive::default();
                let contents = programs.get(&(target.triple, *program));
                files.program(
                    &target.file(program),
                    contents.context("no program")?.clone(),
                );
                files.file("LICENSE", licence.clone());
                if *program == "evenkeel-agent" && target.system == "linux" {
                    let unit = self.read("deploy/agent/evenkeel-agent.service")?;
                    files.file("evenkeel-agent.service", unit);
                }
                let (system, architecture) = (target.system, target.architecture);
                let name = format!("{program}_{}_{system}_{architecture}.tar.gz", self.version);
                let packed = files.tar_gz(self.time.0)?;
                if *program == "evenkeel" {
                    downloads.push(Download {
                        system,
                        architecture,
                        url: format!("{}/v{}/{name}", self.download, self.version),
                        checksum: sha256(&packed),
                    });
                }
                self.write(&format!("programs/{name}"), packed, written)?;
            }
        }
        Ok(downloads)
    }

    /// The images of operator, agent and bundle. Returns the digest of each.
    fn images(
        &self,
        programs: &BTreeMap<(&'static str, &'static str), Vec<u8>>,
        written: &mut Written,
    ) -> Result<Value> {
        let mut digests = json!({});
        // The agent is root of the machine that is mounted into its pod; the operator is nobody.
        for (program, user) in [
            ("evenkeel-operator", "65532:65532"),
            ("evenkeel-agent", "0:0"),
        ] {
            let place = format!("/usr/local/bin/{program}");
            let mut layout = Layout::new(self.time.0);
            let mut images = Vec::new();
            for target in self.targets.iter().filter(|it| it.system == "linux") {
                let Some(contents) = programs.get(&(target.triple, program)) else {
                    continue;
                };
                let mut files = Archive::default();
                files.program(&place, contents.clone());
                let config = ImageConfig {
                    user,
                    entrypoint: &[&place],
                    labels: &self.labels(program),
                };
                images.push(layout.image(target.architecture, &files, &config)?);
            }
            if images.is_empty() {
                continue;
            }
            let all = layout.for_all(&images);
            digests[program] = json!(all.digest());
            self.image(program, layout.packed(&self.named(program), all)?, written)?;
        }
        let mut files = Archive::default();
        for folder in ["manifests", "metadata"] {
            files.folder(folder, &self.project.join("deploy/bundle").join(folder))?;
        }
        let about = self.read("deploy/bundle/metadata/annotations.yaml")?;
        let about: Value = serde_saphyr::from_str(&String::from_utf8_lossy(&about))
            .context("deploy/bundle/metadata/annotations.yaml is not YAML")?;
        let annotations = about["annotations"]
            .as_object()
            .cloned()
            .unwrap_or_default();
        let of_bundle = annotations.iter();
        let of_bundle = of_bundle.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
        let labels: Vec<(&str, &str)> = self
            .labels("evenkeel-bundle")
            .into_iter()
            .chain(of_bundle)
            .collect();
        let config = ImageConfig {
            user: "",
            entrypoint: &[],
            labels: &labels,
        };
        let mut layout = Layout::new(self.time.0);
        // Catalogs read its files, and nobody runs it.
        let bundle = layout.image("amd64", &files, &config)?;
        digests["evenkeel-bundle"] = json!(bundle.digest());
        let packed = layout.packed(&self.named("evenkeel-bundle"), bundle)?;
        self.image("evenkeel-bundle", packed, written)?;
        Ok(digests)
    }

    /// What registries show of `image`.
    fn labels<'a>(&'a self, image: &'a str) -> [(&'a str, &'a str); 6] {
        [
            ("org.opencontainers.image.created", &self.time.1),
            ("org.opencontainers.image.licenses", "Apache-2.0"),
            ("org.opencontainers.image.revision", &self.commit),
            ("org.opencontainers.image.title", image),
            ("org.opencontainers.image.url", env!("CARGO_PKG_REPOSITORY")),
            ("org.opencontainers.image.version", &self.version),
        ]
    }

    fn named(&self, image: &str) -> String {
        format!("{image}:{}", self.version)
    }

    fn image(&self, name: &str, packed: Vec<u8>, written: &mut Written) -> Result<()> {
        let path = format!("images/{name}-{}.oci.tar", self.version);
        self.write(&path, packed, written)
    }

    fn chart(&self, written: &mut Written) -> Result<()> {
        let chart = PackedChart::pack(&self.project.join("deploy/chart"), self.time.0)?;
        if chart.version != self.version {
            bail!(
                "deploy/chart/Chart.yaml is of version {}, and the programs are {}: make them the same",
                chart.version,
                self.version
            );
        }
        let artifact = chart.artifact(self.time.0)?;
        let (name, version) = (&chart.name, &chart.version);
        self.write(
            &format!("chart/{name}-{version}.oci.tar"),
            artifact,
            written,
        )?;
        self.write(&format!("chart/{name}-{version}.tgz"), chart.file, written)
    }

    /// The bill of materials, and the licences.
    fn materials(&self, written: &mut Written) -> Result<()> {
        let manifest = self.project.join("Cargo.toml").display().to_string();
        let mut arguments = vec![
            "metadata",
            "--format-version=1",
            "--locked",
            "--manifest-path",
            &manifest,
        ];
        for target in &TARGETS {
            arguments.extend(["--filter-platform", target.triple]);
        }
        let metadata = said("cargo", &arguments)?;
        let metadata = serde_json::from_str(&metadata).context("cargo metadata is not JSON")?;
        let lock = self.read("Cargo.lock")?;
        let dependencies =
            Dependencies::read(&metadata, &String::from_utf8_lossy(&lock), &PACKAGES)?;
        if let Some(package) = dependencies.without_licence().first() {
            bail!("{} {} states no licence", package.name, package.version);
        }
        let bill = dependencies.bill(&self.version, &self.time.1);
        self.write("evenkeel.cdx.json", pretty(&bill), written)?;
        self.write("LICENSES.txt", dependencies.licences()?, written)
    }

    fn read(&self, path: &str) -> Result<Vec<u8>> {
        std::fs::read(self.project.join(path)).with_context(|| format!("cannot read {path}"))
    }

    fn write(&self, path: &str, contents: impl AsRef<[u8]>, written: &mut Written) -> Result<()> {
        let place = self.out.join(path);
        let folder = place.parent().unwrap_or(&self.out);
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&place, &contents))
            .with_context(|| format!("cannot write {}", place.display()))?;
        written.0.insert(path.to_owned(), sha256(contents.as_ref()));
        Ok(())
    }
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}
