//! Policies of rollouts, as pools name them.

use std::collections::BTreeMap;

use anyhow::Result;
use evenkeel_api::field::Field;
use evenkeel_api::fleet::rollout_policy::{KIND, PLURAL, VERSION};
use evenkeel_api::names::group;
use evenkeel_plan::fleet::policy::{PolicyLookup, PolicyReference, RolloutPolicy};
use kube::ResourceExt;
use kube::api::{ApiResource, DynamicObject, ListParams};

use super::{Cluster, kind};

/// The kind.
pub(crate) fn policies_kind() -> ApiResource {
    kind(group::EVENKEEL, VERSION, KIND, PLURAL)
}

/// All policies, by name.
#[derive(Default)]
pub(crate) struct NamedPolicies(BTreeMap<String, RolloutPolicy>);

impl NamedPolicies {
    /// Those of the cluster, if any of these pools names one. A cluster that does not know the kind has none.
    pub(crate) async fn named_by<'p>(
        cluster: &Cluster,
        mut pools: impl Iterator<Item = &'p PolicyReference>,
    ) -> Result<Self> {
        if pools.all(|it| it.name.is_none()) {
            return Ok(Self::default());
        }
        let all = cluster.all(&policies_kind());
        let found = match cluster.pages(&all, &ListParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
            found => found.map_err(|error| cluster.explain("list rolloutpolicies", error))?,
        };
        let read = |mut object: DynamicObject| {
            let spec = Field::from(object.data["spec"].take());
            (object.name_any(), RolloutPolicy::read(&spec))
        };
        Ok(Self(found.into_iter().map(read).collect()))
    }

    /// What a pool names.
    pub(crate) fn look_up(&self, reference: &PolicyReference) -> PolicyLookup<'_> {
        let found = reference.name.as_ref().and_then(|name| self.0.get(name));
        found.map_or(PolicyLookup::Missing, PolicyLookup::Found)
    }
}
