//! Extended attributes of a path: access lists, capabilities and whatever else hangs on it.

use evenkeel_plan::machine::attributes::{AttributeValue, Attributes};
use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// The kernel gives no longer list of names and no larger value.
const MOST: usize = 64 << 10;

/// The attribute that holds the SELinux label.
pub(super) const LABEL: &str = "security.selinux";
/// The label is looked after apart, and the kernel makes these by itself from what it protects.
const NOT_OURS: [&str; 3] = [LABEL, "security.ima", "security.evm"];

/// All that hang on what stands at `path`.
pub(super) fn read(path: &str) -> rustix::io::Result<Attributes> {
    let mut names = vec![0; MOST];
    let length = rustix::fs::llistxattr(path, names.as_mut_slice())?;
    let names = names.get(..length).unwrap_or_default();
    let mut attributes = Attributes::default();
    for name in names.split(|byte| *byte == 0) {
        let Ok(name) = std::str::from_utf8(name) else {
            continue;
        };
        if name.is_empty() || NOT_OURS.contains(&name) {
            continue;
        }
        let mut value = vec![0; MOST];
        match rustix::fs::lgetxattr(path, name, value.as_mut_slice()) {
            Ok(length) => value.truncate(length),
            // Gone meanwhile, or listed and not for us to read.
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => continue,
            Err(error) => return Err(error),
        }
        value.shrink_to_fit();
        let value = AttributeValue(value);
        attributes.0.insert(name.to_owned(), value);
    }
    Ok(attributes)
}

/// Hangs `wanted` and nothing else on what stands at `path`.
pub(super) fn write(path: &str, wanted: &Attributes) -> rustix::io::Result<()> {
    let standing = read(path).or_else(|error| match error {
        Errno::OPNOTSUPP => Ok(Attributes::default()),
        error => Err(error),
    })?;
    let stays = |name: &String| wanted.0.contains_key(name);
    for name in standing.0.keys().filter(|name| !stays(name)) {
        is_possible(rustix::fs::lremovexattr(path, name.as_str()))?;
    }
    let new = |(name, value): &(&String, &AttributeValue)| standing.0.get(*name) != Some(value);
    for (name, value) in wanted.0.iter().filter(new) {
        let flags = XattrFlags::empty();
        is_possible(rustix::fs::lsetxattr(path, name.as_str(), &value.0, flags))?;
    }
    Ok(())
}

/// What this file system does not have, or what is not ours to give, is left out, as labels are.
fn is_possible(done: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match done {
        Err(Errno::OPNOTSUPP | Errno::PERM | Errno::NODATA) => Ok(()),
        done => done,
    }
}
