//! Where the programs of the control plane come from: the folder that `KUBEBUILDER_ASSETS` names,
//! else the cache, else they are built from the versions pinned in `control-plane/go.mod`.

use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_xtask::archive::sha256;

use crate::go_module::{GoModule, GoProgram};
use crate::{Error, Result, cache, need};

const MODULE: GoModule = GoModule {
    folder: "control-plane",
    go_mod: include_str!("../../control-plane/go.mod"),
    go_sum: include_str!("../../control-plane/go.sum"),
    own: &[("extension/main.go", EXTENSION_SOURCE)],
    otherwise: "set KUBEBUILDER_ASSETS to a folder with the programs of the control plane",
};

const PROGRAMS: [GoProgram; 5] = [
    GoProgram {
        name: "etcd",
        package: "go.etcd.io/etcd/server/v3",
        tags: "",
        takes: "a minute",
    },
    GoProgram {
        name: "kube-apiserver",
        package: "k8s.io/kubernetes/cmd/kube-apiserver",
        tags: "",
        takes: "6 minutes",
    },
    GoProgram {
        name: "kube-controller-manager",
        package: "k8s.io/kubernetes/cmd/kube-controller-manager",
        tags: "",
        takes: "2 minutes",
    },
    GoProgram {
        name: "kube-scheduler",
        package: "k8s.io/kubernetes/cmd/kube-scheduler",
        tags: "",
        takes: "half a minute",
    },
    GoProgram {
        name: "kubectl",
        package: "k8s.io/kubernetes/cmd/kubectl",
        tags: "",
        takes: "half a minute",
    },
];

/// What nodes of a real cluster run.
const KUBELET: GoProgram = GoProgram {
    name: "kubelet",
    package: "k8s.io/kubernetes/cmd/kubelet",
    tags: "",
    takes: "a minute",
};

const EXTENSION_SOURCE: &str = include_str!("../../control-plane/extension/main.go");

/// What extends a kubelet of the same version.
const EXTENSION: GoProgram = GoProgram {
    name: "extension",
    package: "./extension",
    tags: "",
    takes: "half a minute",
};

/// A device plugin and a storage driver in one program, built anew when its text changes.
pub(crate) fn extension() -> Result<PathBuf> {
    let text = sha256(EXTENSION_SOURCE.as_bytes());
    let kubernetes = MODULE.version_of("k8s.io/kubernetes")?;
    let folder = format!("extension/{kubernetes}-{}", &text[..12]);
    MODULE.program(&folder, &EXTENSION, "-s -w")
}

/// The kubelet of the same version, found next to the others or built.
pub(crate) fn kubelet() -> Result<PathBuf> {
    let flags = linker_flags(MODULE.version_of("k8s.io/kubernetes")?);
    MODULE.program(&cached()?, &KUBELET, &flags)
}

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
        let flags = linker_flags(MODULE.version_of("k8s.io/kubernetes")?);
        let name = cached()?;
        for program in &PROGRAMS {
            MODULE.program(&name, program, &flags)?;
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
            Some(program) if need::find("go").is_none() => Err(MODULE.no_compiler(program)),
            _ => Ok(()),
        }
    }
}

/// The folder of the programs in the cache.
fn cached() -> Result<String> {
    let kubernetes = MODULE.version_of("k8s.io/kubernetes")?;
    let etcd = MODULE.version_of("go.etcd.io/etcd/server/v3")?;
    Ok(format!("control-plane/{kubernetes}-etcd-{etcd}"))
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
    use crate::Doing;
    use crate::scratch::Scratch;

    #[test]
    fn versions_come_from_the_go_module() -> Result<()> {
        let kubernetes = MODULE.version_of("k8s.io/kubernetes")?;
        assert!(kubernetes.starts_with("v1."), "{kubernetes}");
        let minor = kubernetes.split('.').nth(1).unwrap();
        assert!(linker_flags(kubernetes).ends_with(&format!(".gitMinor={minor}")));
        let missing = MODULE.version_of("no.such/module").unwrap_err();
        assert_eq!(
            missing.to_string(),
            "control-plane/go.mod does not require no.such/module"
        );
        Ok(())
    }

    #[test]
    fn a_missing_compiler_is_one_sentence_with_the_cure() {
        let [etcd, ..] = &PROGRAMS;
        let error = MODULE.no_compiler(etcd).to_string();
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
