//! How a node gets a certificate of its own: a real signing request, approved by somebody else.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt};
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::json;

use super::NodeDescription;
use crate::kubeconfig::Kubeconfig;
use crate::{Doing, Error, Result, wait};

const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// How long an approval and the signature may take.
const PATIENCE: Duration = Duration::from_mins(2);

/// Asks for a certificate and returns the login it gives. If somebody was named who approves, the
/// approval is given here; else whoever approves in that cluster is waited for.
pub(super) async fn obtain(node: &NodeDescription, bootstrap: &Kubeconfig) -> Result<Kubeconfig> {
    let name = node.name();
    let key = KeyPair::generate().doing(|| "cannot make a key")?;
    let requests: Api<CertificateSigningRequest> = Api::all(bootstrap.client().await?);
    let request = requests
        .create(&PostParams::default(), &request(name, &key)?)
        .await
        .doing(|| format!("node {name} cannot request a certificate"))?
        .name_any();
    if let Some(approver) = &node.approved_by {
        approve(&request, approver).await?;
    }
    let decided = |found: Option<&CertificateSigningRequest>| found.is_none_or(is_decided);
    let waiting = await_condition(requests, &request, decided);
    let decided = tokio::time::timeout(PATIENCE, waiting).await;
    let what = format!("the certificate of node {name} ({request})");
    let found = decided
        .map_err(|_| wait::late(&what, PATIENCE, "it was not approved or not signed"))?
        .doing(|| format!("cannot follow {what}"))?;
    match found.and_then(|found| found.status?.certificate) {
        Some(ByteString(pem)) => {
            bootstrap.logged_in_with(&String::from_utf8_lossy(&pem), &key.serialize_pem())
        }
        None => Err(Error::failed(format!(
            "{what} was denied or its request deleted"
        ))),
    }
}

fn is_decided(request: &CertificateSigningRequest) -> bool {
    request.status.as_ref().is_some_and(|status| {
        let mut conditions = status.conditions.iter().flatten();
        status.certificate.is_some() || conditions.any(|it| it.type_ != "Approved")
    })
}

fn request(name: &str, key: &KeyPair) -> Result<CertificateSigningRequest> {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "system:nodes");
    params
        .distinguished_name
        .push(DnType::CommonName, format!("system:node:{name}"));
    let pem = params
        .serialize_request(key)
        .and_then(|request| request.pem())
        .doing(|| "cannot make a certificate request")?;
    Ok(CertificateSigningRequest {
        metadata: ObjectMeta {
            generate_name: Some("csr-".to_owned()),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: SIGNER.to_owned(),
            usages: Some(vec![
                "digital signature".to_owned(),
                "client auth".to_owned(),
            ]),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    })
}

async fn approve(request: &str, approver: &Kubeconfig) -> Result<()> {
    let requests: Api<CertificateSigningRequest> = Api::all(approver.client().await?);
    let approval = json!({ "status": { "conditions": [{
        "type": "Approved",
        "status": "True",
        "reason": "Testbed",
        "message": "the test bed approves its own nodes",
    }]}});
    requests
        .patch_approval(request, &PatchParams::default(), &Patch::Merge(approval))
        .await
        .map(|_| ())
        .doing(|| format!("cannot approve {request}"))
}
