//! The labels that a machine's own policy has for its paths. Only its own programs know that policy: they
//! are run, and no library of theirs is needed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::run::Program;
use crate::{Error, Result};

/// There while the kernel has a policy.
const SWITCH: &str = "sys/fs/selinux/enforce";
const FOLDERS: [&str; 4] = ["usr/sbin", "usr/bin", "sbin", "bin"];
/// How many paths one run is given.
const BATCH: usize = 256;
const DEADLINE: Duration = Duration::from_mins(2);

/// The policy of the machine whose root is at `root`.
#[derive(Debug)]
pub(super) struct Policy {
    root: PathBuf,
}

impl Policy {
    pub(super) fn below(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Whether there is a policy, and what puts it on paths. Looked for each time: both may come later.
    fn is_on(&self) -> bool {
        let has = |path: &Path| self.root.join(path).symlink_metadata().is_ok();
        let mut programs = FOLDERS
            .iter()
            .map(|folder| Path::new(folder).join("restorecon"));
        has(Path::new(SWITCH)) && programs.any(|program| has(&program))
    }

    /// Gives `paths` the labels of the policy; `false` where there is none.
    pub(super) fn relabel(&self, paths: &[String]) -> Result<bool> {
        if !self.is_on() {
            return Ok(false);
        }
        let paths: Vec<String> = paths.iter().map(|path| escaped(path)).collect();
        for batch in paths.chunks(BATCH) {
            // What went meanwhile needs no label.
            let line = ["restorecon", "-i", "--"].into_iter();
            let line: Vec<&str> = line.chain(batch.iter().map(String::as_str)).collect();
            let program = Program {
                root: &self.root,
                line: &line,
            };
            program
                .run(DEADLINE)
                .map_err(|why| Error::os("run `restorecon`", why))?;
        }
        Ok(true)
    }
}

/// The program takes a path for a pattern.
fn escaped(path: &str) -> String {
    let mut escaped = String::with_capacity(path.len());
    for letter in path.chars() {
        if r"\*?[]{}~".contains(letter) {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_never_a_pattern() {
        assert_eq!(escaped("/etc/plain.conf"), "/etc/plain.conf");
        assert_eq!(escaped(r"/etc/a*[b]?{c}\d~"), r"/etc/a\*\[b\]\?\{c\}\\d\~");
    }
}
