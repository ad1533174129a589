//! `evenkeel watch`: reports drift as it happens, or repairs it.

use anyhow::Result;

use crate::Ending;
use crate::arguments::WatchArguments;

pub(crate) fn run(_arguments: &WatchArguments) -> Result<Ending> {
    anyhow::bail!("not yet")
}
