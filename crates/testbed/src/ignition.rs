//! Ignition's own judgement of configurations, by its own code.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::go_module::{GoModule, GoProgram};
use crate::need::Need;
use crate::scratch::Scratch;
use crate::{Doing, Error, Result, cache, need};

const MODULE: GoModule = GoModule {
    folder: "ignition",
    go_mod: include_str!("../ignition/go.mod"),
    go_sum: include_str!("../ignition/go.sum"),
    own: &[("main.go", include_str!("../ignition/main.go"))],
    otherwise: "run the tests that need no test bed",
};
const PROGRAM: GoProgram = GoProgram {
    name: "ignition-judge",
    package: ".",
    tags: "",
    takes: "ten seconds",
};
const IGNITION: &str = "github.com/coreos/ignition/v2";

/// Its code, at hand or with a compiler for it.
pub const NEED: Need = Need::Made(can_be_had);

fn folder() -> Result<String> {
    Ok(format!(
        "{}/{}",
        MODULE.folder,
        MODULE.version_of(IGNITION)?
    ))
}

fn can_be_had() -> Result<()> {
    let built = cache::folder()?.join(folder()?).join(PROGRAM.name);
    if built.exists() || need::find("go").is_some() {
        return Ok(());
    }
    Err(MODULE.no_compiler(&PROGRAM))
}

fn program() -> Result<PathBuf> {
    MODULE.program(&folder()?, &PROGRAM, "-s -w")
}

/// What Ignition has against each of these configurations; nothing against those that it takes.
pub fn refusals(configs: &[Value]) -> Result<Vec<Vec<String>>> {
    let scratch = Scratch::new("ignition")?;
    let asked = scratch.path().join("asked");
    let mut file = std::fs::File::create(&asked).doing(|| "cannot write configurations")?;
    for config in configs {
        writeln!(file, "{config}").doing(|| "cannot write configurations")?;
    }
    let input = std::fs::File::open(&asked).doing(|| "cannot read configurations")?;
    let said = Command::new(program()?)
        .stdin(Stdio::from(input))
        .output()
        .doing(|| "cannot ask Ignition")?;
    if !said.status.success() {
        let words = String::from_utf8_lossy(&said.stderr);
        return Err(Error::failed(format!("Ignition's code failed: {words}")));
    }
    let said = String::from_utf8_lossy(&said.stdout);
    let judged: Vec<_> = said
        .lines()
        .map(|line| serde_json::from_str(line).doing(|| format!("{line:?} is no judgement")))
        .collect::<Result<_>>()?;
    if judged.len() == configs.len() {
        return Ok(judged);
    }
    Err(Error::failed(format!(
        "Ignition's code judged {} of {} configurations",
        judged.len(),
        configs.len()
    )))
}
