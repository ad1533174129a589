//! The chart: Helm finds nothing wrong with it, the API server takes what it makes, and it installs.

#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::process::Output;
use std::time::Duration;

use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::prometheus::Prometheus;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use kube::api::ListParams;
use serde_json::{Value, json};

fn words(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Values that somebody might well give.
const ODD: &str = r#"
image:
  registry: registry.example.com:5000/ops
  tag: "1.0"
  pullPolicy: Always
  pullSecrets: [{name: pull-me}]
logLevel: info,evenkeel_operator=debug
logFormat: text
takeOver: [machine-config, windows]
operator:
  replicas: 1
  port: 8080
  nodeSelectorForWork: "pool in (canary, edge),!never"
  drainTimeout: 90s
  drainOnTimeout: proceed
  drainSkipWaitForDelete: 0s
  resources: {}
  nodeSelector: {}
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: ["true"]}]}]
  tolerations: [{key: only-operators, operator: Exists}]
  podAnnotations: {quoted: "yes", "a/b": "x: {y}"}
agent:
  enabled: true
  address: 0.0.0.0
  port: 9181
  mountPropagation: None
  kubelet: {unit: k3s.service, dir: /data/kubelet}
  registerKubeletPlugins: true
  forgetPluginsAfter: 30s
  bypassDriver: true
  allowExecProbes: [/usr/local/bin/check, "/opt/a b"]
  nodeSelector: {kubernetes.io/os: linux, agents: "true"}
  maxUnavailable: 3
  podAnnotations: {number: "5"}
  metricsAddress: 10.0.0.1
metrics:
  port: 9999
  certificateSecret: metrics-tls
  networkPolicy:
    enabled: true
    from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
  serviceMonitor:
    enabled: true
    labels: {release: "prom", "a/b": "true"}
    interval: 1m30s
    tlsConfig: {serverName: operator.example.com, ca: {secret: {name: metrics-tls, key: ca.crt}}}
  podMonitor: {enabled: true, labels: {}, interval: 10s}
priorityAndFairness: {operatorShares: 3, agentShares: 40}
windows:
  enabled: true
  payload: /srv/payload
  payloadVolume: {image: {reference: "registry.example.com/payload:1.0"}}
  strategy: Recreate
  maxUnavailable: 25%
  paused: true
  parallelInstances: 3
  instanceTimeout: 1h30m
  leaveTimeout: 5m
  machineUser: 'CORP\admin: "x"'
proxy:
  httpProxy: "http://user:p%40ss@proxy.example.com:3128"
  noProxy: ".svc, 10.0.0.0/8"
uninstall:
  enabled: true
  timeoutSeconds: 60
"#;

fn values(text: &str) -> Result<(Scratch, String)> {
    let scratch = Scratch::new("values")?;
    let path = scratch.path().join("values.yaml");
    std::fs::write(&path, text).doing(|| "cannot write values")?;
    let option = format!("--values={}", path.display());
    Ok((scratch, option))
}

#[test]
fn helm_finds_nothing_wrong_with_the_chart() -> Result<()> {
    if need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    let (_scratch, odd) = values(ODD)?;
    let folder = Chart::folder().display().to_string();
    for options in [&[][..], &[odd.as_str()]] {
        let linted = Chart::helm(&[&["lint", "--strict", &folder], options].concat())?;
        assert!(linted.status.success(), "{}", words(&linted));
    }
    Ok(())
}

