//! What is staged to bring an operating system to what is desired, and what was there before us.

use super::image::is_same_image;
use super::{Deployment, OsSnapshot, edits, present, split};
use crate::machine::ChangeAction;
use crate::machine::desired::Desired;
use crate::machine::entry::Entry;
use crate::machine::problem::MachineProblem;
use crate::machine::record::Record;
use crate::machine::resource::Resource;
use crate::machine::step::Step;
use crate::machine::targets::Part;

/// The way to the desired operating system.
#[derive(Debug, Default)]
pub(crate) struct OsRoute {
    /// What is staged: the image before the arguments, which are staged upon it.
    pub(crate) steps: Vec<Step>,
    /// What changes, with how and why.
    pub(crate) changes: Vec<(Resource, ChangeAction, String)>,
    /// What of it cannot be staged here.
    pub(crate) beyond: Vec<MachineProblem>,
}

/// The way from `seen`, with `record` of what is ours, to `desired`; `after` learns what was there
/// before us.
pub(crate) fn route(
    desired: &Desired,
    snapshot: Option<&OsSnapshot>,
    record: &Record,
    after: &mut Record,
) -> OsRoute {
    if !super::concerns(desired, record) {
        return OsRoute::default();
    }
    let recorded = || Deployment {
        image: Some(record.os_image_url.clone()),
        arguments: split(&record.kernel_arguments),
    };
    let (booted, next, image_beyond, arguments_beyond) = match snapshot {
        Some(OsSnapshot::Deployments {
            booted,
            next,
            image_beyond,
            arguments_beyond,
        }) => (
            booted.clone(),
            next.clone(),
            image_beyond.as_ref(),
            arguments_beyond.as_ref(),
        ),
        Some(OsSnapshot::Beyond(why)) => (recorded(), recorded(), Some(why), Some(why)),
        None => (recorded(), recorded(), None, None),
    };
    let mut route = OsRoute::default();
    route.arguments(desired, (&booted, &next), record, after);
    route.image(desired, (&booted, &next), record, after);
    for (resource, _, how) in &route.changes {
        let why = match resource {
            Resource::OsImage => image_beyond,
            _ => arguments_beyond,
        };
        let problem =
            |why| MachineProblem::new(&resource.to_string(), "", format!("{how}, but {why}"));
        route.beyond.extend(why.map(problem));
    }
    route
}

impl OsRoute {
    fn image(
        &mut self,
        desired: &Desired,
        (booted, next): (&Deployment, &Deployment),
        record: &Record,
        after: &mut Record,
    ) {
        let (declared, ours) = (&desired.os_image_url, &record.os_image_url);
        let wanted = match (declared.is_empty(), ours.is_empty()) {
            (true, true) => return,
            (true, false) => match &record.os_image_before {
                // What was there had no name; it cannot be asked for again.
                None => return,
                Some(before) => before,
            },
            (false, _) => declared,
        };
        if !declared.is_empty() {
            after.os_image_before = if ours.is_empty() {
                next.image.clone()
            } else {
                record.os_image_before.clone()
            };
        }
        // Whoever verifies it, it is the same image, and is called as it is wanted.
        let called = |deployment| match name(deployment) {
            seen if is_same_image(seen, wanted) => wanted.as_str(),
            seen => seen,
        };
        let (is, comes) = (called(booted), called(next));
        if comes != wanted {
            let entry = |reference: &str| Entry::Image {
                reference: reference.to_owned(),
            };
            self.stage(Resource::OsImage, entry(comes), entry(wanted));
        }
        let why = words(is, comes, wanted);
        self.change(Resource::OsImage, (is, declared), why);
    }

    fn arguments(
        &mut self,
        desired: &Desired,
        (booted, next): (&Deployment, &Deployment),
        record: &Record,
        after: &mut Record,
    ) {
        let declared = split(&desired.kernel_arguments);
        let ours = split(&record.kernel_arguments);
        // What we never had is adopted where it is there already.
        let own = if ours.is_empty() { &declared } else { &ours };
        let (is, comes) = (
            present(own, &booted.arguments),
            present(own, &next.arguments),
        );
        let wanted = if declared.is_empty() {
            &record.kernel_arguments_before
        } else {
            &declared
        };
        if !declared.is_empty() {
            after.kernel_arguments_before = if ours.is_empty() {
                comes.clone()
            } else {
                record.kernel_arguments_before.clone()
            };
        }
        if comes != *wanted {
            let to = edits(&comes, wanted).made_to(&next.arguments);
            let entry = |arguments: &[String]| Entry::Arguments {
                arguments: arguments.to_vec(),
            };
            self.stage(
                Resource::KernelArguments,
                entry(&next.arguments),
                entry(&to),
            );
        }
        let (is, comes, wanted) = (is.join(" "), comes.join(" "), wanted.join(" "));
        let why = words(&is, &comes, &wanted);
        self.change(Resource::KernelArguments, (&is, &declared.join(" ")), why);
    }

    fn stage(&mut self, resource: Resource, before: Entry, after: Entry) {
        let step = Step {
            resource,
            part: Part::Whole,
            path: String::new(),
            before,
            after,
        };
        // The image comes first: arguments are staged upon it.
        self.steps.insert(0, step);
    }

    fn change(&mut self, resource: Resource, (is, declared): (&str, &str), why: Option<String>) {
        let action = match (is.is_empty(), declared.is_empty()) {
            (_, true) => ChangeAction::Delete,
            (true, _) => ChangeAction::Create,
            _ => ChangeAction::Update,
        };
        self.changes.extend(why.map(|why| (resource, action, why)));
    }
}

fn name(deployment: &Deployment) -> &str {
    deployment.image.as_deref().unwrap_or_default()
}

/// Why what is booted and what comes next is not what is wanted; nothing if it is.
fn words(is: &str, comes: &str, wanted: &str) -> Option<String> {
    let shown = |text: &str| match text {
        "" => "none".to_owned(),
        text => text.to_owned(),
    };
    match (is == wanted, comes == wanted) {
        (true, true) => None,
        (true, false) => Some(format!(
            "is {}, but the next boot brings {}",
            shown(is),
            shown(comes)
        )),
        (false, true) => Some(format!(
            "is {}, should be {}, which the next boot brings",
            shown(is),
            shown(wanted)
        )),
        (false, false) => Some(format!("is {}, should be {}", shown(is), shown(wanted))),
    }
}
