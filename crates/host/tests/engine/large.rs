//! A file of any size is replaced, kept and brought back with little memory. The program that does it is
//! this test binary, started again with a word in its environment and with a limit.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use evenkeel_host::disk::Disk;
use evenkeel_plan::machine::entry::{Entry, Hash};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::configs::Config;
use crate::machine::Machine;
use crate::random::is_soak;

const ROOT: &str = "EVENKEEL_TEST_LARGE_ROOT";
const LARGE: &str = "/var/large";
const MIB: u64 = 1 << 20;
/// All that the program may have of its own.
const LIMIT: u64 = 64 * MIB;

fn hash(machine: &Machine) -> Option<Hash> {
    match machine.disk.look(LARGE).unwrap() {
        Entry::File { hash, .. } => Some(hash),
        _ => None,
    }
}

/// What is started again, with little memory. Without a root to work on, it is a test of nothing.
#[test]
fn the_program_with_little_memory() {
    let Some(root) = std::env::var_os(ROOT) else {
        return;
    };
    let limit = Rlimit {
        current: Some(LIMIT),
        maximum: Some(LIMIT),
    };
    setrlimit(Resource::Data, limit).unwrap();
    // The limit holds: as much as it allows is not to be had.
    let mut much: Vec<u8> = Vec::new();
    assert!(
        much.try_reserve_exact(usize::try_from(LIMIT).unwrap())
            .is_err()
    );
    let machine = Machine::linux_at(Path::new(&root));
    let theirs = hash(&machine);
    let ours = Config::default().file(LARGE, "ours", 0o600);
    machine.bring(&ours).unwrap();
    assert_eq!(machine.text(LARGE).as_deref(), Some("ours"));
    let more = ours.file("/var/more", "more", 0o600);
    machine.bring(&more).unwrap();
    machine.bring(&Config::default()).unwrap();
    assert_eq!(hash(&machine), theirs);
}

/// Covers S13.
#[test]
fn a_file_far_larger_than_the_memory_is_replaced_and_comes_back_whole() {
    let size = if is_soak() { 2048 } else { 256 } * MIB;
    let machine = Machine::linux();
    machine.folder("/var/lib");
    machine.file(LARGE, "", 0o640);
    let root = machine.root().unwrap();
    let path = root.join(LARGE.trim_start_matches('/'));
    let mut file = File::options().write(true).open(&path).unwrap();
    file.set_len(size).unwrap();
    // Something at both ends and in the middle, and odd lengths; the rest is a hole.
    for at in [0, size / 2 + 13, size - 5] {
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(b"theirs").unwrap();
    }
    let size = file.metadata().unwrap().len();
    let program = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "large::the_program_with_little_memory"])
        .args(["--nocapture", "--test-threads=1"])
        .env(ROOT, root)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&program.stderr);
    assert!(program.status.success(), "{said}");
    let found = path.metadata().unwrap();
    assert_eq!(found.len(), size);
    let taken = found.blocks() * 512;
    assert!(
        taken < size / 4,
        "a file with holes takes {taken} bytes now"
    );
    println!(
        "proof: {} MiB replaced with {} MiB of memory",
        size / MIB,
        LIMIT / MIB
    );
}

/// Covers S13.
#[test]
fn what_is_too_large_to_be_read_is_said_to_be_so_and_read_by_nobody() {
    let machine = Machine::linux();
    machine.file("/etc/passwd", "", 0o644);
    let path = machine.root().unwrap().join("etc/passwd");
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(2048 * MIB).unwrap();
    let kind = crate::machine::kind(machine.disk.read("/etc/passwd"));
    assert_eq!(kind, std::io::ErrorKind::FileTooLarge);
}
