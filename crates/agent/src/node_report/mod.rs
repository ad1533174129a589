//! Reports what the machine says of itself: which boot and which start of its kubelet this is, what its
//! probes are answered, and the state of its configuration. All of it is one Lease: written at once when
//! something has changed, and renewed three times before it would be taken for silence.
//!
//! What is probed and what an answer means is decided by `evenkeel_plan::readiness::Probing`, and how often the Lease is
//! renewed by `evenkeel_plan::readiness::Renewal`.

mod addresses;
mod lease;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_api::machine::node_state::NodeState;
use evenkeel_api::names::{annotation, group};
use evenkeel_api::readiness::{
    CertificateReport, KIND, PLURAL, ReadinessRule, VERSION, rule_from_spec,
};
use evenkeel_plan::readiness::{Moment, Probing, Question, needed, renewal_period};
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::addresses::Addresses;
use self::lease::Lease;

/// How often the machine is looked at for a restart, and for what is due.
const LOOK: Duration = Duration::from_millis(500);
/// How much longer than it may take a question is waited for, by whoever asks it.
const SLACK: Duration = Duration::from_secs(1);
/// How long after the API server did not answer it is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What of the own Node matters here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NodeSnapshot {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
}

impl NodeSnapshot {
    pub(crate) fn of(metadata: Option<&ObjectMeta>) -> Self {
        let texts = |of: fn(&ObjectMeta) -> &Option<BTreeMap<String, String>>| {
            metadata.and_then(|it| of(it).clone()).unwrap_or_default()
        };
        Self {
            labels: texts(|it| &it.labels),
            annotations: texts(|it| &it.annotations),
        }
    }

    /// Shows it to the reporter, if it has changed.
    pub(crate) fn show(self, shown: &watch::Sender<Self>) {
        shown.send_if_modified(|before| {
            let differs = *before != self;
            *before = self;
            differs
        });
    }
}

/// What the machine can be asked.
pub(crate) trait ReportedMachine: Send + Sync + 'static {
    /// Which boot this is.
    fn boot_id(&self) -> String;
    /// Which start of the kubelet this is; empty while it is down.
    fn kubelet_start(&self) -> String;
    /// What is made of the node's configuration.
    fn state(&self, seen: &NodeSnapshot) -> NodeState;
    /// Whom the machine trusts, where that is kept.
    fn certificates(&self) -> Option<CertificateReport> {
        None
    }
    /// Asks a question, and says why the answer is not healthy. May wait.
    fn ask(&self, question: &Question) -> Result<(), String>;
}

/// Reports until it is aborted.
pub(crate) async fn report(
    client: Client,
    node: String,
    machine: Arc<impl ReportedMachine>,
    mut seen: watch::Receiver<NodeSnapshot>,
) {
    let start = Instant::now();
    let now = || Moment(start.elapsed());
    let mut probing = Probing::default();
    let mut lease = Lease::new(&client, &node);
    let mut rules = Rules::new(&client);
    let mut changes = rules.changes();
    let mut addresses = Addresses::new(&client, &node);
    let mut answers: JoinSet<(String, Result<(), String>)> = JoinSet::new();
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = look.tick() => {}
            Some(answer) = answers.join_next() => {
                if let Ok((name, answer)) = answer {
                    probing.answered(&name, answer, &lease::clock());
                }
            }
            changed = seen.changed() => if changed.is_err() { return },
            Some(()) = changes.next() => rules.are_stale = true,
        }
        rules.read_if_stale().await;
        let node = seen.borrow_and_update().clone();
        let label = |name: &str| node.labels.get(name).map(String::as_str);
        let own = node.annotations.get(annotation::SYSTEM_EXTENSIONS);
        let needed = needed(&rules.known, label, own.map(String::as_str));
        let period = renewal_period(rules.are_all_known.then_some(needed.as_slice()));
        probing.set(needed, now());
        if probing.asks_node() {
            addresses.read_if_stale().await;
            probing.set_addresses(addresses.known.iter().map(String::as_str));
        }
        probing.set_state(machine.state(&node));
        probing.set_certificates(machine.certificates());
        probing.see(&machine.boot_id(), &machine.kubelet_start(), now());
        for question in probing.due(now()) {
            answers.spawn(ask(Arc::clone(&machine), question));
        }
        lease.keep(&probing.report(), period, &now).await;
    }
}

