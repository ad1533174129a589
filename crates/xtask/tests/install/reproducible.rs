//! Whoever makes the release of a commit gets the same bytes, wherever and whenever that is.

use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_testbed::need::Need;
use evenkeel_testbed::process::run;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::{Doing, Result, need};

use crate::release::Release;

const NEEDS: &[Need] = &[
    Need::Program("git", "git"),
    Need::Program("musl-gcc", "musl-tools"),
    Need::Program("x86_64-w64-mingw32-gcc", "mingw-w64"),
    Need::RustTarget("x86_64-unknown-linux-musl"),
    Need::RustTarget("x86_64-pc-windows-gnu"),
];

/// The file that names every other with its checksum.
const SUMS: &str = "SHA256SUMS";

fn project() -> Result<PathBuf> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    project.canonicalize().doing(|| "no project")
}

/// Makes the release of the commit that is checked out from a clone in `folder`, with these settings of the machine, and
/// returns its checksums.
fn made_in(folder: &str, settings: &[(&str, &str)], mask: &str) -> Result<String> {
    let scratch = Scratch::new("clone")?;
    let place = scratch.path().join(folder);
    let project = project()?;
    let commit = run(Command::new("git")
        .args(["rev-parse", "HEAD"])
        .current_dir(&project))?;
    run(Command::new("git")
        .args(["clone", "--quiet", "--no-checkout"])
        .args([&project, &place]))?;
    run(Command::new("git")
        .args(["checkout", "--quiet", "--detach", commit.trim()])
        .current_dir(&place))?;
    let out = scratch.path().join("release");
    run(Command::new("sh")
        .args(["-c", "umask \"$1\"; shift; exec \"$@\"", "sh", mask])
        .args(["cargo", "xtask", "release", "--profile", "dev"])
        .args([
            "--target",
            "x86_64-unknown-linux-musl,x86_64-pc-windows-gnu",
        ])
        .arg("--out")
        .arg(&out)
        .current_dir(&place)
        .env_remove("CARGO_TARGET_DIR")
        .envs(settings.iter().copied()))?;
    std::fs::read_to_string(out.join(SUMS)).doing(|| format!("no {SUMS}"))
}

#[test]
#[ignore = "takes long: runs in ./test --soak"]
fn the_same_commit_gives_the_same_release_wherever_it_is_made() -> Result<()> {
    if need::skip(NEEDS)? {
        return Ok(());
    }
    let one = made_in("one", &[("TZ", "UTC"), ("LANG", "C.UTF-8")], "022")?;
    let elsewhere = [("TZ", "JST-9"), ("LANG", "C"), ("CARGO_BUILD_JOBS", "1")];
    let other = made_in("quite/another/folder", &elsewhere, "077")?;
    let differ = one
        .lines()
        .zip(other.lines())
        .filter(|(it, that)| it != that);
    let differ: Vec<&str> = differ.map(|(it, _)| it).collect();
    assert!(differ.is_empty(), "these differ: {differ:?}");
    assert_eq!(one, other);
    println!(
        "proof: a release of {} files is the same from two folders",
        one.lines().count()
    );
    Ok(())
}

#[test]
#[ignore = "takes long: runs in ./test --soak"]
fn programs_say_nothing_of_where_they_were_made() -> Result<()> {
    if need::skip(&[])? {
        return Ok(());
    }
    let release = Release::build()?;
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.unwrap_or_else(|| std::env::home_dir().unwrap_or_default().join(".cargo"));
    let version = env!("CARGO_PKG_VERSION");
    for program in ["evenkeel", "evenkeel-agent", "evenkeel-operator"] {
        let packed = release.path(&format!("programs/{program}_{version}_linux_amd64.tar.gz"));
        let found = |text: &str| -> Result<String> {
            let found = run(Command::new("sh").args([
                "-c",
                "tar -xzOf \"$1\" \"$2\" | grep -c -a -F \"$3\" || true",
                "sh",
                &packed.display().to_string(),
                program,
                text,
            ]))?;
            Ok(found.trim().to_owned())
        };
        // It would be found if it were there.
        assert_ne!(found("/cargo/registry/")?, "0", "{program}");
        for place in [project()?, home.clone()] {
            let place = place.display().to_string();
            assert_eq!(found(&place)?, "0", "{program} names {place}");
        }
    }
    Ok(())
}
