//! `evenkeel render`: the one rendered configuration that the given files stand for.

use anyhow::Result;
use evenkeel_plan::fleet::render;

use crate::arguments::{Format, RenderArguments};
use crate::{Ending, input, output};

pub(crate) fn run(arguments: &RenderArguments) -> Result<Ending> {
    let mut config = input::machine_config(&arguments.configuration.files)?;
    if config.name.is_none() {
        config.name = Some(render::name(&arguments.pool, &config));
    }
    let text = match arguments.format {
        Format::Json => output::document(&config.to_document(), Format::Json)?,
        Format::Text | Format::Yaml => config.to_yaml(),
    };
    output::print(text.as_bytes())?;
    Ok(Ending::Well)
}
