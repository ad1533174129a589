//! Three nodes that get other versions, and what is on each of them.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::windows_pool::{KIND, PLURAL, VERSION as POOL_VERSION};
use evenkeel_testbed::egress_proxy::{EgressProxy, GREETING};
use evenkeel_testbed::process::Running;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::windows_instance::WindowsInstance;
use evenkeel_testbed::{Doing, Result};
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::bed::{Bed, FIRST, LONG, agent_log};
use super::proxy::{seen_by_kubelet, until_ours, variable};
use super::release::{Release, payload_on, stored_on, with_service};
use crate::scene::annotated;

/// What is reached without the proxy, at first.
const DIRECT: &str = ".svc,198.18.0.1";

/// The machines, and the cluster that they are nodes of.
pub(crate) struct Fleet {
    pub(crate) bed: Bed,
    pub(crate) instances: Vec<WindowsInstance>,
    pub(crate) names: Vec<String>,
    uids: Vec<String>,
    /// The way to the world outside, where there is one.
    pub(crate) proxy: Option<EgressProxy>,
    /// What is reached without it.
    pub(crate) direct: Cell<&'static str>,
}

impl Fleet {
    /// Three nodes at the first version, with an operator of it.
    pub(crate) async fn new(
        prefix: &str,
        machines: [&str; 3],
        proxy: Option<EgressProxy>,
    ) -> Result<(Self, Running)> {
        let bed = Bed::new(prefix).await?;
        make_pool(&bed).await?;
        let mut instances = Vec::new();
        for name in machines {
            instances.push(bed.instance(name)?);
        }
        let mut fleet = Self {
            bed,
            instances,
            names: machines.map(str::to_owned).into(),
            uids: Vec::new(),
            proxy,
            direct: Cell::new(DIRECT),
        };
        let bed = &fleet.bed;
        let operator = fleet.operator(&first_release(bed)?, &[])?;
        bed.led().await?;
        bed.list_these(&fleet.instances.iter().collect::<Vec<_>>())
            .await?;
        for instance in &fleet.instances {
            let node = bed.serves(instance).await?;
            fleet.uids.push(node.uid().unwrap_or_default());
        }
        Ok((fleet, operator))
    }

    /// The operator of `release`, with the proxy in its environment as OLM sets it.
    pub(crate) fn operator(&self, release: &Release, options: &[&str]) -> Result<Running> {
        let url = self.proxy.as_ref().map(EgressProxy::url);
        let environment: Vec<(&str, &str)> = match &url {
            Some(url) => vec![("HTTPS_PROXY", url), ("NO_PROXY", self.direct.get())],
            None => Vec::new(),
        };
        self.bed
            .operator_in(&environment, &release.payload, options)
    }

    /// Whether every machine and its services have the proxy, if there is one, and trust it.
    pub(crate) async fn has_its_proxy(&self) -> Result<()> {
        let Some(proxy) = &self.proxy else {
            return Ok(());
        };
        let (url, direct) = (proxy.url(), self.direct.get());
        for instance in &self.instances {
            for (name, value) in [("HTTPS_PROXY", url.as_str()), ("NO_PROXY", direct)] {
                let place = format!("{name} of {}", instance.computer_name());
                assert_eq!(variable(instance, name)?.as_deref(), Some(value), "{place}");
                assert_eq!(seen_by_kubelet(instance, name)?, value, "{place}");
            }
            assert_eq!(variable(instance, "HTTP_PROXY")?, None);
            until_ours(instance, &[proxy]).await?;
            assert_eq!(instance.ask(&["windows-probe", "world"])?, GREETING);
        }
        Ok(())
    }

    /// Waits until all run `release`, and checks that they run nothing else.
    pub(crate) async fn all_run(&self, release: &Release, services: &[&str]) -> Result<()> {
        for (at, instance) in self.instances.iter().enumerate() {
            let node = self.bed.serves_at(instance, release.version).await?;
            assert_eq!(
                node.uid().as_ref(),
                self.uids.get(at),
                "it is the same Node"
            );
            self.bed.settled(&instance.address().to_string()).await?;
            released(&self.bed, &self.names[at]).await?;
            has_only(instance, release, services).await?;
        }
        Ok(())
    }

