//! The agent on a Windows instance as a process of this machine: what it asks and what it costs, and its end.

use std::time::{Duration, Instant};

use evenkeel_testbed::control_plane::Request;
use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::{Doing, Error, Result};

use super::{AGENT, SOON, Scene};

impl Scene {
    /// The agent's process, as this machine numbers it.
    pub(crate) fn agent_process(&self) -> Result<Option<u32>> {
        self.process_of("controller")
    }

    /// The process that runs this command of the agent, as this machine numbers it.
    pub(crate) fn process_of(&self, command: &str) -> Result<Option<u32>> {
        let of = |process: u32| std::fs::read_link(format!("/proc/{process}/ns/pid")).ok();
        let instance = of(self.instance.process()?);
        let all = std::fs::read_dir("/proc").doing(|| "there is no /proc")?;
        let mut numbers = all.filter_map(|it| it.ok()?.file_name().to_str()?.parse().ok());
        Ok(numbers.find(|process: &u32| {
            let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_start_matches('"');
            line.starts_with(AGENT) && line.contains(command) && of(*process) == instance
        }))
    }

    /// Kills the agent as a crash does.
    pub(crate) fn kill_agent(&self) -> Result<()> {
        kill(self.agent_process()?)
    }

    /// What the API server was asked by this agent with its own login, its Lease apart; a watch ends by
    /// itself after some minutes and is begun anew, which does not count.
    pub(crate) fn requests(&self) -> Result<Vec<String>> {
        let asked = self.all_requests()?;
        let asked = asked
            .iter()
            .filter(|it| !["watch", "list"].contains(&it.verb.as_str()) && it.resource != "leases");
        Ok(asked.map(ToString::to_string).collect())
    }

    /// How many requests there were once the agent has asked for nothing for this many seconds.
    pub(crate) fn settled(&self, still: u64) -> Result<usize> {
        let mut last = self.requests()?.len();
        let mut since = Instant::now();
        until("the agent to ask for nothing more", SOON * 2, || {
            let now = self.requests()?.len();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            Ok(if since.elapsed() > Duration::from_secs(still) {
                Look::Found(last)
            } else {
                Look::NotYet(format!("{now} requests"))
            })
        })
    }

    /// What of the agent is in memory and is nobody else's, in MiB.
    pub(crate) fn memory(&self) -> Result<f64> {
        let process = self.agent_process()?;
        let process = process.ok_or_else(|| Error::failed("no agent"))?;
        let status = std::fs::read_to_string(format!("/proc/{process}/status"));
        let status = status.doing(|| "no agent")?;
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
        kib.map(|kib| kib / 1024.0)
            .ok_or_else(|| Error::failed(format!("no RssAnon in {status}")))
    }

    /// All that the API server was asked by this agent with its own login.
    pub(crate) fn all_requests(&self) -> Result<Vec<Request>> {
        let user = format!("evenkeel:agent:{}", self.name);
        self.cluster.requests_of(&user)
    }
}

/// Kills a program of ours, whose process is known, as a crash does.
pub(crate) fn kill(agent: Option<u32>) -> Result<()> {
    let agent = agent.ok_or_else(|| Error::failed("it does not run"))?;
    let done = std::process::Command::new("kill")
        .args(["-9", &agent.to_string()])
        .status()
        .doing(|| "cannot kill")?;
    if !done.success() {
        return Err(Error::failed(format!("cannot kill {agent}: {done}")));
    }
    until_gone(Some(agent))
}

/// Waits for the end of a process.
pub(crate) fn until_gone(process: Option<u32>) -> Result<()> {
    let Some(process) = process else {
        return Ok(());
    };
    let there = format!("/proc/{process}");
    until("a process to be gone", SOON, || {
        Ok(if std::path::Path::new(&there).exists() {
            Look::NotYet("it is still there".to_owned())
        } else {
            Look::Found(())
        })
    })
}
