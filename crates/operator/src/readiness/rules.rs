//! Readiness rules, as the controller uses them: what their owners want, what was said of them last, and
//! how that is written.

use evenkeel_api::field::Field;
use evenkeel_api::names::group;
use evenkeel_api::readiness::{KIND, PLURAL, ReadinessRule, RuleStatus, VERSION, rule_from_spec};
use evenkeel_daemon::{Check, Stop};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::Object;
use kube::{Api, Client};
use serde_json::Value;

use crate::fleet::nodes::watching;
use crate::objects::{Objects, resource};
use crate::store::{Identity, Kept, Store};

type RuleObject = Object<Value, Field<RuleStatus>>;

/// A rule as it was at one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedRule {
    pub(crate) name: String,
    pub(crate) uid: String,
    version: String,
    pub(crate) generation: i64,
    /// What it says, or what is wrong with that.
    pub(crate) rule: Result<ReadinessRule, String>,
    /// What its owner most likely does not mean.
    pub(crate) warnings: Vec<String>,
    pub(crate) status: RuleStatus,
}

impl From<RuleObject> for ObservedRule {
    fn from(object: RuleObject) -> Self {
        let metadata = object.metadata;
        let name = metadata.name.unwrap_or_default();
        let uid = metadata.uid.unwrap_or_default();
        let (rule, warnings) = match rule_from_spec(&name, &object.spec) {
            Ok((mut rule, warnings)) => {
                rule.uid.clone_from(&uid);
                let warnings = warnings.iter().map(ToString::to_string).collect();
                (Ok(rule), warnings)
            }
            Err(problems) => (Err(problems.to_string()), Vec::new()),
        };
        Self {
            name,
            uid,
            version: metadata.resource_version.unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            rule,
            warnings,
            // Nobody but us writes it: what makes no sense is written anew.
            status: object.status.and_then(Field::valid).unwrap_or_default(),
        }
    }
}

impl Kept for ObservedRule {
    fn identity(&self) -> Identity<'_> {
        Identity {
            name: &self.name,
            uid: &self.uid,
            version: &self.version,
        }
    }

    fn is_as(&self, other: &Self) -> bool {
        // A status that somebody else has written is written anew.
        (&self.rule, self.generation, &self.status)
            == (&other.rule, other.generation, &other.status)
    }
}

impl ObservedRule {
    /// How an Event names this rule.
    pub(crate) fn reference(&self) -> ObjectReference {
        let api_version = format!("{}/{VERSION}", group::EVENKEEL);
        self.identity().reference(api_version, KIND)
    }
}

/// All rules that we care for.
#[derive(Clone)]
pub(crate) struct Rules(Objects<RuleObject, ObservedRule>);

impl Rules {
    pub(crate) fn new(client: Client) -> Self {
        let kind = resource(group::EVENKEEL, VERSION, KIND, PLURAL);
        Self(Objects::new(Api::all_with(client, &kind)))
    }

    /// What is known of them.
    pub(crate) fn store(&self) -> &Store<ObservedRule> {
        self.0.store()
    }

    /// Keeps them, those with `labels` only, until the program is asked to stop.
    pub(crate) async fn keep(&self, labels: Option<&str>, check: Check, stop: &Stop) {
        self.0.keep(PLURAL, watching(labels), check, stop).await;
    }

    /// Writes what is said of a rule.
    pub(crate) async fn say(&self, seen: &ObservedRule, status: &RuleStatus) -> kube::Result<()> {
        self.0.merge_status_as_seen(seen, status).await.map(|_| ())
    }
}