/// Asks a question, and gives it up when the answer takes too long: silence is no answer.
async fn ask(
    machine: Arc<impl ReportedMachine>,
    question: Question,
) -> (String, Result<(), String>) {
    let (name, limit) = (question.name.clone(), question.timeout + SLACK);
    let asked = tokio::task::spawn_blocking(move || machine.ask(&question));
    let answer = match tokio::time::timeout(limit, asked).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) | Err(_) => Err(format!("no answer within {limit:?}")),
    };
    (name, answer)
}

/// The rules of the cluster. Their metadata is watched, because statuses change often and matter to
/// nobody here; what they say is read when one has another generation.
struct Rules {
    api: Api<DynamicObject>,
    metadata: Api<PartialObjectMeta<DynamicObject>>,
    known: Vec<ReadinessRule>,
    /// Whether there is none that was not read, or that cannot be read.
    are_all_known: bool,
    are_stale: bool,
    asked: Option<Instant>,
}

impl Rules {
    fn new(client: &Client) -> Self {
        let kind = GroupVersionKind::gvk(group::EVENKEEL, VERSION, KIND);
        let kind = ApiResource::from_gvk_with_plural(&kind, PLURAL);
        Self {
            api: Api::all_with(client.clone(), &kind),
            metadata: Api::all_with(client.clone(), &kind),
            known: Vec::new(),
            are_all_known: false,
            are_stale: true,
            asked: None,
        }
    }

    /// Tells whenever one came, went, or says something else.
    fn changes(&self) -> BoxStream<'static, ()> {
        let mut generations: BTreeMap<String, Option<i64>> = BTreeMap::new();
        let changes = watcher(self.metadata.clone(), watcher::Config::default()).default_backoff();
        let news = changes.filter_map(move |change| {
            let is_news = match change {
                Ok(watcher::Event::Apply(it) | watcher::Event::InitApply(it)) => {
                    let name = it.metadata.name.unwrap_or_default();
                    generations.insert(name, it.metadata.generation) != Some(it.metadata.generation)
                }
                Ok(watcher::Event::Delete(_) | watcher::Event::InitDone) => true,
                Ok(watcher::Event::Init) | Err(_) => false,
            };
            std::future::ready(is_news.then_some(()))
        });
        news.boxed()
    }

    async fn read_if_stale(&mut self) {
        let is_early = self.asked.is_some_and(|it| it.elapsed() < ASK_AGAIN);
        if !self.are_stale || is_early {
            return;
        }
        self.asked = Some(Instant::now());
        let list = ListParams::default();
        let found = tokio::time::timeout(lease::ANSWER, self.api.list(&list)).await;
        match found {
            Ok(Ok(list)) => {
                // A rule that cannot be read is told of by the operator.
                let read = |it: &DynamicObject| {
                    let name = it.metadata.name.as_deref().unwrap_or_default();
                    rule_from_spec(name, &it.data["spec"])
                };
                let read = list.items.iter().filter_map(|it| read(it).ok());
                self.known = read.map(|(rule, _)| rule).collect();
                self.are_all_known = self.known.len() == list.items.len();
                self.are_stale = false;
            }
            // A cluster that does not know rules has none; it is told when that changes.
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                self.known.clear();
                self.are_all_known = true;
                self.are_stale = false;
            }
            Ok(Err(error)) => tracing::warn!(%error, "cannot list NodeReadinessRules, will retry"),
            Err(_) => tracing::warn!(
                "cannot list NodeReadinessRules, will retry: the API server did not answer"
            ),
        }
    }
}
