//! The agent's own login: a certificate for this node, asked for with a login that may not do more.

use std::path::Path;
use std::time::Duration;

use evenkeel_api::backoff::Backoff;
use evenkeel_api::names::identity::{AGENT_GROUP, AGENT_USER_PREFIX};
use evenkeel_daemon::{Daemon, Error, Result};
use evenkeel_plan::windows::windows_node::{renew_again_after, renew_at};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::config::{AuthInfo, Kubeconfig, NamedAuthInfo};
use kube::{Api, Client, ResourceExt};
use rcgen::{CertificateParams, DnType, KeyPair};
use x509_parser::pem::parse_x509_pem;

use super::machine::Machine;
use super::{answer, on_machine};

const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// How long an approval and the signature may take.
const PATIENCE: Duration = Duration::from_mins(2);
/// How long after it was not there yet a signature is looked for: nobody may watch requests.
const ASK_AGAIN: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
/// How often it is looked whether the login should be renewed.
const LOOK_AGAIN: Duration = Duration::from_mins(10);

/// A login that is kept, as far as its time goes.
struct KeptLogin {
    text: Vec<u8>,
    begins: Timestamp,
    ends: Timestamp,
}

/// Gets this machine's agent a new login with one that may ask for it: the old one has ended, and nobody can
/// renew that.
pub(crate) async fn replace(daemon: &Daemon, given: &Path) -> Result<()> {
    let node = on_machine(Machine::node_name).await?;
    let node = node.ok_or_else(|| {
        Error::work(
            "this machine is not a node yet: run bootstrap, which also gets a login".to_owned(),
        )
    })?;
    obtain(&daemon.client(), given, &node).await?;
    let kept = kept().await.map_err(Error::work)?;
    let kept =
        kept.ok_or_else(|| Error::work("the new login was deleted: run login again".to_owned()))?;
    answer(&serde_json::json!({ "node": node, "ends": kept.ends.to_string() }))
}

/// Gets a certificate as the agent of `node` with the login of `bootstrap`, and keeps the login it
/// gives.
pub(crate) async fn obtain(client: &Client, bootstrap: &Path, node: &str) -> Result<()> {
    let failed = |what: String| Error::work(format!("cannot get a login for node {node}: {what}"));
    let key = KeyPair::generate().map_err(|error| failed(error.to_string()))?;
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let request = request(node, &key).map_err(|error| failed(error.to_string()))?;
    let made = requests.create(&PostParams::default(), &request).await;
    let name = made.map_err(|error| failed(error.to_string()))?.name_any();
    let asked = tokio::time::timeout(PATIENCE, signed(&requests, &name)).await;
    let certificate = match asked {
        Ok(answer) => answer.map_err(failed)?,
        Err(_) => {
            return Err(failed(format!(
                "CertificateSigningRequest {name} was not approved within {PATIENCE:?}: check that the operator is running"
            )));
        }
    };
    let mut login = Kubeconfig::read_from(bootstrap).map_err(|error| failed(error.to_string()))?;
    let user = login
        .contexts
        .first()
        .and_then(|it| it.context.as_ref()?.user.clone());
    let auth = AuthInfo {
        client_certificate_data: Some(base64(&certificate)),
        client_key_data: Some(base64(key.serialize_pem().as_bytes()).into()),
        ..AuthInfo::default()
    };
    login.auth_infos = vec![NamedAuthInfo {
        name: user.unwrap_or_default(),
        auth_info: Some(auth),
        ..NamedAuthInfo::default()
    }];
    let text = serde_json::to_vec(&login).map_err(|error| failed(error.to_string()))?;
    let kept = on_machine(move |machine| machine.keep_login(&text)).await;
    kept.map_err(|error| failed(error.to_string()))
}

