//! Helm, which renders the chart that we ship: found, or made from its pinned source.

use crate::Result;
use crate::go_module::{GoModule, GoProgram, GoTool};
use crate::need::Need;

pub(crate) const HELM: GoTool = GoTool {
    module: GoModule {
        folder: "helm",
        go_mod: include_str!("../helm/go.mod"),
        go_sum: include_str!("../helm/go.sum"),
        own: &[],
        otherwise: "set HELM to the path of a helm program",
    },
    program: GoProgram {
        name: "helm",
        package: "helm.sh/helm/v4/cmd/helm",
        tags: "",
        takes: "3 minutes",
    },
    version_of: "helm.sh/helm/v4",
    variable: "HELM",
};

/// Helm, at hand or with a compiler that makes it.
pub(crate) const NEED: Need = Need::Made(can_be_had);

fn can_be_had() -> Result<()> {
    HELM.can_be_had()
}
