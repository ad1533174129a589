//! What the control plane and the proxy before it promise to the tests that use them.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use evenkeel_testbed::api_proxy::ApiProxy;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::need::{self, Need};
use evenkeel_testbed::network::{GATEWAY, Network};
use evenkeel_testbed::process::run;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard};

/// A control plane that may be hurt, by one test at a time.
async fn fragile() -> Result<MutexGuard<'static, ControlPlane>> {
    static FRAGILE: LazyLock<Result<Mutex<ControlPlane>>> =
        LazyLock::new(|| ControlPlane::start().map(Mutex::new));
    let fragile = FRAGILE.as_ref().map_err(Clone::clone)?;
    Ok(fragile.lock().await)
}

async fn put(client: &Client, namespace: &str, name: &str) -> Result<ConfigMap> {
    let object = serde_json::from_value(json!({ "metadata": { "name": name } }));
    Api::namespaced(client.clone(), namespace)
        .create(
            &PostParams::default(),
            &object.doing(|| "no such config map")?,
        )
        .await
        .doing(|| format!("cannot make config map {name}"))
}

async fn list(client: &Client, namespace: &str) -> kube::Result<Vec<ConfigMap>> {
    let api = Api::namespaced(client.clone(), namespace);
    Ok(api.list(&ListParams::default()).await?.items)
}

async fn who_am_i(client: Client) -> Result<(String, Vec<String>)> {
    let review = Api::<SelfSubjectReview>::all(client)
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .doing(|| "cannot ask who I am")?;
    let user = review
        .status
        .and_then(|status| status.user_info)
        .unwrap_or_default();
    Ok((
        user.username.unwrap_or_default(),
        user.groups.unwrap_or_default(),
    ))
}

#[tokio::test]
async fn a_service_account_may_do_nothing_but_what_a_role_allows() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let control_plane = ControlPlane::shared()?;
    let namespace = control_plane.namespace("rbac")?;
    let login = control_plane.kubeconfig_for_service_account(&namespace, "default")?;
    let client = login.client().await?;
    match list(&client, &namespace).await {
        Err(kube::Error::Api(answer)) => assert_eq!(answer.code, 403, "{answer:?}"),
        other => panic!("a service account without a role got {other:?}"),
    }
    let binding = format!("--serviceaccount={namespace}:default");
    let of = format!("--namespace={namespace}");
    control_plane.kubectl(&[
        "create",
        "rolebinding",
        "see",
        "--clusterrole=view",
        &binding,
        &of,
    ])?;
    let what = "the role to be in force";
    let seen = until_async(what, Duration::from_secs(10), async || {
        Ok(match list(&client, &namespace).await {
            Ok(seen) => Look::Found(seen),
            Err(error) => Look::NotYet(error.to_string()),
        })
    })
    .await?;
    assert!(
        seen.iter()
            .any(|map| map.metadata.name.as_deref() == Some("kube-root-ca.crt"))
    );
    assert!(put(&client, &namespace, "mine").await.is_err());
    Ok(())
}

#[tokio::test]
async fn a_client_certificate_logs_in_as_its_user_and_groups() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let control_plane = ControlPlane::shared()?;
    let login = control_plane.kubeconfig_for_user("jane", &["developers", "night-shift"])?;
    let (user, groups) = who_am_i(login.client().await?).await?;
    assert_eq!(user, "jane");
    assert_eq!(
        groups,
        ["developers", "night-shift", "system:authenticated"]
    );
    let login = control_plane.kubeconfig_for_node("n1")?;
    let (user, groups) = who_am_i(login.client().await?).await?;
    assert_eq!(user, "system:node:n1");
    assert!(groups.contains(&"system:nodes".to_owned()), "{groups:?}");
    Ok(())
}

#[test]
fn a_third_group_in_a_certificate_is_refused_with_a_sentence() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let error = ControlPlane::shared()?
        .kubeconfig_for_user("jane", &["a", "b", "c"])
        .unwrap_err();
    assert_eq!(
        error,
        Error::failed("a certificate can name 2 groups, and jane needs 3")
    );
    Ok(())
}

#[tokio::test]
async fn the_api_server_knows_its_version() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let client = ControlPlane::shared()?.admin_kubeconfig().client().await?;
    let version = client.apiserver_version().await.doing(|| "no version")?;
    assert_eq!(version.major, "1");
    assert!(version.git_version.starts_with("v1."), "{version:?}");
    Ok(())
}

