//! The programs for the other architecture run: on a processor that QEMU stands in for.

use std::path::Path;
use std::process::{Command, Output};

use evenkeel_testbed::need::Need;
use evenkeel_testbed::process::{output, run};
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::{Doing, Result, need};

const NEEDS: &[Need] = &[
    Need::Program("qemu-aarch64", "qemu-user"),
    Need::Program("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    Need::RustTarget("aarch64-unknown-linux-musl"),
];

/// The programs of a release for that architecture, unpacked.
struct Programs(Scratch);

impl Programs {
    fn make() -> Result<Self> {
        let release = Scratch::new("release")?;
        let made = run(Command::new(env!("CARGO_BIN_EXE_evenkeel-xtask"))
            .args(["release", "--profile", "dev", "--allow-changes"])
            .args(["--target", "aarch64-unknown-linux-musl", "--out"])
            .arg(release.path()))?;
        println!("{made}");
        let version = env!("CARGO_PKG_VERSION");
        let programs = Self(Scratch::new("programs")?);
        for program in ["evenkeel", "evenkeel-agent", "evenkeel-operator"] {
            let packed = format!("programs/{program}_{version}_linux_arm64.tar.gz");
            run(Command::new("tar")
                .arg("-xzf")
                .arg(release.path().join(packed))
                .arg("-C")
                .args([programs.0.path().as_os_str(), program.as_ref()]))?;
        }
        Ok(programs)
    }

    /// Runs one of them in the project.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<Output> {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        output(
            Command::new("qemu-aarch64")
                .arg(self.0.path().join(program))
                .args(arguments)
                .current_dir(project),
            &[],
        )
    }

    /// How a run of `evenkeel` ends, and what it prints.
    fn evenkeel(&self, arguments: &[&str]) -> Result<(Option<i32>, String)> {
        let ended = self.run("evenkeel", arguments)?;
        let both = [&ended.stdout[..], &ended.stderr[..]].concat();
        let said = String::from_utf8_lossy(&both).into_owned();
        Ok((ended.status.code(), said))
    }
}

#[test]
#[ignore = "takes long: runs in ./test --soak"]
fn the_programs_for_arm64_start_plan_apply_and_verify() -> Result<()> {
    if need::skip(NEEDS)? {
        return Ok(());
    }
    let programs = Programs::make()?;
    for program in ["evenkeel", "evenkeel-agent", "evenkeel-operator"] {
        let said = programs.run(program, &["--version"])?;
        let version = format!("{program} {}", env!("CARGO_PKG_VERSION"));
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.starts_with(&version), "{said}");
    }
    let (old, new) = ("examples/worker.yaml", "examples/worker-next.yaml");
    let (code, said) = programs.evenkeel(&["plan", "-f", new, "--from", old])?;
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("Disruption: reload (reload crio.service)."),
        "{said}"
    );

    let tree = Scratch::new("tree")?;
    let root = tree.path().display().to_string();
    // The keys in the example are those of a user that the machine must have.
    for (file, line) in [
        ("passwd", "core:x:1000:1000::/home/core:/bin/sh\n"),
        ("group", "core:x:1000:\n"),
    ] {
        std::fs::create_dir_all(tree.path().join("etc"))
            .and_then(|()| std::fs::write(tree.path().join("etc").join(file), line))
            .doing(|| "cannot write the tree")?;
    }
    let verify = ["verify", "-f", old, "--root", &root];
    let (code, said) = programs.evenkeel(&["apply", "-f", old, "--root", &root])?;
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = programs.evenkeel(&verify)?;
    assert_eq!(code, Some(0), "{said}");
    std::fs::write(tree.path().join("etc/chrony.conf"), "server evil\n")
        .doing(|| "cannot write the tree")?;
    let (code, said) = programs.evenkeel(&verify)?;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("/etc/chrony.conf"), "{said}");
    Ok(())
}
