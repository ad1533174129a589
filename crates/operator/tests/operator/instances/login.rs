//! The login of an agent, beyond its end.

use std::time::{Duration, SystemTime};

use evenkeel_testbed::network::GATEWAY;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result};
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::bed::{Bed, LONG, is_skipped};
use crate::scene::annotated;

const STATE: &str = "machineconfiguration.openshift.io/state";
const LOGIN: &str = r"C:\k\state\kubeconfig";

/// Covers W15.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_was_off_until_its_login_ended_gets_a_new_one_without_a_person() -> Result<()>
{
    if is_skipped()? {
        return Ok(());
    }
    let bed = Bed::new("win-login").await?;
    let instance = bed.instance("op-login")?;
    let address = instance.address().to_string();
    let node = instance.computer_name().to_lowercase();
    let operator = bed.operator(&[])?;
    bed.list_these(&[&instance]).await?;
    bed.serves(&instance).await?;
    let status = until_async("when its login ends to be remembered", LONG, async || {
        let status = bed.status(&address).await?;
        let ends = status["loginEnds"].as_str().map(str::parse::<Timestamp>);
        Ok(match ends {
            Some(Ok(ends)) if ends > Timestamp::now() => Look::Found(status),
            _ => Look::NotYet(status.to_string()),
        })
    })
    .await?;

    // A month later: nobody was there to renew it.
    drop(operator);
    bed.scene.nobody_leads().await?;
    let service = |what: &str| {
        let words = ["windows-probe", "service", what, "evenkeel-agent"];
        instance.ask(&words).map(|_| ())
    };
    service("stop")?;
    let now = SystemTime::now();
    let held = now - Duration::from_hours(2)..now - Duration::from_hours(1);
    let user = format!("evenkeel:agent:{node}");
    let path = instance.path(LOGIN)?;
    bed.scene
        .control_plane
        .kubeconfig_that_holds(&user, &["evenkeel:agents"], held)?
        .at(&GATEWAY.to_string())
        .write(&path)?;
    let ended = std::fs::read(&path).doing(|| "no login")?;
    let mut record = status;
    record["loginEnds"] = json!((Timestamp::now() - Duration::from_hours(1)).to_string());
    remember(&bed, &address, &record).await?;
    forget_requests(&bed).await?;
    service("start")?;

    let _operator = bed.operator(&[])?;
    bed.told("AgentLoggedIn", &[&address, &node]).await?;
    assert_ne!(std::fs::read(&path).doing(|| "no login")?, ended);
    assert!(!instance.path(r"C:\k\login")?.exists(), "a login was left");
    // Its agent, which nobody started anew, is back: it says again what somebody wiped away.
    let wiped = json!({ "metadata": { "annotations": { STATE: null } } });
    let nodes = bed.scene.nodes();
    nodes
        .patch(&node, &PatchParams::default(), &Patch::Merge(wiped))
        .await
        .doing(|| "cannot change the Node")?;
    until_async("the agent to be back", LONG, async || {
        let found = bed.scene.node(&node).await?;
        let said = annotated(&found, STATE);
        Ok(match said {
            Some("Done") => Look::Found(()),
            said => Look::NotYet(format!("{said:?}")),
        })
    })
    .await
}

/// Requests of a month ago are gone: the controller manager removes them an hour after they were answered.
async fn forget_requests(bed: &Bed) -> Result<()> {
    let requests: Api<CertificateSigningRequest> = Api::all(bed.scene.client.clone());
    let account = format!("system:serviceaccount:{}:evenkeel-agent", bed.scene.name);
    let all = requests.list(&ListParams::default()).await;
    let all = all.doing(|| "cannot list requests")?.items.into_iter();
    for request in all.filter(|it| it.spec.username.as_deref() == Some(&account)) {
        requests
            .delete(&request.name_any(), &DeleteParams::default())
            .await
            .doing(|| "cannot delete a request")?;
    }
    Ok(())
}

/// Writes down what is remembered of an instance.
async fn remember(bed: &Bed, name: &str, record: &Value) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(bed.scene.client.clone(), &bed.scene.name);
    let object = bed.scene.record_object(name).await?;
    let patch = json!({ "data": { "status": record.to_string() } });
    maps.patch(&object, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map(|_| ())
        .doing(|| "cannot write a status")
}