#[tokio::test]
async fn a_control_plane_of_one_test_ends_with_it() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let own = ControlPlane::start_own()?;
    let client = own.admin_kubeconfig().client().await?;
    client.apiserver_version().await.doing(|| "no version")?;
    drop(own);
    let answer = client.apiserver_version().await;
    assert!(answer.is_err(), "it still answers: {answer:?}");
    Ok(())
}

#[test]
fn a_test_host_in_its_own_network_reaches_the_api_server() -> Result<()> {
    if need::skip(&[
        ControlPlane::NEED,
        Need::Root,
        Need::Program("ip", "iproute2"),
    ])? {
        return Ok(());
    }
    let control_plane = ControlPlane::shared()?;
    let (network, scratch) = (Network::new("host")?, Scratch::new("login")?);
    let file = scratch.path().join("kubeconfig");
    let login = control_plane.admin_kubeconfig();
    login.at(&GATEWAY.to_string()).write(&file)?;
    let answer = run(network
        .inside()
        .arg(control_plane.kubectl_program())
        .arg(format!("--kubeconfig={}", file.display()))
        .args(["get", "--raw", "/readyz"]))?;
    assert_eq!(answer, "ok");
    Ok(())
}

#[tokio::test]
async fn admission_policies_change_and_refuse_what_is_written() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let control_plane = ControlPlane::shared()?;
    let namespace = control_plane.namespace("policy")?;
    let scratch = Scratch::new("policy")?;
    let file = scratch.path().join("policies.yaml");
    std::fs::write(
        &file,
        include_str!("control_plane/policies.yaml").replace("NAMESPACE", &namespace),
    )
    .doing(|| "cannot write the policies")?;
    control_plane.kubectl(&["apply", "-f", &file.display().to_string()])?;
    let client = control_plane.admin_kubeconfig().client().await?;
    let mut tries = 0;
    until_async(
        "the policies to be in force",
        Duration::from_secs(20),
        async || {
            tries += 1;
            let made = put(&client, &namespace, &format!("changed-{tries}")).await?;
            let refused = put(&client, &namespace, &format!("refused-{tries}")).await;
            let labels = made.metadata.labels.unwrap_or_default();
            Ok(match refused {
                Err(error) if labels.contains_key("policed") => Look::Found(error.to_string()),
                refused => Look::NotYet(format!("{labels:?}, {refused:?}")),
            })
        },
    )
    .await
    .map(|refusal| assert!(refusal.contains("no such names here"), "{refusal}"))
}

#[tokio::test]
async fn a_frozen_api_server_makes_a_client_time_out_and_a_thawed_one_answers() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let control_plane = fragile().await?;
    let client = control_plane.admin_kubeconfig().client().await?;
    list(&client, "default").await.doing(|| "before")?;
    control_plane.freeze_api_server()?;
    let frozen = tokio::time::timeout(Duration::from_secs(1), list(&client, "default")).await;
    assert!(frozen.is_err(), "a frozen server answered: {frozen:?}");
    let waiting = tokio::spawn(async move { list(&client, "default").await });
    control_plane.thaw_api_server()?;
    let answer = tokio::time::timeout(Duration::from_secs(20), waiting).await;
    answer
        .doing(|| "a thawed server does not answer")?
        .doing(|| "the request was aborted")?
        .doing(|| "a thawed server answers with an error")?;
    Ok(())
}

#[tokio::test]
async fn a_stopped_api_server_keeps_its_data_and_a_port_in_use_is_told() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let control_plane = fragile().await?;
    let namespace = control_plane.namespace("data")?;
    let client = control_plane.admin_kubeconfig().client().await?;
    put(&client, &namespace, "kept").await?;
    control_plane.stop_api_server()?;
    assert!(list(&client, &namespace).await.is_err());
    let port = control_plane.address().port();
    let squatter =
        std::net::TcpListener::bind(("0.0.0.0", port)).doing(|| "cannot take the port")?;
    let error = control_plane.start_api_server().unwrap_err().to_string();
    let told =
        format!("port {port} of the API server is in use by another program: end that program");
    assert!(error.starts_with(&told), "{error}");
    drop(squatter);
    control_plane.start_api_server()?;
    let names: Vec<_> = list(&client, &namespace)
        .await
        .doing(|| "cannot list after the restart")?
        .into_iter()
        .filter_map(|map| map.metadata.name)
        .collect();
    assert!(names.contains(&"kept".to_owned()), "{names:?}");
    control_plane.still_runs()
}

