//! Programs that are built from Go modules whose versions are pinned here: once, into the cache.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::process::{Running, run, tell};
use crate::scratch::Scratch;
use crate::wait::{self, Look};
use crate::{Doing, Error, Result, cache, need};

/// What one build needs on disk besides the program: downloaded modules and compiled packages.
const BUILD_MEGABYTES: u64 = 3000;
const BUILD_DEADLINE: Duration = Duration::from_hours(1);

/// A module of ours that requires what is built.
#[derive(Debug)]
pub(crate) struct GoModule {
    /// The folder next to `src` that it is in.
    pub(crate) folder: &'static str,
    pub(crate) go_mod: &'static str,
    pub(crate) go_sum: &'static str,
    /// Programs of its own: where each is below the module, and its text.
    pub(crate) own: &'static [(&'static str, &'static str)],
    /// What else brings its programs, for the sentence that says how to do without a compiler.
    pub(crate) otherwise: &'static str,
}

/// One program of a module.
#[derive(Debug)]
pub(crate) struct GoProgram {
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
    /// Which parts it is built with, if its sources let anybody choose.
    pub(crate) tags: &'static str,
    /// How long it takes on two cores, for the sentence that asks for patience.
    pub(crate) takes: &'static str,
}

impl GoModule {
    /// The version that it requires of `module`.
    pub(crate) fn version_of(&self, module: &str) -> Result<&'static str> {
        self.go_mod
            .lines()
            .map(|line| line.trim_start_matches("require "))
            .map(str::split_whitespace)
            .find_map(|mut words| (words.next() == Some(module)).then(|| words.next())?)
            .ok_or_else(|| {
                Error::failed(format!("{}/go.mod does not require {module}", self.folder))
            })
    }

    /// The program in the cache's folder `name`, built if it is not there.
    pub(crate) fn program(&self, name: &str, program: &GoProgram, flags: &str) -> Result<PathBuf> {
        let entry = format!("{name}/{}", program.name);
        cache::entry(&entry, BUILD_MEGABYTES, |place| {
            self.build(program, flags, place)
        })
    }

    fn build(&self, program: &GoProgram, flags: &str, place: &Path) -> Result<()> {
        let go = need::find("go").ok_or_else(|| self.no_compiler(program))?;
        tell(&format!(
            "building {} (once; about {})…",
            program.name, program.takes
        ));
        let module = self.laid()?;
        let mut command = Command::new(go);
        command
            .current_dir(module.path())
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "")
            .env("GOWORK", "off")
            .args(["build", "-trimpath", "-ldflags", flags])
            .args(["-tags", program.tags])
            .arg("-o")
            .arg(place)
            .arg(program.package);
        // Owned, so that no compiler outlives a killed test process and writes into the cache.
        let what = format!("the build of {}", program.name);
        let mut building = Running::start(&what, &mut command, &module.path().join("log"))?;
        let status = wait::until(&what, BUILD_DEADLINE, || {
            Ok(match building.ended()? {
                Some(status) => Look::Found(status),
                None => Look::NotYet(building.last_words()),
            })
        })?;
        if status.success() {
            return Ok(());
        }
        Err(Error::failed(format!(
            "{what} ended with {status}: {}",
            building.last_words()
        )))
    }

    /// The module as Go sees it. The sources are not at hand when another crate's tests run, so it is made from what was
    /// compiled in.
    fn laid(&self) -> Result<Scratch> {
        let module = Scratch::new("go-module")?;
        let files = [("go.mod", self.go_mod), ("go.sum", self.go_sum)];
        for (name, text) in files.iter().chain(self.own) {
            let path = module.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap_or(&path))
                .and_then(|()| std::fs::write(&path, text))
                .doing(|| format!("cannot write {name}"))?;
        }
        Ok(module)
    }

    /// Files of `module`, of which nothing is built: the folder in the cache that has them.
    pub(crate) fn sources(&self, module: &str, files: &[&str]) -> Result<PathBuf> {
        let version = self.version_of(module)?;
        cache::entry(&format!("{}/{version}", self.folder), 100, |place| {
            let go = need::find("go").ok_or_else(|| self.no_go())?;
            let laid = self.laid()?;
            let said = run(Command::new(go)
                .current_dir(laid.path())
                .env("GOFLAGS", "")
                .env("GOWORK", "off")
                .args(["mod", "download", "-json"])
                .arg(format!("{module}@{version}")))?;
            let said: Value = serde_json::from_str(&said).doing(|| "go said no JSON")?;
            let folder = Path::new(said["Dir"].as_str().unwrap_or_default());
            std::fs::create_dir_all(place).doing(|| "cannot make a folder in the cache")?;
            for file in files {
                let from = folder.join(file);
                // Modules are read-only, and a copy would be, too.
                let text = std::fs::read(&from);
                let text = text.doing(|| format!("cannot read {}", from.display()))?;
                let to = place.join(from.file_name().unwrap_or_default());
                std::fs::write(&to, text).doing(|| format!("cannot write {}", to.display()))?;
            }
            Ok(())
        })
    }

    /// Whether [`sources`](Self::sources) of `module` are at hand or can be fetched.
    pub(crate) fn can_be_fetched(&self, module: &str) -> Result<()> {
        let folder = format!("{}/{}", self.folder, self.version_of(module)?);
        if cache::folder()?.join(folder).exists() || need::find("go").is_some() {
            return Ok(());
        }
        Err(self.no_go())
    }

    fn no_go(&self) -> Error {
        Error::Missing(format!(
            "`go` is not installed, and it fetches what {}/go.mod requires: install Go, or {}",
            self.folder, self.otherwise
        ))
    }

    /// The sentence for a machine that can neither have nor build the program.
    pub(crate) fn no_compiler(&self, program: &GoProgram) -> Error {
        let wanted = self
            .go_mod
            .lines()
            .find_map(|line| line.strip_prefix("go "));
        Error::Missing(format!(
            "`go` is not installed, and {} must be built once: install Go {} or later (https://go.dev/dl), or {}",
            program.name,
            wanted.unwrap_or_default(),
            self.otherwise
        ))
    }
}

