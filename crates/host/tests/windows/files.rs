//! Files: replaced in one instant, also programs that run; and one program of ours at a time.

use evenkeel_host::Error;
use evenkeel_host::disk::{Disk, Folder, Host};
use evenkeel_host::execute::{Claim, State};
use evenkeel_host::windows::{WindowsHost, about};
use evenkeel_plan::machine::entry::{Activity, Entry, Hash, Ids};

use crate::machine::{Machine, PROGRAM, declared};

fn file(contents: &[u8]) -> Entry {
    Entry::File {
        hash: Hash::of(contents),
        mode: 0,
        owner: Ids::default(),
    }
}

#[test]
fn what_was_made_is_seen_and_what_is_removed_is_gone() {
    let host = WindowsHost::live();
    let disk = host.disk();
    let base = "c:/k/files";
    _ = std::fs::remove_dir_all(base);
    assert_eq!(disk.folder("c:").unwrap(), Folder::There);
    assert_eq!(disk.folder(base).unwrap(), Folder::Missing);
    disk.make_folder(base, 0o700, Ids::default()).unwrap();
    assert_eq!(disk.folder(base).unwrap(), Folder::There);
    let (one, two) = (format!("{base}/one"), format!("{base}/two"));
    assert_eq!(disk.look(&one).unwrap(), Entry::Absent);
    disk.create(&one, b"1", 0o600, Ids::default()).unwrap();
    disk.create(&two, b"2", 0o600, Ids::default()).unwrap();
    assert!(disk.create(&one, b"x", 0o600, Ids::default()).is_err());
    disk.sync_files(&[one.clone(), two.clone()]).unwrap();
    assert_eq!(disk.look(&one).unwrap(), file(b"1"));
    assert_eq!(disk.list(base).unwrap(), ["one", "two"]);
    disk.rename(&one, &two).unwrap();
    disk.sync_folder(base).unwrap();
    assert_eq!(disk.read(&two).unwrap().unwrap(), b"1");
    assert_eq!(disk.read(&one).unwrap(), None);
    assert!(!disk.remove_folder(base).unwrap());
    disk.remove(&two).unwrap();
    disk.remove(&two).unwrap();
    assert!(disk.remove_folder(base).unwrap());
    assert!(disk.sync_folder(base).is_err());
}

#[test]
fn a_program_that_runs_is_replaced_and_runs_on() {
    let machine = Machine::without(&["ek-replaced"]);
    let disk = machine.host.disk();
    let program = "c:/k/replaced.exe";
    std::fs::copy(PROGRAM, program).unwrap();
    let mut entry = declared("ek-replaced", "");
    entry.command = r"C:\k\replaced.exe".to_owned();
    machine.put("ek-replaced", &Entry::Service(entry));
    assert_eq!(machine.activity("ek-replaced"), Activity::Running);
    disk.create("c:/k/new", b"new", 0, Ids::default()).unwrap();
    disk.rename("c:/k/new", program).unwrap();
    assert_eq!(disk.look(program).unwrap(), file(b"new"));
    assert_eq!(machine.activity("ek-replaced"), Activity::Running);
    machine.host.stop("ek-replaced").unwrap();
    // The next write takes what was put aside with it.
    disk.create("c:/k/new", b"newer", 0, Ids::default())
        .unwrap();
    disk.rename("c:/k/new", program).unwrap();
    let left = disk.list("c:/k").unwrap();
    assert!(!left.iter().any(|name| name.contains(".aside")), "{left:?}");
    disk.remove(program).unwrap();
}

#[test]
fn a_machine_has_one_claimant_at_a_time() {
    let host = WindowsHost::live();
    let path = "c:/k/claim";
    let lock = host.disk().lock(path).unwrap();
    assert!(matches!(host.disk().lock(path), Err(Error::Busy { .. })));
    drop(lock);
    host.disk().lock(path).unwrap();
}

#[test]
fn a_machine_knows_its_boot_its_name_and_its_addresses() {
    let host = WindowsHost::live();
    let boot = host.boot_id().unwrap();
    assert_eq!(WindowsHost::live().boot_id().unwrap(), boot);
    assert!(!boot.0.is_empty());
    assert_eq!(
        about::computer_name().unwrap(),
        std::env::var("COMPUTERNAME").unwrap()
    );
    let expected = std::env::var("EVENKEEL_TEST_ADDRESS").unwrap();
    let addresses = about::addresses().unwrap();
    assert!(
        addresses.contains(&expected.parse().unwrap()),
        "{addresses:?}"
    );
}

/// Covers S12.
#[test]
fn a_machine_of_a_newer_program_is_refused_and_not_touched() {
    let host = WindowsHost::live();
    let base = "c:/k/newer";
    _ = std::fs::remove_dir_all(base);
    std::fs::create_dir_all(base).unwrap();
    let record = br#"{"version": 99, "owned": {}}"#;
    std::fs::write(format!("{base}/record"), record).unwrap();
    let state = State::at(base);
    let error = Claim::take(&host, &state).map(|_| ()).unwrap_err();
    assert_eq!(error.category(), "NewerRecord");
    assert_eq!(host.disk().list(base).unwrap(), ["record"]);
    let found = host.disk().read(&format!("{base}/record")).unwrap();
    assert_eq!(found.as_deref(), Some(&record[..]));
    std::fs::remove_dir_all(base).unwrap();
}