/// A proxy, and a client whose first connection goes through it and is open.
async fn proxied() -> Result<(ApiProxy, Client)> {
    let control_plane = ControlPlane::shared()?;
    let proxy = ApiProxy::before(control_plane)?;
    let login = control_plane.admin_kubeconfig().through(&proxy);
    let client = login.client().await?;
    list(&client, "default")
        .await
        .doing(|| "no answer through the proxy")?;
    assert_eq!(proxy.accepted(), 1);
    Ok((proxy, client))
}

async fn times_out(client: &Client) -> bool {
    let patience = Duration::from_millis(500);
    tokio::time::timeout(patience, list(client, "default"))
        .await
        .is_err()
}

#[tokio::test]
async fn a_stalled_proxy_passes_nothing_until_it_is_resumed() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let (proxy, client) = proxied().await?;
    proxy.stall();
    assert!(times_out(&client).await, "a stalled connection answered");
    assert!(times_out(&client).await, "a new connection is not stalled");
    assert!(
        proxy.accepted() >= 2,
        "new connections must still be accepted"
    );
    let waiting = tokio::spawn(async move { list(&client, "default").await });
    tokio::task::yield_now().await;
    proxy.resume();
    let answer = tokio::time::timeout(Duration::from_secs(10), waiting).await;
    let answer = answer.doing(|| "nothing passes after resuming")?;
    answer
        .doing(|| "aborted")?
        .doing(|| "an error after resuming")?;
    Ok(())
}

#[tokio::test]
async fn a_single_connection_can_be_stalled_while_others_pass() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let (proxy, client) = proxied().await?;
    let connections = proxy.connections();
    let [first] = connections.as_slice() else {
        panic!("one connection was open, not {connections:?}");
    };
    assert_eq!(first.number(), 1);
    first.stall();
    assert!(times_out(&client).await, "the stalled connection answered");
    let another = ControlPlane::shared()?.admin_kubeconfig().through(&proxy);
    let another = another.client().await?;
    list(&another, "default")
        .await
        .doing(|| "the other one is stalled too")?;
    Ok(())
}

#[tokio::test]
async fn a_cut_connection_ends_a_request_at_once() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let (proxy, client) = proxied().await?;
    proxy.stall();
    let held = client.clone();
    let waiting = tokio::spawn(async move { list(&held, "default").await });
    tokio::task::yield_now().await;
    proxy.cut();
    let cut = tokio::time::timeout(Duration::from_secs(5), waiting).await;
    let cut = cut
        .doing(|| "a cut connection hangs")?
        .doing(|| "aborted")?;
    assert!(cut.is_err(), "a cut connection answered {cut:?}");
    proxy.resume();
    list(&client, "default")
        .await
        .doing(|| "no new connection after a cut")?;
    assert!(proxy.accepted() >= 2);
    Ok(())
}

#[tokio::test]
async fn a_delay_holds_back_each_chunk() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let (proxy, client) = proxied().await?;
    let delay = Duration::from_millis(300);
    proxy.delay(delay);
    let start = Instant::now();
    list(&client, "default")
        .await
        .doing(|| "no answer through a slow proxy")?;
    // One chunk there, one back.
    assert!(start.elapsed() >= 2 * delay, "only {:?}", start.elapsed());
    proxy.delay(Duration::ZERO);
    let is_free = |took: &Duration| *took < 2 * delay;
    let answered = kept_async("an answer without a delay", is_free, async || {
        let start = Instant::now();
        list(&client, "default").await.doing(|| "no answer")?;
        Ok(start.elapsed())
    });
    answered.await.map(|_| ())
}

#[tokio::test]
async fn a_refusing_proxy_keeps_old_connections_and_takes_no_new_ones() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let (proxy, client) = proxied().await?;
    proxy.refuse();
    list(&client, "default")
        .await
        .doing(|| "an open connection is refused")?;
    let login = ControlPlane::shared()?.admin_kubeconfig().through(&proxy);
    let refused = list(&login.client().await?, "default").await;
    assert!(refused.is_err(), "{refused:?}");
    proxy.accept();
    list(&login.client().await?, "default")
        .await
        .doing(|| "refused still")?;
    Ok(())
}