/// Waits until the login that is kept should be renewed, and does that; tries again until it is done, or until
/// somebody else has put another one there.
pub(crate) async fn renewed(client: &Client, node: &str) {
    let mut in_use = None;
    loop {
        let kept = kept().await.unwrap_or_else(|why| {
            tracing::warn!("cannot find out when the login of this agent expires: {why}");
            None
        });
        let Some(KeptLogin { text, begins, ends }) = kept else {
            tokio::time::sleep(LOOK_AGAIN).await;
            continue;
        };
        if *in_use.get_or_insert_with(|| text.clone()) != text {
            tracing::info!("using another login that was put in place for this agent");
            return;
        }
        let now = Timestamp::now();
        let until = |at| Duration::try_from(now.duration_until(at)).unwrap_or_default();
        let left = until(renew_at(node, begins, ends));
        if !left.is_zero() {
            // A machine may sleep, and its clock may be set.
            tokio::time::sleep(left.min(LOOK_AGAIN)).await;
            continue;
        }
        match obtain(client, &Machine::login_file(), node).await {
            Ok(()) => {
                tracing::info!("renewed the login of this agent");
                return;
            }
            Err(error) => {
                let pause = renew_again_after(until(ends));
                tracing::warn!("{error}; retrying in {pause:?}");
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// The login that is kept, if there is one.
async fn kept() -> std::result::Result<Option<KeptLogin>, String> {
    let login = on_machine(Machine::login).await;
    let login = login.map_err(|error| error.to_string())?;
    let Some(text) = login else { return Ok(None) };
    let login = Kubeconfig::from_yaml(&String::from_utf8_lossy(&text));
    let login = login.map_err(|error| error.to_string())?;
    let certificate = login.auth_infos.into_iter().find_map(|named| {
        let data = named.auth_info?.client_certificate_data?;
        unbase64(&data)
    });
    let certificate = certificate.ok_or("the login contains no certificate")?;
    let (_, pem) = parse_x509_pem(&certificate).map_err(|error| error.to_string())?;
    let read = pem.parse_x509().map_err(|error| error.to_string())?;
    let instant = |seconds: i64| Timestamp::from_second(seconds).map_err(|error| error.to_string());
    let validity = read.validity();
    let (begins, ends) = (
        instant(validity.not_before.timestamp())?,
        instant(validity.not_after.timestamp())?,
    );
    Ok(Some(KeptLogin { text, begins, ends }))
}

/// A client with the login that was kept.
pub(crate) async fn client(daemon: &Daemon) -> Result<Client> {
    let config = evenkeel_daemon::kubeconfig(Some(&Machine::login_file())).await?;
    evenkeel_daemon::connect(config, daemon.program(), daemon.metrics())
}

async fn signed(
    requests: &Api<CertificateSigningRequest>,
    name: &str,
) -> std::result::Result<Vec<u8>, String> {
    let mut pauses = ASK_AGAIN;
    loop {
        let found = requests
            .get(name)
            .await
            .map_err(|error| error.to_string())?;
        let status = found.status.unwrap_or_default();
        if let Some(ByteString(certificate)) = status.certificate {
            return Ok(certificate);
        }
        let mut conditions = status.conditions.iter().flatten();
        if let Some(refused) = conditions.find(|it| it.type_ != "Approved") {
            let why = refused.message.clone().unwrap_or_default();
            return Err(format!(
                "CertificateSigningRequest {name} was refused ({}): {why}",
                refused.type_
            ));
        }
        tokio::time::sleep(pauses.next_pause()).await;
    }
}

fn request(
    node: &str,
    key: &KeyPair,
) -> std::result::Result<CertificateSigningRequest, rcgen::Error> {
    let mut parameters = CertificateParams::default();
    let name = &mut parameters.distinguished_name;
    name.push(DnType::OrganizationName, AGENT_GROUP);
    name.push(DnType::CommonName, format!("{AGENT_USER_PREFIX}{node}"));
    let pem = parameters.serialize_request(key)?.pem()?;
    Ok(CertificateSigningRequest {
        metadata: ObjectMeta {
            generate_name: Some("evenkeel-agent-".to_owned()),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: SIGNER.to_owned(),
            usages: Some(
                ["digital signature", "client auth"]
                    .map(str::to_owned)
                    .to_vec(),
            ),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    })
}

fn unbase64(text: &str) -> Option<Vec<u8>> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
