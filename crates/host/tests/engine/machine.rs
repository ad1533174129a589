//! The machines that the promises are kept on, behind one type, and what tests do with them.

use std::collections::BTreeMap;
use std::io;

use evenkeel_host::disk::{Disk, Folder, Host};
use evenkeel_host::execute::{Claim, Progress, State};
#[cfg(target_os = "linux")]
use evenkeel_host::linux::RootedDisk;
use evenkeel_host::simulated::{
    ServiceCall, SimulatedAccounts, SimulatedHost, SimulatedLock, SimulatedOs, SimulatedServices,
};
use evenkeel_host::{Error, Result, observe};
use evenkeel_plan::machine::Plan;
use evenkeel_plan::machine::attributes::Attributes;
use evenkeel_plan::machine::desired::{Contents, Desired};
use evenkeel_plan::machine::entry::{Entry, Hash, Ids};
use evenkeel_plan::machine::os::{Edits, OsSnapshot};
use evenkeel_plan::machine::ssh_keys::{Account, SshdSettings};

use crate::configs::Config;

/// Where our state is on every machine of these tests.
pub(crate) const STATE: &str = "/var/lib/evenkeel";

pub(crate) fn state() -> State {
    State::at(STATE)
}

/// A disk of any kind, and what is done before each call that changes something.
pub(crate) struct AnyDisk {
    kind: Kind,
    pub(crate) before_change: Option<Box<dyn Fn()>>,
}

enum Kind {
    Simulated(Box<SimulatedHost>),
    #[cfg(target_os = "linux")]
    Linux {
        disk: RootedDisk,
        root: std::path::PathBuf,
        /// Removed with the machine, unless somebody else looks after it.
        _folder: Option<tempfile::TempDir>,
    },
}

#[expect(dead_code, reason = "held, not read")]
pub(crate) enum AnyLock {
    Simulated(SimulatedLock),
    #[cfg(target_os = "linux")]
    Linux(evenkeel_host::linux::Lock),
}

macro_rules! on {
    ($self:ident, $disk:ident => $call:expr) => {
        match &$self.kind {
            Kind::Simulated(host) => {
                let $disk = host.disk();
                $call
            }
            #[cfg(target_os = "linux")]
            Kind::Linux { disk: $disk, .. } => $call,
        }
    };
}

impl AnyDisk {
    fn changes(&self) -> &Self {
        if let Some(before_change) = &self.before_change {
            before_change();
        }
        self
    }
}

impl Disk for AnyDisk {
    type Lock = AnyLock;

    fn look(&self, path: &str) -> Result<Entry> {
        on!(self, disk => disk.look(path))
    }

    fn folder(&self, path: &str) -> Result<Folder> {
        on!(self, disk => disk.folder(path))
    }

    fn read_up_to(&self, path: &str, most: usize) -> Result<Option<Vec<u8>>> {
        on!(self, disk => disk.read_up_to(path, most))
    }

    fn copy(&self, from: &str, path: &str, mode: u32, owner: Ids) -> Result<Option<Hash>> {
        let this = self.changes();
        on!(this, disk => disk.copy(from, path, mode, owner))
    }

    fn attributes(&self, path: &str) -> Result<Attributes> {
        on!(self, disk => disk.attributes(path))
    }

    fn set_attributes(&self, path: &str, attributes: &Attributes) -> Result<()> {
        let this = self.changes();
        on!(this, disk => disk.set_attributes(path, attributes))
    }

    fn list(&self, path: &str) -> Result<Vec<String>> {
        on!(self, disk => disk.list(path))
    }

    fn label(&self, path: &str) -> Result<Option<String>> {
        on!(self, disk => disk.label(path))
    }

    fn set_label(&self, path: &str, label: &str) -> Result<()> {
        let this = self.changes();
        on!(this, disk => disk.set_label(path, label))
    }

    fn create(&self, path: &str, contents: &[u8], mode: u32, owner: Ids) -> Result<()> {
        let this = self.changes();
        on!(this, disk => disk.create(path, contents, mode, owner))
    }

    fn link(&self, path: &str, target: &str) -> Result<()> {
        let this = self.changes();
        on!(this, disk => disk.link(path, target))
    }

    fn make_folder(&self, path: &str, mode: u32, owner: Ids) -> Result<()> {
        let this = self.changes();
        on!(this, disk => disk.make_folder(path, mode, owner))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let this = self.changes();
        on!(this, disk => disk.rename(from, to))
    }