#[test]
fn odd_values_are_taken_to_their_places_and_wrong_ones_are_refused_by_name() -> Result<()> {
    if need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    let (_scratch, odd) = values(ODD)?;
    let chart = Chart::render("ops", &[&odd])?;
    let container = |kind, name| -> Result<Value> {
        let pod = &chart.object(kind, name)?["spec"]["template"]["spec"];
        Ok(pod["containers"][0].clone())
    };
    let operator = container("Deployment", "evenkeel-operator")?;
    let image = "registry.example.com:5000/ops/evenkeel-operator:1.0";
    assert_eq!(operator["image"], image);
    assert_eq!(container("Job", "evenkeel-uninstall")?["image"], image);
    let arguments = operator["args"].as_array().cloned().unwrap_or_default();
    for argument in [
        "--node-selector=pool in (canary, edge),!never",
        "--drain-timeout=90s",
        "--drain-skip-wait-for-delete=0s",
        "--listen=0.0.0.0:8080",
        "--metrics-listen=0.0.0.0:9999",
        "--metrics-auth",
        "--metrics-certificate=/metrics-certificate",
        "--take-over=machine-config,windows",
        "--payload=/srv/payload",
        "--instance-timeout=1h30m",
        "--leave-timeout=5m",
        r#"--machine-user=CORP\admin: "x""#,
    ] {
        assert!(arguments.contains(&json!(argument)), "{arguments:?}");
    }
    // By names of our own: what OLM sets is another source.
    let environment = operator["env"].as_array().cloned().unwrap_or_default();
    let proxies: Vec<_> = environment
        .iter()
        .filter(|it| it["name"].as_str().is_some_and(|it| it.contains("PROXY")))
        .collect();
    let expected = [
        json!({ "name": "EVENKEEL_HTTP_PROXY", "value": "http://user:p%40ss@proxy.example.com:3128" }),
        json!({ "name": "EVENKEEL_NO_PROXY", "value": ".svc, 10.0.0.0/8" }),
    ];
    assert_eq!(proxies, expected.iter().collect::<Vec<_>>());
    let agent = container("DaemonSet", "evenkeel-agent")?;
    assert_eq!(
        agent["livenessProbe"]["httpGet"],
        json!({ "host": "127.0.0.1", "port": 9181, "path": "/healthz" })
    );
    let serves = json!("--metrics-listen=10.0.0.1:9999");
    let given = agent["args"].as_array();
    assert!(given.is_some_and(|it| it.contains(&serves)), "{agent}");
    let policy = chart.object("NetworkPolicy", "evenkeel-operator")?;
    assert_eq!(
        policy["spec"]["ingress"],
        json!([
            { "ports": [{ "port": 8080 }] },
            {
                "ports": [{ "port": 9999 }],
                "from": [{ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "monitoring" } } }],
            },
        ])
    );
    // Without it metrics are where health is, for everybody, and nobody is asked who they are.
    let open = Chart::render("ops", &["--set=metrics.auth=false"])?;
    let all = serde_json::to_string(open.objects()).doing(|| "no text")?;
    for gone in ["--metrics-", "tokenreviews", "subjectaccessreviews"] {
        assert!(!all.contains(gone), "{gone}");
    }
    // The machine's / is no shared mount there.
    assert_eq!(agent["volumeMounts"][0]["mountPropagation"], "None");
    let usual = Chart::render("ops", &[])?;
    let pod = &usual.object("DaemonSet", "evenkeel-agent")?["spec"]["template"]["spec"];
    let mount = &pod["containers"][0]["volumeMounts"][0];
    assert_eq!(mount["mountPropagation"], "HostToContainer");
    for argument in [
        "--register-kubelet-plugins",
        "--forget-plugins-after=30s",
        "--bypass-driver",
        "--allow-exec-probe=/usr/local/bin/check",
        "--allow-exec-probe=/opt/a b",
        "--kubelet-unit=k3s.service",
        "--kubelet-dir=/data/kubelet",
    ] {
        let given = agent["args"].as_array();
        let has_it = given.is_some_and(|it| it.contains(&json!(argument)));
        assert!(has_it, "{argument}: {agent}");
    }
    let policy = chart.object("ValidatingAdmissionPolicy", "evenkeel-agent-own-node")?;
    let condition = policy["spec"]["matchConditions"][0]["expression"].as_str();
    let account = "'system:serviceaccount:ops:evenkeel-agent'";
    assert!(condition.is_some_and(|it| it.contains(account)), "{policy}");

    let mount = json!([
        { "name": "payload", "mountPath": "/srv/payload", "readOnly": true },
        { "name": "metrics-certificate", "mountPath": "/metrics-certificate", "readOnly": true },
    ]);
    assert_eq!(operator["volumeMounts"], mount);
    let pool = chart.object("WindowsPool", "windows")?;
    let spec = json!({ "strategy": "Recreate", "maxUnavailable": "25%", "paused": true, "parallelInstances": 3 });
    assert_eq!(pool["spec"], spec);

    let without = Chart::render("ops", &["--set=agent.enabled=false"])?;
    // Nothing is taken over from anybody without its owner's word.
    let operator = without.object("Deployment", "evenkeel-operator")?;
    assert!(!operator.to_string().contains("--take-over"), "{operator}");
    // The operator makes it, when there is a proxy: whoever ships it would undo what the cluster fills in.
    for made in [&chart, &without] {
        assert!(made.object("ConfigMap", "trusted-ca").is_err());
    }
    for (kind, name) in [
        ("WindowsPool", "windows"),
        ("ClusterRole", "evenkeel-operator-windows"),
    ] {
        assert!(
            without.object(kind, name).is_err(),
            "nobody asked for {name}"
        );
    }
    assert!(without.object("DaemonSet", "evenkeel-agent").is_err());
    assert!(without.object("ClusterRole", "evenkeel-agent").is_ok());

    for (option, said) in [
        ("--set-string=operator.replicas=two", "replicas"),
        ("--set=operator.replica=2", "replica"),
        ("--set=operator.drainOnTimeout=panic", "drainOnTimeout"),
        ("--set=image.registry=registry.example.com/", "registry"),
        ("--set=global.imageRegistry=/registry", "imageRegistry"),
        ("--set=image.digests.agent=latest", "agent"),
        ("--set=uninstall.timeoutSeconds=1", "timeoutSeconds"),
        ("--set=agent.port=70000", "port"),
        ("--set=agent.kubelet.dir=kubelet", "dir"),
        ("--set=agent.kubelet.unit=a b", "unit"),
        (
            "--set=agent.mountPropagation=Bidirectional",
            "mountPropagation",
        ),
        ("--set=windows.strategy=Never", "strategy"),
        ("--set=takeOver={all}", "takeOver"),
        ("--set=metrics.port=0", "port"),
        ("--set=metrics.authentication=true", "authentication"),
        ("--set=windows.payload=payload", "payload"),
        ("--set=windows.parallelInstances=0", "parallelInstances"),
        ("--set=windows.instanceTimeout=soon", "instanceTimeout"),
        ("--set=windows.leaveTimeout=5", "leaveTimeout"),
        ("--set=windows.machineUser=", "machineUser"),
        ("--set=proxy.httpProxy=htp://proxy:3128", "httpProxy"),
        ("--set=proxy.httpsProxy=proxy:3128", "httpsProxy"),
        ("--set=proxy.https=http://proxy:3128", "https"),
        ("--set=metrics.podMonitor.interval=often", "interval"),
        ("--set=metrics.serviceMonitor.label.a=b", "label"),
        ("--set=priorityAndFairness.agentShares=0", "agentShares"),
    ] {
        let error = Chart::render("ops", &[option]).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(said), "{option}: {error}");
    }
    Ok(())
}

