//! The bundle for OLM, judged by Operator Framework's own validator: what a catalog takes, and what it warns of.

use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::go_module::{GoModule, GoProgram, GoTool};
use crate::need::Need;
use crate::process::{output, words_of};

const VALIDATOR: GoTool = GoTool {
    module: GoModule {
        folder: "operator-verify",
        go_mod: include_str!("../operator-verify/go.mod"),
        go_sum: include_str!("../operator-verify/go.sum"),
        own: &[],
        otherwise: "set OPERATOR_VERIFY to the path of an operator-verify program",
    },
    program: GoProgram {
        name: "operator-verify",
        package: "github.com/operator-framework/api/cmd/operator-verify",
        tags: "",
        takes: "3 minutes",
    },
    version_of: "github.com/operator-framework/api",
    variable: "OPERATOR_VERIFY",
};

/// What a test that judges bundles needs.
pub const NEEDS: &[Need] = &[Need::Made(can_be_had)];

fn can_be_had() -> Result<()> {
    VALIDATOR.can_be_had()
}

/// What the validator says of a bundle.
#[derive(Debug)]
pub struct Verdict {
    /// A catalog takes it.
    pub passed: bool,
    /// All that was said, warnings among it.
    pub words: String,
}

/// Judges the bundle in `folder`.
pub fn lint(folder: &Path) -> Result<Verdict> {
    let mut validator = Command::new(VALIDATOR.find()?);
    let said = output(validator.arg("manifests").arg(folder), &[])?;
    let words = words_of(&said);
    // It ends well whatever it finds.
    let passed = said.status.success() && !words.contains("level=error");
    Ok(Verdict { passed, words })
}
