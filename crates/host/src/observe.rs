//! Looks at a machine: the facts that name its paths, and what stands at those paths. Read only.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;

use evenkeel_plan::machine::desired::{Contents, Desired};
use evenkeel_plan::machine::disruption::rules;
use evenkeel_plan::machine::entry::Entry;
use evenkeel_plan::machine::os;
use evenkeel_plan::machine::problem::Refused;
use evenkeel_plan::machine::record::Record;
use evenkeel_plan::machine::targets::{Facts, Part, Targets, targets};
use evenkeel_plan::machine::units::{
    Install, Preset, UNIT_FOLDER, UnitFacts, Vendor, install, preset,
};
use evenkeel_plan::machine::{self, MachineSnapshot, Plan, above, interest};

use crate::disk::{Disk, Folder, Host};
use crate::execute::State;
use crate::{Error, Result, accounts, provision, verify};

/// Contents above this are compared by hash and never shown.
const LARGEST_SHOWN: usize = 1 << 20;

/// Folders of units that the operating system brings, the strongest first.
const VENDOR_FOLDERS: &[&str] = &[
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
const PRESET_FOLDERS: &[&str] = &[
    "/etc/systemd/system-preset",
    "/run/systemd/system-preset",
    "/usr/local/lib/systemd/system-preset",
    "/usr/lib/systemd/system-preset",
    "/lib/systemd/system-preset",
];

/// What would bring the machine as it is now to `desired`, whose bytes are in `contents`.
///
/// Nothing is claimed: whoever carries the plan out claims the machine first, so that a run which
/// was left in the middle is at its end before anybody looks.
pub fn plan<H: Host>(
    host: &H,
    state: &State,
    desired: &Desired,
    contents: &Contents,
) -> Result<Plan> {
    compare(host, state, desired, contents).map(|(plan, _)| plan)
}

/// The same, with what was seen: whoever shows the plan wants the old contents too.
pub fn compare<H: Host>(
    host: &H,
    state: &State,
    desired: &Desired,
    contents: &Contents,
) -> Result<(Plan, MachineSnapshot)> {
    let record = provision::record(host, state)?;
    let facts = facts(host, state, desired, &record)?;
    let targets = targets(desired, &facts).map_err(Refused)?;
    let mut seen = look(host.disk(), &targets, &record, contents)?;
    if os::concerns(desired, &record) {
        seen.os = Some(host.os()?);
    }
    let plan = machine::plan(desired, &targets, contents, &seen, &record)?;
    Ok((plan, seen))
}

/// What must stand where on this machine for it to be at `desired`.
pub fn targets_of<H: Host>(host: &H, state: &State, desired: &Desired) -> Result<Targets> {
    let record = state.record(host)?;
    let facts = facts(host, state, desired, &record)?;
    Ok(targets(desired, &facts).map_err(Refused)?)
}

/// What must be known before the paths of `desired` can be named.
///
/// What is ours by `record` does not count as the machine's own: it would vouch for itself.
pub fn facts<H: Host>(
    host: &H,
    state: &State,
    desired: &Desired,
    record: &Record,
) -> Result<Facts> {
    let disk = host.disk();
    let links = if desired.units.is_empty() {
        BTreeMap::new()
    } else {
        enabling_links(disk, record)?
    };
    let presets = if desired.units.is_empty() {
        Vec::new()
    } else {
        preset_files(disk)?
    };
    let mut facts = Facts {
        names: accounts::names(host, desired)?,
        ..Facts::default()
    };
    if desired.ssh_keys.is_some() {
        facts.keys = Some(accounts::keys_file(host)?);
    }
    let mut waiting: Vec<String> = desired.units.keys().cloned().collect();
    while let Some(name) = waiting.pop() {
        if facts.units.contains_key(&name) {
            continue;
        }
        let vendor = vendor(host, state, record, &name)?;
        let ours = desired.units.get(&name).map(|unit| &unit.install);
        let theirs = vendor.as_ref().map(|vendor| &vendor.install);
        let installs = ours.into_iter().chain(theirs);
        waiting.extend(installs.flat_map(Install::also).cloned());
        let enabled = preset::enables(presets.iter().map(String::as_str), &name);
        let unit = UnitFacts {
            vendor,
            preset: if enabled {
                Preset::Enable
            } else {
                Preset::Disable
            },
            links: links.get(&name).cloned().unwrap_or_default(),
        };
        facts.units.insert(name, unit);
    }
    Ok(facts)
}

/// What stands at every path that matters for going from `record` to `targets`.
///
/// Where `contents` has what should be in a file it is compared, which is quicker than hashing.
pub fn look<D: Disk>(
    disk: &D,
    targets: &Targets,
    record: &Record,
    contents: &Contents,
) -> Result<MachineSnapshot> {
    let mut seen = MachineSnapshot::default();
    let mut folders: BTreeSet<&str> = BTreeSet::new();
    for path in interest(targets, record) {
        let target = targets.get(path);
        let entry = match target {
            Some(target) => verify::look(disk, path, target, contents)?,
            None => disk.look(path)?,
        };
        if target.map(|target| &target.entry) != Some(&entry) {
            let judged = target.is_some_and(|target| rules::looks_at_contents(&target.resource));
            keep_contents(disk, path, judged, &mut seen.contents)?;
        }
        seen.paths.insert(path.to_owned(), entry);
        folders.extend(above(path));
    }
    for folder in folders {
        match disk.folder(folder)? {
            Folder::There => _ = seen.folders.insert(folder.to_owned()),
            Folder::Blocked(why) => _ = seen.blocked.insert(folder.to_owned(), why),
            Folder::Missing => {}
        }
    }
    Ok(seen)
}

fn keep_contents<D: Disk>(
    disk: &D,
    path: &str,
    judged: bool,
    contents: &mut Contents,
) -> Result<()> {
    let read = if judged {
        disk.read(path)
    } else {
        disk.read_up_to(path, LARGEST_SHOWN)
    };
    match read {
        // Nobody is shown so much.
        Err(Error::Path { source, .. }) if !judged && source.kind() == ErrorKind::FileTooLarge => {}
        read => _ = read?.map(|bytes| contents.keep(bytes)),
    }
    Ok(())
}

fn vendor<H: Host>(host: &H, state: &State, record: &Record, name: &str) -> Result<Option<Vendor>> {
    let found = |path: String, text: &[u8]| {
        let install = Install::read([String::from_utf8_lossy(text).as_ref()]);
        Ok(Some(Vendor { path, install }))
    };
    let names = std::iter::once(name.to_owned()).chain(install::template_of(name));
    for name in names {
        for folder in VENDOR_FOLDERS {
            let path = format!("{folder}/{name}");
            if let Some(text) = host.disk().read(&path)? {
                return found(path, &text);
            }
        }
        // Also a unit that somebody else put into the administrator's folder, even if ours stands
        // in its place for now.
        let path = format!("{UNIT_FOLDER}/{name}");
        match record.owned.get(&path).map(|owned| owned.before.hash()) {
            None => {
                if let Some(text) = host.disk().read(&path)? {
                    return found(path, &text);
                }
            }
            Some(Some(hash)) => return found(path, &state.contents(host, hash)?),
            Some(None) => {}
        }
    }
    Ok(None)
}

/// Links below the administrator's folder by the unit that they enable: path → target. A link that
/// we took away counts too: it comes back when its path is no longer ours.
fn enabling_links<D: Disk>(
    disk: &D,
    record: &Record,
) -> Result<BTreeMap<String, BTreeMap<String, String>>> {
    let mut links: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let mut note = |path: String, target: String| {
        if let Some(unit) = enabled_by(&path, &target) {
            links.entry(unit).or_default().insert(path, target);
        }
    };
    for (path, owned) in &record.owned {
        if let (Part::Enablement, Entry::Absent, Entry::Link { target }) =
            (&owned.part, &owned.entry, &owned.before)
        {
            note(path.clone(), target.clone());
        }
    }
    for name in disk.list(UNIT_FOLDER)? {
        let path = format!("{UNIT_FOLDER}/{name}");
        if is_requirement(&name) {
            for unit in disk.list(&path)? {
                let link = format!("{path}/{unit}");
                if let Entry::Link { target } = disk.look(&link)? {
                    note(link, target);
                }
            }
        } else if let Entry::Link { target } = disk.look(&path)? {
            note(path, target);
        }
    }
    Ok(links)
}

fn is_requirement(folder: &str) -> bool {
    [".wants", ".requires", ".upholds"]
        .iter()
        .any(|ending| folder.ends_with(ending))
}

/// The unit that the link at `path` to `target` enables: by its own name in a folder of
/// requirements, and under another name as an alias. A mask enables nothing.
fn enabled_by(path: &str, target: &str) -> Option<String> {
    let (folder, name) = path.rsplit_once('/')?;
    if is_requirement(folder) {
        return Some(name.to_owned());
    }
    let unit = target.rsplit('/').next()?;
    (target != "/dev/null" && unit != name).then(|| unit.to_owned())
}

/// The preset files in the order in which systemd reads them: by name, the strongest folder's file
/// standing for all of that name.
fn preset_files<D: Disk>(disk: &D) -> Result<Vec<String>> {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for folder in PRESET_FOLDERS {
        for name in disk.list(folder)? {
            if name.as_bytes().ends_with(b".preset") {
                files
                    .entry(name.clone())
                    .or_insert_with(|| format!("{folder}/{name}"));
            }
        }
    }
    let mut texts = Vec::with_capacity(files.len());
    for path in files.values() {
        if let Some(text) = disk.read(path)? {
            texts.push(String::from_utf8_lossy(&text).into_owned());
        }
    }
    Ok(texts)
}
