//! Tells the operator the commit that it is built from: `EVENKEEL_COMMIT` if it is set, else what git says,
//! else seven zeros, which stand for an unknown one.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=EVENKEEL_COMMIT");
    let commit = match std::env::var("EVENKEEL_COMMIT") {
        Ok(commit) if !commit.trim().is_empty() => commit.trim().to_owned(),
        _ => from_git().unwrap_or_else(|| "0000000".to_owned()),
    };
    println!("cargo:rustc-env=EVENKEEL_COMMIT={commit}");
}

fn from_git() -> Option<String> {
    // Both change with a commit; the second is where a branch moves without a check-out.
    for file in ["HEAD", "logs/HEAD"] {
        println!(
            "cargo:rerun-if-changed={}",
            git(&["rev-parse", "--git-path", file])?
        );
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
