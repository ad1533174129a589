//! The operating system of a machine: the image it boots and the arguments of its kernel. Both are
//! staged now and count after a boot, so there are always two deployments to look at: the one that
//! runs, and the one that the next boot brings.

mod arguments;
pub(crate) mod deployment;
mod image;
mod route;
#[cfg(test)]
mod tests;

pub use arguments::{Edits, edits, missing, present, remaining, split};
pub(crate) use deployment::on_its_way;
pub use deployment::{Deployment, OsSnapshot, has_arrived, is_about};
pub use image::{Verification, is_same_image, plain};
pub(crate) use route::route;

use crate::machine::desired::Desired;
use crate::machine::entry::Entry;
use crate::machine::record::Record;
use crate::machine::resource::Resource;

/// Whether `desired` or what is ours by `record` says anything of the operating system, so that it
/// must be looked at.
pub fn concerns(desired: &Desired, record: &Record) -> bool {
    let any = |image: &str, arguments: &[String]| !image.is_empty() || !arguments.is_empty();
    any(&desired.os_image_url, &desired.kernel_arguments) || record.concerns_os()
}

/// What of the operating system is not as `record` says on a machine that runs `booted`, in words.
pub fn differences(record: &Record, booted: &Deployment) -> Vec<String> {
    let mut words = Vec::new();
    let image = &record.os_image_url;
    let seen = booted.image.as_deref();
    if !image.is_empty() && !seen.is_some_and(|it| is_same_image(it, image)) {
        let booted = seen.unwrap_or("no image");
        words.push(format!(
            "{}: {booted} is booted, should be {image}",
            Resource::OsImage
        ));
    }
    let declared = split(&record.kernel_arguments);
    let gone = missing(&declared, &booted.arguments);
    if !gone.is_empty() {
        words.push(format!(
            "{}: booted without {}",
            Resource::KernelArguments,
            gone.join(" ")
        ));
    }
    // What was to go is not in the record any more, only in the steps that were to take it away.
    let left: Vec<String> = record
        .staged
        .iter()
        .filter_map(|step| match (&step.before, &step.after) {
            (Entry::Arguments { arguments: before }, Entry::Arguments { arguments: after }) => {
                Some(remaining(&booted.arguments, before, after).delete)
            }
            _ => None,
        })
        .flatten()
        .collect();
    if !left.is_empty() {
        words.push(format!(
            "{}: booted with {}, which should be gone",
            Resource::KernelArguments,
            left.join(" ")
        ));
    }
    words
}
