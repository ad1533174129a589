//! The programs of a release, built so that the folder they are built in leaves no trace in them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A target, and what is built for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    /// As Rust calls it.
    pub(crate) triple: &'static str,
    /// As people call it: system and architecture.
    pub(crate) system: &'static str,
    pub(crate) architecture: &'static str,
    pub(crate) programs: &'static [&'static str],
    /// The C compiler, and the Debian package that brings it.
    compiler: (&'static str, &'static str),
    /// What that compiler is told besides.
    options: &'static str,
    /// What Rust's compiler is told besides.
    rust_options: &'static [&'static str],
    settings: &'static [(&'static str, &'static str)],
}

const LINUX: &[&str] = &["evenkeel", "evenkeel-agent", "evenkeel-operator"];

/// All targets of a release.
pub(crate) const TARGETS: [Target; 3] = [
    Target {
        triple: "x86_64-unknown-linux-musl",
        system: "linux",
        architecture: "amd64",
        programs: LINUX,
        compiler: ("musl-gcc", "musl-tools"),
        options: "",
        rust_options: &[],
        settings: &[("CC_x86_64_unknown_linux_musl", "musl-gcc")],
    },
    Target {
        triple: "aarch64-unknown-linux-musl",
        system: "linux",
        architecture: "arm64",
        programs: LINUX,
        compiler: ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
        // The helpers behind outlined atomics are those of another C library.
        options: "-mno-outline-atomics",
        rust_options: &[],
        settings: &[
            ("CC_aarch64_unknown_linux_musl", "aarch64-linux-gnu-gcc"),
            (
                "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER",
                "aarch64-linux-gnu-gcc",
            ),
        ],
    },
    Target {
        triple: "x86_64-pc-windows-gnu",
        system: "windows",
        architecture: "amd64",
        programs: &["evenkeel-agent"],
        compiler: ("x86_64-w64-mingw32-gcc", "mingw-w64"),
        options: "",
        // Or the linker writes the time of day into the program.
        rust_options: &["-Clink-arg=-Wl,--no-insert-timestamp"],
        settings: &[],
    },
];

impl Target {
    /// The file name of one of its programs.
    pub(crate) fn file(&self, program: &str) -> String {
        if self.system == "windows" {
            format!("{program}.exe")
        } else {
            program.to_owned()
        }
    }

    /// What this machine lacks to build for it, with the command that brings it.
    fn check(&self) -> Result<()> {
        let (compiler, package) = self.compiler;
        if Command::new(compiler).arg("--version").output().is_err() {
            bail!(
                "{}: {compiler} is not installed: apt-get install {package}",
                self.triple
            );
        }
        let folder = said(
            "rustc",
            &["--print", "target-libdir", "--target", self.triple],
        )?;
        if !Path::new(&folder).exists() {
            bail!(
                "the Rust target {0} is not installed: rustup target add {0}",
                self.triple
            );
        }
        Ok(())
    }

    /// Builds its programs in `project`, with the `commit` in them, and returns the folder that they are in.
    pub(crate) fn build(&self, project: &Path, profile: &str, commit: &str) -> Result<PathBuf> {
        self.check()?;
        let folder = project.join("target/release-build");
        let places = places(project)?;
        let (cflags, options) = self.compiler_options(&places);
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo
            .current_dir(project)
            .args([
                "build",
                "--locked",
                "--profile",
                profile,
                "--target",
                self.triple,
            ])
            .arg("--target-dir")
            .arg(&folder)
            .arg("--config")
            .arg(self.rust_flags(&places))
            .env("EVENKEEL_COMMIT", commit)
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env(cflags, options)
            .envs(self.settings.iter().copied());
        for program in self.programs {
            cargo.args(["--package", package(program), "--bin", program]);
        }
        let status = cargo.status().context("cannot run cargo")?;
        if !status.success() {
            bail!("the build for {} failed: see above", self.triple);
        }
        let profile = if profile == "dev" { "debug" } else { profile };
        Ok(folder.join(self.triple).join(profile))
    }

    /// A setting for cargo that takes the places of this machine, and the time, out of what Rust compiles.
    fn rust_flags(&self, places: &[(PathBuf, &str)]) -> String {
        let places = places
            .iter()
            .map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()));
        let flags = places.chain(self.rust_options.iter().map(|it| (*it).to_owned()));
        let flags: Vec<_> = flags.map(|it| serde_json::json!(it).to_string()).collect();
        format!("target.{}.rustflags=[{}]", self.triple, flags.join(","))
    }

    /// What the C compiler is told: the same.
    fn compiler_options(&self, places: &[(PathBuf, &str)]) -> (String, String) {
        let places = places
            .iter()
            .map(|(from, to)| format!("-ffile-prefix-map={}={to}", from.display()));
        let options: Vec<_> = std::iter::once(self.options.to_owned())
            .chain(places)
            .collect();
        let name = format!("CFLAGS_{}", self.triple.replace('-', "_"));
        (name, options.join(" "))
    }
}

/// The places of this machine that programs would name, each with what they name instead.
fn places(project: &Path) -> Result<[(PathBuf, &'static str); 2]> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))
        .context("neither CARGO_HOME nor HOME is set")?;
    Ok([(project.to_owned(), "/evenkeel"), (home, "/cargo")])
}

/// The package of a program.
fn package(program: &str) -> &str {
    match program {
        "evenkeel" => "evenkeel-cli",
        other => other,
    }
}

/// What a program prints, without the line's end.
pub(crate) fn said(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        // What time it is does not depend on who asks.
        .env("TZ", "UTC")
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!(
            "{program} {} failed: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
