//! A network of its own for a test host: a network and UTS name space, joined to this machine by a
//! veth pair.
//!
//! Every test host reaches this machine under the same address, [`GATEWAY`], and nothing else. The
//! pair, its addresses and routes live in the name space's life: they go when it goes.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;

use crate::process::{Running, run};
use crate::{Error, Result, scratch::Scratch};

/// This machine, as every test host sees it. The range is reserved for testing networks.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

/// How many test hosts there can be on one machine at a time.
const HOSTS: u32 = 4000;

/// A name space with one address of its own. It is gone when this is dropped.
#[derive(Debug)]
pub struct Network {
    holder: Running,
    address: Ipv4Addr,
    _scratch: Scratch,
}

impl Network {
    /// Makes a network whose host calls itself `host_name`.
    pub fn new(host_name: &str) -> Result<Self> {
        let scratch = Scratch::new("network")?;
        let mut unshare = Command::new("unshare");
        unshare.args([
            "--net",
            "--uts",
            "sh",
            "-c",
            "hostname \"$1\" && echo ready && exec sleep infinity",
            "sh",
        ]);
        unshare.arg(host_name);
        let log = scratch.path().join("log");
        let mut holder = Running::start("a network's name space", &mut unshare, &log)?;
        crate::wait::until(
            "a network's name space",
            std::time::Duration::from_secs(10),
            || {
                holder.still_runs()?;
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                Ok(if said.contains("ready") {
                    crate::wait::Look::Found(())
                } else {
                    crate::wait::Look::NotYet(said)
                })
            },
        )?;
        let address = connect(holder.id())?;
        Ok(Self {
            holder,
            address,
            _scratch: scratch,
        })
    }

    /// The address of the test host.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The file of its network name space, for `nsenter` and `systemd-nspawn`.
    pub fn net(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.holder.id()).into()
    }

    /// The file of its UTS name space.
    pub fn uts(&self) -> PathBuf {
        format!("/proc/{}/ns/uts", self.holder.id()).into()
    }

    /// A command that runs inside: `nsenter` with both name spaces, ready for its own arguments.
    pub fn inside(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.net().display()));
        command.arg(format!("--uts={}", self.uts().display()));
        command.arg("--");
        command
    }
}

/// Joins the name space of process `holder` to this machine, under the first free number. The kernel
/// says which are taken: an interface's name exists once.
fn connect(holder: u32) -> Result<Ipv4Addr> {
    for step in 0..HOSTS {
        let number = (holder + step) % HOSTS;
        let ours = format!("ektest{number}");
        let made = run(Command::new("ip").args([
            "link",
            "add",
            &ours,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            &holder.to_string(),
        ]));
        match made {
            Ok(_) => return address(holder, number, &ours),
            Err(error) if error.to_string().contains("File exists") => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::failed(format!(
        "all {HOSTS} addresses for test hosts are in use on this machine"
    )))
}

fn address(holder: u32, number: u32, ours: &str) -> Result<Ipv4Addr> {
    let [_, _, high, low] = (number + 256).to_be_bytes();
    let theirs = Ipv4Addr::new(198, 18, high, low);
    let inside = format!("nsenter --net=/proc/{holder}/ns/net ip");
    let script = format!(
        "set -e
        ip addr add {GATEWAY}/32 dev {ours}
        ip link set {ours} up
        ip route add {theirs}/32 dev {ours} src {GATEWAY}
        {inside} link set lo up
        {inside} addr add {theirs}/32 dev eth0
        {inside} link set eth0 up
        {inside} route add {GATEWAY}/32 dev eth0 src {theirs}
        {inside} route add default via {GATEWAY} dev eth0 src {theirs}"
    );
    run(Command::new("sh").args(["-c", &script]))?;
    Ok(theirs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::need::{self, Need};

    #[test]
    fn two_networks_have_their_own_address_and_name_and_reach_this_machine() -> Result<()> {
        if need::skip(&[Need::Root, Need::Program("ip", "iproute2")])? {
            return Ok(());
        }
        let (one, two) = (Network::new("first")?, Network::new("second")?);
        assert_ne!(one.address(), two.address());
        for (network, name) in [(&one, "first"), (&two, "second")] {
            assert_eq!(run(network.inside().arg("hostname"))?.trim(), name);
            let route = run(network
                .inside()
                .args(["ip", "route", "get", &GATEWAY.to_string()]))?;
            assert!(route.contains(&network.address().to_string()), "{route}");
        }
        let ours = format!("{}", one.address());
        drop(one);
        crate::wait::until(
            "the veth pair to go",
            std::time::Duration::from_secs(5),
            || {
                let routes = run(Command::new("ip").args(["route", "show", &ours]))?;
                Ok(if routes.is_empty() {
                    crate::wait::Look::Found(())
                } else {
                    crate::wait::Look::NotYet(routes)
                })
            },
        )
    }
}
