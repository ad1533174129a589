//! The benchmark on Linux.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_api::machine::machine_config::{File, MachineConfig, Owner};
use evenkeel_host::execute::{Claim, State};
use evenkeel_host::linux::{LinuxHost, Stopper};
use evenkeel_host::verify::verify;
use evenkeel_host::watch::{Event, Monitor};
use evenkeel_host::{memory, observe};
use evenkeel_plan::machine::desired::{Contents, Desired};
use evenkeel_plan::machine::targets::Targets;
use evenkeel_testbed::table::Table;
use tempfile::TempDir;

type Outcome<T> = Result<T, Box<dyn Error>>;

const MANY: usize = 5_000;
const FEW: usize = 100;
const SIZE: usize = 4096;
/// A program that runs with this is the one whose memory is measured, on the tree it names.
const CHILD: &str = "EVENKEEL_BENCH_TREE";
const STATE: &str = "/var/lib/evenkeel";
const SETTLED: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_secs(10);

pub(crate) fn main() -> ExitCode {
    let Some(tree) = std::env::var_os(CHILD) else {
        return Table::verdict(bench());
    };
    match watch_and_wait(PathBuf::from(tree)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the benchmark failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench() -> Outcome<Table> {
    let (many, few) = (Tree::new(MANY)?, Tree::new(FEW)?);
    let same_as_many = Tree::new(MANY)?;
    let mut child = Watching::start(&same_as_many)?;
    let mut table = Table::default();

    let (ours, bare) = verify_and_bare_loop(&many)?;
    Table::note("verify 5,000 files of 4 KiB", millis(ours), "ms");
    Table::note("bare loop over the same", millis(bare), "ms");
    let ratio = ours.as_secs_f64() / bare.as_secs_f64();
    table.row("verify / bare loop", ratio, 1.5, "×");

    let (of_few, of_many) = drift(&few, &many)?;
    for (what, times) in [("100", &of_few), ("5,000", &of_many)] {
        let name = |which| format!("drift found among {what} files, {which}");
        table.row(&name("median"), millis(times.median()), 5.0, "ms");
        table.row(&name("p99"), millis(times.p99()), 20.0, "ms");
    }
    let ratio = of_many.median().as_secs_f64() / of_few.median().as_secs_f64();
    table.row("median of 5,000 / of 100", ratio, 2.0, "×");

    let healed = heal(&few)?;
    Table::note("drift healed, median", millis(healed.median()), "ms");
    table.row("drift healed, p99", millis(healed.p99()), 50.0, "ms");

    let memory = child.memory()?;
    table.row("VmRSS of a watch on 5,000 files", memory, 25.0, "MiB");
    Ok(table)
}

/// The median of verifying, and of a loop that opens, reads and compares.
fn verify_and_bare_loop(tree: &Tree) -> Outcome<(Duration, Duration)> {
    let host = tree.host()?;
    let (targets, contents) = tree.targets(&host)?;
    let wanted: Vec<(PathBuf, &[u8])> = targets
        .iter()
        .filter_map(|(path, target)| {
            let bytes = contents.get(target.entry.hash()?)?;
            Some((tree.at(path), bytes))
        })
        .collect();
    let (mut ours, mut bare) = (Times::default(), Times::default());
    let mut buffer = vec![0; 2 * SIZE];
    // The first round fills the caches.
    for round in 0..12 {
        let start = Instant::now();
        let found = verify(&host, &targets, &contents);
        let middle = Instant::now();
        let mut different = 0;
        for (path, bytes) in &wanted {
            let mut file = fs::File::open(path)?;
            let mut length = 0;
            loop {
                match file.read(&mut buffer[length..])? {
                    0 => break,
                    more => length += more,
                }
            }
            different += usize::from(buffer[..length] != **bytes);
        }
        if found.len() + different + MANY - wanted.len() > 0 {
            return Err("the tree is not as it was made".into());
        }
        if round > 0 {
            bare.0.push(middle.elapsed());
            ours.0.push(middle - start);
        }
    }
    Ok((ours.median(), bare.median()))
}

/// From an edit to its report, in a small tree and in a large one.
fn drift(few: &Tree, many: &Tree) -> Outcome<(Times, Times)> {
    let watches = (few.watch(false)?, many.watch(false)?);
    let (mut of_few, mut of_many) = (Times::default(), Times::default());
    for round in 0..300 {
        // Each is first half of the time: on a busy machine the second may meet an end of time slice.
        if round % 2 == 0 {
            of_few.0.push(watches.0.edit(few, round)?);
        }
        of_many.0.push(watches.1.edit(many, round)?);
        if round % 2 == 1 {
            of_few.0.push(watches.0.edit(few, round)?);
        }
    }
    Ok((of_few, of_many))
}

/// From an edit to its repair, which is durable.
fn heal(tree: &Tree) -> Outcome<Times> {
    let watch = tree.watch(true)?;
    let mut times = Times::default();
    for round in 0..200 {
        let path = tree.path(round);
        let start = Instant::now();
        fs::write(tree.at(&path), "drift")?;
        watch
            .wait(|event| matches!(event, Event::Healed { finding, .. } if finding.path == path))?;
        times.0.push(start.elapsed());
    }
    Ok(times)
}

/// A folder with files, as a configuration would have them.
struct Tree {
    folder: PathBuf,
    files: usize,
    _ours: Option<TempDir>,
}

impl Tree {
    fn new(files: usize) -> Outcome<Self> {
        let ours = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let tree = Self {
            folder: ours.path().to_owned(),
            files,
            _ours: Some(ours),
        };
        for number in 0..files {
            let place = tree.at(&tree.path(number));
            if let Some(folder) = place.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(&place, contents(number))?;
        }
        Ok(tree)
    }

    fn path(&self, number: usize) -> String {
        let number = number * 37 % self.files;
        format!("/etc/app/{:02}/setting-{number}.conf", number % 50)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.join(&path[1..])
    }

    fn host(&self) -> Outcome<LinuxHost> {
        Ok(LinuxHost::offline(&self.folder)?)
    }

    fn targets(&self, host: &LinuxHost) -> Outcome<(Targets, Contents)> {
        let mut config = MachineConfig::default();
        for number in 0..self.files {
            let path = self.path(number);
            let file = File {
                contents: fs::read(self.at(&path))?,
                mode: 0o644,
                user: Owner::default(),
                group: Owner::default(),
            };
            config.files.insert(path, file);
        }
        let (desired, contents) = Desired::of(config);
        let targets = observe::targets_of(host, &State::at(STATE), &desired)?;
        Ok((targets, contents))
    }

    fn watch(&self, heal: bool) -> Outcome<Watch> {
        let host = self.host()?;
        let (targets, contents) = self.targets(&host)?;
        if heal {
            let state = State::at(STATE);
            Claim::take(&host, &state)?.keep_contents(&targets, &contents)?;
        }
        drop(contents);
        memory::trim();
        let mut watcher = host.watch(targets.keys().map(String::as_str))?;
        let stopper = watcher.stopper();
        let (tell, events) = channel();
        let thread = std::thread::spawn(move || {
            let state = State::at(STATE);
            let mut monitor = if heal {
                Monitor::healing(&host, &state, targets)
            } else {
                Monitor::reporting(&host, targets)
            };
            let ended = monitor.run(&mut watcher, &mut |event| _ = tell.send(event));
            if let Err(error) = ended {
                eprintln!("the watch ended: {error}");
            }
        });
        Ok(Watch {
            events,
            stopper,
            thread: Some(thread),
        })
    }
}

fn contents(number: usize) -> Vec<u8> {
    let line = format!("setting {number} of this file, and of no other\n");
    line.bytes().cycle().take(SIZE).collect()
}

/// A monitor at work in its own thread.
struct Watch {
    events: Receiver<Event>,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Edits a file, waits for the report, and takes the edit back.
    fn edit(&self, tree: &Tree, number: usize) -> Outcome<Duration> {
        let path = tree.path(number);
        let place = tree.at(&path);
        let before = fs::read(&place)?;
        let start = Instant::now();
        fs::write(&place, "drift")?;
        self.wait(|event| matches!(event, Event::Drifted { finding, .. } if finding.path == path))?;
        let took = start.elapsed();
        fs::write(&place, before)?;
        self.wait(|event| matches!(event, Event::Recovered { finding } if finding.path == path))?;
        Ok(took)
    }

    fn wait(&self, is_it: impl Fn(&Event) -> bool) -> Outcome<()> {
        while !is_it(&self.events.recv_timeout(SOON)?) {}
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Does what `evenkeel watch --heal` does, and says what memory that takes.
fn watch_and_wait(folder: PathBuf) -> Outcome<()> {
    let tree = Tree {
        folder,
        files: MANY,
        _ours: None,
    };
    let _watch = tree.watch(true)?;
    println!("ready");
    std::thread::sleep(SETTLED);
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    println!("{}", line.ok_or("no VmRSS")?);
    Ok(())
}

/// The program whose memory is measured. It starts before the other measurements, is idle during
/// them, and is asked at the end.
struct Watching {
    child: Child,
    says: BufReader<std::process::ChildStdout>,
}

impl Watching {
    fn start(tree: &Tree) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(CHILD, &tree.folder)
            .stdout(Stdio::piped())
            .spawn()?;
        let says = child.stdout.take().ok_or("no output")?;
        let mut watching = Self {
            child,
            says: BufReader::new(says),
        };
        match watching.line()?.as_str() {
            "ready" => Ok(watching),
            other => Err(format!("the child says: {other}").into()),
        }
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    fn memory(&mut self) -> Outcome<f64> {
        let line = self.line()?;
        let kib = line.split_whitespace().nth(1).ok_or("no number")?;
        self.child.wait()?;
        Ok(kib.parse::<f64>()? / 1024.0)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn at(&self, hundredth: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = (sorted.len() * hundredth / 100).min(sorted.len().saturating_sub(1));
        sorted.get(at).copied().unwrap_or_default()
    }

    fn median(&self) -> Duration {
        self.at(50)
    }

    fn p99(&self) -> Duration {
        self.at(99)
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
