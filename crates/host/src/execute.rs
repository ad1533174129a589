//! Carries a plan out: journal first, then the steps, then what they need, then the record.
//!
//! Whatever happens in between, the next [`Claim::take`] finds the journal and goes on: forward to
//! the new configuration, or back to the old one if a step had failed.

mod heal;
mod payload;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_plan::machine::desired::Contents;
use evenkeel_plan::machine::disruption::UnitAction;
use evenkeel_plan::machine::entry::{Entry, Hash, Ids};
use evenkeel_plan::machine::journal::{Direction, Journal, Move, Stood};
use evenkeel_plan::machine::os::{OsSnapshot, is_about};
use evenkeel_plan::machine::place::Location;
use evenkeel_plan::machine::provision::Provision;
use evenkeel_plan::machine::record::{Record, newer};
use evenkeel_plan::machine::step::Step;
use evenkeel_plan::machine::targets::Targets;
use evenkeel_plan::machine::{Plan, above};

use crate::disk::{Disk, Host};
use crate::place::{Had, Placer, write_durably};
use crate::store::{ContentSource, Store};
use crate::{Error, Result, os};

/// Where the journal and all it remembers is kept on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    folder: String,
    store: String,
}

impl State {
    /// State below `folder`.
    pub fn at(folder: &str) -> Self {
        Self {
            folder: folder.to_owned(),
            store: format!("{folder}/store"),
        }
    }

    /// The same, with contents kept below another folder.
    #[must_use]
    pub fn storing_at(self, store: &str) -> Self {
        Self {
            store: store.to_owned(),
            ..self
        }
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    /// What the journal remembers of this machine, without claiming it.
    pub fn record<H: Host>(&self, host: &H) -> Result<Record> {
        let path = self.path("record");
        match host.disk().read(&path)? {
            None => Ok(Record::default()),
            Some(text) => Record::read(&text).map_err(|source| Error::Journal { path, source }),
        }
    }

    /// Refuses a machine that a newer program looks after.
    fn is_known<H: Host>(&self, host: &H) -> Result<()> {
        for name in ["record", "journal"] {
            let path = self.path(name);
            let text = host.disk().read(&path)?;
            if let Some(source) = text.and_then(|text| newer(&text)) {
                return Err(Error::Journal { path, source });
            }
        }
        Ok(())
    }

    /// The journal of a run that did not come to its end, if there is one.
    pub fn unfinished<H: Host>(&self, host: &H) -> Result<Option<Journal>> {
        let path = self.path("journal");
        let Some(text) = host.disk().read(&path)? else {
            return Ok(None);
        };
        Journal::read(&text)
            .map(Some)
            .map_err(|source| Error::Journal { path, source })
    }

    /// A note that somebody keeps next to the journal; nothing depends on it.
    pub fn note<H: Host>(&self, host: &H, name: &str) -> Result<Option<Vec<u8>>> {
        host.disk().read(&self.path(name))
    }

    /// Keeps a note under a name of its own. The folder is there once the machine was claimed.
    pub fn keep_note<H: Host>(&self, host: &H, name: &str, text: &[u8]) -> Result<()> {
        write_durably(host.disk(), &self.path(name), text)
    }

    /// Takes a note away again.
    pub fn forget_note<H: Host>(&self, host: &H, name: &str) -> Result<()> {
        host.disk().remove(&self.path(name))?;
        host.disk().sync_folder(&self.folder)
    }

    /// Whether the store has the contents with this hash.
    pub fn has<H: Host>(&self, host: &H, hash: Hash) -> bool {
        Store::new(host.disk(), &self.store).has(hash)
    }

    /// The contents with this hash, if the store has them.
    pub fn contents<H: Host>(&self, host: &H, hash: Hash) -> Result<Vec<u8>> {
        Store::new(host.disk(), &self.store).get(hash)
    }
}

/// How far a run is, for whoever watches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// Steps that are done.
    pub done: usize,
    /// Steps in all.
    pub steps: usize,
    /// What begins now: the next step, or what follows the last.
    pub doing: &'a str,
}

/// The machine is ours to change until this is dropped.
pub struct Claim<'a, H: Host> {
    host: &'a H,
    state: &'a State,
    resumed: Option<Direction>,
    stop: Option<&'a AtomicBool>,
    _lock: <H::Disk as Disk>::Lock,
}

