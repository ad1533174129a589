//! A real program on a real file system, killed with SIGKILL: before every change that it makes, and
//! at random instants. After the next start the tree is exactly the old or exactly the new one.
//!
//! The program is this test binary, started again with a word in its environment.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use evenkeel_host::disk::Disk;
use evenkeel_host::execute::Claim;
use evenkeel_plan::machine::step::Step;

use crate::configs::{Config, enabled, live_on, masked, our_unit};
use crate::machine::{Machine, Tree, state};
use crate::random::{Chance, is_soak, seed};

const ROOT: &str = "EVENKEEL_TEST_ROOT";
const KILL_BEFORE: &str = "EVENKEEL_TEST_KILL_BEFORE";
const READY: &str = "ready to be killed";

fn old() -> Config {
    let mut config = Config::default()
        .file("/etc/theirs.conf", "ours, first\n", 0o600)
        .file("/etc/app", "one file\n", 0o644)
        .file("/opt/gone/deep/file", "goes\n", 0o644)
        .unit("vendor.service", enabled(true))
        .unit("started.service", enabled(false))
        .unit("admin.service", masked());
    for number in 0..8 {
        config = config.file(&format!("/etc/many/{number}"), "old\n", 0o644);
    }
    config
}

pub(crate) fn new() -> Config {
    let mut config = Config::default()
        .file("/etc/theirs.conf", "ours, second\n", 0o4755)
        .file("/etc/app/now/a/folder", "below\n", 0o600)
        .file("/srv/new/file", "comes\n", 0o644)
        .unit("ours.service", our_unit("/bin/true"))
        .unit("started.service", enabled(true))
        .keys(&["ssh-ed25519 AAAA"]);
    for number in 0..8 {
        config = config.file(
            &format!("/etc/many/{number}"),
            "new\n".repeat(2000).as_str(),
            0o640,
        );
    }
    config
}

/// What is started again and killed. Without a root to work on, it is a test of nothing.
#[test]
fn the_program_that_is_killed() {
    let Some(root) = std::env::var_os(ROOT) else {
        return;
    };
    let mut machine = Machine::linux_at(Path::new(&root));
    let kill_before = std::env::var(KILL_BEFORE)
        .ok()
        .and_then(|text| text.parse::<usize>().ok());
    let changes = Cell::new(0);
    machine.disk.before_change = Some(Box::new(move || {
        if kill_before == Some(changes.get()) {
            let us = rustix::process::getpid();
            rustix::process::kill_process(us, rustix::process::Signal::KILL).unwrap();
        }
        changes.set(changes.get() + 1);
    }));
    println!("\n{READY}");
    machine.bring(&new()).unwrap();
}

fn start(root: &Path, kill_before: Option<usize>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "real_kills::the_program_that_is_killed"])
        .args(["--nocapture", "--test-threads=1"])
        .env(ROOT, root)
        .env_remove(KILL_BEFORE)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if let Some(changes) = kill_before {
        command.env(KILL_BEFORE, changes.to_string());
    }
    command.spawn().unwrap()
}

/// Waits until the program is about to begin.
fn is_ready(program: &mut Child) {
    let lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line == READY), "it never began");
}

/// The tree that every program starts from, and its two ends.
pub(crate) struct Journey {
    pub(crate) start: Machine,
    pub(crate) ends: [(Config, Tree); 2],
    /// How many changes the way takes.
    pub(crate) changes: usize,
    pub(crate) kinds: Vec<&'static str>,
    /// Before each change, what is under way.
    pub(crate) under_way: Vec<&'static str>,
    /// What was under way when a program was killed, and how often.
    hit: BTreeMap<&'static str, usize>,
    /// How often the next start had to go on.
    resumed: usize,
}

impl Journey {
    pub(crate) fn new() -> Self {
        let start = Machine::linux();
        live_on(&start);
        start.bring(&old()).unwrap();
        let copy = copied(&start);
        let mut end = Machine::linux_at(copy.path());
        let steps = end.plan(&new()).unwrap().steps;
        let kinds = steps.iter().map(Step::kind).collect();
        let under_way = Rc::new(RefCell::new(Vec::new()));
        let (noted, looker) = (Rc::clone(&under_way), Machine::linux_at(copy.path()));
        end.disk.before_change = Some(Box::new(move || {
            noted.borrow_mut().push(under_way_on(&looker));
        }));
        end.bring(&new()).unwrap();
        let under_way = under_way.take();
        Self {
            ends: [(old(), start.tree()), (new(), end.tree())],
            changes: under_way.len(),
            under_way,
            kinds,
            start,
            hit: BTreeMap::new(),
            resumed: 0,
        }
    }

