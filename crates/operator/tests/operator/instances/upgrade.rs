//! Nodes get another version on the machines that they are, one after the other, whatever happens on the way.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use evenkeel_testbed::chance::{Chance, is_soak, seed};
use evenkeel_testbed::egress_proxy::EgressProxy;
use evenkeel_testbed::node_double::Os;
use evenkeel_testbed::process::Running;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::windows_instance::{WindowsInstance, windows_program};
use evenkeel_testbed::{Doing, Error, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::bed::{Bed, CURRENT, DESIRED, LONG, VERSION, is_skipped};
use super::fleet::{Fleet, has_only, pools, state};
use super::proxy::{boots, fill};
use super::release::{Release, with_service};
use super::upgrade_watcher::UpgradeWatcher;
use crate::scene::{annotated, free_port, metrics};

/// How long a node may take besides its drain, on a machine that does nothing else.
const PROMISED: Duration = Duration::from_secs(15);
/// The workload.
const APP: &str = "web";

/// What the log says at each boundary between two steps of an upgrade, in their order.
const STEPS: [&str; 13] = [
    "drain-upgrade-",
    "checking whether its agent is the new one",
    "copying the new agent next to the old one",
    "stopping its old agent",
    "removing the services of its old version",
    "copying files that are new or changed",
    "removing files that only its old version has",
    "replacing the old agent with the new one",
    "recording that its files are complete",
    "waiting until its Node has the new desired version",
    "starting its new agent",
    "InstanceUpgraded",
    "uncordon-upgrade-",
];

async fn pool_status(bed: &Bed) -> Result<Value> {
    let pool = pools(bed).get(&bed.scene.own("windows")).await;
    let pool = pool.doing(|| "cannot read the WindowsPool")?;
    Ok(pool.data.get("status").cloned().unwrap_or_default())
}

/// What must not change on a Node that is not ours.
fn untouched(node: &Node) -> Value {
    let mut node = json!({ "metadata": node.metadata, "spec": node.spec });
    for field in ["managedFields", "resourceVersion"] {
        node["metadata"][field] = Value::Null;
    }
    // Kubernetes' own controllers write these some time after the Node was made.
    node["metadata"]["annotations"]["node.alpha.kubernetes.io/ttl"] = Value::Null;
    if let Some(taints) = node["spec"]["taints"].as_array_mut() {
        taints.retain(|it| it["key"] != "node.kubernetes.io/not-ready");
    }
    node
}

/// Covers U01, U02, U03, U08, U09, U10, H35.
#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_get_a_new_version_one_by_one_and_a_broken_one_stops_at_the_first() -> Result<()>
{
    if is_skipped()? {
        return Ok(());
    }
    upgraded("win-up", ["op-up-1", "op-up-2", "op-up-3"], None).await
}

/// Covers U02, P03, P07, X08.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes long: runs in ./test --soak"]
async fn behind_a_proxy_they_get_it_too_and_keep_the_proxy_and_whom_they_trust() -> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let machines = ["op-via-1", "op-via-2", "op-via-3"];
    upgraded("win-via", machines, Some(EgressProxy::start()?)).await
}