/// Covers N07.
#[test]
fn rules_of_node_readiness_controller_are_followed_and_read_only_when_asked_for() -> Result<()> {
    if need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    for asked in [false, true] {
        let option = format!("--set=readiness.nrcRules={asked}");
        let chart = Chart::render("ops", &[&option])?;
        let operator = chart.object("Deployment", "evenkeel-operator")?;
        assert_eq!(operator.to_string().contains("--nrc-rules"), asked);
        let roles = chart.kinds(&["ClusterRole"]);
        let roles = roles.objects().iter();
        let names = roles
            .filter(|it| it["rules"].to_string().contains("readiness.node.x-k8s.io"))
            .filter_map(|it| it["metadata"]["name"].as_str());
        let names: BTreeSet<_> = names.collect();
        let wanted = ["evenkeel-operator-nrc-rules", "evenkeel-viewer"];
        assert_eq!(
            names.is_superset(&BTreeSet::from(wanted)),
            asked,
            "{names:?}"
        );
        assert_eq!(names.is_empty(), !asked, "{names:?}");
    }
    Ok(())
}

/// Nobody has more than a row of the contract: no wildcard, no secrets but the one with the configuration of
/// workers, and pods only to be listed and evicted. Whoever may read kubelets' logs was given that by an administrator.
#[test]
fn no_right_is_a_wildcard_or_opens_secrets() -> Result<()> {
    if need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    let chart = Chart::render("evenkeel", &[])?;
    let windows = Chart::render("evenkeel", &["--set=windows.enabled=true"])?;
    let roles = chart.kinds(&["Role", "ClusterRole"]);
    let more = windows.kinds(&["Role", "ClusterRole"]);
    // Exactly these, each by name; a Secret that is not there yet can only be made without one.
    let secrets = |names: Option<&[&str]>, verbs: &[&str]| {
        let mut rule = json!({ "apiGroups": [""], "resources": ["secrets"], "verbs": verbs });
        if let Some(names) = names {
            rule["resourceNames"] = json!(names);
        }
        rule
    };
    let (host_keys, instances) = (["evenkeel-host-keys"], "evenkeel-operator-instances");
    let both = ["cloud-private-key", "evenkeel-host-keys"];
    // Logs of kubelets cannot be had with less. Nobody has it from us.
    let (node_logs, logs) = (
        "evenkeel-node-logs",
        json!({ "apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get"] }),
    );
    for chart in [&chart, &windows] {
        let bindings = chart.kinds(&["RoleBinding", "ClusterRoleBinding"]);
        let bound = |it: &&Value| it["roleRef"]["name"] == node_logs;
        assert_eq!(bindings.objects().iter().find(bound), None);
    }
    let known = [
        (node_logs, logs),
        (
            "evenkeel-operator-windows",
            secrets(Some(&["worker-ignition"]), &["list", "watch"]),
        ),
        (instances, secrets(None, &["create"])),
        (instances, secrets(Some(&both), &["get", "list", "watch"])),
        (instances, secrets(Some(&host_keys), &["patch"])),
        (
            "evenkeel-instances",
            secrets(Some(&host_keys), &["get", "patch"]),
        ),
    ];
    let mut rules = 0;
    for role in roles.objects().iter().chain(more.objects()) {
        for rule in role["rules"].as_array().into_iter().flatten() {
            rules += 1;
            let is_known = |(of, it): &(&str, Value)| it == rule && role["metadata"]["name"] == *of;
            if known.iter().any(is_known) {
                continue;
            }
            let text = rule.to_string();
            assert!(!text.contains('*'), "{role}");
            for denied in [
                "secrets",
                "impersonate",
                "escalate",
                "\"bind\"",
                "nodes/proxy",
            ] {
                assert!(!text.contains(denied), "{denied}: {role}");
            }
        }
    }
    assert!(rules > 10, "{rules}");
    Ok(())
}