    fn remove(&self, path: &str) -> Result<()> {
        let this = self.changes();
        on!(this, disk => disk.remove(path))
    }

    fn remove_folder(&self, path: &str) -> Result<bool> {
        let this = self.changes();
        on!(this, disk => disk.remove_folder(path))
    }

    fn sync_files(&self, paths: &[String]) -> Result<()> {
        let this = self.changes();
        on!(this, disk => disk.sync_files(paths))
    }

    fn sync_folder(&self, path: &str) -> Result<()> {
        let this = self.changes();
        on!(this, disk => disk.sync_folder(path))
    }

    fn lock(&self, path: &str) -> Result<AnyLock> {
        match &self.kind {
            Kind::Simulated(host) => host.disk().lock(path).map(AnyLock::Simulated),
            #[cfg(target_os = "linux")]
            Kind::Linux { disk, .. } => disk.lock(path).map(AnyLock::Linux),
        }
    }

    fn stand_in(&self) -> Option<u32> {
        on!(self, disk => disk.stand_in())
    }
}

/// A machine of any kind.
pub(crate) struct Machine {
    pub(crate) disk: AnyDisk,
    pub(crate) services: SimulatedServices,
    pub(crate) os: SimulatedOs,
    pub(crate) accounts: SimulatedAccounts,
}

impl Host for Machine {
    type Disk = AnyDisk;

    fn disk(&self) -> &AnyDisk {
        &self.disk
    }

    fn account(&self, user: &str) -> Result<Option<Account>> {
        self.accounts.user(user)
    }

    fn group(&self, group: &str) -> Result<Option<u32>> {
        self.accounts.group(group)
    }

    fn sshd_settings(&self, _: &str) -> Result<Option<SshdSettings>> {
        self.accounts.sshd()
    }

    fn reload_units(&self) -> Result<()> {
        self.services.tell(ServiceCall::ReloadUnits)
    }

    fn reload(&self, unit: &str) -> Result<()> {
        self.services.tell(ServiceCall::Reload(unit.to_owned()))
    }

    fn restart(&self, unit: &str) -> Result<()> {
        self.services.tell(ServiceCall::Restart(unit.to_owned()))
    }

    fn os(&self) -> Result<OsSnapshot> {
        self.os.look()
    }

    fn stage_image(&self, image: &str) -> Result<()> {
        self.os.stage_image(image)
    }

    fn stage_arguments(&self, edits: &Edits) -> Result<()> {
        self.os.stage_arguments(edits)
    }

    fn unstage(&self) -> Result<()> {
        self.os.unstage()
    }
}

impl Machine {
    fn of(kind: Kind) -> Self {
        Self {
            disk: AnyDisk {
                kind,
                before_change: None,
            },
            services: SimulatedServices::default(),
            os: SimulatedOs::default(),
            accounts: SimulatedAccounts::default(),
        }
    }

    /// A simulated machine with an empty root.
    pub(crate) fn simulated() -> Self {
        Self::of(Kind::Simulated(Box::default()))
    }