/// A good version, a broken one, and one that repairs it, on three machines.
async fn upgraded(prefix: &str, machines: [&str; 3], proxy: Option<EgressProxy>) -> Result<()> {
    let (fleet, operator) = Fleet::new(prefix, machines, proxy).await?;
    let bed = &fleet.bed;
    let maps: Api<ConfigMap> = Api::namespaced(bed.scene.client.clone(), &bed.scene.name);
    if let Some(proxy) = &fleet.proxy {
        fill(&maps, &[proxy]).await?;
    }
    fleet.has_its_proxy().await?;
    let all: Vec<&WindowsInstance> = fleet.instances.iter().collect();
    let booted = boots(&all)?;
    bed.scene.deployment(APP, 3, 1).await?;
    bed.scene.ready("", 3).await?;
    bed.scene.budget(APP, json!({ "minAvailable": 2 })).await?;
    let foreign = bed.scene.describe("foreign").os(Os::Windows);
    let foreign = foreign.taint("foreign", "", "NoSchedule");
    let foreign = bed.scene.start(foreign).await?;
    let before = untouched(&bed.scene.node(foreign.name()).await?);

    // Somebody else's service, and nobody knows any more what the old version was.
    let program = windows_program("evenkeel-testbed", "service-double")?;
    let place = r"C:\stranger\service-double.exe";
    fleet.instances[0].install(&program, place)?;
    for words in [
        &["create", "stranger", "auto", place][..],
        &["start", "stranger"],
    ] {
        let words = [&["windows-probe", "service"], words].concat();
        fleet.instances[0].ask(&words)?;
    }
    // What an operator leaves that is killed while it brings a login, or a file of a version that another one followed.
    for place in [
        r"C:\k\login.1794941404282637.part",
        r"C:\k\dropped.txt.0123456789abcdef.part",
    ] {
        fleet.instances[0].install(&program, place)?;
    }
    drop(operator);
    bed.scene.nobody_leads().await?;
    let map = "services-1-2-3-abc1234";
    let gone = maps.delete(map, &DeleteParams::default()).await;
    gone.doing(|| "there is no ConfigMap of the first version")?;

    let texts = [
        ("same.txt", "the same in all versions"),
        ("changed.txt", "as in the second version"),
        ("new.txt", "only in the second version"),
    ];
    let second = Release::new(bed, "1.3.0-bbbbbbb", &texts, |it| {
        with_service(it, "exporter", "--second");
    })?;
    let watch: Vec<&str> = fleet.names.iter().map(String::as_str).collect();
    let upgrade_watcher = UpgradeWatcher::of(&bed.scene, &watch, APP);
    let start = Instant::now();
    let port = free_port()?;
    let listen = format!("127.0.0.1:{port}");
    let operator = fleet.operator(&second, &["--listen", &listen])?;
    fleet.all_run(&second, &["exporter"]).await?;
    println!("proof: three nodes were upgraded in {:?}", start.elapsed());
    upgrade_watcher.check(1, 2)?;
    for (node, took) in upgrade_watcher.took() {
        println!("proof: {node} ran its new version {took:?} after its pods had left");
        assert!(!is_soak() || took < PROMISED, "{node}: {took:?}");
    }
    assert_eq!(upgrade_watcher.took().len(), 3);
    // The agent, one file that changed and one that is new: three of all, and nothing else was sent.
    for instance in &fleet.instances {
        let address = instance.address().to_string();
        let words = [
            &address,
            "1.2.3-abc1234 to 1.3.0-bbbbbbb",
            "3 of 10 files were copied",
        ];
        let said = bed.told("InstanceUpgraded", &words).await?;
        println!("proof: {said}");
        assert!(
            state(instance, "legacy").is_err(),
            "a service of the first version is left"
        );
    }
    fleet.has_its_proxy().await?;
    assert_eq!(boots(&all)?, booted, "a new version takes no boot");
    assert_eq!(state(&fleet.instances[0], "stranger")?, "Running");
    assert_eq!(untouched(&bed.scene.node(foreign.name()).await?), before);
    for name in &fleet.names {
        bed.scene.event(name, "UpgradeBegins").await?;
        bed.scene.event(name, "Upgraded").await?;
    }

    let third = broken(&fleet, &second, operator, &upgrade_watcher).await?;
    let (operator, last) = repaired(&fleet, third, &upgrade_watcher).await?;
    fleet.has_its_proxy().await?;
    if fleet.proxy.is_some() {
        two_reasons(&fleet, &last, operator, &upgrade_watcher).await?;
    }
    Ok(())
}

