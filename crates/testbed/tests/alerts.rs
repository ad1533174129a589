//! Every alert that we ship can be loaded by Prometheus, fires when it should, not before, and not for nothing.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use evenkeel_testbed::alerts::Alerts;
use evenkeel_testbed::{Doing, Result, need};

const AGENT: &str = "agent.yaml";
const WINDOWS: &str = "windows.yaml";
/// How far before and behind the moment at which an alert is due it is asked for.
const MOMENT: u64 = 20;
const LONG: Duration = Duration::from_hours(1);

/// When an alert fires.
struct Duty {
    file: &'static str,
    alert: &'static str,
    /// Numbers that are bad, and after how many seconds of them it fires.
    bad: String,
    after: u64,
    /// Numbers that are fine for however long.
    fine: &'static str,
}

fn duty(
    file: &'static str,
    alert: &'static str,
    bad: &str,
    after: u64,
    fine: &'static str,
) -> Duty {
    Duty {
        file,
        alert,
        bad: bad.to_owned(),
        after,
        fine,
    }
}

/// What is to happen to numbers that begin at `start`.
fn duties(start: SystemTime) -> Result<Vec<Duty>> {
    let now = start.duration_since(SystemTime::UNIX_EPOCH);
    let now = now.doing(|| "a time before 1970")?.as_secs();
    let renewed = format!(
        r#"kube_lease_renew_time{{namespace="node-extensions", lease="n1.evenkeel-agent"}} {now}"#
    );
    let of_others = r#"kube_lease_renew_time{namespace="node-extensions", lease="n1.cni"} 1
        kube_lease_renew_time{namespace="kube-node-lease", lease="n1.evenkeel-agent"} 1
        up{job="evenkeel-agent", instance="n1"} 1
        up{job="something-else", instance="n1"} 0"#;
    Ok(vec![
        duty(
            AGENT,
            "EvenkeelSshAccess",
            &format!("evenkeel_node_ssh_login_timestamp_seconds {now}"),
            0,
            "evenkeel_node_ssh_login_timestamp_seconds 0",
        ),
        duty(
            AGENT,
            "EvenkeelAgentSilent",
            r#"up{job="evenkeel-agent", instance="n1"} 0"#,
            180,
            of_others,
        ),
        duty(AGENT, "EvenkeelAgentSilent", &renewed, 300, of_others),
        duty(
            AGENT,
            "EvenkeelDriftNotRepaired",
            r#"evenkeel_node_drifted_paths{class="file"} 1"#,
            600,
            r#"evenkeel_node_drifted_paths{class="file"} 0"#,
        ),
        duty(
            WINDOWS,
            "EvenkeelWindowsNodeNotReady",
            r#"evenkeel_windows_nodes{state="not_ready"} 1"#,
            300,
            r#"evenkeel_windows_nodes{state="updated"} 1"#,
        ),
        duty(
            WINDOWS,
            "EvenkeelWindowsNodeFailing",
            r#"evenkeel_windows_nodes{state="failing"} 1"#,
            300,
            r#"evenkeel_windows_nodes{state="failing"} 0"#,
        ),
        duty(
            WINDOWS,
            "EvenkeelWindowsStopped",
            r#"evenkeel_windows_trouble{reason="NoWorkerConfig"} 1"#,
            300,
            r#"evenkeel_windows_trouble{reason="NoWorkerConfig"} 0"#,
        ),
        duty(
            WINDOWS,
            "EvenkeelInstanceFailing",
            r#"evenkeel_instances{state="Failing"} 1"#,
            900,
            r#"evenkeel_instances{state="Configuring"} 1"#,
        ),
        duty(
            WINDOWS,
            "EvenkeelUpgradeFailing",
            r#"evenkeel_windows_upgrades{phase="Failing"} 1"#,
            60,
            r#"evenkeel_windows_upgrades{phase="Draining"} 1"#,
        ),
        duty(
            WINDOWS,
            "EvenkeelUpgradeRefused",
            r#"evenkeel_windows_upgrade_refused{reason="Downgrade"} 1"#,
            300,
            r#"evenkeel_windows_upgrade_refused{reason="Downgrade"} 0"#,
        ),
        duty(
            WINDOWS,
            "EvenkeelProxyInvalid",
            r#"evenkeel_proxy_invalid{variable="HTTP_PROXY"} 1"#,
            300,
            r#"evenkeel_proxy_invalid{variable="HTTP_PROXY"} 0"#,
        ),
        duty(
            WINDOWS,
            "EvenkeelTrustBundlePending",
            "evenkeel_trust_bundle_pending 1",
            900,
            "evenkeel_trust_bundle_pending 0",
        ),
    ])
}

/// Covers H37, M21, U09.
#[test]
fn every_alert_fires_when_it_is_due_and_neither_before_nor_for_nothing() -> Result<()> {
    if need::skip(Alerts::NEEDS)? {
        return Ok(());
    }
    let start = SystemTime::now();
    let duties = duties(start)?;
    for file in [AGENT, WINDOWS] {
        let alerts = Alerts::read(file)?;
        alerts.can_be_loaded()?;
        let there = alerts.rules().iter().filter_map(|it| it["alert"].as_str());
        let judged = duties.iter().filter(|it| it.file == file);
        assert_eq!(
            there.collect::<BTreeSet<_>>(),
            judged.clone().map(|it| it.alert).collect(),
            "an alert of {file} is not judged"
        );
        for it in judged {
            let fires =
                |seconds| alerts.fires_from(start, it.alert, &it.bad, Duration::from_secs(seconds));
            assert!(fires(it.after + MOMENT)?, "{} by {}", it.alert, it.bad);
            if it.after > 0 {
                assert!(!fires(it.after - MOMENT)?, "{} is too early", it.alert);
            }
            assert!(
                !alerts.fires_from(start, it.alert, it.fine, LONG)?,
                "{} by {}",
                it.alert,
                it.fine
            );
        }
    }
    // Somebody who logged in ten minutes ago is old news.
    let alerts = Alerts::read(AGENT)?;
    let ssh = &duties[0];
    let later = Duration::from_secs(600 + MOMENT);
    assert!(!alerts.fires_from(start, ssh.alert, &ssh.bad, later)?);
    Ok(())
}