impl<'a, H: Host> Claim<'a, H> {
    /// Claims the machine, and finishes or undoes what an earlier run left in the middle.
    pub fn take(host: &'a H, state: &'a State) -> Result<Self> {
        // Before even a folder is made, and again once nobody else is at work.
        state.is_known(host)?;
        make_folders(host.disk(), state)?;
        let lock = host.disk().lock(&state.path("lock"))?;
        state.is_known(host)?;
        let mut claim = Self {
            host,
            state,
            resumed: None,
            stop: None,
            _lock: lock,
        };
        if let Some(mut journal) = state.unfinished(host)? {
            // Services that started with this boot have seen the old configuration, or a mixture.
            journal.taken_up_in(host.boot_id()?);
            claim.resumed = Some(journal.direction());
            // The run before may have been killed between writing it and making it durable.
            host.disk().sync_folder(&state.folder)?;
            claim.run(journal, true, &mut |_| {})?;
        }
        Ok(claim)
    }

    /// Undoes what is under way as soon as `stop` is set, as if a step had failed.
    #[must_use]
    pub fn stopping_on(mut self, stop: &'a AtomicBool) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Which way an unfinished run was brought to its end, if there was one.
    pub const fn resumed(&self) -> Option<Direction> {
        self.resumed
    }

    /// What the journal remembers of this machine.
    pub fn record(&self) -> Result<Record> {
        self.state.record(self.host)
    }

    /// Remembers what the machine was provisioned from, and touches nothing else. `false` if it remembers that already.
    pub fn adopt(&self, provision: &Provision) -> Result<bool> {
        let record = self.record()?;
        let adopted = record.clone().adopting(provision)?;
        if adopted == record {
            return Ok(false);
        }
        self.remember(&adopted)?;
        Ok(true)
    }

    /// Remembers that the machine is told to boot for what is staged.
    pub fn is_told_to_boot(&self) -> Result<()> {
        let record = self.record()?;
        if record.staged.is_empty() {
            return Ok(());
        }
        self.remember(&Record {
            boots: record.boots + 1,
            ..record
        })
    }

    /// If the boot that the configuration waited for has happened, it is the current one. What was
    /// staged for that boot and did not come with it is staged once more, and waits for the next.
    pub fn take_note_of_boot(&self) -> Result<()> {
        let (record, boot) = (self.record()?, self.host.boot_id()?);
        if record.written_in.is_none() && record.staged.is_empty() {
            return Ok(());
        }
        let seen = match record.staged.as_slice() {
            [] => None,
            _ => match self.host.os()? {
                OsSnapshot::Deployments { booted, next, .. } => Some((booted, next)),
                // Nobody can say what this boot brought.
                OsSnapshot::Beyond(_) => return Ok(()),
            },
        };
        let (after, lost) = if record.awaits_boot(&boot) {
            let is_lost = |(_, next): &(_, _)| record.is_lost_to(next);
            (record.clone(), seen.as_ref().is_some_and(is_lost))
        } else {
            let booted = seen.as_ref().map(|(booted, _)| booted);
            record.clone().after_boot(booted)
        };
        if lost {
            let journal = Journal::stage_again(&record, boot);
            self.write_journal(&journal)?;
            return self.run(journal, true, &mut |_| {});
        }
        if after == record {
            return Ok(());
        }
        self.remember(&after)
    }

    /// Carries `plan` out. `contents` has the bytes of what is new.
    ///
    /// On failure everything is as it was, unless the error says that undoing failed too, or that
    /// the new configuration stands and only its end could not be written down.
    pub fn apply(
        &self,
        plan: &Plan,
        contents: &Contents,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<()> {
        if let Some(refused) = plan.refusal() {
            return Err(refused.into());
        }
        let record = self.record()?;
        if plan.steps.is_empty() && record == plan.record {
            return Ok(());
        }
        let journal = Journal::open(plan, self.stood(plan)?, &record);
        let wanted: BTreeSet<Hash> = journal.contents().chain(plan.record.contents()).collect();
        self.store()
            .keep(&wanted, |hash| match contents.get(hash) {
                Some(bytes) => Some(ContentSource::Bytes(bytes)),
                None => place_of(plan, hash).map(ContentSource::At),
            })?;
        if plan.steps.is_empty() {
            return self.remember(&plan.record);
        }
        if let Err(error) = self.write_journal(&journal) {
            // It may be there and only not be durable; nothing was done yet, and nothing shall be.
            _ = self.host.disk().remove(&self.state.path("journal"));
            return Err(error);
        }
        self.run(journal, false, progress)
    }

    /// What comes back with what stands where `plan` will change something.
    fn stood(&self, plan: &Plan) -> Result<Stood> {
        let mut all = Stood::default();
        let stood = |step: &&Step| step.before != Entry::Absent && Location::is_path(&step.path);
        for Step { path, .. } in plan.steps.iter().filter(stood).filter(|it| !is_about(it)) {
            if let Some(label) = self.host.disk().label(path)? {
                all.labels.insert(path.clone(), label);
            }
            let attributes = self.host.disk().attributes(path)?;
            all.attributes.insert(path.clone(), attributes);
        }
        Ok(all)
    }

    fn run(
        &self,
        mut journal: Journal,
        again: bool,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<()> {
        if journal.direction() == Direction::Forward {
            match self.go(&journal, again, progress) {
                Ok(()) => {
                    let closed = self.remember(journal.record()).and_then(|()| self.close());
                    return closed.map_err(|source| Error::Unfinished {
                        source: Box::new(source),
                    });
                }
                Err((step, source)) => {
                    journal.turn_back();
                    // On a full disk this fails like the step did, and going back makes room. Killed
                    // on the way, the next start goes forward again, which is as good an end.
                    _ = self.write_journal(&journal);
                    self.go_back(&journal)?;
                    return Err(Error::Undone {
                        step,
                        source: Box::new(source),
                    });
                }
            }
        }
        self.go_back(&journal)
    }

    fn go_back(&self, journal: &Journal) -> Result<()> {
        self.go(journal, true, &mut |_| {})
            .map_err(|(step, source)| Error::Stuck {
                step,
                source: Box::new(source),
            })?;
        self.remember_what_was_before(journal)
            .map_err(|source| Error::Stuck {
                step: "recording what the next boot starts".to_owned(),
                source: Box::new(source),
            })?;
        self.close()
    }

    /// If what ran before had to be staged, because a boot had brought something else, it must not
    /// be lost until a boot has brought it back.
    fn remember_what_was_before(&self, journal: &Journal) -> Result<()> {
        if !journal.steps().iter().any(is_about) {
            return Ok(());
        }
        let OsSnapshot::Deployments { booted, .. } = self.host.os()? else {
            return Ok(());
        };
        let record = self.record()?;
        match record.after_going_back(journal.steps(), &booted, self.host.boot_id()?) {
            Some(after) => self.remember(&after),
            None => Ok(()),
        }
    }

    /// All moves of the journal in its direction, made durable, and then what they need.
    fn go(
        &self,
        journal: &Journal,
        again: bool,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), (String, Error)> {
        let mut placer = if again {
            Placer::again(self.host.disk(), self.store())
        } else {
            Placer::new(self.host.disk(), self.store())
        };
        let moves = journal.moves();
        let steps = moves.len();
        let stops = journal.direction() == Direction::Forward;
        let mut by_policy = Vec::new();
        for (done, it) in moves.into_iter().enumerate() {
            let Move { step, entry, .. } = it;
            if stops && self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                return Err((name(step), Error::Stopped));
            }
            let doing = &step.resource.to_string();
            progress(Progress { done, steps, doing });
            let put = if is_about(step) {
                // Staging takes minutes, and nobody knows what happens meanwhile.
                placer.sync().and_then(|()| os::put(self.host, step, entry))
            } else {
                placer.put(&step.path, entry, Had::of(&it))
            };
            put.map_err(|error| (name(step), error))?;
            if it.is_labelled_by_policy() && Location::is_path(&step.path) && !is_about(step) {
                by_policy.push((step.path.clone(), entry));
            }
        }
        let mut after_all = |doing: &str| {
            let done = steps;
            progress(Progress { done, steps, doing });
        };
        let durable = "syncing the changes to disk";
        after_all(durable);
        placer.sync().map_err(|error| (durable.to_owned(), error))?;
        // On the way back a service that would not read the new configuration may not read the old
        // one either; the files are what counts, and they are back.
        let needed = |what: String, told: Result<()>| match journal.direction() {
            Direction::Forward => told.map_err(|error| (what, error)),
            Direction::Back => Ok(()),
        };
        let doing = "setting the SELinux labels of new paths";
        needed(doing.to_owned(), self.relabel(&by_policy))?;
        if journal.touches_units() {
            let doing = "reloading the systemd units";
            after_all(doing);
            needed(doing.to_owned(), self.host.reload_units())?;
        }
        for action in journal.actions() {
            after_all(&action.to_string());
            let told = match action {
                UnitAction::Reload(unit) => self.host.reload(unit),
                UnitAction::Restart(unit) => self.host.restart(unit),
                // Units were read again above.
                UnitAction::Drain | UnitAction::DaemonReload | UnitAction::Reboot => Ok(()),
            };
            needed(action.to_string(), told)?;
        }
        Ok(())
    }

    /// Keeps the contents of `targets` durably, so that they can be put back without `contents`.
    pub fn keep_contents(&self, targets: &Targets, contents: &Contents) -> Result<()> {
        let wanted = targets.values().filter_map(|target| target.entry.hash());
        let find = |hash| contents.get(hash).map(ContentSource::Bytes);
        self.store().keep(&wanted.collect(), find)
    }

    fn remember(&self, record: &Record) -> Result<()> {
        let path = self.state.path("record");
        let text = record.text().map_err(|source| Error::Journal {
            path: path.clone(),
            source,
        })?;
        write_durably(self.host.disk(), &path, &text)
    }

    fn write_journal(&self, journal: &Journal) -> Result<()> {
        let path = self.state.path("journal");
        let text = journal.text().map_err(|source| Error::Journal {
            path: path.clone(),
            source,
        })?;
        write_durably(self.host.disk(), &path, &text)
    }

    /// The run is over: its journal goes, and with it the contents that nobody needs any more.
    fn close(&self) -> Result<()> {
        self.host.disk().remove(&self.state.path("journal"))?;
        self.host.disk().sync_folder(&self.state.folder)?;
        // What cannot be forgotten now is forgotten at the end of the next run.
        _ = self
            .record()
            .and_then(|record| self.store().forget_all_but(&record.contents().collect()));
        Ok(())
    }

    fn store(&self) -> Store<'a, H::Disk> {
        Store::new(self.host.disk(), &self.state.store)
    }
}

/// Where contents stand on the machine now that nobody brought.
fn place_of(plan: &Plan, hash: Hash) -> Option<&str> {
    let step = plan.steps.iter();
    let mut step = step.filter(|step| step.before.hash() == Some(hash));
    let has_it = |entry: &Entry| entry.hash() == Some(hash);
    let owned = || {
        let mut owned = plan.record.owned.iter();
        owned.find(|(_, owned)| has_it(&owned.entry) || has_it(&owned.before))
    };
    match step.next() {
        Some(step) => Some(&step.path),
        None => owned().map(|(path, _)| path.as_str()),
    }
}

/// A step, for whoever wants to know which one failed.
fn name(step: &Step) -> String {
    if is_about(step) {
        step.resource.to_string()
    } else {
        format!("{} ({})", step.resource, step.path)
    }
}

fn make_folders<D: Disk>(disk: &D, state: &State) -> Result<()> {
    // Until something is recorded, these folders may be those of a start that was killed before it
    // made them durable.
    let is_first = disk.look(&state.path("record"))? == Entry::Absent;
    let ours = [state.folder.as_str(), state.store.as_str()];
    let folders: BTreeSet<&str> = ours.iter().flat_map(|it| above(it).chain([*it])).collect();
    for folder in folders {
        let is_missing = disk.look(folder)? == Entry::Absent;
        if is_missing {
            // Private from our own folder on: what we keep there may be secret.
            let mode = if ours.contains(&folder) { 0o700 } else { 0o755 };
            match disk.make_folder(folder, mode, Ids::default()) {
                Err(Error::Path { source, .. })
                    if source.kind() == std::io::ErrorKind::AlreadyExists => {}
                other => other?,
            }
        }
        if is_missing || is_first {
            disk.sync_folder(crate::temporary::folder_of(folder))?;
        }
    }
    Ok(())
}
