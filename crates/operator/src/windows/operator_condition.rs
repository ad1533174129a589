//! Tells OLM whether a newer version may be installed: the condition Upgradeable of the `OperatorCondition` that OLM made for
//! this operator. `evenkeel_plan::windows::operator_condition` decides. Without OLM nothing of this runs.

use std::time::Duration;

use evenkeel_api::fleet::machine_config_pool::Condition;
use evenkeel_api::names::group;
use evenkeel_api::windows::windows_pool::condition::UPGRADEABLE;
use evenkeel_plan::windows::operator_condition::upgradeable;
use kube::Api;
use kube::api::Patch;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

use crate::conditions::dated;
use crate::objects::ours;
use crate::shared::Shared;
use crate::triggers::Triggers;

const VERSION: &str = "v2";
const KIND: &str = "OperatorCondition";
const PLURAL: &str = "operatorconditions";
/// How long after a failure it is tried again, and how often it is looked whether it still says so.
const AGAIN: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_mins(5);

/// Keeps the condition until the program is asked to stop.
pub(crate) async fn run(shared: &Shared, name: Option<&str>, namespace: &str) {
    let Some(name) = name else {
        return;
    };
    let kind = GroupVersionKind::gvk(group::OPERATORS, VERSION, KIND);
    let kind = ApiResource::from_gvk_with_plural(&kind, PLURAL);
    let api: Api<DynamicObject> = Api::namespaced_with(shared.client.clone(), namespace, &kind);
    let cares = shared.has_windows;
    let mut triggers = Triggers::until(&shared.stop).and(shared.windows.store().changes());
    let mut pause = Some(Duration::ZERO);
    while triggers.next(pause).await {
        if cares && !shared.windows.store().is_listed() {
            pause = Some(AGAIN);
            continue;
        }
        let seen = shared.windows.seen().filter(|_| cares);
        let wanted = upgradeable(seen.as_ref().map(|it| &it.status));
        pause = Some(match say(&api, name, wanted).await {
            Ok(()) => LOOK,
            Err(error) => {
                tracing::warn!("cannot write {KIND} {name}, will retry: {error}");
                AGAIN
            }
        });
    }
}

/// Says it, unless it is said already. What others say there stays.
async fn say(api: &Api<DynamicObject>, name: &str, wanted: Condition) -> kube::Result<()> {
    let found = api.get(name).await?;
    let all = found.data["spec"]["conditions"].as_array();
    let (own, others): (Vec<&Value>, Vec<&Value>) = all
        .into_iter()
        .flatten()
        .partition(|it| it["type"] == UPGRADEABLE);
    let own = own.into_iter().cloned().map(serde_json::from_value);
    let before: Vec<Condition> = own.filter_map(Result::ok).collect();
    let after = dated(vec![wanted], &before, &[UPGRADEABLE]);
    if after == before {
        return Ok(());
    }
    tracing::info!("{KIND} {name}: {:?}", after.first());
    let after = after.iter().map(|it| json!(it));
    let after: Vec<Value> = others.into_iter().cloned().chain(after).collect();
    let patch = Patch::Merge(json!({
        "metadata": { "resourceVersion": found.metadata.resource_version },
        "spec": { "conditions": after },
    }));
    api.patch(name, &ours(), &patch).await.map(|_| ())
}