#[test]
fn it_installs_beside_kinds_that_are_there_already_and_goes_again() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? || need::skip(Prometheus::KINDS)? {
        return Ok(());
    }
    let control_plane = ControlPlane::shared()?;
    let strict = |chart: &Chart| -> Result<()> {
        let scratch = Scratch::new("strict")?;
        let file = scratch.path().join("objects.json");
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": chart.objects() });
        std::fs::write(&file, list.to_string()).doing(|| "cannot write the objects")?;
        let file = file.display().to_string();
        let strict = [
            "apply",
            "--dry-run=server",
            "--validate=strict",
            "-f",
            &file,
        ];
        control_plane.kubectl(&strict).map(|_| ())
    };
    for namespace in ["evenkeel", "ops", "node-extensions"] {
        control_plane.kubectl(&["create", "namespace", namespace])?;
    }
    let (_scratch, odd) = values(ODD)?;
    strict(&Chart::render("evenkeel", &[])?)?;
    // Helm makes kinds before what is of them; a dry run has to find them.
    let definition = Chart::folder().join("crds/windowspools.yaml");
    control_plane.kubectl(&["apply", "-f", &definition.display().to_string()])?;
    let pools = "crd/windowspools.evenkeel.dev";
    control_plane.kubectl(&["wait", "--for=condition=Established", pools])?;
    let monitors = Prometheus::kinds()?.display().to_string();
    control_plane.kubectl(&["apply", "--server-side", "-f", &monitors])?;
    control_plane.kubectl(&["wait", "--for=condition=Established", "crd", "--all"])?;
    strict(&Chart::render("ops", &[&odd])?)?;

    // Somebody else's definition of a kind, and a namespace that is there already, stay as they are.
    let definition = Chart::folder().join("crds/machineconfigs.yaml");
    control_plane.kubectl(&["apply", "-f", &definition.display().to_string()])?;
    let kind = "crd/machineconfigs.machineconfiguration.openshift.io";
    control_plane.kubectl(&["annotate", kind, "theirs=yes"])?;
    let login = Scratch::new("login")?;
    let kubeconfig = login.path().join("kubeconfig");
    control_plane.admin_kubeconfig().write(&kubeconfig)?;
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let folder = Chart::folder().display().to_string();
    let helm = |words_of_it: &[&str]| -> Result<String> {
        let done = Chart::helm(&[words_of_it, &["--namespace=evenkeel", &kubeconfig]].concat())?;
        assert!(done.status.success(), "{words_of_it:?}: {}", words(&done));
        Ok(words(&done))
    };
    let said = helm(&["install", "evenkeel", &folder])?;
    assert!(said.contains("evenkeel status"), "{said}");
    let theirs = ["get", kind, "-o=jsonpath={.metadata.annotations.theirs}"];
    assert_eq!(control_plane.kubectl(&theirs)?, "yes");
    let pools = "crd/machineconfigpools.machineconfiguration.openshift.io";
    control_plane.kubectl(&["get", pools])?;
    let get = [
        "get",
        "deployment/evenkeel-operator",
        "--namespace=evenkeel",
    ];
    control_plane.kubectl(&get)?;
    helm(&["upgrade", "evenkeel", &folder, "--set=operator.replicas=1"])?;
    helm(&["upgrade", "evenkeel", &folder, "--set=windows.enabled=true"])?;
    control_plane.kubectl(&["get", "windowspool/windows"])?;
    // The hook needs a machine that runs its pod: what it does is tested with the operator.
    helm(&["uninstall", "evenkeel", "--no-hooks"])?;
    assert!(control_plane.kubectl(&get).is_err());
    let pool = control_plane.kubectl(&["get", "windowspool/windows"]);
    assert!(pool.is_err(), "it goes, and what it owns with it");
    control_plane.kubectl(&["get", "namespace/node-extensions"])?;
    control_plane.kubectl(&["get", kind])?;
    Ok(())
}