    /// An empty tree on this machine's own disk.
    #[cfg(target_os = "linux")]
    pub(crate) fn linux() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::of(Kind::Linux {
            disk: RootedDisk::open(folder.path()).unwrap(),
            root: folder.path().to_owned(),
            _folder: Some(folder),
        })
    }

    /// A tree that is there already, and stays there.
    #[cfg(target_os = "linux")]
    pub(crate) fn linux_at(root: &std::path::Path) -> Self {
        Self::of(Kind::Linux {
            disk: RootedDisk::open(root).unwrap(),
            root: root.to_owned(),
            _folder: None,
        })
    }

    /// The simulated machine itself, if it is one.
    #[cfg_attr(
        not(target_os = "linux"),
        expect(clippy::unnecessary_wraps, reason = "there is no other kind there")
    )]
    pub(crate) fn into_simulated(self) -> Option<SimulatedHost> {
        match self.disk.kind {
            Kind::Simulated(host) => Some(*host),
            #[cfg(target_os = "linux")]
            Kind::Linux { .. } => None,
        }
    }

    /// Where its root is on this machine's own disk, if it has one there.
    #[cfg(target_os = "linux")]
    pub(crate) fn root(&self) -> Option<&std::path::Path> {
        match &self.disk.kind {
            Kind::Simulated(_) => None,
            Kind::Linux { root, .. } => Some(root),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self.disk.kind {
            Kind::Simulated(_) => "simulated",
            #[cfg(target_os = "linux")]
            Kind::Linux { .. } => "linux",
        }
    }

    /// Whether files can be given to others here: not by an ordinary user.
    pub(crate) fn gives_files_away(&self) -> bool {
        self.disk.stand_in() != Some(0)
    }

    /// A stranger's folder, with those above it.
    pub(crate) fn folder(&self, path: &str) {
        for end in path.match_indices('/').map(|(end, _)| end).skip(1) {
            self.one_folder(&path[..end]);
        }
        self.one_folder(path);
    }

    fn one_folder(&self, path: &str) {
        if self.disk.folder(path).unwrap() == Folder::Missing {
            self.disk.make_folder(path, 0o755, Ids::default()).unwrap();
        }
    }

    /// A stranger's file.
    pub(crate) fn file(&self, path: &str, contents: &str, mode: u32) {
        self.file_of(path, contents, mode, Ids::default());
    }

    pub(crate) fn file_of(&self, path: &str, contents: &str, mode: u32, owner: Ids) {
        if let Some((folder, _)) = path
            .rsplit_once('/')
            .filter(|(folder, _)| !folder.is_empty())
        {
            self.folder(folder);
        }
        self.disk.remove(path).unwrap();
        self.disk
            .create(path, contents.as_bytes(), mode, owner)
            .unwrap();
    }

    /// A stranger's link.
    pub(crate) fn link(&self, path: &str, target: &str) {
        self.disk.link(path, target).unwrap();
    }

    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let bytes = self.disk.read(path).unwrap();
        bytes.map(|bytes| String::from_utf8(bytes).unwrap())
    }

    pub(crate) fn tree(&self) -> Tree {
        tree(&self.disk)
    }

    /// Plans and applies `config`.
    pub(crate) fn bring(&self, config: &Config) -> Result<()> {
        bring(self, config)
    }

    pub(crate) fn plan(&self, config: &Config) -> Result<Plan> {
        planned(self, config).map(|(plan, _)| plan)
    }
}

/// What stands on a machine outside of our state, by path.
pub(crate) type Tree = BTreeMap<String, Entry>;

/// Everything outside of our state, read through the disk's own calls.
pub(crate) fn tree<D: Disk>(disk: &D) -> Tree {
    let mut tree = Tree::new();
    let mut ahead = vec![String::new()];
    while let Some(folder) = ahead.pop() {
        let listed = if folder.is_empty() { "/" } else { &folder };
        for name in disk.list(listed).unwrap() {
            let path = format!("{folder}/{name}");
            let entry = disk.look(&path).unwrap();
            if matches!(entry, Entry::Directory { .. }) {
                ahead.push(path.clone());
            }
            tree.insert(path, entry);
        }
    }
    without_state(tree)
}

/// Leaves out what is ours alone.
pub(crate) fn without_state(mut tree: Tree) -> Tree {
    tree.retain(|path, _| !format!("{path}/").starts_with(&format!("{STATE}/")));
    tree
}

pub(crate) fn planned<H: Host>(host: &H, config: &Config) -> Result<(Plan, Contents)> {
    let (desired, contents) = Desired::of(config.0.clone());
    let plan = observe::plan(host, &state(), &desired, &contents)?;
    Ok((plan, contents))
}

pub(crate) fn bring<H: Host>(host: &H, config: &Config) -> Result<()> {
    let state = state();
    let claim = Claim::take(host, &state)?;
    claim.take_note_of_boot()?;
    let (plan, contents) = planned(host, config)?;
    let plan = plan.carried_out_in(host.boot_id()?);
    claim.apply(&plan, &contents, &mut |_: Progress<'_>| {})
}

/// Every kind of machine, empty.
pub(crate) fn every_machine(promise: impl Fn(&Machine)) {
    let machines = [
        Machine::simulated(),
        #[cfg(target_os = "linux")]
        Machine::linux(),
    ];
    for machine in &machines {
        eprintln!("on the {} machine:", machine.name());
        promise(machine);
    }
}

/// Every kind of machine, with the folder that holds our state.
pub(crate) fn every_ready_machine(promise: impl Fn(&Machine)) {
    every_machine(|machine| {
        machine.folder("/var/lib");
        promise(machine);
    });
}

/// What the operating system said.
pub(crate) fn kind<T: std::fmt::Debug>(result: Result<T>) -> io::ErrorKind {
    match result.unwrap_err() {
        Error::Path { source, .. } => source.kind(),
        other => panic!("{other:?} is not about a path"),
    }
}
