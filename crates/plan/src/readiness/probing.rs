//! What an agent probes and what it reports: which question is due, what an answer means, and what a
//! restart makes of answers from before it. The agent asks; this decides.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use evenkeel_api::machine::node_state::NodeState;
use evenkeel_api::readiness::{
    CertificateReport, Check, Extension, HttpGet, ProbeHost, ProbeReport, ReadinessRule, Report,
    Source, extensions_from_json,
};

use super::time::Moment;
use crate::excerpt::shortened;

/// How much of why a probe fails is reported.
const MESSAGE: usize = 256;
/// How much all such messages have together: a report is one annotation, with bounds of its own.
const MESSAGES: usize = 4 * 1024;

/// A question that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The extension's name.
    pub name: String,
    /// What is asked.
    pub check: Check,
    /// How long the answer may take.
    pub timeout: Duration,
    /// The addresses of the node, for those that are asked there.
    pub addresses: Vec<IpAddr>,
}

#[derive(Debug, Clone)]
struct Probe {
    source: Source,
    next: Moment,
    /// It is being asked.
    asked: bool,
    failures: u32,
    /// What was made of the answers; nothing before there were enough of them.
    known: Option<ProbeReport>,
}

/// Everything that an agent reports of its node.
#[derive(Debug, Default)]
pub struct Probing {
    probes: BTreeMap<String, Probe>,
    addresses: Vec<IpAddr>,
    boot_id: String,
    kubelet_start: String,
    state: NodeState,
    certificates: Option<CertificateReport>,
}

/// The extensions that a node needs: those of all rules that select it, and of its own list.
pub fn needed<'l>(
    rules: &[ReadinessRule],
    label: impl Fn(&str) -> Option<&'l str>,
    own_list: Option<&str>,
) -> Vec<Extension> {
    let own = own_list.map(|text| extensions_from_json("the node's own list", text));
    // A list that cannot be read is told of by the operator.
    let own = own
        .and_then(Result::ok)
        .map_or_else(Vec::new, |(own, _)| own);
    let selected = rules
        .iter()
        .filter(|rule| rule.node_selector.matches(&label));
    let all = selected.flat_map(|rule| rule.extensions.iter().cloned());
    all.chain(own).collect()
}

impl Probing {
    /// Those of these that have a probe are probed, and no others. What was known of those that stay stays known.
    pub fn set(&mut self, extensions: Vec<Extension>, now: Moment) {
        let mut before = std::mem::take(&mut self.probes);
        let probed = extensions
            .into_iter()
            .filter(|it| matches!(it.source, Source::Probe { .. }));
        for Extension { name, source, .. } in probed {
            let known = before.remove(&name).filter(|it| it.source == source);
            let probe = known.unwrap_or(Probe {
                source,
                next: now,
                asked: false,
                failures: 0,
                known: None,
            });
            self.probes.insert(name, probe);
        }
    }

    /// Whether a probe asks the node where only its Node says that it is.
    pub fn asks_node(&self) -> bool {
        let host = |check: &Check| match check {
            Check::HttpGet(HttpGet { host, .. })
            | Check::TcpSocket { host, .. }
            | Check::Grpc { host, .. } => *host,
            Check::UnixSocket { .. } | Check::Service { .. } | Check::Exec { .. } => {
                ProbeHost::Loopback
            }
        };
        self.probes.values().any(|it| {
            matches!(&it.source, Source::Probe { check, .. } if host(check) == ProbeHost::Node)
        })
    }

