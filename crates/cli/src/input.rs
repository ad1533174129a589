//! Reads the files that people name: one, several, a folder, or standard input.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use evenkeel_api::document::{self, Document};
use evenkeel_api::machine::fragment::Fragment;
use evenkeel_api::machine::machine_config::MachineConfig;
use evenkeel_api::windows::services::Services;
use evenkeel_api::{Problems, Warning};
use evenkeel_plan::fleet::render;

/// One file's bytes and the name by which people know it.
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// Everything that `files` name, with the files of directories in the order of their names.
pub(crate) fn sources(files: &[PathBuf]) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for file in files {
        if file == Path::new("-") {
            let name = "standard input".to_owned();
            sources.push(Source::of(name, std::io::stdin().lock())?);
        } else if file.is_dir() {
            let inside = folder(file)?;
            if inside.is_empty() {
                bail!(
                    "directory {} has no .yaml, .yml, .json or .ign file",
                    file.display()
                );
            }
            for file in inside {
                sources.push(read(&file)?);
            }
        } else {
            sources.push(read(file)?);
        }
    }
    Ok(sources)
}

impl Source {
    /// As much of it as may be, and a byte more.
    fn of(name: String, from: impl Read) -> Result<Self> {
        let mut bytes = Vec::new();
        let read = from
            .take(document::MAX_BYTES as u64 + 1)
            .read_to_end(&mut bytes);
        read.with_context(|| format!("cannot read {name}"))?;
        Ok(Self { name, bytes })
    }
}

fn read(file: &Path) -> Result<Source> {
    let name = file.display().to_string();
    let open = std::fs::File::open(file).with_context(|| format!("cannot read {name}"))?;
    Source::of(name, open)
}

fn folder(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = || format!("cannot list {}", folder.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        let known = path.extension().is_some_and(|ending| {
            ["yaml", "yml", "json", "ign"]
                .iter()
                .any(|known| ending.eq_ignore_ascii_case(known))
        });
        if known && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// What one source says.
pub(crate) fn documents(source: &Source) -> Result<(Vec<Document>, Vec<Warning>), Problems> {
    document::read(&source.name, &source.bytes)
}

/// The configuration of a machine, of either kind.
pub(crate) enum Configuration {
    /// For a Linux machine.
    Machine(MachineConfig),
    /// For a Windows machine.
    Services(Services),
}

/// The configuration that `files` hold; several machine configurations are merged. Warnings are
/// printed, problems are all told.
pub(crate) fn configuration(files: &[PathBuf]) -> Result<Configuration> {
    let mut machines: Vec<MachineConfig> = Vec::new();
    let mut services: Vec<Services> = Vec::new();
    let mut problems: Vec<String> = Vec::new();
    let sources = sources(files)?;
    for source in &sources {
        match documents(source) {
            Err(wrong) => problems.extend(wrong.iter().map(ToString::to_string)),
            Ok((documents, warnings)) => {
                crate::output::warn(warnings.iter());
                for document in documents {
                    match document {
                        Document::MachineConfig(config) => machines.push(config),
                        Document::Services { services: one, .. } => services.push(one),
                        other => problems.push(format!(
                            "{}: found a {}: give a MachineConfig, an Ignition config or a services ConfigMap",
                            source.name,
                            other.kind()
                        )),
                    }
                }
            }
        }
    }
    if !problems.is_empty() {
        bail!(
            "the configuration is invalid; nothing was changed\n  {}",
            problems.join("\n  ")
        );
    }
    match (machines.len(), services.pop()) {
        (0, None) => bail!("the given files have no machine configuration"),
        (0, Some(only)) if services.is_empty() => Ok(Configuration::Services(only)),
        (_, Some(_)) => bail!(
            "a services ConfigMap cannot be combined with other configurations: give exactly one"
        ),
        (1, None) => machines
            .pop()
            .map(Configuration::Machine)
            .context("the given files have no machine configuration"),
        (_, None) => Ok(Configuration::Machine(render::merge(fragments(&sources)?)?)),
    }
}

/// The machine configurations in `sources` as they are written, each with the name of its source.
fn fragments(sources: &[Source]) -> Result<Vec<(String, Fragment)>> {
    let mut all = Vec::new();
    for source in sources {
        let found = document::fragments(&source.name, &source.bytes)?;
        all.extend(found.into_iter().map(|it| (source.name.clone(), it)));
    }
    Ok(all)
}

/// The configuration of a Linux machine that `files` hold.
pub(crate) fn machine_config(files: &[PathBuf]) -> Result<MachineConfig> {
    match configuration(files)? {
        Configuration::Machine(config) => Ok(config),
        Configuration::Services(_) => bail!(
            "a services ConfigMap is for Windows machines: you can only compare it with another one, \
             with `evenkeel plan -f NEW --from OLD`"
        ),
    }
}
