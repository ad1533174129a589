//! What the cluster's owner says that changes need around them: in OpenShift's `MachineConfiguration` named cluster, in a ConfigMap
//! of ours, or in both. It is kept here; the renderer hands it to the nodes with their configurations.

use evenkeel_api::machine::disruption_policy::{DisruptionPolicy, PolicyProblem};
use evenkeel_api::names::{group, object};
use evenkeel_daemon::Stop;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::DynamicObject;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::sync::watch;

use crate::kinds::Kind;
use crate::objects::resource;

/// What one source says, with what makes no sense in it.
type DeclaredPolicy = (DisruptionPolicy, Vec<PolicyProblem>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Sources {
    /// Nobody knows before somebody has looked.
    openshift: Option<DeclaredPolicy>,
    own: Option<DeclaredPolicy>,
}

/// What the owner says. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct DisruptionPolicies(watch::Sender<Sources>);

impl DisruptionPolicies {
    /// Whether all who may say something have been asked.
    pub(crate) fn is_known(&self) -> bool {
        let sources = self.0.borrow();
        sources.openshift.is_some() && sources.own.is_some()
    }

    /// What they say together.
    pub(crate) fn policy(&self) -> DisruptionPolicy {
        let sources = self.0.borrow();
        let said = [&sources.openshift, &sources.own].into_iter().flatten();
        said.fold(DisruptionPolicy::default(), |all, (policy, _)| {
            all.and(policy.clone())
        })
    }

    /// What makes no sense in it, with the object it stands in.
    pub(crate) fn problems(&self) -> Vec<String> {
        let sources = self.0.borrow();
        let own = format!("ConfigMap {}", object::DISRUPTION_POLICY);
        let places = [
            ("MachineConfiguration cluster", &sources.openshift),
            (own.as_str(), &sources.own),
        ];
        let said = places.into_iter();
        said.flat_map(|(place, said)| {
            let problems = said.iter().flat_map(|(_, problems)| problems);
            problems.map(move |problem| format!("{place}: {problem}"))
        })
        .collect()
    }

    /// Tells when any of that has changed.
    pub(crate) fn changes(&self) -> watch::Receiver<impl Sized + use<>> {
        self.0.subscribe()
    }

    /// Keeps it until the program is asked to stop.
    pub(crate) async fn keep(&self, client: &Client, namespace: &str, stop: &Stop) {
        let kind = resource(
            group::OPENSHIFT_OPERATOR,
            "v1",
            "MachineConfiguration",
            "machineconfigurations",
        );
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
        let definition = Kind::new(client.clone(), &kind);
        let openshift = definition.follow(
            || self.say(|it| it.openshift = Some(DeclaredPolicy::default())),
            async || {
                let changes = watcher::watch_object(api.clone(), "cluster").default_backoff();
                let read = |found: Option<DynamicObject>| {
                    let found = found.map(|it| it.data["spec"]["nodeDisruptionPolicy"].clone());
                    DisruptionPolicy::read(&found.unwrap_or_default())
                };
                self.follow("MachineConfiguration cluster", changes, |found| {
                    let said = read(found);
                    self.say(|it| it.openshift = Some(said));
                })
                .await;
            },
        );
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let changes = watcher::watch_object(maps, object::DISRUPTION_POLICY).default_backoff();
        let own = self.follow("ConfigMap", changes, |found: Option<ConfigMap>| {
            let data = found.and_then(|it| it.data).unwrap_or_default();
            let said = match data.get(object::DISRUPTION_POLICY_KEY) {
                Some(text) => DisruptionPolicy::parse(text),
                None => DeclaredPolicy::default(),
            };
            self.say(|it| it.own = Some(said));
        });
        tokio::select! {
            () = stop.stopped() => {}
            _ = async { tokio::join!(openshift, own) } => {}
        }
    }

    async fn follow<K>(
        &self,
        what: &str,
        changes: impl Stream<Item = Result<Option<K>, watcher::Error>>,
        take: impl Fn(Option<K>),
    ) {
        let mut changes = std::pin::pin!(changes);
        while let Some(change) = changes.next().await {
            match change {
                Ok(found) => take(found),
                Err(error) => {
                    tracing::warn!(
                        "cannot watch the disruption policy in {what}, will retry: {error}"
                    );
                }
            }
        }
    }

    fn say(&self, change: impl FnOnce(&mut Sources)) {
        self.0.send_if_modified(|sources| {
            let before = sources.clone();
            change(sources);
            *sources != before
        });
    }
}
