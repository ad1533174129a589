//! Makes nodes of the Windows machines that are listed, and bare machines of those that are not any more.
//! `evenkeel_plan::windows::instances` decides; here it is observed, begun and reported.
//!
//! Every machine that is worked on has a task of its own, which delays nobody. At rest nothing is open,
//! and nobody is asked.

mod nodes;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use evenkeel_api::names::object;
use evenkeel_daemon::panics::contain_work;
use evenkeel_plan::windows::instances::{
    Cure, DesiredInstance, Fact, InstanceFailure, InstanceSnapshot, Todo, WindowsNode, Work, cured,
    decide, is_machine, learned, owned, ways,
};
use evenkeel_plan::windows::windows_pool::OwnedNodes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::{mpsc, watch};

use crate::shared::Shared;
use crate::triggers::Triggers;
use crate::windows::instances::{Fleet, Job, List};

/// How long after a change others are waited for, that may come with it.
const TOGETHER: Duration = Duration::from_millis(50);
/// How long after the API server failed it is tried again.
const AGAIN: Duration = Duration::from_secs(2);
/// How long changes of what is remembered are gathered before they are written.
const WRITE: Duration = Duration::from_millis(500);

/// What the person who runs the operator says about instances.
#[derive(Debug, Clone)]
pub(crate) struct InstanceOptions {
    /// The user to log in as on Machines.
    pub(crate) machine_user: String,
    /// How long the work on one instance may take before it is tried anew.
    pub(crate) work_within: Duration,
    /// How long an instance that leaves is looked for before it is given up.
    pub(crate) leave_within: Duration,
}

impl Default for InstanceOptions {
    fn default() -> Self {
        Self {
            machine_user: "Administrator".to_owned(),
            work_within: Duration::from_mins(30),
            leave_within: Duration::from_mins(15),
        }
    }
}

/// Cares for instances until the program is asked to stop.
pub(crate) async fn run(shared: &Shared, fleet: &Rc<Fleet>, options: &InstanceOptions) {
    while let Err(error) = fleet.records.load().await {
        tracing::warn!("cannot read the status of instances, will retry: {error}");
        tokio::select! {
            () = shared.stop.stopped() => return,
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
    let (list, heard) = watch::channel(None);
    let names = &fleet.known.names;
    let (keys, key_changes) = watch::channel(());
    let (host_keys, host_key_changes) = watch::channel(());
    let (jobs, begun) = mpsc::unbounded_channel();
    let (ended, done) = mpsc::unbounded_channel();
    let busy = RefCell::default();
    let controller = InstancesController {
        shared,
        fleet,
        options,
        jobs,
        busy: &busy,
        told: RefCell::default(),
    };
    tokio::select! {
        () = shared.stop.stopped() => {}
        () = follow_list(fleet, &list) => {}
        () = names.keep(heard.clone(), List::names) => {}
        () = follow(fleet, object::CLOUD_PRIVATE_KEY, &keys) => {}
        () = follow(fleet, object::HOST_KEYS, &host_keys) => {}
        () = fleet.machines.keep(&shared.stop) => {}
        () = fleet.machine_sets.keep(&shared.stop) => {}
        () = work(begun, ended) => {}
        () = write(fleet) => {}
        () = controller.rounds(heard, [key_changes, host_key_changes], done) => {}
    }
    // What an interrupted task was doing is known to whoever comes next.
    if let Err(error) = fleet.records.save().await {
        tracing::warn!("cannot write the status of instances: {error}");
    }
}

/// Follows the ConfigMap that lists instances.
async fn follow_list(fleet: &Fleet, list: &watch::Sender<Option<List>>) {
    let api: Api<ConfigMap> = Api::namespaced(fleet.client.clone(), &fleet.namespace);
    let changes = watcher::watch_object(api, object::WINDOWS_INSTANCES).default_backoff();
    let mut changes = std::pin::pin!(changes);
    while let Some(change) = changes.next().await {
        match change {
            Ok(found) => {
                let read = List::read(found.as_ref(), &fleet.namespace);
                fleet.known.list.replace(read.clone());
                list.send_replace(Some(read));
            }
            Err(error) => tracing::warn!("cannot watch {}: {error}", object::WINDOWS_INSTANCES),
        }
    }
}

/// Tells when a Secret has changed: whoever failed for it need not wait.
async fn follow(fleet: &Fleet, secret: &str, keys: &watch::Sender<()>) {
    let api: Api<Secret> = Api::namespaced(fleet.client.clone(), &fleet.namespace);
    let changes = watcher::watch_object(api, secret).default_backoff();
    let mut changes = std::pin::pin!(changes);
    let mut version = None;
    while let Some(change) = changes.next().await {
        match change {
            Ok(found) => {
                let now = found.and_then(|it| it.metadata.resource_version);
                if std::mem::replace(&mut version, now.clone()) != now {
                    keys.send_replace(());
                }
            }
            Err(error) => tracing::warn!("cannot watch {secret}: {error}"),
        }
    }
}

type EndedWork = (String, Work, Result<(), InstanceFailure>);

/// Runs all tasks, each on its own.
async fn work(mut begun: mpsc::UnboundedReceiver<Job>, ended: mpsc::UnboundedSender<EndedWork>) {
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            job = begun.recv() => {
                let Some(job) = job else { return };
                running.push(async move {
                    let done = contain_work("instances", &job.name, job.run()).await;
                    let done = done.unwrap_or_else(|| Err(InstanceFailure::crashed()));
                    (job.name.clone(), job.work, done)
                });
            }
            Some(done) = running.next() => {
                if ended.send(done).is_err() {
                    return;
                }
            }
        }
    }
}

