//! What is on a Windows instance at one moment, to tell whether it is as bare as before.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::WindowsInstance;
use crate::Result;
use crate::process::run;

const SERVICES: &str = r"HKLM\System\CurrentControlSet\Services";
const ENVIRONMENT: &str = r"HKLM\System\CurrentControlSet\Control\Session Manager\Environment";

/// Files (by SHA-256) and folders of C:, services and Machine environment (from the registry), trusted
/// roots (by thumbprint). Folders for temporary files are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<String, String>);

impl Snapshot {
    pub(super) fn take(instance: &WindowsInstance) -> Result<Self> {
        let mut all = files(instance)?;
        for (kind, key) in [("service", SERVICES), ("variable", ENVIRONMENT)] {
            let text = instance.ask(&["reg", "query", key, "/s"])?;
            all.extend(values(kind, key, &text));
        }
        let roots = instance.ask(&["windows-probe", "roots"])?;
        all.extend(
            roots
                .lines()
                .map(|it| (format!("root {it}"), String::new())),
        );
        Ok(Self(all))
    }

    /// What is different in `later`, one line for each thing: `+ file C:\k\x.exe`, `- service svc\Start`,
    /// `~ variable NO_PROXY`. Empty if nothing is.
    pub fn diff(&self, later: &Self) -> Vec<String> {
        let gone = self.0.keys().filter(|key| !later.0.contains_key(*key));
        let gone = gone.map(|key| (key, '-'));
        let rest = later
            .0
            .iter()
            .filter_map(|(key, value)| match self.0.get(key) {
                None => Some((key, '+')),
                Some(before) if before != value => Some((key, '~')),
                Some(_) => None,
            });
        let mut lines: Vec<_> = gone.chain(rest).collect();
        lines.sort();
        lines
            .iter()
            .map(|(key, sign)| format!("{sign} {key}"))
            .collect()
    }
}

fn files(instance: &WindowsInstance) -> Result<BTreeMap<String, String>> {
    let drive = instance.drive_c();
    // What was written since the instance was made; the other 700 MB are the template's.
    let since = instance.folder().join("machine/env.sh");
    let find = |what: &str| find(&drive, &since, what);
    let mut all = BTreeMap::new();
    for (kind, what) in [
        ("folder", "-type d -print0"),
        ("file", "-type f ! -newercm \"$2\" -print0"),
    ] {
        let names = find(what)?;
        let names = names.split('\0').filter(|name| !name.is_empty());
        all.extend(names.map(|name| (format!("{kind} {}", windows_path(name)), String::new())));
    }
    // The machine's own sha256sum, which is many times quicker than ours in a debug build.
    let sums = find("-type f -newercm \"$2\" -exec sha256sum -z {} +")?;
    let sums = sums.split('\0').filter_map(|line| line.split_once("  "));
    all.extend(sums.map(|(sum, name)| (format!("file {}", windows_path(name)), sum.to_owned())));
    Ok(all)
}

fn find(drive: &Path, since: &Path, what: &str) -> Result<String> {
    let without = r"\( -ipath './windows/temp/*' -o -ipath './users/*/temp/*' \) -prune -o";
    let script = format!("cd \"$1\" && exec find . {without} {what}");
    run(Command::new("sh")
        .args(["-c", &script, "sh"])
        .args([drive, since]))
}

/// `./k/x.exe` as `C:\k\x.exe`.
fn windows_path(below: &str) -> String {
    let path = below.trim_start_matches('.').replace('/', r"\");
    format!("C:{path}")
}

/// What `reg query KEY /s` printed: a line for each key, then its values, indented, as
/// `name    type    data`. A value is named from below `top` on: `svc\Start`.
fn values(kind: &str, top: &str, text: &str) -> Vec<(String, String)> {
    let (_, top) = top.split_once('\\').unwrap_or_default();
    let mut key = String::new();
    let mut all = Vec::new();
    for line in text.lines().map(str::trim_end) {
        if let Some(value) = line.strip_prefix("    ") {
            let (name, data) = value.split_once("    ").unwrap_or((value, ""));
            all.push((format!("{kind} {key}{name}"), data.to_owned()));
        } else if let Some((_, path)) = line.split_once('\\') {
            let below = path.get(top.len()..).unwrap_or_default();
            let below = below.trim_start_matches('\\');
            key = if below.is_empty() {
                String::new()
            } else {
                format!(r"{below}\")
            };
            if !key.is_empty() {
                all.push((format!("{kind} {below}"), String::new()));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_says_what_came_went_and_changed() {
        let snapshot = |start: &str, more: &str| {
            let text = format!(
                "\r\nHKEY_LOCAL_MACHINE\\System\\CurrentControlSet\\Services\\svc\r\n    Start    REG_DWORD    {start}\r\n{more}"
            );
            Snapshot(values("service", SERVICES, &text).into_iter().collect())
        };
        let before = snapshot("0x2", "    Type    REG_DWORD    0x10\r\n");
        let later = snapshot("0x3", "    Tag    REG_SZ    a  b\r\n");
        assert_eq!(
            before.diff(&later),
            [
                r"~ service svc\Start",
                r"+ service svc\Tag",
                r"- service svc\Type"
            ]
        );
        assert!(before.diff(&before).is_empty());
        assert_eq!(windows_path("./k/x.exe"), r"C:\k\x.exe");
    }
}