/// Nobody has a kind of the Prometheus Operator without it; who has, gets monitors that can log in.
#[test]
fn monitors_are_made_when_asked_for_and_log_in_where_metrics_need_it() -> Result<()> {
    if need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    let usual = Chart::render("ops", &[])?;
    let made = usual.kinds(&["ServiceMonitor", "PodMonitor", "Service", "Secret"]);
    assert!(made.objects().is_empty(), "{:?}", made.objects());

    let both = [
        "--set=metrics.serviceMonitor.enabled=true",
        "--set=metrics.podMonitor.enabled=true",
    ];
    let chart = Chart::render("ops", &both)?;
    let login = json!({ "credentials": { "name": "evenkeel-monitoring-token", "key": "token" } });
    let operator = chart.object("ServiceMonitor", "evenkeel-operator")?;
    let agent = chart.object("PodMonitor", "evenkeel-agent")?;
    let ends = [
        &operator["spec"]["endpoints"],
        &agent["spec"]["podMetricsEndpoints"],
    ];
    for end in ends {
        assert_eq!(end[0]["port"], "metrics", "{end}");
        assert_eq!(end[0]["scheme"], "https", "{end}");
        assert_eq!(end[0]["authorization"], login, "{end}");
        assert_eq!(end[0]["tlsConfig"]["insecureSkipVerify"], true, "{end}");
    }
    // An alert names the job.
    assert_eq!(agent["spec"]["jobLabel"], "app.kubernetes.io/name");
    let binding = chart.object("ClusterRoleBinding", "evenkeel-monitoring")?;
    assert_eq!(binding["roleRef"]["name"], "evenkeel-metrics-reader");

    let open = Chart::render("ops", &[&both[..], &["--set=metrics.auth=false"]].concat())?;
    assert!(open.kinds(&["Secret"]).objects().is_empty());
    let operator = open.object("ServiceMonitor", "evenkeel-operator")?;
    let end = &operator["spec"]["endpoints"][0];
    let expected = json!({ "interval": "30s", "port": "http" });
    assert_eq!(*end, expected);
    let service = open.object("Service", "evenkeel-operator-metrics")?;
    assert_eq!(service["spec"]["ports"][0]["port"], 9180);

    let (_scratch, odd) = values(ODD)?;
    let odd = Chart::render("ops", &[&odd])?;
    let operator = odd.object("ServiceMonitor", "evenkeel-operator")?;
    assert_eq!(operator["metadata"]["labels"]["release"], "prom");
    let end = &operator["spec"]["endpoints"][0];
    assert_eq!(end["interval"], "1m30s");
    let ca = json!({ "secret": { "name": "metrics-tls", "key": "ca.crt" } });
    let checked = json!({ "serverName": "operator.example.com", "ca": ca });
    assert_eq!(end["tlsConfig"], checked);
    Ok(())
}

