//! A tree to work on, files to give, and what `evenkeel` said about them.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

/// A scratch folder with a tree in it.
pub(crate) struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("root")).unwrap();
        Self { folder }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// A path of the tree, as the machine calls it.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap()
    }

    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// A file next to the tree, to be given to `evenkeel`.
    pub(crate) fn give(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, contents).unwrap();
        path.display().to_string()
    }

    pub(crate) fn give_json(&self, name: &str, value: &Value) -> String {
        self.give(name, value.to_string())
    }

    /// Runs `evenkeel` on the tree.
    pub(crate) fn on_root(&self, words: &[&str]) -> Said {
        let root = self.root().display().to_string();
        evenkeel(&[words, &["--root", &root]].concat())
    }

    /// Everything in the tree but our own state: path, kind, mode, contents or target.
    pub(crate) fn tree(&self) -> Vec<String> {
        let mut lines = Vec::new();
        walk(&self.root(), &self.root(), &mut lines);
        lines.sort();
        lines
    }
}

fn walk(root: &Path, folder: &Path, lines: &mut Vec<String>) {
    use std::os::unix::fs::MetadataExt;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let inside = path.strip_prefix(root).unwrap().display().to_string();
        if inside == "etc/machine-config-daemon/state" {
            continue;
        }
        let meta = path.symlink_metadata().unwrap();
        let what = if meta.is_symlink() {
            format!("-> {}", std::fs::read_link(&path).unwrap().display())
        } else if meta.is_dir() {
            String::new()
        } else {
            format!("{:?}", std::fs::read(&path).unwrap())
        };
        lines.push(format!("{inside} {:o} {what}", meta.mode()));
        if meta.is_dir() {
            walk(root, &path, lines);
        }
    }
}

/// What a run printed and how it ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.stdin(Stdio::null());
    command
}

pub(crate) fn evenkeel(words: &[&str]) -> Said {
    program().args(words).output().unwrap().into()
}

/// An Ignition config with these sections.
pub(crate) fn ignition(mut sections: Value) -> Value {
    sections["ignition"] = json!({"version": "3.2.0"});
    sections
}

/// An Ignition config with these files.
pub(crate) fn files(files: &[(&str, &str)]) -> Value {
    let files: Vec<Value> = files.iter().map(|(path, text)| file(path, text)).collect();
    ignition(json!({"storage": {"files": files}}))
}

pub(crate) fn file(path: &str, text: &str) -> Value {
    let mut source = "data:,".to_owned();
    for byte in text.bytes() {
        write!(source, "%{byte:02x}").unwrap();
    }
    json!({"path": path, "contents": {"source": source}})
}
