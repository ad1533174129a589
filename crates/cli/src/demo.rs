//! `evenkeel demo`

use anyhow::Result;

use crate::Ending;

pub(crate) fn run() -> Result<Ending> {
    anyhow::bail!("not yet")
}
