//! Extended attributes: what is taken away or replaced comes back with those it had, access lists among
//! them, and what is ours has none of them.

use std::collections::BTreeMap;

use evenkeel_host::Error;
use evenkeel_host::disk::{Disk, Host};
use evenkeel_host::execute::Claim;
use evenkeel_plan::machine::attributes::{AttributeValue, Attributes};
use evenkeel_plan::machine::entry::{Entry, Ids};

use crate::configs::{Config, masked};
use crate::machine::{Machine, bring, every_ready_machine, state, tree};

const FILE: &str = "/etc/theirs";
const UNIT: &str = "/etc/systemd/system/theirs.service";
/// `user::rw-, user:4242:rw-, group::r--, mask::rw-, other::---` as the kernel keeps it.
const LIST: &str = "020000000100060\
    0ffffffff0200060092100000040004\
    00ffffffff10000600ffffffff20000000ffffffff";

fn attributes(pairs: &[(&str, Vec<u8>)]) -> Attributes {
    let pairs = pairs.iter();
    let pairs = pairs.map(|(name, value)| ((*name).to_owned(), AttributeValue(value.clone())));
    Attributes(pairs.collect())
}

fn digits(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    pairs.map(byte).collect()
}

/// Runs `promise` on every machine whose files can have such attributes.
fn every_able_machine(promise: impl Fn(&Machine)) {
    every_ready_machine(|machine| {
        machine.file("/var/lib/probe", "", 0o600);
        let some = attributes(&[("user.probe", b"x".to_vec())]);
        machine
            .disk
            .set_attributes("/var/lib/probe", &some)
            .unwrap();
        if machine.disk.attributes("/var/lib/probe").unwrap() != some {
            assert_ne!(machine.name(), "simulated");
            eprintln!("left out: no attributes on the {} machine", machine.name());
            return;
        }
        machine.disk.remove("/var/lib/probe").unwrap();
        promise(machine);
    });
}

/// A stranger's files with an owner, an access list and more.
fn lived_in(machine: &Machine) {
    let owner = if machine.gives_files_away() {
        Ids {
            user: 4242,
            group: 4243,
        }
    } else {
        Ids::default()
    };
    machine.folder("/etc/systemd/system");
    machine.file_of(FILE, "theirs", 0o660, owner);
    machine.file(UNIT, "[Unit]\n", 0o644);
    let more = [
        ("system.posix_acl_access", digits(LIST)),
        ("user.origin", vec![0, 1, 0xff]),
    ];
    for path in [FILE, UNIT] {
        let before = machine.disk.look(path).unwrap();
        let given = attributes(&more);
        machine.disk.set_attributes(path, &given).unwrap();
        assert_eq!(machine.disk.attributes(path).unwrap(), given, "{path}");
        if let (Entry::File { owner, .. }, Entry::File { owner: now, .. }) =
            (before, machine.disk.look(path).unwrap())
        {
            assert_eq!(owner, now);
        }
    }
}

fn ours() -> Config {
    Config::default()
        .file(FILE, "ours", 0o600)
        .unit("theirs.service", masked())
        .file("/etc/new", "new", 0o644)
}

type Hung = BTreeMap<String, Attributes>;

fn hung<D: Disk>(disk: &D) -> Hung {
    let all = tree(disk).into_keys();
    let all = all.map(|path| (path.clone(), disk.attributes(&path).unwrap()));
    all.filter(|(_, it)| *it != Attributes::default()).collect()
}

/// Covers S13.
#[test]
fn what_comes_back_has_its_owner_its_mode_its_access_list_and_its_attributes() {
    every_able_machine(|machine| {
        lived_in(machine);
        let before = (machine.tree(), hung(&machine.disk));
        assert_eq!(before.1.len(), 2);
        machine.bring(&ours()).unwrap();
        // The mode that a configuration gives is all that counts for what is ours.
        assert!(hung(&machine.disk).is_empty(), "{:?}", hung(&machine.disk));
        machine
            .bring(&ours().file("/etc/more", "more", 0o644))
            .unwrap();
        machine.bring(&Config::default()).unwrap();
        assert_eq!((machine.tree(), hung(&machine.disk)), before);
    });
}

/// Covers S13.
#[test]
fn what_an_undone_change_had_replaced_has_its_attributes_again() {
    every_able_machine(|machine| {
        lived_in(machine);
        let before = (machine.tree(), hung(&machine.disk));
        machine.services.refuse_reload_units();
        let error = machine.bring(&ours()).unwrap_err();
        assert!(matches!(error, Error::Undone { .. }), "{error:?}");
        assert_eq!((machine.tree(), hung(&machine.disk)), before);
    });
}

/// Covers S13.
#[test]
fn what_a_folder_hands_down_does_not_stay_on_what_comes_back() {
    every_able_machine(|machine| {
        machine.file("/etc/plain", "theirs", 0o640);
        // From now on whatever is made there has a list for somebody else.
        let down = attributes(&[("system.posix_acl_default", digits(LIST))]);
        machine.disk.set_attributes("/etc", &down).unwrap();
        let before = (machine.tree(), hung(&machine.disk));
        machine
            .bring(&Config::default().file("/etc/plain", "ours", 0o600))
            .unwrap();
        machine.bring(&Config::default()).unwrap();
        assert_eq!((machine.tree(), hung(&machine.disk)), before);
    });
}

/// Covers S13.
#[test]
fn killed_at_any_change_every_attribute_is_there_in_the_end() {
    let machine = Machine::simulated();
    machine.folder("/var/lib");
    lived_in(&machine);
    let before = (machine.tree(), hung(&machine.disk));
    machine.bring(&ours()).unwrap();
    let start = machine.into_simulated().unwrap();
    start.settle();
    let whole = start.snapshot();
    let begun = whole.changes();
    bring(&whole, &Config::default()).unwrap();
    let changes = whole.changes() - begun;
    assert!(changes > 15, "{changes}");
    for after in 0..changes {
        let host = start.snapshot();
        host.stop_after(after);
        _ = bring(&host, &Config::default());
        let host = host.reborn();
        drop(Claim::take(&host, &state()).unwrap());
        bring(&host, &Config::default()).unwrap();
        assert_eq!(
            (tree(host.disk()), hung(host.disk())),
            before,
            "killed after {after}"
        );
    }
}