    /// What the Node says where it is. Texts that are no addresses are names.
    pub fn set_addresses<'a>(&mut self, said: impl Iterator<Item = &'a str>) {
        self.addresses = said.filter_map(|it| it.parse().ok()).collect();
    }

    /// Which boot of the machine and which start of its kubelet this is. If it is another one, answers
    /// from before are none.
    pub fn see(&mut self, boot_id: &str, kubelet_start: &str, now: Moment) {
        let is_same = |known: &str, seen: &str| known == seen || known.is_empty();
        let is_restart =
            !is_same(&self.boot_id, boot_id) || !is_same(&self.kubelet_start, kubelet_start);
        boot_id.clone_into(&mut self.boot_id);
        if !kubelet_start.is_empty() {
            // A kubelet that is down has no start; the next one that it has is another.
            kubelet_start.clone_into(&mut self.kubelet_start);
        }
        if is_restart && !kubelet_start.is_empty() {
            for probe in self.probes.values_mut() {
                probe.known = None;
                probe.failures = 0;
                probe.next = now;
            }
        }
    }

    /// What the agent makes of the node's configuration.
    pub fn set_state(&mut self, state: NodeState) {
        self.state = state;
    }

    /// Whom the machine trusts, where the agent keeps that.
    pub fn set_certificates(&mut self, certificates: Option<CertificateReport>) {
        self.certificates = certificates;
    }

    /// The questions that are due; each is asked once until it is answered.
    pub fn due(&mut self, now: Moment) -> Vec<Question> {
        let addresses = &self.addresses;
        let due = self
            .probes
            .iter_mut()
            .filter(|(_, it)| !it.asked && it.next <= now);
        due.filter_map(|(name, probe)| {
            let Source::Probe {
                check,
                period,
                timeout,
                ..
            } = &probe.source
            else {
                return None;
            };
            probe.asked = true;
            probe.next = now + *period;
            Some(Question {
                name: name.clone(),
                check: check.clone(),
                timeout: *timeout,
                addresses: addresses.clone(),
            })
        })
        .collect()
    }

    /// A question was answered at `clock`, by the node's own clock.
    pub fn answered(&mut self, name: &str, answer: Result<(), String>, clock: &str) {
        let Some(probe) = self.probes.get_mut(name) else {
            return;
        };
        probe.asked = false;
        let Source::Probe {
            failure_threshold, ..
        } = &probe.source
        else {
            return;
        };
        let (healthy, message) = match answer {
            Ok(()) => {
                probe.failures = 0;
                (true, String::new())
            }
            Err(why) => {
                probe.failures = probe.failures.saturating_add(1);
                if probe.failures < *failure_threshold {
                    return;
                }
                (false, shortened(&why, MESSAGE))
            }
        };
        let since = match &probe.known {
            Some(known) if known.healthy == healthy => known.since.clone(),
            _ => clock.to_owned(),
        };
        // Why it fails may differ each time: the first reason stays.
        let message = match &probe.known {
            Some(known) if !known.healthy && !healthy => known.message.clone(),
            _ => message,
        };
        probe.known = Some(ProbeReport {
            healthy,
            since,
            message,
        });
    }

    /// What is to be on the Lease.
    pub fn report(&self) -> Report {
        let known = self.probes.iter();
        let known = known.filter_map(|(name, it)| Some((name.clone(), it.known.clone()?)));
        let mut known: BTreeMap<_, _> = known.collect();
        let failing = known.values().filter(|it| !it.healthy).count();
        let most = MESSAGES / failing.max(1);
        for report in known.values_mut() {
            report.message = shortened(&report.message, most);
        }
        Report {
            boot_id: self.boot_id.clone(),
            kubelet_start: self.kubelet_start.clone(),
            state: self.state.clone(),
            probes: known,
            certificates: self.certificates,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    /// Covers R08.
    #[test]
    fn a_probe_fails_after_some_failures_in_a_row_and_answers_from_before_a_restart_are_none() {
        let list =
            r#"[{"name": "cni", "probe": {"tcpSocket": {"port": 1}}}, {"name": "l", "lease": {}}]"#;
        let mut probing = Probing::default();
        probing.set(needed(&[], |_| None, Some(list)), at(0));
        probing.see("b1", "k1", at(0));
        assert_eq!(
            probing.due(at(0)).len(),
            1,
            "what has a lease is not probed"
        );
        assert_eq!(probing.due(at(60)).len(), 0, "it is still being asked");
        assert!(probing.report().probes.is_empty(), "nothing is known yet");
        let healthy = |probing: &Probing| probing.report().probes.get("cni").map(|it| it.healthy);
        probing.answered("cni", Ok(()), "t0");
        assert_eq!(healthy(&probing), Some(true));
        assert_eq!(probing.due(at(4)).len(), 0);
        for (round, expected) in [(1, true), (2, true), (3, false), (4, false)] {
            assert_eq!(probing.due(at(round * 5)).len(), 1);
            probing.answered("cni", Err(format!("refused {round}")), &format!("t{round}"));
            assert_eq!(healthy(&probing), Some(expected), "{round}");
        }
        let known = &probing.report().probes["cni"];
        assert_eq!(
            (known.since.as_str(), known.message.as_str()),
            ("t3", "refused 3")
        );
        // The kubelet goes down, which changes nothing, and comes back as another.
        probing.see("b1", "", at(21));
        assert_eq!(healthy(&probing), Some(false));
        probing.see("b1", "k2", at(22));
        assert_eq!(healthy(&probing), None);
        assert_eq!(probing.report().kubelet_start, "k2");
        assert_eq!(probing.due(at(22)).len(), 1, "it is asked anew at once");
        // What nobody asks for any more is forgotten.
        probing.set(Vec::new(), at(23));
        probing.answered("cni", Ok(()), "t5");
        assert!(probing.report().probes.is_empty());
    }

    /// Covers N04.
    #[test]
    fn what_a_probe_prints_is_bounded_for_one_and_for_all() {
        let list: Vec<_> = (0..64)
            .map(|it| {
                serde_json::json!({
                    "name": format!("e{it}"),
                    "probe": { "exec": { "command": ["/check"] }, "failureThreshold": 1 },
                })
            })
            .collect();
        let list = serde_json::json!(list).to_string();
        let mut probing = Probing::default();
        probing.set(needed(&[], |_| None, Some(&list)), at(0));
        assert_eq!(probing.due(at(0)).len(), 64);
        let long = "\u{1b}[31mä".repeat(10_000);
        probing.answered("e0", Err(long.clone()), "t");
        let message = probing.report().probes["e0"].message.clone();
        assert!(
            message.len() <= MESSAGE && message.ends_with("(cut)"),
            "{message}"
        );
        assert!(!message.contains(char::is_control), "{message}");
        for it in 1..64 {
            probing.answered(&format!("e{it}"), Err(long.clone()), "t");
        }
        let report = probing.report().to_json();
        assert!(report.len() < 16 * 1024, "{}", report.len());
        // One that is alone says all of it again.
        for it in 1..64 {
            probing.answered(&format!("e{it}"), Ok(()), "t");
        }
        assert_eq!(probing.report().probes["e0"].message, message);
    }

    /// Covers N04.
    #[test]
    fn who_asks_the_node_where_it_is_gets_its_addresses() {
        let list = r#"[{"name": "a", "probe": {"tcpSocket": {"port": 1}}}]"#;
        let mut probing = Probing::default();
        probing.set(needed(&[], |_| None, Some(list)), at(0));
        assert!(!probing.asks_node());
        let list = r#"[{"name": "a", "probe": {"grpc": {"port": 1, "host": "{nodeIP}"}}}]"#;
        probing.set(needed(&[], |_| None, Some(list)), at(0));
        assert!(probing.asks_node());
        probing.set_addresses(["10.0.0.7", "node-1", "fd00::7"].into_iter());
        let due = probing.due(at(0));
        let expected: Vec<IpAddr> = vec!["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()];
        assert_eq!(due[0].addresses, expected);
    }
}
