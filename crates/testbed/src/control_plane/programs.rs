//! Where the programs of the control plane come from: the folder that `KUBEBUILDER_ASSETS` names,
//! else the cache, else they are built from the versions pinned in `control-plane/go.mod`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::{Running, tell};
use crate::scratch::Scratch;
use crate::wait::{self, Look};
use crate::{Doing, Error, Result, cache, need};

const GO_MOD: &str = include_str!("../../control-plane/go.mod");
const GO_SUM: &str = include_str!("../../control-plane/go.sum");

/// What one build needs on disk beside the program: downloaded modules and compiled packages.
const BUILD_MEGABYTES: u64 = 3000;
const BUILD_DEADLINE: Duration = Duration::from_hours(1);

struct Program {
    name: &'static str,
    package: &'static str,
    /// How long it takes on two cores, for the sentence that asks for patience.
    takes: &'static str,
}

const PROGRAMS: [Program; 5] = [
    Program {
        name: "etcd",
        package: "go.etcd.io/etcd/server/v3",
        takes: "a minute",
    },
    Program {
        name: "kube-apiserver",
        package: "k8s.io/kubernetes/cmd/kube-apiserver",
        takes: "6 minutes",
    },
    Program {
        name: "kube-controller-manager",
        package: "k8s.io/kubernetes/cmd/kube-controller-manager",
        takes: "2 minutes",
    },
    Program {
        name: "kube-scheduler",
        package: "k8s.io/kubernetes/cmd/kube-scheduler",
        takes: "half a minute",
    },
    Program {
        name: "kubectl",
        package: "k8s.io/kubernetes/cmd/kubectl",
        takes: "half a minute",
    },
];

/// A folder that has every program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Programs(PathBuf);

impl Programs {
    /// Finds them, or builds them.
    pub(super) fn find() -> Result<Self> {
        match std::env::var_os("KUBEBUILDER_ASSETS").filter(|value| !value.is_empty()) {
            Some(folder) => Self::in_folder(Path::new(&folder)),
            None => Self::from_cache(),
        }
    }

    /// Where one of them is.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The command that runs one of them.
    pub(super) fn command(&self, name: &str) -> Command {
        Command::new(self.path(name))
    }

    /// The programs that are all in `folder`.
    pub(super) fn in_folder(folder: &Path) -> Result<Self> {
        for program in &PROGRAMS {
            if !need::is_program(&folder.join(program.name)) {
                return Err(Error::Missing(format!(
                    "KUBEBUILDER_ASSETS is {} and there is no program `{}` in it: put it there, or unset \
                     KUBEBUILDER_ASSETS to have the control plane built",
                    folder.display(),
                    program.name
                )));
            }
        }
        Ok(Self(folder.to_owned()))
    }

    fn from_cache() -> Result<Self> {
        let kubernetes = version_of("k8s.io/kubernetes")?;
        let name = cached()?;
        for program in &PROGRAMS {
            let entry = format!("{name}/{}", program.name);
            cache::entry(&entry, BUILD_MEGABYTES, |place| {
                build(program, kubernetes, place)
            })?;
        }
        Ok(Self(cache::folder()?.join(name)))
    }

    /// Whether they are at hand or can be built, without building them.
    pub(super) fn can_be_had() -> Result<()> {
        if std::env::var_os("KUBEBUILDER_ASSETS").is_some_and(|value| !value.is_empty()) {
            return Self::find().map(|_| ());
        }
        let folder = cache::folder()?.join(cached()?);
        let missing = PROGRAMS
            .iter()
            .find(|program| !folder.join(program.name).exists());
        match missing {
            Some(program) if need::find("go").is_none() => Err(no_compiler(program)),
            _ => Ok(()),
        }
    }
}

/// The folder of the programs in the cache.
fn cached() -> Result<String> {
    let kubernetes = version_of("k8s.io/kubernetes")?;
    let etcd = version_of("go.etcd.io/etcd/server/v3")?;
    Ok(format!("control-plane/{kubernetes}-etcd-{etcd}"))
}