/// A module for one program, which may also be given.
#[derive(Debug)]
pub(crate) struct GoTool {
    pub(crate) module: GoModule,
    pub(crate) program: GoProgram,
    /// The module whose version is the program's.
    pub(crate) version_of: &'static str,
    /// The variable of the environment that says where a given one is.
    pub(crate) variable: &'static str,
}

impl GoTool {
    /// Whether it is at hand or can be built, without building it.
    pub(crate) fn can_be_had(&self) -> Result<()> {
        let built = cache::folder()?.join(self.cached()?);
        let built = built.join(self.program.name);
        if self.given().is_some() || built.exists() || need::find("go").is_some() {
            return Ok(());
        }
        Err(self.module.no_compiler(&self.program))
    }

    /// Where it is, built if it is not there.
    pub(crate) fn find(&self) -> Result<PathBuf> {
        match self.given() {
            Some(program) if need::is_program(&program) => Ok(program),
            Some(program) => Err(Error::Missing(format!(
                "{variable} is {}, which is not a program: correct it, or unset {variable} to build one",
                program.display(),
                variable = self.variable
            ))),
            None => {
                let folder = self.cached()?;
                self.module.program(&folder, &self.program, "-s -w")
            }
        }
    }

    fn given(&self) -> Option<PathBuf> {
        let program = std::env::var_os(self.variable).filter(|value| !value.is_empty());
        program.map(PathBuf::from)
    }

    /// Its folder in the cache.
    fn cached(&self) -> Result<String> {
        let version = self.module.version_of(self.version_of)?;
        Ok(format!("{}/{version}", self.module.folder))
    }
}
