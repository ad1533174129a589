//! Logins that are handed out: the ten-minute one of an agent on a new instance, and who the kubelets of
//! new instances are.

use evenkeel_api::names::program;
use evenkeel_plan::windows::certificates::Identity;
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenRequest};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::config::Kubeconfig;
use kube::{Api, Client};
use serde_json::{Value, json};

/// How long the login of an agent on a new instance lasts, in seconds: the shortest there is.
const LASTS: i64 = 600;

/// A login for the agent on one instance.
pub(crate) struct Login {
    /// A kubeconfig.
    pub(crate) text: String,
    /// By what the API server tells it from all other logins of agents.
    pub(crate) credential: Option<String>,
}

/// Makes a login for the agent on an instance, which reaches the API server at `server`.
pub(crate) async fn of_agent(
    client: &Client,
    namespace: &str,
    server: &str,
    authority: Option<&[u8]>,
) -> kube::Result<Login> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let request: TokenRequest = serde_json::from_value(json!({
        "spec": { "audiences": [], "expirationSeconds": LASTS },
    }))
    .map_err(kube::Error::SerdeError)?;
    let made = accounts
        .create_token_request(program::AGENT, &PostParams::default(), &request)
        .await?;
    let token = made.status.map(|it| it.token).unwrap_or_default();
    let mut cluster = json!({ "server": server });
    if let Some(authority) = authority {
        let authority = k8s_openapi::ByteString(authority.to_vec());
        cluster["certificate-authority-data"] = json!(authority);
    }
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "cluster", "cluster": cluster }],
        "users": [{ "name": "agent", "user": { "token": token } }],
        "contexts": [{ "name": "agent", "context": { "cluster": "cluster", "user": "agent" } }],
        "current-context": "agent",
    });
    Ok(Login {
        text: text.to_string(),
        credential: credential(&token),
    })
}

/// By what the API server tells one token from another.
fn credential(token: &str) -> Option<String> {
    let payload = token.split('.').nth(1)?;
    // The same digits as a ByteString, but for two of them and the end.
    let mut digits = payload.replace('-', "+").replace('_', "/");
    while !digits.len().is_multiple_of(4) {
        digits.push('=');
    }
    let bytes: k8s_openapi::ByteString = serde_json::from_value(json!(digits)).ok()?;
    let claims: Value = serde_json::from_slice(&bytes.0).ok()?;
    Some(format!("JTI={}", claims["jti"].as_str()?))
}

/// Who somebody with this kubeconfig is, as the API server says.
pub(crate) async fn who(kubeconfig: &[u8]) -> Result<Identity, String> {
    let text = String::from_utf8_lossy(kubeconfig);
    // What the parser says may hold parts of the text, and there is a login in it.
    let read = Kubeconfig::from_yaml(&text).map_err(|_| "it is not a kubeconfig".to_owned())?;
    let config = evenkeel_daemon::direct(read).await;
    let config = config.map_err(|error| error.to_string())?;
    let client = Client::try_from(config).map_err(|error| error.to_string())?;
    let reviews: Api<SelfSubjectReview> = Api::all(client);
    let review = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .map_err(|error| error.to_string())?;
    let user = review.status.and_then(|it| it.user_info);
    let user = user.ok_or_else(|| "the API server does not report its user".to_owned())?;
    Ok(Identity {
        user: user.username.unwrap_or_default(),
        groups: user.groups.into_iter().flatten().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_which_of_all_it_is() {
        let payload = "eyJqdGkiOiI4Zi1fPz4ifQ";
        let token = format!("head.{payload}.signature");
        assert_eq!(credential(&token).as_deref(), Some("JTI=8f-_?>"));
        assert_eq!(credential("opaque"), None);
    }
}