/// Workloads that ask too much of the API server delay neither the operator nor the agents.
#[tokio::test]
async fn requests_of_operator_and_agents_have_shares_of_their_own() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let own = ControlPlane::start_own()?;
    let control_plane: &ControlPlane = &own;
    let namespace = "fairness";
    let chart = Chart::render(namespace, &[])?;
    let fairness = ["FlowSchema", "PriorityLevelConfiguration"];
    assert_eq!(chart.kinds(&fairness).objects().len(), 4);
    let accounts = ["ServiceAccount"];
    let made = chart.kinds(&[&fairness[..], &accounts].concat());
    made.apply(control_plane)?;
    let account = |name| control_plane.kubeconfig_for_service_account(namespace, name);
    let agents = ["evenkeel:agents"];
    let by_certificate = control_plane.kubeconfig_for_user("evenkeel:agent:n1", &agents)?;
    for (login, share) in [
        (account("evenkeel-operator")?, "evenkeel-operator"),
        (account("evenkeel-agent")?, "evenkeel-agent"),
        (by_certificate, "evenkeel-agent"),
        (
            control_plane.kubeconfig_for_user("somebody", &[])?,
            "global-default",
        ),
    ] {
        let uid = |kind: &str| {
            control_plane.kubectl(&["get", kind, share, "-o=jsonpath={.metadata.uid}"])
        };
        let wanted = [uid("flowschema")?, uid("prioritylevelconfiguration")?];
        let client = login.client().await?;
        // The server takes a new one up within moments.
        let what = format!("requests to be counted in the share {share}");
        until_async(&what, Duration::from_secs(30), async || {
            let request = kube::core::Request::new("/api/v1/nodes").list(&ListParams::default());
            let request = request.doing(|| "no request")?;
            let answer = client.send(request.map(Into::into)).await;
            let answer = answer.doing(|| "the API server does not answer")?;
            let header = |name: &str| {
                let value = answer.headers().get(name).and_then(|it| it.to_str().ok());
                value.unwrap_or_default().to_owned()
            };
            let found = [
                header("x-kubernetes-pf-flowschema-uid"),
                header("x-kubernetes-pf-prioritylevel-uid"),
            ];
            Ok(if found == wanted {
                Look::Found(())
            } else {
                Look::NotYet(format!("{found:?}, not {wanted:?}"))
            })
        })
        .await?;
    }
    let without = Chart::render("ops", &["--set=priorityAndFairness.enabled=false"])?;
    let left = without.kinds(&fairness);
    assert!(left.objects().is_empty(), "{:?}", left.objects());
    Ok(())
}

/// What Helm made with one revision is in the next one, too: Helm 3.18 rolls back to no revision that has an object that is there and
/// that the present one does not know.
#[test]
fn an_upgrade_can_be_rolled_back() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let own = ControlPlane::start_own()?;
    let control_plane: &ControlPlane = &own;
    let login = Scratch::new("login")?;
    let kubeconfig = login.path().join("kubeconfig");
    control_plane.admin_kubeconfig().write(&kubeconfig)?;
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let folder = Chart::folder().display().to_string();
    let helm = |words_of_it: &[&str]| -> Result<()> {
        let done = Chart::helm(&[words_of_it, &["--namespace=evenkeel", &kubeconfig]].concat())?;
        assert!(done.status.success(), "{words_of_it:?}: {}", words(&done));
        Ok(())
    };
    let replicas = || {
        let of = "-o=jsonpath={.spec.replicas}";
        control_plane.kubectl(&["get", "deployment/evenkeel-operator", "-n=evenkeel", of])
    };
    let has_namespace = || -> Result<bool> {
        let get = ["get", "manifest", "evenkeel", "--namespace=evenkeel"];
        let manifest = Chart::helm(&[&get[..], &[&kubeconfig]].concat())?;
        let said = words(&manifest);
        assert!(said.contains("kind: Deployment"), "{said}");
        Ok(said.contains("\nkind: Namespace\n"))
    };
    helm(&["install", "evenkeel", &folder, "--create-namespace"])?;
    assert!(has_namespace()?);
    helm(&["upgrade", "evenkeel", &folder, "--set=operator.replicas=1"])?;
    assert_eq!(replicas()?, "1");
    assert!(has_namespace()?);
    helm(&["rollback", "evenkeel", "1"])?;
    assert_eq!(replicas()?, "2");
    helm(&["uninstall", "evenkeel", "--no-hooks"])?;
    // The namespace that it left behind is its own again.
    helm(&["install", "evenkeel", &folder])?;
    assert!(has_namespace()?);
    helm(&["uninstall", "evenkeel", "--no-hooks"])?;
    // Somebody else's is left to them.
    let theirs = ["annotate", "namespace", "node-extensions"];
    let marks = [
        "meta.helm.sh/release-name-",
        "meta.helm.sh/release-namespace-",
    ];
    control_plane.kubectl(&[&theirs[..], &marks].concat())?;
    helm(&["install", "evenkeel", &folder])?;
    assert!(!has_namespace()?);
    Ok(())
}