/// Writes down what is remembered, when it has changed.
async fn write(fleet: &Fleet) {
    let mut changes = fleet.records.changes();
    // What an operator before this one wrote in another way is written down anew.
    changes.mark_changed();
    while changes.changed().await.is_ok() {
        tokio::time::sleep(WRITE).await;
        changes.mark_unchanged();
        fleet.metrics.count(&fleet.records.all());
        while let Err(error) = fleet.records.save().await {
            tracing::warn!("cannot write the status of instances, will retry: {error}");
            tokio::time::sleep(AGAIN).await;
        }
    }
}

struct InstancesController<'s> {
    shared: &'s Shared,
    fleet: &'s Rc<Fleet>,
    options: &'s InstanceOptions,
    jobs: mpsc::UnboundedSender<Job>,
    busy: &'s RefCell<BTreeMap<String, Work>>,
    /// Mistakes in the list that were told.
    told: RefCell<BTreeMap<String, InstanceFailure>>,
}

impl InstancesController<'_> {
    async fn rounds(
        &self,
        list: watch::Receiver<Option<List>>,
        [mut keys, mut host_keys]: [watch::Receiver<()>; 2],
        mut done: mpsc::UnboundedReceiver<EndedWork>,
    ) {
        let triggers = Triggers::until(&self.shared.stop)
            .and(list.clone())
            .and(self.shared.nodes.store().changes())
            .and(self.fleet.machines.changes())
            .and(self.fleet.known.names.changes())
            .and(self.shared.coexistence.changes())
            .and(self.fleet.removals.waiting());
        let mut triggers = self.shared.windows.wake(triggers);
        let mut pause = None;
        loop {
            tokio::select! {
                goes_on = triggers.next(pause) => if !goes_on { return },
                Ok(()) = keys.changed() => self.cure(Cure::PrivateKey),
                Ok(()) = host_keys.changed() => self.cure(Cure::HostKeys),
                Some(ended) = done.recv() => self.take_note(ended),
            }
            tokio::time::sleep(TOGETHER).await;
            while let Ok(ended) = done.try_recv() {
                self.take_note(ended);
            }
            triggers.mark_seen();
            let heard = list.borrow().clone();
            let is_idle = self.shared.coexistence.is_idle_for_windows();
            let Some(heard) = heard.filter(|_| self.shared.knows_windows() && !is_idle) else {
                pause = None;
                continue;
            };
            pause = self.round(&heard);
        }
    }

    /// Observe, plan, apply. Says how long nothing is to be done.
    fn round(&self, list: &List) -> Option<Duration> {
        let names = &self.fleet.known.names;
        let mut wanted = list.wanted(names);
        let unclear = list.unclear(names);
        let machines = self.fleet.machines.wanted(&self.options.machine_user);
        let is_known = machines.is_some();
        wanted.extend(machines.into_iter().flatten());
        let version = self.shared.windows.target().ok().map(|it| it.version);
        let nodes = self.nodes(version.as_ref());
        self.claim(&wanted, &unclear, &nodes);
        self.tell_mistakes(list);
        let records = &self.fleet.records;
        let login_ends = |node: &str| self.fleet.configuring.login_ends(node);
        self.learn(records.look(|all| learned(all, &wanted, &nodes, login_ends)));
        let records = records.all();
        let obstacle = self.fleet.obstacle();
        let busy = self.busy.borrow().clone();
        let now = Timestamp::now();
        let decision = decide(&InstanceSnapshot {
            wanted: is_known.then_some(&wanted),
            unclear: &unclear,
            records: &records,
            nodes: &nodes,
            busy: &busy,
            obstacle: obstacle.as_ref(),
            version: version.as_ref(),
            parallel: self.shared.windows.pool().parallel_instances,
            leave_within: self.options.leave_within,
            now,
        });
        self.fleet.removals.know(decision.leaving);
        for (name, todo) in decision.todo {
            self.apply(&name, &todo, wanted.get(&name), now);
        }
        decision.again.map(|at| {
            let left = at.duration_since(Timestamp::now());
            Duration::try_from(left).unwrap_or_default()
        })
    }

    /// Remembers what was learned of instances.
    fn learn(&self, facts: Vec<(String, Fact)>) {
        for (name, fact) in facts {
            self.fleet.records.learn(&name, fact);
        }
    }

    fn apply(&self, name: &str, todo: &Todo, wanted: Option<&DesiredInstance>, now: Timestamp) {
        let records = &self.fleet.records;
        if let Todo::Forget | Todo::Begin(Work::Forget) = todo {
            let state = records.get(name).unwrap_or_default().state;
            tracing::info!(instance = name, "forgot the instance, which was {state}");
        }
        if *todo == Todo::Forget {
            return records.forget(name);
        }
        // What is known of a machine without asking it.
        if let Some(wanted) = wanted {
            let (user, is_machine) = (wanted.user.clone(), is_machine(name));
            records.learn(name, Fact::Listed { user, is_machine });
        }
        let mut notice = None;
        records.change(name, |record| {
            notice = record.take(name, todo, self.options.leave_within, now);
        });
        if let Some(notice) = notice {
            self.fleet.tell(name, notice);
        }
        let Some(work) = todo.work() else { return };
        let record = records.get(name).unwrap_or_default();
        let job = Job {
            fleet: Rc::clone(self.fleet),
            name: name.to_owned(),
            addresses: ways(name, &record, wanted),
            user: record.user,
            work,
            limit: self.options.work_within,
        };
        self.busy.borrow_mut().insert(name.to_owned(), work);
        // Whoever receives it lives as long as this.
        _ = self.jobs.send(job);
    }

    /// A task has ended.
    fn take_note(&self, (name, work, result): EndedWork) {
        self.busy.borrow_mut().remove(&name);
        let Err(problem) = result else { return };
        self.fleet.metrics.failed(&problem.category);
        let records = &self.fleet.records;
        records.change(&name, |it| it.fail(&problem, Timestamp::now()));
        self.fleet.tell(&name, work.failed(&name, &problem));
    }

    /// Takes note that a Secret has changed.
    fn cure(&self, cure: Cure) {
        self.learn(self.fleet.records.look(|all| cured(all, cure)));
    }

    /// Says what cannot be read in the list, once for each mistake.
    fn tell_mistakes(&self, list: &List) {
        let mut told = self.told.borrow_mut();
        for (name, problem) in &list.mistakes {
            if told.get(name) != Some(problem) {
                self.fleet.tell(name, problem.notice(""));
            }
        }
        told.clone_from(&list.mistakes);
    }

    /// Says who is named as ours.
    fn claim(
        &self,
        wanted: &BTreeMap<String, DesiredInstance>,
        unclear: &BTreeSet<String>,
        nodes: &[WindowsNode],
    ) {
        let addresses = wanted.values().filter_map(|it| it.addresses.as_ref().ok());
        let addresses = addresses.flatten().map(ToString::to_string);
        let named = wanted.keys().cloned().chain(unclear.iter().cloned());
        let records = &self.fleet.records;
        self.shared.windows.claim(OwnedNodes {
            addresses: addresses.chain(named).collect(),
            nodes: records.look(|all| owned(all, wanted, nodes)),
        });
    }
}
