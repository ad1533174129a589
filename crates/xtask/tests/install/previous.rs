//! The release before this one: the one in the folder that `EVENKEEL_PREVIOUS_RELEASE` names, or one of an earlier commit, made
//! once for each commit.

use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_testbed::process::{run, tell};
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::{Doing, Error, Result, cache};
use serde_json::Value;

/// What counts as the release before as long as there is no tag: a commit whose release was seen to work.
const UNTIL_A_TAG: &str = "62bb3526f3de228f831a1e1f99b33f4b314b6c1f";
/// What its images are called here: both releases may have the same version.
pub(crate) const TAG: &str = "previous";
/// What building it needs on disk.
const MEGABYTES: u64 = 6000;

/// The release before this one.
pub(crate) struct Previous {
    folder: PathBuf,
    renamed: Scratch,
}

impl Previous {
    pub(crate) fn make() -> Result<Self> {
        let given = std::env::var_os("EVENKEEL_PREVIOUS_RELEASE").map(PathBuf::from);
        let previous = Self {
            folder: given.map_or_else(built, Ok)?,
            renamed: Scratch::new("previous")?,
        };
        for program in ["operator", "agent"] {
            previous.rename(program)?;
        }
        Ok(previous)
    }

    /// The chart that Helm installs.
    pub(crate) fn chart(&self) -> Result<String> {
        let chart = self.find("chart", "evenkeel-", ".tgz")?;
        Ok(chart.display().to_string())
    }

    /// Its images, with the tag `previous`.
    pub(crate) fn images(&self) -> Vec<PathBuf> {
        ["operator", "agent"].map(|it| self.renamed(it)).into()
    }

    fn renamed(&self, program: &str) -> PathBuf {
        let file = format!("previous-{program}.oci.tar");
        self.renamed.path().join(file)
    }

    /// The file of the release in this folder: its version is in its name.
    fn find(&self, folder: &str, begins: &str, ends: &str) -> Result<PathBuf> {
        let folder = self.folder.join(folder);
        let files =
            std::fs::read_dir(&folder).doing(|| format!("cannot read {}", folder.display()))?;
        let paths = files.filter_map(|it| Some(it.ok()?.path()));
        let is_it = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(begins) && name.ends_with(ends)
        };
        paths
            .filter(is_it)
            .max()
            .ok_or_else(|| Error::failed(format!("{} has no {begins}…{ends}", folder.display())))
    }

    /// Gives an image its tag. Its contents stay as they were released.
    fn rename(&self, program: &str) -> Result<()> {
        let image = self.find("images", &format!("evenkeel-{program}-"), ".oci.tar")?;
        let open = self.renamed.path().join(program);
        std::fs::create_dir(&open).doing(|| "cannot open the image")?;
        run(Command::new("tar")
            .arg("-xf")
            .arg(&image)
            .arg("-C")
            .arg(&open))?;
        let path = open.join("index.json");
        let index = std::fs::read_to_string(&path).doing(|| "the image has no index")?;
        let mut index: Value = serde_json::from_str(&index).doing(|| "the index is not JSON")?;
        let names = &mut index["manifests"][0]["annotations"];
        names["io.containerd.image.name"] =
            format!("docker.io/library/evenkeel-{program}:{TAG}").into();
        names["org.opencontainers.image.ref.name"] = TAG.into();
        std::fs::write(&path, index.to_string()).doing(|| "cannot write the index")?;
        let to = self.renamed(program);
        run(Command::new("tar")
            .arg("-cf")
            .arg(&to)
            .arg("-C")
            .arg(&open)
            .arg("."))?;
        std::fs::remove_dir_all(&open).doing(|| "cannot close the image")
    }
}

/// The newest tag before this commit, or the commit that stands in for one.
fn commit(project: &str) -> Result<String> {
    let git = |words: &[&str]| run(Command::new("git").args([&["-C", project], words].concat()));
    let tag = git(&["describe", "--tags", "--abbrev=0", "HEAD^"]);
    let name = tag.unwrap_or_else(|_| UNTIL_A_TAG.to_owned());
    let name = format!("{}^{{commit}}", name.trim());
    let commit = git(&["rev-parse", "--verify", &name]);
    let commit = commit.doing(|| {
        "the commit of the previous release is not here: fetch all of the history, or set EVENKEEL_PREVIOUS_RELEASE to a release folder"
    })?;
    Ok(commit.trim().to_owned())
}

/// The folder of the previous release, kept for the next time.
fn built() -> Result<PathBuf> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let project = project.canonicalize().doing(|| "no project")?;
    let project = project.display().to_string();
    let commit = commit(&project)?;
    cache::entry(&format!("release/{commit}"), MEGABYTES, |place| {
        tell(&format!("making the previous release, of {commit}…"));
        let clone = Scratch::new("previous-source")?;
        let source = clone.path().join("source");
        run(Command::new("git")
            .args(["clone", "--quiet", "--shared", "--no-checkout", &project])
            .arg(&source))?;
        run(Command::new("git")
            .arg("-C")
            .arg(&source)
            .args(["checkout", "--quiet", &commit]))?;
        run(Command::new("cargo")
            .current_dir(&source)
            .env_remove("CARGO_TARGET_DIR")
            .args(["run", "--quiet", "--package", "evenkeel-xtask", "--"])
            .args([
                "release",
                "--profile",
                "dev",
                "--target",
                "x86_64-unknown-linux-musl",
            ])
            .arg("--out")
            .arg(place))
        .map(|_| ())
    })
}
