//! An operator that cannot reach its API server does not look as if it worked.

use std::time::{Duration, Instant};

use evenkeel_testbed::api_proxy::ApiProxy;
use evenkeel_testbed::blackhole::Blackhole;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::kubeconfig::Kubeconfig;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Error, Result, need};

use crate::scene::{SOON, Scene, free_port, page};

/// Within so long it says what it cannot reach.
const PROMISED: Duration = Duration::from_secs(10);

/// Waits until the log has `count` lines with `words`.
async fn logged(scene: &Scene, words: &str, count: usize, limit: Duration) -> Result<()> {
    let what = format!("{count} lines with {words:?}");
    until_async(&what, limit, async || {
        let log = scene.log();
        let lines = log.lines().filter(|it| it.contains(words)).count();
        Ok(if lines >= count {
            Look::Found(())
        } else {
            Look::NotYet(log)
        })
    })
    .await
}

/// Waits until a page at `port` says `status` and `words`.
async fn says(port: u16, path: &str, status: &str, words: &str) -> Result<()> {
    let what = format!("{path} to say {status} and {words:?}");
    until_async(&what, SOON, async || {
        let seen = match page(port, path).await {
            Ok(seen) => seen,
            Err(error) => return Ok(Look::NotYet(error.to_string())),
        };
        let is_so = seen.starts_with(&format!("HTTP/1.1 {status} ")) && seen.contains(words);
        Ok(if is_so {
            Look::Found(())
        } else {
            Look::NotYet(seen)
        })
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn while_packets_are_dropped_it_says_so_and_is_not_ready_and_then_it_is() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("dropped").await?;
    let hole = Blackhole::open().await?;
    let address = hole.address();
    let port = free_port()?;
    let listen = format!("127.0.0.1:{port}");
    let login = scene.login()?.at(&address.to_string());
    let begin = Instant::now();
    let _operator = scene.operator_as(&login, &["--listen", &listen])?;
    let cannot =
        format!("cannot reach the API server at https://{address}: no connection within 5 s");
    logged(&scene, &cannot, 1, PROMISED).await?;
    println!("proof: said after {:.1?}", begin.elapsed());
    says(port, "/readyz", "503", &format!("[-] api-server: {cannot}")).await?;
    // A restart would not help.
    says(
        port,
        "/healthz",
        "200",
        &format!("[!] api-server: {cannot}"),
    )
    .await?;
    says(
        port,
        "/metrics",
        "200",
        "\nevenkeel_apiserver_reachable 0\n",
    )
    .await?;
    logged(&scene, &cannot, 2, Duration::from_secs(30)).await?;

    // The way is free.
    drop(hole);
    let proxy = ApiProxy::at(address, scene.control_plane.address())?;
    logged(&scene, "connected to the API server", 1, SOON).await?;
    says(port, "/readyz", "200", "[+] api-server\n").await?;
    says(
        port,
        "/metrics",
        "200",
        "\nevenkeel_apiserver_reachable 1\n",
    )
    .await?;

    // Later it goes away, and comes back.
    proxy.refuse();
    proxy.cut();
    let away = format!("cannot reach the API server at https://{address}: ");
    let before = scene.log().lines().filter(|it| it.contains(&away)).count();
    logged(&scene, &away, before + 1, SOON).await?;
    says(port, "/healthz", "200", &format!("[!] api-server: {away}")).await?;
    says(
        port,
        "/metrics",
        "200",
        "\nevenkeel_apiserver_reachable 0\n",
    )
    .await?;
    proxy.accept();
    logged(&scene, "the API server answers again", 1, SOON).await?;
    says(
        port,
        "/metrics",
        "200",
        "\nevenkeel_apiserver_reachable 1\n",
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connection_and_a_certificate_that_nobody_trusts_are_named() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("refused").await?;
    let nobody = format!("127.0.0.1:{}", free_port()?);
    let refused = scene.operator_as(&scene.login()?.at(&nobody), &[])?;
    let cannot = format!("cannot reach the API server at https://{nobody}: nothing listens there");
    logged(&scene, &cannot, 1, PROMISED).await?;
    assert!(
        scene.log().contains("Connection refused"),
        "{}",
        scene.log()
    );
    drop(refused);

    let other = rcgen::generate_simple_self_signed(vec!["other".to_owned()])
        .map_err(|error| Error::failed(error.to_string()))?;
    let server = scene.login()?.server().to_owned();
    let login = Kubeconfig::with_token(&server, &other.cert.pem(), "token")?;
    let port = free_port()?;
    let listen = format!("127.0.0.1:{port}");
    let _operator = scene.operator_as(&login, &["--listen", &listen])?;
    let cannot = format!("cannot reach the API server at {server}: TLS fails");
    logged(&scene, &cannot, 1, PROMISED).await?;
    let log = scene.log();
    let line = log.lines().find(|it| it.contains(&cannot));
    assert!(line.is_some_and(|it| it.contains("UnknownIssuer")), "{log}");
    says(port, "/readyz", "503", &format!("[-] api-server: {cannot}")).await
}
