//! What one boot brings, and what is staged on its way there.

use super::arguments::remaining;
use super::image::is_same_image;
use crate::machine::entry::Entry;
use crate::machine::resource::Resource;
use crate::machine::step::Step;

/// What one boot brings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deployment {
    /// The image, as a configuration would name it; `None` if it came from no image.
    pub image: Option<String>,
    /// The arguments of the kernel, all of them.
    pub arguments: Vec<String>,
}

/// What was seen of an operating system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OsSnapshot {
    /// Nothing can be staged here: why, and what would help.
    Beyond(String),
    /// What runs, and what the next boot brings.
    Deployments {
        /// What runs.
        booted: Deployment,
        /// What the next boot brings; the same again if nothing is staged.
        next: Deployment,
        /// Why no image can be staged, where somebody else does that.
        image_beyond: Option<String>,
        /// Why arguments cannot be staged, where only an image can be.
        arguments_beyond: Option<String>,
    },
}

/// Whether `step` is about the operating system, and not about a path.
pub fn is_about(step: &Step) -> bool {
    matches!(step.resource, Resource::OsImage | Resource::KernelArguments)
}

/// What was `staged` and waits for a boot, now that these `steps` are staged upon it.
///
/// All that is staged of a resource leads to the same end, because any of it may be lost in a power cut
/// or may have been booted by then: from wherever a boot lands, one of the steps leads on.
pub(crate) fn on_its_way(staged: &[Step], steps: &[Step]) -> Vec<Step> {
    let led_on = |step: &Step| {
        let later = steps.iter().find(|it| it.resource == step.resource);
        let after = later.map_or(&step.after, |later| &later.after);
        Step {
            after: after.clone(),
            ..step.clone()
        }
    };
    let staged = staged.iter().map(led_on);
    staged
        .filter(|step| step.before != step.after && !steps.contains(step))
        .collect()
}

/// Whether a machine that runs `booted` has what `step` was to bring.
pub fn has_arrived(step: &Step, booted: &Deployment) -> bool {
    match (&step.before, &step.after) {
        (_, Entry::Image { reference }) => {
            is_same_image(booted.image.as_deref().unwrap_or_default(), reference)
        }
        (Entry::Arguments { arguments: before }, Entry::Arguments { arguments: after }) => {
            remaining(&booted.arguments, before, after).is_empty()
        }
        _ => true,
    }
}