/// The version that `go.mod` requires of `module`.
fn version_of(module: &str) -> Result<&'static str> {
    GO_MOD
        .lines()
        .map(str::split_whitespace)
        .find_map(|mut words| (words.next() == Some(module)).then(|| words.next())?)
        .ok_or_else(|| Error::failed(format!("control-plane/go.mod does not require {module}")))
}

fn build(program: &Program, kubernetes: &str, place: &Path) -> Result<()> {
    let go = need::find("go").ok_or_else(|| no_compiler(program))?;
    tell(&format!(
        "building {} (once; about {})…",
        program.name, program.takes
    ));
    // The sources are not at hand when another crate's tests run, so the module is made from what
    // was compiled in.
    let module = Scratch::new("go-module")?;
    for (name, text) in [("go.mod", GO_MOD), ("go.sum", GO_SUM)] {
        std::fs::write(module.path().join(name), text).doing(|| format!("cannot write {name}"))?;
    }
    let mut command = Command::new(go);
    command
        .current_dir(module.path())
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "")
        .env("GOWORK", "off")
        .args(["build", "-trimpath", "-ldflags", &linker_flags(kubernetes)])
        .arg("-o")
        .arg(place)
        .arg(program.package);
    // Owned, so that no compiler outlives a killed test process and writes into the cache.
    let mut building = Running::start(
        &format!("the build of {}", program.name),
        &mut command,
        &module.path().join("log"),
    )?;
    let what = format!("the build of {}", program.name);
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

fn no_compiler(program: &Program) -> Error {
    let wanted = GO_MOD.lines().find_map(|line| line.strip_prefix("go "));
    Error::Missing(format!(
        "`go` is not installed, and {} must be built once: install Go {} or later (https://go.dev/dl), \
         or set KUBEBUILDER_ASSETS to a folder with the programs of the control plane",
        program.name,
        wanted.unwrap_or_default()
    ))
}

/// Without these the server calls itself `v0.0.0-master`.
fn linker_flags(kubernetes: &str) -> String {
    let mut numbers = kubernetes.trim_start_matches('v').split('.');
    let major = numbers.next().unwrap_or_default();
    let minor = numbers.next().unwrap_or_default();
    let of = "k8s.io/component-base/version";
    format!(
        "-s -w -X {of}.gitVersion={kubernetes} -X {of}.gitMajor={major} -X {of}.gitMinor={minor}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_the_go_module() -> Result<()> {
        let kubernetes = version_of("k8s.io/kubernetes")?;
        assert!(kubernetes.starts_with("v1."), "{kubernetes}");
        let minor = kubernetes.split('.').nth(1).unwrap();
        assert!(linker_flags(kubernetes).ends_with(&format!(".gitMinor={minor}")));
        let missing = version_of("no.such/module").unwrap_err();
        assert_eq!(
            missing.to_string(),
            "control-plane/go.mod does not require no.such/module"
        );
        Ok(())
    }

    #[test]
    fn a_missing_compiler_is_one_sentence_with_the_cure() {
        let [etcd, ..] = &PROGRAMS;
        let error = no_compiler(etcd).to_string();
        assert!(
            error.starts_with("`go` is not installed, and etcd must be built once: install Go 1."),
            "{error}"
        );
    }

    #[test]
    fn a_program_missing_in_the_named_folder_is_named_with_the_cure() -> Result<()> {
        let scratch = Scratch::new("assets")?;
        let sh = need::find("sh").unwrap();
        for present in ["etcd", "kube-apiserver"] {
            std::os::unix::fs::symlink(&sh, scratch.path().join(present))
                .doing(|| "cannot link")?;
        }
        let error = Programs::in_folder(scratch.path()).unwrap_err().to_string();
        assert!(
            error.contains("there is no program `kube-controller-manager` in it: put it there"),
            "{error}"
        );
        for present in ["kube-controller-manager", "kube-scheduler", "kubectl"] {
            std::os::unix::fs::symlink(&sh, scratch.path().join(present))
                .doing(|| "cannot link")?;
        }
        assert!(Programs::in_folder(scratch.path()).is_ok());
        Ok(())
    }
}