/// A version with a service that does not start: it stops at the first node, and the others run what they ran.
async fn broken(
    fleet: &Fleet,
    second: &Release,
    operator: Running,
    upgrade_watcher: &UpgradeWatcher,
) -> Result<Running> {
    let bed = &fleet.bed;
    let third = Release::new(bed, "1.4.0-ccccccc", &[], |it| {
        with_service(it, "exporter", "--die 1");
    })?;
    let port = free_port()?;
    let listen = format!("127.0.0.1:{port}");
    let operator = fleet
        .operator_of(&third, operator, &["--listen", &listen])
        .await?;
    let what = "the upgrade to stop at the first node";
    let status = until_async(what, LONG, async || {
        let status = pool_status(bed).await?;
        let updating = status["updating"].as_array().cloned().unwrap_or_default();
        let fails = updating.iter().any(|it| it["phase"] == "Failing");
        Ok(if fails && status["nodes"]["failing"] == 1 {
            Look::Found(status)
        } else {
            Look::NotYet(format!("{status}\n{}", bed.last_words(6)))
        })
    })
    .await?;
    let failing = status["updating"][0]["node"].as_str().unwrap_or_default();
    println!("proof: {failing} fails at the broken version: {status}");
    let said = bed.scene.event(failing, "UpgradeFailing").await?;
    assert!(
        said.contains("exporter") && said.contains("no other node starts"),
        "{said}"
    );
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let degraded = conditions.iter().find(|it| it["type"] == "Degraded");
    assert!(degraded.is_some_and(|it| it["status"] == "True" && it["reason"] == "NodesFailing"));
    let shown = metrics(port).await?;
    assert!(
        shown.contains(r#"evenkeel_windows_upgrades{phase="Failing"} 1"#),
        "{shown}"
    );
    // It stays so.
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        let status = pool_status(bed).await?;
        let updating = status["updating"].as_array().map_or(0, Vec::len);
        assert_eq!(updating, 1, "another one has begun: {status}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for (name, instance) in fleet.names.iter().zip(&fleet.instances) {
        if name != failing {
            let node = bed.scene.node(name).await?;
            assert_eq!(annotated(&node, VERSION), Some(second.version));
            assert_eq!(annotated(&node, CURRENT), annotated(&node, DESIRED));
            has_only(instance, second, &["exporter"]).await?;
        }
    }
    upgrade_watcher.check(1, 2)?;
    Ok(operator)
}

/// The version after that repairs the one and upgrades the others, also if the operator is killed on the way.
async fn repaired(
    fleet: &Fleet,
    operator: Running,
    upgrade_watcher: &UpgradeWatcher,
) -> Result<(Running, Release)> {
    let bed = &fleet.bed;
    let mut chance = Chance(seed());
    let mut left: Vec<&str> = STEPS.to_vec();
    if !is_soak() {
        // One at the beginning, one in the middle, one at the end.
        left = [&STEPS[..3], &STEPS[3..9], &STEPS[9..]]
            .map(|some| some[chance.below(some.len())])
            .into();
    }
    let wanted: BTreeSet<&str> = left.iter().copied().collect();
    let mut hit = BTreeSet::new();
    let mut operator = operator;
    let mut last = None;
    for (round, version) in [
        "1.5.0-ddddddd",
        "1.6.0-eeeeeee",
        "1.7.0-fffffff",
        "1.8.0-0000000",
        "1.9.0-1111111",
    ]
    .into_iter()
    .enumerate()
    {
        // Files of the second round are those of no other, so that each has some to remove.
        let own = format!("round-{round}.txt");
        let texts = [
            ("same.txt", "the same in all versions"),
            (&own, "this round"),
        ];
        let release = Release::new(bed, version, &texts, |it| {
            with_service(it, "exporter", version);
        })?;
        operator = fleet.operator_of(&release, operator, &[]).await?;
        for _ in 0..fleet.names.len() {
            let Some(step) = left.pop() else { break };
            operator = killed_at(fleet, &release, operator, step).await?;
            hit.insert(step);
        }
        fleet.all_run(&release, &["exporter"]).await?;
        upgrade_watcher.check(1, 2)?;
        last = Some(release);
        if left.is_empty() {
            break;
        }
    }
    println!("proof: the operator was killed at {hit:?}");
    assert_eq!(hit, wanted, "a step was never hit");
    let last = last.ok_or_else(|| Error::failed("there was no round"))?;
    Ok((operator, last))
}

/// The next version comes while a change of the proxy is on its way: still no two nodes go at once.
async fn two_reasons(
    fleet: &Fleet,
    last: &Release,
    operator: Running,
    upgrade_watcher: &UpgradeWatcher,
) -> Result<()> {
    let bed = &fleet.bed;
    let all: Vec<&WindowsInstance> = fleet.instances.iter().collect();
    let booted = boots(&all)?;
    fleet.direct.set(".other,198.18.0.1");
    let operator = fleet.operator_of(last, operator, &[]).await?;
    let first = until_async("a node to ask for its boot", LONG, async || {
        for name in &fleet.names {
            let node = bed.scene.node(name).await?;
            let asked = annotated(&node, "evenkeel.dev/drain-granted").is_some();
            if asked && annotated(&node, VERSION) == Some(last.version) {
                return Ok(Look::Found(name.clone()));
            }
        }
        Ok(Look::NotYet(bed.last_words(5)))
    })
    .await?;
    let next = Release::new(bed, "1.10.0-2222222", &[], |it| {
        with_service(it, "exporter", "--last");
    })?;
    let _operator = fleet.operator_of(&next, operator, &[]).await?;
    fleet.all_run(&next, &["exporter"]).await?;
    fleet.has_its_proxy().await?;
    for (boot, instance) in booted.iter().zip(&fleet.instances) {
        assert_ne!(&instance.boot_id()?, boot, "{}", instance.computer_name());
    }
    println!(
        "proof: the next version came while {first} went for another proxy, and no two nodes went at once"
    );
    upgrade_watcher.check(1, 2)
}

/// Kills the operator when it is at `step`, and starts it again.
async fn killed_at(
    fleet: &Fleet,
    release: &Release,
    mut operator: Running,
    step: &str,
) -> Result<Running> {
    let bed = &fleet.bed;
    let count = |log: &str| log.lines().filter(|it| it.contains(step)).count();
    let before = count(&bed.scene.log());
    let until = Instant::now() + LONG;
    while count(&bed.scene.log()) == before {
        if Instant::now() > until {
            return Err(Error::failed(format!(
                "nobody came to {step:?} in {LONG:?}:\n{}\n{}",
                bed.last_words(10),
                fleet.last_words().await?
            )));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    operator.kill()?;
    fleet.operator_of(release, operator, &[]).await
}