    /// What a killed program left behind is finished by the next start.
    fn ends_well(&mut self, root: &Path, what: &str) {
        let machine = Machine::linux_at(root);
        *self.hit.entry(under_way_on(&machine)).or_default() += 1;
        let state = state();
        let claim = Claim::take(&machine, &state).unwrap();
        self.resumed += usize::from(claim.resumed().is_some());
        drop(claim);
        let tree = machine.tree();
        let end = self.ends.iter().find(|(_, expected)| *expected == tree);
        let Some((config, _)) = end else {
            panic!("{what}: a mixture: {tree:#?}");
        };
        assert_eq!(machine.plan(config).unwrap().steps, [], "{what}");
    }

    fn has_hit_every_kind(&self) {
        for kind in &self.kinds {
            assert!(
                self.hit.contains_key(kind),
                "{kind} was never hit: {:?}",
                self.hit
            );
        }
    }
}

/// What a machine is doing: the kind of the first step of its journal that is not done.
pub(crate) fn under_way_on(machine: &Machine) -> &'static str {
    let Some(journal) = state().unfinished(machine).unwrap() else {
        return "no journal";
    };
    let mut steps = journal.steps().iter();
    steps
        .find(|step| machine.disk.look(&step.path).unwrap() != step.after)
        .map_or("after the steps", Step::kind)
}

fn copied(machine: &Machine) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let from = machine.root().unwrap().join(".");
    let done = Command::new("cp")
        .arg("-a")
        .arg(from)
        .arg(copy.path())
        .status();
    assert!(done.unwrap().success());
    copy
}

/// Covers M09, X05.
#[test]
fn killed_before_every_change_and_at_random_instants_a_tree_is_the_old_or_the_new_one() {
    let mut journey = Journey::new();
    for kind in [
        "create file",
        "replace with file",
        "make link",
        "make directory",
        "remove file",
        "remove link",
        "remove directory",
    ] {
        assert!(journey.kinds.contains(&kind), "no step to {kind}");
    }
    for changes in 0..journey.changes {
        let copy = copied(&journey.start);
        let killed = start(copy.path(), Some(changes)).wait().unwrap();
        assert!(
            !killed.success(),
            "it came to its end before change {changes}"
        );
        journey.ends_well(copy.path(), &format!("killed before change {changes}"));
    }
    println!(
        "proof: killed before each of {} changes: {:?}",
        journey.changes, journey.hit
    );
    journey.has_hit_every_kind();
    let at_boundaries = std::mem::take(&mut journey.hit);

    let (instants, seed) = (if is_soak() { 1000 } else { 60 }, seed());
    println!("proof: killed at {instants} random instants, EVENKEEL_SEED={seed}");
    let mut chance = Chance(seed);
    let whole = {
        let copy = copied(&journey.start);
        let mut program = start(copy.path(), None);
        is_ready(&mut program);
        let began = Instant::now();
        program.wait().unwrap();
        usize::try_from(began.elapsed().as_micros()).unwrap()
    };
    journey.resumed = 0;
    for instant in 0..instants {
        let copy = copied(&journey.start);
        let mut program = start(copy.path(), None);
        is_ready(&mut program);
        let after = Duration::from_micros(u64::try_from(chance.below(whole)).unwrap());
        std::thread::sleep(after);
        program.kill().unwrap();
        program.wait().unwrap();
        journey.ends_well(copy.path(), &format!("instant {instant}, after {after:?}"));
    }
    println!(
        "proof: under way then: {:?}; {} had to go on",
        journey.hit, journey.resumed
    );
    assert!(journey.resumed > 0, "all were killed too early or too late");
    let never: Vec<_> = at_boundaries
        .keys()
        .filter(|kind| !journey.hit.contains_key(*kind))
        .collect();
    println!("hit at boundaries only: {never:?}");
}

/// An ordinary user keeps the same promises on a tree of their own.
#[test]
fn an_ordinary_user_can_keep_the_promises_too() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), everybody).unwrap();
    let program = folder.path().join("engine");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let output = Command::new(&program)
        .args(["primitives::", "promises::"])
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("running 0 tests"), "{said}");
}