    /// What every Node says, and its agent said last.
    pub(crate) async fn last_words(&self) -> Result<String> {
        let mut words = Vec::new();
        for (name, instance) in self.names.iter().zip(&self.instances) {
            let node = self.bed.scene.node(name).await?;
            let agent = agent_log(instance, 30)?;
            let said = node.annotations();
            words.push(format!("{name}: {said:?}\nits agent:\n{agent}"));
        }
        Ok(words.join("\n"))
    }

    /// The operator of `release` in the place of the one that runs.
    pub(crate) async fn operator_of(
        &self,
        release: &Release,
        before: Running,
        options: &[&str],
    ) -> Result<Running> {
        drop(before);
        self.bed.scene.nobody_leads().await?;
        self.operator(release, options)
    }
}

/// Whether the machine has the files of `release` and no others, and its services run.
pub(crate) async fn has_only(
    instance: &WindowsInstance,
    release: &Release,
    services: &[&str],
) -> Result<()> {
    let wanted = release.files()?;
    let name = instance.computer_name();
    let what = format!("{name} to have the files of {} only", release.version);
    until_async(&what, LONG, async || {
        let found = payload_on(instance)?;
        let stored = stored_on(instance)?;
        let copies: BTreeSet<String> = wanted.values().cloned().collect();
        let has_all = copies.is_subset(&stored);
        Ok(if found == wanted && has_all {
            Look::Found(())
        } else {
            let differs = |one: &BTreeMap<String, String>, other: &BTreeMap<String, String>| {
                let differs = one
                    .iter()
                    .filter(|(path, sum)| other.get(*path) != Some(sum));
                differs.map(|it| it.0.clone()).collect::<Vec<_>>()
            };
            Look::NotYet(format!(
                "too many or wrong: {:?}; missing: {:?}; stored: {has_all}",
                differs(&found, &wanted),
                differs(&wanted, &found)
            ))
        })
    })
    .await?;
    for service in ["containerd", "kubelet", "network", "evenkeel-agent"]
        .iter()
        .chain(services)
    {
        assert_eq!(state(instance, service)?, "Running", "{service} on {name}");
    }
    Ok(())
}

/// The first version: it has files and a service that no other has.
pub(crate) fn first_release(bed: &Bed) -> Result<Release> {
    let texts = [
        ("same.txt", "the same in all versions"),
        ("changed.txt", "as in the first version"),
        ("old/old.txt", "only in the first version"),
    ];
    Release::new(bed, FIRST, &texts, |it| {
        with_service(it, "legacy", "--first");
    })
}

pub(crate) fn pools(bed: &Bed) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("evenkeel.dev", POOL_VERSION, KIND);
    let kind = ApiResource::from_gvk_with_plural(&kind, PLURAL);
    Api::all_with(bed.scene.client.clone(), &kind)
}

pub(crate) async fn make_pool(bed: &Bed) -> Result<()> {
    let pool = json!({
        "apiVersion": "evenkeel.dev/v1alpha1", "kind": KIND,
        "metadata": { "name": bed.scene.own("windows") }, "spec": {},
    });
    let pool = serde_json::from_value(pool).doing(|| "no pool")?;
    let made = pools(bed).create(&PostParams::default(), &pool).await;
    made.map(|_| ()).doing(|| "cannot make the WindowsPool")
}

pub(crate) fn state(instance: &WindowsInstance, service: &str) -> Result<String> {
    instance.ask(&["windows-probe", "service", "state", service])
}

/// Waits until nothing of an upgrade is left on a Node.
pub(crate) async fn released(bed: &Bed, name: &str) -> Result<()> {
    until_async(&format!("{name} to be let go"), LONG, async || {
        let node = bed.scene.node(name).await?;
        let is_over = annotated(&node, "evenkeel.dev/drain-granted").is_none()
            && annotated(&node, "evenkeel.dev/supplied").is_none();
        Ok(if is_over {
            Look::Found(())
        } else {
            Look::NotYet(format!("{:?}", node.annotations()))
        })
    })
    .await
}
