//! How the operating system goes from one entry to another: by what the next boot brings, and twice as
//! well as once, also when a boot lies in between.

use evenkeel_plan::machine::entry::Entry;
use evenkeel_plan::machine::os::{Deployment, OsSnapshot, is_same_image, remaining};
use evenkeel_plan::machine::step::Step;

use crate::disk::Host;
use crate::{Error, Result};

/// Makes the next boot bring `entry`, one of the two of `step`. What it brings already is not touched,
/// and what runs now is not staged: then nothing is.
pub(crate) fn put<H: Host>(host: &H, step: &Step, entry: &Entry) -> Result<()> {
    let (booted, next) = match host.os()? {
        OsSnapshot::Deployments { booted, next, .. } => (booted, next),
        OsSnapshot::Beyond(why) => {
            return Err(Error::os(format!("stage the {}", step.resource), why));
        }
    };
    match entry {
        Entry::Image { reference } => {
            if is_same_image(named(&next), reference) {
                return Ok(());
            }
            if is_same_image(named(&booted), reference)
                && is_alike(&booted.arguments, &next.arguments)
            {
                return host.unstage();
            }
            if reference.is_empty() {
                let why = "the previous OS did not come from an image: choose it in the boot menu, \
                           or provision the machine again";
                return Err(Error::os("go back to the previous OS image", why));
            }
            host.stage_image(reference)
        }
        Entry::Arguments { arguments } => {
            let (Entry::Arguments { arguments: before }, Entry::Arguments { arguments: after }) =
                (&step.before, &step.after)
            else {
                return Ok(());
            };
            let from = if entry == &step.after { before } else { after };
            let edits = remaining(&next.arguments, from, arguments);
            if edits.is_empty() {
                return Ok(());
            }
            let then = edits.made_to(&next.arguments);
            if booted.image == next.image && is_alike(&booted.arguments, &then) {
                return host.unstage();
            }
            host.stage_arguments(&edits)
        }
        _ => Ok(()),
    }
}

fn named(deployment: &Deployment) -> &str {
    deployment.image.as_deref().unwrap_or_default()
}

/// The same arguments, in whatever order.
fn is_alike(one: &[String], other: &[String]) -> bool {
    let sorted = |arguments: &[String]| {
        let mut arguments = arguments.to_vec();
        arguments.sort();
        arguments
    };
    sorted(one) == sorted(other)
}
