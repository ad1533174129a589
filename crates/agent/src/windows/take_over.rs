//! A machine that OpenShift's operator made a node, and that becomes ours: its agent gets a login, and that operator's
//! services, variables and files are recognised as what this version replaces.

use std::path::Path;
use std::time::Duration;

use evenkeel_api::names::proxy;
use evenkeel_api::names::windows::{
    AGENT, KUBECONFIG, LOGIN, OWN_STATE, PAYLOAD, STORE, UPGRADE, WMCO_SERVICE,
};
use evenkeel_daemon::{Error, Result};
use kube::Client;

use super::bootstrap::own_node;
use super::machine::Machine;
use super::{login, on_machine};

/// How long the Node is looked for: it is there, or this is not its machine.
const LOOK: Duration = Duration::from_secs(30);

/// Gets a login as the agent of `node` with the one that was `given`, if that Node has an address of this machine.
pub(super) async fn log_in(client: &Client, given: Option<&Path>, node: &str) -> Result<()> {
    let given = given.ok_or_else(|| {
        Error::work(
            "cleanup --take-over needs --kubeconfig FILE: a login that may request certificates"
                .to_owned(),
        )
    })?;
    // A login and its private key are put into it.
    on_machine(Machine::close_folders).await?;
    let node = own_node(client, Some(node), LOOK).await?;
    let remembered = node.clone();
    on_machine(move |machine| machine.remember_node(&remembered)).await?;
    login::obtain(client, given, &node).await
}

/// Variables of the machine that were that operator's.
pub(super) const fn variables(is_taken_over: bool) -> &'static [&'static str] {
    // It keeps these three, and takes every other value off that it finds there.
    if is_taken_over { &proxy::ALL } else { &[] }
}

/// The number of a service with our tag, by which it goes. That operator's agent would put the others back: it goes first.
pub(super) fn removal_order(service: &str) -> u32 {
    if service.eq_ignore_ascii_case(WMCO_SERVICE) {
        u32::MAX
    } else {
        u32::MAX - 1
    }
}

/// That operator's files: all that is in its folder but the kubelet's login, which is the identity of the Node, and what
/// is ours. Its own upgrades leave nothing else there either.
pub(super) fn files(machine: &Machine) -> evenkeel_host::Result<Vec<String>> {
    let folder = PAYLOAD.trim_end_matches('\\');
    let all = machine.host.files_below(folder)?;
    let is_ours = |path: &str| {
        let is = |own: &str| path.eq_ignore_ascii_case(own);
        let is_below = |own: &str| {
            let start = path.get(..own.len());
            start.is_some_and(|it| it.eq_ignore_ascii_case(own))
        };
        [KUBECONFIG, LOGIN, AGENT].into_iter().any(is)
            || [OWN_STATE, STORE, UPGRADE].into_iter().any(is_below)
    };
    Ok(all.into_iter().filter(|path| !is_ours(path)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers O08.
    #[test]
    fn the_other_agent_goes_before_the_services_that_it_would_put_back() {
        assert!(removal_order("Windows-Instance-Config-Daemon") > removal_order("kubelet"));
        assert!(variables(false).is_empty());
        assert_eq!(variables(true), ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"]);
    }
}
